"""Urls and headers of remote servers. The rules for manifests are in test_manifest.py."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from mcp_runtime.client import remote
from mcp_runtime.protocol.errors import SecretError

SECRET = "hunter2-hunter2"


@pytest.mark.parametrize(
    "url",
    [
        "https://mcp.example.com/",
        "http://localhost:8080/mcp",
        "http://LOCALHOST/",
        "http://127.0.0.1/",
        "http://127.8.9.10/",
        "http://[::1]:1/",
        "http://inside.example/",
        "http://Inside.Example./",
        "http://[fd00::1]/",
        "http://a.below.example/",
    ],
)
def test_https_this_machine_and_named_hosts_may_be_called(url: str) -> None:
    assert remote.url_fault(url) == ""
    assert remote.plain_http_fault(url, ["inside.EXAMPLE", "[fd00::1]", ".below.example"]) == ""


@pytest.mark.parametrize(
    "url",
    [
        "http://mcp.example.com/",
        "http://127.0.0.1.example.com/",
        "http://localhost.example.com/",
        "http://10.0.0.1/",
        "http://0.0.0.0/",
        "http://2130706433/",
        "http://x.inside.example/",
        "http://inside.example.com/?inside.example",
        "http://below.example/",
    ],
)
def test_other_hosts_may_not_be_called_without_tls(url: str) -> None:
    assert remote.url_fault(url) == ""
    fault = remote.plain_http_fault(url, ["inside.example", ".below.example"])
    assert "https" in fault
    assert "GUILD_HALL_PLAIN_HTTP_HOSTS" in fault


def test_the_displayed_url_has_no_query() -> None:
    assert remote.display_url("https://mcp.example.com/mcp?team=blue") == "https://mcp.example.com/mcp"


# Secrets ----------------------------------------------------------------------------------------------------------


def sources(folder: Path, environment: Mapping[str, str], *private: Path) -> remote.Sources:
    return remote.Sources(folder, private, environment)


def test_references_are_replaced_from_the_environment_and_from_files(tmp_path: Path) -> None:
    folder = tmp_path / "member"
    folder.mkdir()
    (folder / "key.txt").write_text(f"\n  {SECRET}\r\n")
    (tmp_path / "other").write_text("other")
    headers = {
        "Authorization": "Bearer ${env:A_TOKEN}",
        "X-Key": "${file:key.txt}",
        "Cookie": "a=${file:../other}; b=${env:A_TOKEN}; c=${file:" + str(tmp_path / "other") + "}",
        "X-Team": "blue $5",
    }
    resolved_headers = remote.resolve(headers, sources(folder, {"A_TOKEN": "abc"}))
    assert resolved_headers.values == {
        "Authorization": "Bearer abc",
        "X-Key": SECRET,
        "Cookie": "a=other; b=abc; c=other",
        "X-Team": "blue $5",
    }
    assert set(resolved_headers.secrets) == {"abc", SECRET, "other"}


def test_references_within_values_are_not_replaced(tmp_path: Path) -> None:
    environment = {"A": "${env:B}", "B": SECRET}
    assert remote.resolve({"X-Key": "${env:A}"}, sources(tmp_path, environment)).values == {"X-Key": "${env:B}"}


def test_the_text_of_headers_contains_no_values(tmp_path: Path) -> None:
    resolved_headers = remote.resolve({"X-Key": "${env:A}"}, sources(tmp_path, {"A": SECRET}))
    assert SECRET not in repr(resolved_headers)
    assert SECRET not in str(resolved_headers)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("${env:NOWHERE}", "the environment variable NOWHERE is not set"),
        ("${env:EMPTY}", "the environment variable EMPTY is empty"),
        ("${env:LINES}", "the environment variable LINES holds what no header can"),
        ("${env:UMLAUT}", "the environment variable UMLAUT holds what no header can"),
        ("${file:nowhere}", "the file nowhere does not exist"),
        ("${file:.}", "the file . is not a file"),
        ("${file:pipe}", "the file pipe is not a file"),
        ("${file:empty}", "the file empty is empty"),
        ("${file:binary}", "the file binary holds what no header can"),
        ("${file:large}", "the file large holds what no header can"),
        ("${file:large/x}", "the file large/x does not exist"),
        (f"${{file:{'x' * 300}}}", "cannot be read: File name too long"),
    ],
)
def test_the_error_about_an_unusable_secret_names_its_place_but_not_its_value(
    tmp_path: Path, value: str, message: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "binary").write_bytes(b"hunter2\0\xff")
    (tmp_path / "large").write_text("hunter2" * 100_000)
    environment = {"EMPTY": " ", "LINES": "hunter2\nX-Other: y", "UMLAUT": "hunter2\u00fc"}
    with pytest.raises(SecretError) as error:
        remote.resolve({"X-Key": value}, sources(tmp_path, environment))
    assert str(error.value).startswith("headers.X-Key: ")
    assert message in str(error.value)
    assert "hunter2" not in str(error.value)
    assert list(remote.reference_faults({"X-Key": value}, sources(tmp_path, environment))) == [str(error.value)]


def test_all_missing_references_are_reported_together(tmp_path: Path) -> None:
    headers = {"X-A": "${env:NO}${file:no}", "X-B": "${env:YES}", "X-C": "${env:NO}"}
    assert list(remote.reference_faults(headers, sources(tmp_path, {"YES": "x"}))) == [
        "headers.X-A: the environment variable NO is not set",
        "headers.X-A: the file no does not exist",
        "headers.X-C: the environment variable NO is not set",
    ]


def test_the_longest_secret_is_masked_first() -> None:
    secrets = ("abcd", "abcdefgh", 'with"quote', "x")
    text = 'refused abcdefgh, abcd, "with\\"quote", with"quote and x'
    assert remote.mask_secrets(text, secrets) == 'refused ***, ***, "***", *** and x'


def test_a_shortened_secret_is_masked_too() -> None:
    text = "refused: hunter2-hun... and hunter2-x, hunter"
    assert remote.mask_secrets(text, (SECRET,)) == "refused: ***... and ***x, hunter"


# Files and variables of the hall ----------------------------------------------------------------------------------


@pytest.fixture
def own_sources(tmp_path: Path) -> remote.Sources:
    """A member's folder beside the data folder of a hall, and a file of the hall in another place."""
    (tmp_path / "var" / "logs").mkdir(parents=True)
    for name in ("secret-key", "local-token", "guildhall.sqlite3", "logs/one.log"):
        (tmp_path / "var" / name).write_text("hunter2")
    (tmp_path / ".env").write_text("hunter2")
    (tmp_path / "members" / "one").mkdir(parents=True)
    return sources(tmp_path / "members" / "one", {}, tmp_path / "var", tmp_path / ".env")


def refusal(reference: str, reference_sources: remote.Sources) -> str:
    with pytest.raises(SecretError) as error:
        remote.resolve({"X-Key": reference}, reference_sources)
    assert "hunter2" not in str(error.value)
    assert list(remote.reference_faults({"X-Key": reference}, reference_sources)) == [str(error.value)]
    return str(error.value)


@pytest.mark.parametrize(
    "path", ["secret-key", "local-token", "guildhall.sqlite3", "logs/one.log", "logs/../secret-key", "../.env"]
)
def test_files_of_the_hall_are_never_sent_to_a_server(tmp_path: Path, own_sources: remote.Sources, path: str) -> None:
    for reference_path in (f"../../var/{path}", str(tmp_path / "var" / path)):
        assert refusal(f"${{file:{reference_path}}}", own_sources).endswith(
            f"the file {reference_path} is the hall's own, and no member's"
        )


def test_files_of_the_hall_are_never_sent_through_links(tmp_path: Path, own_sources: remote.Sources) -> None:
    (own_sources.folder / "link").symlink_to(tmp_path / "var" / "secret-key")
    (own_sources.folder / "folder").symlink_to(tmp_path / "var")
    os.link(tmp_path / "var" / "secret-key", own_sources.folder / "hard-link")
    os.link(tmp_path / ".env", tmp_path / "hard-link")
    for path in ("link", "folder/secret-key", "folder/logs/one.log", "hard-link", "../../hard-link"):
        assert "is the hall's own" in refusal(f"${{file:{path}}}", own_sources)


def test_a_folder_whose_name_begins_like_the_data_folder_is_allowed(
    tmp_path: Path, own_sources: remote.Sources
) -> None:
    (tmp_path / "var-keys").mkdir()
    (tmp_path / "var-keys" / "key").write_text(SECRET)
    assert remote.resolve({"X-Key": "${file:../../var-keys/key}"}, own_sources).values == {"X-Key": SECRET}


def test_members_in_the_data_folder_may_use_their_own_files(tmp_path: Path) -> None:
    folder = tmp_path / "var" / "members" / "one"
    folder.mkdir(parents=True)
    (folder / "key").write_text(SECRET)
    (tmp_path / "var" / "secret-key").write_text("hunter2")
    inner_sources = sources(folder, {}, tmp_path / "var")
    assert remote.resolve({"X-Key": "${file:key}"}, inner_sources).values == {"X-Key": SECRET}
    assert "is the hall's own" in refusal("${file:../../secret-key}", inner_sources)
    os.link(tmp_path / "var" / "secret-key", folder / "other")
    assert "is the hall's own" in refusal("${file:other}", inner_sources)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
@pytest.mark.parametrize(
    "path", ["/proc/self/environ", "/proc/self/cmdline", "/proc/thread-self/environ", "/proc/sys/kernel/hostname"]
)
def test_files_of_proc_are_never_sent(own_sources: remote.Sources, path: str) -> None:
    assert refusal(f"${{file:{path}}}", own_sources).endswith("is the hall's own, and no member's")


@pytest.mark.parametrize(
    ("path", "message"), [("/dev/zero", "is not a file"), ("/dev/tty", ""), ("/dev/stdin", ""), (".", "is not a file")]
)
def test_devices_and_folders_are_refused(own_sources: remote.Sources, path: str, message: str) -> None:
    assert message in refusal(f"${{file:{path}}}", own_sources)


@pytest.mark.parametrize(
    "name",
    [
        *("GUILD_HALL_ADMIN_PASSWORD", "DATABASE_URL", "REDIS_URL", "PGPASSWORD"),
        *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    ],
)
def test_variables_of_the_hall_are_never_sent(tmp_path: Path, name: str) -> None:
    assert remote.header_fault("X-Key", f"${{env:{name}}}") == f"{name} is the hall's own, and no member's"
    # A row may be older than this rule.
    assert "is the hall's own" in refusal(f"${{env:{name}}}", sources(tmp_path, {name: "hunter2"}))

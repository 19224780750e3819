"""Urls and headers of remote servers; what manifests may say of them is in test_manifest.py."""

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


def test_the_query_is_not_handed_out() -> None:
    assert remote.display_url("https://mcp.example.com/mcp?team=blue") == "https://mcp.example.com/mcp"


# Secrets ----------------------------------------------------------------------------------------------------------


def sources(folder: Path, environment: Mapping[str, str], *private: Path) -> remote.Sources:
    return remote.Sources(folder, private, environment)


def test_references_are_filled_in_from_the_environment_and_from_files(tmp_path: Path) -> None:
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
    found = remote.resolve(headers, sources(folder, {"A_TOKEN": "abc"}))
    assert found.values == {
        "Authorization": "Bearer abc",
        "X-Key": SECRET,
        "Cookie": "a=other; b=abc; c=other",
        "X-Team": "blue $5",
    }
    assert set(found.secrets) == {"abc", SECRET, "other"}


def test_what_was_filled_in_is_not_filled_in_again(tmp_path: Path) -> None:
    environment = {"A": "${env:B}", "B": SECRET}
    assert remote.resolve({"X-Key": "${env:A}"}, sources(tmp_path, environment)).values == {"X-Key": "${env:B}"}


def test_values_are_in_no_text_of_the_headers(tmp_path: Path) -> None:
    found = remote.resolve({"X-Key": "${env:A}"}, sources(tmp_path, {"A": SECRET}))
    assert SECRET not in repr(found)
    assert SECRET not in str(found)


@pytest.mark.parametrize(
    ("value", "said"),
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
def test_a_secret_that_cannot_be_used_is_told_by_its_place_and_never_by_its_value(
    tmp_path: Path, value: str, said: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "binary").write_bytes(b"hunter2\0\xff")
    (tmp_path / "large").write_text("hunter2" * 100_000)
    environment = {"EMPTY": " ", "LINES": "hunter2\nX-Other: y", "UMLAUT": "hunter2\u00fc"}
    with pytest.raises(SecretError) as caught:
        remote.resolve({"X-Key": value}, sources(tmp_path, environment))
    assert str(caught.value).startswith("headers.X-Key: ")
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert list(remote.reference_faults({"X-Key": value}, sources(tmp_path, environment))) == [str(caught.value)]


def test_everything_that_is_missing_is_reported_at_once(tmp_path: Path) -> None:
    headers = {"X-A": "${env:NO}${file:no}", "X-B": "${env:YES}", "X-C": "${env:NO}"}
    assert list(remote.reference_faults(headers, sources(tmp_path, {"YES": "x"}))) == [
        "headers.X-A: the environment variable NO is not set",
        "headers.X-A: the file no does not exist",
        "headers.X-C: the environment variable NO is not set",
    ]


def test_secrets_are_masked_wherever_they_stand_the_longest_first() -> None:
    secrets = ("abcd", "abcdefgh", 'with"quote', "x")
    said = 'refused abcdefgh, abcd, "with\\"quote", with"quote and x'
    assert remote.mask_secrets(said, secrets) == 'refused ***, ***, "***", *** and x'


def test_a_secret_that_was_cut_off_is_masked_as_far_as_it_goes() -> None:
    said = "refused: hunter2-hun... and hunter2-x, hunter"
    assert remote.mask_secrets(said, (SECRET,)) == "refused: ***... and ***x, hunter"


# The hall's own ---------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> remote.Sources:
    """A member's folder beside a hall's data folder, and a file of the hall's elsewhere."""
    (tmp_path / "var" / "logs").mkdir(parents=True)
    for name in ("secret-key", "local-token", "guildhall.sqlite3", "logs/one.log"):
        (tmp_path / "var" / name).write_text("hunter2")
    (tmp_path / ".env").write_text("hunter2")
    (tmp_path / "members" / "one").mkdir(parents=True)
    return sources(tmp_path / "members" / "one", {}, tmp_path / "var", tmp_path / ".env")


def refusal(reference: str, from_where: remote.Sources) -> str:
    with pytest.raises(SecretError) as caught:
        remote.resolve({"X-Key": reference}, from_where)
    assert "hunter2" not in str(caught.value)
    assert list(remote.reference_faults({"X-Key": reference}, from_where)) == [str(caught.value)]
    return str(caught.value)


@pytest.mark.parametrize(
    "path", ["secret-key", "local-token", "guildhall.sqlite3", "logs/one.log", "logs/../secret-key", "../.env"]
)
def test_files_of_the_hall_itself_are_never_sent_to_a_server(tmp_path: Path, own: remote.Sources, path: str) -> None:
    for written in (f"../../var/{path}", str(tmp_path / "var" / path)):
        assert refusal(f"${{file:{written}}}", own).endswith(f"the file {written} is the hall's own, and no member's")


def test_nor_are_they_through_links(tmp_path: Path, own: remote.Sources) -> None:
    (own.folder / "link").symlink_to(tmp_path / "var" / "secret-key")
    (own.folder / "folder").symlink_to(tmp_path / "var")
    os.link(tmp_path / "var" / "secret-key", own.folder / "hard-link")
    os.link(tmp_path / ".env", tmp_path / "hard-link")
    for path in ("link", "folder/secret-key", "folder/logs/one.log", "hard-link", "../../hard-link"):
        assert "is the hall's own" in refusal(f"${{file:{path}}}", own)


def test_a_name_that_begins_like_the_data_folders_is_another_folder(tmp_path: Path, own: remote.Sources) -> None:
    (tmp_path / "var-keys").mkdir()
    (tmp_path / "var-keys" / "key").write_text(SECRET)
    assert remote.resolve({"X-Key": "${file:../../var-keys/key}"}, own).values == {"X-Key": SECRET}


def test_members_inside_of_the_data_folder_may_use_files_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "var" / "members" / "one"
    folder.mkdir(parents=True)
    (folder / "key").write_text(SECRET)
    (tmp_path / "var" / "secret-key").write_text("hunter2")
    inside = sources(folder, {}, tmp_path / "var")
    assert remote.resolve({"X-Key": "${file:key}"}, inside).values == {"X-Key": SECRET}
    assert "is the hall's own" in refusal("${file:../../secret-key}", inside)
    os.link(tmp_path / "var" / "secret-key", folder / "other")
    assert "is the hall's own" in refusal("${file:other}", inside)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
@pytest.mark.parametrize(
    "path", ["/proc/self/environ", "/proc/self/cmdline", "/proc/thread-self/environ", "/proc/sys/kernel/hostname"]
)
def test_what_the_kernel_tells_of_processes_is_never_sent(own: remote.Sources, path: str) -> None:
    assert refusal(f"${{file:{path}}}", own).endswith("is the hall's own, and no member's")


@pytest.mark.parametrize(
    ("path", "said"), [("/dev/zero", "is not a file"), ("/dev/tty", ""), ("/dev/stdin", ""), (".", "is not a file")]
)
def test_devices_and_folders_are_no_files(own: remote.Sources, path: str, said: str) -> None:
    assert said in refusal(f"${{file:{path}}}", own)


@pytest.mark.parametrize(
    "name",
    [
        *("GUILD_HALL_ADMIN_PASSWORD", "DATABASE_URL", "REDIS_URL", "PGPASSWORD"),
        *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    ],
)
def test_variables_of_the_hall_itself_are_never_sent(tmp_path: Path, name: str) -> None:
    assert remote.header_fault("X-Key", f"${{env:{name}}}") == f"{name} is the hall's own, and no member's"
    # A row may be older than the rule.
    assert "is the hall's own" in refusal(f"${{env:{name}}}", sources(tmp_path, {name: "hunter2"}))

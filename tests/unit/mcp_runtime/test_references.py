"""References to secrets. The rules for manifests are in test_manifest.py."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from mcp_runtime.protocol.errors import SecretError
from mcp_runtime.secrets import references
from mcp_runtime.secrets.references import Sources

SECRET = "hunter2-hunter2"


def sources(folder: Path, environment: Mapping[str, str], *private: Path, files: Path | None = None) -> Sources:
    return Sources(folder, private, files, environment, {"token": SECRET}.__getitem__)


def test_references_are_replaced_by_secrets_variables_and_contents_of_files(tmp_path: Path) -> None:
    folder, files = tmp_path / "member", tmp_path / "files"
    folder.mkdir()
    files.mkdir()
    (folder / "key.txt").write_text(f"\n  {SECRET}\r\n")
    (files / "other").write_text("other")
    headers = {
        "Authorization": "Bearer ${env:GUILD_HALL_MEMBER_TOKEN}",
        "X-Key": "${file:key.txt}",
        "X-Secret": "${secret:token}!",
        "Cookie": "a=${file:../files/other}; b=${env:GUILD_HALL_MEMBER_TOKEN}; c=${file:" + f"{files}/other" + "}",
        "X-Team": "blue $5",
    }
    known = sources(folder, {"GUILD_HALL_MEMBER_TOKEN": "abc"}, files=files)
    resolved = references.resolve(headers, known, "headers")
    assert resolved.values == {
        "Authorization": "Bearer abc",
        "X-Key": SECRET,
        "X-Secret": f"{SECRET}!",
        "Cookie": "a=other; b=abc; c=other",
        "X-Team": "blue $5",
    }
    assert set(resolved.secrets) == {"abc", SECRET, "other"}


def test_variables_of_a_process_may_have_several_lines_and_any_characters(tmp_path: Path) -> None:
    text = "-----BEGIN KEY-----\nZw\u00fc\n-----END KEY-----"
    (tmp_path / "key.pem").write_text(f"{text}\n")
    resolved = references.resolve({"KEY": "${file:key.pem}", "PLAIN": "${HOME}"}, sources(tmp_path, {}), "env")
    assert resolved.values == {"KEY": text, "PLAIN": "${HOME}"}
    assert references.mask_secrets("read -----END KEY-----", resolved.secrets) == "read ***"


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("${secret:api.key-1}", ""),
        ("${env:GUILD_HALL_MEMBER_X} ${file:a b}", ""),
        ("${HOME} $5 ${PORT}", ""),
        ("${secret:a b}", "a reference is one of"),
        ("x${env:1}", "a reference is one of"),
        ("${secret:}", "a reference is one of"),
        ("${file:{}}", "a reference is one of"),
        ("${secret:" + "a" * 65 + "}", "a reference is one of"),
        ("${env:DATABASE_URL}", "DATABASE_URL is not for members"),
    ],
)
def test_a_reference_that_cannot_be_read_anywhere_is_a_fault(value: str, fault: str) -> None:
    assert references.reference_fault(value).startswith(fault)
    assert bool(references.reference_fault(value)) is bool(fault)


def test_the_names_of_secrets_are_found_in_values() -> None:
    assert references.secret_names(["${secret:a}${secret:b}", "${env:GUILD_HALL_MEMBER_C}", "d"]) == {"a", "b"}


def test_references_within_values_are_not_replaced(tmp_path: Path) -> None:
    environment = {"GUILD_HALL_MEMBER_A": "${env:GUILD_HALL_MEMBER_B}", "GUILD_HALL_MEMBER_B": SECRET}
    assert references.resolve(
        {"X-Key": "${env:GUILD_HALL_MEMBER_A}"}, sources(tmp_path, environment), "headers"
    ).values == {"X-Key": "${env:GUILD_HALL_MEMBER_B}"}


def test_the_text_of_headers_contains_no_values(tmp_path: Path) -> None:
    resolved_headers = references.resolve(
        {"X-Key": "${env:GUILD_HALL_MEMBER_A}"}, sources(tmp_path, {"GUILD_HALL_MEMBER_A": SECRET}), "headers"
    )
    assert SECRET not in repr(resolved_headers)
    assert SECRET not in str(resolved_headers)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("${env:GUILD_HALL_MEMBER_NOWHERE}", "the environment variable GUILD_HALL_MEMBER_NOWHERE is not set"),
        ("${env:GUILD_HALL_MEMBER_EMPTY}", "the environment variable GUILD_HALL_MEMBER_EMPTY is empty"),
        ("${env:GUILD_HALL_MEMBER_LINES}", "the environment variable GUILD_HALL_MEMBER_LINES holds what no header can"),
        (
            "${env:GUILD_HALL_MEMBER_UMLAUT}",
            "the environment variable GUILD_HALL_MEMBER_UMLAUT holds what no header can",
        ),
        ("${file:nowhere}", "the file nowhere does not exist"),
        ("${file:.}", "the file . is not a file"),
        ("${file:pipe}", "the file pipe is not a file"),
        ("${file:empty}", "the file empty is empty"),
        ("${file:binary}", "the file binary holds no text in UTF-8"),
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
    environment = {
        "GUILD_HALL_MEMBER_EMPTY": " ",
        "GUILD_HALL_MEMBER_LINES": "hunter2\nX-Other: y",
        "GUILD_HALL_MEMBER_UMLAUT": "hunter2\u00fc",
    }
    with pytest.raises(SecretError) as error:
        references.resolve({"X-Key": value}, sources(tmp_path, environment), "headers")
    assert str(error.value).startswith("headers.X-Key: ")
    assert message in str(error.value)
    assert "hunter2" not in str(error.value)
    assert list(references.faults({"X-Key": value}, sources(tmp_path, environment), "headers")) == [str(error.value)]


def test_all_missing_references_are_reported_together(tmp_path: Path) -> None:
    headers = {
        "X-A": "${env:GUILD_HALL_MEMBER_NO}${file:no}",
        "X-B": "${env:GUILD_HALL_MEMBER_YES}",
        "X-C": "${env:GUILD_HALL_MEMBER_NO}",
    }
    assert list(references.faults(headers, sources(tmp_path, {"GUILD_HALL_MEMBER_YES": "x"}), "headers")) == [
        "headers.X-A: the environment variable GUILD_HALL_MEMBER_NO is not set",
        "headers.X-A: the file no does not exist",
        "headers.X-C: the environment variable GUILD_HALL_MEMBER_NO is not set",
    ]


def test_the_longest_secret_is_masked_first() -> None:
    secrets = ("abcd", "abcdefgh", 'with"quote', "x")
    text = 'refused abcdefgh, abcd, "with\\"quote", with"quote and x'
    assert references.mask_secrets(text, secrets) == 'refused ***, ***, "***", *** and x'


def test_a_shortened_secret_is_masked_too() -> None:
    text = "refused: hunter2-hun... and hunter2-x, hunter"
    assert references.mask_secrets(text, (SECRET,)) == "refused: ***... and ***x, hunter"


# Files and variables of the hall ----------------------------------------------------------------------------------


@pytest.fixture
def own_sources(tmp_path: Path) -> Sources:
    """A member's folder beside the data folder of a hall, with files for members in it, and a file of the hall."""
    (tmp_path / "var" / "logs").mkdir(parents=True)
    (tmp_path / "var" / "files").mkdir()
    for name in ("secret-key", "local-token", "guildhall.sqlite3", "logs/one.log"):
        (tmp_path / "var" / name).write_text("hunter2")
    (tmp_path / ".env").write_text("hunter2")
    (tmp_path / "members" / "one").mkdir(parents=True)
    folder = tmp_path / "members" / "one"
    return sources(folder, {}, tmp_path / "var", tmp_path / ".env", files=tmp_path / "var" / "files")


def refusal(reference: str, reference_sources: Sources) -> str:
    with pytest.raises(SecretError) as error:
        references.resolve({"X-Key": reference}, reference_sources, "headers")
    assert "hunter2" not in str(error.value)
    assert list(references.faults({"X-Key": reference}, reference_sources, "headers")) == [str(error.value)]
    return str(error.value)


@pytest.mark.parametrize(
    "path", ["secret-key", "local-token", "guildhall.sqlite3", "logs/one.log", "logs/../secret-key", "../.env"]
)
def test_files_of_the_hall_are_never_sent_to_a_server(tmp_path: Path, own_sources: Sources, path: str) -> None:
    for reference_path in (f"../../var/{path}", str(tmp_path / "var" / path)):
        assert f"the file {reference_path} is not for members: it must be in the member's folder, or in" in refusal(
            f"${{file:{reference_path}}}", own_sources
        )


def test_files_of_other_members_are_never_sent(tmp_path: Path, own_sources: Sources) -> None:
    (tmp_path / "members" / "one-more").mkdir()
    (tmp_path / "members" / "one-more" / "key").write_text("hunter2")
    (own_sources.folder / "link").symlink_to(tmp_path / "members" / "one-more" / "key")
    for path in ("../one-more/key", "link"):
        assert "it must be in the member's folder" in refusal(f"${{file:{path}}}", own_sources)


def test_without_a_folder_for_files_the_error_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "member").mkdir()
    (tmp_path / "key").write_text("hunter2")
    assert "GUILD_HALL_SECRET_FILES_DIR" in refusal("${file:../key}", sources(tmp_path / "member", {}))


def test_files_of_the_hall_are_never_sent_through_links(tmp_path: Path, own_sources: Sources) -> None:
    (own_sources.folder / "link").symlink_to(tmp_path / "var" / "secret-key")
    (own_sources.folder / "folder").symlink_to(tmp_path / "var")
    os.link(tmp_path / "var" / "secret-key", own_sources.folder / "hard-link")
    os.link(tmp_path / ".env", tmp_path / "var" / "files" / "hard-link")
    for path in ("link", "folder/secret-key", "folder/logs/one.log"):
        assert "it must be in the member's folder" in refusal(f"${{file:{path}}}", own_sources)
    for path in ("hard-link", "../../var/files/hard-link"):
        assert "it is a file of the hall" in refusal(f"${{file:{path}}}", own_sources)


def test_a_folder_whose_name_begins_like_the_folder_for_files_is_refused(tmp_path: Path, own_sources: Sources) -> None:
    (tmp_path / "var" / "files-old").mkdir()
    for folder in ("files", "files-old"):
        (tmp_path / "var" / folder / "key").write_text(SECRET)
    assert references.resolve({"X": "${file:../../var/files/key}"}, own_sources, "env").values == {"X": SECRET}
    assert "it must be in" in refusal("${file:../../var/files-old/key}", own_sources)


def test_members_in_the_data_folder_may_use_their_own_files(tmp_path: Path) -> None:
    folder = tmp_path / "var" / "members" / "one"
    folder.mkdir(parents=True)
    (folder / "key").write_text(SECRET)
    (tmp_path / "var" / "secret-key").write_text("hunter2")
    inner_sources = sources(folder, {}, tmp_path / "var")
    assert references.resolve({"X-Key": "${file:key}"}, inner_sources, "headers").values == {"X-Key": SECRET}
    assert "it must be in" in refusal("${file:../../secret-key}", inner_sources)
    os.link(tmp_path / "var" / "secret-key", folder / "other")
    assert "it is a file of the hall" in refusal("${file:other}", inner_sources)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
@pytest.mark.parametrize(
    "path", ["/proc/self/environ", "/proc/self/cmdline", "/proc/thread-self/environ", "/proc/sys/kernel/hostname"]
)
def test_files_of_proc_are_never_sent(tmp_path: Path, path: str) -> None:
    (tmp_path / "link").symlink_to(path)
    for folder in (None, Path("/"), Path("/proc")):
        for reference in (path, "link"):
            assert "not for members" in refusal(f"${{file:{reference}}}", sources(tmp_path, {}, files=folder))


@pytest.mark.parametrize(
    ("path", "message"), [("/dev/zero", "is not a file"), ("/dev/tty", ""), ("/dev/stdin", ""), (".", "is not a file")]
)
def test_devices_and_folders_are_refused(own_sources: Sources, path: str, message: str) -> None:
    assert message in refusal(f"${{file:{path}}}", own_sources)


def test_a_file_that_is_replaced_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "private").write_text("hunter2")
    member = tmp_path / "member"
    member.mkdir()
    (member / "key").symlink_to(tmp_path / "private")
    resolve = Path.resolve

    def replace_and_resolve(path: Path, strict: bool = False) -> Path:
        if path.name == "key" and path.is_symlink():
            path.unlink()
            path.write_text("harmless")
        return resolve(path, strict)

    monkeypatch.setattr(Path, "resolve", replace_and_resolve)
    with pytest.raises(SecretError, match="was replaced while it was read"):
        references.resolve({"KEY": "${file:key}"}, sources(member, {}), "env")


def test_a_secret_has_a_limit_of_lines(tmp_path: Path) -> None:
    (tmp_path / "many").write_text("line\n" * 201)
    with pytest.raises(SecretError, match="200 lines"):
        references.resolve({"KEY": "${file:many}"}, sources(tmp_path, {}), "env")


def test_a_variable_that_is_not_for_members_is_never_sent(tmp_path: Path) -> None:
    for name in ("GUILD_HALL_ADMIN_PASSWORD", "DATABASE_URL", "HOME"):
        # A row may be older than the rule.
        assert "is not for members" in refusal(f"${{env:{name}}}", sources(tmp_path, {name: "hunter2"}))

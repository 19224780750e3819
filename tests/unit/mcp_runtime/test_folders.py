"""Two folders have the same digest exactly if all that the manifest's patterns name is equal."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_runtime.members import folders
from mcp_runtime.members.folders import FolderDigests

ALL = ("**",)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill(tmp_path / "member")


def fill(folder: Path) -> Path:
    files = {
        "guild-member.json": "{}",
        "server.py": "print(1)",
        "lib/words.txt": "hello",
        "lib/deep/er/a.py": "",
        ".env": "KEY=1",
        ".git/HEAD": "main",
        "__pycache__/server.pyc": "code",
        "lib/__pycache__/a.pyc": "code",
        "node_modules/left-pad/index.js": "pad",
    }
    for path, text in files.items():
        write(folder / path, text)
    return folder


def write(file: Path, text: str) -> None:
    """Write a file as if that was long ago, because a file that has just been written is always read again."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    os.utime(file, (time.time() - 3600, time.time() - 3600))


def digest(folder: Path, patterns: tuple[str, ...] = ALL) -> str:
    result = FolderDigests().compute({folder: patterns})[folder]
    assert result.fault == ""
    return result.text


def test_equal_folders_in_different_places_have_the_same_digest(folder: Path, tmp_path: Path) -> None:
    copy = fill(tmp_path / "elsewhere" / "copy")
    assert digest(folder) == digest(copy)
    assert len(digest(folder)) == 64


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: write(folder / "lib/words.txt", "hellO"),
        lambda folder: write(folder / "lib/new.txt", ""),
        lambda folder: (folder / "lib/words.txt").unlink(),
        lambda folder: (folder / "lib/words.txt").rename(folder / "lib/word.txt"),
        lambda folder: (folder / "lib/words.txt").rename(folder / "words.txt"),
        lambda folder: (folder / "server.py").chmod(0o755),
        lambda folder: (folder / "link").symlink_to("server.py"),
    ],
    ids=["content", "new file", "removed file", "new name", "new place", "executable", "link"],
)
def test_every_change_of_a_file_changes_the_digest(folder: Path, change: Callable[[Path], object]) -> None:
    digests = FolderDigests()
    before = digests.compute({folder: ALL})
    change(folder)
    assert digests.compute({folder: ALL}) != before


def test_only_the_target_of_a_link_counts(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    fill(outside)
    (folder / "link").symlink_to(outside)
    before = digest(folder)
    write(outside / "server.py", "print(2)")
    assert digest(folder) == before
    (folder / "link").unlink()
    (folder / "link").symlink_to("nowhere")
    assert digest(folder) != before


def test_hidden_names_count_only_if_a_pattern_names_them(folder: Path) -> None:
    before, with_settings = digest(folder), digest(folder, ("**", ".env"))
    for path in (".env", ".git/HEAD", "__pycache__/server.pyc", "lib/__pycache__/a.pyc", "node_modules/left-pad/x"):
        write(folder / path, "another")
    assert digest(folder) == before
    assert digest(folder, ("**", ".env")) != with_settings


PATTERNS = [
    ((), set()),
    (("server.py",), {"server.py"}),
    (("./lib/",), {"lib/words.txt", "lib/deep/er/a.py"}),
    (("lib/*.txt",), {"lib/words.txt"}),
    (("**/*.py",), {"server.py", "lib/deep/er/a.py"}),
    (("lib/**/*.py", "lib/**/er"), {"lib/deep/er/a.py"}),
    (("*/words.tx?",), {"lib/words.txt"}),
    (("[!s]*/words.*",), {"lib/words.txt"}),
    (("*/a.py", "nothing"), set()),
    ((".*",), {".env", ".git/HEAD"}),
    (("node_modules", "lib/__pycache__"), {"node_modules/left-pad/index.js", "lib/__pycache__/a.pyc"}),
    (ALL, {"server.py", "lib/words.txt", "lib/deep/er/a.py"}),
]


@pytest.mark.parametrize(("patterns", "names"), PATTERNS, ids=[" ".join(patterns) for patterns, _ in PATTERNS])
def test_the_manifest_and_the_files_that_the_patterns_name_count(
    folder: Path, patterns: tuple[str, ...], names: set[str]
) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    counted = set()
    for file in files:
        before = digest(folder, patterns)
        text = file.read_text()
        write(file, text + "!")
        if digest(folder, patterns) != before:
            counted.add(file.relative_to(folder).as_posix())
        write(file, text)
    assert counted == {"guild-member.json", *names}


def test_a_pattern_with_many_wildcards_takes_no_time(folder: Path) -> None:
    deep = folder / "/".join(["a"] * 40)
    write(deep / "a.txt", "")
    before = time.process_time()
    digest(folder, ("/".join(["**", "a"] * 30) + "/b",))
    assert time.process_time() - before < 2


# What is not read -------------------------------------------------------------------------------------------------


def test_an_unchanged_file_is_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = FolderDigests()
    before = digests.compute({folder: ALL})
    opened: list[bytes] = []
    real_open = os.open

    def note_open(path: bytes, flags: int) -> int:
        opened.append(path)
        return real_open(path, flags)

    monkeypatch.setattr(folders.os, "open", note_open)
    assert digests.compute({folder: ALL}) == before
    assert opened == []
    write(folder / "server.py", "print(12)")
    assert digests.compute({folder: ALL}) != before
    assert opened == [os.fsencode(folder / "server.py")]


def test_a_file_that_was_written_a_moment_ago_is_read_again(folder: Path) -> None:
    digests, file = FolderDigests(), folder / "server.py"
    file.write_text("print(3)")
    status = file.stat()
    before = digests.compute({folder: ALL})
    file.write_text("print(4)")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert digests.compute({folder: ALL}) != before


def test_a_file_or_folder_that_vanishes_during_reading_does_not_count(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "lib/gone.txt", "")
    real_open = os.open

    def open_after_removal(path: bytes, flags: int) -> int:
        (folder / "lib/gone.txt").unlink(missing_ok=True)
        return real_open(path, flags)

    with monkeypatch.context() as patch:
        patch.setattr(folders.os, "open", open_after_removal)
        result = digest(folder)
    assert result == digest(folder)
    assert FolderDigests().compute({folder / "nowhere": ALL})[folder / "nowhere"].fault == ""


def test_pipes_and_names_that_are_not_utf8_do_no_harm(folder: Path) -> None:
    before = digest(folder)
    os.mkfifo(folder / "pipe")
    assert digest(folder) == before
    Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9")).write_text("")
    assert digest(folder) != before


@pytest.mark.parametrize(("limit", "value"), [("MAX_FILES", 3), ("MAX_BYTES", 12), ("MAX_ENTRIES", 5)])
def test_a_folder_that_is_too_large_has_a_fault_that_says_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(folders, limit, value)
    result = FolderDigests().compute({folder: ALL})[folder]
    assert result.text == ""
    assert "Name the files that must be equal in node.files" in result.fault

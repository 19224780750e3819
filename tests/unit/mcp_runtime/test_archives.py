"""Zips that lie in each way that is known, and honest ones."""

from __future__ import annotations

import io
import stat
import struct
import zipfile

import pytest

from mcp_runtime.members import archives
from mcp_runtime.members.archives import Archive
from mcp_runtime.protocol.errors import SourceError
from tests.support.bundles import Raw, bundle, deflated, raw_zip


def opened(content: bytes) -> Archive:
    return Archive(io.BytesIO(content))


def refusal(content: bytes) -> str:
    """Why it is refused when it is opened, or at the latest when its files are read."""
    with pytest.raises(SourceError) as caught:
        opened(content).check()
    return str(caught.value)


def named(*names: str) -> bytes:
    return raw_zip([Raw(name.encode()) for name in names])


def content_of(archive: Archive, name: str) -> bytes:
    return archive.read(archive.files[name], 1_000_000)


# Honest zips ------------------------------------------------------------------------------------------------------


def test_files_folders_and_executable_bits_are_read() -> None:
    modes = {"bin/run": stat.S_IFREG | 0o4755}
    archive = opened(bundle(files={"bin/run": b"x" * 70_000, "a.txt": b"hello"}, modes=modes))
    archive.check()
    assert list(archive.files) == ["a.txt", "bin/run", "manifest.json"]
    assert archive.folders == ["bin"]
    assert [file.name for file in archive.files.values() if file.is_executable] == ["bin/run"]
    assert content_of(archive, "a.txt") == b"hello"
    assert content_of(archive, "bin/run") == b"x" * 70_000


def test_large_files_are_read_in_small_blocks() -> None:
    data = b"\0" * 5_000_000
    archive = opened(bundle(files={"large": data}))
    blocks = list(archive.blocks(archive.files["large"]))
    assert b"".join(blocks) == data
    assert max(map(len, blocks)) <= archives.BLOCK


def test_a_zip_that_was_written_to_a_pipe_is_read() -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def tell(self) -> int:
            raise OSError

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"hello" * 100)
        archive.writestr("b/", b"")
    read = opened(pipe.getvalue())
    read.check()
    assert content_of(read, "a") == b"hello" * 100


def test_names_of_other_languages_are_names() -> None:
    assert list(opened(named("docs/übersicht.md", "docs/日本.md")).files) == ["docs/übersicht.md", "docs/日本.md"]


def test_a_signature_behind_the_zip_is_seen() -> None:
    block = b"MCPB_SIG_V1" + struct.pack("<L", 3) + b"abc" + b"MCPB_SIG_END"
    archive = opened(bundle() + block)
    assert archive.is_signed
    assert "manifest.json" in archive.files
    assert "damaged signature" in refusal(bundle() + block.replace(b"\3\0\0\0", b"\4\0\0\0"))
    assert "damaged signature" in refusal(bundle() + b"MCPB_SIG_END")


def test_a_comment_is_ignored() -> None:
    assert list(opened(raw_zip([Raw(b"a")], comment=b"built today")).files) == ["a"]


# Names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../evil", "leave the folder"),
        ("a/../../evil", "leave the folder"),
        ("a/..", "leave the folder"),
        ("/etc/passwd", "absolute"),
        ("C:/x", "absolute"),
        ("c:x", "absolute"),
        ("a\\b", "backslash"),
        ("..\\evil", "backslash"),
        ("a\0b", "nobody sees"),
        ("a\nb", "nobody sees"),
        ("a\x1b[2J", "nobody sees"),
        ("a\u202egpj.js", "nobody sees"),
        ("a\u200bb", "nobody sees"),
        ("a//b", "empty part"),
        ("./a", "empty part"),
        ("a/./b", "empty part"),
        ("", "empty part"),
        ("/", "absolute"),
        ("a" * 256, "more than 255"),
        ("/".join(["a" * 200] * 6), "more than 1000"),
        ("/".join("a" * 33), "folders deep"),
    ],
)
def test_a_name_with_a_trick_is_refused(name: str, words: str) -> None:
    assert words in refusal(named("good", name))


def test_a_name_that_is_not_utf8_is_refused() -> None:
    assert "not UTF-8" in refusal(raw_zip([Raw(b"caf\x82", flags=0)]))


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("a", "a"), "twice"),
        (("a/", "a/"), "twice"),
        (("Server.js", "server.js"), "only in case"),
        (("LIB/a", "lib/b"), "only in case"),
        (("é", "e\u0301"), "only in case or form"),
        (("straße", "STRASSE"), "only in case"),
        (("a", "a/b"), "file and a folder"),
        (("a/b", "a"), "file and a folder"),
        (("a/b/c", "a/b"), "file and a folder"),
        (("a", "a/"), "twice|file and a folder"),
        (("A", "a/b"), "only in case"),
    ],
)
def test_names_that_some_systems_cannot_tell_apart_are_refused(names: tuple[str, ...], words: str) -> None:
    assert any(word in refusal(named(*names)) for word in words.split("|"))


def test_a_refusal_shows_a_name_in_one_short_line() -> None:
    text = refusal(named("a\n\x1b[2J" + "b" * 300))
    assert text.isprintable()
    assert len(text) < 200


# Kinds of entries -------------------------------------------------------------------------------------------------


def test_a_symbolic_link_is_refused() -> None:
    assert "symbolic link" in refusal(raw_zip([Raw(b"a", b"/etc/passwd", mode=stat.S_IFLNK | 0o777)]))


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFBLK, stat.S_IFCHR, stat.S_IFDIR, 0o030000])
def test_a_special_entry_is_refused(kind: int) -> None:
    assert "neither a file nor a folder" in refusal(raw_zip([Raw(b"a", mode=kind | 0o644)]))


def test_a_folder_that_is_a_link_or_has_data_is_refused() -> None:
    assert "symbolic link" in refusal(raw_zip([Raw(b"a/", mode=stat.S_IFLNK | 0o777)]))
    assert "neither" in refusal(raw_zip([Raw(b"a/", mode=stat.S_IFREG | 0o644)]))
    assert "folder with data" in refusal(raw_zip([Raw(b"a/", b"x", mode=stat.S_IFDIR | 0o755)]))


@pytest.mark.parametrize("flag", [0x1, 0x40, 0x2000])
def test_an_encrypted_entry_is_refused(flag: int) -> None:
    assert "encrypted" in refusal(raw_zip([Raw(b"a", b"x", flags=0x800 | flag)]))


@pytest.mark.parametrize("method", [1, 9, 12, 14, 93, 99])
def test_another_compression_is_refused(method: int) -> None:
    assert "does not know" in refusal(raw_zip([Raw(b"a", b"x", method=method)]))


# Sizes ------------------------------------------------------------------------------------------------------------


def test_an_entry_that_unpacks_to_more_than_it_declares_is_stopped() -> None:
    bomb = Raw(b"a", b"x" * 10, method=8, packed=deflated(b"\0" * 50_000_000), size=10)
    archive = opened(raw_zip([bomb]))
    with pytest.raises(SourceError, match="another size"):
        next(archive.blocks(archive.files["a"]))


def test_an_entry_that_unpacks_to_less_than_it_declares_is_refused() -> None:
    assert "another size" in refusal(raw_zip([Raw(b"a", b"xy", method=8, packed=deflated(b"xy"), size=3)]))
    assert "another size" in refusal(raw_zip([Raw(b"a", b"xy", size=3)]))


def test_a_wrong_checksum_is_refused() -> None:
    assert "checksum" in refusal(raw_zip([Raw(b"a", b"xy", crc=1)]))


@pytest.mark.parametrize("packed", [b"\xff\xff\xff", deflated(b"xy")[:-1], deflated(b"xy") + b"more", b""])
def test_data_that_is_not_deflated_is_refused(packed: bytes) -> None:
    assert "is damaged" in refusal(raw_zip([Raw(b"a", b"xy", method=8, packed=packed)]))


def test_more_bytes_than_the_bound_are_refused_before_they_are_unpacked() -> None:
    half = archives.MAX_UNPACKED // 2 + 1
    content = raw_zip([Raw(name, method=8, packed=b"", size=half, local={}) for name in (b"a", b"b")])
    with pytest.raises(SourceError, match="when it is unpacked"):
        opened(content)


def test_a_zip_that_is_too_large_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_SIZE", 100)
    assert "larger than 100 bytes" in refusal(b"\0" * 101)


def test_too_many_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_ENTRIES", 3)
    assert "more than" in refusal(named("a", "b", "c", "d"))
    assert "more than" in refusal(named("a/b/c/d"))  # folders that only occur in names count too
    assert "more than" in refusal(named("a/b", "c/d"))


def test_a_list_of_files_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_LIST", 100)
    assert "list of files" in refusal(named("a" * 40, "b" * 40))


# Two truths -------------------------------------------------------------------------------------------------------


def test_entries_that_share_their_data_are_refused() -> None:
    """The better zip bomb: each entry points to the same data."""
    inner = raw_zip([Raw(b"b", b"x" * 10)])[:41]  # an entry within the data of another one
    content = raw_zip([Raw(b"a", inner + b"y" * 50), Raw(b"b", b"x" * 10, offset=31)])
    assert "b: shares its data with another part of the zip" in refusal(content)


def test_data_that_reaches_into_the_list_is_refused() -> None:
    assert "shares its data" in refusal(raw_zip([Raw(b"a", b"x", size=40, packed_size=40)]))


@pytest.mark.parametrize(
    "local",
    [{"name": b"b"}, {"method": 8}, {"size": 2}, {"packed_size": 2}, {"crc": 7}, {"flags": 0x801}, {"flags": 0x808}],
)
def test_an_entry_that_is_described_in_two_ways_is_refused(local: dict[str, object]) -> None:
    assert "described in two ways" in refusal(raw_zip([Raw(b"a", b"x", local=local)]))


def test_an_entry_without_a_head_is_refused() -> None:
    assert "described in two ways" in refusal(raw_zip([Raw(b"a", b"x" * 60), Raw(b"b", offset=35)]))


@pytest.mark.parametrize("content", [b"", b"PK\3\4", b"hello", b"\0" * 1000, bundle()[:-1], bundle()[:-30]])
def test_what_is_not_a_zip_is_refused(content: bytes) -> None:
    assert "is not a zip" in refusal(content)


def test_a_second_end_in_the_comment_is_refused() -> None:
    empty = raw_zip([])
    assert "two ends" in refusal(raw_zip([Raw(b"a", b"x")], comment=empty))


def test_data_before_or_behind_the_list_is_refused() -> None:
    assert "not where the zip says" in refusal(b"#!/bin/sh\n" + bundle())
    assert "not where the zip says" in refusal(raw_zip([Raw(b"a")], before_end=b"hidden"))
    assert "is not a zip" in refusal(bundle() + b"more")


def test_wrong_counts_are_refused() -> None:
    assert "more files in its list" in refusal(raw_zip([Raw(b"a"), Raw(b"b")], count=1))
    assert "fewer files in its list" in refusal(raw_zip([Raw(b"a")], count=2))


def test_a_zip64_is_refused() -> None:
    assert "zip64" in refusal(raw_zip([Raw(b"a")], count=0xFFFF))
    assert "zip64" in refusal(raw_zip([Raw(b"a")], list_start=0xFFFFFFFF))
    assert "zip64" in refusal(raw_zip([Raw(b"a", size=0xFFFFFFFF)]))
    assert "zip64" in refusal(raw_zip([Raw(b"a")], before_end=struct.pack("<4sLQL", b"PK\6\7", 0, 0, 1)))


def test_a_zip_in_several_files_is_refused() -> None:
    assert "several files" in refusal(raw_zip([Raw(b"a")], disk=1))
    assert "damaged list" in refusal(raw_zip([Raw(b"a", disk=1)]))


def test_names_of_the_worst_form_take_little_time_and_memory() -> None:
    deep = "/".join("x" * 28 for _ in range(31))
    content = named(*(f"{number:04}{deep}" for number in range(8000)))
    assert "more than" in refusal(content)

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_runtime.members import logs
from mcp_runtime.members.logs import follow, part_after, rotated_path, tail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = logs.path_of(tmp_path, "example")
    path.parent.mkdir()
    return path


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def write(path: Path, *lines: str) -> None:
    append(path, "".join(f"{line}\n" for line in lines))


def rotate(path: Path) -> None:
    path.rename(rotated_path(path))


def rotate_all(path: Path) -> None:
    """Rotate all files as the writer does."""
    for older, newer in ((rotated_path(path, 2), rotated_path(path)), (rotated_path(path), path)):
        if newer.exists():
            newer.replace(older)


def test_the_log_of_a_member_has_its_name(tmp_path: Path) -> None:
    assert logs.path_of(tmp_path, "example") == tmp_path / "logs" / "example.log"
    assert rotated_path(logs.path_of(tmp_path, "example")) == tmp_path / "logs" / "example.log.1"


# tail -------------------------------------------------------------------------------------------------------------


def test_tail_gives_the_last_lines_oldest_first(path: Path) -> None:
    write(path, "one", "two", "three")
    assert tail(path, 2) == ["two", "three"]
    assert tail(path, 10) == ["one", "two", "three"]


def test_tail_of_no_file_and_of_an_empty_file_is_empty(path: Path) -> None:
    assert tail(path, 10) == []
    path.touch()
    assert tail(path, 10) == []


def test_tail_of_no_lines_is_empty(path: Path) -> None:
    write(path, "one")
    assert tail(path, 0) == []


def test_tail_gives_an_incomplete_last_line(path: Path) -> None:
    path.write_text("one\ntwo")
    assert tail(path, 10) == ["one", "two"]


def test_tail_keeps_empty_lines_and_drops_carriage_returns(path: Path) -> None:
    path.write_bytes(b"one\r\n\r\n\nfour\n")
    assert tail(path, 10) == ["one", "", "", "four"]


def test_tail_continues_in_the_rotated_file(path: Path) -> None:
    write(path, "one", "two")
    rotate(path)
    write(path, "three")
    assert tail(path, 2) == ["two", "three"]
    assert tail(path, 10) == ["one", "two", "three"]
    assert tail(path, 1) == ["three"]


def test_tail_between_the_two_steps_of_a_rotation_reads_the_rotated_file(path: Path) -> None:
    write(path, "one", "two")
    rotate(path)
    assert tail(path, 10) == ["one", "two"]


def test_tail_gives_no_line_twice_during_a_rotation(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, "one")
    names = iter([path, path])  # the second file is the first one again, under its new name
    monkeypatch.setattr(logs, "rotated_path", lambda _: next(names))
    assert tail(path, 10) == ["one"]


def test_tail_reads_at_most_max_bytes(path: Path) -> None:
    write(path, *(f"line {number:04}" for number in range(1000)))
    assert tail(path, 1000, max_bytes=25) == ["line 0998", "line 0999"]


def test_tail_counts_the_bytes_of_both_files_together(path: Path) -> None:
    write(path, *(f"old {number:05}" for number in range(100)))
    rotate(path)
    write(path, "new 00000")
    assert tail(path, 1000, max_bytes=35) == ["old 00098", "old 00099", "new 00000"]


def test_tail_shows_the_end_of_a_line_without_an_end(path: Path) -> None:
    path.write_bytes(b"x" * 1000 + b"END")
    assert tail(path, 5, max_bytes=10) == ["…xxxxxxxEND"]


def test_tail_replaces_invalid_bytes(path: Path) -> None:
    path.write_bytes(bytes(range(256)).replace(b"\n", b"") + b"\nafter\n")
    first_line, last_line = tail(path, 10)
    assert last_line == "after"
    assert first_line.startswith("\x00\x01")
    assert "\N{REPLACEMENT CHARACTER}" in first_line


def test_tail_splits_only_at_newlines(path: Path) -> None:
    path.write_bytes("one\x0cstill\x85one\u2028yes\n".encode())
    assert tail(path, 10) == ["one\x0cstill\x85one\u2028yes"]


def test_tail_of_a_folder_is_empty(path: Path) -> None:
    path.mkdir()
    assert tail(path, 10) == []


# follow -----------------------------------------------------------------------------------------------------------


class EndOfStepsError(Exception):
    """Ends a follower that would otherwise continue forever."""


def follow_lines(path: Path, *steps: Callable[[], object], lines: int = 0) -> list[str]:
    """The lines that follow() gives when the next of `steps` happens at each of its pauses."""
    remaining_steps = iter(steps)

    def pause() -> None:
        step = next(remaining_steps, None)
        if step is None:
            raise EndOfStepsError
        step()

    followed_lines: list[str] = []
    with suppress(EndOfStepsError):
        for line in follow(path, lines=lines, pause=pause):
            followed_lines.append(line)
    return followed_lines


def test_follow_gives_new_lines(path: Path) -> None:
    write(path, "before")
    assert follow_lines(path, lambda: write(path, "one"), lambda: write(path, "two", "three")) == [
        "one",
        "two",
        "three",
    ]


def test_follow_begins_with_the_last_lines(path: Path) -> None:
    write(path, "one", "two", "three")
    assert follow_lines(path, lambda: write(path, "four"), lines=2) == ["two", "three", "four"]


def test_follow_begins_with_the_lines_of_the_rotated_file_too(path: Path) -> None:
    write(path, "one")
    rotate(path)
    write(path, "two")
    assert follow_lines(path, lambda: write(path, "three"), lines=5) == ["one", "two", "three"]


def test_follow_waits_for_a_missing_file(path: Path) -> None:
    assert follow_lines(path, lambda: None, lambda: write(path, "one"), lines=5) == ["one"]


def test_follow_gives_a_line_once_it_is_complete(path: Path) -> None:
    append(path, "begun")
    steps = [lambda: append(path, " and"), lambda: append(path, " done\nnext")]
    assert follow_lines(path, *steps, lines=5) == ["begun and done"]


def test_follow_continues_in_the_new_file_after_a_rotation(path: Path) -> None:
    def rotate_and_write() -> None:
        write(path, "last of the old")
        rotate(path)
        write(path, "first of the new")

    steps = [lambda: write(path, "one"), rotate_and_write, lambda: None, lambda: write(path, "two")]
    assert follow_lines(path, *steps) == ["one", "last of the old", "first of the new", "two"]


def test_follow_waits_for_the_new_file_after_a_rotation(path: Path) -> None:
    write(path, "before")
    steps = [lambda: rotate(path), lambda: None, lambda: write(path, "after")]
    assert follow_lines(path, *steps) == ["after"]


def test_follow_continues_after_truncation(path: Path) -> None:
    write(path, "one", "two")

    assert follow_lines(path, lambda: os.truncate(path, 0), lambda: write(path, "new")) == ["new"]


def test_follow_gives_a_line_without_an_end_in_parts(path: Path) -> None:
    path.touch()

    parts = follow_lines(path, lambda: append(path, "x" * 200_000))
    assert len(parts) >= 2
    assert max(map(len, parts)) <= 3 * logs.MAX_LINE_BYTES


def test_follow_closes_its_file_when_it_is_stopped(path: Path) -> None:
    write(path, "one", "two")
    lines = follow(path, lines=2)
    assert next(lines) == "one"
    lines.close()  # type: ignore[attr-defined]
    # A file left open would be a ResourceWarning, and warnings are errors here.


# In parts ---------------------------------------------------------------------------------------------------------


def test_the_first_part_has_the_last_lines_and_the_next_part_the_new_lines(path: Path) -> None:
    write(path, "one", "two", "three")

    first = part_after(path, lines=2)
    write(path, "four")
    second = part_after(path, first.cursor, lines=2)
    third = part_after(path, second.cursor, lines=2)

    assert (first.lines, first.is_gap) == (["two", "three"], False)
    assert (second.lines, second.is_gap) == (["four"], False)
    assert (third.lines, third.cursor) == ([], second.cursor)


def test_a_part_contains_only_complete_lines(path: Path) -> None:
    append(path, "one\ntw")
    first = part_after(path, lines=9)
    append(path, "o\n")

    assert first.lines == ["one"]
    assert part_after(path, first.cursor, lines=9).lines == ["two"]


def test_parts_of_a_missing_or_empty_file_are_empty_and_continue_later(path: Path) -> None:
    part_of_no_file = part_after(path, lines=9)
    path.touch()
    part_of_empty_file = part_after(path, part_of_no_file.cursor, lines=9)
    write(path, "one")

    assert (part_of_no_file.lines, part_of_empty_file.lines) == ([], [])
    assert part_after(path, part_of_empty_file.cursor, lines=9) == part_after(path, part_of_no_file.cursor, lines=9)
    assert part_after(path, part_of_empty_file.cursor, lines=9).lines == ["one"]


@pytest.mark.parametrize("times", [1, 2])
def test_a_part_after_rotations_contains_the_end_of_each_file(path: Path, times: int) -> None:
    write(path, "one")
    cursor = part_after(path, lines=9).cursor
    expected = []
    for number in range(times):
        write(path, f"end of {number}")
        rotate_all(path)
        write(path, f"begin of {number + 1}")
        expected += [f"end of {number}", f"begin of {number + 1}"]

    part = part_after(path, cursor, lines=9)

    assert (part.lines, part.is_gap) == (expected, False)
    assert part_after(path, part.cursor, lines=9).lines == []


def test_parts_continue_during_a_rotation(path: Path) -> None:
    write(path, "one")
    cursor = part_after(path, lines=9).cursor
    write(path, "two")
    rotate_all(path)

    part_during_rotation = part_after(path, cursor, lines=9)
    write(path, "three")

    assert part_during_rotation.lines == ["two"]
    assert part_after(path, part_during_rotation.cursor, lines=9).lines == ["three"]


def test_a_part_after_a_deleted_file_has_a_gap(path: Path) -> None:
    write(path, "one")
    cursor = part_after(path, lines=9).cursor
    path.unlink()
    write(path, "another", "file", "of", "its", "name")  # most file systems give it the inode of the first one

    part = part_after(path, cursor, lines=2)

    assert (part.lines, part.is_gap) == (["its", "name"], True)


def test_a_part_after_a_flood_has_only_the_last_lines_and_a_gap(path: Path) -> None:
    write(path, "one")
    cursor = part_after(path, lines=9).cursor
    write(path, *(f"{number:0100}" for number in range(10_000)))

    part = part_after(path, cursor, lines=5)

    assert [int(line) for line in part.lines] == [9995, 9996, 9997, 9998, 9999]
    assert part.is_gap


@pytest.mark.parametrize("cursor", ["x", "1-2", "1-2-3", "-1--2--3", "1-99999999999999-3", "٣-1-1", "1-1-1\n"])
def test_an_invalid_cursor_gives_the_last_lines(path: Path, cursor: str) -> None:
    write(path, "one", "two")

    assert part_after(path, cursor, lines=1) == replace(part_after(path, lines=1), is_gap=True)


def test_the_whole_log_is_all_files_oldest_first(path: Path) -> None:
    for text in ("oldest", "older", "newest"):
        rotate_all(path)
        write(path, text)

    assert b"".join(logs.read_whole(path)) == b"oldest\nolder\nnewest\n"


def test_reading_the_whole_log_ends_even_if_it_grows(path: Path) -> None:
    write(path, "one")
    parts = logs.read_whole(path)
    first_part = next(parts)
    write(path, "two")

    assert [first_part, *parts] == [b"one\n"]


def test_the_whole_of_a_missing_log_is_empty(path: Path) -> None:
    assert list(logs.read_whole(path)) == []


# Plain text -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "plain_text"),
    [
        ("just text\tas it is — ✓", "just text\tas it is — ✓"),
        ("\x1b[31;1mred\x1b[0m and \x1b[38;5;12mblue\x1b[m", "red and blue"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b(Bplain\x1b7", "plain"),
        ("bell\x07 null\x00 del\x7f", "bell� null� del�"),
        ("right to left \u202egnp.exe", "right to left �gnp.exe"),
        ("cut \x1b", "cut �"),
    ],
)
def test_colours_are_removed_and_control_characters_are_replaced(text: str, plain_text: str) -> None:
    assert logs.plain(text) == plain_text

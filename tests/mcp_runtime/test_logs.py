from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from mcp_runtime import logs
from mcp_runtime.logs import follow, rotated, tail


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
    path.rename(rotated(path))


def test_a_member_has_its_log_under_its_name(tmp_path: Path) -> None:
    assert logs.path_of(tmp_path, "example") == tmp_path / "logs" / "example.log"
    assert rotated(logs.path_of(tmp_path, "example")) == tmp_path / "logs" / "example.log.1"


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


def test_tail_gives_a_line_that_is_not_finished(path: Path) -> None:
    path.write_text("one\ntwo")
    assert tail(path, 10) == ["one", "two"]


def test_tail_keeps_empty_lines_and_drops_carriage_returns(path: Path) -> None:
    path.write_bytes(b"one\r\n\r\n\nfour\n")
    assert tail(path, 10) == ["one", "", "", "four"]


def test_tail_goes_on_in_the_file_rotated_before(path: Path) -> None:
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


def test_tail_gives_no_line_twice_when_the_file_is_rotated_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, "one")
    names = iter([path, path])  # the second file it opens is the first one again, under its new name
    monkeypatch.setattr(logs, "rotated", lambda _: next(names))
    assert tail(path, 10) == ["one"]


def test_tail_reads_no_more_than_its_bytes(path: Path) -> None:
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


def test_tail_survives_binary_noise(path: Path) -> None:
    path.write_bytes(bytes(range(256)).replace(b"\n", b"") + b"\nafter\n")
    noise, after = tail(path, 10)
    assert after == "after"
    assert noise.startswith("\x00\x01")
    assert "\N{REPLACEMENT CHARACTER}" in noise


def test_tail_splits_at_newlines_alone(path: Path) -> None:
    path.write_bytes("one\x0cstill\x85one\u2028yes\n".encode())
    assert tail(path, 10) == ["one\x0cstill\x85one\u2028yes"]


def test_tail_of_what_is_no_file_is_empty(path: Path) -> None:
    path.mkdir()
    assert tail(path, 10) == []


# follow -----------------------------------------------------------------------------------------------------------


class NothingLeft(Exception):
    """How a test ends a follower that would go on for ever."""


def followed(path: Path, *steps: Callable[[], object], lines: int = 0) -> list[str]:
    """The lines that follow() gives when at each of its pauses the next of `steps` happens."""
    left = iter(steps)

    def pause() -> None:
        step = next(left, None)
        if step is None:
            raise NothingLeft
        step()

    seen: list[str] = []
    with suppress(NothingLeft):
        for line in follow(path, lines=lines, pause=pause):
            seen.append(line)
    return seen


def test_follow_gives_what_is_written_from_now_on(path: Path) -> None:
    write(path, "before")
    assert followed(path, lambda: write(path, "one"), lambda: write(path, "two", "three")) == ["one", "two", "three"]


def test_follow_begins_with_the_last_lines(path: Path) -> None:
    write(path, "one", "two", "three")
    assert followed(path, lambda: write(path, "four"), lines=2) == ["two", "three", "four"]


def test_follow_begins_with_the_lines_of_the_rotated_file_too(path: Path) -> None:
    write(path, "one")
    rotate(path)
    write(path, "two")
    assert followed(path, lambda: write(path, "three"), lines=5) == ["one", "two", "three"]


def test_follow_waits_for_a_file_that_is_not_there_yet(path: Path) -> None:
    assert followed(path, lambda: None, lambda: write(path, "one"), lines=5) == ["one"]


def test_follow_gives_a_line_once_it_is_complete(path: Path) -> None:
    append(path, "begun")
    steps = [lambda: append(path, " and"), lambda: append(path, " done\nnext")]
    assert followed(path, *steps, lines=5) == ["begun and done"]


def test_follow_goes_on_in_the_new_file_after_a_rotation(path: Path) -> None:
    def rotate_and_write() -> None:
        write(path, "last of the old")
        rotate(path)
        write(path, "first of the new")

    steps = [lambda: write(path, "one"), rotate_and_write, lambda: None, lambda: write(path, "two")]
    assert followed(path, *steps) == ["one", "last of the old", "first of the new", "two"]


def test_follow_survives_a_rotation_whose_new_file_comes_late(path: Path) -> None:
    write(path, "before")
    steps = [lambda: rotate(path), lambda: None, lambda: write(path, "after")]
    assert followed(path, *steps) == ["after"]


def test_follow_survives_truncation(path: Path) -> None:
    write(path, "one", "two")

    assert followed(path, lambda: os.truncate(path, 0), lambda: write(path, "new")) == ["new"]


def test_follow_gives_a_line_without_an_end_in_parts(path: Path) -> None:
    path.touch()

    parts = followed(path, lambda: append(path, "x" * 200_000))
    assert len(parts) >= 2
    assert max(map(len, parts)) <= 3 * logs.MAX_LINE_BYTES


def test_follow_closes_its_file_when_it_is_stopped(path: Path) -> None:
    write(path, "one", "two")
    lines = follow(path, lines=2)
    assert next(lines) == "one"
    lines.close()  # type: ignore[attr-defined]
    # A file left open would be a ResourceWarning, and warnings are errors here.

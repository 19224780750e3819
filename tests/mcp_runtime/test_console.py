from __future__ import annotations

import logging
import re
import sys
import time

import pytest

from mcp_runtime.console import LineFormatter, line

MOMENT = time.mktime((2026, 3, 1, 12, 0, 1, 0, 0, -1))


def record(name: str, text: str, level: int = logging.INFO, *args: object, **more: object) -> logging.LogRecord:
    made = logging.LogRecord(name, level, __file__, 1, text, args, None)
    made.created = MOMENT
    vars(made).update(more)
    return made


def test_a_line_says_when_and_who_in_columns() -> None:
    assert line("example", "listening on 20000", MOMENT) == "12:00:01 example        | listening on 20000"
    assert line("a-name-that-is-longer", "text", MOMENT) == "12:00:01 a-name-that-is-longer | text"


def test_without_a_moment_it_is_now() -> None:
    assert re.match(r"\d\d:\d\d:\d\d web            \| hello$", line("web", "hello"))


@pytest.mark.parametrize(
    ("name", "speaker"), [("guildhall.runtime", "runtime"), ("guildhall.member.anna", "anna"), ("django", "django")]
)
def test_the_last_part_of_the_loggers_name_is_the_speaker(name: str, speaker: str) -> None:
    assert LineFormatter().format(record(name, "hello")) == f"12:00:01 {speaker:<14} | hello"


def test_arguments_are_filled_in() -> None:
    assert LineFormatter().format(record("a", "%d of %s", logging.INFO, 2, "x")).endswith("| 2 of x")


@pytest.mark.parametrize(
    ("level", "shown"),
    [(logging.DEBUG, "oh"), (logging.INFO, "oh"), (logging.WARNING, "warning: oh"), (logging.ERROR, "error: oh")],
)
def test_what_is_not_as_it_should_be_says_so(level: int, shown: str) -> None:
    assert LineFormatter().format(record("a", "oh", level)).endswith(f"| {shown}")


def test_each_of_many_lines_has_its_columns_and_an_empty_text_is_a_line() -> None:
    assert LineFormatter().format(record("a", "one\n\ntwo")).splitlines() == [
        f"12:00:01 a              | {text}" for text in ("one", "", "two")
    ]
    assert LineFormatter().format(record("a", "")) == "12:00:01 a              | "


def test_a_traceback_follows_its_message() -> None:
    try:
        raise ValueError("the reason")
    except ValueError:
        shown = LineFormatter().format(record("a", "it failed", logging.ERROR, exc_info=sys.exc_info())).splitlines()
    assert shown[0].endswith("| error: it failed")
    assert shown[1].endswith("| Traceback (most recent call last):")
    assert shown[-1].endswith("| ValueError: the reason")

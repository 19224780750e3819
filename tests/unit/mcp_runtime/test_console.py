from __future__ import annotations

import logging
import re
import sys
import time

import pytest

from mcp_runtime.system.console import LineFormatter, line

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


def test_a_record_is_one_line_whatever_it_quotes() -> None:
    said = "no\r\n12:00:01 runtime        | member 'good' is connected\n"
    assert LineFormatter().format(record("a", "it said %s", logging.WARNING, said)) == (
        "12:00:01 a              | warning: it said no\\r\\n12:00:01 runtime        | member 'good' is connected"
    )
    assert LineFormatter().format(record("a", "")) == "12:00:01 a              | "


CONTROLS = [
    *(chr(number) for number in range(32) if chr(number) != "\t"),
    *(chr(number) for number in range(0x7F, 0xA0)),
    *"\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ud800\udfff",
]


@pytest.mark.parametrize("control", CONTROLS, ids=ascii)
def test_what_a_terminal_would_obey_is_shown_as_an_escape(control: str) -> None:
    shown = LineFormatter().format(record("a", "%s", logging.INFO, f"x{control}y"))
    assert shown == f"12:00:01 a              | x{ascii(control)[1:-1]}y"
    shown.encode("ascii")
    assert line("hall", f"x{control}y", MOMENT) == f"12:00:01 hall           | x{ascii(control)[1:-1]}y"


def test_other_text_is_shown_as_it_is() -> None:
    text = "tab\tCaf\u00e9 \u65e5\u672c \u05e9\u05dc\u05d5\u05dd \U0001f468\u200d\U0001f469 back\\slash"
    assert LineFormatter().format(record("a", "%s", logging.INFO, text)).endswith(f"| {text}")


def test_a_traceback_follows_its_message() -> None:
    try:
        raise ValueError("the reason")
    except ValueError:
        shown = LineFormatter().format(record("a", "it failed", logging.ERROR, exc_info=sys.exc_info())).splitlines()
    assert shown[0].endswith("| error: it failed")
    assert shown[1].endswith("| Traceback (most recent call last):")
    assert shown[-1].endswith("| ValueError: the reason")


def test_the_text_of_an_exception_is_one_line_of_its_traceback() -> None:
    said = "its answer\n12:00:01 runtime        | forged\x1b[2J\nTraceback (most recent call last):"
    try:
        try:
            raise ValueError(said)
        except ValueError as error:
            raise RuntimeError(said) from error
    except RuntimeError:
        shown = LineFormatter().format(record("a", "it failed", logging.ERROR, exc_info=sys.exc_info())).splitlines()
    one_line = said.replace("\n", "\\n").replace("\x1b", "\\x1b")
    texts = [text.partition(" | ")[2] for text in shown]
    assert [text for text in texts if "forged" in text] == [
        f"ValueError: {one_line}",
        f"RuntimeError: {one_line}",
    ]
    assert texts.count("Traceback (most recent call last):") == 2
    assert "The above exception was the direct cause of the following exception:" in texts
    assert any(text.startswith('  File "') for text in texts)
    assert all(text.startswith("12:00:01 a              | ") for text in shown)


def test_exceptions_of_a_group_are_shown_with_their_tracebacks() -> None:
    try:
        raise ExceptionGroup("several", [ValueError("one\ntwo")])
    except ExceptionGroup:
        shown = LineFormatter().format(record("a", "it failed", logging.ERROR, exc_info=sys.exc_info()))
    assert "ValueError: one\\n" in shown
    assert "\n12:00:01 a              |   + Exception Group Traceback (most recent call last):" in shown

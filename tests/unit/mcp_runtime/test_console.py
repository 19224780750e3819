from __future__ import annotations

import logging
import re
import sys
import time

import pytest

from mcp_runtime.system.console import LineFormatter, line

MOMENT = time.mktime((2026, 3, 1, 12, 0, 1, 0, 0, -1))


def record(name: str, text: str, level: int = logging.INFO, *args: object, **more: object) -> logging.LogRecord:
    log_record = logging.LogRecord(name, level, __file__, 1, text, args, None)
    log_record.created = MOMENT
    vars(log_record).update(more)
    return log_record


def test_a_line_has_time_and_name_in_columns() -> None:
    assert line("example", "listening on 20000", MOMENT) == "12:00:01 example        | listening on 20000"
    assert line("a-name-that-is-longer", "text", MOMENT) == "12:00:01 a-name-that-is-longer | text"


def test_the_default_time_of_a_line_is_now() -> None:
    assert re.match(r"\d\d:\d\d:\d\d web            \| hello$", line("web", "hello"))


@pytest.mark.parametrize(
    ("name", "speaker"), [("guildhall.runtime", "runtime"), ("guildhall.member.anna", "anna"), ("django", "django")]
)
def test_the_name_in_a_line_is_the_last_part_of_the_loggers_name(name: str, speaker: str) -> None:
    assert LineFormatter().format(record(name, "hello")) == f"12:00:01 {speaker:<14} | hello"


def test_arguments_replace_their_placeholders_in_the_line() -> None:
    assert LineFormatter().format(record("a", "%d of %s", logging.INFO, 2, "x")).endswith("| 2 of x")


@pytest.mark.parametrize(
    ("level", "expected"),
    [(logging.DEBUG, "oh"), (logging.INFO, "oh"), (logging.WARNING, "warning: oh"), (logging.ERROR, "error: oh")],
)
def test_warnings_and_errors_have_their_level_in_the_line(level: int, expected: str) -> None:
    assert LineFormatter().format(record("a", "oh", level)).endswith(f"| {expected}")


def test_a_record_with_line_breaks_is_one_line() -> None:
    text = "no\r\n12:00:01 runtime        | member 'good' is connected\n"
    assert LineFormatter().format(record("a", "it said %s", logging.WARNING, text)) == (
        "12:00:01 a              | warning: it said no\\r\\n12:00:01 runtime        | member 'good' is connected"
    )
    assert LineFormatter().format(record("a", "")) == "12:00:01 a              | "


CONTROLS = [
    *(chr(number) for number in range(32) if chr(number) != "\t"),
    *(chr(number) for number in range(0x7F, 0xA0)),
    *"\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ud800\udfff",
]


@pytest.mark.parametrize("control", CONTROLS, ids=ascii)
def test_control_characters_are_shown_as_escapes(control: str) -> None:
    output = LineFormatter().format(record("a", "%s", logging.INFO, f"x{control}y"))
    assert output == f"12:00:01 a              | x{ascii(control)[1:-1]}y"
    output.encode("ascii")
    assert line("hall", f"x{control}y", MOMENT) == f"12:00:01 hall           | x{ascii(control)[1:-1]}y"


def test_text_without_control_characters_is_logged_as_it_is() -> None:
    text = "tab\tCaf\u00e9 \u65e5\u672c \u05e9\u05dc\u05d5\u05dd \U0001f468\u200d\U0001f469 back\\slash"
    assert LineFormatter().format(record("a", "%s", logging.INFO, text)).endswith(f"| {text}")


def test_a_traceback_follows_its_message() -> None:
    try:
        raise ValueError("the reason")
    except ValueError:
        output = LineFormatter().format(record("a", "it failed", logging.ERROR, exc_info=sys.exc_info())).splitlines()
    assert output[0].endswith("| error: it failed")
    assert output[1].endswith("| Traceback (most recent call last):")
    assert output[-1].endswith("| ValueError: the reason")


def test_the_text_of_an_exception_is_one_line_of_its_traceback() -> None:
    message = "its answer\n12:00:01 runtime        | forged\x1b[2J\nTraceback (most recent call last):"
    try:
        try:
            raise ValueError(message)
        except ValueError as error:
            raise RuntimeError(message) from error
    except RuntimeError:
        output = LineFormatter().format(record("a", "it failed", logging.ERROR, exc_info=sys.exc_info())).splitlines()
    one_line = message.replace("\n", "\\n").replace("\x1b", "\\x1b")
    texts = [text.partition(" | ")[2] for text in output]
    assert [text for text in texts if "forged" in text] == [
        f"ValueError: {one_line}",
        f"RuntimeError: {one_line}",
    ]
    assert texts.count("Traceback (most recent call last):") == 2
    assert "The above exception was the direct cause of the following exception:" in texts
    assert any(text.startswith('  File "') for text in texts)
    assert all(text.startswith("12:00:01 a              | ") for text in output)


def test_exceptions_of_a_group_are_shown_with_their_tracebacks() -> None:
    try:
        raise ExceptionGroup("several", [ValueError("one\ntwo")])
    except ExceptionGroup:
        output = LineFormatter().format(record("a", "it failed", logging.ERROR, exc_info=sys.exc_info()))
    assert "ValueError: one\\n" in output
    assert "\n12:00:01 a              |   + Exception Group Traceback (most recent call last):" in output

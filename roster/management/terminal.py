"""Input and output of commands. Texts of members are untrusted, and may not move a cursor or colour text."""

from __future__ import annotations

import json
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder

from mcp_runtime.system import console
from roster import tokens

NO_RUNTIME = "No runtime is alive; start one with: guildhall up (or runtime)."

MAX_REMEDY = 600
_CONTROL = re.compile(f"(?!\n)[{console.CONTROLS}]")


def harmless(text: str) -> str:
    """`text` without control characters, also those that change the order of text. Newlines and tabs stay."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def one_line(text: str, length: int) -> str:
    """`text` on one line. On a terminal it has at most `length` characters. Programs and files get all of it."""
    if not sys.stdout.isatty():
        return " ".join(harmless(text).split())
    line = " ".join(harmless(text[: 4 * length]).split())
    return f"{line[: length - 1]}…" if len(line) > length else line


def remedy_line(remedy: str) -> str:
    """What to do about a member that does not run (`diagnosis`)."""
    return f"What to do: {one_line(remedy, MAX_REMEDY)}"


def as_json(value: Any) -> str:
    """JSON for programs. It is ASCII, so control characters are escaped."""
    return json.dumps(value, indent=2, cls=DjangoJSONEncoder)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]
    padded = [[f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)] for row in [headings, *rows]]
    return "\n".join("  ".join(row).rstrip() for row in padded)


# Types of options -------------------------------------------------------------------------------------------------


def count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def names(text: str) -> list[str]:
    """`a,b`."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ArgumentTypeError("give one or more names, separated by commas")
    return parts


def tool_names(text: str) -> list[tuple[str, str]]:
    """`notes/add_note,example/echo`."""
    try:
        return [tokens.parse_tool(part) for part in names(text)]
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def end(text: str) -> datetime:
    try:
        return tokens.parse_end(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def beginning(text: str) -> datetime:
    try:
        return tokens.parse_beginning(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        raise ArgumentTypeError(f"{text!r} is not a number of seconds")
    return float(text)

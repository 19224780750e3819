"""What commands read and print. Members' words are untrusted: nothing in them may move a cursor or colour text."""

from __future__ import annotations

import json
import re
from argparse import ArgumentTypeError
from collections.abc import Sequence
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder

NO_RUNTIME = "No runtime is alive; start one with: manage.py up (or runtime)."

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def harmless(text: str) -> str:
    """`text` without control characters; newlines and tabs stay."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def one_line(text: str, length: int) -> str:
    line = " ".join(harmless(text[: 4 * length]).split())
    return f"{line[: length - 1]}…" if len(line) > length else line


def as_json(value: Any) -> str:
    """For programs, so ASCII: what a terminal would obey is escaped."""
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


def seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        raise ArgumentTypeError(f"{text!r} is not a number of seconds")
    return float(text)

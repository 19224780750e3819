"""JSON with comments and trailing commas, as VS Code and Zed write it, and TOML, within bounds.

The comments are removed here. json5 needs 5 s for 50 kB, and the regular expressions of json-with-comments need minutes
for 200 kB of unclosed comments.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any, NoReturn

from mcp_runtime.protocol.errors import SourceError
from mcp_runtime.sources.drafts import MAX_DEPTH, place_of

MAX_DOTS = 100  # in a line of TOML: tomllib needs quadratic time for dotted keys
# A string, a comment, a bracket, or the beginning of a string or comment without an end. Each alternative is linear.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|//[^\r\n]*+|/\*.*?\*/|[][{}]|"|/\*', re.DOTALL)
_TRAILING_COMMA = re.compile(r'"(?:[^"\\]|\\.)*+"|,(?=\s*+[]}])|"', re.DOTALL)
_LINE = re.compile(r"[^\r\n]")


def read_json(text: str) -> dict[str, Any]:
    """The object in the text. A part of one, such as `"mcpServers": {...}`, is read as if it were in braces.

    Raises SourceError, which names the line and never quotes the text.
    """
    text = text.removeprefix("\ufeff").strip()
    is_part = text.startswith('"')
    try:
        values = _load(f"{{{text.rstrip(',')}}}" if is_part else text)
    except json.JSONDecodeError as error:
        column = error.colno - (1 if is_part and error.lineno == 1 else 0)
        raise SourceError(f"line {error.lineno}, column {column}", f"is not JSON: {error.msg}") from None
    except RecursionError:
        raise SourceError("", "is nested too deep") from None
    except ValueError as error:  # a number with thousands of digits
        raise SourceError("", "has a number that is too long") from error
    if not isinstance(values, dict):
        raise SourceError("", "must be a JSON object, in braces")
    return values


def read_toml(text: str) -> dict[str, Any]:
    """Raises SourceError, which names the line and never quotes the text."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > MAX_DOTS:
            raise SourceError(f"line {number}", f"has more than {MAX_DOTS} dots")
    try:
        values = tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at (line \d+, column \d+|end of document)\)", str(error))
        raise SourceError(place[1] if place else "", "is not TOML") from None
    except RecursionError:
        raise SourceError("", "is nested too deep") from None
    except ValueError as error:
        raise SourceError("", "has a number that is too long") from error
    _require_depth(values)
    return values


def _load(text: str) -> Any:
    return json.loads(_without_comments(text), object_pairs_hook=_no_duplicates, parse_constant=_no_constants)


def _without_comments(text: str) -> str:
    """The text without comments and trailing commas. All other characters keep their line and column."""
    depth = 0

    def replace(token: re.Match[str]) -> str:
        nonlocal depth
        part = token[0]
        if part in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise SourceError(f"line {_line_of(token)}", "is nested too deep")
        elif part in "]}":
            depth -= 1
        elif part == "/*":
            raise SourceError(f"line {_line_of(token)}", "begins a comment that does not end")
        elif part.startswith("/"):
            return _LINE.sub(" ", part)
        elif part == '"':
            raise SourceError(f"line {_line_of(token)}", "begins a string that does not end")
        return part

    return _TRAILING_COMMA.sub(lambda token: " " if token[0] == "," else token[0], _TOKEN.sub(replace, text))


def _line_of(token: re.Match[str]) -> int:
    return token.string.count("\n", 0, token.start()) + 1


def _no_constants(name: str) -> NoReturn:
    raise SourceError("", f"has {name}, which is not JSON")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Programs differ in which of two equal keys they use, so what is shown would not be what runs."""
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise SourceError(place_of(key), "is given twice")
        values[key] = value
    return values


def _require_depth(value: Any, depth: int = 1) -> None:
    if depth > MAX_DEPTH:
        raise SourceError("", "is nested too deep")
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        _require_depth(child, depth + 1)

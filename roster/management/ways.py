"""The ways to run a server, and the values that it needs, as lines of the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from mcp_runtime.sources.server_json import Field, Way


def lines_of(way: Way) -> Iterator[str]:
    """One line for the way, and one for each of its values."""
    yield f"  way {way.number}        {way.label}"
    for field in way.fields:
        yield f"    --set {field.key}={_example(field)}  {_facts(field)}"


def _example(field: Field) -> str:
    if field.is_secret:
        return "SECRET"
    return shlex.quote("|".join(field.choices) or field.default or field.placeholder or "VALUE")


def _facts(field: Field) -> str:
    """Whether the value is needed, and what it is."""
    words = ["required" if field.is_required and not field.default else "optional"]
    words += ["may be repeated"] if field.is_repeated else []
    texts = " ".join(text for text in (f"{field.title}." if field.title else "", field.description) if text)
    return ", ".join(words) + (f": {texts}" if texts else "")

"""Decides whether a URI may come from resource templates (RFC 6570)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

import re2  # type: ignore[import-untyped]

MAX_COMPARED = 20_000  # characters of a URI, and of all templates together
# RE2 needs about 30 bytes of memory for a character of a pattern. More than this is not compared.
MAX_MEMORY = 32 * 1024 * 1024
_EXPRESSION = re.compile(r"\{([^{}]*)\}")
_SIMPLE = re.compile(r"[A-Za-z0-9_.,%:]*")  # an expression without an operator and without lists: `{name}`, `{a,b}`


def matcher(templates: Collection[str], *, is_strict: bool) -> Callable[[str], bool]:
    """Return a function that says whether a URI may come from one of the templates.

    With `is_strict`, a simple expression stands for no `/`, `?` or `#`, and what is too large to compare does not
    match. Otherwise each expression may stand for anything, and what is too large matches: servers are lenient too.
    """
    unknown = not is_strict
    if not templates:
        return lambda uri: False
    if sum(map(len, templates)) > MAX_COMPARED:
        return lambda uri: unknown
    try:
        pattern = _compiled("|".join(_pattern(template, is_strict) for template in templates), is_strict)
    except re2.error:
        return lambda uri: unknown

    def matches(uri: str) -> bool:
        if len(uri) > MAX_COMPARED:
            return unknown
        return pattern.fullmatch(uri.encode(errors="replace").decode()) is not None

    return matches


def _pattern(template: str, is_strict: bool) -> str:
    parts = _EXPRESSION.split(template.encode(errors="replace").decode())  # literals and expressions in turn
    for index, part in enumerate(parts):
        if index % 2 == 0:
            parts[index] = re2.escape(part)
        else:
            parts[index] = "[^/?#]*" if is_strict and _SIMPLE.fullmatch(part) else ".*"
    return "".join(parts)


def _compiled(pattern: str, is_strict: bool) -> Any:
    options = re2.Options()
    options.dot_nl = True
    options.case_sensitive = is_strict
    options.log_errors = False
    options.max_mem = MAX_MEMORY
    return re2.compile(pattern, options)

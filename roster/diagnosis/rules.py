"""Rules: a pattern for a text, and the advice if the text matches."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mcp_runtime.members.logs import plain
from roster.diagnosis.facts import Facts

MAX_WORD = 200  # characters of a quoted part of a text
# The name of a package in a text of a member, as it may be in a command that people copy.
PACKAGE = re.compile(r"(?:@[A-Za-z0-9_][A-Za-z0-9._-]{0,99}/)?[A-Za-z0-9_][A-Za-z0-9._-]{0,99}(?![^/\n])")


@dataclass(frozen=True)
class Rule:
    """Advice for the texts in which `pattern` is found.

    The words of `words_of` and the pattern's groups are filled into the other fields, such as `{file}`. In code,
    between backquotes, the groups are words of the shell.
    `cause` replaces the sentence of the runtime, if that says less.
    """

    pattern: str
    remedy: str
    key: str = ""
    cause: str = ""


@dataclass(frozen=True)
class Advice:
    """What the texts of one failure mean. `at` is where the text that matched begins, and `cause` may be empty."""

    remedy: str
    key: str = ""
    cause: str = ""
    at: int = 0


def first_match(
    rules: Iterable[Rule], text: str, words: Mapping[str, str], *, at_beginning: bool = False
) -> Advice | None:
    """The advice of the first rule whose pattern is in the text, or with `at_beginning` at its beginning."""
    for rule in rules:
        if match := re.match(rule.pattern, text) if at_beginning else re.search(rule.pattern, text):
            groups = {name: quoted(value or "") for name, value in match.groupdict().items()}
            remedy, key, cause = (_filled(part, words, groups) for part in (rule.remedy, rule.key, rule.cause))
            return Advice(remedy, key, cause, match.start("at") if "at" in match.groupdict() else match.start())
    return None


def _filled(text: str, words: Mapping[str, str], groups: Mapping[str, str]) -> str:
    """The text with the words and groups filled in. Its parts are prose and code in turn."""
    in_code = {name: shlex.quote(value) if value else "" for name, value in groups.items()}
    parts = enumerate(text.split("`"))
    return "`".join([part.format(**{**words, **(in_code if number % 2 else groups)}) for number, part in parts])


def words_of(facts: Facts, place: str = "") -> dict[str, str]:
    """What the advice may name. `place` is a line in a file of the member, such as `line 3 of server.py`."""
    command = shlex.quote(quoted(facts.command)) if facts.command else ""
    is_python = re.match(r"(?:.*/)?python[\d.]*$", facts.command)
    return {
        "name": facts.name,
        "file": facts.file,
        "directory": facts.directory,
        "command": command or "its command",
        "python": command if is_python else "python3",
        "place": place or "its code",
        "place_file": shlex.quote(quoted(place.partition(" of ")[2])) if place else "FILE",
    }


def quoted(text: str) -> str:
    """A part of a member's text inside the advice: one short line that cannot end a piece of code."""
    return " ".join(plain(text).replace("`", "'").split())[:MAX_WORD]

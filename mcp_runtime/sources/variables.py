"""The variables in the texts of clients: ${NAME}, ${NAME:-default}, ${env:NAME}, ${input:NAME} and $NAME."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mcp_runtime.protocol.errors import SourceError

_BRACES = re.compile(r"\$\{([^{}$]{0,500})\}")
_BRACES_OR_BARE = re.compile(r"\$\{([^{}$]{0,500})\}|\$([A-Za-z_][A-Za-z0-9_]*)")
_NAMED = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]{0,99})(?::-([^{}$]*))?")
_INPUT = re.compile(r"input:([\w.-]{1,100})")
_SEPARATORS = {"/": "/", "pathSeparator": "/", "\\": "/"}


@dataclass(frozen=True)
class Variable:
    """A variable in a text. `text` is how it is written."""

    text: str
    name: str
    default: str | None = None
    is_input: bool = False


def parts_of(text: str, place: str, *, allow_bare: bool) -> Iterator[str | Variable]:
    """The text in its parts. `allow_bare` is for clients that know $NAME too.

    Raises SourceError if the hall cannot know what the client puts in its place.
    """
    end = 0
    for match in (_BRACES_OR_BARE if allow_bare else _BRACES).finditer(text):
        if match.start() > end:
            yield text[end : match.start()]
        end = match.end()
        body = match[1] if match[1] is not None else match[2]
        yield _SEPARATORS[body] if body in _SEPARATORS else _variable(match[0], body, place)
    if end < len(text):
        yield text[end:]


def _variable(text: str, body: str, place: str) -> Variable:
    if named := _NAMED.fullmatch(body):
        return Variable(text, named[1], named[2])
    if asked := _INPUT.fullmatch(body):
        return Variable(text, asked[1], is_input=True)
    if re.match(r"secret:|file:", body):
        raise SourceError(place, "refers to a secret or a file of the hall, which only its own manifests may do")
    raise SourceError(place, "has a variable in ${} that only the client knows; put its value there")

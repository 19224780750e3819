"""What a server says in `WWW-Authenticate` when it answers 401 or 403 (RFC 6750, RFC 9449, RFC 9728)."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_HEADER = 8192
MAX_SCOPES = 100
INSUFFICIENT_SCOPE = "insufficient_scope"
SCOPE = re.compile(r"[!#-\[\]-~]{1,200}")  # RFC 6749, section 3.3
_SCHEME = re.compile(r"(?i)(?:^|[,\s])(?:bearer|dpop)(?=\s|$)")
_PARAMETER = re.compile(r'[\s,]*([A-Za-z0-9_-]{1,100})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')


@dataclass(frozen=True)
class Challenge:
    """The parameters of the scheme Bearer or DPoP. `is_oauth` is false if the header has another scheme, or none."""

    is_oauth: bool = False
    resource_metadata: str = ""
    scopes: tuple[str, ...] = ()
    error: str = ""

    @property
    def asks_for_more(self) -> bool:
        """Whether the token is valid, and may not do this."""
        return self.error == INSUFFICIENT_SCOPE


def read(header: str) -> Challenge:
    """The challenge in the header. Anything may be in it."""
    header = header[:MAX_HEADER]
    scheme = _SCHEME.search(header)
    if scheme is None:
        return Challenge()
    values: dict[str, str] = {}
    position = scheme.end()
    while (match := _PARAMETER.match(header, position)) is not None:
        name, quoted, bare = match.groups()
        values.setdefault(name.lower(), bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
        position = match.end()
    return Challenge(
        is_oauth=True,
        resource_metadata=values.get("resource_metadata", ""),
        scopes=scopes_in(values.get("scope", "")),
        error=values.get("error", ""),
    )


def scopes_in(text: str) -> tuple[str, ...]:
    """The scopes of a text with spaces between them, each once. What cannot be a scope is left out."""
    return tuple(dict.fromkeys(scope for scope in text.split(" ") if SCOPE.fullmatch(scope)))[:MAX_SCOPES]

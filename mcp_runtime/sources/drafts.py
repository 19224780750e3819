"""A draft of a member, and the bounds of what is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mcp_runtime.members.manifest.files import text_of
from mcp_runtime.protocol.errors import SourceError

MAX_BYTES = 262_144
MAX_DEPTH = 32
MAX_SERVERS = 50
MAX_ARGS = 500
MAX_VALUES = 100  # of env, of headers and of inputs
MAX_NOTES = 20
MAX_REFUSALS = 20
MAX_QUOTED = 80  # characters of a name


@dataclass(frozen=True)
class Input:
    """A value that the client knows and the hall does not, such as ${input:token} or $GITHUB_TOKEN.

    The manifest refers to it as `${secret:NAME}`, so somebody must set the secret before the member can start.
    """

    secret: str
    """The name of the secret."""
    label: str
    """The name in the client's configuration."""
    description: str = ""
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Draft:
    """A member that the hall could have. `manifest` is valid, and contains no secret."""

    name: str
    manifest: dict[str, Any]
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """The values, by the names of secrets. Never show them in a log, an error, or the locals of a traceback."""
    inputs: tuple[Input, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The content of guild-member.json."""
        return text_of(self.manifest)


@dataclass(frozen=True)
class Reading:
    """The result for one text: its drafts, and why some of its servers cannot be members."""

    source: str
    """What the text is, for people: "mcp.json of VS Code"."""
    drafts: tuple[Draft, ...]
    refusals: tuple[SourceError, ...] = ()


def quoted(name: str) -> str:
    """A name of the text for a sentence. Characters that change how a line looks are not shown."""
    visible = "".join(character if character.isprintable() else "?" for character in name[: MAX_QUOTED + 1])
    return repr(visible if len(visible) <= MAX_QUOTED else f"{visible[:MAX_QUOTED]}...")


def place_of(*parts: str) -> str:
    """`mcpServers.github.env.TOKEN`, short and on one line."""
    shown = (quoted(part)[1:-1] for part in parts if part)
    return ".".join(shown)

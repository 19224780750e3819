"""Declares each key of guild-member.json once, with its type, its bounds and its meaning.

`parser` validates by this declaration, and `schema` generates the published schema from it. A new key is a field here.
CONTRIBUTING names the other places.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from mcp_runtime.client import remote
from mcp_runtime.protocol.mcp import MODERN_VERSION

PLAIN = r"^[^\x00]*$"  # PostgreSQL stores no NUL
MAX_SECONDS = 86_400.0
# Commands that fetch the server before its first start. Each is given by its first words.
FETCHING_COMMANDS = (
    *(("npx",), ("npm", "exec"), ("npm", "x"), ("pnpx",), ("pnpm", "dlx"), ("yarn", "dlx"), ("bunx",), ("bun", "x")),
    *(("uvx",), ("uv", "run"), ("uv", "tool", "run"), ("pipx", "run"), ("docker",), ("podman",)),
)


def _text(longest: int, description: str | None = None, *, shortest: int | None = None) -> Meta:
    return Meta(min_length=shortest, max_length=longest, pattern=PLAIN, description=description)


def _pattern(pattern: str, error: str, description: str | None = None, examples: list[str] | None = None) -> Meta:
    """`error` is the message for the author. `{value}` in it stands for the text that does not match."""
    return Meta(pattern=pattern, description=description, examples=examples, extra={"error": error})


Seconds = Annotated[
    float,
    Meta(gt=0, le=MAX_SECONDS, extra={"error": f"must be seconds: a number above 0, at most {MAX_SECONDS:,.0f}"}),
]
Argument = Annotated[str, _text(100_000)]
VariableName = Annotated[str, _pattern("^[A-Za-z_][A-Za-z0-9_]*$", "is not a name for an environment variable")]
ToolName = Annotated[str, _text(1000)]
HeaderValue = Annotated[str, _text(remote.MAX_VALUE)]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A valid manifest of a member. Times are in seconds. It has either a `command` or a `url`."""

    name: Annotated[
        str,
        _pattern(
            "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$",
            "{value} must be 1 to 64 letters, digits, - and _, a letter or digit first",
            "What the hall calls the member. No two members of a hall may share a name, whatever the case.",
        ),
    ]
    version: Annotated[str, _text(100, "The member's own version, e.g. 1.0.0.", shortest=1)]
    display_name: Annotated[str, _text(200, "The name for people.")] = ""
    description: Annotated[str, _text(10_000, "What the member is good for.")] = ""
    transport: Annotated[
        Literal["http", "stdio"],
        Meta(
            description="How the server speaks MCP: over HTTP on the port it is given, or line by line on stdin and "
            "stdout."
        ),
    ] = "http"
    command: Annotated[
        str,
        _text(
            4096,
            "The program that starts the server: a name on the PATH, or a path relative to the member's folder. "
            "Never a shell line.",
            shortest=1,
        ),
    ] = ""
    args: Annotated[
        tuple[Argument, ...],
        Meta(description="Its arguments. ${PORT} stands for the port that the hall gives; a stdio server needs none."),
    ] = ()
    env: Annotated[
        dict[VariableName, Argument],
        Meta(
            description="Environment variables on top of the few the hall passes on. ${PORT} stands for the port. "
            "Names beginning with GUILD_HALL_ are the hall's own."
        ),
    ] = field(default_factory=dict)
    url: Annotated[
        str,
        _text(
            remote.MAX_URL,
            "The address of an MCP server that runs already, in place of command: https://host/path. Plain http for "
            "this machine alone, and for hosts that the operator names. Everybody may see it: secrets go into headers.",
        ),
    ] = ""
    headers: Annotated[
        dict[str, HeaderValue],
        Meta(
            max_length=remote.MAX_HEADERS,
            description="Sent with every request to url. ${env:NAME} stands for a variable of the hall's environment, "
            "${file:PATH} for the content of a file; a secret must be one of them.",
        ),
    ] = field(default_factory=dict)
    """Their secrets are references, which `remote.resolve` fills in."""
    enabled: Annotated[
        bool, Meta(description="Whether the member may run at all, until an operator says otherwise.")
    ] = True
    start_timeout: Annotated[
        Seconds | None,
        Meta(
            description="Seconds from spawn to the end of the handshake. Without it the port has 5 s to accept "
            "connections, not counting time spent waiting for a CPU (at most 30 s; after a failure 30 s; 120 s for "
            "npx, uvx, docker and other commands that fetch the server first), and the handshake 5 s from then on. "
            "A stdio server has no port: the first of these is for its handshake too."
        ),
    ] = None
    """Without it, `start_limits` sets the limits."""
    timeout: Annotated[Seconds, Meta(description="Seconds a tool call may take in total.")] = 30.0
    tool_timeouts: Annotated[
        dict[ToolName, Seconds], Meta(description="Seconds for single tools, by name, in place of timeout.")
    ] = field(default_factory=dict)
    restart: Annotated[
        Literal["on-failure", "never"],
        Meta(description="What to do after an exit that nobody asked for: try again, ever more slowly, or leave it."),
    ] = "on-failure"
    unresponsive: Annotated[
        Literal["show", "restart"],
        Meta(
            description="show: when a call and a ping after it had no answer, say since when. restart: when three "
            "calls in a row and a ping had none, restart the member too."
        ),
    ] = "show"
    max_concurrency: Annotated[
        int,
        Meta(
            ge=1,
            le=1024,
            description="Calls that may run in the member at the same time; further ones wait in the queue.",
        ),
    ] = 16
    protocol_version: Annotated[
        str,
        _pattern(
            f"^({MODERN_VERSION})?$",
            f'{{value}} is none to begin with; use "{MODERN_VERSION}", or leave it out: all others are agreed on',
            f"For a server that knows no handshake: {MODERN_VERSION}. Without it a handshake is tried first, and "
            "finds out.",
            examples=[MODERN_VERSION],
        ),
    ] = ""

    def argv(self, port: int) -> list[str]:
        """The command line with `${PORT}` replaced (REQ-MCP-HTTP-3, 9)."""
        return [self.command, *(_with_port(arg, port) for arg in self.args)]

    def environment(self, port: int) -> dict[str, str]:
        """The manifest's own variables with `${PORT}` replaced (REQ-MCP-HTTP-4)."""
        return {key: _with_port(value, port) for key, value in self.env.items()}

    def as_json(self) -> dict[str, Any]:
        """The manifest as JSON values, for the member's row. `from_json` reverses it."""
        return {**asdict(self), "args": list(self.args)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Manifest:
        fields = {key: value for key, value in values.items() if key in cls.__dataclass_fields__}
        return cls(**{**fields, "args": tuple(values["args"])})

    @property
    def fetches_server(self) -> bool:
        """Whether the command fetches the server before its first start."""
        words = (os.path.basename(self.command), *(arg for arg in self.args if not arg.startswith("-")))
        return any(words[: len(command)] == command for command in FETCHING_COMMANDS)

    @property
    def process_digest(self) -> str:
        """A digest that changes if a new process or connection is needed. Texts and limits do not change it."""
        process = [getattr(self, key) for key in PROCESS_KEYS]
        return hashlib.sha256(json.dumps(process, sort_keys=True).encode()).hexdigest()


def _with_port(text: str, port: int) -> str:
    return text.replace("${PORT}", str(port))


_KEYS = {"display_name": "displayName"}
_TYPE = cast(msgspec.inspect.DataclassType, msgspec.inspect.type_info(Manifest))
FIELDS = {_KEYS.get(field.name, field.name): field for field in _TYPE.fields}
"""The fields of the declaration, by their keys in the file."""

# The server's settings. The seeds have them at the top, and the first Guild Hall had them under `mcp`.
SERVER_KEYS = ("transport", "command", "args", "env", "url", "headers")
# A change of one of these restarts the member, because a process or connection has them from its beginning.
PROCESS_KEYS = ("name", *SERVER_KEYS, "protocol_version")
# All keys. `mcp` is another place for the server's settings, and editors need `$schema`. Neither is in the declaration.
KEYS = {*FIELDS, "mcp", "$schema"}
REQUIRED_KEYS = ("name", "version", "transport")

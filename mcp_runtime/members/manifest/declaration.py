"""Declares each key of guild-member.json once, with its type, its bounds and its meaning.

`parser` validates by this declaration, and `schema` generates the published schema from it. A new key is a field here.
CONTRIBUTING names the other places.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from mcp_runtime.client import remote
from mcp_runtime.nodes.placement import State
from mcp_runtime.protocol.mcp import MODERN_VERSION
from mcp_runtime.secrets import references

FOLDER = "${MEMBER_FOLDER}"  # in args and env: the absolute path of the member's folder, which differs between nodes
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
HeaderValue = Annotated[str, _text(references.MAX_HEADER_VALUE)]
Scope = Annotated[str, _pattern(r"^[!#-\[\]-~]{1,200}$", "{value} cannot be a scope")]
Label = Annotated[str, _pattern("^[A-Za-z0-9._-]{1,64}$", "{value} must be 1 to 64 letters, digits, '.', '-' and '_'")]
_NAME = r"(\.|\.?[^/.\x00][^/\x00]*|\.\.[^/\x00]+)"  # not "..". Without lookahead, which not all validators know
FilePattern = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=1000,
        pattern=f"^{_NAME}(/+{_NAME})*/*$",
        extra={"error": "{value} leaves the member's folder; give a pattern relative to the folder, without '..'"},
    ),
]


@dataclass(frozen=True, kw_only=True)
class NodeRules:
    """What the manifest says about nodes, for a hall that has several."""

    labels: Annotated[
        tuple[Label, ...],
        Meta(max_length=32, description="The member runs only on a node that has all of these labels."),
    ] = ()
    state: Annotated[
        State | None,
        Meta(
            description="Where the member keeps its data. local: in files of its machine, so the hall never moves it "
            "to another node when its node fails. shared: in a place that all nodes reach. none: nowhere. Without it, "
            "local for a command and none for a url."
        ),
    ] = None
    files: Annotated[
        Annotated[tuple[FilePattern, ...], Meta(max_length=100)] | None,
        Meta(
            description="The files that must be equal on all nodes, as glob patterns relative to the folder. ** stands "
            "for any number of folders. A pattern of a folder stands for all files in it. guild-member.json is always "
            "one of the files. Without it, there is no other file if the state is local, and otherwise all files of "
            "the folder count except names that begin with a dot, __pycache__ and node_modules."
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ProcessLimits:
    """What the processes of a member may use. Without a value there is no limit, or in a sandbox the hall's default."""

    memory_mb: Annotated[
        Annotated[int, Meta(ge=16, le=1_000_000)] | None,
        Meta(description="The memory of all its processes together, and what each may allocate, in MB."),
    ] = None
    open_files: Annotated[
        Annotated[int, Meta(ge=16, le=1_000_000)] | None,
        Meta(description="The files and connections that each process may have open."),
    ] = None
    cpu_seconds: Annotated[
        Annotated[int, Meta(ge=1, le=100_000_000)] | None,
        Meta(description="The CPU time of each process. Then it is killed."),
    ] = None
    file_mb: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000)] | None,
        Meta(description="The size of each file that it writes, in MB."),
    ] = None
    processes: Annotated[
        Annotated[int, Meta(ge=1, le=100_000)] | None,
        Meta(description="The processes of the member. With more, the hall ends it."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class OAuth:
    """How the hall signs in at the authorization server of a remote server. All of it is optional."""

    client_id: Annotated[str, _text(2048, "The id that the operator of the authorization server gave to the hall.")] = (
        ""
    )
    client_secret: Annotated[
        str,
        _text(references.MAX_HEADER_VALUE, "The secret of the client, as a reference such as ${secret:NAME}."),
    ] = ""
    private_key: Annotated[
        str,
        _text(
            references.MAX_HEADER_VALUE,
            "Where no person signs in, the private key of the client in place of its secret, as a reference such as "
            "${secret:NAME}. PEM of an EC key on P-256 or an RSA key.",
        ),
    ] = ""
    issuer: Annotated[
        str,
        _text(remote.MAX_URL, "The only authorization server that may be asked. Without it, the one the server names."),
    ] = ""
    assertion: Annotated[
        str,
        _text(
            references.MAX_HEADER_VALUE,
            "For workload_identity, a signed token (JWT) about the hall that the authorization server trusts, as a "
            "reference such as ${file:PATH}. It is read again for each request.",
        ),
    ] = ""
    subject_token: Annotated[
        str,
        _text(
            references.MAX_HEADER_VALUE,
            "For enterprise_managed, the ID token of a service, as a reference such as ${file:PATH}. It is read again "
            "for each request. With credentials user it is for the lists alone.",
        ),
    ] = ""
    idp_issuer: Annotated[
        str, _text(remote.MAX_URL, "Beside subject_token, the identity provider that takes it. Nobody else gets it.")
    ] = ""
    idp_client_id: Annotated[str, _text(2048, "Beside subject_token, the id of the hall at the identity provider.")] = (
        ""
    )
    idp_client_secret: Annotated[
        str, _text(references.MAX_HEADER_VALUE, "The secret of idp_client_id, as a reference such as ${secret:NAME}.")
    ] = ""
    scopes: Annotated[
        tuple[Scope, ...],
        Meta(max_length=50, description="The scopes to ask for, in place of those that the server names."),
    ] = ()
    grant: Annotated[
        Literal["authorization_code", "client_credentials", "workload_identity", "enterprise_managed"],
        Meta(
            description="authorization_code: a person signs in. client_credentials: the hall itself does, with "
            "client_id and client_secret or private_key. workload_identity: the hall does, with assertion. "
            "enterprise_managed: the identity provider of the company vouches for a service, or with credentials user "
            "for each user."
        ),
    ] = "authorization_code"
    credentials: Annotated[
        Literal["member", "user"],
        Meta(
            description="Whose account calls use. member: one account for everybody who may use the member. user: "
            "each user signs in alone, and no call has the token of another user."
        ),
    ] = "member"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A valid manifest of a member. Times are in seconds. It has either a `command` or a `url`."""

    name: Annotated[
        str,
        _pattern(
            "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$",
            "{value} must be 1 to 64 letters, digits, - and _, and begin with a letter or digit",
            "The name of the member in the hall. Names of two members must not differ only in case.",
        ),
    ]
    version: Annotated[str, _text(100, "The version of the member, for example 1.0.0.", shortest=1)]
    display_name: Annotated[str, _text(200, "The name that people see.")] = ""
    description: Annotated[str, _text(10_000, "What the member does.")] = ""
    transport: Annotated[
        Literal["http", "stdio"],
        Meta(
            description="How the server speaks MCP. http: over HTTP, on the port that the hall allocates. stdio: line "
            "by line on standard input and output."
        ),
    ] = "http"
    command: Annotated[
        str,
        _text(
            4096,
            "The program that starts the server. It is a name on the PATH, or a path relative to the member's folder. "
            "It is not run in a shell.",
            shortest=1,
        ),
    ] = ""
    args: Annotated[
        tuple[Argument, ...],
        Meta(
            description="The arguments of the command. ${PORT} stands for the port that the hall allocates. A stdio "
            "server needs no port. ${MEMBER_FOLDER} stands for the absolute path of the member's folder. "
            "${secret:NAME}, ${env:GUILD_HALL_MEMBER_NAME} and ${file:PATH} stand for secrets, "
            "but every user of the machine can read the arguments of processes."
        ),
    ] = ()
    env: Annotated[
        dict[VariableName, Argument],
        Meta(
            description="Environment variables, in addition to the few that the hall passes on. ${PORT} stands for "
            "the port, ${MEMBER_FOLDER} for the member's folder, "
            "and ${secret:NAME}, ${env:GUILD_HALL_MEMBER_NAME} and ${file:PATH} for secrets, as in headers. "
            "Names that begin with GUILD_HALL_ are reserved for the hall."
        ),
    ] = field(default_factory=dict)
    url: Annotated[
        str,
        _text(
            remote.MAX_URL,
            "The address of an MCP server that is already running, in place of command, such as https://host/path. "
            "Plain http is only allowed for this machine and for hosts that the operator names. All users can see the "
            "address, so put secrets into headers.",
        ),
    ] = ""
    headers: Annotated[
        dict[str, HeaderValue],
        Meta(
            max_length=remote.MAX_HEADERS,
            description="HTTP headers of every request to url. ${secret:NAME} stands for a secret of the hall, "
            "${env:GUILD_HALL_MEMBER_NAME} for a variable of the hall's environment, and ${file:PATH} for the content "
            "of a file. A secret must be one of them.",
        ),
    ] = field(default_factory=dict)
    """Their secrets are references, which `secrets.references.resolve` fills in."""
    oauth: Annotated[OAuth, Meta(description="How the hall signs in at the authorization server of url.")] = OAuth()
    enabled: Annotated[bool, Meta(description="Whether the member is enabled. An operator can change that later.")] = (
        True
    )
    start_timeout: Annotated[
        Seconds | None,
        Meta(
            description="Seconds from the start of the process to the end of the handshake. Without it, the port must "
            "accept connections within 5 s. Time in which the process waits for a CPU does not count, up to 30 s in "
            "total. After a failure the limit is 30 s. For npx, uvx, docker and other commands that fetch the server "
            "first, it is 120 s. Then the handshake must end within 5 s. A stdio server has no port, so the first "
            "limit is for its handshake."
        ),
    ] = None
    """Without it, `start_limits` sets the limits."""
    timeout: Annotated[Seconds, Meta(description="The maximum duration of a tool call, in seconds.")] = 30.0
    tool_timeouts: Annotated[
        dict[ToolName, Seconds],
        Meta(description="The maximum duration for single tools, by name, in place of timeout."),
    ] = field(default_factory=dict)
    restart: Annotated[
        Literal["on-failure", "never"],
        Meta(
            description="What to do after a crash. on-failure: restart the member, with longer pauses each time. "
            "never: do nothing."
        ),
    ] = "on-failure"
    unresponsive: Annotated[
        Literal["show", "restart"],
        Meta(
            description="What to do when the member does not answer. show: after a call and a ping without an answer, "
            "show since when. restart: after three calls in a row and a ping without an answer, restart the member too."
        ),
    ] = "show"
    contracts: Annotated[
        Literal["record", "hold"] | None,
        Meta(
            description="What to do when the server changes its tools. record: store the new versions. hold: hide a "
            "tool whose text changed, or that breaks or hides something, until somebody approves it. Without it, hold "
            "for a url and for npx, uvx, docker and other commands that fetch the server, and record for other "
            "commands."
        ),
    ] = None
    max_concurrency: Annotated[
        int,
        Meta(
            ge=1,
            le=1024,
            description="The number of calls that may run in the member at the same time. More calls wait in the "
            "queue.",
        ),
    ] = 16
    protocol_version: Annotated[
        str,
        _pattern(
            f"^({MODERN_VERSION})?$",
            f'{{value}} cannot be set; use "{MODERN_VERSION}" or leave it out. All other versions are negotiated',
            f"{MODERN_VERSION} for a server that supports no handshake. Without it, the hall tries a handshake first.",
            examples=[MODERN_VERSION],
        ),
    ] = ""
    sandbox: Annotated[
        Literal["off", "on", "require"],
        Meta(
            description="Whether the process is kept away from other files, ports and processes. off: no. on: as far "
            "as the machine can. require: do not start the member on a machine that cannot enforce all of it."
        ),
    ] = "off"
    packages: Annotated[
        Literal["fetched", "locked", "locked-with-scripts"],
        Meta(
            description="How npx or uvx get their packages. fetched: they fetch them themselves when the member "
            "starts. locked: the hall installs them once, from a lock with the hashes of all packages, and runs none "
            "of their install scripts. locked-with-scripts: the same, and install scripts may run."
        ),
    ] = "fetched"
    limits: Annotated[ProcessLimits, Meta(description="What the member's processes may use of the machine.")] = (
        ProcessLimits()
    )
    node: Annotated[NodeRules, Meta(description="For a hall with several nodes: which nodes may run the member.")] = (
        NodeRules()
    )

    def argv(self, port: int, folder: str | os.PathLike[str] = "") -> list[str]:
        """The command line with the port and the member's folder filled in (REQ-MCP-HTTP-3, 9)."""
        return [self.command, *(_with_place(arg, port, folder) for arg in self.args)]

    def environment(self, port: int, folder: str | os.PathLike[str] = "") -> dict[str, str]:
        """The manifest's own variables with the port and the member's folder filled in (REQ-MCP-HTTP-4)."""
        return {key: _with_place(value, port, folder) for key, value in self.env.items()}

    def as_json(self) -> dict[str, Any]:
        """The manifest as JSON values, for the member's row. `from_json` reverses it."""
        values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Manifest:
        fields = {key: value for key, value in values.items() if key in cls.__dataclass_fields__}
        records: dict[str, Any] = {
            "node": _node_rules(values.get("node", {})),
            "limits": _limits(values.get("limits", {})),
        }
        records["oauth"] = _oauth(values.get("oauth", {}))
        return cls(**{**fields, **records, "args": tuple(values["args"])})

    @property
    def state(self) -> State:
        """Where the member keeps its data."""
        return self.node.state or ("none" if self.url else "local")

    @property
    def file_patterns(self) -> tuple[str, ...]:
        """The files that must be equal on all nodes, besides the manifest."""
        if self.node.files is not None:
            return self.node.files
        return () if self.state == "local" else ("**",)

    @property
    def fetches_server(self) -> bool:
        """Whether the command fetches the server before its first start."""
        return fetches_server(self.command, self.args)

    @property
    def process_digest(self) -> str:
        """A digest that changes if a new process or connection is needed. Texts and limits do not change it."""
        process = [msgspec.to_builtins(getattr(self, key)) for key in PROCESS_KEYS]
        return hashlib.sha256(json.dumps(process, sort_keys=True).encode()).hexdigest()


def fetches_server(command: str, args: Iterable[str]) -> bool:
    words = (os.path.basename(command), *(arg for arg in args if not arg.startswith("-")))
    return any(words[: len(fetching)] == fetching for fetching in FETCHING_COMMANDS)


def _node_rules(values: dict[str, Any]) -> NodeRules:
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in values.items()
        if key in NodeRules.__dataclass_fields__
    }
    return NodeRules(**fields)


def _limits(values: dict[str, Any]) -> ProcessLimits:
    return ProcessLimits(**{key: value for key, value in values.items() if key in ProcessLimits.__dataclass_fields__})


def _oauth(values: dict[str, Any]) -> OAuth:
    fields = {key: value for key, value in values.items() if key in OAuth.__dataclass_fields__}
    return OAuth(**{**fields, "scopes": tuple(fields.get("scopes", ()))})


def _with_place(text: str, port: int, folder: str | os.PathLike[str]) -> str:
    return text.replace("${PORT}", str(port)).replace(FOLDER, os.fspath(folder))


_KEYS = {"display_name": "displayName"}
_TYPE = cast(msgspec.inspect.DataclassType, msgspec.inspect.type_info(Manifest))
FIELDS = {_KEYS.get(field.name, field.name): field for field in _TYPE.fields}
"""The fields of the declaration, by their keys in the file."""

# The server's settings. The seeds have them at the top, and the first Guild Hall had them under `mcp`.
SERVER_KEYS = ("transport", "command", "args", "env", "url", "headers")
# A change of one of these restarts the member, because a process or connection has them from its beginning.
PROCESS_KEYS = ("name", *SERVER_KEYS, "protocol_version", "sandbox", "packages", "limits", "oauth")
# All keys. `mcp` is another place for the server's settings, and editors need `$schema`. Neither is in the declaration.
KEYS = {*FIELDS, "mcp", "$schema"}
NODE_KEYS = tuple(NodeRules.__dataclass_fields__)
OAUTH_KEYS = tuple(OAuth.__dataclass_fields__)
LIMIT_KEYS = tuple(ProcessLimits.__dataclass_fields__)
REQUIRED_KEYS = ("name", "version", "transport")

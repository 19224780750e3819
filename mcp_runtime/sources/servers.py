"""One entry of a client's configuration, in the words of the hall. Clients have different words for the same things."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_runtime.protocol.errors import SourceError
from mcp_runtime.sources.drafts import MAX_ARGS, MAX_VALUES, place_of, quoted

MAX_TEXT = 65_536  # characters of a value
_TRANSPORTS = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamablehttp": "http",
    "streamable_http": "http",
    "remote": "http",
    "sse": "sse",
}
_LIMITS = {
    "timeout": "timeout",
    "tool_timeout_sec": "timeout",
    "startup_timeout_sec": "start_timeout",
    "startup_timeout_ms": "start_timeout",
}
# Keys that say nothing about how the server runs.
_IGNORED = {"name", "$schema", "gallery", "source", "displayName", "title", "icon"}


@dataclass(frozen=True)
class Entry:
    """One server of a text. `values` are as in the text.

    allow_bare   whether $NAME is a variable
    inputs       VS Code's descriptions of inputs, by their ids
    url_is_sse   whether the key url means the older transport
    title        its name for people
    version      of the server, if the text has one
    notes        sentences for the person who approves it
    public       the variables and headers that the text declares not to be secret
    kept         variables that the hall itself replaces when the server starts
    """

    name: str
    place: str
    values: Mapping[str, Any]
    allow_bare: bool = False
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    url_is_sse: bool = False
    title: str = ""
    version: str = ""
    notes: tuple[str, ...] = ()
    public: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()

    def at(self, *keys: str) -> str:
        return place_of(self.place, *keys)


@dataclass
class Server:
    """An entry in the words of the hall. Its values still contain secrets and variables."""

    command: str = ""
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    is_enabled: bool = True
    start_timeout: float | None = None
    timeout: float | None = None
    notes: list[str] = field(default_factory=list)


def server_of(entry: Entry) -> Server:
    """Raises SourceError, which names the place."""
    values = dict(entry.values)
    if values.pop("source", "custom") == "extension" or ("settings" in values and "command" not in values):
        raise SourceError(entry.place, "is an extension of Zed, which brings its own server; give its command")
    server = Server()
    transport = _transport(entry, values)
    _read_command(entry, values, server)
    _read_address(entry, values, server, transport)
    if bool(server.command) == bool(server.url):
        reason = "has a command and an address; keep one" if server.url else "has neither a command nor an address"
        raise SourceError(entry.place, reason)
    if transport == "stdio" and server.url:
        raise SourceError(entry.place, "is a stdio server with an address; give its command")
    _read_limits(entry, values, server)
    _note_rest(values, server)
    return server


def _transport(entry: Entry, values: dict[str, Any]) -> str:
    kind = values.pop("type", None) or values.pop("transport", None) or ""
    if isinstance(kind, dict):  # the form of older tools: {"transport": {"type": ..., "url": ...}}
        values.update({key: value for key, value in kind.items() if key not in values and key != "type"})
        kind = kind.get("type", "")
    if kind and (not isinstance(kind, str) or kind.lower() not in _TRANSPORTS):
        raise SourceError(entry.at("type"), "is a transport that the hall does not know; it knows stdio and http")
    return _TRANSPORTS[kind.lower()] if kind else ""


def _read_command(entry: Entry, values: dict[str, Any], server: Server) -> None:
    command = values.pop("command", None)
    if isinstance(command, dict):  # older versions of Zed
        values = {**command, **values}
        command = values.pop("path", None)
    if command is None or command == "":
        if "args" in values and "url" not in values:
            raise SourceError(entry.at("command"), "is missing")
        return
    server.command = text_of(command, entry.at("command"))
    server.args = _texts(values.pop("args", None) or [], entry.at("args"))
    server.env = _pairs(values.pop("env", None) or {}, entry.at("env"))
    for name in _names(values.pop("env_vars", None) or [], entry.at("env_vars")):
        server.env.setdefault(name, f"${{{name}}}")


def _read_address(entry: Entry, values: dict[str, Any], server: Server, transport: str) -> None:
    keys = [key for key in ("httpUrl", "serverUrl", "url") if values.get(key)]
    addresses = {key: text_of(values.pop(key), entry.at(key)).strip() for key in keys}
    if not keys:
        return
    server.url = addresses[keys[0]]
    server.headers = _pairs(values.pop("headers", None) or {}, entry.at("headers"))
    server.headers |= _pairs(values.pop("http_headers", None) or {}, entry.at("http_headers"))
    for header, name in _pairs(values.pop("env_http_headers", None) or {}, entry.at("env_http_headers")).items():
        server.headers[header] = _variable(name, entry.at("env_http_headers", header))
    if (name := values.pop("bearer_token_env_var", None)) is not None:
        server.headers["Authorization"] = f"Bearer {_variable(name, entry.at('bearer_token_env_var'))}"
    if (token := values.pop("bearer_token", None)) is not None:
        server.headers["Authorization"] = f"Bearer {text_of(token, entry.at('bearer_token'))}"
    if transport == "sse" or (not transport and entry.url_is_sse and keys[0] == "url"):
        server.notes.append(
            "The client uses the older HTTP with SSE for it, which the hall does not speak. It works only if the "
            "server speaks Streamable HTTP at this address too."
        )


def _read_limits(entry: Entry, values: dict[str, Any], server: Server) -> None:
    is_disabled = values.pop("disabled", False)
    server.is_enabled = values.pop("enabled", True) is not False and is_disabled is not True
    for key, limit in _LIMITS.items():
        number = values.pop(key, None)
        seconds = _seconds(key, number)
        if seconds is not None:
            setattr(server, limit, seconds)
        elif number is not None:
            server.notes.append(f"Its {key} is not taken over.")


def _seconds(key: str, number: Any) -> float | None:
    """Some clients count `timeout` in seconds and some in milliseconds. None if the hall cannot have this limit."""
    if not isinstance(number, (int, float)) or isinstance(number, bool):
        return None
    is_milliseconds = key.endswith("_ms") or (key == "timeout" and number >= 1000)
    seconds = number / 1000 if is_milliseconds else number
    return float(seconds) if 0 < seconds <= 86_400 else None


def _note_rest(values: dict[str, Any], server: Server) -> None:
    """Say what the hall does not take over, and what that means."""
    if values.pop("cwd", None):
        server.notes.append(
            "Its folder (cwd) is not taken over. The hall starts it in the folder of the member, so relative paths "
            "need to be changed."
        )
    if values.pop("envFile", None):
        server.notes.append("Its envFile is not read. Add the variables of this file to env.")
    for key in ("oauth", "auth", "authProviderType", "headersHelper"):
        if values.pop(key, None):
            server.notes.append(f"Its {key} is not taken over, so the server may refuse the hall.")
    others = sorted(key for key in values if key not in _IGNORED)
    if others:
        shown = ", ".join(quoted(key) for key in others[:5])
        server.notes.append(f"The hall does not know these keys, and leaves them out: {shown}.")


# Values -----------------------------------------------------------------------------------------------------------


def text_of(value: Any, place: str) -> str:
    """Raises SourceError if it is not a text that can be passed to a process."""
    if not isinstance(value, str):
        raise SourceError(place, "must be a string")
    if len(value) > MAX_TEXT:
        raise SourceError(place, f"must not be longer than {MAX_TEXT:,} characters")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise SourceError(place, "must not hold NUL characters or lone surrogates")
    return value


def _texts(values: Any, place: str) -> list[str]:
    return [_scalar(value, f"{place}.{index}") for index, value in enumerate(_bounded(values, list, "an array", place))]


def _pairs(values: Any, place: str) -> dict[str, str]:
    items = _bounded(values, dict, "an object", place).items()
    return {text_of(name, place): _scalar(value, place_of(place, name)) for name, value in items if value is not None}


def _names(values: Any, place: str) -> list[str]:
    """Codex has names, or objects with a name."""
    names = [
        value.get("name") if isinstance(value, dict) else value for value in _bounded(values, list, "an array", place)
    ]
    return [_require_name(name, place) for name in names]


def _variable(name: Any, place: str) -> str:
    return f"${{{_require_name(name, place)}}}"


def _require_name(name: Any, place: str) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", name):
        raise SourceError(place, "must be the name of an environment variable")
    return name


def _scalar(value: Any, place: str) -> str:
    """Clients accept numbers and switches too."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return text_of(value, place)


def _bounded(values: Any, kind: Callable[..., Any], words: str, place: str) -> Any:
    if not isinstance(values, kind):  # type: ignore[arg-type]
        raise SourceError(place, f"must be {words}")
    limit = MAX_ARGS if kind is list else MAX_VALUES
    if len(values) > limit:
        raise SourceError(place, f"must not have more than {limit} entries")
    return values

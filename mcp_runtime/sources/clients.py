"""Finds the servers in the configuration of a client. Each client has another key for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_runtime.protocol.errors import SourceError
from mcp_runtime.sources.drafts import MAX_SERVERS, MAX_VALUES, place_of
from mcp_runtime.sources.servers import Entry

SERVER_KEYS = {"command", "url", "serverUrl", "httpUrl"}
EXPECTED = (
    "has no servers: they are under mcpServers (Claude, Cursor, Windsurf, Gemini CLI), servers (VS Code), "
    "context_servers (Zed) or mcp_servers (Codex)"
)


def entries_of(document: Mapping[str, Any]) -> tuple[str, list[Entry]]:
    """What the document is, and its servers. Raises SourceError."""
    if is_server(document):
        return "the configuration of a server", [Entry("", "", document)]
    for find in (_of_mcp_servers, _of_zed, _of_codex, _of_vs_code, _of_bare_map):
        if (result := find(document)) is not None:
            source, entries = result
            if not entries:
                raise SourceError("", EXPECTED)
            if len(entries) > MAX_SERVERS:
                raise SourceError("", f"has {len(entries)} servers; take at most {MAX_SERVERS} at a time")
            return source, entries
    raise SourceError("", EXPECTED)


def is_server(value: Any) -> bool:
    return isinstance(value, Mapping) and any(isinstance(value.get(key), (str, Mapping)) for key in SERVER_KEYS)


def _of_mcp_servers(document: Mapping[str, Any]) -> tuple[str, list[Entry]] | None:
    if "mcpServers" not in document:
        return None
    servers = _object(document["mcpServers"], "mcpServers")
    kinds = {key for entry in servers.values() if isinstance(entry, Mapping) for key in entry}
    is_gemini = "httpUrl" in kinds or bool({"trust", "includeTools", "excludeTools"} & kinds) or _has_bare(servers)
    source = "settings.json of Gemini CLI" if is_gemini else "a configuration with mcpServers"
    if "serverUrl" in kinds:
        source = "mcp_config.json of Windsurf"
    # For Gemini CLI, `url` alone is SSE. A type says more, and is read first.
    return source, _entries("mcpServers", servers, allow_bare=is_gemini, url_is_sse=is_gemini)


def _has_bare(servers: Mapping[str, Any]) -> bool:
    """Whether some value is $NAME and nothing else, as only Gemini CLI has it."""
    values = [
        value
        for entry in servers.values()
        if isinstance(entry, Mapping)
        for key in ("env", "headers")
        if isinstance(entry.get(key), Mapping)
        for value in entry[key].values()
    ]
    return any(isinstance(value, str) and value[:1] == "$" and value[1:].isidentifier() for value in values)


def _of_zed(document: Mapping[str, Any]) -> tuple[str, list[Entry]] | None:
    if "context_servers" not in document:
        return None
    servers = _object(document["context_servers"], "context_servers")
    return "settings.json of Zed", _entries("context_servers", servers)


def _of_codex(document: Mapping[str, Any]) -> tuple[str, list[Entry]] | None:
    if "mcp_servers" not in document:
        return None
    servers = _object(document["mcp_servers"], "mcp_servers")
    return "config.toml of Codex", _entries("mcp_servers", servers)


def _of_vs_code(document: Mapping[str, Any]) -> tuple[str, list[Entry]] | None:
    root, prefix = document, ""
    if "servers" not in root and isinstance(root.get("mcp"), Mapping):  # in its settings.json
        root, prefix = root["mcp"], "mcp."
    if "servers" not in root:
        return None
    place = f"{prefix}servers"
    servers = _object(root["servers"], place)
    return "mcp.json of VS Code", _entries(place, servers, inputs=_inputs(root.get("inputs", []), f"{prefix}inputs"))


def _inputs(values: Any, place: str) -> dict[str, Mapping[str, Any]]:
    if not isinstance(values, list) or not all(isinstance(value, Mapping) for value in values):
        raise SourceError(place, "must be an array of objects")
    if len(values) > MAX_VALUES:
        raise SourceError(place, f"must not have more than {MAX_VALUES} entries")
    return {value["id"]: value for value in values if isinstance(value.get("id"), str)}


def _of_bare_map(document: Mapping[str, Any]) -> tuple[str, list[Entry]] | None:
    """Servers by name, as in .mcp.json of a plugin, or a part that was copied out of a configuration."""
    servers = {name: value for name, value in document.items() if is_server(value)}
    if not servers or len(servers) < len(document):
        return None
    return "servers by name", _entries("", servers)


def _object(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SourceError(place, "must be an object with the servers by name")
    return value


def _entries(
    place: str,
    servers: Mapping[str, Any],
    *,
    allow_bare: bool = False,
    url_is_sse: bool = False,
    inputs: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Entry]:
    """Values that are no objects are entries too. `reader` refuses them one by one."""
    return [
        Entry(
            name,
            place_of(place, name),
            value if isinstance(value, Mapping) else {"command": value},
            allow_bare=allow_bare,
            url_is_sse=url_is_sse,
            inputs=inputs or {},
        )
        for name, value in servers.items()
    ]

"""Looks servers up in the registry of MCP that GUILD_HALL_REGISTRY_URL names, only when a person asks for it.

Source: the generic registry API v0.1, in github.com/modelcontextprotocol/registry. Nothing that a registry says is
trusted: a server becomes a proposal, as every other source does.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from django.conf import settings
from django.core.cache import cache

from mcp_runtime.client.remote import plain_http_fault
from mcp_runtime.protocol.errors import (
    ClientError,
    ProtocolError,
    RegistryError,
    RequestRefusedError,
    SourceError,
    UnknownServerError,
)
from mcp_runtime.protocol.jsonrpc import storable
from mcp_runtime.sources.reader import ways
from mcp_runtime.sources.server_json import Way, is_server_json

TIMEOUT = 10.0  # seconds of one request, look-up of the host's name included
MAX_BYTES = 2_000_000
PAGE = 20
MAX_CURSOR = 1000
CACHE_SECONDS = 300
MAX_CACHED = 262_144  # bytes of an answer. Django's cache in memory has 300 entries
NAME = re.compile(r"([a-zA-Z0-9][a-zA-Z0-9-]*(?:\.[a-zA-Z0-9-]+)+/[a-zA-Z0-9._-]{1,100})(?:@([^\s@/]{1,255}))?")
# A slow registry must not take all threads of the web.
at_once = threading.BoundedSemaphore(4)


@dataclass(frozen=True)
class Listed:
    """A server as the registry lists it."""

    name: str
    title: str
    description: str
    version: str
    document: str
    """Its server.json, which can be proposed as it is."""
    ways: tuple[Way, ...]
    fault: str = ""
    """Why its server.json cannot be used."""


@dataclass(frozen=True)
class Page:
    servers: tuple[Listed, ...]
    cursor: str
    """For the next page. Empty if this is the last one."""


def is_configured() -> bool:
    return bool(settings.GUILD_HALL_REGISTRY_URL)


def search(text: str, cursor: str = "") -> Page:
    """The newest versions of the servers with this text in their names. Raises RequestRefusedError."""
    if len(cursor) > MAX_CURSOR:
        raise RegistryError(f"the cursor is longer than {MAX_CURSOR:,} characters")
    query = {"version": "latest", "limit": str(PAGE)}
    query |= {"search": text[:200]} if text else {}
    query |= {"cursor": cursor} if cursor else {}
    return _page(_get(f"/v0.1/servers?{urlencode(query)}"))


def versions(name: str) -> Page:
    """All versions of a server, the newest first. Raises RequestRefusedError."""
    return _page(_get(f"/v0.1/servers/{_quoted(name)}/versions"))


def find(name: str, version: str = "latest") -> Listed:
    """One version of a server. Raises RequestRefusedError."""
    answer = _get(f"/v0.1/servers/{_quoted(name)}/versions/{quote(version, safe='')}")
    listed = _listed(answer)
    if listed is None or listed.name != name:
        raise RegistryError(f"the registry answered the question for {name} with something else")
    return listed


def resolve(text: str) -> str:
    """The server.json of the server if the text is the name of one, such as io.github.anna/weather@1.2.0.

    Otherwise the text itself. Raises RequestRefusedError.
    """
    match = NAME.fullmatch(text.strip())
    if match is None:
        return text
    return find(match[1], match[2] or "latest").document


# Answers ----------------------------------------------------------------------------------------------------------


def _page(answer: Mapping[str, Any]) -> Page:
    rows, metadata = answer.get("servers"), answer.get("metadata")
    if not isinstance(rows, list):
        raise RegistryError("the registry answered with something else than a list of servers")
    cursor = metadata.get("nextCursor") if isinstance(metadata, dict) else None
    listed = [_listed(row) for row in rows[:100] if isinstance(row, dict)]
    is_usable = isinstance(cursor, str) and len(cursor) <= MAX_CURSOR and cursor.isprintable()
    return Page(tuple(each for each in listed if each is not None), str(cursor) if is_usable else "")


def _listed(row: Mapping[str, Any]) -> Listed | None:
    """None if the row does not describe a server that a person could choose."""
    server = row.get("server")
    if not isinstance(server, dict) or not isinstance(server.get("name"), str):
        return None
    name, title, description, version = (_shown(server.get(key)) for key in ("name", "title", "description", "version"))
    document, found, fault = "", [], ""
    try:
        document = json.dumps(storable(server), ensure_ascii=False, indent=2)
        found = ways(document)
    except (SourceError, ProtocolError) as error:
        fault = f"Its entry cannot be used: {error}."
    if not is_server_json(server):
        fault = "Its entry has no package and no address."
    elif NAME.fullmatch(f"{name}@{version}") is None or name != server["name"]:
        fault = "Its name or its version is not as the specification of registries wants them."
    return Listed(name, title, description, version, document, tuple(found), fault)


def _shown(value: Any) -> str:
    return "".join(part if part.isprintable() else " " for part in value[:500]) if isinstance(value, str) else ""


def _quoted(name: str) -> str:
    if NAME.fullmatch(name) is None or "@" in name:
        raise UnknownServerError("the name of a server in a registry is such as io.github.anna/weather")
    return quote(name, safe="")


# Requests ---------------------------------------------------------------------------------------------------------


def _get(target: str) -> dict[str, Any]:
    """The answer of the registry, which may be five minutes old. Raises RegistryError, and RequestRefusedError."""
    base = settings.GUILD_HALL_REGISTRY_URL
    if not base:
        raise RequestRefusedError("no registry is set; set GUILD_HALL_REGISTRY_URL to its address")
    if fault := plain_http_fault(base, settings.GUILD_HALL_PLAIN_HTTP_HOSTS):
        raise RegistryError(f"the registry may not be asked: {fault}")
    url = base + target
    key = f"registry-{hashlib.sha256(url.encode()).hexdigest()}"
    body: bytes | None = cache.get(key)
    if body is not None:
        return _parsed(body)
    if not at_once.acquire(blocking=False):
        raise RegistryError("the registry is being asked several questions already; try again in a moment")
    try:
        body = fetch(url)
    finally:
        at_once.release()
    answer = _parsed(body)
    if len(body) <= MAX_CACHED:
        cache.set(key, body, CACHE_SECONDS)
    return answer


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RegistryError("the registry answered with something else than JSON") from error
    if not isinstance(answer, dict):
        raise RegistryError("the registry answered with something else than a JSON object")
    return answer


def fetch(url: str) -> bytes:
    """The body of the registry's response. Raises UnknownServerError or RegistryError."""
    from mcp_runtime.client.outside import Guard, Place, ask  # late, because the web loads it only when somebody asks

    host = urlsplit(url).hostname or ""
    # A company may have its own registry in its network. On this machine it must be in the setting as it is.
    is_here = host == "localhost" or _is_address(host)
    guard = Guard((Place.PUBLIC, Place.PRIVATE), url if is_here else "", settings.GUILD_HALL_PLAIN_HTTP_HOSTS)
    try:
        answer = ask(url, guard, seconds=TIMEOUT, max_bytes=MAX_BYTES)
    except ClientError as error:
        raise RegistryError(f"the registry at {host} cannot be reached: {error}") from error
    if answer.status == 404:
        raise UnknownServerError("the registry does not know this server, or this version of it")
    if answer.status != 200:
        raise RegistryError(f"the registry answered with HTTP {answer.status}")
    return answer.body


def _is_address(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False

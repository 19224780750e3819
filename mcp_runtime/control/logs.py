"""The log of a member. It is on the machine that runs the member, and this machine asks that node for it."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from django.conf import settings
from django.db import connection

from mcp_runtime.client.remote import plain_http_fault
from mcp_runtime.members import logs
from mcp_runtime.members.logs import Part
from mcp_runtime.protocol.errors import LogUnavailableError
from mcp_runtime.rows import clock, lease
from mcp_runtime.security import log_seals
from roster.models import GuildMember, Node

if TYPE_CHECKING:
    from http.client import HTTPResponse

TIMEOUT = 5.0  # for each step of a request to another node
MAX_ANSWER = 4_000_000
CHUNK = 65_536


def log_tail(row: GuildMember, lines: int) -> list[str]:
    """The last `lines` lines of the member's log, oldest first. Raises LogUnavailableError."""
    node = _other_node(row)
    return logs.tail(_path(row), lines) if node is None else _part(row, node, "", lines).lines


def log_after(row: GuildMember, cursor: str, lines: int) -> Part:
    """The lines after the cursor of an earlier part. Without a cursor, or if there are more, the last `lines`.

    Raises LogUnavailableError.
    """
    node = _other_node(row)
    return logs.part_after(_path(row), cursor, lines=lines) if node is None else _part(row, node, cursor, lines)


def whole_log(row: GuildMember) -> Iterator[bytes]:
    """The whole log as far as it is stored, oldest first. Raises LogUnavailableError, before the first part."""
    node = _other_node(row)
    if node is None:
        return logs.read_whole(_path(row))
    return _chunks(_open(row, node, {"whole": "1"}))


def is_elsewhere(row: GuildMember) -> bool:
    """Whether another node has the log."""
    return _other_node(row) is not None


def _path(row: GuildMember) -> Path:
    return logs.path_of(settings.GUILD_HALL_DATA_DIR, row.name)


def _other_node(row: GuildMember) -> Node | None:
    """The other node that has the log. None if this machine has it."""
    if connection.vendor == "sqlite" or row.node is None or row.node.name == settings.GUILD_HALL_NODE:
        return None
    return row.node if lease.is_shared(Node.objects.values_list("pk")) else None


def _part(row: GuildMember, node: Node, cursor: str, lines: int) -> Part:
    with _open(row, node, {"cursor": cursor, "lines": str(lines)}) as response:
        try:
            values: dict[str, Any] = json.loads(response.read(MAX_ANSWER))
        except (OSError, ValueError) as error:
            raise _unavailable(row, node, str(error)) from error
    return Part(values["lines"], values["cursor"], values["is_gap"])


def _open(row: GuildMember, node: Node, query: dict[str, str]) -> HTTPResponse:
    """Ask the node. Raises LogUnavailableError."""
    from urllib import request  # it takes megabytes, and only a hall with several nodes needs it

    if node.lease_id is None:
        raise _unavailable(row, node, "its runtime is stopped")
    if not node.url:
        raise _unavailable(row, node, "GUILD_HALL_NODE_URL is not set there")
    if fault := plain_http_fault(node.url, settings.GUILD_HALL_PLAIN_HTTP_HOSTS):
        raise _unavailable(row, node, fault)
    address = f"/logs/{quote(row.name, safe='')}?{urlencode(query)}"
    seal = log_seals.seal(settings.SECRET_KEY, node.lease_id.hex, address, clock.now().timestamp())
    context = ssl.create_default_context(cafile=settings.GUILD_HALL_NODE_CA) if node.url.startswith("https") else None
    opener = request.build_opener(request.ProxyHandler({}), request.HTTPSHandler(context=context))
    try:
        response: HTTPResponse = opener.open(
            request.Request(node.url + address, headers={log_seals.HEADER: seal}),  # noqa: S310 - http or https
            timeout=TIMEOUT,
        )
    except OSError as error:
        raise _unavailable(row, node, str(error)) from error
    return response


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    with response:
        while chunk := response.read(CHUNK):
            yield chunk


def _unavailable(row: GuildMember, node: Node, reason: str) -> LogUnavailableError:
    return LogUnavailableError(f"The log of {row.name!r} is on node {node.name!r}, which does not send it: {reason}.")

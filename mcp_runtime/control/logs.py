"""The log of a member. It is on the machine that runs the member, and this machine asks that node for it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Generator, Iterator
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings
from django.db import connection

from mcp_runtime.client import remote
from mcp_runtime.members import log_spans, logs
from mcp_runtime.members.log_spans import Span
from mcp_runtime.members.logs import Part
from mcp_runtime.protocol.errors import ClientError, HttpStatusError, LogUnavailableError
from mcp_runtime.rows import clock, lease
from mcp_runtime.secrets import references
from mcp_runtime.security import log_seals
from roster.models import Call, GuildMember, Node

MAX_LINES_OF_CALL = log_spans.MAX_LINES
PART_SECONDS, SPAN_SECONDS, WHOLE_SECONDS = 5.0, 10.0, 60.0  # for the whole answer of another node
MAX_ANSWER = 100_000_000  # bytes. A log and the files that were rotated from it have less
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
    chunks = _request(row, node, {"whole": "1"}, WHOLE_SECONDS)
    return itertools.chain([next(chunks, b"")], chunks)


def log_of_call(call: Call) -> Span:
    """The lines of the member's log between the beginning of the call and its end, or now.

    Lines of other calls that ran at the same time are among them. Raises LogUnavailableError.
    """
    row, begin = call.member, call.started_at
    if begin is None:  # it was never sent to the member
        return Span([])
    end = call.finished_at or clock.now()
    node = _other_node(row)
    # In the time of the database. The clocks of nodes differ by less than the tolerance that they report.
    chunks = logs.read_whole(_path(row)) if node is None else _request(row, node, {"whole": "1"}, SPAN_SECONDS)
    with closing(chunks):
        return log_spans.span(chunks, begin, end)


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
    answer = b"".join(_request(row, node, {"cursor": cursor, "lines": str(lines)}, PART_SECONDS))
    try:
        values: dict[str, Any] = json.loads(answer)
        return Part(values["lines"], values["cursor"], values["is_gap"])
    except (ValueError, LookupError, TypeError) as error:
        raise _unavailable(row, node, f"its answer is not a log ({error})") from error


def _request(row: GuildMember, node: Node, query: dict[str, str], seconds: float) -> Generator[bytes]:
    """Ask the node, and yield its answer, within so many seconds in all. Raises LogUnavailableError."""
    # Megabytes that only several nodes need.
    from mcp_runtime.client.exchanges import Exchange
    from mcp_runtime.client.transport import Transport

    if node.lease_id is None:
        raise _unavailable(row, node, "its runtime is stopped")
    if not node.url:
        raise _unavailable(row, node, "GUILD_HALL_NODE_URL is not set there")
    if fault := remote.plain_http_fault(node.url, settings.GUILD_HALL_PLAIN_HTTP_HOSTS):
        raise _unavailable(row, node, fault)
    address = f"/logs/{quote(row.name, safe='')}?{urlencode(query)}"
    headers = {log_seals.HEADER: log_seals.seal(node.lease_id.hex, address, clock.now().timestamp())}
    ca = settings.GUILD_HALL_NODE_CA
    transport = Transport(node.url + address, connections=1, max_bytes=MAX_ANSWER, headers=references.Resolved(), ca=ca)
    exchange = Exchange()
    exchange.begin(None, seconds)
    try:
        with transport.send("GET", seconds, exchange, headers) as response:
            if response.status_code != HTTPStatus.OK:
                raise HttpStatusError(response.status_code)
            while chunk := response.raw.read(CHUNK):
                yield chunk
    except ClientError as error:
        raise _unavailable(row, node, str(error)) from error
    finally:
        transport.close()


def _unavailable(row: GuildMember, node: Node, reason: str) -> LogUnavailableError:
    return LogUnavailableError(f"The log of {row.name!r} is on node {node.name!r}, which does not send it: {reason}.")

"""Serve logs of members of this node to the web and to commands on other machines, on the socket for other nodes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

from mcp_runtime.gateway.hop import MISDIRECTED
from mcp_runtime.gateway.replies import JSON_HEADERS, Refusal
from mcp_runtime.http1.server import HttpExchange
from mcp_runtime.members import logs
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import MethodError
from mcp_runtime.protocol.jsonrpc import INVALID_REQUEST
from mcp_runtime.rows import clock
from mcp_runtime.rows.database import unit_of_work
from mcp_runtime.security import log_seals
from roster.models import GuildMember

PREFIX = "/logs/"
MAX_LINES = 10_000
TEXT_HEADERS = ((b"content-type", b"text/plain; charset=utf-8"),)


class HopLogs:
    """Answers requests for logs in `data_dir`, if their seal is valid for the runtime with this lease."""

    def __init__(self, own_lease: str, data_dir: Path) -> None:
        self._own_lease = own_lease
        self._data_dir = data_dir

    async def __call__(self, exchange: HttpExchange) -> None:
        """Answer the request. Raise Refusal."""
        name = exchange.path.removeprefix(PREFIX)
        seal = exchange.headers.get(log_seals.HEADER.lower().encode(), b"").decode("latin-1")
        url = exchange.target.decode("latin-1")

        def may_read() -> bool:
            moment = clock.now().timestamp()
            is_sealed = log_seals.is_valid(seal, self._own_lease, url, moment)
            return is_sealed and GuildMember.objects.filter(name=name).exists()

        loop = asyncio.get_running_loop()
        if not await loop.run_in_executor(None, unit_of_work, may_read):
            raise Refusal(MISDIRECTED, MethodError(INVALID_REQUEST, "the request for a log has no valid seal"))
        query = {key: values[0] for key, values in parse_qs(exchange.query).items()}
        path = logs.path_of(self._data_dir, name)
        if "whole" in query:
            await self._send_whole(exchange, logs.read_whole(path))
            return
        lines = min(int(query.get("lines", "0") or 0), MAX_LINES)
        part = await loop.run_in_executor(None, lambda: logs.part_after(path, query.get("cursor", ""), lines=lines))
        exchange.reply(200, jsonrpc.encode(dataclasses.asdict(part)), JSON_HEADERS)

    @staticmethod
    async def _send_whole(exchange: HttpExchange, chunks: Iterator[bytes]) -> None:
        exchange.begin(200, TEXT_HEADERS)
        while chunk := await asyncio.get_running_loop().run_in_executor(None, next, chunks, b""):
            await exchange.write(chunk)
        exchange.end()

"""Clients of other authors, with the functions that tests use."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from tests.support.real_servers.__init__ import NODE, SERVERS, SUITE


@dataclass
class Client:
    """The functions of a client that these tests use, whichever SDK it has."""

    tools: Callable[[], Awaitable[list[str]]]
    text: Callable[[str, dict[str, Any]], Awaitable[str]]
    progress: Callable[[str, dict[str, Any]], Awaitable[list[float]]]


@asynccontextmanager
async def python_sdk(url: str, token: str, mode: str, **options: Any) -> AsyncIterator[Client]:
    from mcp import Client as SdkClient
    from mcp.client.streamable_http import streamable_http_client

    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=30, trust_env=False)
    async with http, SdkClient(streamable_http_client(url, http_client=http), mode=mode, **options) as client:

        async def tools() -> list[str]:
            return [tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools]

        async def text(name: str, arguments: dict[str, Any]) -> str:
            return str((await client.call_tool(name, arguments)).content[0].text)

        async def progress(name: str, arguments: dict[str, Any]) -> list[float]:
            values: list[float] = []

            async def on_progress(value: float, total: float | None, message: str | None) -> None:
                values.append(value)

            await client.call_tool(name, arguments, progress_callback=on_progress)
            return values

        wrapper = Client(tools, text, progress)
        wrapper.sdk = client  # type: ignore[attr-defined]
        yield wrapper


@asynccontextmanager
async def fastmcp(url: str, token: str, mode: str) -> AsyncIterator[Client]:
    from fastmcp import Client as FastClient
    from fastmcp.client.transports import StreamableHttpTransport

    transport = StreamableHttpTransport(url, headers={"Authorization": f"Bearer {token}"})
    async with FastClient(transport, mode=mode) as client:

        async def tools() -> list[str]:
            return [tool.name for tool in await client.list_tools(cache_mode="refresh")]

        async def text(name: str, arguments: dict[str, Any]) -> str:
            return str((await client.call_tool(name, arguments)).content[0].text)

        async def progress(name: str, arguments: dict[str, Any]) -> list[float]:
            values: list[float] = []

            async def on_progress(value: float, total: float | None, message: str | None) -> None:
                values.append(value)

            await client.call_tool(name, arguments, progress_handler=on_progress)
            return values

        yield Client(tools, text, progress)


@asynccontextmanager
async def typescript(url: str, token: str, kind: str) -> AsyncIterator[Client]:
    if not NODE.exists():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("make conformance-suite installs it")
    process = await asyncio.create_subprocess_exec(
        *(str(NODE), str(SERVERS / "typescript_client.mjs"), url, token, kind),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "SDK_ROOT": str(SUITE)},
    )
    assert process.stdin
    assert process.stdout

    async def ask(*command: Any) -> Any:
        process.stdin.write(json.dumps(command).encode() + b"\n")  # type: ignore[union-attr]
        response = json.loads(await process.stdout.readline())  # type: ignore[union-attr]
        assert not isinstance(response, dict), response
        return response

    try:
        assert json.loads(await process.stdout.readline()) == "ready"
        yield Client(
            lambda: ask("list"),
            lambda name, arguments: ask("call", name, arguments),
            lambda name, arguments: ask("progress", name, arguments),
        )
        process.stdin.close()
        await asyncio.wait_for(process.wait(), 10)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


CLIENTS = {
    "python-auto": (python_sdk, "auto"),
    "python-legacy": (python_sdk, "legacy"),
    "fastmcp-auto": (fastmcp, "auto"),
    "fastmcp-legacy": (fastmcp, "legacy"),
    "typescript-1": (typescript, "sdk"),
    "typescript-2": (typescript, "legacy"),
    "typescript-2-auto": (typescript, "auto"),
}


@asynccontextmanager
async def all_clients(origin: str, token: str, member: str) -> AsyncIterator[dict[str, tuple[Client, str]]]:
    """All clients by name, each with one connection, and with the prefix of its tools. Some use the member's path."""
    async with contextlib.AsyncExitStack() as stack:
        clients = {}
        for name, (kind, mode) in CLIENTS.items():
            path = f"/mcp/{member}" if name.endswith("legacy") else "/mcp"
            client = await stack.enter_async_context(kind(f"{origin}{path}", token, mode))
            clients[name] = (client, "" if path != "/mcp" else f"{member}__")
        yield clients


async def use_python_server(name: str, client: Client, prefix: str) -> None:
    """Use all tools of `real_servers/python_sdk.py`."""
    assert sorted(await client.tools()) == [f"{prefix}{tool}" for tool in ("add", "count", "fail")], name
    assert await client.text(f"{prefix}add", {"a": 2, "b": 3}) == "5", name
    assert await client.progress(f"{prefix}count", {"to": 3}) == [1, 2, 3], name

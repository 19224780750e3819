"""A program in Python that signs in: `python -m tests.support.signing_client URL_OF_THE_GATEWAY [KIND] [COMMAND...]`.

KIND is `sdk` (the Python SDK with its own OAuth client), `fastmcp`, or `stdio` for the command of a relay that signs
in. It lists the tools, calls the tool `echo`, and prints both as lines of JSON. After that it does both again for each
line that it reads. The kind `sdk` also prints the address that a person opens. The others start the browser.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.auth import OAuthClientProvider
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken


class Memory:
    """The storage of the SDK."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


@asynccontextmanager
async def python_sdk(url: str) -> AsyncIterator[Client]:
    redirects: asyncio.Queue[dict[str, list[str]]] = asyncio.Queue()

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = (await reader.readline()).split()[1].decode()
        if urlsplit(target).path == "/callback":
            redirects.put_nowait(parse_qs(urlsplit(target).query))
        body = b"You can close this page."
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    async def on_redirect(address: str) -> None:
        say(open=address)

    async def on_callback() -> AuthorizationCodeResult:
        parameters = await asyncio.wait_for(redirects.get(), 120)
        values = {name: parameters.get(name, [None])[0] for name in ("code", "state", "iss", "error")}
        say(redirected=values)
        return AuthorizationCodeResult(code=values["code"] or "", state=values["state"], iss=values["iss"])

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    metadata = OAuthClientMetadata(client_name="Test client", redirect_uris=[f"http://127.0.0.1:{port}/callback"])  # type: ignore[list-item]
    provider = OAuthClientProvider(url, metadata, Memory(), on_redirect, on_callback)
    http = httpx2.AsyncClient(auth=provider, timeout=60, trust_env=False)
    async with http, Client(streamable_http_client(url, http_client=http)) as client:
        yield client


@asynccontextmanager
async def fastmcp(url: str) -> AsyncIterator[Any]:
    from fastmcp import Client as FastClient

    async with FastClient(url, auth="oauth") as client:
        yield client


@asynccontextmanager
async def stdio(*command: str) -> AsyncIterator[Client]:
    program = StdioServerParameters(command=command[0], args=list(command[1:]), env=dict(os.environ))
    async with Client(stdio_client(program)) as client:
        yield client


async def run(url: str, kind: str = "sdk", *command: str) -> None:
    connection = {"sdk": lambda: python_sdk(url), "fastmcp": lambda: fastmcp(url), "stdio": lambda: stdio(*command)}
    async with connection[kind]() as client:
        await use(client)
        while await asyncio.to_thread(sys.stdin.readline):
            async with asyncio.timeout(60):
                await use(client)


async def use(client: Any) -> None:
    tools = await client.list_tools(cache_mode="refresh")
    names = [tool.name for tool in getattr(tools, "tools", tools)]
    say(tools=names)
    result = await client.call_tool(next(name for name in names if name.endswith("echo")), {"text": "hi"})
    say(result=result.content[0].text)


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))

"""What a call costs a client: ours, or the official SDK's, in a process of its own. Prints CPU milliseconds a call."""

from __future__ import annotations

import asyncio
import sys
import time

URL, WHICH, CALLS = sys.argv[1], sys.argv[2], int(sys.argv[3])


def ours() -> float:
    from mcp_runtime.client.client import JsonRpcClient

    client = JsonRpcClient(URL)
    client.connect()
    for _ in range(20):
        client.invoke_tool("echo", {"text": "hello"})
    began = time.process_time()
    for _ in range(CALLS):
        assert client.invoke_tool("echo", {"text": "hello"})["content"][0]["text"] == "hello"
    return time.process_time() - began


async def sdk() -> float:
    from mcp import Client

    async with Client(URL, mode="legacy") as client:
        for _ in range(20):
            await client.call_tool("echo", {"text": "hello"})
        began = time.process_time()
        for _ in range(CALLS):
            result = await client.call_tool("echo", {"text": "hello"})
            assert getattr(result.content[0], "text", "") == "hello"
        return time.process_time() - began


print((ours() if WHICH == "ours" else asyncio.run(sdk())) / CALLS * 1000)

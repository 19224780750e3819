"""FastMCP's proxy at its best: one client for all who come. `fastmcp_proxy.py PORT URL`, in FastMCP's environment."""

from __future__ import annotations

import asyncio
import sys

from fastmcp import Client
from fastmcp.server import create_proxy


async def main() -> None:
    async with Client(sys.argv[2]) as client:
        proxy = create_proxy(client)
        await proxy.run_async(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)


asyncio.run(main())

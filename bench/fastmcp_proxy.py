"""FastMCP's proxy at its best: one client for all who come. `fastmcp_proxy.py PORT UPSTREAM`, in FastMCP's environment.

UPSTREAM is a URL, or a JSON file that names servers to start.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from fastmcp import Client
from fastmcp.server import create_proxy


async def main() -> None:
    upstream = sys.argv[2]
    async with Client(upstream if "://" in upstream else json.loads(Path(upstream).read_text())) as client:
        proxy = create_proxy(client)
        await proxy.run_async(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)


asyncio.run(main())

"""A server on FastMCP: `fast_mcp.py PORT`, or without a port on stdin and stdout."""

import sys

from fastmcp import Context, FastMCP

server = FastMCP("fast-mcp")


@server.tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool
async def count(ctx: Context, to: int) -> str:
    """Counts, and says how far it is."""
    for number in range(1, to + 1):
        await ctx.report_progress(number, to, f"at {number}")
    return "done"


@server.tool
def fail() -> str:
    """Fails."""
    raise ValueError("it went wrong")


if len(sys.argv) > 1:
    server.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
else:
    server.run(transport="stdio", show_banner=False)

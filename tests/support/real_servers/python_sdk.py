"""A server on the official Python SDK: `python_sdk.py PORT`, or without a port on stdin and stdout."""

import sys

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("python-sdk")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
async def count(ctx: Context, to: int) -> str:
    """Counts, and says how far it is."""
    for number in range(1, to + 1):
        await ctx.report_progress(number, to, f"at {number}")
    return "done"


@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("it went wrong")


if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run("stdio")

"""The three tools that a client lists if it searches for tools: one finds tools, and two call them.

The list costs at most 600 tokens, at four bytes a token, however many tools there are. Clients let people allow tools
by their names and annotations, so there is one tool for calls that only read, and another one for all calls.

The gateway serves this list, and the web shows its cost before. So both use this module.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mcp_runtime.client import quick_json

FIND_TOOLS, CALL_READ, CALL_WRITE = "find_tools", "call_read", "call_write"
NAMES = frozenset((FIND_TOOLS, CALL_READ, CALL_WRITE))
USUAL_HITS, MAX_HITS = 5, 20
MAX_SERVERS = 300  # characters of the names of servers

_FIND = (
    "Find tools by what they do. The result has the best matches, each with its name, description, input schema, and "
    "whether call_read or call_write calls it. If the query is the exact name of a tool, only this tool is found."
)
_CALL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "The name from find_tools."},
        "arguments": {"type": "object", "description": "The arguments of this tool, as its input schema says."},
    },
    "required": ["name"],
}
_CALLS: list[dict[str, Any]] = [
    {
        "name": CALL_READ,
        "description": "Call a tool from find_tools that only reads. Other tools need call_write.",
        "inputSchema": _CALL,
        "annotations": {"title": "Call a tool that only reads", "readOnlyHint": True},
    },
    {
        "name": CALL_WRITE,
        "description": "Call any tool from find_tools, also one that changes or deletes something.",
        "inputSchema": _CALL,
        "annotations": {"title": "Call any tool", "readOnlyHint": False, "destructiveHint": True},
    },
]


def definitions(servers: Collection[str]) -> list[bytes]:
    """Return the definitions as JSON. They name some of the servers, so that a model knows what there is."""
    find = {
        "name": FIND_TOOLS,
        "description": f"{_FIND}{_servers(servers)}",
        "inputSchema": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What the tool should do, in a few words."},
                "limit": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_HITS,
                    "default": USUAL_HITS,
                    "description": "The number of tools.",
                },
            },
            "required": ["query"],
        },
        "annotations": {"title": "Find tools", "readOnlyHint": True, "openWorldHint": False},
    }
    return [quick_json.encode(definition) for definition in (find, *_CALLS)]


def _servers(names: Collection[str]) -> str:
    if not names:
        return ""
    text, count = "", 0
    for name in names:
        if len(text) + len(name) + 2 > MAX_SERVERS:
            break
        text, count = f"{text}{', ' if text else ''}{name}", count + 1
    more = len(names) - count
    return f" The tools are of these servers: {text}{f' and {more} more' if more else ''}."

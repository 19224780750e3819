"""A server's tools, from its pages of tools/list. Entries that are not tools are left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mcp_runtime.client import quick_json
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import ProtocolError
from mcp_runtime.protocol.jsonrpc import object_of

MAX_PAGES = 100
MAX_TOOLS = 2_000
MAX_TOOL_NAME = 255
MAX_WARNINGS = 20


@dataclass
class ToolList:
    """Tool definitions as the member sent them, in its order. `warnings` say what was left out and why."""

    tools: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, ask: Callable[[dict[str, Any]], dict[str, Any]], max_bytes: int) -> ToolList:
        """Read all pages. `ask` gets the params of a tools/list and returns the result.

        Raises ProtocolError for a page that is wrong and for a list without an end, and what `ask` raises.
        """
        tools = cls()
        cursors: set[str] = set()
        params: dict[str, Any] = {}
        size = 0
        for _ in range(MAX_PAGES):
            result = ask(params)
            size += len(quick_json.encode(result))
            if size > max_bytes:
                raise ProtocolError(f"tools/list is larger than {max_bytes:,} bytes in all")
            tools.add_page(result)
            cursor = result.get("nextCursor")
            if cursor is None:
                return tools
            if not isinstance(cursor, str) or cursor in cursors:
                raise ProtocolError("tools/list repeats its cursor: the list has no end")
            cursors.add(cursor)
            params = {"cursor": cursor}
        raise ProtocolError(f"tools/list has more than {MAX_PAGES} pages")

    def add_page(self, result: dict[str, Any]) -> None:
        tools = result.get("tools")
        if not isinstance(tools, list):
            raise ProtocolError("the answer to tools/list has no array of tools")
        names = {tool["name"] for tool in self.tools}
        for index, tool in enumerate(tools):
            name = tool.get("name") if isinstance(tool, dict) else None
            if not isinstance(name, str) or not 0 < len(name) <= MAX_TOOL_NAME:
                self._warn(f"tools/list: entry {index} has no usable name and is left out")
            elif fault := mcp.tool_name_fault(name):
                self._warn(f"tools/list: {name!a} is left out: {fault}")
            elif name in names:
                self._warn(f"tools/list: {name!r} is listed twice; the first counts")
            elif len(self.tools) >= MAX_TOOLS:
                raise ProtocolError(f"tools/list has more than {MAX_TOOLS} tools")
            else:
                names.add(name)
                self.tools.append(tool)
                if mcp.needs_task(tool):
                    self._warn(f"tools/list: {name!r} {mcp.NEEDS_TASK}")

    def drop_tools_with_bad_headers(self) -> dict[str, dict[mcp.Place, str]]:
        """The headers that calls of each tool need. Tools that declare them wrongly are left out."""
        headers: dict[str, dict[mcp.Place, str]] = {}
        valid_tools = []
        for tool in self.tools:
            try:
                headers[tool["name"]] = mcp.parameter_headers(object_of(tool.get("inputSchema")))
            except ValueError as error:
                self._warn(f"tools/list: {tool['name']!r} is left out: {error}")
            else:
                valid_tools.append(tool)
        self.tools = valid_tools
        return headers

    def _warn(self, text: str) -> None:
        if len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(text)
        elif len(self.warnings) == MAX_WARNINGS:
            self.warnings.append("tools/list: there is more of the kind")

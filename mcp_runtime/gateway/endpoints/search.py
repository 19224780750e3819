"""Serve the calls of the three tools with which a client finds and calls all others.

A call of `call_read` or `call_write` becomes a call of the tool in its arguments. From there on it is the same call as
one that names the tool itself: the same checks, limits, deadline, questions and record. Mistakes in it are results with
`isError`, because the model has to read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from mcp_runtime.client import quick_json
from mcp_runtime.gateway import envelope, eras
from mcp_runtime.gateway.catalog import ListedTool, Place
from mcp_runtime.gateway.endpoints.tools import ToolCalls
from mcp_runtime.gateway.members import Members
from mcp_runtime.gateway.messages import Answer, Reply, Request
from mcp_runtime.gateway.searcher import Found, Searcher
from mcp_runtime.members.search_tools import CALL_READ, CALL_WRITE, FIND_TOOLS, MAX_HITS, USUAL_HITS
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import MethodError, ProtocolError

# Bytes of a result. A tool that is found by its exact name may have a larger schema.
MAX_DESCRIPTION = 600
MAX_SCHEMA = 6_000
MAX_SCHEMAS = 24_000  # of all tools in a result
MAX_ONLY_SCHEMA = 60_000
MAX_TEXTS = 1_000  # of tools, in memory
CUT = "…"
HINT = "No tool has one of these words. Try other words for what the tool should do."


class _MistakeError(Exception):
    """The arguments of one of the three tools are wrong. The text is for a model."""


class SearchTools:
    """Serves `find_tools`, `call_read` and `call_write`."""

    def __init__(self, members: Members, searcher: Searcher, tools: ToolCalls) -> None:
        self._members = members
        self._searcher = searcher
        self._tools = tools
        self._hits = _Hits()

    async def answer(self, place: Place, request: Request) -> Reply:
        name, arguments = request.params["name"], request.params.get("arguments") or {}
        try:
            if name == FIND_TOOLS:
                return await self._find(place, request, arguments)
            return await self._call(place, request, arguments, only_reads=name == CALL_READ)
        except _MistakeError as mistake:
            return _text_result(request, str(mistake), is_error=True)

    async def _find(self, place: Place, request: Request, arguments: Mapping[str, Any]) -> Answer:
        _require_known_keys(arguments, ("query", "limit"), "")
        query, limit = arguments.get("query"), arguments.get("limit", USUAL_HITS)
        if not isinstance(query, str) or not query.strip():
            raise _MistakeError("query must be a text that says what the tool should do")
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_HITS:
            raise _MistakeError(f"limit must be a whole number from 1 to {MAX_HITS}")
        principal = request.client.principal
        found = await self._searcher.find(self._members.roster, principal, place.selection, query, limit)
        return _text_result(request, self._hits.as_json(found))

    async def _call(self, place: Place, request: Request, arguments: Mapping[str, Any], *, only_reads: bool) -> Reply:
        _require_known_keys(arguments, ("name", "arguments"), "; the arguments of the tool belong into `arguments`")
        name, own_arguments = arguments.get("name"), arguments.get("arguments", {})
        if not isinstance(name, str) or not name:
            raise _MistakeError(f"name must be the name of a tool from {FIND_TOOLS}")
        if not isinstance(own_arguments, dict):
            raise _MistakeError("arguments must be an object with the arguments of the tool")
        try:
            member, tool = await self._tools.find(place, name, request.client)
        except MethodError as error:
            raise _MistakeError(str(error)) from error
        if only_reads and not tool.only_reads:
            text = f"{CALL_READ} only calls tools that are known to change nothing. Use {CALL_WRITE} for {name[:100]!r}"
            raise _MistakeError(text)
        request.params = {**request.params, "name": name, "arguments": own_arguments}
        request.knows_headers = False
        return await self._tools.call(place, request, member, tool)


def _require_known_keys(arguments: Mapping[str, Any], known: tuple[str, ...], hint: str) -> None:
    if unknown := arguments.keys() - set(known):
        raise _MistakeError(f"unknown argument {min(unknown)[:100]!r}: it takes {' and '.join(known)}{hint}")


def _text_result(request: Request, text: str, *, is_error: bool = False) -> Answer:
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}], **({"isError": True} if is_error else {})}
    response = jsonrpc.result_response(request.id, result)
    if request.client.is_modern:
        response = eras.for_modern(request.method, request.params, response)
    return Answer(envelope.encode(response))


class _Hits:
    """Writes what clients learn of found tools. Keeps the texts of those that were found before."""

    def __init__(self) -> None:
        self._texts: dict[Any, tuple[bytes, int]] = {}  # with the bytes of the schema, by the key of the tool

    def as_json(self, found: Found) -> str:
        if not found.tools:
            return envelope.encode({"tools": [], "hint": HINT}).decode()
        largest, rest = (MAX_ONLY_SCHEMA, MAX_ONLY_SCHEMA) if found.is_exact else (MAX_SCHEMA, MAX_SCHEMAS)
        texts = []
        for listed in found.tools:
            text, size = self._text(listed, min(largest, rest))
            texts.append(text)
            rest -= size
        return (b'{"tools":[%b]}' % b",".join(texts)).decode()

    def _text(self, listed: ListedTool, most: int) -> tuple[bytes, int]:
        """Return the JSON of one tool, and the bytes of its schema if it is in it. `most` limits these bytes."""
        text, size = self._texts.get(listed.key, (b"", 0))
        if text and size <= most:
            return text, size
        hit, schema = _fields_of(listed)
        size = memoryview(schema).nbytes
        if size > most:
            hint = "" if most == MAX_ONLY_SCHEMA else f"; {FIND_TOOLS} with the exact name as the query shows more"
            return envelope.encode({**hit, "inputSchemaLeftOut": f"it has {size:,} bytes{hint}"}), 0
        text = envelope.encode({**hit, "inputSchema": schema})
        if size <= MAX_SCHEMA:
            if len(self._texts) >= MAX_TEXTS:
                self._texts.clear()
            self._texts[listed.key] = text, size
        return text, size


def _fields_of(listed: ListedTool) -> tuple[dict[str, Any], Raw]:
    """Return what clients learn of the tool, and its schema."""
    try:
        fields = envelope.fields(Raw(listed.definition))
    except ProtocolError:  # it has thousands of keys
        fields = {}
    hit: dict[str, Any] = {"name": listed.name}
    if isinstance(description := fields.get("description"), Raw):
        hit["description"] = _cut(description)
    hit["call"] = CALL_READ if listed.tool.only_reads else CALL_WRITE
    return hit, fields.get("inputSchema", Raw(b'{"type":"object"}'))


def _cut(description: Raw) -> Any:
    if memoryview(description).nbytes <= MAX_DESCRIPTION:
        return description
    text = str(quick_json.decode(bytes(description)))
    return text if len(text) <= MAX_DESCRIPTION else text[:MAX_DESCRIPTION].rstrip() + CUT

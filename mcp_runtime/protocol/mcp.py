"""MCP on top of JSON-RPC: versions, headers, events of a stream, the text of a result. No I/O.

Up to 2025-11-25 requests belong to a session, which `initialize` begins. This is the legacy way. From 2026-07-28 on
each request is independent, and describes itself in `_meta` and in headers. This is the modern way.

Sources: MCP specification 2024-11-05 to 2026-07-28 (basic/transports, basic/lifecycle, basic/versioning, server/tools).
"""

from __future__ import annotations

import base64
import codecs
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

# The hall's name, as a client and as a server.
HALL_NAME = "guild-hall"
# Key in a recorded result or in recorded arguments that were too long: its value is their beginning.
CUT = f"{HALL_NAME}/cut"
HALL_VERSION = "0.1.0"

# REQ-MCP-HTTP-24: requested and sent from initialize on, until the server agrees to another version.
PREFERRED_VERSION = "2025-06-18"
HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")

MODERN_VERSION = "2026-07-28"

VERSION_HEADER = "MCP-Protocol-Version"
SESSION_HEADER = "Mcp-Session-Id"
METHOD_HEADER = "Mcp-Method"
NAME_HEADER = "Mcp-Name"
PARAMETER_HEADER = "Mcp-Param-"
LAST_EVENT_HEADER = "Last-Event-ID"

# The specification's own error codes.
URL_ELICITATION_REQUIRED = -32042  # only in 2025-11-25
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022

MAX_PROGRESS_MESSAGE = 500
MAX_NAME = 64
MAX_PARAMETER_HEADERS = 100  # of one tool
MAX_EVENT_ID = 1000

META = "io.modelcontextprotocol/"

JSON = "application/json"
EVENT_STREAM = "text/event-stream"

# Requests whose modern form has the header Mcp-Name, each with the parameter that the header repeats. In 2026-07-28 a
# member may answer the same requests with questions.
NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}

CONTENT_WORDS = {"image": "an image", "audio": "audio", "resource": "a resource", "resource_link": "a link"}


def initialize_params(client_name: str, client_version: str, capabilities: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "protocolVersion": PREFERRED_VERSION,
        "capabilities": dict(capabilities),
        "clientInfo": {"name": client_name, "version": client_version},
    }


def folded(key: str) -> str:
    """A key as lenient readers compare it. Some ignore case, some take a long s as an s, and some read `task_id`."""
    return key.replace("_", "").casefold()


# The modern way ---------------------------------------------------------------------------------------------------


def modern_meta(client_name: str, client_version: str, capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """The `_meta` that each request has in place of a session."""
    return {
        f"{META}protocolVersion": MODERN_VERSION,
        f"{META}clientCapabilities": dict(capabilities),
        f"{META}clientInfo": {"name": client_name, "version": client_version},
    }


def modern_headers(method: str, params: Mapping[str, Any]) -> dict[str, str]:
    """The headers that repeat parts of the body, for proxies that do not read bodies."""
    headers = {METHOD_HEADER: method}
    if (key := NAMED_BY.get(method)) and isinstance(name := params.get(key), str):
        headers[NAME_HEADER] = header_value(name)
    return headers


_PLAIN = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?)?")
_ENCODED = re.compile(r"=\?base64\?.*\?=", re.DOTALL)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def header_value(value: str | int | bool) -> str:
    """The value for a header. Text that a header cannot contain, or that looks encoded already, is in Base64."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if _PLAIN.fullmatch(text) and not _ENCODED.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode('utf-8', 'surrogatepass')).decode()}?="


Place = tuple[str, ...]


def parameter_headers(schema: Mapping[str, Any]) -> dict[Place, str]:
    """The arguments of a tool that are also sent as headers (`x-mcp-header`): their place, and the header's full name.

    Raises ValueError, with the reason, if an annotation is not allowed. Such a tool must not be used.
    """
    headers: dict[Place, str] = {}
    names: set[str] = set()
    todo: list[tuple[Any, Place | None]] = [(schema, ())]  # None: not reached through `properties` alone
    while todo:
        part, place = todo.pop()
        if isinstance(part, list):
            todo += [(item, None) for item in part]
        if not isinstance(part, dict):
            continue
        if "x-mcp-header" in part:
            headers[place or ()] = _parameter_header(part, place, names)
        for keyword, value in part.items():
            if keyword in ("const", "default", "enum", "examples"):
                continue
            if keyword in _MAPS_OF_SCHEMAS and isinstance(value, dict):
                inside = place is not None and keyword == "properties"
                todo += [(item, (*(place or ()), name) if inside else None) for name, item in value.items()]
            else:
                todo.append((value, None))
    return headers


_MAPS_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def _parameter_header(part: dict[str, Any], place: Place | None, names: set[str]) -> str:
    name = part["x-mcp-header"]
    if not place:
        raise ValueError("x-mcp-header stands where it is not reached through properties alone")
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise ValueError("x-mcp-header is not a name that a header may have")
    if part.get("type") not in ("string", "integer", "boolean"):
        raise ValueError(f"x-mcp-header {name!r} is on something else than a string, an integer or a boolean")
    if name.lower() in names:
        raise ValueError(f"x-mcp-header {name!r} is given twice")
    if len(names) >= MAX_PARAMETER_HEADERS:
        raise ValueError(f"x-mcp-header is given more than {MAX_PARAMETER_HEADERS} times")
    names.add(name.lower())
    return PARAMETER_HEADER + name


def parameter_values(headers: Mapping[Place, str], arguments: Mapping[str, Any]) -> dict[str, str]:
    """The headers of one call. Arguments that are absent or null have none."""
    values: dict[str, str] = {}
    for place, header in headers.items():
        value: Any = arguments
        for key in place:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # JSON Schema calls 5.0 an integer too
        if isinstance(value, (str, int)):
            values[header] = header_value(value)
    return values


# Streams ----------------------------------------------------------------------------------------------------------


class EventStream:
    """Parser of server-sent events (WHATWG). Feed it chunks of bytes, and get the data of complete events.

    An event without an end grows in memory, so the reader must limit what it feeds. The stream sets `last_event_id`,
    where another stream can resume, and `retry_ms`, the time to wait before that.
    """

    def __init__(self) -> None:
        self.last_event_id = ""
        self.retry_ms: int | None = None
        self._rest = bytearray()  # of an incomplete line. It grows in place, because a line may come byte by byte
        self._data = bytearray()  # of complete lines, with line ends. As a list, short lines take sixteen times that
        self._after_return = False
        self._at_beginning = True

    def go_on(self) -> None:
        """Continue with another stream, which resumes where this one ended."""
        fresh = EventStream()
        fresh.last_event_id, fresh.retry_ms = self.last_event_id, self.retry_ms
        self.__dict__.update(fresh.__dict__)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the incomplete event."""
        return len(self._rest) + len(self._data)

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        if not chunk:
            return
        if self._after_return and chunk.startswith(b"\n"):
            chunk = chunk[1:]  # the second half of a CRLF that was split between two reads
        self._after_return = chunk.endswith(b"\r")
        first, *others = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest += first
        if not others:
            return
        lines, self._rest = [bytes(self._rest), *others[:-1]], bytearray(others[-1])
        if self._at_beginning:
            lines[0], self._at_beginning = lines[0].removeprefix(codecs.BOM_UTF8), False
        for line in lines:
            if line:
                self._field(line)
            elif self._data:
                del self._data[-1]
                data, self._data = bytes(self._data), bytearray()
                if data:
                    yield data

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data += value
            self._data += b"\n"
        elif name == b"id" and len(value) <= MAX_EVENT_ID and (text := value.decode("utf-8", "replace")).isprintable():
            self.last_event_id = text
        elif name == b"retry" and value.isdigit():
            self.retry_ms = int(value[:9])


def tool_name_fault(name: str) -> str:
    """Why a tool with this name is not offered. Empty if it is offered.

    MCP recommends letters, digits, `_`, `-` and `.`, but tools use many other characters. Names are refused if an
    address, a list or a log line would change them. Clients and proxies resolve `..`, so it would even lead to tools of
    another member.
    """
    if _UNPRINTABLE.search(name):
        return "its name has line breaks, control characters, or characters that turn the direction of text"
    if any(part in (".", "..") for part in name.split("/")):
        return "its name has '.' or '..' between slashes, which addresses do not keep"
    return ""


# C0, DEL and C1, line and paragraph separators, marks and overrides of direction, lone surrogates, and the replacement
# for characters that could not be stored.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffd]")


def qualified_name(member: str, tool: str) -> str:
    """A tool's name among the tools of all members: `member__tool`, at most 64 characters, only allowed ones.

    It depends only on the two names, so no other member can change it. It ends with a short hash if it had to be cut or
    changed, or if it could be the name of another tool.
    """
    plain = f"{member}__{tool}"
    name = _NOT_IN_NAMES.sub("_", plain)
    # It must be clear where the member's name ends: `a` with `b__c` is not `a__b` with `c`.
    is_unambiguous = "__" not in member and not member.endswith("_") and not tool.startswith("_")
    if is_unambiguous and name == plain and len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(f"{member}\0{tool}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{name[: MAX_NAME - 9]}_{digest}"


_NOT_IN_NAMES = re.compile("[^A-Za-z0-9_.-]")


# The types of the keys of a definition. Clients refuse a whole list because of one wrong type.
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **{"title": str, "description": str, "outputSchema": dict, "annotations": dict},
    **{"icons": list, "_meta": dict, "execution": dict},
}


def offered_definition(definition: Mapping[str, Any], name: str, *, has_schema: bool = True) -> dict[str, Any]:
    """A tool as the member defined it, under `name`, without parts for which a client would refuse the whole list."""
    valid: dict[str, Any] = {
        key: value for key, value in definition.items() if isinstance(value, _KINDS.get(key, object))
    }
    for key in ("inputSchema", "outputSchema"):
        if key in valid and not _is_schema_of_object(valid[key]):
            del valid[key]
    for key in valid.keys() & {"annotations", "execution"}:
        valid[key] = {name: value for name, value in valid[key].items() if _is_hint(name, value)}
    if "icons" in valid:
        valid["icons"] = [icon for icon in valid["icons"] if _is_icon(icon)]
    if not has_schema:
        valid.pop("inputSchema", None)
    return {"name": name, "inputSchema": {"type": "object"}, **valid} | {"name": name}


_BOOLEAN_HINTS = frozenset(("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"))
_TASK_SUPPORT = ("forbidden", "optional", "required")


def _is_hint(name: str, value: Any) -> bool:
    """Whether the hint has a value that clients accept. Clients ignore hints that MCP does not define."""
    if name == "title":
        return isinstance(value, str)
    if name == "taskSupport":
        return value in _TASK_SUPPORT
    return name not in _BOOLEAN_HINTS or isinstance(value, bool)


def _is_icon(icon: Any) -> bool:
    if not isinstance(icon, dict) or not isinstance(icon.get("src"), str):
        return False
    sizes, theme = icon.get("sizes", []), icon.get("theme", "light")
    are_sizes = isinstance(sizes, list) and all(isinstance(size, str) for size in sizes)
    return are_sizes and theme in ("light", "dark") and isinstance(icon.get("mimeType", ""), str)


_KINDS_OF_ENTRIES: Mapping[str, type] = {
    **{"title": str, "description": str, "mimeType": str, "name": str, "size": int},
    **{"annotations": dict, "_meta": dict, "icons": list, "arguments": list},
}


def offered_entry(entry: Mapping[str, Any], key: str, value: str) -> dict[str, Any]:
    """A prompt, a resource or a template as its member lists it, but with `value` at `key`.

    Parts for which a client would refuse the whole list are left out.
    """
    valid: dict[str, Any] = {k: v for k, v in entry.items() if isinstance(v, _KINDS_OF_ENTRIES.get(k, object))}
    if isinstance(valid.get("size"), bool):
        del valid["size"]
    if "icons" in valid:
        valid["icons"] = [icon for icon in valid["icons"] if _is_icon(icon)]
    if "arguments" in valid:
        valid["arguments"] = [argument for argument in valid["arguments"] if _is_argument(argument)]
    if "annotations" in valid:
        valid["annotations"] = {name: hint for name, hint in valid["annotations"].items() if _is_annotation(name, hint)}
    return {"name": str(entry.get(key)), **valid, key: value}


def _is_argument(argument: Any) -> bool:
    if not isinstance(argument, dict) or not isinstance(argument.get("name"), str):
        return False
    texts = (argument.get(key, "") for key in ("title", "description"))
    return all(isinstance(text, str) for text in texts) and isinstance(argument.get("required", False), bool)


def _is_annotation(name: str, value: Any) -> bool:
    if name == "audience":
        return isinstance(value, list) and all(role in ("user", "assistant") for role in value)
    if name == "priority":
        return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1
    return name != "lastModified" or isinstance(value, str)


NEEDS_TASK = "runs only as a task, so only a client that supports tasks can call it, at the address of the member"


def needs_task(definition: Mapping[str, Any]) -> bool:
    """Whether the tool runs only as a task (25-11: basic/utilities/tasks). A plain call cannot run it."""
    execution = definition.get("execution")
    return isinstance(execution, dict) and execution.get("taskSupport") == "required"


def only_reads(definition: Mapping[str, Any]) -> bool:
    """Whether the tool says that it changes nothing. A tool that also says that it destroys something does not."""
    hints = definition.get("annotations")
    return isinstance(hints, dict) and hints.get("readOnlyHint") is True and hints.get("destructiveHint") is not True


def _is_schema_of_object(schema: Any) -> bool:
    return (
        isinstance(schema, dict)
        and schema.get("type") == "object"
        and isinstance(schema.get("properties", {}), dict)
        and isinstance(schema.get("required", []), list)
        and all(isinstance(name, str) for name in schema.get("required", []))
    )


def progress_of(params: Mapping[str, Any]) -> dict[str, Any] | None:
    """The content of a progress notification, bounded: `progress`, `total` (None if unknown) and `message`.

    None if the notification has no progress.
    """
    progress, total, message = (params.get(key) for key in ("progress", "total", "message"))
    if not isinstance(progress, (int, float)) or isinstance(progress, bool):
        return None
    has_total = isinstance(total, (int, float)) and not isinstance(total, bool)
    text = message[:MAX_PROGRESS_MESSAGE] if isinstance(message, str) else ""
    return {"progress": progress, "total": total if has_total else None, "message": text}


def text_of(result: dict[str, Any]) -> str:
    """The text of a tool's result for people: its texts, and a word for each other item."""
    content = result.get("content")
    return "\n".join(text_of_item(item) for item in (content if isinstance(content, list) else []))


def text_of_item(item: Any) -> str:
    """The text of one item of a result or a message, or a word for it."""
    kind = item.get("type") if isinstance(item, dict) else None
    return str(item.get("text", "")) if kind == "text" else f"[{CONTENT_WORDS.get(str(kind), 'something unknown')}]"

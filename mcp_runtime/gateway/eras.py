"""The differences between the two eras of MCP: check modern messages, and convert responses between the eras.

Handshake versions (to 2025-11-25) have sessions. Modern versions (from 2026-07-28) send everything in each request.
Sources: MCP specification 2026-07-28 (basic/index, basic/versioning, basic/transports/streamable-http).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from mcp_runtime.gateway.envelope import Message, encode, fields, is_large, is_object, small
from mcp_runtime.gateway.messages import Answer, Request
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import MethodError
from mcp_runtime.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND
from mcp_runtime.protocol.mcp import HANDSHAKE_VERSIONS, META, MODERN_VERSION

SUPPORTED = [MODERN_VERSION, *reversed(HANDSHAKE_VERSIONS)]

RESOURCE_NOT_FOUND = -32002  # up to 2025-11-25
# Methods that exist only in sessions.
ONLY_WITH_SESSIONS = frozenset({
    "initialize",
    "ping",
    "logging/setLevel",
    "resources/subscribe",
    "resources/unsubscribe",
    "notifications/initialized",
    "notifications/roots/list_changed",
})  # fmt: skip
ONLY_WITHOUT_SESSIONS = frozenset({"server/discover"})  # methods that do not exist in sessions
CACHEABLE = frozenset({
    "server/discover",
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
})  # fmt: skip
# The caching hints of a result with an unknown lifetime.
UNCACHED: Mapping[str, Any] = {"ttlMs": 0, "cacheScope": "private"}
LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


def is_modern(message: Any, version_header: str) -> bool:
    """Return whether the message follows the modern rules. An unknown version counts as modern."""
    meta = meta_of(message)
    if f"{META}protocolVersion" in meta:
        return True
    return bool(version_header) and version_header not in HANDSHAKE_VERSIONS


def meta_of(message: Any) -> dict[str, Any]:
    params = message.get("params") if isinstance(message, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta if isinstance(meta, dict) else {}


def check_modern(message: dict[str, Any], headers: Mapping[bytes, bytes]) -> None:
    """Raise MethodError if the `_meta` or the headers of a request are invalid in 2026-07-28."""
    meta = meta_of(message)
    version, capabilities = meta.get(f"{META}protocolVersion"), meta.get(f"{META}clientCapabilities")
    header = text_of(headers, mcp.VERSION_HEADER)
    if header and version is not None and version != header:
        raise _mismatch(mcp.VERSION_HEADER, header, version)
    requested = version if version is not None else header
    if requested and requested != MODERN_VERSION:
        data = {"supported": SUPPORTED, "requested": requested}
        raise MethodError(mcp.UNSUPPORTED_VERSION, f"protocol version {str(requested)[:40]!r} is not supported", data)
    if version is None or not isinstance(capabilities, dict):
        missing = "protocolVersion" if version is None else "clientCapabilities"
        raise MethodError(INVALID_PARAMS, f"_meta lacks {META}{missing}")
    if not header:
        raise MethodError(mcp.HEADER_MISMATCH, f"the header {mcp.VERSION_HEADER} is missing")
    for name, value in mcp.modern_headers(message["method"], message.get("params") or {}).items():
        header_value = text_of(headers, name)
        if header_value is None:
            raise MethodError(mcp.HEADER_MISMATCH, f"the header {name} is missing")
        if decode_header(header_value) != decode_header(value):
            raise _mismatch(name, header_value, decode_header(value))


def check_parameter_headers(
    places: Mapping[mcp.Place, str], arguments: Mapping[str, Any], headers: Mapping[bytes, bytes]
) -> None:
    """Raise MethodError if a header does not repeat the argument at its place."""
    values = mcp.parameter_values(places, arguments)
    for header in places.values():
        header_value, value = text_of(headers, header), values.get(header)
        if header_value is None and value is None:
            continue
        if header_value is None:
            raise MethodError(mcp.HEADER_MISMATCH, f"the header {header} is missing")
        if value is None or not _equal(decode_header(header_value), decode_header(value)):
            raise _mismatch(header, "its value", "the argument")


def _equal(header_value: str | None, value: str | None) -> bool:
    if header_value == value:
        return True
    try:
        return float(header_value or "") == float(value or "")
    except ValueError:
        return False


def _mismatch(name: str, header_value: Any, value: Any) -> MethodError:
    return MethodError(
        mcp.HEADER_MISMATCH,
        f"the header {name} ({str(header_value)[:60]!r}) does not match the body ({str(value)[:60]!r})",
    )


def text_of(headers: Mapping[bytes, bytes], name: str) -> str | None:
    """Return a header's value, or None. Names in `headers` are in lower case."""
    value = headers.get(name.lower().encode())
    return None if value is None else value.decode("latin-1").strip()


def decode_header(value: str) -> str | None:
    """Return a header's value with its Base64 wrapping decoded, or None if that fails. See mcp.header_value."""
    if not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode("utf-8", "surrogatepass")
    except (binascii.Error, UnicodeDecodeError):
        return None


def http_status(code: int) -> int:
    """Return the HTTP status of an error of a modern server (26: basic/index, Error Codes)."""
    if code == METHOD_NOT_FOUND:
        return 404
    return 400 if code in (-32700, -32600, mcp.HEADER_MISMATCH, -32021, mcp.UNSUPPORTED_VERSION) else 200


# Conversion -------------------------------------------------------------------------------------------------------


def for_modern(method: str, params: Mapping[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    """Convert the response of a server with sessions for a modern client. Large parts stay encoded."""
    if "error" in response:
        error, code = fields(response["error"]), error_code(response)
        if code == RESOURCE_NOT_FOUND and method == "resources/read":
            error = {**error, "code": INVALID_PARAMS, "data": {**_data(error), "uri": params.get("uri")}}
        elif code == mcp.URL_ELICITATION_REQUIRED:
            error = {**error, "code": INTERNAL_ERROR}
        return {**response, "error": error}
    extra = UNCACHED if method in CACHEABLE else {}
    return {**response, "result": {"resultType": "complete", **extra, **fields(response["result"])}}


def _data(error: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of an error. Empty if it is large."""
    data = error.get("data")
    return {} if is_large(data) else fields(data)


def error_code(response: Mapping[str, Any]) -> int:
    """Return the code of an error response, or 0 for a result."""
    code = small(fields(response.get("error")).get("code"))
    return code if isinstance(code, int) else 0


def for_handshake(method: str, response: dict[str, Any]) -> dict[str, Any]:
    """Convert the response of a modern server for a client with a session. Large parts stay encoded."""
    if "error" in response:
        error = fields(response["error"])
        if method == "resources/read" and error_code(response) == INVALID_PARAMS and "uri" in _data(error):
            return {**response, "error": {**error, "code": RESOURCE_NOT_FOUND}}
        return response
    result = fields(response["result"])
    converted = {key: value for key, value in result.items() if key not in ("resultType", "ttlMs", "cacheScope")}
    if "structuredContent" in converted and not is_object(converted["structuredContent"]):
        del converted["structuredContent"]  # before 2026-07-28 it must be an object. The text has the same content
    if is_object(converted.get("_meta")):
        converted["_meta"] = {
            key: value for key, value in fields(converted["_meta"]).items() if not key.startswith(META)
        }
        if not converted["_meta"]:
            del converted["_meta"]
    return {**response, "result": converted}


def without_connection_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `_meta` of a request without the keys that each connection sets itself."""
    return {key: value for key, value in meta.items() if not key.startswith(META)}


def passes_log_level(level: Any, message_level: str) -> bool:
    """Return whether a log message of `message_level` is at least at the requested `level`.

    Without a requested level, no log message is.
    """
    return (
        level in LOG_LEVELS
        and message_level in LOG_LEVELS
        and LOG_LEVELS.index(message_level) >= LOG_LEVELS.index(level)
    )


def restate(answer: Message, request: Request) -> Answer:
    """Convert the answer of a member with sessions: set the client's id, and use the client's era."""
    if not request.client.is_modern:
        return Answer(encode(answer.response_to(request.id)))
    response = for_modern(request.method, request.params, answer.opened_response_to(request.id))
    code = error_code(response)
    return Answer(encode(response), http_status(code) if code else 200)

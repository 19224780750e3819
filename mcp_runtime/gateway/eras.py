"""Between the two eras of MCP: what is checked of a modern message, and results restated for the other side.

Handshake versions (to 2025-11-25) have sessions; modern ones (from 2026-07-28) say everything in each request.
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

RESOURCE_NOT_FOUND = -32002  # until 2025-11-25
URL_ELICITATION_REQUIRED = -32042  # in 2025-11-25 alone
# Methods that only sessions have.
REMOVED = frozenset({
    "initialize",
    "ping",
    "logging/setLevel",
    "resources/subscribe",
    "resources/unsubscribe",
    "notifications/initialized",
    "notifications/roots/list_changed",
})  # fmt: skip
ADDED = frozenset({"server/discover"})  # that sessions do not have
CACHEABLE = frozenset({
    "server/discover",
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
})  # fmt: skip
# How a result is told to be kept, when nobody knows how long it is good.
UNCACHED: Mapping[str, Any] = {"ttlMs": 0, "cacheScope": "private"}
LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


def is_modern(message: Any, version_header: str) -> bool:
    """Whether the message is to be served by the modern rules; a version that nobody knows is one of theirs."""
    meta = meta_of(message)
    if f"{META}protocolVersion" in meta:
        return True
    return bool(version_header) and version_header not in HANDSHAKE_VERSIONS


def meta_of(message: Any) -> dict[str, Any]:
    params = message.get("params") if isinstance(message, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta if isinstance(meta, dict) else {}


def check_modern(message: dict[str, Any], headers: Mapping[bytes, bytes]) -> None:
    """Raises MethodError for a request whose `_meta` or headers are not what 2026-07-28 demands."""
    meta = meta_of(message)
    version, capabilities = meta.get(f"{META}protocolVersion"), meta.get(f"{META}clientCapabilities")
    header = text_of(headers, mcp.VERSION_HEADER)
    if header and version is not None and version != header:
        raise _mismatch(mcp.VERSION_HEADER, header, version)
    asked = version if version is not None else header
    if asked and asked != MODERN_VERSION:
        data = {"supported": SUPPORTED, "requested": asked}
        raise MethodError(mcp.UNSUPPORTED_VERSION, f"protocol version {str(asked)[:40]!r} is not supported", data)
    if version is None or not isinstance(capabilities, dict):
        missing = "protocolVersion" if version is None else "clientCapabilities"
        raise MethodError(INVALID_PARAMS, f"_meta lacks {META}{missing}")
    if not header:
        raise MethodError(mcp.HEADER_MISMATCH, f"the header {mcp.VERSION_HEADER} is missing")
    for name, value in mcp.modern_headers(message["method"], message.get("params") or {}).items():
        told = text_of(headers, name)
        if told is None:
            raise MethodError(mcp.HEADER_MISMATCH, f"the header {name} is missing")
        if decoded(told) != decoded(value):
            raise _mismatch(name, told, decoded(value))


def check_parameter_headers(
    places: Mapping[mcp.Place, str], arguments: Mapping[str, Any], headers: Mapping[bytes, bytes]
) -> None:
    """Raises MethodError where a header does not repeat the argument at its place."""
    values = mcp.parameter_values(places, arguments)
    for header in places.values():
        told, value = text_of(headers, header), values.get(header)
        if told is None and value is None:
            continue
        if told is None:
            raise MethodError(mcp.HEADER_MISMATCH, f"the header {header} is missing")
        if value is None or not _equal(decoded(told), decoded(value)):
            raise _mismatch(header, "what it says", "the argument")


def _equal(told: str | None, value: str | None) -> bool:
    if told == value:
        return True
    try:
        return float(told or "") == float(value or "")
    except ValueError:
        return False


def _mismatch(name: str, told: Any, value: Any) -> MethodError:
    return MethodError(
        mcp.HEADER_MISMATCH,
        f"the header {name} ({str(told)[:60]!r}) does not match the body ({str(value)[:60]!r})",
    )


def text_of(headers: Mapping[bytes, bytes], name: str) -> str | None:
    """A header's value; None without it. Names in `headers` are in small letters."""
    value = headers.get(name.lower().encode())
    return None if value is None else value.decode("latin-1").strip()


def decoded(value: str) -> str | None:
    """A header's value without its Base64 wrapping; None for one that cannot be read. See protocol.header_value."""
    if not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode("utf-8", "surrogatepass")
    except (binascii.Error, UnicodeDecodeError):
        return None


def http_status(code: int) -> int:
    """The status that a modern server answers an error with (26: basic/index, Error Codes)."""
    if code == METHOD_NOT_FOUND:
        return 404
    return 400 if code in (-32700, -32600, mcp.HEADER_MISMATCH, -32021, mcp.UNSUPPORTED_VERSION) else 200


# Restating --------------------------------------------------------------------------------------------------------


def for_modern(method: str, params: Mapping[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    """A response of a server with sessions, as a modern client expects it. It is not built of large parts."""
    if "error" in response:
        error, code = fields(response["error"]), error_code(response)
        if code == RESOURCE_NOT_FOUND and method == "resources/read":
            error = {**error, "code": INVALID_PARAMS, "data": {**_data(error), "uri": params.get("uri")}}
        elif code == URL_ELICITATION_REQUIRED:
            error = {**error, "code": INTERNAL_ERROR}
        return {**response, "error": error}
    extra = UNCACHED if method in CACHEABLE else {}
    return {**response, "result": {"resultType": "complete", **extra, **fields(response["result"])}}


def _data(error: Mapping[str, Any]) -> dict[str, Any]:
    """What the error says beside its text; empty for what nobody would write there."""
    data = error.get("data")
    return {} if is_large(data) else fields(data)


def error_code(response: Mapping[str, Any]) -> int:
    """The code of an error response; 0 for another."""
    code = small(fields(response.get("error")).get("code"))
    return code if isinstance(code, int) else 0


def for_handshake(method: str, response: dict[str, Any]) -> dict[str, Any]:
    """A modern server's response, as a client with a session expects it. It is not built of large parts."""
    if "error" in response:
        error = fields(response["error"])
        if method == "resources/read" and error_code(response) == INVALID_PARAMS and "uri" in _data(error):
            return {**response, "error": {**error, "code": RESOURCE_NOT_FOUND}}
        return response
    result = fields(response["result"])
    kept = {key: value for key, value in result.items() if key not in ("resultType", "ttlMs", "cacheScope")}
    if "structuredContent" in kept and not is_object(kept["structuredContent"]):
        del kept["structuredContent"]  # any JSON only since 2026-07-28; the text says the same
    if is_object(kept.get("_meta")):
        kept["_meta"] = {key: value for key, value in fields(kept["_meta"]).items() if not key.startswith(META)}
        if not kept["_meta"]:
            del kept["_meta"]
    return {**response, "result": kept}


def without_hop(meta: Mapping[str, Any]) -> dict[str, Any]:
    """`_meta` of a request without what is said anew on each way."""
    return {key: value for key, value in meta.items() if not key.startswith(META)}


def wants_log(level: Any, said: str) -> bool:
    """Whether a log message of level `said` reaches the one that was asked for; none where no level was."""
    return level in LOG_LEVELS and said in LOG_LEVELS and LOG_LEVELS.index(said) >= LOG_LEVELS.index(level)


def restated(answer: Message, request: Request) -> Answer:
    """The answer of a member with sessions, under its client's id and in its client's era."""
    if not request.client.is_modern:
        return Answer(encode(answer.response_to(request.id)))
    response = for_modern(request.method, request.params, answer.opened_response_to(request.id))
    code = error_code(response)
    return Answer(encode(response), http_status(code) if code else 200)

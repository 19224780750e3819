"""Check the params of requests, and the spelling of their keys, so that members cannot read them differently."""

from __future__ import annotations

from mcp_runtime.gateway.messages import Request
from mcp_runtime.gateway.upstream import suspended
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import MethodError
from mcp_runtime.protocol.jsonrpc import INVALID_PARAMS, object_of

PLAIN = {"name", "arguments"}  # params that have nothing to do with tasks
USUAL_PARAMS = {*PLAIN, "_meta"}
SUBSCRIBING = ("resources/subscribe", "resources/unsubscribe")
# The required string parameter of each method, which names what the request is about.
NAMED_BY = {**mcp.NAMED_BY, **dict.fromkeys(SUBSCRIBING, "uri")}
# The keys that this gateway checks, by their folded spelling, which lenient members may accept.
CHECKED_KEYS = {method: {mcp.folded(key): key for key in suspended.INPUT_KEYS} for method in suspended.METHODS}
for _method in ("tools/call", "prompts/get"):
    CHECKED_KEYS[_method] |= {"name": "name", "arguments": "arguments"}
CHECKED_KEYS["resources/read"] |= {"uri": "uri"}
WITH_ARGUMENTS = ("tools/call", "prompts/get")
REFERENCES = {"ref/prompt": "name", "ref/resource": "uri"}


def require_params(request: Request) -> None:
    """Raise MethodError for missing or invalid params, and for keys in another spelling."""
    params = request.params
    if (key := NAMED_BY.get(request.method)) is not None and not isinstance(params.get(key), str):
        raise MethodError(INVALID_PARAMS, f"{request.method}: {key} must be a string")
    if request.method in WITH_ARGUMENTS and not isinstance(params.get("arguments"), dict | None):
        raise MethodError(INVALID_PARAMS, f"{request.method}: arguments must be an object")
    if request.method == "completion/complete":
        ref = object_of(params.get("ref"))
        key = REFERENCES.get(str(ref.get("type")))
        if key is None:
            raise MethodError(INVALID_PARAMS, f"completion/complete: ref.type must be one of {', '.join(REFERENCES)}")
        if not isinstance(ref.get(key), str):
            raise MethodError(INVALID_PARAMS, f"completion/complete: ref.{key} must be a string")
    _require_spelling(request)


def _require_spelling(request: Request) -> None:
    """Raise MethodError for keys that members may confuse with the checked keys."""
    checked = CHECKED_KEYS.get(request.method)
    if checked is None or not (unusual := request.params.keys() - USUAL_PARAMS):
        return
    for key in unusual:
        name = checked.get(mcp.folded(key), key)
        if name != key:
            raise MethodError(INVALID_PARAMS, f"the key {name} must be spelled exactly so and occur once")
        if key in suspended.INPUT_KEYS and request.client.session is not None:
            # A member without sessions would accept it, but the gateway has not sealed it for this client.
            raise MethodError(INVALID_PARAMS, f"{key} does not exist in sessions: a session gets questions on a stream")

"""What requests must have, and how their keys are written: nobody behind the gateway may guess at it."""

from __future__ import annotations

from mcp_runtime.gateway.messages import Request
from mcp_runtime.gateway.upstream import suspended
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import MethodError
from mcp_runtime.protocol.jsonrpc import INVALID_PARAMS, object_of

PLAIN = {"name", "arguments"}  # which say nothing of tasks
USUAL_PARAMS = {*PLAIN, "_meta"}
SUBSCRIBING = ("resources/subscribe", "resources/unsubscribe")
# What each request is about: the parameter that must be there, a string.
NAMED_BY = {**mcp.NAMED_BY, **dict.fromkeys(SUBSCRIBING, "uri")}
# Keys that are checked here, in any way that members may read them.
CHECKED_KEYS = {method: {mcp.folded(key): key for key in suspended.INPUT_KEYS} for method in suspended.METHODS}
CHECKED_KEYS["tools/call"] |= {"name": "name", "arguments": "arguments"}
WITH_ARGUMENTS = ("tools/call", "prompts/get")
REFERENCES = {"ref/prompt": "name", "ref/resource": "uri"}


def require_params(request: Request) -> None:
    """Raises MethodError for params that lack what the request is about, and for keys in another spelling."""
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
    """Raises MethodError for keys that members may read in the place of those that are checked here."""
    checked = CHECKED_KEYS.get(request.method)
    if checked is None or not (unusual := request.params.keys() - USUAL_PARAMS):
        return
    for key in unusual:
        name = checked.get(mcp.folded(key), key)
        if name != key:
            raise MethodError(INVALID_PARAMS, f"{name} is written exactly so, and once")
        if key in suspended.INPUT_KEYS and request.client.session is not None:
            # To a member without sessions it would be a state that nobody here has sealed for the client.
            raise MethodError(INVALID_PARAMS, f"a session has no {key}: it is asked on a stream")

"""Requests that get no answer, in words for agents: what happened, in which member, and whether it may have run.

Most kinds, and what is said of each, are those of `protocol.errors.ErrorKind`. Two kinds are of the gateway alone:
`cancelled`, which is a status in records, and `forbidden`, for calls that are refused and have no record.
"""

from __future__ import annotations

from typing import Any

from mcp_runtime.gateway.messages import Request
from mcp_runtime.protocol.errors import (
    CallFailedError,
    ClientError,
    ErrorKind,
    MethodError,
    RemoteError,
    RequestTimeoutError,
)
from mcp_runtime.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS


def unavailable(member: str, reason: str) -> CallFailedError:
    """The member never got the request."""
    kind = ErrorKind.UNAVAILABLE
    return CallFailedError(kind, f"member {member!r} is unavailable: {reason}{kind.remark}", member)


def forbidden(caller: str, member: str, tool: str) -> MethodError:
    """The caller may not call the member's tool. Nothing was sent."""
    text = f"{caller} may not call tool {tool[:100]!r} of member {member!r}"
    return MethodError(INVALID_PARAMS, text, {"member": member, "kind": "forbidden"})


def of_member(error: ClientError, member: str, request: Request) -> MethodError:
    """A member's failure, for an agent to act on: its own JSON-RPC errors as they are, all else with its name."""
    error.was_sent = request.is_sent
    if not error.was_sent:
        return unavailable(member, str(error))
    if isinstance(error, RemoteError):
        return MethodError(error.code, error.message, error.data)
    return CallFailedError(error.kind, f"{request.deadline.about}: {error.sentence}", member)


def out_of_time(request: Request) -> MethodError:
    """The deadline passed, or the client cancelled: what it is told, first of all whether the member has the call."""
    deadline = request.deadline
    about = deadline.about or request.method
    if deadline.is_cancelled:
        return _cancelled(request, about)
    if request.is_sent:
        late = RequestTimeoutError(deadline.seconds)
        return CallFailedError(late.kind, f"{about}: {late.sentence}", deadline.member)
    if deadline.member:
        return unavailable(deadline.member, request.unsent_reason)
    text = f"{request.method}: the gateway did not get to it within {deadline.seconds:g} s; nothing was sent"
    return CallFailedError(ErrorKind.UNAVAILABLE, text)


def _cancelled(request: Request, about: str) -> MethodError:
    data: dict[str, Any] = {"kind": "cancelled"}
    if request.deadline.member:
        data["member"] = request.deadline.member
    if request.is_sent:
        return MethodError(INTERNAL_ERROR, f"{about}: it was cancelled", data)
    return MethodError(INTERNAL_ERROR, f"{about}: it was cancelled before it was sent", data | {"sent": False})

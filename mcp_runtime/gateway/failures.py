"""Errors for requests that get no response. They say what happened, in which member, and whether it may have run.

Most kinds of errors and their texts come from `protocol.errors.ErrorKind`. The gateway alone has more kinds:
`cancelled`, which is a status in the call log, and for refused requests `forbidden`, `held`, `disabled` and `limit`.
An error that a member answers stays unchanged, so its `kind`, if it has one, is the member's own.
"""

from __future__ import annotations

from typing import Any

from mcp_runtime.gateway import sign_in_pages
from mcp_runtime.gateway.messages import Request
from mcp_runtime.protocol.errors import (
    CallFailedError,
    ClientError,
    ErrorKind,
    MethodError,
    RemoteError,
    RequestTimeoutError,
    SignInNeededError,
)
from mcp_runtime.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS


def unavailable(member: str, reason: str) -> CallFailedError:
    """The member did not get the request."""
    kind = ErrorKind.UNAVAILABLE
    return CallFailedError(kind, f"member {member!r} is unavailable: {reason}{kind.remark}", member)


def forbidden(caller: str, member: str, tool: str) -> MethodError:
    """The caller may not call the member's tool. Nothing was sent."""
    text = f"{caller} may not call tool {tool[:100]!r} of member {member!r}"
    return MethodError(INVALID_PARAMS, text, {"member": member, "kind": "forbidden"})


def held(member: str, refusal: str) -> MethodError:
    """A tool of the member waits for an approval. Nothing was sent."""
    return MethodError(INVALID_PARAMS, refusal, {"member": member, "kind": "held"})


def disabled(member: str, refusal: str) -> MethodError:
    """Somebody disabled a prompt, a resource or a template of the member. Nothing was sent."""
    return MethodError(INVALID_PARAMS, refusal, {"member": member, "kind": "disabled"})


def of_member(error: ClientError, member: str, request: Request) -> MethodError:
    """Return a member's failure for the agent. JSON-RPC errors of the member stay unchanged. Others get its name."""
    if isinstance(error, SignInNeededError):
        return sign_in_pages.asked(unavailable(member, str(error)), error, member, request)
    error.was_sent = request.is_sent
    if not error.was_sent:
        return unavailable(member, str(error))
    if isinstance(error, RemoteError):
        return MethodError(error.code, error.message, error.data)
    return CallFailedError(error.kind, f"{request.deadline.about}: {error.sentence}", member)


def deadline_error(request: Request) -> MethodError:
    """Return the error after a deadline or a cancellation. It says whether the member may have the request."""
    deadline = request.deadline
    about = deadline.about or request.method
    if deadline.is_cancelled:
        return _cancelled(request, about)
    if request.is_sent:
        timeout = RequestTimeoutError(deadline.seconds)
        return CallFailedError(timeout.kind, f"{about}: {timeout.sentence}", deadline.member)
    if deadline.member:
        return unavailable(deadline.member, request.unsent_reason)
    text = f"{request.method}: the gateway could not handle it within {deadline.seconds:g} s; nothing was sent"
    return CallFailedError(ErrorKind.UNAVAILABLE, text)


def _cancelled(request: Request, about: str) -> MethodError:
    data: dict[str, Any] = {"kind": "cancelled"}
    if request.deadline.member:
        data["member"] = request.deadline.member
    if request.is_sent:
        return MethodError(INTERNAL_ERROR, f"{about}: it was cancelled", data)
    return MethodError(INTERNAL_ERROR, f"{about}: it was cancelled before it was sent", data | {"sent": False})

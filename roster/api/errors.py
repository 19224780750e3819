"""Errors as HTTP responses. One table has the status and code of the hall's errors, and all have one form of body.

They are the problem details of RFC 9457, without a `type`: `title` and `status` are those of HTTP, and `detail` is a
sentence for people. `code` is a word for programs. Refused arguments add `path` and `reason`. Refused fields add
`faults` (sentences by field). A member that failed adds `kind`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.db import InterfaceError, OperationalError
from rest_framework import status
from rest_framework.exceptions import APIException, ValidationError
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response
from rest_framework.views import exception_handler as rest_framework_handler

from mcp_runtime.protocol.errors import (
    AccessEndedError,
    AccessError,
    AgentUnavailableError,
    AssertionRefusedError,
    ClientIdNeededError,
    ClientOverError,
    ExtraDisabledError,
    ExtraHeldError,
    GatewayUnavailableError,
    GrantOverError,
    IdempotencyConflictError,
    InvalidArgumentsError,
    InvalidEditError,
    LogUnavailableError,
    McpRuntimeError,
    MemberDisabledError,
    MemberFailedError,
    MemberInUseError,
    NotCancellableError,
    OAuthError,
    RegistryError,
    RequestRefusedError,
    SearchError,
    ServerAwayError,
    SourceError,
    TokenError,
    TokenRefusedError,
    ToolDisabledError,
    ToolHeldError,
    TooManyCallsError,
    UnknownAgentError,
    UnknownContractError,
    UnknownEditError,
    UnknownExtraError,
    UnknownMemberError,
    UnknownNodeError,
    UnknownProposalError,
    UnknownSecretError,
    UnknownServerError,
    UnknownToolError,
    UnknownToolSetError,
)
from mcp_runtime.rows.database import damage
from roster.database import AWAY, DAMAGED

logger = logging.getLogger("guildhall.web")

MEDIA_TYPE = "application/problem+json"  # RFC 9457, section 3
# A class that is not listed gets the answer of its nearest base class.
ANSWERS: dict[type[McpRuntimeError], tuple[int, str]] = {
    UnknownMemberError: (status.HTTP_404_NOT_FOUND, "unknown_member"),
    UnknownProposalError: (status.HTTP_404_NOT_FOUND, "unknown_proposal"),
    UnknownToolError: (status.HTTP_404_NOT_FOUND, "unknown_tool"),
    InvalidArgumentsError: (status.HTTP_400_BAD_REQUEST, "invalid_arguments"),
    SourceError: (status.HTTP_400_BAD_REQUEST, "unusable_source"),
    InvalidEditError: (status.HTTP_400_BAD_REQUEST, "invalid_edit"),
    UnknownEditError: (status.HTTP_404_NOT_FOUND, "unknown_edit"),
    RegistryError: (status.HTTP_502_BAD_GATEWAY, "registry_error"),
    OAuthError: (status.HTTP_502_BAD_GATEWAY, "sign_in_failed"),
    ServerAwayError: (status.HTTP_502_BAD_GATEWAY, "authorization_server_away"),
    GrantOverError: (status.HTTP_502_BAD_GATEWAY, "sign_in_over"),
    AssertionRefusedError: (status.HTTP_502_BAD_GATEWAY, "assertion_refused"),
    AccessEndedError: (status.HTTP_502_BAD_GATEWAY, "access_ended"),
    TokenRefusedError: (status.HTTP_502_BAD_GATEWAY, "token_refused"),
    ClientOverError: (status.HTTP_502_BAD_GATEWAY, "client_id_over"),
    ClientIdNeededError: (status.HTTP_409_CONFLICT, "client_id_needed"),
    UnknownServerError: (status.HTTP_404_NOT_FOUND, "unknown_server"),
    MemberDisabledError: (status.HTTP_409_CONFLICT, "member_disabled"),
    ToolDisabledError: (status.HTTP_409_CONFLICT, "tool_disabled"),
    UnknownContractError: (status.HTTP_404_NOT_FOUND, "unknown_contract"),
    ToolHeldError: (status.HTTP_409_CONFLICT, "tool_held"),
    UnknownExtraError: (status.HTTP_404_NOT_FOUND, "not_listed"),
    ExtraDisabledError: (status.HTTP_409_CONFLICT, "disabled"),
    ExtraHeldError: (status.HTTP_409_CONFLICT, "held"),
    SearchError: (status.HTTP_400_BAD_REQUEST, "search_failed"),
    NotCancellableError: (status.HTTP_409_CONFLICT, "not_cancellable"),
    MemberInUseError: (status.HTTP_409_CONFLICT, "member_in_use"),
    UnknownAgentError: (status.HTTP_404_NOT_FOUND, "unknown_agent"),
    UnknownToolSetError: (status.HTTP_404_NOT_FOUND, "unknown_tool_set"),
    UnknownSecretError: (status.HTTP_404_NOT_FOUND, "unknown_secret"),
    UnknownNodeError: (status.HTTP_404_NOT_FOUND, "unknown_node"),
    AgentUnavailableError: (status.HTTP_503_SERVICE_UNAVAILABLE, "agent_unavailable"),
    LogUnavailableError: (status.HTTP_503_SERVICE_UNAVAILABLE, "log_unavailable"),
    IdempotencyConflictError: (status.HTTP_422_UNPROCESSABLE_ENTITY, "idempotency_conflict"),
    MemberFailedError: (status.HTTP_502_BAD_GATEWAY, "member_failed"),
    GatewayUnavailableError: (status.HTTP_503_SERVICE_UNAVAILABLE, "gateway_unavailable"),
    TokenError: (status.HTTP_401_UNAUTHORIZED, "authentication_failed"),
    TooManyCallsError: (status.HTTP_429_TOO_MANY_REQUESTS, "too_many_calls"),
    AccessError: (status.HTTP_403_FORBIDDEN, "not_allowed"),
    RequestRefusedError: (status.HTTP_409_CONFLICT, "refused"),
    McpRuntimeError: (status.HTTP_503_SERVICE_UNAVAILABLE, "unavailable"),
}


class LengthRequired(APIException):
    status_code = status.HTTP_411_LENGTH_REQUIRED
    default_detail = "Send the body with a Content-Length: one in chunks would be taken for an empty one."
    default_code = "length_required"


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """The response to `error`. None for an error of the hall itself, which Django logs and answers with 500."""
    response = _response(error, context)
    renderer = getattr(context.get("request"), "accepted_renderer", None)
    if response is not None and (renderer is None or isinstance(renderer, JSONRenderer)):
        response.content_type = MEDIA_TYPE  # the OpenAPI document and its page can also be YAML and HTML
    return response


def _response(error: Exception, context: dict[str, Any]) -> Response | None:
    if isinstance(error, McpRuntimeError):
        response = problem(error)
        if isinstance(error, TooManyCallsError):
            response["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
        return response
    if isinstance(error, RequestDataTooBig):
        return _answer(status.HTTP_413_REQUEST_ENTITY_TOO_LARGE, "too_large", "The body of the request is too large.")
    if sentence := damage(error):
        logger.error("%s", sentence)
        return _answer(status.HTTP_503_SERVICE_UNAVAILABLE, "database_damaged", DAMAGED)
    if isinstance(error, OperationalError | InterfaceError):
        logger.error("the database did not answer: %s", error)
        return _answer(status.HTTP_503_SERVICE_UNAVAILABLE, "database_unavailable", AWAY)
    answer = rest_framework_handler(error, context)
    if answer is not None:
        answer.data = _body(error, answer.status_code, answer.data)
    return answer


def problem(error: McpRuntimeError, **members: Any) -> Response:
    """The response in JSON to an error of the hall. `members` are more members of its body."""
    response = _answer(*answer_to(error), str(error), {**_place(error), **members})
    response.content_type = MEDIA_TYPE
    return response


def answer_to(error: McpRuntimeError) -> tuple[int, str]:
    """The HTTP status and the code of `error`."""
    return next(ANSWERS[cls] for cls in type(error).__mro__ if cls in ANSWERS)


def _answer(http_status: int, code: str, detail: str, members: dict[str, Any] | None = None) -> Response:
    body = {**_details(http_status, code, detail), **(members or {})}
    return Response(body, status=http_status)


def _details(http_status: int, code: str, detail: str) -> dict[str, Any]:
    return {"title": HTTPStatus(http_status).phrase, "status": http_status, "detail": detail, "code": code}


def _place(error: McpRuntimeError) -> dict[str, str]:
    if isinstance(error, MemberFailedError):
        return {"kind": str(error.kind)}
    return {"path": error.path, "reason": error.reason} if isinstance(error, InvalidArgumentsError) else {}


def _sentences_of(detail: Any) -> Iterator[str]:
    """The faults of a field. Those of a value inside it begin with its place, such as `0: This field is required.`"""
    if isinstance(detail, dict):
        yield from (f"{key}: {text}" for key, part in detail.items() for text in _sentences_of(part))
    elif isinstance(detail, list):
        for number, part in enumerate(detail):
            is_item = isinstance(part, dict)  # of a list of objects. Good ones have no faults
            yield from (f"{number}: {text}" if is_item else text for text in _sentences_of(part))
    else:
        yield str(detail)


def _body(error: Exception, http_status: int, data: Any) -> dict[str, Any]:
    if isinstance(error, ValidationError):
        faults = {field: list(_sentences_of(detail)) for field, detail in data.items()}
        sentences = [f"{field}: {text}" for field, texts in faults.items() for text in texts]
        return {**_details(http_status, "invalid", " ".join(sentences)), "faults": faults}
    detail = data["detail"]
    return _details(http_status, detail.code, str(detail))

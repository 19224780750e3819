"""Errors as HTTP responses. One table has the status and code of the hall's errors, and all have one form of body.

In the body `error` is a sentence for people, and `code` a word for programs. Refused arguments add `path` and
`reason`. Refused fields add `faults` (sentences by field).
"""

from __future__ import annotations

import logging
import math
from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.db import InterfaceError, OperationalError
from rest_framework import status
from rest_framework.exceptions import APIException, ValidationError
from rest_framework.response import Response
from rest_framework.views import exception_handler as rest_framework_handler

from mcp_runtime.protocol.errors import (
    AccessError,
    AgentUnavailableError,
    IdempotencyConflictError,
    InvalidArgumentsError,
    LogUnavailableError,
    McpRuntimeError,
    MemberDisabledError,
    MemberInUseError,
    NotCancellableError,
    RegistryError,
    RequestRefusedError,
    SourceError,
    TokenError,
    ToolDisabledError,
    ToolHeldError,
    TooManyCallsError,
    UnknownAgentError,
    UnknownContractError,
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

# A class that is not listed gets the answer of its nearest base class.
ANSWERS: dict[type[McpRuntimeError], tuple[int, str]] = {
    UnknownMemberError: (status.HTTP_404_NOT_FOUND, "unknown_member"),
    UnknownProposalError: (status.HTTP_404_NOT_FOUND, "unknown_proposal"),
    UnknownToolError: (status.HTTP_404_NOT_FOUND, "unknown_tool"),
    InvalidArgumentsError: (status.HTTP_400_BAD_REQUEST, "invalid_arguments"),
    SourceError: (status.HTTP_400_BAD_REQUEST, "unusable_source"),
    RegistryError: (status.HTTP_502_BAD_GATEWAY, "registry_error"),
    UnknownServerError: (status.HTTP_404_NOT_FOUND, "unknown_server"),
    MemberDisabledError: (status.HTTP_409_CONFLICT, "member_disabled"),
    ToolDisabledError: (status.HTTP_409_CONFLICT, "tool_disabled"),
    UnknownContractError: (status.HTTP_404_NOT_FOUND, "unknown_contract"),
    ToolHeldError: (status.HTTP_409_CONFLICT, "tool_held"),
    NotCancellableError: (status.HTTP_409_CONFLICT, "not_cancellable"),
    MemberInUseError: (status.HTTP_409_CONFLICT, "member_in_use"),
    UnknownAgentError: (status.HTTP_404_NOT_FOUND, "unknown_agent"),
    UnknownToolSetError: (status.HTTP_404_NOT_FOUND, "unknown_tool_set"),
    UnknownSecretError: (status.HTTP_404_NOT_FOUND, "unknown_secret"),
    UnknownNodeError: (status.HTTP_404_NOT_FOUND, "unknown_node"),
    AgentUnavailableError: (status.HTTP_503_SERVICE_UNAVAILABLE, "agent_unavailable"),
    LogUnavailableError: (status.HTTP_503_SERVICE_UNAVAILABLE, "log_unavailable"),
    IdempotencyConflictError: (status.HTTP_422_UNPROCESSABLE_ENTITY, "idempotency_conflict"),
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
    if isinstance(error, McpRuntimeError):
        response = _answer(*answer_to(error), str(error), _place(error))
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
        answer.data = _body(error, answer.data)
    return answer


def answer_to(error: McpRuntimeError) -> tuple[int, str]:
    """The HTTP status and the code of `error`."""
    return next(ANSWERS[cls] for cls in type(error).__mro__ if cls in ANSWERS)


def _answer(http_status: int, code: str, sentence: str, place: dict[str, str] | None = None) -> Response:
    return Response({"error": sentence, "code": code, **(place or {})}, status=http_status)


def _place(error: McpRuntimeError) -> dict[str, str]:
    return {"path": error.path, "reason": error.reason} if isinstance(error, InvalidArgumentsError) else {}


def _body(error: Exception, data: Any) -> dict[str, Any]:
    if isinstance(error, ValidationError):
        faults = {field: [str(text) for text in texts] for field, texts in data.items()}
        sentences = [f"{field}: {text}" for field, texts in faults.items() for text in texts]
        return {"error": " ".join(sentences), "code": "invalid", "faults": faults}
    detail = data["detail"]
    return {"error": str(detail), "code": detail.code}

"""The exit codes of commands, by the kind of failure. docs/command-line.md describes them."""

from __future__ import annotations

from mcp_runtime.protocol import errors
from mcp_runtime.protocol.errors import ErrorKind

FAILURE = 1  # also the answer "no" of a command that asks
USAGE = 2
NO_HALL = 3
NOT_FOUND = 4
REFUSED = 5
FAILED_CALL = 6
NO_ANSWER = 7
UNAVAILABLE = 8
CANCELLED = 9
INTERRUPTED = 130

_NOT_FOUND = (
    *(errors.UnknownMemberError, errors.UnknownToolError, errors.UnknownSecretError, errors.UnknownProposalError),
    *(errors.UnknownToolSetError, errors.UnknownContractError, errors.UnknownExtraError, errors.UnknownEditError),
    *(errors.UnknownAgentError, errors.UnknownNodeError, errors.UnknownServerError),
)
_UNAVAILABLE = (
    *(errors.GatewayUnavailableError, errors.AgentUnavailableError, errors.LogUnavailableError),
    *(errors.RegistryError, errors.TooManyCallsError),
)
_OF_KINDS: dict[str, int] = {ErrorKind.TIMEOUT: NO_ANSWER, ErrorKind.UNAVAILABLE: UNAVAILABLE}


def of_kind(kind: str) -> int:
    """The exit code for a call, or a message to an agent, that failed with this error kind."""
    return _OF_KINDS.get(kind, FAILED_CALL)


def of_cause(error: BaseException | None) -> int:
    """The exit code for an error of the hall, which is the cause of a CommandError."""
    match error:
        case errors.MemberFailedError():
            return of_kind(str(error.kind))
        case errors.McpRuntimeError() if isinstance(error, _NOT_FOUND):
            return NOT_FOUND
        case errors.McpRuntimeError() if isinstance(error, _UNAVAILABLE):
            return UNAVAILABLE
        case errors.MigrationError():
            return NO_HALL
        case errors.RequestRefusedError() | errors.AccessError():
            return REFUSED
        case ValueError():  # an argument that is not what it should be, such as JSON
            return USAGE
    return FAILURE

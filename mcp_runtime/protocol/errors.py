"""Everything that can go wrong at run time, as one tree. Catch at the height you need.

McpRuntimeError
  ManifestError(path, reason)          guild-member.json cannot be used
  NoFreePortError(first, last)         nothing left in the range
  SecretError                          a header's secret is not where the manifest says
  UrlError                             the hall may not call that address
  LeaseError(holder)                   another runtime owns this hall
  AddressTakenError                    the gateway cannot listen where it should
  ProcessError
    SpawnError(reason)                 the command could not be started
    NotListeningError(seconds)         its port did not accept within the deadline
    StartTimeoutError(seconds)         no handshake within the deadline
    ExitedEarlyError(exit_code)        ended before the handshake was done
  ClientError
    TransportError                     the connection failed
      ConnectError                     refused, reset, or no connection in time
      RequestTimeoutError(seconds)     the total deadline of a request passed
      HttpStatusError(status)          an HTTP status that is no answer
      ForeignAnswerError               an answer to another request
      RequestCancelledError            somebody asked to stop waiting
    ProtocolError                      answered, but not valid JSON-RPC or MCP
    RemoteError(code, message, data)   a proper JSON-RPC error object
    ToolError(result)                  the tool itself failed: a result with isError
  MethodError(code, message, data)     what a method that we serve answers with instead of a result
  AccessError                          who asks may not come in
    TokenError                         a token that is unknown, expired or revoked
    NotAllowedError                    may come in, but not do this
    TooManyCallsError(retry_after)     more than the token may
  RequestRefusedError                  a wish or call the hall will not take
    UnknownMemberError  UnknownToolError  MemberDisabledError  ToolDisabledError
    InvalidArgumentsError(path, reason)
    IdempotencyConflictError  NotCancellableError
    MemberInUseError  UnknownSessionError  AgentUnavailableError
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

REDIRECTS = (301, 302, 303, 307, 308)


class McpRuntimeError(Exception):
    """Base of all of them. `str()` is a sentence for people."""


class ManifestError(McpRuntimeError):
    """guild-member.json cannot be used. `path` is the key's place in it ("args.1"), empty for the file as a whole.

    A manifest may have several faults: this is the first, and `faults` are all of them. The text tells them all.
    """

    def __init__(self, path: str, reason: str, others: Sequence[ManifestError] = ()) -> None:
        super().__init__("; ".join([f"{path}: {reason}" if path else reason, *map(str, others)]))
        self.path = path
        self.reason = reason
        self._others = tuple(others)

    @property
    def faults(self) -> tuple[ManifestError, ...]:
        return (self, *self._others)


class NoFreePortError(McpRuntimeError):
    """Every port of the range is taken (REQ-MCP-HTTP-7)."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__(
            f"no free port from {first} to {last}: all {last - first + 1} are taken. "
            "Stop some members, or widen GUILD_HALL_PORT_RANGE"
        )


class SecretError(McpRuntimeError):
    """A header's secret is not where the manifest says. Names the variable or file, never a value."""


class LeaseError(McpRuntimeError):
    """Another runtime owns this hall."""


class AddressTakenError(McpRuntimeError):
    """The gateway cannot listen where it should. The message says what to do."""


# Processes --------------------------------------------------------------------------------------------------------


def describe_exit(exit_code: int) -> str:
    """`exit code 3`, or `signal SIGKILL` for -9."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"signal {-exit_code}"


class ProcessError(McpRuntimeError):
    """A member's server process failed."""


class SpawnError(ProcessError):
    """The command could not be started (REQ-MCP-HTTP-40)."""


class NotListeningError(ProcessError):
    """The member's port accepted no connection in time."""

    REMEDY = "; if it only needs longer, set start_timeout in its manifest"

    def __init__(self, seconds: float) -> None:
        shown = round(seconds, None if seconds >= 5 else 1)  # a start budget has odd milliseconds
        super().__init__(f"nothing listened on its port within {shown:g} s of its start{self.REMEDY}")
        self.seconds = seconds


class StartTimeoutError(ProcessError):
    """The handshake was not done in time (REQ-MCP-HTTP-14, 20)."""

    def __init__(self, seconds: float, detail: str = "") -> None:
        super().__init__(
            f"did not complete the initialize handshake within {seconds:.3g} s" + (f" ({detail})" if detail else "")
        )
        self.seconds = seconds


class UrlError(McpRuntimeError):
    """The hall may not call this address: the manifest or a setting has to change before another try."""


class ExitedEarlyError(ProcessError):
    """The process ended before the handshake was done."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"ended with {describe_exit(exit_code)} before the handshake was done")
        self.exit_code = exit_code


# The JSON-RPC client ----------------------------------------------------------------------------------------------


class ClientError(McpRuntimeError):
    """A request to a member did not give a result. `was_sent`: the member may have read some of it, and acted on it."""

    was_sent = True


class TransportError(ClientError):
    """The connection to the member failed."""


class ConnectError(TransportError):
    """Refused (`is_refusal`: nobody listens), reset, or no connection in time (REQ-MCP-HTTP-41)."""

    def __init__(self, message: str, *, is_refusal: bool = False) -> None:
        super().__init__(message)
        self.is_refusal = is_refusal
        self.was_sent = not is_refusal


class RequestTimeoutError(TransportError):
    """The total deadline of a request passed (REQ-MCP-HTTP-28)."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no complete answer within {seconds:g} s")
        self.seconds = seconds


class HttpStatusError(TransportError):
    """An HTTP status that is no answer."""

    def __init__(self, status: int, excerpt: str = "") -> None:
        # Where a redirect leads nobody has judged, and what the hall sends may hold secrets.
        what = f"{status}, a redirect, which the hall does not follow" if status in REDIRECTS else str(status)
        super().__init__(f"answered with HTTP status {what}" + (f": {excerpt}" if excerpt else ""))
        self.status = status


class ForeignAnswerError(TransportError):
    """The member answered another request than the one that was sent there. Its own answer is not to be had."""

    def __init__(self) -> None:
        super().__init__("answered another request than this one; the call may have run")


class RequestCancelledError(TransportError):
    """The request was cancelled while it ran."""

    def __init__(self) -> None:
        super().__init__("the request was cancelled")


class ProtocolError(ClientError):
    """Answered, but not valid JSON-RPC or MCP (REQ-MCP-HTTP-42)."""


class RemoteError(ClientError):
    """A proper JSON-RPC error object (REQ-MCP-HTTP-29). `str()` says what its code means, where that is known."""

    MEANINGS = {
        -32700: "it could not read the message",
        -32600: "it takes the message for no request",
        -32601: "it has no such method",
        -32602: "it does not take these parameters, or has no such tool",
        -32603: "it failed inside",
        -32002: "it has no such resource",
        -32020: "headers and message contradict each other",
        -32021: "it needs a capability that was not offered",
        -32022: "it does not speak this version of MCP",
    }

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        meaning = self.MEANINGS.get(code)
        super().__init__(f"{message} (JSON-RPC error {code}{(meaning and f': {meaning}') or ''})")
        self.code = code
        self.message = message
        self.data = data


class ToolError(ClientError):
    """The tool itself failed: a result with `isError` (REQ-MCP-HTTP-29, 43). `result` is the whole result."""

    def __init__(self, message: str, result: dict[str, Any]) -> None:
        super().__init__(message)
        self.result = result


# The JSON-RPC server ----------------------------------------------------------------------------------------------


class MethodError(McpRuntimeError):
    """What a method that we serve answers with instead of a result: a JSON-RPC error object, told as it is."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


# Who may do what --------------------------------------------------------------------------------------------------


class AccessError(McpRuntimeError):
    """Who asks may not come in. The message says why, and what to do."""


class TokenError(AccessError):
    """A token that opens nothing: unknown, expired, revoked, or of a user who is not active."""


class NotAllowedError(AccessError):
    """Who asks may come in, but not do this. The message names what is missing."""


class TooManyCallsError(AccessError):
    """More calls than the token may make. `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


# What the hall will not take --------------------------------------------------------------------------------------


class RequestRefusedError(McpRuntimeError):
    """A wish or call the hall will not take. The message says to whom, why, and what to do."""


class UnknownMemberError(RequestRefusedError):
    """No member of that name is in the roster."""


class UnknownToolError(RequestRefusedError):
    """The member has no tool of that name."""


class MemberDisabledError(RequestRefusedError):
    """The member may not run at all."""


class ToolDisabledError(RequestRefusedError):
    """The tool is switched off."""


class InvalidArgumentsError(RequestRefusedError):
    """Arguments that do not fit the tool's input schema. `path` is their place ("items.0.name"), `reason` why.

    `misfits` are all places that are known not to fit, this one among them, each with its reason.
    """

    def __init__(
        self, message: str, path: str, reason: str, misfits: Sequence[tuple[tuple[str | int, ...], str]] = ()
    ) -> None:
        super().__init__(message)
        self.path = path
        self.reason = reason
        self.misfits = tuple(misfits) or (((), f"{path}: {reason}" if path else reason),)


class IdempotencyConflictError(RequestRefusedError):
    """The same Idempotency-Key came with another call."""


class NotCancellableError(RequestRefusedError):
    """The invocation is over, or nothing of the session is under way."""


class MemberInUseError(RequestRefusedError):
    """A session's message that waits or runs needs the member."""


class UnknownSessionError(RequestRefusedError):
    """There is no session of that name or id."""


class AgentUnavailableError(RequestRefusedError):
    """No agent can run here: the Agent SDK or a key for the model is missing. Says what to do."""

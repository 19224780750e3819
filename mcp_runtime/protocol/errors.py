"""All run-time errors, as one tree. Catch the class that is general enough for you.

A call that fails ends with an `ErrorKind`. All kinds are in one table here, and each ClientError has its kind. The
module is long because the tree is only useful as a whole: somebody who adds an error, or catches one, sees all others.

McpRuntimeError
  ManifestError(path, reason)          guild-member.json cannot be used
  NoFreePortError(first, last)         all ports of the range are taken
  SecretError                          the member cannot have a secret that its manifest names
    KeyFileError                       the keys that encrypt secrets cannot be used
  UrlError                             the hall may not call that address
  LeaseError(holder)                   another runtime owns this node
  SecretKeyError                       the other nodes of the hall have another secret key
  MigrationError                       the database is too old or too new for this version
  AddressTakenError                    the gateway cannot listen where it should
  ProcessError
    SpawnError(reason)                 the command could not be started
    InstallError(reason, tail)         its packages could not be installed
    NotListeningError(seconds)         its port did not accept within the deadline
    StartTimeoutError(seconds)         no handshake within the deadline
    ExitedEarlyError(exit_code)        ended before the handshake was complete
  ClientError
    TransportError                     the connection failed
      ConnectError                     refused, reset, or no connection in time
      RequestTimeoutError(seconds)     the total deadline of a request passed
      HttpStatusError(status)          an HTTP status that is not an answer
        ChallengeError(status)         401 or 403 with a challenge (WWW-Authenticate)
      ForeignAnswerError               an answer to another request
      RequestCancelledError            the request was cancelled
    ProtocolError                      an answer that is not valid JSON-RPC or MCP
    RemoteError(code, message, data)   a valid JSON-RPC error object
    ToolError(result)                  the tool itself failed: a result with isError
    SignInNeededError(scopes)          a person must sign in at the member's authorization server
  MethodError(code, message, data)     the error with which a method of ours answers
    CallFailedError(kind, message)     the member gave no answer to the client's request
      InputNeededError                 the client is asked to open a page first
      PageNeededError                  the same, for a client of 2025-11-25
  MemberFailedError(kind, message)     a member gave no result to a person's request
  GatewayUnavailableError              the web or a command cannot reach a gateway
  AccessError                          no access
    TokenError                         a token that is unknown, expired or revoked
      ScopeError  IssuerAwayError      it lacks a scope; its issuer cannot be asked now
    NotAllowedError                    access, but not to this
    TooManyCallsError(retry_after)     more calls than the token may make
  SignedTokenError                     a signed token (JWT) that proves nothing
    OtherKeyError  TokenTimeError      no known key signed it; it is not valid now
  RequestRefusedError                  a request or call that the hall does not accept
    UnknownMemberError  UnknownToolError  UnknownSecretError  UnknownProposalError  UnknownToolSetError
    MemberDisabledError  ToolDisabledError
    ToolHeldError(member, tool, reason)  UnknownContractError
    UnknownExtraError  ExtraDisabledError  ExtraHeldError
    InvalidArgumentsError(path, reason)
    SourceError(place, reason)         a text cannot become a member
    InvalidEditError(error)            an edit would make a manifest invalid
    UnknownEditError
    ProviderError                      the provider of single sign-on gives no usable answer
      IdTokenError  ClockError         its ID token proves nothing, or its times cannot be
    OAuthError                         a sign-in at a member's authorization server did not succeed
      ServerAwayError                  it cannot be asked now
      GrantOverError                   it accepts the hall's tokens no more
        ClientOverError                it does not know the hall any more
      TokenRefusedError                its token endpoint refused with an error of OAuth
      AssertionRefusedError            it accepts no statement of the issuer that vouches for the hall or a person
        AccessEndedError               who was asked for one, or to accept it, has decided against it
      ClientIdNeededError              the hall has no client id there
    RegistryError                      the registry of servers gives no usable answer
      UnknownServerError               it has no such server
    IdempotencyConflictError  NotCancellableError  SearchError
    MemberInUseError  UnknownAgentError  UnknownNodeError  AgentUnavailableError  LogUnavailableError
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import EnumType, StrEnum
from typing import Any, ClassVar

REDIRECTS = (301, 302, 303, 307, 308)


class McpRuntimeError(Exception):
    """Base class of all these errors. `str()` is a sentence for people."""


class ManifestError(McpRuntimeError):
    """guild-member.json cannot be used. `path` is the key's place in it ("args.1"), empty for the whole file.

    It is empty too if a key has two places, because no new value replaces both.

    A manifest may have several faults. This is the first one, and `faults` are all of them. The text lists them all.
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
    """The member cannot have a secret that its manifest names. The message names the place, never a value."""


class KeyFileError(SecretError):
    """The file with the keys that encrypt secrets is missing, or lacks a key. The message says what to do."""


class LeaseError(McpRuntimeError):
    """Another runtime owns this node. With SQLite the hall has only one."""


class SecretKeyError(McpRuntimeError):
    """This machine has another secret key than the other nodes of the hall. The message says what to do."""


class MigrationError(McpRuntimeError):
    """The database is too old or too new for this version of Guild Hall. The message says what to do."""


class AddressTakenError(McpRuntimeError):
    """The gateway cannot listen at its address. The message says what to do."""


# Processes --------------------------------------------------------------------------------------------------------


def describe_exit(exit_code: int) -> str:
    """`exit code 3`, or `signal SIGKILL` for -9."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"signal {-exit_code}"


def rounded(seconds: float) -> str:
    """Seconds for people: `5`, `4.9`, `0.25`. A deadline has odd milliseconds, which mean nothing to them."""
    return f"{round(seconds, 1 if seconds >= 1 else 2):g}"


class ProcessError(McpRuntimeError):
    """A member's server process failed."""


class SpawnError(ProcessError):
    """The command could not be started (REQ-MCP-HTTP-40)."""


class InstallError(ProcessError):
    """The packages of the member could not be installed. `tail` has the last lines of the installer's output."""

    WHAT = "its packages could not be installed"

    def __init__(self, reason: str, tail: str = "") -> None:
        super().__init__(f"{self.WHAT}: {reason}")
        self.tail = tail


class NotListeningError(ProcessError):
    """The member's port accepted no connection in time."""

    REMEDY = "; if it only needs longer, set start_timeout in its manifest"

    def __init__(self, seconds: float, other_ports: Sequence[int] = ()) -> None:
        elsewhere = f"; it listens on port {', '.join(map(str, other_ports))} instead" if other_ports else ""
        remedy = "" if other_ports else self.REMEDY
        super().__init__(f"nothing listened on its port within {rounded(seconds)} s of its start{elsewhere}{remedy}")
        self.seconds = seconds


class StartTimeoutError(ProcessError):
    """The handshake was not complete in time (REQ-MCP-HTTP-14, 20)."""

    def __init__(self, seconds: float, detail: str = "") -> None:
        super().__init__(
            f"did not complete the initialize handshake within {rounded(seconds)} s"
            + (f" ({detail})" if detail else "")
        )
        self.seconds = seconds


class UrlError(McpRuntimeError):
    """The hall may not call this address. Another try needs a change of the manifest or of a setting."""


class ExitedEarlyError(ProcessError):
    """The process ended before the handshake was complete."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"ended with {describe_exit(exit_code)} before the handshake was done")
        self.exit_code = exit_code


# Calls that failed ------------------------------------------------------------------------------------------------


class _Choices(EnumType):
    """The attributes that models and forms need, as in Django's choices. This package does not import Django."""

    @property
    def values(cls) -> list[str]:
        return [value for value, _ in cls.choices]

    @property
    def choices(cls) -> list[tuple[str, str]]:
        return [(str(member), member.name.capitalize()) for member in list[Any](cls)]


class ErrorKind(StrEnum, metaclass=_Choices):
    """The kind of failure of a call. Rows, REST, the admin and agents take the kind and its texts from here.

    `remark` ends the sentence about the failure, if that sentence does not say whether the call ran. `hint` says what a
    person can do next.

    Add a new kind here. Either an error class below sets it, or the code that writes the row. CONTRIBUTING lists the
    other places.
    """

    remark: str
    hint: str

    TOOL = (  # a result with isError. The member is well
        "tool",
        "",
        "The tool ran and reported an error. Read its message, change the arguments, and call again.",
    )
    PROTOCOL = (  # a JSON-RPC error object, or an answer that is not MCP
        "protocol",
        "",
        "The member answered, but not with a result. Its log may say why. Its author has to fix it.",
    )
    TRANSPORT = (  # sent, then the connection failed or the member exited
        "transport",
        "",
        "The connection broke, or the member ended during the call, which may have run. See the member's status and "
        "its log before you call again.",
    )
    TIMEOUT = (  # sent, then the total deadline passed
        "timeout",
        "; it may have run",
        'No answer in time. The tool may still have done its work. Ask for less, or raise "timeout" in the '
        "member's manifest.",
    )
    UNAVAILABLE = (  # never sent: the member did not start, or took no connection
        "unavailable",
        "; the call was not sent",
        "The call was never sent, so it is safe to repeat. The member's page says why the member was not available.",
    )
    LOST = (  # the runtime ended while the call ran. It is never run again automatically
        "lost",
        "",
        "The runtime ended while this call ran. Nobody knows what the call did. Check before you call again.",
    )

    def __new__(cls, value: str, remark: str, hint: str) -> ErrorKind:
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.remark, kind.hint = remark, hint
        return kind

    @property
    def may_have_run(self) -> bool:
        """Whether the call may have run, so that it is not safe to repeat. A call that was not sent is UNAVAILABLE."""
        return self is not ErrorKind.UNAVAILABLE

    def data(self, member: str = "") -> dict[str, Any]:
        """The `data` of a JSON-RPC error for agents."""
        origin = {"member": member} if member else {}
        return origin | {"kind": str(self)} | ({} if self.may_have_run else {"sent": False})


# The JSON-RPC client ----------------------------------------------------------------------------------------------


class ClientError(McpRuntimeError):
    """A request to a member gave no result. If `was_sent`, the member may have read some of it and acted on it."""

    was_sent = True
    kind_once_sent: ClassVar[ErrorKind] = ErrorKind.TRANSPORT

    @property
    def kind(self) -> ErrorKind:
        """The kind of failure of the call."""
        return self.kind_once_sent if self.was_sent else ErrorKind.UNAVAILABLE

    @property
    def sentence(self) -> str:
        """What happened, and whether the call may have run."""
        return f"{self}{self.kind.remark}"


class TransportError(ClientError):
    """The connection to the member failed."""


class ConnectError(TransportError):
    """No connection in time, reset, or refused (`is_refusal`: nothing listens there) (REQ-MCP-HTTP-41)."""

    def __init__(self, message: str, *, is_refusal: bool = False) -> None:
        super().__init__(message)
        self.is_refusal = is_refusal
        self.was_sent = not is_refusal


class RequestTimeoutError(TransportError):
    """The total deadline of a request passed (REQ-MCP-HTTP-28)."""

    kind_once_sent = ErrorKind.TIMEOUT

    def __init__(self, seconds: float, sender: str = "") -> None:
        super().__init__(f"no complete answer{sender and f' from {sender}'} within {rounded(seconds)} s")
        self.seconds = seconds


class HttpStatusError(TransportError):
    """An HTTP status that is not an answer."""

    def __init__(self, status: int, excerpt: str = "") -> None:
        # The hall does not follow redirects. Nobody has checked the new address, and the request may contain secrets.
        description = f"{status}, a redirect, which the hall does not follow" if status in REDIRECTS else str(status)
        super().__init__(f"answered with HTTP status {description}" + (f": {excerpt}" if excerpt else ""))
        self.status = status


class ChallengeError(HttpStatusError):
    """HTTP 401 or 403 with a header `WWW-Authenticate`, which `challenge` has. The server did not serve the request."""

    def __init__(self, status: int, excerpt: str, challenge: str) -> None:
        super().__init__(status, excerpt)
        self.challenge = challenge


@dataclass(frozen=True)
class OwnSignIn:
    """What one user has to do, and nobody else: sign in at a member, or with `is_login` log in to the hall again.

    `page` is the address of the hall where the user does it.
    """

    member_id: int
    user_id: int
    page: str
    is_login: bool = False


class SignInText(StrEnum):
    """Parts of the messages of SignInNeededError. The admin gives other advice for each of them."""

    NEEDED = "needs a sign-in"  # at the authorization server of the member
    MORE_SCOPES = "needs a sign-in for more scopes"
    OWN = "each user signs in there alone. Sign in for yourself at"
    NO_ACCOUNT = "has no account for you now"  # from the login of the user at single sign-on
    NO_USER = "each user signs in there alone, and this request is of no user"


class SignInNeededError(ClientError):
    """A person must sign in at the member's authorization server. The message says where. Nothing was served.

    `own` is what the user of the request has to do, if only this user has to.
    """

    was_sent = False

    def __init__(self, message: str, scopes: Sequence[str] = (), own: OwnSignIn | None = None) -> None:
        super().__init__(message)
        self.scopes = tuple(scopes)
        self.own = own

    @property
    def page(self) -> str:
        """The address of the hall where the user of the request signs in. Empty if another person has to."""
        return self.own.page if self.own is not None else ""


class ForeignAnswerError(TransportError):
    """The member answered another request on this connection. The right answer cannot be read any more."""

    def __init__(self) -> None:
        super().__init__("answered another request than this one; the call may have run")


class RequestCancelledError(TransportError):
    """The request was cancelled while it ran. The call then ends as cancelled, without a kind of failure."""

    def __init__(self) -> None:
        super().__init__("the request was cancelled")


class ProtocolError(ClientError):
    """The answer is not valid JSON-RPC or MCP (REQ-MCP-HTTP-42)."""

    kind_once_sent = ErrorKind.PROTOCOL


class RemoteError(ClientError):
    """A valid JSON-RPC error object (REQ-MCP-HTTP-29). `str()` includes the meaning of a well-known code."""

    kind_once_sent = ErrorKind.PROTOCOL

    MEANINGS = {
        -32700: "parse error",
        -32600: "invalid request",
        -32601: "method not found",
        -32602: "invalid params, or no such tool",
        -32603: "internal error",
        -32002: "resource not found",
        -32020: "header mismatch: headers and message contradict each other",
        -32021: "missing client capability",
        -32022: "unsupported protocol version",
    }

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        meaning = self.MEANINGS.get(code)
        super().__init__(f"{message} (JSON-RPC error {code}{(meaning and f': {meaning}') or ''})")
        self.code = code
        self.message = message
        self.data = data


class ToolError(ClientError):
    """The tool itself failed: a result with `isError` (REQ-MCP-HTTP-29, 43). `result` is the whole result."""

    kind_once_sent = ErrorKind.TOOL

    def __init__(self, message: str, result: dict[str, Any]) -> None:
        super().__init__(message)
        self.result = result


# The JSON-RPC server ----------------------------------------------------------------------------------------------


class MethodError(McpRuntimeError):
    """The JSON-RPC error with which a method of ours answers. The client gets it unchanged."""

    kind = ErrorKind.PROTOCOL  # of the call, if the call is recorded

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class CallFailedError(MethodError):
    """The member gave no answer to an agent's request. The text says whether the request may have run."""

    def __init__(self, kind: ErrorKind, message: str, member: str = "") -> None:
        super().__init__(-32603, message, kind.data(member))
        self.kind = kind


class InputNeededError(CallFailedError):
    """The client is asked to do something, and may then send its request again. Nothing was sent to the member.

    `requests` are the `inputRequests` of the result (26: basic/patterns/mrtr). For the call log it is the failure.
    """

    def __init__(self, failure: CallFailedError, requests: dict[str, Any]) -> None:
        super().__init__(failure.kind, failure.message)
        self.data = failure.data
        self.requests = requests


class PageNeededError(CallFailedError):
    """The client is asked to open a page, and then to send its request again (25-11: client/elicitation).

    `elicitation` is what the client gets, with its id. The client is told when its user has done `awaited`.
    """

    def __init__(self, failure: CallFailedError, code: int, elicitation: dict[str, Any], awaited: OwnSignIn) -> None:
        super().__init__(failure.kind, failure.message)
        self.code = code
        self.data = {**failure.data, "elicitations": [elicitation]}
        self.elicitation_id: str = elicitation["elicitationId"]
        self.awaited = awaited


class MemberFailedError(McpRuntimeError):
    """A member gave no result to the request of a person, such as `prompts/get`. `code` is that of a JSON-RPC error.

    The text may be the member's.
    """

    def __init__(self, kind: ErrorKind, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code


class GatewayUnavailableError(McpRuntimeError):
    """The web or a command cannot reach a gateway, so it cannot ask members. The message says what to do."""


# Who may do what --------------------------------------------------------------------------------------------------


class AccessError(McpRuntimeError):
    """The principal has no access. The message says why, and what to do."""


class TokenError(AccessError):
    """A token that is unknown, expired or revoked, or whose user is not active."""


class ScopeError(TokenError):
    """A good token of an outside issuer that has none of the scopes that the hall knows."""


class IssuerAwayError(TokenError):
    """A token of an outside issuer that cannot be checked now, because the issuer cannot be asked."""


class SignedTokenError(McpRuntimeError):
    """A signed token (JWT) that proves nothing. `str()` says why, as a part of a sentence."""


class OtherKeyError(SignedTokenError):
    """It is signed with a key that its issuer does not publish, as far as that is known."""


class TokenTimeError(SignedTokenError):
    """It expired, or is not valid yet. `seconds_apart` is the time since it was made, or until then."""

    def __init__(self, message: str, seconds_apart: float = 0.0) -> None:
        super().__init__(message)
        self.seconds_apart = seconds_apart


class NotAllowedError(AccessError):
    """The principal may not do this. The message names the missing right."""


class TooManyCallsError(AccessError):
    """More calls than the token may make. `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


# Requests that the hall refuses -----------------------------------------------------------------------------------


class RequestRefusedError(McpRuntimeError):
    """The hall does not accept the request or call. The message says why, and what to do."""


class UnknownMemberError(RequestRefusedError):
    """No member of that name is in the roster."""


class UnknownSecretError(RequestRefusedError):
    """The hall has no secret with this name."""


class UnknownProposalError(RequestRefusedError):
    """Nobody proposes a member with this name, or it is approved already."""


class UnknownToolSetError(RequestRefusedError):
    """The hall has no tool set with this name."""


class UnknownToolError(RequestRefusedError):
    """The member has no tool of that name."""


class MemberDisabledError(RequestRefusedError):
    """The member is disabled, so it may not run."""


class ToolDisabledError(RequestRefusedError):
    """The tool is disabled."""


class ToolHeldError(RequestRefusedError):
    """The tool changed, and waits for an approval. `reason` has no text of the member, because agents read it."""

    def __init__(self, member: str, tool: str, reason: str) -> None:
        super().__init__(sentence_of_hold("tool", tool, member, reason))


def sentence_of_hold(kind: str, name: str, member: str, reason: str) -> str:
    """Say why a tool, a prompt or a resource template waits for an approval, and who can give it."""
    return (
        f"{kind} {name[:100]!r} of member {member!r} is held, because {reason or 'it changed'}. Nobody can use it "
        "until a user with the permission roster.approve_contract, or the operator, approves the change"
    )


def sentence_of_switch(kind: str, name: str, member: str) -> str:
    """Say that somebody disabled a prompt, a resource or a resource template."""
    return f"{kind} {name[:200]!r} of member {member!r} is disabled; an operator can enable it"


class UnknownExtraError(RequestRefusedError):
    """The member lists no such prompt, resource or resource template."""


class ExtraDisabledError(RequestRefusedError):
    """Somebody disabled the prompt, the resource or the resource template."""


class ExtraHeldError(RequestRefusedError):
    """The prompt or the resource template changed, and waits for an approval."""


class UnknownContractError(RequestRefusedError):
    """The member never listed that, or not in that version."""


class InvalidArgumentsError(RequestRefusedError):
    """Arguments that do not fit the tool's input schema. `path` is the place ("items.0.name"), `reason` the reason.

    `errors` are all known places that do not fit, each with its reason. They include this place.
    """

    def __init__(
        self, message: str, path: str, reason: str, errors: Sequence[tuple[tuple[str | int, ...], str]] = ()
    ) -> None:
        super().__init__(message)
        self.path = path
        self.reason = reason
        self.errors = tuple(errors) or (((), f"{path}: {reason}" if path else reason),)


class SourceError(RequestRefusedError):
    """A text from which somebody wants to add members cannot be used. It never quotes a value of the text.

    `place` is where in the text ("mcpServers.github.env.TOKEN", "line 3, column 7"), empty for the whole text.
    """

    def __init__(self, place: str, reason: str, others: Sequence[SourceError] = ()) -> None:
        super().__init__("; ".join([f"{place}: {reason}" if place else reason, *map(str, others)]))
        self.place = place
        self.reason = reason
        self.others = tuple(others)

    @property
    def faults(self) -> list[tuple[str, str]]:
        """All of it: each place with what is wrong there."""
        return [(self.place, self.reason), *(fault for other in self.others for fault in other.faults)]


class InvalidEditError(RequestRefusedError):
    """A manifest would not be valid with an edit. `faults` say which values cannot be used."""

    def __init__(self, error: ManifestError) -> None:
        super().__init__(str(error))
        self.faults = error.faults


class UnknownEditError(RequestRefusedError):
    """The hall has no edit with this number."""


class ProviderError(RequestRefusedError):
    """The provider of single sign-on did not answer as it must. `str()` tells the person who wants to log in."""


class IdTokenError(ProviderError):
    """The ID token does not prove who the person is."""


class ClockError(ProviderError):
    """The times of the ID token cannot be, so a clock is wrong."""


class OAuthError(RequestRefusedError):
    """A sign-in at a member's authorization server did not succeed. The message has no token, code or secret."""


class ServerAwayError(OAuthError):
    """The authorization server cannot be asked now. The same request may succeed later."""


class GrantOverError(OAuthError):
    """The authorization server accepts the hall's tokens no more. A person must sign in again."""


class ClientOverError(GrantOverError):
    """The authorization server does not know the hall any more, so that its client id is of no use for a sign-in."""


class TokenRefusedError(OAuthError):
    """A token endpoint refused with an error of OAuth. The same request will be refused again."""


class AssertionRefusedError(OAuthError):
    """A signed statement about the hall, a service or a person is not accepted, or there is none that can be used.

    A sign-in at the authorization server of the member would not help. With `needs_login`, a login of the user at
    single sign-on does.
    """

    def __init__(self, message: str, *, needs_login: bool = False) -> None:
        super().__init__(message)
        self.needs_login = needs_login


class AccessEndedError(AssertionRefusedError):
    """Who was asked for a statement, or asked to accept it, has decided against it. What the hall has ends too."""


class ClientIdNeededError(OAuthError):
    """The hall cannot register there, so a person must enter a client id."""


class RegistryError(RequestRefusedError):
    """The registry of MCP servers cannot be reached, or gives no usable answer."""


class UnknownServerError(RegistryError):
    """The registry has no such server, or no such version of it."""


class IdempotencyConflictError(RequestRefusedError):
    """The same Idempotency-Key came with another call."""


class NotCancellableError(RequestRefusedError):
    """The call has ended, or no message to the agent is in progress."""


class SearchError(RequestRefusedError):
    """A search takes too long, or the database cannot search texts."""


class MemberInUseError(RequestRefusedError):
    """A message to an agent needs the member. It waits or runs."""


class UnknownNodeError(RequestRefusedError):
    """No node of that name is among the rows."""


class LogUnavailableError(RequestRefusedError):
    """The log of the member is on another node, which does not send it. The message says why."""


class UnknownAgentError(RequestRefusedError):
    """There is no agent of that name or id."""


class AgentUnavailableError(RequestRefusedError):
    """No agent can run here, because the Agent SDK or a key for the model is missing. The message says what to do."""

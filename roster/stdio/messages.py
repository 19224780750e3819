"""Send a message of the agent to the gateway: its headers, repeated attempts, and the answer.

From 2026-07-28 on each message is independent, and headers repeat parts of it. Until 2025-11-25 it belongs to a
session, which is in `session`.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPResponse
from typing import Any, TypeVar

from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import ErrorKind, MethodError
from mcp_runtime.protocol.jsonrpc import INTERNAL_ERROR
from mcp_runtime.protocol.mcp import EventStream
from roster.stdio.upstream import (
    ANSWER_SECONDS,
    PATIENCE_SECONDS,
    REPEATS,
    AbortedError,
    AbortSwitch,
    AwayError,
    BrokenError,
    Patience,
    Upstream,
    read_whole,
)

LISTEN = "subscriptions/listen"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
# Methods to send again after a broken connection, because they have no effect, or the same one.
REPEATABLE = ("initialize", "server/discover", LISTEN, "logging/setLevel", "completion/complete", "tools/list")
REPEATABLE_KINDS = ("prompts/", "resources/")
KINDS = ("tools", "prompts", "resources")
# The pause before a broken stream is resumed, unless the stream gave one.
RETRY_SECONDS = 1.0
SHORTEST_RETRY = 0.1
LONGEST_RETRY = 60.0
MAX_ANSWER = 64_000_000  # bytes, because lists of a large roster are longer than any other message
MAX_TOOLS = 1_000  # with cached headers
MAX_PAGES = 100
READ_BYTES = 65_536
BASE_HEADERS = {
    "Content-Type": mcp.JSON,
    "Accept": f"{mcp.JSON}, {mcp.EVENT_STREAM}",
    "User-Agent": f"{mcp.HALL_NAME}-stdio/{mcp.HALL_VERSION}",
}
TOO_LARGE = f"the response is larger than {MAX_ANSWER:,} bytes"
REFUSED = "The hall refuses the token of this server; when it is started again it gets a new one. The hall says: "

Read = TypeVar("Read")


class SessionOverError(Exception):
    """The gateway has no such session any more."""


@dataclass(frozen=True)
class Session:
    """A session as the gateway created it."""

    id: str
    version: str
    changing: tuple[str, ...] = ()  # the kinds of lists with announced changes


@dataclass(eq=False)
class Post:
    """A message of the agent in progress. `body` is its encoded form."""

    message: dict[str, Any]
    body: bytes
    switch: AbortSwitch = field(default_factory=AbortSwitch)
    patience: Patience = field(default_factory=Patience)
    is_cancelled: bool = False
    is_acknowledged: bool = False  # of a `subscriptions/listen`
    may_have_run: bool = False  # a connection broke after it had been sent

    @property
    def method(self) -> str:
        return str(self.message.get("method", "an answer"))

    @property
    def is_notice(self) -> bool:
        """Whether it has no answer."""
        return "method" not in self.message or "id" not in self.message

    @property
    def is_modern(self) -> bool:
        return modern_version(self.message) is not None

    @property
    def is_repeatable(self) -> bool:
        return self.method in REPEATABLE or self.method.startswith(REPEATABLE_KINDS)


def modern_version(message: Mapping[str, Any]) -> Any:
    """The version in a modern message. None for a message of a session."""
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta.get(f"{mcp.META}protocolVersion") if isinstance(meta, dict) else None


def one_line(text: bytes) -> bytes:
    """Remove line breaks, which JSON has only between values."""
    return text.replace(b"\r", b" ").replace(b"\n", b" ").strip() if b"\n" in text or b"\r" in text else text


class Messages:
    """Send messages, from many threads. `write(line)` sends a line to the agent. `current()` returns its session."""

    def __init__(
        self, upstream: Upstream, write: Callable[[bytes], None], current: Callable[[], Session | None]
    ) -> None:
        self._upstream = upstream
        self._write = write
        self._current = current
        self._parameter_headers: dict[str, dict[mcp.Place, str]] = {}  # by the tool

    # To the gateway -----------------------------------------------------------------------------------------------

    def send(self, post: Post, session: Session | None, read: Callable[[HTTPResponse], Read], seconds: float) -> Read:
        """Send the message, and return the result of `read(response)`. Repeat it after a temporary refusal, or if safe.

        Raises MethodError, AbortedError and SessionOverError.
        """
        while True:
            began_at = time.monotonic()
            try:
                return self.send_once(post, session, read, seconds)
            except AwayError as error:
                if not self._upstream.wait(post.switch, post.patience, error.retry_after):
                    raise MethodError(INTERNAL_ERROR, str(error), _fate(post)) from error
            except BrokenError as error:
                post.may_have_run = True
                if post.is_acknowledged and time.monotonic() - began_at > PATIENCE_SECONDS:
                    post.patience = Patience()  # a subscription that was good for a while
                pause = post.patience.repeat() if post.is_repeatable else None
                if pause is None or not self._upstream.wait(post.switch, post.patience, pause):
                    raise MethodError(INTERNAL_ERROR, f"{error}; it may have run", _fate(post)) from error

    def send_once(
        self, post: Post, session: Session | None, read: Callable[[HTTPResponse], Read], seconds: float
    ) -> Read:
        if post.is_cancelled:
            raise AbortedError
        headers = self.headers(post.message, session)
        with self._upstream.open(post.switch, "POST", headers, post.body, seconds) as response:
            if response.status == 503 or (response.status == 429 and post.is_notice):
                refusal = _refusal(response.status, read_whole(response, MAX_ANSWER))
                raise AwayError(f"the hall takes no requests now: {refusal}", _retry_after(response))
            if response.status == 404 and session is not None:
                raise SessionOverError
            return read(response)

    def headers(self, message: Mapping[str, Any], session: Session | None) -> dict[str, str]:
        version = modern_version(message)
        if version is None:
            session_headers = {mcp.SESSION_HEADER: session.id, mcp.VERSION_HEADER: session.version} if session else {}
            return {**BASE_HEADERS, **session_headers}
        method, params = str(message.get("method")), message["params"]
        headers = {**BASE_HEADERS, mcp.VERSION_HEADER: mcp.header_value(str(version))}
        headers |= mcp.modern_headers(method, params)
        headers[mcp.METHOD_HEADER] = mcp.header_value(method)
        if method.startswith("tasks/") and isinstance(params.get("taskId"), str):
            headers[mcp.NAME_HEADER] = mcp.header_value(params["taskId"])
        places = self._parameter_headers.get(str(params.get("name"))) if method == "tools/call" else None
        arguments = params.get("arguments")
        if places and isinstance(arguments, dict):
            headers |= mcp.parameter_values(places, arguments)
        return headers

    # Answers ------------------------------------------------------------------------------------------------------

    def answer(self, post: Post, response: HTTPResponse) -> bytes | None:
        """Raises MethodError for a refusal, BrokenError."""
        kind = (response.getheader("content-type") or "").partition(";")[0].strip().lower()
        if kind == mcp.EVENT_STREAM and response.status == 200:
            return self._answer_of_stream(post, response)
        body = read_whole(response, MAX_ANSWER + 1)
        self._upstream.is_back()
        if len(body) > MAX_ANSWER:
            raise MethodError(INTERNAL_ERROR, TOO_LARGE)
        if response.status != 200:
            raise _refusal(response.status, body)
        return one_line(body)

    def _answer_of_stream(self, post: Post, response: HTTPResponse) -> bytes:
        """Resume a stream that ends before the answer, if it has event ids."""
        events = EventStream()
        answer = self.forward_events(post, events, response)
        failures = 0
        while answer is None:
            session, last_id = self._current(), events.last_event_id
            if post.is_modern or session is None or not last_id or failures > REPEATS:
                raise BrokenError("the hall ended the stream before the answer")
            seconds = RETRY_SECONDS if events.retry_ms is None else events.retry_ms / 1000
            post.switch.pause(max(min(seconds, LONGEST_RETRY), SHORTEST_RETRY))
            began_at = time.monotonic()
            answer = self._resume(post, session, events)
            is_progress = events.last_event_id != last_id or time.monotonic() - began_at > PATIENCE_SECONDS
            failures = 0 if is_progress else failures + 1
        return answer

    def _resume(self, post: Post, session: Session, events: EventStream) -> bytes | None:
        headers = {**self.headers({}, session), mcp.LAST_EVENT_HEADER: events.last_event_id}
        try:
            with self._upstream.open(post.switch, "GET", headers) as response:
                if response.status != 200:
                    raise _refusal(response.status, read_whole(response, MAX_ANSWER))
                events.go_on()
                return self.forward_events(post, events, response)
        except AwayError as error:  # only the rest is missing, because the request itself was sent
            raise BrokenError(str(error)) from error

    def forward_events(self, post: Post | None, events: EventStream, response: HTTPResponse) -> bytes | None:
        """Forward the messages of the stream to the agent. Returns the answer, if the stream is that of a request."""
        while chunk := response.read1(READ_BYTES):
            for data in events.feed(chunk):
                self._upstream.is_back()
                message = _decode(data)
                if post is not None and "method" not in message:
                    return one_line(data)
                if post is None or not self._is_acknowledged_again(post, message):
                    self._write(one_line(data))
            if events.buffered_bytes > MAX_ANSWER:
                raise MethodError(INTERNAL_ERROR, TOO_LARGE)
        return None

    def _is_acknowledged_again(self, post: Post, message: dict[str, Any]) -> bool:
        """Whether a subscription was opened again. If so, announce that lists may have changed."""
        if message.get("method") != ACKNOWLEDGED or not post.is_acknowledged:
            post.is_acknowledged = post.is_acknowledged or message.get("method") == ACKNOWLEDGED
            return False
        params = message.get("params", {})
        meta = {"_meta": params["_meta"]} if "_meta" in params else {}
        for kind in KINDS:
            if params.get("notifications", {}).get(f"{kind}ListChanged"):
                self._write(jsonrpc.encode(jsonrpc.notification(f"notifications/{kind}/list_changed", meta)))
        return True

    # Headers that repeat arguments --------------------------------------------------------------------------------

    def learns_headers(self, post: Post) -> bool:
        """Whether the tool's definition names arguments for headers that were not sent."""
        params = post.message["params"]
        name = params.get("name")
        if post.method != "tools/call" or not isinstance(name, str):
            return False
        places = self._places_of(name, params["_meta"])
        if not places or places == self._parameter_headers.get(name):
            return False
        if len(self._parameter_headers) >= MAX_TOOLS:
            self._parameter_headers.clear()
        self._parameter_headers[name] = places
        return True

    def _places_of(self, name: str, meta: Mapping[str, Any]) -> dict[mcp.Place, str]:
        """The places according to the list of tools as the agent would get it. Empty for an unknown tool."""
        client_meta = {key: value for key, value in meta.items() if key.startswith(mcp.META)}
        cursor: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            message = jsonrpc.request(name, "tools/list", {**cursor, "_meta": client_meta})
            post = Post(message, jsonrpc.encode(message))
            answer = self.send(post, None, partial(self.answer, post), ANSWER_SECONDS)
            tool_list = json.loads(answer or b"{}").get("result", {})
            for tool in tool_list.get("tools", []):
                if tool["name"] == name:
                    with contextlib.suppress(ValueError):  # nobody may use such a tool
                        return mcp.parameter_headers(tool["inputSchema"])
            if "nextCursor" not in tool_list:
                break
            cursor = {"cursor": tool_list["nextCursor"]}
        return {}


def require_acceptance(response: HTTPResponse) -> None:
    """Raises MethodError, with the status, if a notification or an answer was refused."""
    body = read_whole(response, MAX_ANSWER)
    if response.status not in (200, 202, 204):
        raise MethodError(INTERNAL_ERROR, f"HTTP status {response.status}: {_refusal(response.status, body)}")


def _retry_after(response: HTTPResponse) -> float:
    """The header in seconds. The gateway sends no dates in it."""
    text = response.getheader("retry-after") or ""
    return float(text) if text.isascii() and text.isdigit() else 0.0


def _fate(post: Post) -> dict[str, Any]:
    """The error data of a request that has failed."""
    return (ErrorKind.TRANSPORT if post.may_have_run else ErrorKind.UNAVAILABLE).data()


def _decode(data: bytes) -> dict[str, Any]:
    """Decode a message of the gateway. One that is nested too deep to read counts as a result: only results can be."""
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def _refusal(status: int, body: bytes) -> MethodError:
    """The gateway's error, unchanged."""
    error = _decode(body).get("error")
    if not isinstance(error, dict):
        return MethodError(INTERNAL_ERROR, f"the hall answered with HTTP status {status}")
    text = str(error.get("message"))
    return MethodError(error.get("code", INTERNAL_ERROR), REFUSED + text if status == 401 else text, error.get("data"))

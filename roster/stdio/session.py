"""The session and the stream of an MCP client over HTTP, for an agent that has only messages.

Until 2025-11-25 `initialize` begins a session, and each message carries its id. If the gateway has forgotten the
session, it is begun again with the agent's own `initialize`. The agent does not notice.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from http.client import HTTPResponse
from typing import Any, TypeVar

from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import MethodError
from mcp_runtime.protocol.jsonrpc import INTERNAL_ERROR
from mcp_runtime.protocol.mcp import EventStream
from roster.stdio.messages import KINDS, LISTEN, Messages, Post, Session, SessionOverError, require_acceptance
from roster.stdio.upstream import ANSWER_SECONDS, AbortedError, AbortSwitch, AwayError, BrokenError, Upstream

logger = logging.getLogger("guildhall.stdio")

BEGIN_SECONDS = 20.0
NOTICE_SECONDS = 10.0  # for the gateway to accept a notification or an answer
SILENCE_SECONDS = 45.0  # the gateway shows a sign of life on a silent stream every 15 s
AGAIN_SECONDS = 1.0  # before the next stream
LOOK_SECONDS = 0.1
END_SECONDS = 0.5
MAX_REMEMBERED = 1_000
SESSION_OVER = "the hall does not know this session any more: connect again"

Read = TypeVar("Read")


class GatewaySession:
    """The agent's session with the gateway, for many threads. `write(line)` sends a line to the agent."""

    def __init__(self, upstream: Upstream, write: Callable[[bytes], None]) -> None:
        self._upstream = upstream
        self._write = write
        self._messages = Messages(upstream, write, lambda: self._session)
        self._session: Session | None = None
        self._initialize: Post | None = None  # the agent's `initialize`
        self._lock = threading.Lock()  # for all attributes, and not held during a wait
        self._stream = AbortSwitch()
        self._beginnings = ThreadPoolExecutor(1, "begin")
        self._new_beginning: Future[None] | None = None  # the latest one
        # Requests that set something in the session. They are repeated in a new session.
        self._settings: dict[tuple[str, str], Post] = {}

    # Begin and end ------------------------------------------------------------------------------------------------

    def initialize(self, post: Post) -> bytes | None:
        """Begin a session for the agent, and end its earlier one. Raises MethodError."""
        with self._lock:
            previous, self._session, self._initialize = self._session, None, post
        self._settings.clear()
        if previous is not None:
            self._leave(previous)
        answer, session = self._begin(post)
        if session is not None:
            self._go_on_in(session, post, was_away=False)
        return answer

    def _begin(self, post: Post) -> tuple[bytes | None, Session | None]:
        """The gateway's answer to `initialize`, and the session."""

        def read(response: HTTPResponse) -> tuple[bytes | None, Session | None]:
            answer, session_id = self._messages.answer(post, response), response.getheader(mcp.SESSION_HEADER)
            return answer, _session_of(session_id, json.loads(answer)) if answer is not None and session_id else None

        return self._send(post, None, read, BEGIN_SECONDS)

    def _go_on_in(self, session: Session, initialize: Post, *, was_away: bool) -> None:
        """Go on in the session, with its own stream, unless the agent has sent `initialize` again meanwhile."""
        with self._lock:
            is_current = self._initialize is initialize
            if is_current:
                self._stream.abort()
                self._session, self._stream = session, AbortSwitch()
                listening = (self._stream, session, was_away)
                threading.Thread(target=self._listen, args=listening, name="stream", daemon=True).start()
        if not is_current:
            self._leave(session)

    def _begin_again(self, old_session: Session, switch: AbortSwitch) -> None:
        """Replace a session that is over. All waiting threads get the same MethodError. Raises AbortedError."""
        with self._lock:
            if self._session is not old_session or self._initialize is None:
                return
            if self._new_beginning is None or self._new_beginning.done():
                self._new_beginning = self._beginnings.submit(self._start_again, self._initialize)
            new_beginning = self._new_beginning
        while not futures.wait([new_beginning], LOOK_SECONDS).done:
            switch.pause(0)
        new_beginning.result()

    def _start_again(self, initialize: Post) -> None:
        """Begin a session and repeat the agent's settings, with one deadline for all of it. Raises MethodError."""
        logger.info("the hall does not know this session any more; it is begun again")
        switch = AbortSwitch()
        timer = threading.Timer(BEGIN_SECONDS, switch.abort)
        timer.start()
        try:
            _, session = self._begin(Post(initialize.message, initialize.body, switch))
        except AbortedError as error:
            text = f"the hall did not begin a session within {BEGIN_SECONDS:g} s"
            raise MethodError(INTERNAL_ERROR, text) from error
        else:
            if session is None:
                raise MethodError(INTERNAL_ERROR, SESSION_OVER)
            notice = jsonrpc.notification("notifications/initialized")
            for post in [Post(notice, jsonrpc.encode(notice)), *self._settings.values()]:
                self._tell(self._messages.send_once, session, Post(post.message, post.body, switch))
            self._go_on_in(session, initialize, was_away=True)
        finally:
            timer.cancel()

    def end(self) -> None:
        """The gateway may forget the session."""
        with self._lock:
            session, self._session, self._initialize = self._session, None, None
            self._stream.abort()
        if session is not None:
            self._leave(session)

    def _leave(self, session: Session) -> None:
        with contextlib.suppress(AwayError, BrokenError, AbortedError):
            headers = self._messages.headers({}, session)
            with self._upstream.open(AbortSwitch(), "DELETE", headers, timeout=END_SECONDS) as response:
                response.read()

    # Messages -----------------------------------------------------------------------------------------------------

    def notify(self, message: dict[str, Any]) -> None:
        """A notification, or an answer."""
        if (session := self._session) is not None:
            self._tell(self._send, session, Post(message, jsonrpc.encode(message)))

    def notify_once(self, message: dict[str, Any], seconds: float) -> None:
        """As `notify`, but without waiting."""
        if (session := self._session) is not None:
            self._tell(self._messages.send_once, session, Post(message, jsonrpc.encode(message)), seconds)

    @staticmethod
    def _tell(send: Callable[..., None], session: Session, post: Post, seconds: float = NOTICE_SECONDS) -> None:
        try:
            send(post, session, require_acceptance, seconds)
        except (MethodError, AwayError, BrokenError, AbortedError, SessionOverError) as error:
            logger.warning("%s was not taken: %s", post.method, error)

    def request(self, post: Post) -> bytes | None:
        """The answer, on one line. Earlier messages are forwarded at once. Raises MethodError, AbortedError."""
        session = None if post.is_modern else self._session
        seconds = SILENCE_SECONDS if post.method == LISTEN else ANSWER_SECONDS
        try:
            answer = self._send(post, session, partial(self._messages.answer, post), seconds)
        except MethodError as error:
            if error.code != mcp.HEADER_MISMATCH or not self._messages.learns_headers(post):
                raise
            return self._send(post, session, partial(self._messages.answer, post), seconds)
        if session is not None:
            self._remember(post)
        return answer

    def _send(self, post: Post, session: Session | None, read: Callable[[HTTPResponse], Read], seconds: float) -> Read:
        """Send in this session, or in the one that replaces it."""
        while True:
            try:
                return self._messages.send(post, session, read, seconds)
            except SessionOverError:
                if session is None or post.patience.repeat() is None:
                    raise MethodError(INTERNAL_ERROR, SESSION_OVER) from None
                self._begin_again(session, post.switch)
                session = self._session

    def _remember(self, post: Post) -> None:
        params = post.message.get("params")
        uri = str(params.get("uri")) if isinstance(params, dict) else ""
        if post.method == "resources/unsubscribe":
            self._settings.pop(("resources/subscribe", uri), None)
        elif post.method in ("logging/setLevel", "resources/subscribe") and len(self._settings) < MAX_REMEMBERED:
            self._settings[post.method, uri] = post

    # The stream of announcements ----------------------------------------------------------------------------------

    def _listen(self, stream: AbortSwitch, session: Session, was_away: bool) -> None:
        """Listen until the session ends. Announce after a gap that lists may have changed, because nobody else does."""
        with contextlib.suppress(AbortedError):
            while True:
                try:
                    was_away = self._hear(stream, session, was_away)
                except (AwayError, BrokenError, MethodError) as error:
                    logger.debug("%s", error)
                    was_away = True
                stream.pause(AGAIN_SECONDS)

    def _hear(self, stream: AbortSwitch, session: Session, was_away: bool) -> bool:
        """Forward one stream to its end. Returns whether some events may be lost by then."""
        headers = self._messages.headers({}, session)
        with self._upstream.open(stream, "GET", headers, timeout=SILENCE_SECONDS) as response:
            status = response.status
            if was_away and status in (200, 405):  # 405: the server has no stream
                self._announce_changes(session)
            if status == 200:
                self._messages.forward_events(None, EventStream(), response)
        if status == 404:
            stream.pause(AGAIN_SECONDS)  # the next session's stream is opened at once, and may be unknown as well
            self._begin_again(session, stream)
        return status != 405

    def _announce_changes(self, session: Session) -> None:
        for kind in session.changing:
            self._write(jsonrpc.encode(jsonrpc.notification(f"notifications/{kind}/list_changed")))


def _session_of(session_id: str, answer: dict[str, Any]) -> Session:
    result = answer.get("result", {})
    capabilities = result.get("capabilities", {})
    changing = tuple(kind for kind in KINDS if capabilities.get(kind, {}).get("listChanged") is True)
    return Session(session_id, str(result.get("protocolVersion")), changing)

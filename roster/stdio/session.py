"""What an MCP client keeps that speaks over HTTP, for an agent that knows only messages: its session, and the stream.

Until 2025-11-25 `initialize` begins a session, whose id goes with each message. One that the gateway does not know any
more is begun again with the agent's own `initialize`, without a word.
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
from roster.stdio.messages import KINDS, LISTEN, Messages, Post, Session, SessionOverError, taken
from roster.stdio.upstream import ANSWER_SECONDS, AbortedError, AbortSwitch, AwayError, BrokenError, Upstream

logger = logging.getLogger("guildhall.stdio")

BEGIN_SECONDS = 20.0
NOTICE_SECONDS = 10.0  # for a notification or an answer to be taken
SILENCE_SECONDS = 45.0  # the gateway shows a sign of life on a silent stream every 15 s
AGAIN_SECONDS = 1.0  # before the next stream
LOOK_SECONDS = 0.1
END_SECONDS = 0.5
MAX_REMEMBERED = 1_000
SESSION_OVER = "the hall does not know this session any more: connect again"

Read = TypeVar("Read")


class GatewaySession:
    """The agent's conversation with the gateway. `write(line)` gives the agent a message. From many threads at once."""

    def __init__(self, upstream: Upstream, write: Callable[[bytes], None]) -> None:
        self._upstream = upstream
        self._write = write
        self._messages = Messages(upstream, write, lambda: self._session)
        self._session: Session | None = None
        self._begun: Post | None = None  # the agent's `initialize`
        self._lock = threading.Lock()  # of what is above and below, never held while anybody waits
        self._stream = AbortSwitch()
        self._beginnings = ThreadPoolExecutor(1, "begin")
        self._again: Future[None] | None = None  # the last of them
        # What only the session knows: the agent said it once.
        self._remembered: dict[tuple[str, str], Post] = {}

    # Begin and end ------------------------------------------------------------------------------------------------

    def initialize(self, post: Post) -> bytes | None:
        """The agent begins; what it said before is forgotten, and its session ends. Raises MethodError."""
        with self._lock:
            old, self._session, self._begun = self._session, None, post
        self._remembered.clear()
        if old is not None:
            self._leave(old)
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

    def _go_on_in(self, session: Session, begun: Post, *, was_away: bool) -> None:
        """With a stream of its own, unless the agent has begun anew meanwhile."""
        with self._lock:
            is_wanted = self._begun is begun
            if is_wanted:
                self._stream.abort()
                self._session, self._stream = session, AbortSwitch()
                listening = (self._stream, session, was_away)
                threading.Thread(target=self._listen, args=listening, name="stream", daemon=True).start()
        if not is_wanted:
            self._leave(session)

    def _begin_again(self, lost: Session, switch: AbortSwitch) -> None:
        """In the place of a session that is over. All who wait share its failure: MethodError, beside AbortedError."""
        with self._lock:
            if self._session is not lost or self._begun is None:
                return
            if self._again is None or self._again.done():
                self._again = self._beginnings.submit(self._anew, self._begun)
            again = self._again
        while not futures.wait([again], LOOK_SECONDS).done:
            switch.pause(0)
        again.result()

    def _anew(self, begun: Post) -> None:
        """With one deadline for all of it. Raises MethodError."""
        logger.info("the hall does not know this session any more; it is begun again")
        switch = AbortSwitch()
        timer = threading.Timer(BEGIN_SECONDS, switch.abort)
        timer.start()
        try:
            _, session = self._begin(Post(begun.message, begun.body, switch))
        except AbortedError as error:
            text = f"the hall did not begin a session within {BEGIN_SECONDS:g} s"
            raise MethodError(INTERNAL_ERROR, text) from error
        else:
            if session is None:
                raise MethodError(INTERNAL_ERROR, SESSION_OVER)
            notice = jsonrpc.notification("notifications/initialized")
            for said in [Post(notice, jsonrpc.encode(notice)), *self._remembered.values()]:
                self._tell(self._messages.send_once, session, Post(said.message, said.body, switch))
            self._go_on_in(session, begun, was_away=True)
        finally:
            timer.cancel()

    def end(self) -> None:
        """The gateway may forget the session."""
        with self._lock:
            session, self._session, self._begun = self._session, None, None
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
        """As `notify`, with nobody to wait for."""
        if (session := self._session) is not None:
            self._tell(self._messages.send_once, session, Post(message, jsonrpc.encode(message)), seconds)

    @staticmethod
    def _tell(send: Callable[..., None], session: Session, post: Post, seconds: float = NOTICE_SECONDS) -> None:
        try:
            send(post, session, taken, seconds)
        except (MethodError, AwayError, BrokenError, AbortedError, SessionOverError) as error:
            logger.warning("%s was not taken: %s", post.method, error)

    def request(self, post: Post) -> bytes | None:
        """The answer, on one line. What comes before it is written as it comes. Raises MethodError, AbortedError."""
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
        """In the session that takes the place of this one, where it is over."""
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
            self._remembered.pop(("resources/subscribe", uri), None)
        elif post.method in ("logging/setLevel", "resources/subscribe") and len(self._remembered) < MAX_REMEMBERED:
            self._remembered[post.method, uri] = post

    # The stream of what is said unasked ---------------------------------------------------------------------------

    def _listen(self, stream: AbortSwitch, session: Session, was_away: bool) -> None:
        """Until the session ends. After a gap the agent is told that lists may have changed: nobody else says so."""
        with contextlib.suppress(AbortedError):
            while True:
                try:
                    was_away = self._hear(stream, session, was_away)
                except (AwayError, BrokenError, MethodError) as error:
                    logger.debug("%s", error)
                    was_away = True
                stream.pause(AGAIN_SECONDS)

    def _hear(self, stream: AbortSwitch, session: Session, was_away: bool) -> bool:
        """One stream to its end; whether something may have been missed by then."""
        headers = self._messages.headers({}, session)
        with self._upstream.open(stream, "GET", headers, timeout=SILENCE_SECONDS) as response:
            status = response.status
            if was_away and status in (200, 405):  # 405: there is none, and never will be
                self._say_changed(session)
            if status == 200:
                self._messages.passed_on(None, EventStream(), response)
        if status == 404:
            stream.pause(AGAIN_SECONDS)  # the next session's stream is opened at once, and may be unknown as well
            self._begin_again(session, stream)
        return status != 405

    def _say_changed(self, session: Session) -> None:
        for kind in session.changing:
            self._write(jsonrpc.encode(jsonrpc.notification(f"notifications/{kind}/list_changed")))


def _session_of(session_id: str, answer: dict[str, Any]) -> Session:
    result = answer.get("result", {})
    offered = result.get("capabilities", {})
    changing = tuple(kind for kind in KINDS if offered.get(kind, {}).get("listChanged") is True)
    return Session(session_id, str(result.get("protocolVersion")), changing)

"""Relay lines of JSON-RPC from an agent to the gateway, and messages of the gateway back as lines.

One thread reads, and never waits for an answer. So the agent can always cancel requests and answer questions.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, BinaryIO

from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import MethodError
from mcp_runtime.protocol.jsonrpc import INTERNAL_ERROR, Encoded, Incoming, MethodDispatcher, Request, Response
from roster.stdio.messages import LISTEN, Post, modern_version
from roster.stdio.session import GatewaySession
from roster.stdio.upstream import AbortedError, Key, Upstream

logger = logging.getLogger("guildhall.stdio")

MAX_LINE = 4_000_000  # the same as the gateway's limit
# The limits of requests in progress, and of their bytes. More are refused. `requests` of them are sent at a time.
MAX_POSTS = 1_000
MAX_BYTES = 64_000_000
NOTICES = 16  # notifications and answers that are sent at a time
# The limits of notifications and answers that wait to be sent. Beyond them the agent's next lines wait in the pipe.
# They are counted apart from requests, because a request may wait for one of them.
MAX_NOTICES = 1_000
MAX_NOTICE_BYTES = 16_000_000
READY_SECONDS = 60.0  # for the answer to `initialize`, if an agent does not wait for it
CANCELLED_SECONDS = 2.0  # for the gateway to answer a cancelled request. It gives members one second
GRACE_SECONDS = 0.8  # for requests in progress when the agent closes its end
CANCEL_SECONDS = 0.5  # for the cancellation to reach the gateway
KEEP_SECONDS = 30.0  # between two checks of the token's end


class StopError(Exception):
    """End at once. A signal raises it in the thread that serves."""


class Room:
    """A limit of messages and bytes at a time."""

    def __init__(self, messages: int, size: int) -> None:
        self._messages, self._size = messages, size
        self._condition = threading.Condition()  # may be taken twice by one thread

    def take(self, messages: int, size: int) -> bool:
        with self._condition:
            if not self._has_room(messages, size):
                return False
            self._messages, self._size = self._messages - messages, self._size - size
            return True

    def wait_and_take(self, messages: int, size: int) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._has_room(messages, size))
            self.take(messages, size)

    def give_back(self, messages: int, size: int) -> None:
        with self._condition:
            self._messages, self._size = self._messages + messages, self._size + size
            self._condition.notify_all()

    def _has_room(self, messages: int, size: int) -> bool:
        return messages <= self._messages and size <= self._size


class Relay:
    """One agent on a pair of pipes. `requests` are sent to the gateway at the same time."""

    def __init__(self, source: BinaryIO, sink: BinaryIO, url: str, key: Key, *, requests: int = 64) -> None:
        self._source = source
        self._sink = sink
        self._sink_lock = threading.Lock()
        self._key = key
        self._over = threading.Event()
        self.is_ending = False
        self._posts: dict[Any, Post] = {}  # the agent's id -> what is under way, or waits
        self._waiting: dict[int, Post] = {}  # by id() of the message: posts that are not begun
        self._waiting_lock = threading.Lock()
        self._ready = threading.Event()  # no `initialize` is under way
        self._ready.set()
        self._gateway = GatewaySession(Upstream(url, key), self._write)
        self._requests = ThreadPoolExecutor(requests, thread_name_prefix="request")
        self._notices = ThreadPoolExecutor(NOTICES, thread_name_prefix="notice")
        self._request_room = Room(MAX_POSTS, MAX_BYTES)
        self._notice_room = Room(MAX_NOTICES, MAX_NOTICE_BYTES)
        self._dispatcher = MethodDispatcher(
            {
                "initialize": self._initialize,
                "ping": self._ping,
                "notifications/cancelled": self._forward_cancellation,
            },
            default=self._forward,
            on_response=self._forward_response,
            max_bytes=MAX_LINE,
        )

    def serve(self) -> None:
        """Serve until the agent closes its end, or until StopError. It is not raised any more once `is_ending`."""
        threading.Thread(target=self._keep_token, name="token", daemon=True).start()
        try:
            for line in self._lines():
                self._take(line)
            self._wait_for_posts(GRACE_SECONDS)
        except StopError:
            pass
        self.is_ending = True
        self._end()

    def _lines(self) -> Iterator[bytes]:
        while not self._over.is_set() and (line := self._source.readline(MAX_LINE + 2)):
            if not line.endswith(b"\n"):
                self._skip_rest_of_line()
            if line.strip():
                yield line

    def _skip_rest_of_line(self) -> None:
        while (chunk := self._source.readline(MAX_LINE)) and not chunk.endswith(b"\n"):
            pass

    def _take(self, line: bytes) -> None:
        incoming = self._dispatcher.read(line)
        for part in incoming.parts:
            if isinstance(part, Request) and part.method == "notifications/cancelled":
                self._cancel_post(part)
        requests = [request for request in incoming.requests if _needs_answer(request)]
        if self._take_room(requests, len(line)):
            self._begin(incoming, requests, line)
        elif incoming.is_batch or not incoming.requests:
            self._notice_room.wait_and_take(1, len(line))
            self._notices.submit(self._serve, incoming, map, partial(self._notice_room.give_back, 1, len(line)))
        else:  # a ping, or what is refused
            self._write_answer(self._dispatcher.answer(incoming))

    def _take_room(self, requests: list[Request], size: int) -> bool:
        """Reserve room for new requests. Returns False if there is none, or if nothing goes to the gateway."""
        is_new = bool(requests) and not any(request.id in self._posts for request in requests)
        return is_new and self._request_room.take(len(requests), size)

    def _begin(self, incoming: Incoming, requests: list[Request], line: bytes) -> None:
        """Serve the requests, which can be cancelled from now on. Open streams and batches have their own threads."""
        for request in requests:
            body = jsonrpc.encode(request.message) if incoming.is_batch else line
            self._posts[request.id] = self._waiting[id(request.message)] = Post(request.message, body)
            if request.method == "initialize":
                self._ready.clear()
        work = (incoming, self._each, partial(self._request_room.give_back, len(requests), len(line)))
        if incoming.is_batch or requests[0].method == LISTEN:
            threading.Thread(target=self._serve, args=work, daemon=True).start()
        else:
            self._requests.submit(self._serve, *work)

    def _serve(self, incoming: Incoming, each: Callable[..., Iterable[Any]], give_back: Callable[[], None]) -> None:
        try:
            self._write_answer(self._dispatcher.answer(incoming, each))
        finally:
            give_back()

    def _each(self, serve: Callable[[Any], bytes | None], parts: list[Any]) -> list[bytes | None]:
        """Serve the parts of a batch at once. Notifications have their own threads, because requests may need them."""
        works = [(self._requests if _needs_answer(part) else self._notices).submit(serve, part) for part in parts]
        return [work.result() for work in works]

    def _write_answer(self, answer: bytes | None) -> None:
        if answer is not None:
            self._write(answer)

    def _write(self, message: bytes) -> None:
        with self._sink_lock:
            try:
                self._sink.write(message + b"\n")
                self._sink.flush()
            except (OSError, ValueError):
                self._over.set()  # nobody reads any more

    # Methods ------------------------------------------------------------------------------------------------------

    def _initialize(self, request: Request) -> Encoded:
        self._require_place(request)
        try:
            return self._relay(request, self._gateway.initialize)
        finally:
            self._ready.set()

    def _ping(self, request: Request) -> Any:
        """Answer for this program. Other requests show whether the hall answers."""
        return {} if _is_ping(request) else self._forward(request)

    def _forward(self, request: Request) -> Any:
        if not request.is_notification:
            self._require_place(request)
        self._ready.wait(READY_SECONDS)
        if request.is_notification:
            self._gateway.notify(request.message)
            return None
        return self._relay(request, self._gateway.request)

    def _require_place(self, request: Request) -> None:
        if id(request.message) not in self._waiting:
            text = (
                f"its id is in use, or more than {MAX_POSTS:,} requests, or {MAX_BYTES:,} bytes of them, are under way"
            )
            raise MethodError(INTERNAL_ERROR, text)

    def _relay(self, request: Request, ask: Callable[[Post], bytes | None]) -> Encoded:
        """The gateway's answer. Empty for a cancelled request, because nobody waits for it (basic/utilities)."""
        with self._waiting_lock:
            post = self._waiting.pop(id(request.message))
        answer = None
        try:
            if not post.is_cancelled:
                answer = ask(post)
        except AbortedError:
            pass
        except MethodError:
            if not post.is_cancelled:
                raise
        finally:
            self._forget(request.id, post)
        return Encoded(None if post.is_cancelled else answer)

    def _forget(self, request_id: Any, post: Post) -> None:
        if self._posts.get(request_id) is post:
            del self._posts[request_id]

    def _forward_response(self, response: Response) -> None:
        self._ready.wait(READY_SECONDS)
        self._gateway.notify(response.message)

    # Cancellation -------------------------------------------------------------------------------------------------

    def _cancel_post(self, request: Request) -> None:
        """Cancel at once: a post that is not begun is dropped, and the connection of a modern request ends."""
        post = self._post_to_cancel(request)
        if post is None or post.method == "initialize":
            return
        with self._waiting_lock:
            post.is_cancelled = True
            is_begun = id(post.message) not in self._waiting
        if not is_begun:
            self._forget(post.message["id"], post)
        elif post.is_modern:
            post.switch.abort()

    def _forward_cancellation(self, request: Request) -> None:
        post = self._post_to_cancel(request)
        if post is not None and post.is_cancelled and not post.is_modern:
            self._gateway.notify(request.message)
            # The gateway may have had the cancellation before the request, and answers then.
            timer = threading.Timer(CANCELLED_SECONDS, post.switch.abort)
            timer.daemon = True
            timer.start()

    def _post_to_cancel(self, request: Request) -> Post | None:
        request_id = request.params.get("requestId") if isinstance(request.params, dict) else None
        return self._posts.get(request_id) if isinstance(request_id, (str, int, float)) else None

    # The end ------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Cancel all that is under way, and end the session."""
        for request_id, post in list(self._posts.items()):
            with self._waiting_lock:
                post.is_cancelled = True
                is_begun = id(post.message) not in self._waiting
            if is_begun:
                params = {"requestId": request_id, "reason": "the agent went away"}
                notice = jsonrpc.notification("notifications/cancelled", params)
                self._notices.submit(self._gateway.notify_once, notice, CANCEL_SECONDS)
            else:
                self._forget(request_id, post)
        self._wait_for_posts(CANCEL_SECONDS)
        for post in list(self._posts.values()):
            post.switch.abort()
        self._gateway.end()
        self._over.set()

    def _wait_for_posts(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._posts and time.monotonic() < deadline:
            time.sleep(0.01)

    def _keep_token(self) -> None:
        """An open stream ends with its token, so it is renewed also while nothing is sent."""
        while not self._over.wait(KEEP_SECONDS):
            with contextlib.suppress(Exception):
                self._key.renew()


def _needs_answer(part: Any) -> bool:
    """Whether the gateway must answer it."""
    return isinstance(part, Request) and not part.is_notification and not _is_ping(part)


def _is_ping(request: Request) -> bool:
    """Modern MCP has no such method."""
    return request.method == "ping" and not request.is_notification and modern_version(request.message) is None

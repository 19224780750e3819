"""HTTP to the gateway: one connection for each request, which another thread may abort.

The gateway is on this machine, so a connection costs a tenth of a millisecond. A reused connection could end just as a
call is sent on it, and nobody would know whether the call has run.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Protocol
from urllib.parse import urlsplit

CONNECT_SECONDS = 5.0
# A manifest may allow a tool to run for hours, and the gateway sends nothing meanwhile.
ANSWER_SECONDS = 24 * 3600.0
# How long requests wait for a hall that is away, from its first failure on. Later ones are refused at once.
PATIENCE_SECONDS = 15.0
LOOK_SECONDS = 0.2
REPEATS = 5  # of a request whose connection breaks, each after twice the pause
LONGEST_RETRY_SECONDS = 5.0  # if the gateway asks for a longer pause, the request is refused at once
START = "Start it with `make run`; this server goes on when it is there."


class AwayError(Exception):
    """Nobody listens there or accepts requests, so the request had no effect. The message is for people."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        """`retry_after` is in seconds, from the gateway."""
        super().__init__(message)
        self.retry_after = retry_after


class BrokenError(Exception):
    """The connection ended before the answer. The gateway may have received the request."""


class AbortedError(Exception):
    """The request was aborted."""


def read_whole(response: http.client.HTTPResponse, limit: int) -> bytes:
    """The body, or its first `limit` bytes. Raises IncompleteRead, which `read(limit)` does not for a partial body."""
    body = response.read(limit)
    if len(body) < limit and response.length:
        raise http.client.IncompleteRead(body, response.length)
    return body


class Key(Protocol):
    """The token of the requests."""

    @property
    def text(self) -> str:
        """A token that is valid now."""

    def renew(self) -> None:
        """Extend a token that ends soon. It is called regularly."""


class AbortSwitch:
    """Ends requests: `abort()` from any thread ends the one in progress and all later ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._aborted = threading.Event()

    @property
    def is_aborted(self) -> bool:
        return self._aborted.is_set()

    def abort(self) -> None:
        with self._lock:
            self._aborted.set()
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def pause(self, seconds: float) -> None:
        """Raises AbortedError."""
        if self._aborted.wait(seconds):
            raise AbortedError

    @contextlib.contextmanager
    def using(self, sock: socket.socket) -> Iterator[None]:
        """Raises AbortedError if it is aborted already."""
        with self._lock:
            if self.is_aborted:
                raise AbortedError
            self._socket = sock
        try:
            yield
        finally:
            with self._lock:
                self._socket = None


class Patience:
    """How long one request may wait (`seconds` from the first failure on), and how often it is repeated (REPEATS)."""

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = PATIENCE_SECONDS if seconds is None else seconds
        self._since: float | None = None
        self._repeats = 0

    def until(self) -> float:
        self._since = self._since or time.monotonic()
        return self._since + self._seconds

    def repeat(self) -> float | None:
        """Seconds until the next attempt. None after the last one."""
        self._repeats += 1
        return None if self._repeats > REPEATS else float(LOOK_SECONDS * 2 ** (self._repeats - 1))


class Upstream:
    """The gateway at `url`, for one agent and many threads."""

    def __init__(self, url: str, key: Key) -> None:
        parts = urlsplit(url)
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self._host, self._port = parts.hostname or "localhost", parts.port or 80
        self._target = parts._replace(scheme="", netloc="").geturl()
        self._key = key
        self._away_since: float | None = None

    @contextlib.contextmanager
    def open(
        self,
        switch: AbortSwitch,
        verb: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        timeout: float = ANSWER_SECONDS,
    ) -> Iterator[http.client.HTTPResponse]:
        """The response, readable inside the block. `timeout` is that of each read.

        Raises AwayError, BrokenError and AbortedError.
        """
        connection = http.client.HTTPConnection(self._host, self._port, timeout=min(CONNECT_SECONDS, timeout))
        try:
            try:
                connection.connect()
            except OSError as error:
                reason = f"nobody listens at {self.origin} ({error.strerror or error})"
                raise AwayError(f"the hall is not running: {reason}. {START}") from error
            connection.sock.settimeout(timeout)
            with switch.using(connection.sock):
                all_headers = {**headers, "Authorization": f"Bearer {self._key.text}"}
                connection.request(verb, self._target, body, all_headers)
                yield connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            if switch.is_aborted:
                raise AbortedError from error
            raise BrokenError(f"the connection to {self.origin} ended before the answer") from error
        finally:
            connection.close()

    # Away and back ------------------------------------------------------------------------------------------------

    def is_back(self) -> None:
        """Note that it sent a complete response."""
        self._away_since = None

    def wait(self, switch: AbortSwitch, patience: Patience, seconds: float = 0.0) -> bool:
        """Wait a moment for a hall that is away or starts. False if the time is over. Raises AbortedError."""
        seconds = max(seconds, LOOK_SECONDS)
        self._away_since = self._away_since or time.monotonic()
        until = min(patience.until(), self._away_since + PATIENCE_SECONDS)
        if seconds > LONGEST_RETRY_SECONDS or time.monotonic() + seconds > until:
            return False
        switch.pause(seconds)
        return True

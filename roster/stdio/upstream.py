"""HTTP to the gateway: one connection for each request, which another thread may abort.

The gateway is on this machine, so a connection costs a tenth of a millisecond. A kept one could end just as a call is
sent on it, and nobody would know whether the call has run.
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
# A tool may run for hours by its manifest, and the gateway says nothing meanwhile.
ANSWER_SECONDS = 24 * 3600.0
# How long requests wait for a hall that is away, from when it was found so; after that they are refused at once.
PATIENCE_SECONDS = 15.0
LOOK_SECONDS = 0.2
REPEATS = 5  # of one request that breaks off, each after twice the time
LONGEST_RETRY_SECONDS = 5.0  # who is to come later than that is told so at once
START = "Start it with `make run`; this server goes on when it is there."


class AwayError(Exception):
    """Nobody listens there, or takes requests: nothing was done. The message is for people."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        """`retry_after`: seconds, as the gateway says."""
        super().__init__(message)
        self.retry_after = retry_after


class BrokenError(Exception):
    """The connection ended before the answer. The gateway may have got the request."""


class AbortedError(Exception):
    """Somebody asked to stop waiting."""


def read_whole(response: http.client.HTTPResponse, limit: int) -> bytes:
    """The body, or its first `limit` bytes. Raises IncompleteRead: `read` with a number takes a part for the whole."""
    body = response.read(limit)
    if len(body) < limit and response.length:
        raise http.client.IncompleteRead(body, response.length)
    return body


class Key(Protocol):
    """What to come with."""

    @property
    def text(self) -> str:
        """A token that is good now."""

    def renew(self) -> None:
        """Called now and then: a token that ends soon gets a later end."""


class AbortSwitch:
    """For one request after the other: `abort()` from any thread ends the one under way and those to come."""

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
        """Raises AbortedError where it is too late."""
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
    """What one request has of it: `seconds` of waiting, from the first failure on, and REPEATS."""

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = PATIENCE_SECONDS if seconds is None else seconds
        self._since: float | None = None
        self._repeats = 0

    def until(self) -> float:
        self._since = self._since or time.monotonic()
        return self._since + self._seconds

    def repeat(self) -> float | None:
        """Seconds to wait before it is sent once more; None: that was often enough."""
        self._repeats += 1
        return None if self._repeats > REPEATS else float(LOOK_SECONDS * 2 ** (self._repeats - 1))


class Upstream:
    """The gateway at `url`, for one agent. From many threads at once."""

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
        """The reply, to be read inside. `timeout` is for each read. Raises AwayError, BrokenError, AbortedError."""
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
        """It said something whole."""
        self._away_since = None

    def wait(self, switch: AbortSwitch, patience: Patience, seconds: float = 0.0) -> bool:
        """A moment, for a hall that is away or begins. False: that was long enough. Raises AbortedError."""
        seconds = max(seconds, LOOK_SECONDS)
        self._away_since = self._away_since or time.monotonic()
        until = min(patience.until(), self._away_since + PATIENCE_SECONDS)
        if seconds > LONGEST_RETRY_SECONDS or time.monotonic() + seconds > until:
            return False
        switch.pause(seconds)
        return True

"""Bodies with a file, which are too large for memory. They are on the disk until they are answered.

Anybody can send bytes, so the application says before they are read whether the client may send so many. If not, it
gets only the beginning of the body, and tells the client the same as always.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO
from wsgiref.types import WSGIEnvironment

from mcp_runtime.http1.server import BODY_SECONDS, MAX_BODY, HttpExchange
from mcp_runtime.security.limits import ByteBudget, Owner

MAX_UPLOAD = 52_000_000  # bytes: a bundle of 50 MB, and what is around it in the form
UPLOAD_SECONDS = 300.0
LARGE = MAX_BODY  # A form that is not larger is read into memory, as other bodies are.
BEGINNING = 16_384  # bytes of a body that the client may not send. The fields before the file are there
# Bodies that are incomplete. The one that has not grown for the longest time makes room.
MAX_INCOMPLETE = 6
# Bytes of complete bodies, until they are answered. As with other bodies, a client is an address with its credentials.
OF_CLIENT, OF_ADDRESS, IN_ALL = 2 * MAX_UPLOAD, 3 * MAX_UPLOAD, 4 * MAX_UPLOAD
FORM = b"multipart/form-data"


class StorageError(Exception):
    """The disk takes no more bytes."""


class _EnoughError(Exception):
    """The beginning of the body is there."""


class Uploads:
    """Receives large forms at certain paths. `folder` is for files that have no name, so none stays.

    `may_upload` says in a thread whether a request may have a large body. It sees only the head.
    """

    def __init__(self, folder: Path, paths: Collection[str], may_upload: Callable[[WSGIEnvironment], bool]) -> None:
        self.may_upload = may_upload
        self._folder = folder
        self._paths = frozenset(paths)
        self._incomplete: dict[HttpExchange, None] = {}  # first is the one that has not grown for the longest time
        self._complete = ByteBudget(of_token=OF_CLIENT, of_user=OF_ADDRESS, in_all=IN_ALL)

    def takes(self, exchange: HttpExchange) -> bool:
        is_form = exchange.headers.get(b"content-type", b"").lower().startswith(FORM)
        is_large = exchange.length is None or exchange.length > LARGE
        return is_form and is_large and exchange.verb == "POST" and exchange.path in self._paths

    async def beginning(self, exchange: HttpExchange) -> bytes:
        """The first bytes of a body that the client may not send. Empty if it waits until it is asked for the body.

        Raises TooLargeError, TimeoutError and ClientDisconnectedError.
        """
        first = bytearray()

        async def take(part: bytes) -> None:
            first.extend(part)
            if len(first) >= BEGINNING:
                raise _EnoughError

        if b"expect" not in exchange.headers:
            with suppress(_EnoughError):
                await exchange.spool(take, most=MAX_UPLOAD, seconds=BODY_SECONDS)
        return bytes(first[:BEGINNING])

    @asynccontextmanager
    async def received(self, exchange: HttpExchange, owner: Owner) -> AsyncIterator[IO[bytes]]:
        """The body as a file, which the answer closes. A thread may still read it when the client is gone.

        Raises TooLargeError, TimeoutError, BudgetError, StorageError and ClientDisconnectedError.
        """
        file = await asyncio.to_thread(self._new_file)
        size = 0

        async def write(part: bytes) -> None:
            nonlocal size
            size += len(part)
            self._make_room(exchange)
            try:
                await asyncio.to_thread(file.write, part)
            except OSError as error:
                raise StorageError(str(error)) from error

        try:
            await exchange.spool(write, most=MAX_UPLOAD, seconds=UPLOAD_SECONDS)
            self._complete.take(owner, size)
        except BaseException:
            file.close()
            raise
        finally:
            self._incomplete.pop(exchange, None)
        try:
            await asyncio.to_thread(file.seek, 0)
            yield file
        finally:
            self._complete.give_back(owner, size)

    def _new_file(self) -> IO[bytes]:
        return tempfile.TemporaryFile(dir=self._folder)

    def _make_room(self, exchange: HttpExchange) -> None:
        """Note that the body grows. If there are too many, another one ends."""
        self._incomplete.pop(exchange, None)
        self._incomplete[exchange] = None
        while len(self._incomplete) > MAX_INCOMPLETE:
            idlest = next(iter(self._incomplete))
            del self._incomplete[idlest]
            idlest.abort()

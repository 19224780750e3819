"""WSGI on our HTTP server. The loop reads a whole request, within limits, before a thread gets it.

A client that sends half a request, or reads its answer slowly, uses a connection but no thread. The next free thread
goes to the client that has the fewest. One client alone can have three quarters of the threads. One thread computes at
a time (`turns`).
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from io import BytesIO
from typing import IO
from urllib.parse import unquote_to_bytes
from wsgiref.types import WSGIApplication, WSGIEnvironment

from guildhall.turns import Turn, Turns, computing
from guildhall.uploads import MAX_UPLOAD, UPLOAD_SECONDS, StorageError, Uploads
from guildhall.wsgi_answers import WAITS, Answer, FileBlocks, Question, call_soon, refuse
from mcp_runtime.http1 import server
from mcp_runtime.http1.server import HttpExchange, TooLargeError
from mcp_runtime.security.limits import BudgetError, ByteBudget, Owner, Places

logger = logging.getLogger("guildhall.web")

READ_SECONDS = 30.0  # for a client to read one step of its answer
# Bytes of complete bodies, until they are answered. A client is an address with its credentials, which are not checked
# yet. The application refuses invented credentials at once, which frees the bodies. A client with many valid ones meets
# the limit of its address. That limit is high, because behind a proxy all clients have one address.
BODIES_OF_CLIENT = 16_000_000
BODIES_OF_ADDRESS = 48_000_000
BODIES = 64_000_000
# Bytes of incomplete bodies. There is no limit for each client, because a stranger may use any number of addresses and
# credentials. The body that has not grown for the longest time makes room. So strangers who want to push out a client
# must keep sending many times as fast as it does.
PARTIAL_BODIES = 32_000_000
OWNER = "guildhall.owner"  # in the environment: a request calls it with the ids of its user and token
STRANGER: Owner = (0, 0)
MAX_OWNERS = 10_000
MAX_CLIENTS = 32  # of one owner. One token can be written in many ways, and come from many addresses
SHORT_BODY = 16_384  # bytes. Not counted, because all possible connections together have 64 MB of these
LOOPBACK = ("127.0.0.1", "::1")


class WsgiServer:
    """Answers exchanges.

    `after_step` runs in the thread after each step, and before a step waits, to give database connections back.
    `uploads` has the paths at which a body may be larger than others.
    """

    def __init__(
        self,
        application: WSGIApplication,
        *,
        threads: int,
        name: tuple[str, int],
        after_step: Callable[[], None],
        uploads: Uploads | None = None,
    ) -> None:
        self._application = application
        self._threads = Threads(threads)
        # With two or three, one client alone would get only one or two.
        self._places = Places(max(threads, 4))
        self._turns = Turns()
        self._owners = Owners()
        self._after_step = after_step
        self._uploads = uploads
        # Bytes of each. First is the one that has not grown for the longest time.
        self._partial_bodies: dict[HttpExchange, int] = {}
        self._bodies = ByteBudget(of_token=BODIES_OF_CLIENT, of_user=BODIES_OF_ADDRESS, in_all=BODIES)
        self._environment: WSGIEnvironment = {
            "SCRIPT_NAME": "",
            "SERVER_NAME": name[0],
            "SERVER_PORT": str(name[1]),
            "wsgi.version": (1, 0),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": True,
            "wsgi.run_once": False,
            "wsgi.file_wrapper": FileBlocks,
        }

    async def __call__(self, exchange: HttpExchange) -> None:
        with exchange:
            uploads = self._uploads if self._uploads is not None and self._uploads.takes(exchange) else None
            most, seconds = server.MAX_BODY if uploads is None else MAX_UPLOAD, server.BODY_SECONDS
            try:
                if uploads is None:
                    await self._answer_in_memory(exchange)
                elif not await self._may_upload(exchange, uploads):
                    await self._answer_with(exchange, BytesIO(await uploads.beginning(exchange)))
                else:
                    seconds = UPLOAD_SECONDS
                    async with uploads.received(exchange, budget_owner(exchange)) as body:
                        await self._answer_with(exchange, body, body)
            except TooLargeError:
                refuse(exchange, 413, f"Content Too Large: the request body has more than {most:,} bytes.")
            except TimeoutError:
                refuse(exchange, 408, f"Request Timeout: the request body did not arrive within {seconds:g} s.")
            except BudgetError as error:
                status, phrase = (503, "Service Unavailable") if error.is_full else (429, "Too Many Requests")
                whose = "" if error.is_full else " from you or your address"
                text = f"{phrase}: too many large requests{whose} are in progress. Try again in a moment."
                refuse(exchange, status, text)
            except StorageError:
                text = (
                    "Insufficient Storage: the disk of the hall takes no more. Tell its operator, and try again later."
                )
                refuse(exchange, 507, text)
            finally:
                self._partial_bodies.pop(exchange, None)

    async def _answer_in_memory(self, exchange: HttpExchange) -> None:
        body = await exchange.body(partial(self._grow, exchange), step=SHORT_BODY)
        if exchange.verb in ("GET", "HEAD"):
            body = b""  # it has no meaning (RFC 9110, 9.3.1), and the client may read a large file slowly
        with self._body_in_budget(exchange, len(body)):
            await self._answer_with(exchange, BytesIO(body))

    async def _may_upload(self, exchange: HttpExchange, uploads: Uploads) -> bool:
        environment = {**self._environment, **request_environment(exchange, BytesIO())}
        question = Question(uploads.may_upload, environment, self._owners.of(client_of(exchange)))
        await self._step(question)
        return question.is_granted

    async def _answer_with(self, exchange: HttpExchange, body: IO[bytes], file: IO[bytes] | None = None) -> None:
        environment = {**self._environment, **request_environment(exchange, body)}
        answer = Answer(self._application, environment, exchange, self._owners.of(client_of(exchange)), file)
        environment[WAITS] = partial(self._pause, answer)
        environment[OWNER] = partial(self._owners.learn, client_of(exchange))
        await self._answer(exchange, answer)

    def _grow(self, exchange: HttpExchange, size: int) -> None:
        """Allow so many bytes of a body in memory. If all bodies together are too large, another one makes room.

        Only bytes that have come are counted, so a head alone takes nothing from others.
        """
        self._partial_bodies.pop(exchange, None)
        if size <= SHORT_BODY or exchange.is_complete:
            return
        self._partial_bodies[exchange] = size
        while sum(self._partial_bodies.values()) > PARTIAL_BODIES:
            candidates = (each for each in self._partial_bodies if each is not exchange and not each.is_complete)
            idlest = next(candidates, None)
            if idlest is None:
                return
            del self._partial_bodies[idlest]
            idlest.abort()

    @contextmanager
    def _body_in_budget(self, exchange: HttpExchange, size: int) -> Iterator[None]:
        """Charge a body while it is in memory. Raises BudgetError."""
        owner, charge = budget_owner(exchange), size if size > SHORT_BODY else 0
        self._bodies.take(owner, charge)
        try:
            yield
        finally:
            self._bodies.give_back(owner, charge)

    async def _answer(self, exchange: HttpExchange, answer: Answer) -> None:
        try:
            while not await self._step(answer):
                async with asyncio.timeout(READ_SECONDS):
                    await exchange.drain()
        except TimeoutError:
            exchange.abort()
        finally:
            answer.has_client = False
            if not answer.is_closed and not answer.is_in_thread:
                self._threads.run(lambda: self._close(answer))

    async def _step(self, answer: Answer | Question) -> bool:
        """Run one step in a thread. True if it was the last one."""
        loop = asyncio.get_running_loop()
        await self._places.take(answer.owner)
        try:
            turn = await self._turn(answer)
        except BaseException:
            self._places.give_back(answer.owner)
            raise
        result: asyncio.Future[bool] = loop.create_future()

        def finish(is_over: bool) -> None:
            answer.is_in_thread = False
            self._places.give_back(answer.owner)
            if not result.done():
                result.set_result(is_over)
            elif not answer.is_closed:  # the task that waited for it was cancelled
                self._threads.run(lambda: self._close(answer))

        def step() -> None:
            is_over = True
            try:
                with computing(self._turns, turn):
                    is_over = answer.step()
            except Exception:
                logger.exception("%s was not answered", answer.name)
                call_soon(loop, answer.fail)
            finally:
                self._finish_step(answer)
                call_soon(loop, finish, is_over)

        answer.is_in_thread = True
        self._threads.run(step)
        return await result

    def _pause(self, answer: Answer) -> None:
        """Called in the thread of a request before it waits. Gives its turn and its connections to others."""
        if answer.turn is not None:
            self._turns.give_back(answer.turn)
        self._finish_step(answer)

    async def _turn(self, answer: Answer | Question) -> Turn:
        loop = asyncio.get_running_loop()
        has_turn: asyncio.Future[None] = loop.create_future()
        turn = answer.turn = Turn(answer.owner[0] or 0, partial(call_soon, loop, _settle, has_turn))
        if not self._turns.take(turn):
            try:
                while not has_turn.done():
                    await asyncio.wait([has_turn], timeout=self._turns.patience(turn))
                    if not has_turn.done():
                        self._turns.insist(turn)
            except asyncio.CancelledError:
                self._turns.give_back(turn)
                raise
        return turn

    def _close(self, answer: Answer | Question) -> None:
        try:
            answer.close()
        except Exception:
            logger.exception("%s was not closed", answer.name)
        self._finish_step(answer)

    def _finish_step(self, answer: Answer | Question) -> None:
        try:
            self._after_step()
        except Exception:
            logger.exception("cleaning up after %s failed", answer.name)


class Owners:
    """The owners of requests, by client. A client whose credentials were not valid before counts as a stranger.

    All strangers share one owner. So a client that invents credentials, uses many addresses, or writes its credentials
    in many ways takes no threads from others.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner_of: dict[int, Owner] = {}
        self._clients_of: dict[Owner, deque[int]] = {}  # latest last, in both

    def of(self, client: int) -> Owner:
        return self._owner_of.get(client, STRANGER)

    def learn(self, client: int, user_id: int, token_id: int | None) -> None:
        """Store the owner of a client, as the application identified it."""
        owner = user_id, token_id
        if self._owner_of.get(client) == owner:
            return
        with self._lock:
            self._forget(client)
            self._owner_of[client] = owner
            clients = self._clients_of.setdefault(owner, deque())
            clients.append(client)
            if len(clients) > MAX_CLIENTS:
                self._forget(clients[0])
            if len(self._clients_of) > MAX_OWNERS:
                for oldest in list(next(iter(self._clients_of.values()))):
                    self._forget(oldest)

    def _forget(self, client: int) -> None:
        owner = self._owner_of.pop(client, None)
        if owner is not None:
            clients = self._clients_of[owner]
            clients.remove(client)
            if not clients:
                del self._clients_of[owner]


class Threads:
    """At most so many threads, started when needed. They are daemons, so that waiting work does not delay the exit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._idle = threading.Semaphore(0)
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def run(self, work: Callable[[], None]) -> None:
        """Run work in one of the threads. Only the loop calls this. The limit of connections limits the queue too."""
        self._work.put(work)
        if not self._idle.acquire(blocking=False) and self._count < self._limit:
            self._count += 1
            threading.Thread(target=self._run, name=f"web-{self._count}", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._work.get()()
            self._idle.release()


def request_environment(exchange: HttpExchange, body: IO[bytes]) -> WSGIEnvironment:
    """The part of the WSGI environment that depends on the request."""
    path, _, query = exchange.target.partition(b"?")
    environment: WSGIEnvironment = {
        "REQUEST_METHOD": exchange.verb,
        "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
        "QUERY_STRING": query.decode("latin-1"),
        "SERVER_PROTOCOL": f"HTTP/{exchange.version}",
        "REMOTE_ADDR": exchange.address[0],
        "REMOTE_PORT": str(exchange.address[1]),
        "wsgi.url_scheme": _scheme(exchange),
        "wsgi.input": body,
    }
    for name, value in exchange.headers.items():
        key = _key(name)
        if key:
            environment[key] = value.decode("latin-1")
    return environment


def client_of(exchange: HttpExchange) -> int:
    """A number for the credentials and the address, which may be that of a proxy."""
    credentials = exchange.headers.get(b"authorization") or exchange.headers.get(b"cookie", b"")
    return hash((exchange.address[0], credentials))


def budget_owner(exchange: HttpExchange) -> Owner:
    """The owner of a body in the budgets, in which a client is a token, and an address a user."""
    return hash(exchange.address[0]), client_of(exchange)


def _scheme(exchange: HttpExchange) -> str:
    """A proxy on this machine may declare that the request came by https."""
    is_https = exchange.headers.get(b"x-forwarded-proto") == b"https" and exchange.address[0] in LOOPBACK
    return "https" if is_https else "http"


@lru_cache(maxsize=256)
def _key(name: bytes) -> str:
    """The WSGI name of a header. Empty if it has an underscore, because it would look like a header with a hyphen."""
    if b"_" in name:
        return ""
    key = name.decode("latin-1").upper().replace("-", "_")
    return key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

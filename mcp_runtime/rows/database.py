"""Use of the database in threads that run for long. A lost connection costs a moment, never a thread or a fact."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from django.db import (
    DEFAULT_DB_ALIAS,
    InterfaceError,
    InternalError,
    OperationalError,
    close_old_connections,
    connection,
    connections,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper

logger = logging.getLogger("guildhall.runtime")

T = TypeVar("T")

REPORT_SECONDS = 60.0  # between two reports of the same damage
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
NO_TEXT = "Could not decode to UTF-8"  # Python's error for a text on a damaged page
RETRY_SECONDS = 30.0
RETRY_INTERVAL = 0.2
START_LOCK_SECONDS = 2.0  # for one wait at a start, because a stop is noticed only between two waits
SQLITE_DEFAULT = 5.0
START_RETRY_SECONDS = 2.0
# No space for a write, or for the shared memory beside the file, or another process writes for long.
PASSING_IN_SQLITE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY)
PASSING_IN_SQLITE_EXTENDED = (sqlite3.SQLITE_IOERR_SHMSIZE,)
# Classes of SQLSTATE: connection, a deadlock, resources (the disk among them), the server ends or starts.
PASSING_IN_POSTGRESQL = ("08", "40", "53", "57")
# Refused connections have no SQLSTATE, only the server's text. These errors stay until somebody fixes something.
REFUSED_BY_POSTGRESQL = re.compile(
    r'FATAL: +(password authentication failed|(role|database) ".*" does not exist|no pg_hba\.conf entry)'
)
ERASE_LOCK_SECONDS = 0.2  # for readers of old pages of SQLite's log. All writers wait meanwhile
PROGRESS_STEPS = 20_000  # of SQLite between two looks at the clock, about a millisecond
OWN_CONNECTION_SECONDS = 2  # the shortest timeout that PostgreSQL accepts


def damage(error: BaseException) -> str:
    """What to do about a damaged SQLite database. Empty if `error` has another reason."""
    cause = error if isinstance(error, sqlite3.Error) else error.__cause__
    # The low byte is the kind of error (sqlite.org/rescode.html). Errors of Python itself have no code.
    kind = getattr(cause, "sqlite_errorcode", 0) & 0xFF
    if not isinstance(cause, sqlite3.Error) or not (kind in DAMAGED or str(cause).startswith(NO_TEXT)):
        return ""
    path = str(connection.settings_dict["NAME"])
    # Move the journal with the file, because it may contain data that the file has not.
    moves = "; ".join(shlex.join(["mv", f"{path}{part}", f"{path}.damaged{part}"]) for part in ("", "-wal", "-shm"))
    return (
        f"The database {path} is damaged ({cause}). Stop the hall and put your last backup in its place: "
        f"{moves}; cp BACKUP {shlex.quote(path)}. See docs/backup.md."
    )


class DamageFilter(logging.Filter):
    """Replaces tracebacks in logs that a damaged database causes by the sentence of `damage`, once a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._next_report_at = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        sentence = damage(error) if error is not None else ""
        if sentence and time.monotonic() < self._next_report_at:
            return False
        if sentence:
            self._next_report_at = time.monotonic() + REPORT_SECONDS
            record.msg, record.args, record.exc_info = sentence, (), None
        return True


def persistently(work: Callable[[], T]) -> T:
    """Do `work`, and repeat it while the database cannot be reached, for at most RETRY_SECONDS.

    It must be safe to repeat. For facts that must not be lost, such as the end of a call or of a process.
    """
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            return work()
        except (OperationalError, InterfaceError) as error:
            if time.monotonic() > deadline or connection.in_atomic_block:
                raise
            logger.warning("the database cannot be reached (%s); trying again", str(error).strip())
            connection.close()
            time.sleep(RETRY_INTERVAL)


def passes(error: OperationalError) -> bool:
    """Whether the error may pass without a change in the hall: a full disk, a lock, a server that is not available."""
    cause = error.__cause__
    if isinstance(cause, sqlite3.Error):
        code = getattr(cause, "sqlite_errorcode", 0)
        return code & 0xFF in PASSING_IN_SQLITE or code in PASSING_IN_SQLITE_EXTENDED
    state = getattr(cause, "sqlstate", None)
    if state is not None:
        return bool(state.startswith(PASSING_IN_POSTGRESQL))
    return not REFUSED_BY_POSTGRESQL.search(str(error))


def _reason(error: OperationalError) -> OperationalError:
    """Why there is no connection. A pool says only how long it tried, so this tries one connection without the pool."""
    if type(error.__cause__).__name__ != "PoolTimeout":
        return error
    own = unpooled(OWN_CONNECTION_SECONDS)
    try:
        own.ensure_connection()
    except OperationalError as reason:
        return reason
    finally:
        own.close()
    return error


def wait_for_locks(seconds: float) -> None:
    """Set how long this thread's connection waits for SQLite's write lock. No signal handler runs during the wait."""
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA busy_timeout = {seconds * 1000:.0f}")


def patiently(work: Callable[[], T], is_over: Callable[[], bool]) -> T:
    """Do `work`, and repeat it every START_RETRY_SECONDS if its error may pass. Logs that once.

    It must be safe to repeat. For a start, because a supervisor of the hall would give up before a full disk has space
    again. Raises the last OperationalError once `is_over()`, which is called often.
    """
    is_logged = False
    while True:
        try:
            wait_for_locks(START_LOCK_SECONDS)
            result = work()
        except OperationalError as error:
            is_last = is_over()
            reason = error if is_last else _reason(error)
            connection.close()  # the next one waits for locks as long as the settings say
            if is_last:
                raise
            if not passes(reason):
                raise reason from reason.__cause__
            if not is_logged:
                text = " ".join(str(reason).split())
                logger.error("the database cannot be used (%s); the start waits until it can be used", text)
                is_logged = True
            again_at = time.monotonic() + START_RETRY_SECONDS
            # No threading.Event here. A signal handler that sets it during a wait for it would block for ever.
            while time.monotonic() < again_at and not is_over():
                time.sleep(RETRY_INTERVAL)
        else:
            _wait_as_usual()
            if is_logged:
                logger.info("the database can be used again; the start continues")
            return result


def _wait_as_usual() -> None:
    try:
        wait_for_locks(connection.settings_dict["OPTIONS"].get("timeout", SQLITE_DEFAULT))
    except OperationalError:
        connection.close()  # the next one has the usual timeout


def unpooled(timeout: float | None = None) -> BaseDatabaseWrapper:
    """A connection for this thread alone, which must close it. The pool retries for long, and then gives no reason.

    With `timeout`, SQLite waits for a lock for that many seconds. PostgreSQL waits OWN_CONNECTION_SECONDS.
    """
    separate_connection = connection.copy()
    options = separate_connection.settings_dict["OPTIONS"]
    options.pop("pool", None)
    if timeout is not None and separate_connection.vendor == "sqlite":
        options["timeout"] = timeout
    elif timeout is not None:
        options["connect_timeout"] = OWN_CONNECTION_SECONDS
    return separate_connection


def hang_up(separate_connection: BaseDatabaseWrapper) -> None:
    """End the wait for a PostgreSQL that does not answer. For a call from another thread."""
    server_connection = separate_connection.connection
    if separate_connection.vendor == "postgresql" and server_connection is not None:
        with contextlib.suppress(Exception), socket.socket(fileno=os.dup(server_connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)


def leave_the_pool() -> None:
    """Give this thread its own PostgreSQL connection. After an outage, a pool would make it wait for seconds."""
    if connection.vendor == "postgresql":
        connections[DEFAULT_DB_ALIAS] = unpooled(OWN_CONNECTION_SECONDS)
        # A limit of time is a second command in a message, and PostgreSQL binds values only in messages of one.
        connection.settings_dict["OPTIONS"].pop("server_side_binding", None)


LOCK_LIMIT = "3s"  # shorter than the time after which a node's fence strikes, as Hall.IDLE_LIMIT


@contextlib.contextmanager
def short_transaction() -> Iterator[None]:
    """A transaction for which others wait at most Hall.IDLE_LIMIT, and which itself waits LOCK_LIMIT for a lock.

    Raises OperationalError after that, or if this process was paused in it. Within another transaction, that one
    decides.
    """
    is_outermost = not connection.in_atomic_block
    try:
        with transaction.atomic():
            if is_outermost and connection.vendor == "postgresql":
                from roster.models import Hall  # manage.py imports this module before there are models

                with connection.cursor() as cursor:
                    cursor.execute(
                        "SELECT set_config('idle_in_transaction_session_timeout', %s, true), "
                        "set_config('lock_timeout', %s, true)",
                        [Hall.IDLE_LIMIT, LOCK_LIMIT],
                    )
            yield
    except InternalError as error:  # so psycopg calls the end of a transaction after IDLE_LIMIT. It may be repeated
        raise OperationalError(str(error)) from error


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Limit each statement in this block on a connection outside the pool. SQLite has no limit.

    The server ends a statement that waits for a lock. If there is no answer, the connection ends. Both raise Django's
    OperationalError.
    """
    own = connections[DEFAULT_DB_ALIAS]
    if own.vendor != "postgresql":
        yield
        return
    is_over, lock = threading.Event(), threading.Lock()

    def end_connection() -> None:
        # Again and again, because there is nothing to end while the server has not accepted the connection yet.
        while not is_over.wait(seconds):
            with lock:
                if not is_over.is_set():  # after the block, the number of the socket may mean another one
                    hang_up(own)

    threading.Thread(target=end_connection, name="time-limit", daemon=True).start()
    try:
        with own.execute_wrapper(partial(_execute_within, seconds)):
            yield
    finally:
        with lock:
            is_over.set()


@contextlib.contextmanager
def statement_limit(seconds: float) -> Iterator[Callable[[], bool]]:
    """Limit the statements in this block, on this thread's connection. Yields whether the limit has ended one.

    Such a statement raises Django's OperationalError. PostgreSQL limits each statement, SQLite all of them together.
    """
    if connection.vendor == "sqlite":
        connection.ensure_connection()
        deadline = time.monotonic() + seconds
        database: sqlite3.Connection = connection.connection
        database.set_progress_handler(lambda: time.monotonic() > deadline, PROGRESS_STEPS)
        try:
            yield lambda: time.monotonic() > deadline
        finally:
            database.set_progress_handler(None, 0)
        return
    started_at = time.monotonic()
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [f"{seconds * 1000:.0f}"])
        yield lambda: time.monotonic() >= started_at + seconds


def erase_log() -> bool:
    """Write SQLite's log (WAL) to the file and empty it, so that no old page is left in it. False if it is in use."""
    if connection.vendor != "sqlite":
        return True
    if connection.in_atomic_block:
        return False
    wait_for_locks(ERASE_LOCK_SECONDS)
    try:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")  # while others write. The next one makes them wait
            cursor.fetchone()
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return not cursor.fetchone()[0]
    finally:
        _wait_as_usual()


def _execute_within(
    seconds: float, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]
) -> Any:
    # Both in one message, which is one transaction. With a transaction of several messages, a thread that is stopped
    # between two of them would keep the row locked. A limit for the whole connection would stay in a pooler's one.
    result = execute(f"SET LOCAL statement_timeout = {seconds * 1000:.0f}; {sql}", params, many, context)
    context["cursor"].nextset()  # from the result of SET to that of the statement
    return result


def unit_of_work(work: Callable[[], T]) -> T:
    """Do `work`. Replaces a broken connection before it, and gives the connection back after it."""
    give_connection_back()
    try:
        return work()
    finally:
        give_connection_back()


def give_connection_back() -> None:
    """Give this thread's connection back to the pool. Do so before every long wait, so that others do not starve.

    SQLite's connection stays open, and so does a connection in a transaction.
    """
    if not connection.in_atomic_block:  # Django would close it there
        close_old_connections()

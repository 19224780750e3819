"""The thread that renews the lease, and the limits of its connection to PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from django.db import OperationalError, connection, connections, transaction

from mcp_runtime.rows import database, lease
from mcp_runtime.runtime import fence, heartbeat
from mcp_runtime.runtime.heartbeat import Heartbeat
from roster.models import Node
from tests.conftest import eventually
from tests.support.machine import Stopwatch

pytestmark = pytest.mark.django_db(transaction=True)
only_on_postgresql = pytest.mark.skipif(
    "postgres" not in os.environ.get("DATABASE_URL", ""), reason="SQLite has no server that could be silent"
)


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The moments that the fence gets."""
    moments: list[float] = []
    monkeypatch.setattr(fence, "note_renewal", moments.append)
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.01)
    return moments


@pytest.fixture
def start() -> Iterator[Callable[[uuid.UUID], threading.Event]]:
    """Starts the thread that renews a lease. Returns an event that is set when the lease was lost."""
    is_over = threading.Event()

    def start_heartbeat(lease_id: uuid.UUID) -> threading.Event:
        is_lost = threading.Event()
        Heartbeat(lease_id, is_over, lambda: is_lost.set() or True).start()  # type: ignore[func-returns-value]
        return is_lost

    yield start_heartbeat
    is_over.set()
    names = {"lease", "heartbeat", "time-limit"}
    eventually(lambda: names.isdisjoint(thread.name for thread in threading.enumerate()))


def test_the_fence_gets_the_moment_before_each_renewal_was_sent(
    renewals: list[float], start: Callable[[uuid.UUID], threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[float] = []
    renew = lease.renew

    def record_renewal(lease_id: uuid.UUID, **_: bool) -> bool:
        sent.append(fence.now())
        return renew(lease_id)

    monkeypatch.setattr(lease, "renew", record_renewal)
    start(lease.take())
    eventually(lambda: len(renewals) >= 3)
    assert all(noted <= moment for noted, moment in zip(renewals, sent, strict=False))
    assert all(moment < noted for moment, noted in zip(sent, renewals[1:], strict=False))


def test_the_fence_hears_nothing_of_renewals_that_failed(
    renewals: list[float], start: Callable[[uuid.UUID], threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[float] = []

    def fail(_: uuid.UUID, **__: bool) -> bool:
        tries.append(fence.now())
        raise OperationalError("the database is away")

    monkeypatch.setattr(lease, "renew", fail)
    start(lease.take())
    eventually(lambda: len(tries) >= 3)
    assert renewals == []


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), OSError("no memory"), OperationalError()])
def test_the_lease_is_renewed_again_after_any_failure(
    renewals: list[float],
    start: Callable[[uuid.UUID], threading.Event],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    errors, renew = [error], lease.renew

    def fail_once(lease_id: uuid.UUID, **_: bool) -> bool:
        if errors:
            raise errors.pop()
        return renew(lease_id)

    monkeypatch.setattr(lease, "renew", fail_once)
    start(lease.take())
    eventually(lambda: len(renewals) >= 2)


def test_the_fence_hears_nothing_of_a_lost_lease(
    renewals: list[float], start: Callable[[uuid.UUID], threading.Event]
) -> None:
    lease.take()
    is_lost = start(uuid.uuid4())
    assert is_lost.wait(10)
    assert renewals == []


def test_a_start_whose_lease_was_taken_by_an_earlier_try_is_a_heartbeat() -> None:
    lease_id = uuid.uuid4()
    lease.take(lambda node: None, None, lease_id)
    Node.objects.update(heartbeat_at=None)
    assert lease.take(lambda node: None, None, lease_id) == lease_id
    assert Node.objects.get().heartbeat_at is not None


# The limit of a renewal -------------------------------------------------------------------------------------------


class Line:
    """A proxy in front of the database. When `is_silent` is set, it passes nothing on any more."""

    def __init__(self) -> None:
        values = connection.settings_dict
        self._target = (values["HOST"] or "127.0.0.1", int(values["PORT"] or 5432))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.is_silent = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _connect(self) -> socket.socket:
        host, port = self._target
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        line = socket.socket(socket.AF_UNIX)
        line.connect(f"{host}/.s.PGSQL.{port}")
        return line

    def _run(self) -> None:
        other_end: dict[socket.socket, socket.socket] = {}
        with contextlib.ExitStack() as sockets:
            while not self._is_over.is_set():
                for ready in select.select([self._listener, *other_end], [], [], 0.02)[0]:
                    if ready is self._listener:
                        client, server = self._listener.accept()[0], self._connect()
                        sockets.enter_context(client)
                        sockets.enter_context(server)
                        other_end |= {client: server, server: client}
                        continue
                    data = ready.recv(65536)
                    if not data:
                        other_end.pop(other_end.pop(ready), None)
                    elif not self.is_silent.is_set():
                        other_end[ready].sendall(data)

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._listener.close()


@pytest.fixture
def line() -> Iterator[Line]:
    """The database of this thread is behind this line."""
    before = connections["default"]
    line = Line()
    connections["default"] = own = database.unpooled(2)
    own.settings_dict |= {"HOST": "127.0.0.1", "PORT": line.port}
    try:
        yield line
    finally:
        own.close()
        connections["default"] = before
        line.close()


@only_on_postgresql
def test_a_renewal_fails_in_time_while_the_server_is_silent(line: Line) -> None:
    lease_id = lease.take()
    with database.time_limit(5):
        assert lease.renew(lease_id)
    line.is_silent.set()
    watch = Stopwatch()
    with pytest.raises(OperationalError), database.time_limit(0.5):
        lease.renew(lease_id)
    assert 0.4 < watch.elapsed < 1.5
    connection.close()
    line.is_silent.clear()
    assert lease.renew(lease_id)


@only_on_postgresql
def test_a_connection_that_no_server_answers_fails_in_time(line: Line) -> None:
    lease_id = lease.take()
    connection.close()
    line.is_silent.set()
    watch = Stopwatch()
    with pytest.raises(OperationalError), database.time_limit(0.5):
        lease.renew(lease_id)
    assert watch.elapsed < 3.5  # two seconds is the shortest time for a connection


@only_on_postgresql
def test_a_renewal_that_waits_for_a_lock_fails_in_time_and_leaves_nothing_in_the_server(
    renewals: list[float], start: Callable[[uuid.UUID], threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "RENEWAL_SECONDS", 0.3)
    lease_id = lease.take()
    with transaction.atomic():
        Node.objects.select_for_update().get()
        start(lease_id)
        time.sleep(1.5)
        assert renewals == []
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
            assert cursor.fetchone()[0] <= 1
    eventually(lambda: len(renewals) > 0, what="the lease is renewed after the lock")


@only_on_postgresql
def test_the_limit_of_a_renewal_stays_in_its_message_and_a_renewal_reports_its_row() -> None:
    lease_id = lease.take()
    with database.time_limit(7):
        assert lease.renew(lease_id)
        assert not lease.renew(uuid.uuid4())
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone()[0] == "0"


@only_on_postgresql
def test_a_thread_that_leaves_the_pool_has_its_own_connection() -> None:
    before = connections["default"]
    try:
        database.leave_the_pool()
        own = connections["default"]
        assert own is not before
        assert "pool" not in own.settings_dict["OPTIONS"]
        with database.time_limit(5):
            assert lease.hall()
        own.close()
    finally:
        connections["default"] = before


def test_on_sqlite_a_thread_keeps_its_connection() -> None:
    if connection.vendor == "sqlite":
        before = connections["default"]
        database.leave_the_pool()
        with database.time_limit(0.001):
            lease.hall()
        assert connections["default"] is before

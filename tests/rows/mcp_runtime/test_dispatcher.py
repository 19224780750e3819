"""The iterations of the dispatcher with members that are test objects, and its loop with a real database."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import DataError, OperationalError, connection
from django.db.models import QuerySet
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcp_runtime.calls import dispatcher, outcomes, queue_watch, running, statements, transitions, waiting_for_members
from mcp_runtime.calls.dispatcher import Dispatcher
from mcp_runtime.calls.queue_watch import QueueWatch
from mcp_runtime.calls.transitions import Outcome
from mcp_runtime.client.client import JsonRpcClient
from mcp_runtime.client.exchanges import Exchange
from mcp_runtime.members.lifecycle import Lifecycle
from mcp_runtime.members.live import LiveMember
from mcp_runtime.members.restarts import Restarts, restart_delay
from mcp_runtime.members.silence import Silence
from mcp_runtime.protocol.errors import (
    ClientError,
    ConnectError,
    ProtocolError,
    RemoteError,
    RequestCancelledError,
    RequestTimeoutError,
    ToolError,
)
from mcp_runtime.rows import clock, lease
from mcp_runtime.runtime import tasks
from roster.models import Call, Contract, GuildMember, Token, Tool
from tests.conftest import eventually
from tests.support.leases import give_lease_to_another_runtime
from tests.support.machine import Stopwatch

pytestmark = pytest.mark.django_db

Status = GuildMember.Status
RESULT = {"content": [{"type": "text", "text": "done"}]}
LATER = timedelta(hours=1)


class Client:
    """Responds to calls as the test says. While `go_on` is cleared, it does not respond."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, float]] = []
        self.cancel_reasons: list[str] = []
        self.exchanges: list[Exchange] = []
        self.progress: dict[str, list[dict[str, Any]]] = {}  # tool -> progress notifications before the response
        self.respond: Callable[[str], dict[str, Any]] = lambda tool: RESULT
        self.go_on = threading.Event()
        self.go_on.set()
        self.running = 0
        self.most_at_once = 0
        self._lock = threading.Lock()

    def invoke_tool(self, name: str, arguments: Any, timeout: float, exchange: Exchange) -> dict[str, Any]:
        with self._lock:
            self.calls.append((name, arguments, timeout))
            self.exchanges.append(exchange)
            self.running += 1
            self.most_at_once = max(self.most_at_once, self.running)
        try:
            exchange.begin(len(self.calls), timeout)
            for params in self.progress.get(name, []):
                exchange.on_progress(params)  # type: ignore[misc]
            while not self.go_on.wait(0.005):
                if exchange.is_aborted:
                    raise RequestCancelledError
            return self.respond(name)
        finally:
            with self._lock:
                self.running -= 1

    def cancel(self, exchange: Exchange, reason: str) -> None:
        self.cancel_reasons.append(reason)
        exchange.abort()


@dataclass
class Process:
    exited: threading.Event = field(default_factory=threading.Event)
    exit_code: int | None = None


class ConnectedMember:
    """A member that is connected."""

    def __init__(self, member: GuildMember) -> None:
        self.member_id, self.name = member.pk, member.name
        self.client, self.process = Client(), Process()
        self.silence = Silence()
        self.calls = self.relayed_calls = 0
        self.is_leaving = False
        self.held_tools: frozenset[str] = frozenset()
        self.big_outcome_lock = threading.Lock()
        self.stop_requested = threading.Event()
        self.users = None

    describe_end = LiveMember.describe_end
    client_of = LiveMember.client_of


class Watch(QueueWatch):
    """Counts its notifications."""

    notifications = 0

    def notify(self) -> None:
        self.notifications += 1
        super().notify()


class DispatcherHall:
    """The dispatcher and the objects that it works with."""

    def __init__(self, run_in_pool: Callable[..., Any], **options: Any) -> None:
        self.lease_id = lease.take()
        self.connected_members: dict[int, ConnectedMember] = {}
        self.connection_failures: list[tuple[str, str]] = []
        self.wake_count = 0
        self.restarts = Restarts()
        self.awaited_ids: set[int] = set()
        self.ended_count = 0  # calls that the pool has finished
        self.has_open_connection = False
        self._run_in_pool = run_in_pool
        has_broker = options.get("has_broker", False)
        self.watch = Watch(lease_id=self.lease_id, wake_supervisor=self.wake, has_broker=has_broker)
        self.dispatcher = Dispatcher(
            lease_id=self.lease_id,
            lifecycle=self,  # type: ignore[arg-type]
            run_in_pool=self.run_in_pool,
            concurrency=options.get("concurrency", 1000),
            wake_supervisor=self.wake,
            watch=self.watch,
        )

    # The methods of a lifecycle that the dispatcher uses.

    def connected_member(self, member_id: int) -> Any:
        return self.connected_members.get(member_id)

    def handle_connection_failure(self, connected_member: ConnectedMember, error: ConnectError) -> None:
        self.connection_failures.append((connected_member.name, str(error)))

    def own_row(self, member_id: int) -> QuerySet[GuildMember]:
        return GuildMember.objects.filter(pk=member_id)

    def wake(self) -> None:
        self.wake_count += 1

    def run_in_pool(self, function: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._run_in_pool(self._run, (function, args))

    def _run(self, function: Callable[..., None], args: tuple[Any, ...]) -> None:
        function(*args)
        self.has_open_connection = connection.connection is not None
        if threading.current_thread() is not threading.main_thread():
            connection.close()
        self.ended_count += 1

    # The methods for tests.

    def add(self, name: str = "anna", *, connected: bool = True, **columns: Any) -> GuildMember:
        columns = {"status": "connected" if connected else "disconnected", **columns}
        member = GuildMember.objects.create(name=name, directory=name, lease_id=self.lease_id, **columns)
        if connected:
            self.connected_members[member.pk] = ConnectedMember(member)
        return member

    def client(self, member: GuildMember) -> Client:
        return self.connected_members[member.pk].client

    def run_once(self) -> None:
        """Run an iteration with a sweep, whether or not a notification arrived."""
        self.watch.request_sweep()
        self.dispatcher.run_once()

    def is_notified(self) -> bool:
        """Whether the dispatcher was notified since the last call of this method."""
        notifications, self.watch.notifications = self.watch.notifications, 0
        return notifications > 0

    def run_all(self) -> None:
        """Run iterations until no call runs."""

        def is_done() -> bool:
            self.run_once()
            return self.dispatcher.is_idle

        eventually(is_done)


def run_inline(function: Callable[..., None], args: tuple[Any, ...]) -> None:
    function(*args)


@pytest.fixture
def hall() -> DispatcherHall:
    """Calls run inside the iteration that claims them. The next one writes their outcomes."""
    return DispatcherHall(run_inline)


@pytest.fixture
def make_hall() -> Iterator[Callable[..., DispatcherHall]]:
    """Halls whose calls run in threads."""
    halls: list[tuple[DispatcherHall, ThreadPoolExecutor]] = []

    def make(**options: Any) -> DispatcherHall:
        pool = ThreadPoolExecutor(50)
        halls.append((DispatcherHall(lambda function, args: pool.submit(function, *args), **options), pool))
        return halls[-1][0]

    yield make
    for hall, pool in halls:
        for connected_member in hall.connected_members.values():
            connected_member.client.go_on.set()
        pool.shutdown()
        if is_looping():
            hall.dispatcher.stop()


def is_looping() -> bool:
    return any(thread.name == "dispatcher" for thread in threading.enumerate())


def add_queued_call(member: GuildMember, tool: str = "echo", **columns: Any) -> Call:
    values = {"arguments": {"tool": tool}, "timeout": 30, "source": "rest", **columns}
    return Call.objects.create(member=member, tool_name=tool, **values)


def user_named(name: str = "") -> User:
    """The user with this name, or a new user who has made no call yet."""
    return User.objects.get_or_create(username=name or f"user-{User.objects.count()}")[0]


def row_of(call: Call) -> Call:
    return Call.objects.get(pk=call.pk)


def statuses_of(*calls: Call) -> list[str]:
    return [row_of(call).status for call in calls]


def function_that_raises(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


# A call -----------------------------------------------------------------------------------------------------------


def test_a_queued_call_does_not_run_if_its_tool_is_held_by_now(hall: DispatcherHall) -> None:
    anna = hall.add()
    Tool.objects.create(member=anna, name="echo", is_held=True)
    Contract.objects.create(member=anna, kind="tool", name="echo", is_held=True, reason="a text changed")
    hall.connected_members[anna.pk].held_tools = frozenset({"echo"})
    call = add_queued_call(anna, "echo", arguments={}, timeout=7)
    hall.run_once()
    hall.run_once()
    row = row_of(call)
    assert (row.status, row.error_kind) == ("failed", "unavailable")
    assert row.error_message.startswith("tool 'echo' of member 'anna' is held, because a text changed. Nobody can use")
    Tool.objects.update(is_held=False)  # approved, before the member is listed again
    call = add_queued_call(anna, "echo", arguments={}, timeout=7)
    hall.run_once()
    hall.run_once()
    assert row_of(call).status == "succeeded"


def test_a_queued_call_is_claimed_and_run_and_its_outcome_is_written(hall: DispatcherHall) -> None:
    anna = hall.add()
    call = add_queued_call(anna, "echo", arguments={"text": "a"}, timeout=7)
    hall.run_once()
    assert row_of(call).status == "running"
    assert row_of(call).lease_id == hall.lease_id
    assert not hall.dispatcher.is_idle  # until its outcome is written
    hall.run_once()
    row = row_of(call)
    assert (row.status, row.result) == ("succeeded", RESULT)
    assert hall.client(anna).calls == [("echo", {"text": "a"}, 7)]
    assert hall.dispatcher.is_idle


def test_the_oldest_calls_of_all_members_come_first(hall: DispatcherHall) -> None:
    anna, bob = hall.add("anna"), hall.add("bob")
    order: list[str] = []
    for member in (anna, bob):
        hall.client(member).respond = lambda tool: order.append(tool) or RESULT  # type: ignore[func-returns-value]
    for number in range(100):
        add_queued_call((anna, bob)[number % 2], str(number))
    GuildMember.objects.update(manifest={"max_concurrency": 100})
    hall.run_once()
    assert order == [str(number) for number in range(100)]


def test_the_outcome_of_a_call_is_written_before_the_queue_is_read_again(hall: DispatcherHall) -> None:
    anna = hall.add(manifest={"max_concurrency": 1})
    first, second = add_queued_call(anna), add_queued_call(anna)
    hall.run_once()
    assert statuses_of(first, second) == ["running", "queued"]
    hall.dispatcher.run_once()  # no notification, no sweep: the free slot is the reason
    assert statuses_of(first, second) == ["succeeded", "running"]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (ToolError("no paper", {"isError": True}), "failed", "tool"),
        (RemoteError(-32602, "no"), "failed", "protocol"),
        (ProtocolError("html"), "failed", "protocol"),
        (RequestTimeoutError(7), "failed", "timeout"),
        (RequestCancelledError(), "cancelled", ""),
        (ClientError("odd"), "failed", "transport"),
        (ZeroDivisionError("a bug"), "failed", "transport"),
    ],
)
def test_a_failed_call_ends_with_its_error_kind_and_the_member_stays_connected(
    hall: DispatcherHall, error: Exception, status: str, kind: str
) -> None:
    anna = hall.add()
    hall.client(anna).respond = function_that_raises(error)
    call = add_queued_call(anna)
    hall.run_all()
    row = row_of(call)
    assert (row.status, row.error_kind) == (status, kind)
    assert row.error_message.startswith("tool 'echo' of member 'anna': ")
    assert hall.connection_failures == []
    assert hall.dispatcher.calls_in(anna.pk) == 0


def test_a_response_that_is_not_mcp_is_logged(hall: DispatcherHall, caplog: pytest.LogCaptureFixture) -> None:
    anna = hall.add()
    hall.client(anna).respond = function_that_raises(ProtocolError("answered with html"))
    add_queued_call(anna)
    hall.run_all()
    assert "tool 'echo' of member 'anna': answered with html" in caplog.text


def test_a_call_whose_deadline_passed_is_cancelled_at_the_member_too(hall: DispatcherHall) -> None:
    anna = hall.add()
    hall.client(anna).respond = function_that_raises(RequestTimeoutError(7))
    add_queued_call(anna)
    hall.run_all()
    assert hall.client(anna).cancel_reasons == ["the deadline passed"]


# In the transaction of a test, the end of a unit of work would close its connection.
@pytest.mark.django_db(transaction=True)
def test_a_refused_connection_is_reported_to_the_lifecycle(
    hall: DispatcherHall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "EXIT_GRACE", 0.01)
    anna = hall.add()
    hall.client(anna).respond = function_that_raises(ConnectError("connection refused"))
    call = add_queued_call(anna)
    hall.run_all()
    assert hall.connection_failures == [("anna", "connection refused")]
    assert (row_of(call).error_kind, row_of(call).status) == ("transport", "failed")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("error", "is_reported", "kind"),
    [
        (ConnectError("reset"), False, "transport"),
        (ConnectError("connection refused", is_refusal=True), True, "unavailable"),
    ],
)
def test_a_member_that_refuses_one_more_connection_stays_connected_while_calls_run(
    make_hall: Callable[..., DispatcherHall],
    monkeypatch: pytest.MonkeyPatch,
    error: ConnectError,
    is_reported: bool,
    kind: str,
) -> None:
    """A correct server of one call at a time has a short queue of connections. After a refusal, nobody listens."""
    monkeypatch.setattr(dispatcher, "EXIT_GRACE", 0.01)
    hall = make_hall()
    anna = hall.add()
    client = hall.client(anna)
    client.go_on.clear()
    running_call = add_queued_call(anna, "served")
    hall.run_once()
    eventually(lambda: client.running == 1)
    client.invoke_tool = lambda *_, **__: function_that_raises(error)()  # type: ignore[method-assign]
    failed_call = add_queued_call(anna, "turned away")
    hall.run_once()
    eventually(lambda: (hall.run_once(), statuses_of(failed_call) == ["failed"])[1])
    assert bool(hall.connection_failures) is is_reported
    assert row_of(failed_call).error_kind == kind
    client.go_on.set()
    eventually(lambda: (hall.run_once(), statuses_of(running_call) == ["succeeded"])[1])


def test_an_exit_during_the_call_is_the_reason_of_a_broken_connection(hall: DispatcherHall) -> None:
    anna = hall.add()
    process = hall.connected_members[anna.pk].process
    process.exit_code = -9
    process.exited.set()
    hall.client(anna).respond = function_that_raises(ConnectError("reset"))
    call = add_queued_call(anna)
    hall.run_all()
    assert row_of(call).error_message.endswith("the member exited during the call, with signal SIGKILL")
    assert hall.connection_failures == []


def test_an_exit_before_the_call_is_another_error_than_an_exit_during_the_call(hall: DispatcherHall) -> None:
    anna = hall.add()
    process = hall.connected_members[anna.pk].process
    process.exit_code = 3
    process.exited.set()
    hall.client(anna).respond = function_that_raises(ConnectError("connection refused", is_refusal=True))
    call = add_queued_call(anna)
    hall.run_all()
    row = row_of(call)
    assert row.error_kind == "unavailable"
    assert "the member exited before it accepted the call, with exit code 3; the call was not sent" in row.error_message


@pytest.mark.django_db(transaction=True)
def test_a_call_ends_even_if_the_failed_connection_cannot_be_recorded(
    hall: DispatcherHall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "EXIT_GRACE", 0.01)
    anna = hall.add()
    monkeypatch.setattr(hall, "handle_connection_failure", function_that_raises(OperationalError("gone")))
    hall.client(anna).respond = function_that_raises(ConnectError("refused"))
    call = add_queued_call(anna)
    hall.run_all()
    assert (row_of(call).status, row_of(call).error_kind) == ("failed", "transport")


@pytest.mark.django_db(transaction=True)
def test_a_failed_connection_leaves_no_database_connection_in_the_pools_thread(
    make_hall: Callable[..., DispatcherHall], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool of threads would keep every connection of the database's pool."""
    monkeypatch.setattr(dispatcher, "EXIT_GRACE", 0.01)
    hall = make_hall()

    def read_rows(connected_member: Any, error: Any) -> None:
        GuildMember.objects.count()

    monkeypatch.setattr(hall, "handle_connection_failure", read_rows)
    anna = hall.add()
    hall.client(anna).respond = function_that_raises(ConnectError("refused"))
    add_queued_call(anna)
    hall.run_all()
    eventually(lambda: hall.ended_count == 1)
    assert hall.has_open_connection is (connection.vendor == "sqlite")


# Slots ------------------------------------------------------------------------------------------------------------


def test_no_more_calls_run_at_a_time_than_the_member_allows(
    make_hall: Callable[..., DispatcherHall],
) -> None:
    hall = make_hall()
    anna = hall.add(manifest={"max_concurrency": 3})
    client = hall.client(anna)
    client.go_on.clear()
    calls = [add_queued_call(anna, requested_by=user_named()) for _ in range(10)]
    hall.run_once()
    eventually(lambda: client.running == 3)
    hall.run_once()
    assert statuses_of(*calls) == ["running"] * 3 + ["queued"] * 7
    assert (hall.dispatcher.calls_in(anna.pk), hall.connected_members[anna.pk].calls) == (3, 3)
    client.go_on.set()
    hall.run_all()
    eventually(lambda: (hall.run_all(), statuses_of(*calls) == ["succeeded"] * 10)[1])
    assert client.most_at_once == 3


def test_sixteen_calls_run_at_a_time_without_a_limit_in_the_manifest(make_hall: Callable[..., DispatcherHall]) -> None:
    hall = make_hall()
    anna = hall.add()
    hall.client(anna).go_on.clear()
    for _ in range(40):
        add_queued_call(anna, requested_by=user_named())
    hall.run_once()
    assert Call.objects.filter(status="running").count() == 16


def test_a_member_full_of_hung_calls_delays_no_other_member(make_hall: Callable[..., DispatcherHall]) -> None:
    hall = make_hall()
    hung_member, other_member = hall.add("hung", manifest={"max_concurrency": 2}), hall.add("well")
    hall.client(hung_member).go_on.clear()
    hung_calls = [add_queued_call(hung_member, requested_by=user_named("ab"[number % 2])) for number in range(100)]
    other_call = add_queued_call(other_member)
    hall.run_once()
    eventually(lambda: (hall.run_once(), row_of(other_call).status == "succeeded")[1])
    assert Call.objects.filter(member=hung_member, status="running").count() == 2
    assert statuses_of(hung_calls[-1]) == ["queued"]


def test_a_slot_that_becomes_free_is_used_at_once(
    make_hall: Callable[..., DispatcherHall], monkeypatch: pytest.MonkeyPatch
) -> None:
    hall = make_hall(has_broker=True)  # without a broker, the database is read every few milliseconds
    anna = hall.add(manifest={"max_concurrency": 1})
    client = hall.client(anna)
    calls = [add_queued_call(anna) for _ in range(5)]
    monkeypatch.setattr(queue_watch, "SWEEP_SECONDS", 3600.0)
    hall.run_once()
    for count in range(1, 6):
        hall.watch.wait(lambda: False)  # until it is notified, for no sweep is due
        hall.dispatcher.run_once()
        assert statuses_of(*calls[:count]) == ["succeeded"] * count
    assert client.most_at_once == 1


def test_no_more_calls_run_at_a_time_than_the_hall_allows(make_hall: Callable[..., DispatcherHall]) -> None:
    hall = make_hall(concurrency=5)
    members = [hall.add(name) for name in "abcdef"]
    for member in members:
        hall.client(member).go_on.clear()
    calls = [add_queued_call(members[number % 6], requested_by=user_named()) for number in range(12)]
    hall.run_once()
    assert statuses_of(*calls) == ["running"] * 5 + ["queued"] * 7
    for member in members:
        hall.client(member).go_on.set()
    eventually(lambda: (hall.run_once(), statuses_of(*calls) == ["succeeded"] * 12)[1])


def test_members_whose_calls_hang_leave_slots_for_the_others(make_hall: Callable[..., DispatcherHall]) -> None:
    """None gets over half. The last quarter is for members that run nothing, half of it also for such requesters."""
    hall = make_hall(concurrency=40)
    hung_members = [hall.add(name, manifest={"max_concurrency": 1024}) for name in ("greedy", "greedier")]
    for member in hung_members:
        hall.client(member).go_on.clear()
        for _ in range(50):
            add_queued_call(member, requested_by=user_named())
    hall.run_once()
    assert [hall.dispatcher.calls_in(member.pk) for member in hung_members] == [20, 15]
    quick_members = [hall.add(f"quick-{number}") for number in range(12)]
    calls = [add_queued_call(member) for member in quick_members for _ in range(3)]
    eventually(lambda: (hall.run_once(), set(statuses_of(*calls)) == {"succeeded"})[1])
    assert [hall.dispatcher.calls_in(member.pk) for member in hung_members] == [20, 15]
    hall.client(hung_members[0]).go_on.set()  # excluded calls run when slots are free again
    eventually(lambda: (hall.run_once(), hall.dispatcher.calls_in(hung_members[1].pk) == 20)[1])


def test_a_hall_with_one_slot_runs_calls_one_by_one(make_hall: Callable[..., DispatcherHall]) -> None:
    hall = make_hall(concurrency=1)
    calls = [add_queued_call(hall.add(name)) for name in "ab"]
    eventually(lambda: (hall.run_once(), statuses_of(*calls) == ["succeeded"] * 2)[1])


def test_a_full_hall_reads_the_queue_again_when_a_slot_is_free(make_hall: Callable[..., DispatcherHall]) -> None:
    hall = make_hall(concurrency=2)
    anna, bob = hall.add("anna"), hall.add("bob")
    calls = [
        add_queued_call(anna, requested_by=user_named("a")),
        add_queued_call(bob),
        add_queued_call(anna, requested_by=user_named("a")),
    ]
    hall.run_once()
    eventually(lambda: hall.ended_count == 2)
    hall.dispatcher.run_once()
    assert statuses_of(*calls)[:2] == ["succeeded"] * 2
    assert statuses_of(*calls)[2] != "queued"


def test_calls_of_one_token_that_hang_keep_no_other_token_waiting(make_hall: Callable[..., DispatcherHall]) -> None:
    hall = make_hall()
    anna = hall.add()
    ana, ben = user_named("ana"), user_named("ben")
    tokens = [Token.objects.create(user=user, name=name, digest=name) for user, name in ((ana, "a"), (ana, "b"))]
    hall.client(anna).go_on.clear()
    hung_calls = [add_queued_call(anna, requested_by=ana, token=tokens[0]) for _ in range(64)]
    other_calls = [
        add_queued_call(anna, requested_by=ana, token=tokens[1]),
        add_queued_call(anna, requested_by=ben),
        add_queued_call(anna),
    ]
    hall.run_once()
    assert statuses_of(*other_calls) == ["running"] * 3
    assert statuses_of(*hung_calls) == ["running"] * 12 + ["queued"] * 52
    hall.client(anna).go_on.set()
    eventually(lambda: (hall.run_once(), set(statuses_of(*hung_calls, *other_calls)) == {"succeeded"})[1])


def test_calls_of_one_requester_that_hang_in_every_member_leave_slots_of_the_hall(
    make_hall: Callable[..., DispatcherHall],
) -> None:
    hall = make_hall(concurrency=32)
    members = [hall.add(name) for name in "abcdef"]
    for member in members:
        hall.client(member).go_on.clear()
        for _ in range(10):
            add_queued_call(member, requested_by=user_named("greedy"))
    other_calls = [add_queued_call(member, requested_by=user_named("other")) for member in members[:2]]
    hall.run_once()
    assert Call.objects.filter(status="running", requested_by=user_named("greedy")).count() == 24 + 3
    assert statuses_of(other_calls[0]) == ["running"]
    assert Call.objects.filter(status="running").count() < 32


def test_hung_members_leave_slots_for_other_members_and_the_same_requester(
    make_hall: Callable[..., DispatcherHall],
) -> None:
    hall = make_hall(concurrency=64)
    for name in ("bad", "worse", "worst"):
        hung_member = hall.add(name, manifest={"max_concurrency": 1000})
        hall.client(hung_member).go_on.clear()
        for _ in range(70):
            add_queued_call(hung_member)
    other_member = hall.add("well")
    calls = [add_queued_call(other_member) for _ in range(5)]
    eventually(lambda: (hall.run_once(), set(statuses_of(*calls)) == {"succeeded"})[1])


def test_a_claim_that_fails_gives_its_slots_back(hall: DispatcherHall, monkeypatch: pytest.MonkeyPatch) -> None:
    anna = hall.add()
    call = add_queued_call(anna)
    with monkeypatch.context() as patch:
        patch.setattr(statements, "claim", function_that_raises(OperationalError("away")))
        with pytest.raises(OperationalError):
            hall.dispatcher.run_queued_calls()
    assert hall.dispatcher.calls_in(anna.pk) == 0
    hall.run_all()
    assert statuses_of(call) == ["succeeded"]


def test_a_long_queue_is_claimed_in_batches_of_few_statements(
    hall: DispatcherHall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "CLAIM_BATCH", 10)
    anna = hall.add(manifest={"max_concurrency": 200})
    for _ in range(95):
        add_queued_call(anna)
    with CaptureQueriesContext(connection) as queries:
        hall.dispatcher.run_queued_calls()
    assert Call.objects.filter(status="running").count() == 95
    assert len(queries) == 20  # ten times a read and a claim


# Claims -----------------------------------------------------------------------------------------------------------


def test_a_call_that_was_cancelled_before_the_claim_is_not_run(
    hall: DispatcherHall, monkeypatch: pytest.MonkeyPatch
) -> None:
    anna = hall.add()
    first, second, third = add_queued_call(anna, "1"), add_queued_call(anna, "2"), add_queued_call(anna, "3")
    original = statements.claim

    def claim(ids: list[int], lease_id: uuid.UUID) -> int:
        transitions.cancel(row_of(second))  # the cancellation comes before the claim
        return original(ids, lease_id)

    with monkeypatch.context() as patch:
        patch.setattr(statements, "claim", claim)
        hall.run_once()
    hall.run_once()
    assert [tool for tool, _, _ in hall.client(anna).calls] == ["1", "3"]
    assert statuses_of(first, second, third) == ["succeeded", "cancelled", "succeeded"]


def test_without_the_lease_no_call_is_claimed_and_the_queue_is_not_read_forever(hall: DispatcherHall) -> None:
    anna = hall.add(manifest={"max_concurrency": 100})
    calls = [add_queued_call(anna) for _ in range(70)]
    give_lease_to_another_runtime()
    hall.run_once()
    assert set(statuses_of(*calls)) == {"queued"}
    assert hall.client(anna).calls == []
    assert hall.dispatcher.is_idle


def test_an_outcome_of_a_call_that_has_already_ended_is_one_line_in_the_log(
    hall: DispatcherHall, caplog: pytest.LogCaptureFixture
) -> None:
    anna = hall.add()
    call = add_queued_call(anna)
    hall.run_once()
    give_lease_to_another_runtime()
    hall.run_once()
    assert row_of(call).status == "running"
    assert f"call {call.pk} has already ended" in caplog.text
    assert hall.dispatcher.is_idle


def test_after_stop_claiming_no_call_is_claimed_but_outcomes_are_written(hall: DispatcherHall) -> None:
    anna = hall.add(manifest={"max_concurrency": 1})
    first, second = add_queued_call(anna), add_queued_call(anna)
    hall.run_once()
    hall.dispatcher.stop_claiming()
    hall.run_once()
    assert statuses_of(first, second) == ["succeeded", "queued"]


# Progress ---------------------------------------------------------------------------------------------------------


def test_progress_is_written_once_in_a_sweep_for_any_number_of_notifications(hall: DispatcherHall) -> None:
    anna = hall.add()
    first, second = add_queued_call(anna, "one"), add_queued_call(anna, "two")
    notifications = [{"progress": number, "total": "many", "message": "x" * 10_000} for number in range(1000)]
    hall.client(anna).progress = {"one": notifications, "two": [{"progress": "half"}]}
    hall.dispatcher.run_queued_calls()
    with CaptureQueriesContext(connection) as queries:
        hall.dispatcher.sweep()
        hall.dispatcher.sweep()
    assert sum(query["sql"].startswith("UPDATE") and "progress" in query["sql"] for query in queries) == 1
    assert row_of(first).progress == {"progress": 999, "total": None, "message": "x" * 500}
    assert row_of(second).progress is None


def test_progress_of_a_finished_call_changes_nothing(hall: DispatcherHall) -> None:
    anna = hall.add()
    call = add_queued_call(anna)
    hall.run_all()
    (exchange,) = hall.client(anna).exchanges
    exchange.on_progress({"progress": 1})
    hall.dispatcher.sweep()
    assert row_of(call).progress is None


# Outcomes ---------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_the_outcome_of_a_call_does_not_wait_for_the_big_result_of_another(
    make_hall: Callable[..., DispatcherHall], monkeypatch: pytest.MonkeyPatch
) -> None:
    hall = make_hall()
    anna, bob = hall.add("anna"), hall.add("bob")
    big_result = {"content": [{"type": "text", "text": "x" * outcomes.BIG_OUTCOME}]}
    hall.client(anna).respond = lambda tool: big_result
    original, go_on, calls_in_progress = transitions.finish, threading.Event(), []

    def finish(call: Call, outcome: Outcome, lease_id: uuid.UUID) -> bool:
        if outcome.size > outcomes.BIG_OUTCOME:
            calls_in_progress.append(call)
            go_on.wait(10)
            assert calls_in_progress.pop() is call
            assert calls_in_progress == []  # one at a time
        return original(call, outcome, lease_id)

    monkeypatch.setattr(transitions, "finish", finish)
    calls = [add_queued_call(anna) for _ in range(3)]
    hall.run_once()
    eventually(lambda: calls_in_progress)
    small_call = add_queued_call(bob)
    eventually(lambda: (hall.run_once(), statuses_of(small_call) == ["succeeded"])[1])
    assert statuses_of(*calls) == ["running"] * 3
    go_on.set()
    eventually(lambda: (hall.run_once(), hall.dispatcher.is_idle)[1])
    assert statuses_of(*calls) == ["succeeded"] * 3
    assert row_of(calls[2]).result == big_result


@pytest.mark.django_db(transaction=True)
def test_a_big_result_is_not_lost_when_the_database_is_unavailable(
    hall: DispatcherHall, monkeypatch: pytest.MonkeyPatch
) -> None:
    anna = hall.add()
    hall.client(anna).respond = lambda tool: {"content": [{"type": "text", "text": "x" * outcomes.BIG_OUTCOME}]}
    call = add_queued_call(anna)
    with monkeypatch.context() as patch:
        patch.setattr(transitions, "finish", function_that_raises(OperationalError("gone")))
        hall.run_once()
    assert statuses_of(call) == ["running"]
    hall.run_once()
    assert statuses_of(call) == ["succeeded"]


def test_text_of_a_member_that_postgres_cannot_store_is_replaced(hall: DispatcherHall) -> None:
    anna = hall.add()
    hall.client(anna).respond = function_that_raises(ProtocolError("answered with text/\x00html"))
    call = add_queued_call(anna)
    hall.run_all()
    assert row_of(call).error_message.endswith("answered with text/\N{REPLACEMENT CHARACTER}html")


def test_a_result_that_the_database_refuses_fails_only_its_own_call(
    hall: DispatcherHall, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    anna = hall.add()
    calls = [add_queued_call(anna, str(number)) for number in range(3)]
    original = transitions.finish

    def finish(call: Call, outcome: Any, lease_id: uuid.UUID) -> bool:
        if call.pk == calls[1].pk and outcome.result is not None:
            raise DataError("too odd")
        return original(call, outcome, lease_id)

    monkeypatch.setattr(transitions, "finish", finish)
    hall.run_all()
    assert statuses_of(*calls) == ["succeeded", "failed", "succeeded"]
    assert row_of(calls[1]).error_kind == "protocol"
    assert "its result cannot be stored: too odd" in row_of(calls[1]).error_message
    assert "Traceback" in caplog.text


def test_a_result_that_cannot_be_encoded_fails_only_its_own_call(
    hall: DispatcherHall, monkeypatch: pytest.MonkeyPatch
) -> None:
    anna = hall.add()
    first, second = add_queued_call(anna, "1"), add_queued_call(anna, "2")
    original = transitions.finish

    def finish(call: Call, outcome: Any, lease_id: uuid.UUID) -> bool:
        if call.pk == first.pk and outcome.result is not None:
            raise UnicodeEncodeError("utf-8", "x", 0, 1, "odd")
        return original(call, outcome, lease_id)

    monkeypatch.setattr(transitions, "finish", finish)
    hall.run_all()
    assert statuses_of(first, second) == ["failed", "succeeded"]


@pytest.mark.django_db(transaction=True)
def test_outcomes_are_written_when_the_database_is_available_again(
    hall: DispatcherHall, monkeypatch: pytest.MonkeyPatch
) -> None:
    anna = hall.add()
    calls = [add_queued_call(anna) for _ in range(3)]
    hall.run_once()
    original, database_errors = transitions.finish, [OperationalError("gone")] * 3

    def finish(*args: Any) -> bool:
        if database_errors:
            raise database_errors.pop()
        return original(*args)

    monkeypatch.setattr("mcp_runtime.rows.database.RETRY_INTERVAL", 0.001)
    monkeypatch.setattr(transitions, "finish", finish)
    hall.run_once()
    assert statuses_of(*calls) == ["succeeded"] * 3


@pytest.mark.django_db(transaction=True)
def test_the_next_iteration_writes_outcomes_after_a_write_that_failed(
    hall: DispatcherHall, monkeypatch: pytest.MonkeyPatch
) -> None:
    anna = hall.add()
    call = add_queued_call(anna)
    hall.run_once()
    with monkeypatch.context() as patch:
        patch.setattr("mcp_runtime.rows.database.RETRY_SECONDS", 0.0)
        patch.setattr(transitions, "finish", function_that_raises(OperationalError("gone")))
        with pytest.raises(OperationalError):
            hall.run_once()
    assert not hall.dispatcher.is_idle
    hall.run_once()
    assert statuses_of(call) == ["succeeded"]


def test_outcomes_that_arrive_together_are_written_in_one_transaction_on_postgresql(
    hall: DispatcherHall,
) -> None:
    """SQLite's commit does not wait, and its only lock is free while the next statement is prepared."""
    anna = hall.add()
    for _ in range(10):
        add_queued_call(anna)
    hall.run_once()
    with CaptureQueriesContext(connection) as queries:
        hall.dispatcher.write_outcomes()
    assert Call.objects.filter(status="succeeded").count() == 10
    assert len([q for q in queries if q["sql"].startswith("UPDATE")]) == 10
    transactions = len([q for q in queries if q["sql"].startswith(("SAVEPOINT", "BEGIN"))])
    assert transactions == (1 if connection.vendor == "postgresql" else 0)


def test_the_outcome_of_one_user_is_written_before_the_many_of_another_user(hall: DispatcherHall) -> None:
    anna = hall.add(manifest={"max_concurrency": 200})
    calls = [add_queued_call(anna, requested_by=user_named("many")) for _ in range(3 * outcomes.MAX_BATCH)]
    other_call = add_queued_call(anna, requested_by=user_named("one"))
    hall.dispatcher.run_queued_calls()
    hall.dispatcher.write_outcomes()
    assert statuses_of(other_call, calls[0]) == ["succeeded", "succeeded"]
    assert statuses_of(*calls).count("running") == len(calls) - outcomes.MAX_BATCH + 1
    hall.run_all()
    assert statuses_of(*calls) == ["succeeded"] * len(calls)


def test_an_outcome_that_is_added_during_a_write_is_written_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison of two rows gives the threads of the pool a chance to add an outcome."""
    runs: list[Callable[[], None]] = []
    hall = DispatcherHall(lambda function, args: runs.append(partial(function, *args)))
    anna = hall.add(manifest={"max_concurrency": 200})
    calls = []
    for user in (user_named("many"), user_named("one")):  # those of one after those of many
        calls += [add_queued_call(anna, requested_by=user) for _ in range(4)]
        hall.dispatcher.run_queued_calls()
    late_runs, original = [runs.pop()], Call.__eq__
    for run in runs:
        run()

    def compare(call: Call, other: object) -> bool:
        if late_runs:
            late_runs.pop()()
        return original(call, other)

    with monkeypatch.context() as patch:
        patch.setattr(Call, "__eq__", compare)
        hall.dispatcher.write_outcomes()
    for run in late_runs:
        run()
    hall.dispatcher.write_outcomes()
    assert statuses_of(*calls) == ["succeeded"] * len(calls)
    assert hall.dispatcher.is_idle


def test_outcomes_of_several_users_are_written_once_after_a_write_that_failed(
    hall: DispatcherHall, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    anna = hall.add(manifest={"max_concurrency": 200})
    calls = [add_queued_call(anna, requested_by=user) for user in [user_named("many")] * 4 + [user_named("one")] * 2]
    hall.dispatcher.run_queued_calls()
    with monkeypatch.context() as patch:
        patch.setattr("mcp_runtime.rows.database.RETRY_SECONDS", 0.0)
        patch.setattr(transitions, "finish", function_that_raises(OperationalError("gone")))
        with pytest.raises(OperationalError):
            hall.dispatcher.write_outcomes()
    hall.dispatcher.write_outcomes()
    assert statuses_of(*calls) == ["succeeded"] * len(calls)
    assert "has already ended" not in caplog.text


def test_calls_that_are_claimed_together_are_run_in_turn_for_each_user(hall: DispatcherHall) -> None:
    anna = hall.add(manifest={"max_concurrency": 200})
    for number in range(4):
        add_queued_call(anna, f"many-{number}", requested_by=user_named("many"))
    add_queued_call(anna, "one", requested_by=user_named("one"))
    hall.dispatcher.run_queued_calls()
    assert [tool for tool, _, _ in hall.client(anna).calls][:2] == ["many-0", "one"]


def test_outcomes_that_remain_for_the_next_iteration_notify_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_watch, "SWEEP_SECONDS", 3600.0)
    hall = DispatcherHall(run_inline, has_broker=True)
    hall.run_once()
    anna = hall.add(manifest={"max_concurrency": 200})
    for _ in range(outcomes.MAX_BATCH + 1):
        add_queued_call(anna)
    hall.dispatcher.run_queued_calls()
    assert hall.is_notified()  # by the calls themselves
    hall.dispatcher.write_outcomes()
    assert hall.is_notified()
    hall.dispatcher.write_outcomes()
    assert not hall.is_notified()
    assert hall.dispatcher.is_idle


# Members that are not connected -----------------------------------------------------------------------------------


def pass_time(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """On every clock."""
    monotonic, now, row_time = time.monotonic, timezone.now, clock.now
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + seconds)
    monkeypatch.setattr(timezone, "now", lambda: now() + timedelta(seconds=seconds))
    if row_time() < timezone.now() - timedelta(seconds=seconds / 2):  # the clock of the database is another one
        monkeypatch.setattr(clock, "now", lambda: row_time() + timedelta(seconds=seconds))


def refusal_reason(hall: DispatcherHall, call: Call) -> str:
    """Why the call ended as unavailable, or an empty text while it waits."""
    hall.run_once()
    row = row_of(call)
    if row.status == "queued":
        return ""
    assert (row.status, row.error_kind) == ("failed", "unavailable")
    assert row.started_at is None
    prefix = "member 'anna' is unavailable: "
    assert row.error_message.startswith(prefix)
    return row.error_message.removeprefix(prefix)


@pytest.mark.parametrize(
    "columns",
    [
        {"status": "disconnected"},
        {"status": "starting"},
        {"status": "stopping"},
        {"status": "starting", "manifest_error": "broken"},  # the older manifest is the one that starts
        {"status": "error", "next_restart_at": timezone.now() + timedelta(seconds=5)},
        {"status": "error", "restart_requested_at": timezone.now()},
        {"status": "error", "desired_state": "stopped"},
    ],
)
def test_a_call_waits_for_a_member_that_can_become_connected(hall: DispatcherHall, columns: dict[str, Any]) -> None:
    anna = hall.add(connected=False, last_error="it fell over", **columns)
    call = add_queued_call(anna)
    assert refusal_reason(hall, call) == ""
    assert refusal_reason(hall, call) == ""
    hall.connected_members[anna.pk] = ConnectedMember(anna)
    hall.dispatcher.member_changed(anna.pk)
    hall.dispatcher.run_once()  # the change is the reason; no sweep is due
    hall.dispatcher.run_once()
    assert statuses_of(call) == ["succeeded"]


def test_a_member_that_connects_without_a_notification_gets_its_calls_at_the_next_sweep(hall: DispatcherHall) -> None:
    anna = hall.add(connected=False)
    call = add_queued_call(anna)
    hall.run_once()
    hall.connected_members[anna.pk] = ConnectedMember(anna)
    hall.run_once()
    hall.run_all()
    assert statuses_of(call) == ["succeeded"]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"removed_at": timezone.now()}, "its folder is gone"),
        ({"enabled": False}, "it is disabled"),
        ({"manifest_error": "args: must be a list"}, "args: must be a list"),
        ({"status": "error", "next_restart_at": timezone.now() + LATER}, "it fell over"),
    ],
)
def test_a_call_to_a_member_that_cannot_connect_in_time_is_refused_with_the_reason(
    hall: DispatcherHall, columns: dict[str, Any], reason: str
) -> None:
    call = add_queued_call(hall.add(connected=False, last_error="it fell over", **columns))
    assert refusal_reason(hall, call) == reason


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"status": "disconnected"}, "it was not connected within 0.3 s"),
        ({"status": "starting"}, "it was not connected within 0.3 s"),
        ({"status": "error", "desired_state": "stopped"}, "it was not connected within 0.3 s"),
        # The restart is due, but no slot is free.
        ({"status": "error", "next_restart_at": timezone.now() - LATER}, "it fell over"),
        ({"status": "error", "restart_requested_at": timezone.now()}, "it fell over"),
    ],
)
def test_a_call_waits_no_longer_than_its_timeout(hall: DispatcherHall, columns: dict[str, Any], reason: str) -> None:
    anna = hall.add(connected=False, last_error="it fell over", **columns)
    call = add_queued_call(anna, timeout=0.3)
    assert refusal_reason(hall, call) == ""
    time.sleep(0.31)
    assert refusal_reason(hall, call) == reason


def test_the_waiting_time_begins_when_a_runtime_first_sees_the_call(hall: DispatcherHall) -> None:
    """The call may be queued while no runtime is live."""
    anna = hall.add(connected=False)
    call = add_queued_call(anna, timeout=5, queued_at=timezone.now() - timedelta(hours=1))
    assert refusal_reason(hall, call) == ""


def test_a_call_starts_a_member_in_error_when_its_back_off_ends(hall: DispatcherHall) -> None:
    """The member has no next restart: the hall gave up, or `restart` is `never`."""
    changed_at = timezone.now() - timedelta(seconds=1)
    anna = hall.add(connected=False, status="error", status_changed_at=changed_at, restarts=3, last_error="it fell")
    call = add_queued_call(anna, timeout=30)
    assert refusal_reason(hall, call) == ""
    anna.refresh_from_db()
    assert abs(anna.next_restart_at - changed_at - restart_delay(3)) < timedelta(seconds=0.1)
    assert hall.wake_count == 1


def test_a_call_never_shortens_a_back_off(hall: DispatcherHall) -> None:
    due = timezone.now() + timedelta(seconds=20)
    anna = hall.add(connected=False, status="error", restarts=5, next_restart_at=due, last_error="it fell")
    assert refusal_reason(hall, add_queued_call(anna, timeout=30)) == ""
    anna.refresh_from_db()
    assert anna.next_restart_at == due


def test_a_call_whose_deadline_is_before_the_next_restart_is_refused_at_once(hall: DispatcherHall) -> None:
    anna = hall.add(connected=False, status="error", restarts=6, last_error="it fell")
    assert refusal_reason(hall, add_queued_call(anna, timeout=2)) == "it fell"
    anna.refresh_from_db()
    assert anna.next_restart_at is None


def test_a_call_is_refused_if_the_start_of_its_member_fails(hall: DispatcherHall) -> None:
    anna = hall.add(connected=False, status="error", restarts=0, last_error="it fell")
    call = add_queued_call(anna)
    assert refusal_reason(hall, call) == ""
    GuildMember.objects.update(status_changed_at=timezone.now(), next_restart_at=None, last_error="it fell again")
    assert refusal_reason(hall, call) == "it fell again"


def test_thousands_of_calls_that_wait_for_one_member_delay_no_refusal_for_another(
    hall: DispatcherHall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_for_members, "MAX_CHECKED_CALLS", 5)
    down_member, anna = hall.add("down", connected=False), hall.add("anna", connected=False, enabled=False)
    waiting_calls = [add_queued_call(down_member) for _ in range(20)]
    refused_call = add_queued_call(anna)
    assert "it is disabled" in refusal_reason(hall, refused_call)
    assert set(statuses_of(*waiting_calls)) == {"queued"}


def test_each_call_waits_for_its_member_from_the_time_it_was_queued(
    hall: DispatcherHall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from the first iteration that checks it. Calls behind many others would wait many times as long."""
    monkeypatch.setattr(waiting_for_members, "MAX_CHECKED_CALLS", 2)
    anna = hall.add(connected=False)
    calls = [add_queued_call(anna, timeout=20) for _ in range(6)]
    hall.run_once()
    pass_time(21, monkeypatch)
    for _ in range(3):
        hall.run_once()
    assert set(statuses_of(*calls)) == {"failed"}


def test_calls_wait_from_the_start_again_after_their_member_was_connected(
    hall: DispatcherHall, monkeypatch: pytest.MonkeyPatch
) -> None:
    anna = hall.add(connected=False)
    call = add_queued_call(anna, timeout=20)
    Call.objects.update(queued_at=timezone.now() - timedelta(seconds=60))
    hall.run_once()
    pass_time(60, monkeypatch)
    hall.connected_members[anna.pk] = ConnectedMember(anna)
    hall.dispatcher.member_changed(anna.pk)
    del hall.connected_members[anna.pk]
    assert refusal_reason(hall, call) == ""


def test_calls_that_wait_for_one_member_do_not_delay_other_members(hall: DispatcherHall) -> None:
    down_member, connected_member = hall.add("down", connected=False), hall.add("up")
    waiting_calls = [add_queued_call(down_member) for _ in range(100)]
    other_call = add_queued_call(connected_member)
    hall.run_all()
    assert statuses_of(other_call) == ["succeeded"]
    assert set(statuses_of(*waiting_calls)) == {"queued"}


def test_without_the_lease_no_call_is_refused(hall: DispatcherHall) -> None:
    call = add_queued_call(hall.add(connected=False, enabled=False))
    give_lease_to_another_runtime()
    hall.run_once()
    assert statuses_of(call) == ["queued"]


# Cancelling -------------------------------------------------------------------------------------------------------


def test_the_cancellation_of_a_running_call_is_sent_to_its_member(
    make_hall: Callable[..., DispatcherHall],
) -> None:
    hall = make_hall()
    anna = hall.add()
    client = hall.client(anna)
    client.go_on.clear()
    first, second = add_queued_call(anna, "1"), add_queued_call(anna, "2")
    hall.run_once()
    eventually(lambda: client.running == 2)
    transitions.cancel(row_of(first))
    hall.run_once()
    eventually(lambda: client.running == 1)
    hall.run_once()
    assert statuses_of(first, second) == ["cancelled", "running"]
    assert client.cancel_reasons == ["cancelled by request"]
    assert "the request was cancelled" in row_of(first).error_message


def test_a_call_that_is_being_cancelled_is_not_cancelled_again(make_hall: Callable[..., DispatcherHall]) -> None:
    hall = make_hall()
    anna = hall.add()
    client = hall.client(anna)
    client.go_on.clear()
    call = add_queued_call(anna)
    hall.run_once()
    eventually(lambda: client.running == 1)
    transitions.cancel(row_of(call))
    hall.dispatcher.send_cancellations()
    eventually(lambda: client.cancel_reasons)
    eventually(lambda: client.running == 0)
    hall.dispatcher.send_cancellations()  # its outcome is not written yet
    assert client.cancel_reasons == ["cancelled by request"]


def test_a_call_that_succeeded_before_its_cancellation_has_succeeded(hall: DispatcherHall) -> None:
    anna = hall.add()
    call = add_queued_call(anna)
    hall.run_once()
    transitions.cancel(row_of(call))
    hall.run_once()
    assert statuses_of(call) == ["succeeded"]


# Strays -----------------------------------------------------------------------------------------------------------


def test_running_calls_of_another_runtime_end_as_lost_and_are_not_repeated(hall: DispatcherHall) -> None:
    anna = hall.add()
    call = add_queued_call(anna, status="running", lease_id=uuid.uuid4(), started_at=timezone.now())
    hall.run_once()
    assert (row_of(call).status, row_of(call).error_kind) == ("failed", "lost")
    assert "the call is not repeated automatically" in row_of(call).error_message
    assert hall.client(anna).calls == []


def test_a_stray_ends_as_not_sent_at_the_second_check(hall: DispatcherHall, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every time of the wall clock: the row may say that it was claimed in an hour."""
    anna = hall.add()
    stray = add_queued_call(anna, status="running", lease_id=hall.lease_id, started_at=timezone.now() + LATER)
    hall.run_once()
    hall.run_once()
    assert statuses_of(stray) == ["running"]  # the next check is not due
    monkeypatch.setattr(running, "STRAY_SECONDS", 0.0)
    hall.run_once()
    assert statuses_of(stray) == ["failed"]
    assert (row_of(stray).error_kind, hall.client(anna).calls) == ("unavailable", [])


def test_a_call_that_runs_long_is_no_stray(
    make_hall: Callable[..., DispatcherHall], monkeypatch: pytest.MonkeyPatch
) -> None:
    hall = make_hall()
    anna = hall.add()
    hall.client(anna).go_on.clear()
    call = add_queued_call(anna)
    hall.run_once()
    monkeypatch.setattr(running, "STRAY_SECONDS", 0.0)
    for _ in range(3):
        hall.run_once()
    assert statuses_of(call) == ["running"]


# Stopping ---------------------------------------------------------------------------------------------------------


def test_abandoned_calls_end_as_lost_and_their_member_is_notified(make_hall: Callable[..., DispatcherHall]) -> None:
    hall = make_hall()
    anna, bob = hall.add("anna"), hall.add("bob")
    for member in (anna, bob):
        hall.client(member).go_on.clear()
    abandoned_call, other_call = add_queued_call(anna), add_queued_call(bob)
    hall.run_once()
    eventually(lambda: hall.client(anna).running == hall.client(bob).running == 1)
    hall.dispatcher.abandon(anna.pk)
    eventually(lambda: hall.client(anna).running == 0)
    hall.run_once()
    assert statuses_of(abandoned_call, other_call) == ["failed", "running"]
    assert (row_of(abandoned_call).error_kind, hall.client(anna).cancel_reasons) == (
        "lost",
        ["the runtime is stopping"],
    )
    assert "the runtime was stopped during the call" in row_of(abandoned_call).error_message
    assert hall.client(bob).cancel_reasons == []


def test_a_call_that_succeeded_before_it_was_abandoned_has_succeeded(hall: DispatcherHall) -> None:
    anna = hall.add()
    call = add_queued_call(anna)
    hall.run_once()
    hall.dispatcher.abandon(anna.pk)
    hall.run_once()
    assert statuses_of(call) == ["succeeded"]


def test_a_stop_before_the_loop_began_does_no_harm(hall: DispatcherHall) -> None:
    hall.dispatcher.stop()


# The loop ---------------------------------------------------------------------------------------------------------

with_loop = pytest.mark.django_db(transaction=True)


def start_and_sweep(hall: DispatcherHall, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the loop, and return after its first sweep."""
    sweep, is_swept = hall.dispatcher.sweep, threading.Event()
    monkeypatch.setattr(hall.dispatcher, "sweep", lambda: (sweep(), is_swept.set()))
    hall.dispatcher.start()
    assert is_swept.wait(10)


@with_loop
def test_a_notification_starts_work_at_once(
    make_hall: Callable[..., DispatcherHall], monkeypatch: pytest.MonkeyPatch
) -> None:
    hall = make_hall(has_broker=True)
    anna = hall.add()
    monkeypatch.setattr(queue_watch, "SQLITE_INTERVALS", [(math.inf, 3600.0)])
    for name in ("QUERY_INTERVAL", "SWEEP_SECONDS"):
        monkeypatch.setattr(queue_watch, name, 3600.0)
    start_and_sweep(hall, monkeypatch)
    call = add_queued_call(anna)
    hall.dispatcher.notify()
    eventually(lambda: row_of(call).status == "succeeded", within=5)


@with_loop
@pytest.mark.parametrize("has_broker", [True, False])
def test_without_a_notification_the_queue_is_read_within_about_a_second(
    make_hall: Callable[..., DispatcherHall], has_broker: bool
) -> None:
    hall = make_hall(has_broker=has_broker)
    anna = hall.add()
    hall.dispatcher.start()
    call = add_queued_call(anna)
    eventually(lambda: row_of(call).status == "succeeded", within=3)


@with_loop
@pytest.mark.skipif("connection.vendor != 'sqlite'", reason="it reads SQLite's own counter")
def test_a_commit_to_sqlite_notifies_of_calls_members_and_cancellations(
    make_hall: Callable[..., DispatcherHall], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_watch, "SWEEP_SECONDS", 3600.0)
    hall = make_hall()
    anna = hall.add()
    hall.client(anna).go_on.clear()
    start_and_sweep(hall, monkeypatch)
    call = add_queued_call(anna)
    eventually(lambda: hall.client(anna).running == 1, within=5)
    transitions.cancel(row_of(call))
    eventually(lambda: row_of(call).status == "cancelled", within=5)
    wake_count = hall.wake_count
    GuildMember.objects.update(restart_requested_at=timezone.now())
    eventually(lambda: hall.wake_count > wake_count, within=5)


@with_loop
def test_after_an_iteration_that_fails_the_loop_continues(
    make_hall: Callable[..., DispatcherHall], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queue_watch, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(dispatcher, "RETRY_SECONDS", 0.05)
    hall = make_hall()
    anna = hall.add()
    errors, original = [OperationalError("gone"), ZeroDivisionError("a bug")], hall.dispatcher.sweep

    def sweep() -> None:
        if errors:
            raise errors.pop()
        original()

    monkeypatch.setattr(hall.dispatcher, "sweep", sweep)
    hall.dispatcher.start()
    eventually(lambda: not errors)
    call = add_queued_call(anna)
    eventually(lambda: row_of(call).status == "succeeded")
    assert "the database cannot be reached (gone)" in caplog.text
    assert "an iteration of the dispatcher failed" in caplog.text


@with_loop
def test_the_loop_ends_when_the_last_outcome_is_written(make_hall: Callable[..., DispatcherHall]) -> None:
    hall = make_hall()
    anna = hall.add()
    client = hall.client(anna)
    client.go_on.clear()
    hall.dispatcher.start()
    call = add_queued_call(anna)
    hall.dispatcher.notify()
    eventually(lambda: client.running == 1)
    hall.dispatcher.stop_claiming()
    client.go_on.set()
    hall.dispatcher.stop()
    assert statuses_of(call) == ["succeeded"]
    assert not is_looping()


@with_loop
def test_the_loop_ends_even_if_the_database_stays_unavailable(
    make_hall: Callable[..., DispatcherHall], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_runtime.rows.database.RETRY_SECONDS", 0.0)
    monkeypatch.setattr("mcp_runtime.rows.database.RETRY_INTERVAL", 0.001)
    monkeypatch.setattr(queue_watch, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(dispatcher, "RETRY_SECONDS", 0.05)
    hall = make_hall()
    anna = hall.add()
    attempts: list[object] = []

    def finish(*end: object) -> bool:
        attempts.append(end)
        raise OperationalError("gone")

    monkeypatch.setattr(transitions, "finish", finish)
    hall.dispatcher.start()
    add_queued_call(anna)
    hall.dispatcher.notify()
    eventually(lambda: attempts)
    watch = Stopwatch()
    hall.dispatcher.stop()
    assert watch.seconds < 5
    assert not is_looping()


@with_loop
def test_the_loop_ends_even_if_an_internal_error_repeats(
    make_hall: Callable[..., DispatcherHall], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_watch, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(dispatcher, "RETRY_SECONDS", 0.05)
    hall = make_hall()
    anna = hall.add()
    add_queued_call(anna)
    hall.dispatcher.run_queued_calls()
    eventually(lambda: hall.ended_count == 1)
    monkeypatch.setattr(hall.dispatcher, "write_outcomes", function_that_raises(ZeroDivisionError("a bug")))
    hall.dispatcher.start()
    hall.dispatcher.stop()
    assert not is_looping()


@with_loop
def test_many_calls_from_many_threads_each_run_once(make_hall: Callable[..., DispatcherHall]) -> None:
    hall = make_hall(has_broker=True)
    members = [hall.add(name, manifest={"max_concurrency": 4}) for name in "abcd"]
    hall.dispatcher.start()

    def queue_calls(number: int) -> None:
        for index in range(10):
            add_queued_call(members[(number + index) % 4], f"{number}-{index}")
            hall.dispatcher.notify()
        connection.close()

    threads = [threading.Thread(target=queue_calls, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    eventually(lambda: Call.objects.filter(status="succeeded").count() == 80, within=20)
    tools = [tool for member in members for tool, _, _ in hall.client(member).calls]
    assert sorted(tools) == sorted(f"{number}-{index}" for number in range(8) for index in range(10))
    assert max(hall.client(member).most_at_once for member in members) <= 4


# Notifications ----------------------------------------------------------------------------------------------------


def test_a_broker_message_about_members_also_wakes_the_supervisor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_watch, "SWEEP_SECONDS", 3600.0)
    hall = DispatcherHall(run_inline, has_broker=True)
    hall.dispatcher.run_once()
    assert not hall.is_notified()
    tasks.answer_with(hall.dispatcher)
    try:
        tasks.drain_task()
        assert (hall.wake_count, hall.watch.sweep_is_due) == (0, False)
        assert hall.is_notified()
        tasks.drain_task(members=True)
        assert (hall.wake_count, hall.watch.sweep_is_due) == (1, True)
        hall.dispatcher.run_once()
        assert hall.is_notified()
    finally:
        tasks.answer_with(None)
    tasks.drain_task(members=True)  # a stopping runtime receives nothing
    assert not hall.is_notified()


def test_the_test_objects_have_methods_of_the_real_classes() -> None:
    for name in ("connected_member", "handle_connection_failure"):
        assert callable(getattr(Lifecycle, name))
    for name in ("invoke_tool", "cancel"):
        assert callable(getattr(JsonRpcClient, name))

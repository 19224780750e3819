"""The dispatcher's iterations, with members that are objects of the test, and its loop with a real database."""

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

from mcp_runtime.calls import dispatcher, outcomes, queue_watch, statements, transitions, waiting_for_members
from mcp_runtime.calls.dispatcher import Dispatcher
from mcp_runtime.calls.queue_watch import QueueWatch
from mcp_runtime.calls.transitions import Outcome
from mcp_runtime.client.client import JsonRpcClient
from mcp_runtime.client.transport import Exchange
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
from mcp_runtime.rows import lease
from mcp_runtime.runtime import tasks
from roster.models import Call, GuildMember, Hall, Token
from tests.conftest import eventually
from tests.support.machine import Stopwatch

pytestmark = pytest.mark.django_db

Status = GuildMember.Status
RESULT = {"content": [{"type": "text", "text": "done"}]}
LATER = timedelta(hours=1)


class Client:
    """Answers calls as the test says; while `held` is cleared, not at all."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, float]] = []
        self.cancelled: list[str] = []
        self.exchanges: list[Exchange] = []
        self.progress: dict[str, list[dict[str, Any]]] = {}  # tool -> what is said of it before it is answered
        self.answer: Callable[[str], dict[str, Any]] = lambda tool: RESULT
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
            return self.answer(name)
        finally:
            with self._lock:
                self.running -= 1

    def cancel(self, exchange: Exchange, reason: str) -> None:
        self.cancelled.append(reason)
        exchange.abort()


@dataclass
class Process:
    exited: threading.Event = field(default_factory=threading.Event)
    exit_code: int | None = None


class Live:
    """A member that is connected."""

    def __init__(self, member: GuildMember) -> None:
        self.member_id, self.name = member.pk, member.name
        self.client, self.process = Client(), Process()
        self.silence = Silence()
        self.calls = self.relayed_calls = 0
        self.big_outcome_lock = threading.Lock()
        self.stop_requested = threading.Event()

    describe_end = LiveMember.describe_end


class Watch(QueueWatch):
    """Counts who notifies it."""

    notifications = 0

    def notify(self) -> None:
        self.notifications += 1
        super().notify()


class Hall_:
    """The dispatcher and what it works with."""

    def __init__(self, run_in_pool: Callable[..., Any], **options: Any) -> None:
        self.lease_id = lease.take()
        self.live: dict[int, Live] = {}
        self.failed: list[tuple[str, str]] = []
        self.woken = 0
        self.restarts = Restarts()
        self.awaited_ids: set[int] = set()
        self.ended = 0  # calls that the pool is done with
        self.held_connection = False
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

    # What the dispatcher asks of a lifecycle.

    def connected_member(self, member_id: int) -> Any:
        return self.live.get(member_id)

    def handle_connection_failure(self, live: Live, error: ConnectError) -> None:
        self.failed.append((live.name, str(error)))

    def own_row(self, member_id: int) -> QuerySet[GuildMember]:
        return GuildMember.objects.filter(pk=member_id)

    def wake(self) -> None:
        self.woken += 1

    def run_in_pool(self, fn: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._run_in_pool(self._run, (fn, args))

    def _run(self, fn: Callable[..., None], args: tuple[Any, ...]) -> None:
        fn(*args)
        self.held_connection = connection.connection is not None
        if threading.current_thread() is not threading.main_thread():
            connection.close()
        self.ended += 1

    # What tests say.

    def add(self, name: str = "anna", *, connected: bool = True, **columns: Any) -> GuildMember:
        columns = {"status": "connected" if connected else "disconnected", **columns}
        member = GuildMember.objects.create(name=name, directory=name, **columns)
        if connected:
            self.live[member.pk] = Live(member)
        return member

    def client(self, member: GuildMember) -> Client:
        return self.live[member.pk].client

    def run_once(self) -> None:
        """Run an iteration with a sweep, whether or not a notification arrived."""
        self.watch.request_sweep()
        self.dispatcher.run_once()

    def is_notified(self) -> bool:
        """Whether the loop would go on, though no sweep is due, since this was asked last."""
        notifications, self.watch.notifications = self.watch.notifications, 0
        return notifications > 0

    def run_all(self) -> None:
        """Run iterations until no call runs."""

        def done() -> bool:
            self.run_once()
            return self.dispatcher.is_idle

        eventually(done)


def inline(fn: Callable[..., None], args: tuple[Any, ...]) -> None:
    fn(*args)


@pytest.fixture
def hall() -> Hall_:
    """Calls run inside the iteration that claims them. The next one writes their outcomes."""
    return Hall_(inline)


@pytest.fixture
def make_hall() -> Iterator[Callable[..., Hall_]]:
    """Halls whose calls run in threads."""
    made: list[tuple[Hall_, ThreadPoolExecutor]] = []

    def make(**options: Any) -> Hall_:
        pool = ThreadPoolExecutor(50)
        made.append((Hall_(lambda fn, args: pool.submit(fn, *args), **options), pool))
        return made[-1][0]

    yield make
    for hall, pool in made:
        for live in hall.live.values():
            live.client.go_on.set()
        pool.shutdown()
        if is_looping():
            hall.dispatcher.stop()


def is_looping() -> bool:
    return any(thread.name == "dispatcher" for thread in threading.enumerate())


def queued(member: GuildMember, tool: str = "echo", **columns: Any) -> Call:
    values = {"arguments": {"tool": tool}, "timeout": 30, "source": "rest", **columns}
    return Call.objects.create(member=member, tool_name=tool, **values)


def somebody(name: str = "") -> User:
    """The user of that name, else one who has made no call yet."""
    return User.objects.get_or_create(username=name or f"user-{User.objects.count()}")[0]


def row(call: Call) -> Call:
    return Call.objects.get(pk=call.pk)


def statuses(*calls: Call) -> list[str]:
    return [row(each).status for each in calls]


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


# A call -----------------------------------------------------------------------------------------------------------


def test_a_queued_call_is_claimed_and_run_and_its_outcome_is_written(hall: Hall_) -> None:
    anna = hall.add()
    call = queued(anna, "echo", arguments={"text": "a"}, timeout=7)
    hall.run_once()
    assert row(call).status == "running"
    assert row(call).lease_id == hall.lease_id
    assert not hall.dispatcher.is_idle  # until its end is written down
    hall.run_once()
    found = row(call)
    assert (found.status, found.result) == ("succeeded", RESULT)
    assert hall.client(anna).calls == [("echo", {"text": "a"}, 7)]
    assert hall.dispatcher.is_idle


def test_the_oldest_come_first_whoever_they_are_for(hall: Hall_) -> None:
    anna, bob = hall.add("anna"), hall.add("bob")
    order: list[str] = []
    for member in (anna, bob):
        hall.client(member).answer = lambda tool: order.append(tool) or RESULT  # type: ignore[func-returns-value]
    for number in range(100):
        queued((anna, bob)[number % 2], str(number))
    GuildMember.objects.update(manifest={"max_concurrency": 100})
    hall.run_once()
    assert order == [str(number) for number in range(100)]


def test_the_outcome_of_a_call_is_written_before_the_next_look_at_the_queue(hall: Hall_) -> None:
    anna = hall.add(manifest={"max_concurrency": 1})
    one, two = queued(anna), queued(anna)
    hall.run_once()
    assert statuses(one, two) == ["running", "queued"]
    hall.dispatcher.run_once()  # no notification, no sweep: the free slot is the reason
    assert statuses(one, two) == ["succeeded", "running"]


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
def test_a_call_that_fails_ends_with_the_kind_of_its_error_and_leaves_the_member_alone(
    hall: Hall_, error: Exception, status: str, kind: str
) -> None:
    anna = hall.add()
    hall.client(anna).answer = failing(error)
    call = queued(anna)
    hall.run_all()
    found = row(call)
    assert (found.status, found.error_kind) == (status, kind)
    assert found.error_message.startswith("tool 'echo' of member 'anna': ")
    assert hall.failed == []
    assert hall.dispatcher.calls_in(anna.pk) == 0


def test_a_response_that_is_not_mcp_is_logged(hall: Hall_, caplog: pytest.LogCaptureFixture) -> None:
    anna = hall.add()
    hall.client(anna).answer = failing(ProtocolError("answered with html"))
    queued(anna)
    hall.run_all()
    assert "tool 'echo' of member 'anna': answered with html" in caplog.text


def test_a_call_whose_deadline_passed_is_cancelled_at_the_member_too(hall: Hall_) -> None:
    anna = hall.add()
    hall.client(anna).answer = failing(RequestTimeoutError(7))
    queued(anna)
    hall.run_all()
    assert hall.client(anna).cancelled == ["the deadline passed"]


# In a test's own transaction the end of a unit of work would close its connection.
@pytest.mark.django_db(transaction=True)
def test_a_refused_connection_is_reported_to_the_lifecycle(hall: Hall_, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "EXIT_GRACE", 0.01)
    anna = hall.add()
    hall.client(anna).answer = failing(ConnectError("connection refused"))
    call = queued(anna)
    hall.run_all()
    assert hall.failed == [("anna", "connection refused")]
    assert (row(call).error_kind, row(call).status) == ("transport", "failed")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("error", "told", "kind"),
    [
        (ConnectError("reset"), False, "transport"),
        (ConnectError("connection refused", is_refusal=True), True, "unavailable"),
    ],
)
def test_a_member_that_cannot_take_one_more_connection_lives_as_long_as_calls_run_in_it(
    make_hall: Callable[..., Hall_], monkeypatch: pytest.MonkeyPatch, error: ConnectError, told: bool, kind: str
) -> None:
    """An honest server that serves one at a time has a short queue of connections. A refusal: nobody listens."""
    monkeypatch.setattr(dispatcher, "EXIT_GRACE", 0.01)
    hall = make_hall()
    anna = hall.add()
    client = hall.client(anna)
    client.go_on.clear()
    served = queued(anna, "served")
    hall.run_once()
    eventually(lambda: client.running == 1)
    client.invoke_tool = lambda *_, **__: failing(error)()  # type: ignore[method-assign]
    turned_away = queued(anna, "turned away")
    hall.run_once()
    eventually(lambda: (hall.run_once(), statuses(turned_away) == ["failed"])[1])
    assert bool(hall.failed) is told
    assert row(turned_away).error_kind == kind
    client.go_on.set()
    eventually(lambda: (hall.run_once(), statuses(served) == ["succeeded"])[1])


def test_an_exit_during_the_call_explains_a_broken_connection(hall: Hall_) -> None:
    anna = hall.add()
    process = hall.live[anna.pk].process
    process.exit_code = -9
    process.exited.set()
    hall.client(anna).answer = failing(ConnectError("reset"))
    call = queued(anna)
    hall.run_all()
    assert row(call).error_message.endswith("the member exited during the call, with signal SIGKILL")
    assert hall.failed == []


def test_an_exit_before_the_call_was_sent_differs_from_an_exit_during_it(hall: Hall_) -> None:
    anna = hall.add()
    process = hall.live[anna.pk].process
    process.exit_code = 3
    process.exited.set()
    hall.client(anna).answer = failing(ConnectError("connection refused", is_refusal=True))
    call = queued(anna)
    hall.run_all()
    found = row(call)
    assert found.error_kind == "unavailable"
    assert (
        "the member exited before it accepted the call, with exit code 3; the call was not sent" in found.error_message
    )


@pytest.mark.django_db(transaction=True)
def test_a_call_ends_even_if_the_failed_connection_could_not_be_written_down(
    hall: Hall_, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "EXIT_GRACE", 0.01)
    anna = hall.add()
    monkeypatch.setattr(hall, "handle_connection_failure", failing(OperationalError("gone")))
    hall.client(anna).answer = failing(ConnectError("refused"))
    call = queued(anna)
    hall.run_all()
    assert (row(call).status, row(call).error_kind) == ("failed", "transport")


@pytest.mark.django_db(transaction=True)
def test_a_failed_connection_leaves_no_database_connection_in_the_pools_thread(
    make_hall: Callable[..., Hall_], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool of threads would hold on to every connection of the database's pool."""
    monkeypatch.setattr(dispatcher, "EXIT_GRACE", 0.01)
    hall = make_hall()

    def look_at_rows(live: Any, error: Any) -> None:
        GuildMember.objects.count()

    monkeypatch.setattr(hall, "handle_connection_failure", look_at_rows)
    anna = hall.add()
    hall.client(anna).answer = failing(ConnectError("refused"))
    queued(anna)
    hall.run_all()
    eventually(lambda: hall.ended == 1)
    assert hall.held_connection is (connection.vendor == "sqlite")


# Slots ------------------------------------------------------------------------------------------------------------


def test_no_more_calls_at_a_time_than_the_member_takes_and_the_rest_stays_queued(
    make_hall: Callable[..., Hall_],
) -> None:
    hall = make_hall()
    anna = hall.add(manifest={"max_concurrency": 3})
    client = hall.client(anna)
    client.go_on.clear()
    calls = [queued(anna, requested_by=somebody()) for _ in range(10)]
    hall.run_once()
    eventually(lambda: client.running == 3)
    hall.run_once()
    assert statuses(*calls) == ["running"] * 3 + ["queued"] * 7
    assert (hall.dispatcher.calls_in(anna.pk), hall.live[anna.pk].calls) == (3, 3)
    client.go_on.set()
    hall.run_all()
    eventually(lambda: (hall.run_all(), statuses(*calls) == ["succeeded"] * 10)[1])
    assert client.most_at_once == 3


def test_sixteen_at_a_time_unless_the_manifest_says_otherwise(make_hall: Callable[..., Hall_]) -> None:
    hall = make_hall()
    anna = hall.add()
    hall.client(anna).go_on.clear()
    for _ in range(40):
        queued(anna, requested_by=somebody())
    hall.run_once()
    assert Call.objects.filter(status="running").count() == 16


def test_a_member_full_of_hung_calls_delays_no_other_member(make_hall: Callable[..., Hall_]) -> None:
    hall = make_hall()
    hung, well = hall.add("hung", manifest={"max_concurrency": 2}), hall.add("well")
    hall.client(hung).go_on.clear()
    stuck = [queued(hung, requested_by=somebody("ab"[number % 2])) for number in range(100)]
    other = queued(well)
    hall.run_once()
    eventually(lambda: (hall.run_once(), row(other).status == "succeeded")[1])
    assert Call.objects.filter(member=hung, status="running").count() == 2
    assert statuses(stuck[-1]) == ["queued"]


def test_a_slot_that_becomes_free_is_used_at_once(
    make_hall: Callable[..., Hall_], monkeypatch: pytest.MonkeyPatch
) -> None:
    hall = make_hall(has_broker=True)  # without one the database is looked at every few milliseconds
    anna = hall.add(manifest={"max_concurrency": 1})
    client = hall.client(anna)
    calls = [queued(anna) for _ in range(5)]
    monkeypatch.setattr(queue_watch, "SWEEP_SECONDS", 3600.0)
    hall.run_once()
    for done in range(1, 6):
        hall.watch.wait(lambda: False)  # until it is notified, for no sweep is due
        hall.dispatcher.run_once()
        assert statuses(*calls[:done]) == ["succeeded"] * done
    assert client.most_at_once == 1


def test_no_more_calls_at_a_time_than_the_hall_takes(make_hall: Callable[..., Hall_]) -> None:
    hall = make_hall(concurrency=5)
    members = [hall.add(name) for name in "abcdef"]
    for member in members:
        hall.client(member).go_on.clear()
    calls = [queued(members[number % 6], requested_by=somebody()) for number in range(12)]
    hall.run_once()
    assert statuses(*calls) == ["running"] * 5 + ["queued"] * 7
    for member in members:
        hall.client(member).go_on.set()
    eventually(lambda: (hall.run_once(), statuses(*calls) == ["succeeded"] * 12)[1])


def test_members_whose_calls_hang_leave_slots_for_the_others(make_hall: Callable[..., Hall_]) -> None:
    """None gets more than half; the last quarter is for members, half of it for requesters too, that run nothing."""
    hall = make_hall(concurrency=40)
    greedy = [hall.add(name, manifest={"max_concurrency": 1024}) for name in ("greedy", "greedier")]
    for member in greedy:
        hall.client(member).go_on.clear()
        for _ in range(50):
            queued(member, requested_by=somebody())
    hall.run_once()
    assert [hall.dispatcher.calls_in(member.pk) for member in greedy] == [20, 15]
    quick = [hall.add(f"quick-{number}") for number in range(12)]
    calls = [queued(member) for member in quick for _ in range(3)]
    eventually(lambda: (hall.run_once(), set(statuses(*calls)) == {"succeeded"})[1])
    assert [hall.dispatcher.calls_in(member.pk) for member in greedy] == [20, 15]
    hall.client(greedy[0]).go_on.set()  # excluded calls run when slots are free again
    eventually(lambda: (hall.run_once(), hall.dispatcher.calls_in(greedy[1].pk) == 20)[1])


def test_a_hall_for_one_call_at_a_time_takes_it(make_hall: Callable[..., Hall_]) -> None:
    hall = make_hall(concurrency=1)
    calls = [queued(hall.add(name)) for name in "ab"]
    eventually(lambda: (hall.run_once(), statuses(*calls) == ["succeeded"] * 2)[1])


def test_a_full_hall_looks_at_the_queue_again_when_a_slot_is_free(make_hall: Callable[..., Hall_]) -> None:
    hall = make_hall(concurrency=2)
    anna, bob = hall.add("anna"), hall.add("bob")
    calls = [queued(anna, requested_by=somebody("a")), queued(bob), queued(anna, requested_by=somebody("a"))]
    hall.run_once()
    eventually(lambda: hall.ended == 2)
    hall.dispatcher.run_once()
    assert statuses(*calls)[:2] == ["succeeded"] * 2
    assert statuses(*calls)[2] != "queued"


def test_calls_of_one_token_that_hang_keep_no_other_token_waiting(make_hall: Callable[..., Hall_]) -> None:
    hall = make_hall()
    anna = hall.add()
    ana, ben = somebody("ana"), somebody("ben")
    tokens = [Token.objects.create(user=user, name=name, digest=name) for user, name in ((ana, "a"), (ana, "b"))]
    hall.client(anna).go_on.clear()
    greedy = [queued(anna, requested_by=ana, token=tokens[0]) for _ in range(64)]
    others = [queued(anna, requested_by=ana, token=tokens[1]), queued(anna, requested_by=ben), queued(anna)]
    hall.run_once()
    assert statuses(*others) == ["running"] * 3
    assert statuses(*greedy) == ["running"] * 12 + ["queued"] * 52
    hall.client(anna).go_on.set()
    eventually(lambda: (hall.run_once(), set(statuses(*greedy, *others)) == {"succeeded"})[1])


def test_calls_of_one_requester_that_hang_in_every_member_leave_slots_of_the_hall(
    make_hall: Callable[..., Hall_],
) -> None:
    hall = make_hall(concurrency=32)
    members = [hall.add(name) for name in "abcdef"]
    for member in members:
        hall.client(member).go_on.clear()
        for _ in range(10):
            queued(member, requested_by=somebody("greedy"))
    others = [queued(member, requested_by=somebody("other")) for member in members[:2]]
    hall.run_once()
    assert Call.objects.filter(status="running", requested_by=somebody("greedy")).count() == 24 + 3
    assert statuses(others[0]) == ["running"]
    assert Call.objects.filter(status="running").count() < 32


def test_hung_members_leave_slots_to_well_ones_also_for_who_called_them(make_hall: Callable[..., Hall_]) -> None:
    hall = make_hall(concurrency=64)
    for name in ("bad", "worse", "worst"):
        hung = hall.add(name, manifest={"max_concurrency": 1000})
        hall.client(hung).go_on.clear()
        for _ in range(70):
            queued(hung)
    well = hall.add("well")
    calls = [queued(well) for _ in range(5)]
    eventually(lambda: (hall.run_once(), set(statuses(*calls)) == {"succeeded"})[1])


def test_a_claim_that_fails_gives_its_slots_back(hall: Hall_, monkeypatch: pytest.MonkeyPatch) -> None:
    anna = hall.add()
    call = queued(anna)
    with monkeypatch.context() as patch:
        patch.setattr(statements, "claim", failing(OperationalError("away")))
        with pytest.raises(OperationalError):
            hall.dispatcher.run_queued_calls()
    assert hall.dispatcher.calls_in(anna.pk) == 0
    hall.run_all()
    assert statuses(call) == ["succeeded"]


def test_a_long_queue_is_claimed_in_batches_of_few_statements(hall: Hall_, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "CLAIM_BATCH", 10)
    anna = hall.add(manifest={"max_concurrency": 200})
    for _ in range(95):
        queued(anna)
    with CaptureQueriesContext(connection) as queries:
        hall.dispatcher.run_queued_calls()
    assert Call.objects.filter(status="running").count() == 95
    assert len(queries) == 20  # ten times: look, claim


# Claims -----------------------------------------------------------------------------------------------------------


def test_a_call_that_was_cancelled_before_the_claim_is_never_made(hall: Hall_, monkeypatch: pytest.MonkeyPatch) -> None:
    anna = hall.add()
    one, two, three = queued(anna, "1"), queued(anna, "2"), queued(anna, "3")
    real = statements.claim

    def claim(ids: list[int], lease_id: uuid.UUID) -> int:
        transitions.cancel(row(two))  # somebody is quicker
        return real(ids, lease_id)

    with monkeypatch.context() as patch:
        patch.setattr(statements, "claim", claim)
        hall.run_once()
    hall.run_once()
    assert [tool for tool, _, _ in hall.client(anna).calls] == ["1", "3"]
    assert statuses(one, two, three) == ["succeeded", "cancelled", "succeeded"]


def test_without_the_lease_nothing_is_claimed_and_the_queue_is_not_asked_without_end(hall: Hall_) -> None:
    anna = hall.add(manifest={"max_concurrency": 100})
    calls = [queued(anna) for _ in range(70)]
    Hall.objects.update(lease_id=uuid.uuid4())
    hall.run_once()
    assert set(statuses(*calls)) == {"queued"}
    assert hall.client(anna).calls == []
    assert hall.dispatcher.is_idle


def test_an_outcome_of_a_call_that_has_already_ended_is_one_line_in_the_log(
    hall: Hall_, caplog: pytest.LogCaptureFixture
) -> None:
    anna = hall.add()
    call = queued(anna)
    hall.run_once()
    Hall.objects.update(lease_id=uuid.uuid4())
    hall.run_once()
    assert row(call).status == "running"
    assert f"call {call.pk} has already ended" in caplog.text
    assert hall.dispatcher.is_idle


def test_after_stop_claiming_no_call_is_claimed_but_outcomes_are_written(hall: Hall_) -> None:
    anna = hall.add(manifest={"max_concurrency": 1})
    one, two = queued(anna), queued(anna)
    hall.run_once()
    hall.dispatcher.stop_claiming()
    hall.run_once()
    assert statuses(one, two) == ["succeeded", "queued"]


# Progress ---------------------------------------------------------------------------------------------------------


def test_progress_is_written_once_in_a_sweep_however_often_a_member_reports_it(hall: Hall_) -> None:
    anna = hall.add()
    one, two = queued(anna, "one"), queued(anna, "two")
    said = [{"progress": number, "total": "many", "message": "x" * 10_000} for number in range(1000)]
    hall.client(anna).progress = {"one": said, "two": [{"progress": "half"}]}
    hall.dispatcher.run_queued_calls()
    with CaptureQueriesContext(connection) as queries:
        hall.dispatcher.sweep()
        hall.dispatcher.sweep()
    assert sum(query["sql"].startswith("UPDATE") and "progress" in query["sql"] for query in queries) == 1
    assert row(one).progress == {"progress": 999, "total": None, "message": "x" * 500}
    assert row(two).progress is None


def test_progress_of_a_call_that_is_over_changes_nothing(hall: Hall_) -> None:
    anna = hall.add()
    call = queued(anna)
    hall.run_all()
    (exchange,) = hall.client(anna).exchanges
    exchange.on_progress({"progress": 1})
    hall.dispatcher.sweep()
    assert row(call).progress is None


# Outcomes ---------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_the_outcome_of_a_call_does_not_wait_for_the_big_answer_of_another(
    make_hall: Callable[..., Hall_], monkeypatch: pytest.MonkeyPatch
) -> None:
    hall = make_hall()
    anna, bob = hall.add("anna"), hall.add("bob")
    big = {"content": [{"type": "text", "text": "x" * outcomes.BIG_OUTCOME}]}
    hall.client(anna).answer = lambda tool: big
    real, go_on, writing = transitions.finish, threading.Event(), []

    def finish(call: Call, outcome: Outcome, lease_id: uuid.UUID) -> bool:
        if outcome.size > outcomes.BIG_OUTCOME:
            writing.append(call)
            go_on.wait(10)
            assert writing.pop() is call
            assert writing == []  # one after the other
        return real(call, outcome, lease_id)

    monkeypatch.setattr(transitions, "finish", finish)
    many = [queued(anna) for _ in range(3)]
    hall.run_once()
    eventually(lambda: writing)
    small = queued(bob)
    eventually(lambda: (hall.run_once(), statuses(small) == ["succeeded"])[1])
    assert statuses(*many) == ["running"] * 3
    go_on.set()
    eventually(lambda: (hall.run_once(), hall.dispatcher.is_idle)[1])
    assert statuses(*many) == ["succeeded"] * 3
    assert row(many[2]).result == big


@pytest.mark.django_db(transaction=True)
def test_a_big_answer_is_not_lost_when_the_database_is_away(hall: Hall_, monkeypatch: pytest.MonkeyPatch) -> None:
    anna = hall.add()
    hall.client(anna).answer = lambda tool: {"content": [{"type": "text", "text": "x" * outcomes.BIG_OUTCOME}]}
    call = queued(anna)
    with monkeypatch.context() as patch:
        patch.setattr(transitions, "finish", failing(OperationalError("gone")))
        hall.run_once()
    assert statuses(call) == ["running"]
    hall.run_once()
    assert statuses(call) == ["succeeded"]


def test_text_of_a_member_that_postgres_cannot_store_is_replaced(hall: Hall_) -> None:
    anna = hall.add()
    hall.client(anna).answer = failing(ProtocolError("answered with text/\x00html"))
    call = queued(anna)
    hall.run_all()
    assert row(call).error_message.endswith("answered with text/\N{REPLACEMENT CHARACTER}html")


def test_a_result_that_the_database_refuses_fails_only_its_own_call(
    hall: Hall_, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    anna = hall.add()
    calls = [queued(anna, str(number)) for number in range(3)]
    real = transitions.finish

    def finish(call: Call, outcome: Any, lease_id: uuid.UUID) -> bool:
        if call.pk == calls[1].pk and outcome.result is not None:
            raise DataError("too odd")
        return real(call, outcome, lease_id)

    monkeypatch.setattr(transitions, "finish", finish)
    hall.run_all()
    assert statuses(*calls) == ["succeeded", "failed", "succeeded"]
    assert row(calls[1]).error_kind == "protocol"
    assert "its result cannot be stored: too odd" in row(calls[1]).error_message
    assert "Traceback" in caplog.text


def test_a_result_that_cannot_be_encoded_fails_only_its_own_call(hall: Hall_, monkeypatch: pytest.MonkeyPatch) -> None:
    anna = hall.add()
    one, two = queued(anna, "1"), queued(anna, "2")
    real = transitions.finish

    def finish(call: Call, outcome: Any, lease_id: uuid.UUID) -> bool:
        if call.pk == one.pk and outcome.result is not None:
            raise UnicodeEncodeError("utf-8", "x", 0, 1, "odd")
        return real(call, outcome, lease_id)

    monkeypatch.setattr(transitions, "finish", finish)
    hall.run_all()
    assert statuses(one, two) == ["failed", "succeeded"]


@pytest.mark.django_db(transaction=True)
def test_outcomes_are_written_when_the_database_is_back(hall: Hall_, monkeypatch: pytest.MonkeyPatch) -> None:
    anna = hall.add()
    calls = [queued(anna) for _ in range(3)]
    hall.run_once()
    real, away = transitions.finish, [OperationalError("gone")] * 3

    def finish(*args: Any) -> bool:
        if away:
            raise away.pop()
        return real(*args)

    monkeypatch.setattr("mcp_runtime.rows.database.RETRY_INTERVAL", 0.001)
    monkeypatch.setattr(transitions, "finish", finish)
    hall.run_once()
    assert statuses(*calls) == ["succeeded"] * 3


@pytest.mark.django_db(transaction=True)
def test_the_next_iteration_writes_outcomes_after_a_write_that_failed(
    hall: Hall_, monkeypatch: pytest.MonkeyPatch
) -> None:
    anna = hall.add()
    call = queued(anna)
    hall.run_once()
    with monkeypatch.context() as patch:
        patch.setattr("mcp_runtime.rows.database.RETRY_SECONDS", 0.0)
        patch.setattr(transitions, "finish", failing(OperationalError("gone")))
        with pytest.raises(OperationalError):
            hall.run_once()
    assert not hall.dispatcher.is_idle
    hall.run_once()
    assert statuses(call) == ["succeeded"]


def test_outcomes_that_arrive_together_are_written_in_one_transaction_where_a_commit_waits_for_the_disk(
    hall: Hall_,
) -> None:
    """SQLite's does not, and its one lock is not held while the next statement is put together."""
    anna = hall.add()
    for _ in range(10):
        queued(anna)
    hall.run_once()
    with CaptureQueriesContext(connection) as queries:
        hall.dispatcher.write_outcomes()
    assert Call.objects.filter(status="succeeded").count() == 10
    assert len([q for q in queries if q["sql"].startswith("UPDATE")]) == 10
    transactions = len([q for q in queries if q["sql"].startswith(("SAVEPOINT", "BEGIN"))])
    assert transactions == (1 if connection.vendor == "postgresql" else 0)


def test_the_outcome_of_one_users_call_is_written_before_the_many_of_another(hall: Hall_) -> None:
    anna = hall.add(manifest={"max_concurrency": 200})
    many = [queued(anna, requested_by=somebody("many")) for _ in range(3 * outcomes.MAX_BATCH)]
    one = queued(anna, requested_by=somebody("one"))
    hall.dispatcher.run_queued_calls()
    hall.dispatcher.write_outcomes()
    assert statuses(one, many[0]) == ["succeeded", "succeeded"]
    assert statuses(*many).count("running") == len(many) - outcomes.MAX_BATCH + 1
    hall.run_all()
    assert statuses(*many) == ["succeeded"] * len(many)


def test_an_outcome_that_is_added_during_a_write_is_written_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is compared with another gives the pool's threads a chance to add one."""
    work: list[Callable[[], None]] = []
    hall = Hall_(lambda fn, args: work.append(partial(fn, *args)))
    anna = hall.add(manifest={"max_concurrency": 200})
    calls = []
    for user in (somebody("many"), somebody("one")):  # those of one after those of many
        calls += [queued(anna, requested_by=user) for _ in range(4)]
        hall.dispatcher.run_queued_calls()
    late, is_same = [work.pop()], Call.__eq__
    for end in work:
        end()

    def compare(one: Call, other: object) -> bool:
        if late:
            late.pop()()
        return is_same(one, other)

    with monkeypatch.context() as patch:
        patch.setattr(Call, "__eq__", compare)
        hall.dispatcher.write_outcomes()
    for end in late:
        end()
    hall.dispatcher.write_outcomes()
    assert statuses(*calls) == ["succeeded"] * len(calls)
    assert hall.dispatcher.is_idle


def test_outcomes_of_several_users_are_written_once_after_a_write_that_failed(
    hall: Hall_, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    anna = hall.add(manifest={"max_concurrency": 200})
    calls = [queued(anna, requested_by=user) for user in [somebody("many")] * 4 + [somebody("one")] * 2]
    hall.dispatcher.run_queued_calls()
    with monkeypatch.context() as patch:
        patch.setattr("mcp_runtime.rows.database.RETRY_SECONDS", 0.0)
        patch.setattr(transitions, "finish", failing(OperationalError("gone")))
        with pytest.raises(OperationalError):
            hall.dispatcher.write_outcomes()
    hall.dispatcher.write_outcomes()
    assert statuses(*calls) == ["succeeded"] * len(calls)
    assert "has already ended" not in caplog.text


def test_calls_that_are_claimed_together_are_made_in_turn_for_each_user(hall: Hall_) -> None:
    anna = hall.add(manifest={"max_concurrency": 200})
    for number in range(4):
        queued(anna, f"many-{number}", requested_by=somebody("many"))
    queued(anna, "one", requested_by=somebody("one"))
    hall.dispatcher.run_queued_calls()
    assert [tool for tool, _, _ in hall.client(anna).calls][:2] == ["many-0", "one"]


def test_outcomes_that_are_left_for_the_next_iteration_notify_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_watch, "SWEEP_SECONDS", 3600.0)
    hall = Hall_(inline, has_broker=True)
    hall.run_once()
    anna = hall.add(manifest={"max_concurrency": 200})
    for _ in range(outcomes.MAX_BATCH + 1):
        queued(anna)
    hall.dispatcher.run_queued_calls()
    assert hall.is_notified()  # by the calls themselves
    hall.dispatcher.write_outcomes()
    assert hall.is_notified()
    hall.dispatcher.write_outcomes()
    assert not hall.is_notified()
    assert hall.dispatcher.is_idle


# Members that are not there ---------------------------------------------------------------------------------------


def pass_time(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """By every clock."""
    monotonic, now = time.monotonic, timezone.now
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + seconds)
    monkeypatch.setattr(timezone, "now", lambda: now() + timedelta(seconds=seconds))


def refused(hall: Hall_, call: Call) -> str:
    """Why it ended as unavailable; empty while it waits."""
    hall.run_once()
    found = row(call)
    if found.status == "queued":
        return ""
    assert (found.status, found.error_kind) == ("failed", "unavailable")
    assert found.started_at is None
    prefix = "member 'anna' is unavailable: "
    assert found.error_message.startswith(prefix)
    return found.error_message.removeprefix(prefix)


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
def test_a_call_waits_for_a_member_that_may_come_up(hall: Hall_, columns: dict[str, Any]) -> None:
    anna = hall.add(connected=False, last_error="it fell over", **columns)
    call = queued(anna)
    assert refused(hall, call) == ""
    assert refused(hall, call) == ""
    hall.live[anna.pk] = Live(anna)
    hall.dispatcher.member_changed(anna.pk)
    hall.dispatcher.run_once()  # the change is the reason; no sweep is due
    hall.dispatcher.run_once()
    assert statuses(call) == ["succeeded"]


def test_a_member_that_came_up_unannounced_gets_its_calls_at_the_next_sweep(hall: Hall_) -> None:
    anna = hall.add(connected=False)
    call = queued(anna)
    hall.run_once()
    hall.live[anna.pk] = Live(anna)
    hall.run_once()
    hall.run_all()
    assert statuses(call) == ["succeeded"]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"removed_at": timezone.now()}, "its folder is gone"),
        ({"enabled": False}, "it is disabled"),
        ({"manifest_error": "args: must be a list"}, "args: must be a list"),
        ({"status": "error", "next_restart_at": timezone.now() + LATER}, "it fell over"),
    ],
)
def test_a_call_to_a_member_that_cannot_come_up_in_time_is_refused_with_the_reason(
    hall: Hall_, columns: dict[str, Any], said: str
) -> None:
    call = queued(hall.add(connected=False, last_error="it fell over", **columns))
    assert refused(hall, call) == said


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"status": "disconnected"}, "it was not connected within 0.3 s"),
        ({"status": "starting"}, "it was not connected within 0.3 s"),
        ({"status": "error", "desired_state": "stopped"}, "it was not connected within 0.3 s"),
        ({"status": "error", "next_restart_at": timezone.now() - LATER}, "it fell over"),  # due, but no place for it
        ({"status": "error", "restart_requested_at": timezone.now()}, "it fell over"),
    ],
)
def test_a_call_waits_no_longer_than_its_timeout(hall: Hall_, columns: dict[str, Any], said: str) -> None:
    anna = hall.add(connected=False, last_error="it fell over", **columns)
    call = queued(anna, timeout=0.3)
    assert refused(hall, call) == ""
    time.sleep(0.31)
    assert refused(hall, call) == said


def test_waiting_counts_from_when_the_runtime_first_saw_it_not_from_when_it_was_queued(hall: Hall_) -> None:
    """It may have been queued while no runtime was alive."""
    anna = hall.add(connected=False)
    call = queued(anna, timeout=5, queued_at=timezone.now() - timedelta(hours=1))
    assert refused(hall, call) == ""


def test_a_call_wakes_a_member_that_nothing_else_would_when_its_back_off_allows(hall: Hall_) -> None:
    """In error without a restart to come: given up, or `restart: never`."""
    changed_at = timezone.now() - timedelta(seconds=1)
    anna = hall.add(connected=False, status="error", status_changed_at=changed_at, restarts=3, last_error="it fell")
    call = queued(anna, timeout=30)
    assert refused(hall, call) == ""
    anna.refresh_from_db()
    assert abs(anna.next_restart_at - changed_at - restart_delay(3)) < timedelta(seconds=0.1)
    assert hall.woken == 1


def test_a_call_never_shortens_a_back_off(hall: Hall_) -> None:
    due = timezone.now() + timedelta(seconds=20)
    anna = hall.add(connected=False, status="error", restarts=5, next_restart_at=due, last_error="it fell")
    assert refused(hall, queued(anna, timeout=30)) == ""
    anna.refresh_from_db()
    assert anna.next_restart_at == due


def test_a_call_whose_deadline_is_before_the_end_of_the_back_off_is_refused_at_once(hall: Hall_) -> None:
    anna = hall.add(connected=False, status="error", restarts=6, last_error="it fell")
    assert refused(hall, queued(anna, timeout=2)) == "it fell"
    anna.refresh_from_db()
    assert anna.next_restart_at is None


def test_a_member_that_was_tried_for_the_call_and_failed_ends_it(hall: Hall_) -> None:
    anna = hall.add(connected=False, status="error", restarts=0, last_error="it fell")
    call = queued(anna)
    assert refused(hall, call) == ""
    GuildMember.objects.update(status_changed_at=timezone.now(), next_restart_at=None, last_error="it fell again")
    assert refused(hall, call) == "it fell again"


def test_thousands_that_wait_for_one_member_delay_no_refusal_of_another(
    hall: Hall_, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_for_members, "MAX_CHECKED_CALLS", 5)
    down, anna = hall.add("down", connected=False), hall.add("anna", connected=False, enabled=False)
    waiting = [queued(down) for _ in range(20)]
    hopeless = queued(anna)
    assert "it is disabled" in refused(hall, hopeless)
    assert set(statuses(*waiting)) == {"queued"}


def test_each_call_waits_for_its_member_from_the_time_it_was_queued(
    hall: Hall_, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from the first iteration that checks it. Calls behind many others would wait many times as long."""
    monkeypatch.setattr(waiting_for_members, "MAX_CHECKED_CALLS", 2)
    anna = hall.add(connected=False)
    calls = [queued(anna, timeout=20) for _ in range(6)]
    hall.run_once()
    pass_time(21, monkeypatch)
    for _ in range(3):
        hall.run_once()
    assert set(statuses(*calls)) == {"failed"}


def test_calls_wait_from_the_start_again_after_their_member_was_connected(
    hall: Hall_, monkeypatch: pytest.MonkeyPatch
) -> None:
    anna = hall.add(connected=False)
    call = queued(anna, timeout=20)
    Call.objects.update(queued_at=timezone.now() - timedelta(seconds=60))
    hall.run_once()
    pass_time(60, monkeypatch)
    hall.live[anna.pk] = Live(anna)
    hall.dispatcher.member_changed(anna.pk)
    del hall.live[anna.pk]
    assert refused(hall, call) == ""


def test_calls_that_wait_for_one_member_keep_no_others_waiting(hall: Hall_) -> None:
    down, up = hall.add("down", connected=False), hall.add("up")
    waiting = [queued(down) for _ in range(100)]
    other = queued(up)
    hall.run_all()
    assert statuses(other) == ["succeeded"]
    assert set(statuses(*waiting)) == {"queued"}


def test_without_the_lease_nothing_is_refused(hall: Hall_) -> None:
    call = queued(hall.add(connected=False, enabled=False))
    Hall.objects.update(lease_id=uuid.uuid4())
    hall.run_once()
    assert statuses(call) == ["queued"]


# Cancelling -------------------------------------------------------------------------------------------------------


def test_the_cancellation_of_a_running_call_is_sent_to_its_member_and_the_call_ends_as_cancelled(
    make_hall: Callable[..., Hall_],
) -> None:
    hall = make_hall()
    anna = hall.add()
    client = hall.client(anna)
    client.go_on.clear()
    one, two = queued(anna, "1"), queued(anna, "2")
    hall.run_once()
    eventually(lambda: client.running == 2)
    transitions.cancel(row(one))
    hall.run_once()
    eventually(lambda: client.running == 1)
    hall.run_once()
    assert statuses(one, two) == ["cancelled", "running"]
    assert client.cancelled == ["cancelled by request"]
    assert "the request was cancelled" in row(one).error_message


def test_a_call_that_is_being_cancelled_is_not_cancelled_again(make_hall: Callable[..., Hall_]) -> None:
    hall = make_hall()
    anna = hall.add()
    client = hall.client(anna)
    client.go_on.clear()
    call = queued(anna)
    hall.run_once()
    eventually(lambda: client.running == 1)
    transitions.cancel(row(call))
    hall.dispatcher.send_cancellations()
    eventually(lambda: client.cancelled)
    eventually(lambda: client.running == 0)
    hall.dispatcher.send_cancellations()  # its end is not written down yet
    assert client.cancelled == ["cancelled by request"]


def test_a_call_that_succeeded_before_it_could_be_cancelled_has_succeeded(hall: Hall_) -> None:
    anna = hall.add()
    call = queued(anna)
    hall.run_once()
    transitions.cancel(row(call))
    hall.run_once()
    assert statuses(call) == ["succeeded"]


# Strays -----------------------------------------------------------------------------------------------------------


def test_calls_that_another_runtime_left_running_end_as_lost_and_are_not_repeated(hall: Hall_) -> None:
    anna = hall.add()
    call = queued(anna, status="running", lease_id=uuid.uuid4(), started_at=timezone.now())
    hall.run_once()
    assert (row(call).status, row(call).error_kind) == ("failed", "lost")
    assert "the call is not repeated automatically" in row(call).error_message
    assert hall.client(anna).calls == []


def test_a_stray_ends_as_not_sent_at_the_second_check(hall: Hall_, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the wall clock is set: the row may say that it was claimed in an hour."""
    anna = hall.add()
    lost = queued(anna, status="running", lease_id=hall.lease_id, started_at=timezone.now() + LATER)
    hall.run_once()
    hall.run_once()
    assert statuses(lost) == ["running"]  # the next look is not due
    monkeypatch.setattr(dispatcher, "STRAY_SECONDS", 0.0)
    hall.run_once()
    assert statuses(lost) == ["failed"]
    assert (row(lost).error_kind, hall.client(anna).calls) == ("unavailable", [])


def test_a_call_that_runs_long_is_no_stray(make_hall: Callable[..., Hall_], monkeypatch: pytest.MonkeyPatch) -> None:
    hall = make_hall()
    anna = hall.add()
    hall.client(anna).go_on.clear()
    call = queued(anna)
    hall.run_once()
    monkeypatch.setattr(dispatcher, "STRAY_SECONDS", 0.0)
    for _ in range(3):
        hall.run_once()
    assert statuses(call) == ["running"]


# Stopping ---------------------------------------------------------------------------------------------------------


def test_abandoned_calls_end_as_lost_and_their_member_is_notified(make_hall: Callable[..., Hall_]) -> None:
    hall = make_hall()
    anna, bob = hall.add("anna"), hall.add("bob")
    for member in (anna, bob):
        hall.client(member).go_on.clear()
    ours, other = queued(anna), queued(bob)
    hall.run_once()
    eventually(lambda: hall.client(anna).running == hall.client(bob).running == 1)
    hall.dispatcher.abandon(anna.pk)
    eventually(lambda: hall.client(anna).running == 0)
    hall.run_once()
    assert statuses(ours, other) == ["failed", "running"]
    assert (row(ours).error_kind, hall.client(anna).cancelled) == ("lost", ["the runtime is stopping"])
    assert "the runtime was stopped during the call" in row(ours).error_message
    assert hall.client(bob).cancelled == []


def test_a_call_that_succeeded_just_before_it_was_abandoned_has_succeeded(hall: Hall_) -> None:
    anna = hall.add()
    call = queued(anna)
    hall.run_once()
    hall.dispatcher.abandon(anna.pk)
    hall.run_once()
    assert statuses(call) == ["succeeded"]


def test_stopping_before_the_loop_began_is_fine(hall: Hall_) -> None:
    hall.dispatcher.stop()


# The loop ---------------------------------------------------------------------------------------------------------

in_a_loop = pytest.mark.django_db(transaction=True)


def start_and_sweep(hall: Hall_, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the loop, and return when its first sweep is over."""
    sweep, swept = hall.dispatcher.sweep, threading.Event()
    monkeypatch.setattr(hall.dispatcher, "sweep", lambda: (sweep(), swept.set()))
    hall.dispatcher.start()
    assert swept.wait(10)


@in_a_loop
def test_a_notification_starts_work_at_once(make_hall: Callable[..., Hall_], monkeypatch: pytest.MonkeyPatch) -> None:
    hall = make_hall(has_broker=True)
    anna = hall.add()
    monkeypatch.setattr(queue_watch, "SQLITE_INTERVALS", [(math.inf, 3600.0)])
    for name in ("QUERY_INTERVAL", "SWEEP_SECONDS"):
        monkeypatch.setattr(queue_watch, name, 3600.0)
    start_and_sweep(hall, monkeypatch)
    call = queued(anna)
    hall.dispatcher.notify()
    eventually(lambda: row(call).status == "succeeded", within=5)


@in_a_loop
@pytest.mark.parametrize("has_broker", [True, False])
def test_without_a_notification_the_queue_is_looked_at_within_a_second_or_so(
    make_hall: Callable[..., Hall_], has_broker: bool
) -> None:
    hall = make_hall(has_broker=has_broker)
    anna = hall.add()
    hall.dispatcher.start()
    call = queued(anna)
    eventually(lambda: row(call).status == "succeeded", within=3)


@in_a_loop
@pytest.mark.skipif("connection.vendor != 'sqlite'", reason="a look at SQLite's own counter")
def test_a_commit_to_sqlite_notifies_of_calls_members_and_cancellations(
    make_hall: Callable[..., Hall_], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_watch, "SWEEP_SECONDS", 3600.0)
    hall = make_hall()
    anna = hall.add()
    hall.client(anna).go_on.clear()
    start_and_sweep(hall, monkeypatch)
    call = queued(anna)
    eventually(lambda: hall.client(anna).running == 1, within=5)
    transitions.cancel(row(call))
    eventually(lambda: row(call).status == "cancelled", within=5)
    woken = hall.woken
    GuildMember.objects.update(restart_requested_at=timezone.now())
    eventually(lambda: hall.woken > woken, within=5)


@in_a_loop
def test_an_iteration_that_fails_is_logged_and_the_next_one_follows(
    make_hall: Callable[..., Hall_], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queue_watch, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(dispatcher, "RETRY_SECONDS", 0.05)
    hall = make_hall()
    anna = hall.add()
    errors, real = [OperationalError("gone"), ZeroDivisionError("a bug")], hall.dispatcher.sweep

    def sweep() -> None:
        if errors:
            raise errors.pop()
        real()

    monkeypatch.setattr(hall.dispatcher, "sweep", sweep)
    hall.dispatcher.start()
    eventually(lambda: not errors)
    call = queued(anna)
    eventually(lambda: row(call).status == "succeeded")
    assert "the database cannot be reached (gone)" in caplog.text
    assert "an iteration of the dispatcher failed" in caplog.text


@in_a_loop
def test_the_loop_ends_when_the_last_outcome_is_written(make_hall: Callable[..., Hall_]) -> None:
    hall = make_hall()
    anna = hall.add()
    client = hall.client(anna)
    client.go_on.clear()
    hall.dispatcher.start()
    call = queued(anna)
    hall.dispatcher.notify()
    eventually(lambda: client.running == 1)
    hall.dispatcher.stop_claiming()
    client.go_on.set()
    hall.dispatcher.stop()
    assert statuses(call) == ["succeeded"]
    assert not is_looping()


@in_a_loop
def test_a_database_that_is_away_for_good_does_not_keep_the_loop_from_ending(
    make_hall: Callable[..., Hall_], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_runtime.rows.database.RETRY_SECONDS", 0.0)
    monkeypatch.setattr("mcp_runtime.rows.database.RETRY_INTERVAL", 0.001)
    monkeypatch.setattr(queue_watch, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(dispatcher, "RETRY_SECONDS", 0.05)
    hall = make_hall()
    anna = hall.add()
    tries: list[object] = []

    def finish(*end: object) -> bool:
        tries.append(end)
        raise OperationalError("gone")

    monkeypatch.setattr(transitions, "finish", finish)
    hall.dispatcher.start()
    queued(anna)
    hall.dispatcher.notify()
    eventually(lambda: tries)
    watch = Stopwatch()
    hall.dispatcher.stop()
    assert watch.seconds < 5
    assert not is_looping()


@in_a_loop
def test_a_fault_of_the_hall_itself_does_not_keep_it_from_stopping(
    make_hall: Callable[..., Hall_], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_watch, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(dispatcher, "RETRY_SECONDS", 0.05)
    hall = make_hall()
    anna = hall.add()
    queued(anna)
    hall.dispatcher.run_queued_calls()
    eventually(lambda: hall.ended == 1)
    monkeypatch.setattr(hall.dispatcher, "write_outcomes", failing(ZeroDivisionError("a bug")))
    hall.dispatcher.start()
    hall.dispatcher.stop()
    assert not is_looping()


@in_a_loop
def test_many_calls_from_many_threads_each_run_once(make_hall: Callable[..., Hall_]) -> None:
    hall = make_hall(has_broker=True)
    members = [hall.add(name, manifest={"max_concurrency": 4}) for name in "abcd"]
    hall.dispatcher.start()

    def queue(number: int) -> None:
        for index in range(10):
            queued(members[(number + index) % 4], f"{number}-{index}")
            hall.dispatcher.notify()
        connection.close()

    threads = [threading.Thread(target=queue, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    eventually(lambda: Call.objects.filter(status="succeeded").count() == 80, within=20)
    called = [tool for member in members for tool, _, _ in hall.client(member).calls]
    assert sorted(called) == sorted(f"{number}-{index}" for number in range(8) for index in range(10))
    assert max(hall.client(member).most_at_once for member in members) <= 4


# Notifications ----------------------------------------------------------------------------------------------------


def test_a_message_of_the_broker_notifies_the_dispatcher_and_one_about_members_notifies_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_watch, "SWEEP_SECONDS", 3600.0)
    hall = Hall_(inline, has_broker=True)
    hall.dispatcher.run_once()
    assert not hall.is_notified()
    tasks.answer_with(hall.dispatcher)
    try:
        tasks.drain_task()
        assert (hall.woken, hall.watch.sweep_is_due) == (0, False)
        assert hall.is_notified()
        tasks.drain_task(members=True)
        assert (hall.woken, hall.watch.sweep_is_due) == (1, True)
        hall.dispatcher.run_once()
        assert hall.is_notified()
    finally:
        tasks.answer_with(None)
    tasks.drain_task(members=True)  # a stopping runtime hears nothing
    assert not hall.is_notified()


def test_the_stand_ins_can_what_the_real_ones_can() -> None:
    for name in ("connected_member", "handle_connection_failure"):
        assert callable(getattr(Lifecycle, name))
    for name in ("invoke_tool", "cancel"):
        assert callable(getattr(JsonRpcClient, name))

"""Whose request computes. The tests call methods directly, and use threads only where a request waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from guildhall import turns as module
from guildhall.turns import Turn, Turns, computing, give_way_at_queries
from mcp_runtime.schemas.schema_work import others_compute
from roster.models import GuildMember
from tests.conftest import eventually
from tests.support.resources import entries_in

ANNA, BERT, CARL = 1, 2, 3


class WatchedTurns(Turns):
    """`waiting_turns`: the turns that did not begin at once."""

    def __init__(self, clock: Callable[[], float], cpu_clock: Callable[[], float]) -> None:
        super().__init__(clock=clock, cpu_clock=cpu_clock)
        self.waiting_turns: list[Turn] = []

    def take(self, turn: Turn) -> bool:
        has_turn = super().take(turn)
        if not has_turn:
            self.waiting_turns.append(turn)
        return has_turn


class Bench:
    """Requests that wait for a turn. `names` are those of the requests that got their turn, `holders` their turns."""

    def __init__(self) -> None:
        self.now = 100.0
        self._computed = 0.0  # in addition to what this thread really computes
        self.turns = WatchedTurns(lambda: self.now, lambda: self._computed + time.thread_time())
        self.names: list[str] = []
        self.holders: list[Turn] = []

    def add_request(self, user: int, name: str = "") -> Turn:
        """Adds a request, which gets its turn or waits for it."""

        def record_turn() -> None:
            self.names.append(name)
            self.holders.append(turn)

        turn = Turn(user, record_turn)
        if self.turns.take(turn):
            record_turn()
        return turn

    def add_use(self, user: int, seconds: float) -> None:
        """Adds the time that a request of this user computed."""
        turn = Turn(user, lambda: None)
        self.turns.begin(turn)
        self._computed += seconds
        self.turns.count(turn)

    def first_user(self, *users: int) -> int:
        """The user whose request comes first when all wait for the same turn."""
        holder = self.add_request(CARL)
        for user in users:
            self.add_request(user)
        self.turns.give_back(holder)
        return self.holders[-1].user


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_waiting_user_with_the_least_use_gets_the_next_turn(bench: Bench) -> None:
    bench.add_use(ANNA, 0.5)
    bench.add_use(BERT, 0.2)
    first = bench.add_request(CARL, "carl")
    bench.add_request(ANNA, "anna")
    second = bench.add_request(BERT, "bert")
    assert bench.names == ["carl"]
    bench.turns.give_back(first)
    assert bench.names == ["carl", "bert"]
    bench.turns.give_back(second)
    assert bench.names == ["carl", "bert", "anna"]


def test_requests_of_one_user_that_have_begun_come_first_and_then_the_oldest(bench: Bench) -> None:
    holder = bench.add_request(BERT)
    bench.add_request(ANNA, "first")
    bench.add_request(ANNA, "second")
    bench.add_request(ANNA, "begun").has_begun = True
    order = []
    for _ in range(3):
        bench.turns.give_back(holder)
        holder = bench.holders[-1]
        order.append(bench.names[-1])
    assert order == ["begun", "first", "second"]


def test_a_request_at_a_query_yields_its_turn_only_to_users_with_less_use(bench: Bench) -> None:
    bench.add_use(ANNA, 0.5)
    bench.add_use(CARL, 0.9)
    holder = bench.add_request(ANNA, "anna")
    bench.turns.begin(holder)
    bench.add_request(CARL, "carl")
    bench.turns.yield_turn(holder)
    assert bench.names == ["anna"]
    bench.add_request(BERT, "bert")  # arrives while the other request is at its query
    assert bench.names == ["anna", "bert"]


def test_a_request_that_returns_from_a_query_waits_for_the_current_turn(bench: Bench) -> None:
    bench.add_use(ANNA, 0.5)
    holder, is_back = bench.add_request(ANNA), threading.Event()
    bench.turns.begin(holder)
    bench.turns.yield_turn(holder)
    other = bench.add_request(BERT, "bert")
    thread = threading.Thread(target=lambda: (bench.turns.wait_for_turn(holder), is_back.set()))
    thread.start()
    eventually(lambda: holder in bench.turns.waiting_turns)
    bench.turns.give_back(other)
    assert is_back.wait(10)
    thread.join(10)
    bench.add_request(BERT, "bert again")
    assert bench.names[-1] == "bert"
    bench.turns.give_back(holder)
    assert bench.names[-1] == "bert again"


def test_a_request_that_lost_its_turn_at_a_query_gets_the_next_turn(bench: Bench) -> None:
    bench.add_use(BERT, 0.5)
    holder, is_back = bench.add_request(ANNA), threading.Event()
    bench.turns.begin(holder)
    bench.turns.yield_turn(holder)
    other = bench.add_request(BERT, "bert")
    bench.now += module.HEAVY_PATIENCE_SECONDS * 1.1  # a query that takes long
    bench.turns.insist(other)
    assert bench.names == ["", "bert"]
    thread = threading.Thread(target=lambda: (bench.turns.wait_for_turn(holder), is_back.set()))
    thread.start()
    eventually(lambda: holder in bench.turns.waiting_turns)
    bench.turns.give_back(other)
    assert is_back.wait(module.OWN_PATIENCE_SECONDS / 2)
    thread.join(10)
    bench.turns.give_back(holder)
    for user in (ANNA, BERT):  # no request of theirs counts as active
        bench.turns.give_back(bench.add_request(user, f"user {user}"))
    assert bench.names[-2:] == ["user 1", "user 2"]


def test_a_request_continues_after_its_query_if_no_other_request_took_the_turn(bench: Bench) -> None:
    holder = bench.add_request(ANNA)
    bench.turns.begin(holder)
    bench.turns.yield_turn(holder)
    bench.turns.wait_for_turn(holder)
    bench.add_use(BERT, -1.0)
    bench.add_request(BERT, "bert")
    assert bench.names == [""]


@pytest.mark.parametrize(
    ("user", "use", "patience"),
    [
        (BERT, 0.1, module.PATIENCE_SECONDS),
        (BERT, 0.9, module.HEAVY_PATIENCE_SECONDS),
        (ANNA, 0.0, module.OWN_PATIENCE_SECONDS),
    ],
)
def test_other_requests_compute_beside_a_turn_that_lasts_long(
    bench: Bench, user: int, use: float, patience: float
) -> None:
    """First those of users with less use, then those of users with more, and at last those of the same user."""
    bench.add_use(ANNA, 0.5)
    bench.add_use(user, use)
    bench.add_request(ANNA)
    other = bench.add_request(user, "other")
    assert bench.turns.patience(other) == pytest.approx(patience)
    bench.now += patience * 0.9
    bench.turns.insist(other)
    assert "other" not in bench.names
    bench.now += patience * 0.2
    bench.turns.insist(other)
    assert bench.names[-1] == "other"
    bench.turns.insist(other)
    assert bench.names.count("other") == 1


def test_no_second_request_of_a_user_begins_beside_a_long_request_of_this_user(bench: Bench) -> None:
    bench.add_use(ANNA, 0.5)
    long_turn = bench.add_request(ANNA)
    bench.add_request(ANNA, "anna again")
    other = bench.add_request(BERT, "bert")
    bench.now += module.PATIENCE_SECONDS * 2
    bench.turns.insist(other)
    bench.turns.give_back(other)
    assert bench.names == ["", "bert"]
    last = bench.add_request(CARL, "carl")
    bench.turns.give_back(last)
    assert bench.names == ["", "bert", "carl"]
    bench.turns.begin(long_turn)
    bench.turns.yield_turn(long_turn)  # now it must wait for its turn
    assert bench.names == ["", "bert", "carl", "anna again"]


def test_a_long_request_that_ends_leaves_nothing_behind(bench: Bench) -> None:
    long_turn = bench.add_request(ANNA)
    waiting_turn = bench.add_request(ANNA, "anna again")
    other = bench.add_request(BERT, "bert")
    bench.now += module.HEAVY_PATIENCE_SECONDS * 2
    bench.turns.insist(other)
    bench.turns.give_back(long_turn)
    assert bench.names == ["", "bert"]
    bench.turns.give_back(other)
    assert bench.holders[-1] is waiting_turn
    assert bench.turns.is_busy()
    bench.turns.give_back(waiting_turn)
    assert not bench.turns.is_busy()
    for user in (ANNA, BERT):
        bench.turns.give_back(bench.add_request(user, f"user {user}"))
    assert bench.names == ["", "bert", "anna again", "user 1", "user 2"]


@pytest.mark.parametrize(("credits", "first"), [(0.9, BERT), (1.1, ANNA)])
def test_a_user_cannot_save_unused_time(bench: Bench, credits: float, first: int) -> None:
    """After a pause, a user comes first for a moment, and not for as long as the pause was."""
    bench.add_use(BERT, 0.001)
    bench.add_use(ANNA, 100.0)
    bench.turns.give_back(bench.add_request(ANNA))
    bench.turns.give_back(bench.add_request(BERT))
    bench.add_use(BERT, credits * module.CREDIT_SECONDS)
    assert bench.first_user(ANNA, BERT) == first


@pytest.mark.parametrize(("others_seconds", "first"), [(0.019, BERT), (0.2, ANNA)])
def test_computing_time_is_counted(bench: Bench, others_seconds: float, first: int) -> None:
    turn = bench.add_request(ANNA)
    with computing(bench.turns, turn):
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
    assert not bench.turns.is_busy()
    bench.add_use(BERT, others_seconds)
    assert bench.first_user(ANNA, BERT) == first


def test_the_number_of_counted_users_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_USERS", 5)
    for number in range(50):
        bench.turns.give_back(bench.add_request(number))
        bench.add_use(number, 1.0)
    assert entries_in(bench.turns) <= 5


# Queries ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def turn_events() -> Iterator[list[str]]:
    """What this thread did with its turn: "left" or "came back"."""
    events: list[str] = []

    class RecordedTurns(Turns):
        def yield_turn(self, turn: Turn) -> None:
            events.append("left")
            super().yield_turn(turn)

        def wait_for_turn(self, turn: Turn) -> None:
            events.append("came back")
            super().wait_for_turn(turn)

    turns, turn = RecordedTurns(), Turn(ANNA, lambda: None)
    turns.take(turn)
    before = list(connection.execute_wrappers)
    give_way_at_queries(connection)
    give_way_at_queries(connection)
    try:
        with computing(turns, turn):
            yield events
    finally:
        connection.execute_wrappers[:] = before


@pytest.mark.django_db(transaction=True)
def test_a_request_yields_its_turn_for_reads_and_keeps_it_for_writes(turn_events: list[str]) -> None:
    assert User.objects.filter(username="nobody").first() is None
    assert turn_events == ["left", "came back"]
    turn_events.clear()
    GuildMember.objects.create(name="somebody", directory="somebody")
    with transaction.atomic():
        assert GuildMember.objects.count() == 1
    assert turn_events == []


@pytest.mark.django_db(transaction=True)
def test_the_turn_comes_back_after_a_query_that_fails(turn_events: list[str]) -> None:
    with pytest.raises(Exception, match="nothing_here"), connection.cursor() as cursor:
        cursor.execute("SELECT * FROM nothing_here")
    assert turn_events == ["left", "came back"]


def test_work_that_steps_aside_learns_whether_another_request_computes(bench: Bench) -> None:
    own_turn = bench.add_request(ANNA)
    with computing(bench.turns, own_turn):
        bench.turns.give_back(own_turn)
        assert not others_compute.get()()
        other = bench.add_request(BERT)
        assert others_compute.get()()
        bench.turns.yield_turn(other)  # it is at a query
        assert not others_compute.get()()
        bench.turns.wait_for_turn(other)
        assert others_compute.get()()
        bench.turns.give_back(other)
    assert not others_compute.get()()


def begin_request(bench: Bench, user: int) -> Turn:
    turn = bench.add_request(user)
    bench.turns.begin(turn)
    return turn


def test_a_request_keeps_its_turn_despite_its_own_use(bench: Bench) -> None:
    bench.add_use(ANNA, 0.5)
    bench.add_use(BERT, 0.495)
    own_turn = begin_request(bench, BERT)
    bench.add_request(ANNA, "anna")
    bench.add_use(BERT, 0.01)
    bench.turns.yield_turn(own_turn)
    assert bench.names == [""]
    bench.turns.wait_for_turn(own_turn)
    assert bench.names == [""]


def test_a_request_with_much_use_soon_loses_its_turn(bench: Bench) -> None:
    bench.add_use(ANNA, 0.5)
    bench.add_use(BERT, 0.495)
    own_turn = begin_request(bench, BERT)
    bench.add_request(ANNA, "anna")
    bench.add_use(BERT, 0.01 + module.CREDIT_SECONDS)
    bench.turns.yield_turn(own_turn)
    assert bench.names == ["", "anna"]


def test_a_request_after_a_long_wait_counts_as_a_new_request(bench: Bench) -> None:
    bench.add_use(ANNA, 0.5)
    bench.add_use(BERT, 0.495)
    own_turn = begin_request(bench, BERT)
    bench.add_use(BERT, 0.01)
    bench.turns.give_back(own_turn)
    holder = begin_request(bench, ANNA)
    assert not bench.turns.take(own_turn)
    bench.turns.yield_turn(holder)
    assert bench.holders == [own_turn, holder]

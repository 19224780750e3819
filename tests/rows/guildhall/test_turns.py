"""Whose request computes, told by plain calls; threads only where somebody waits."""

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
from tests.conftest import eventually
from tests.support.resources import entries_in

ANNA, BERT, CARL = 1, 2, 3


class Watched(Turns):
    """`waited`: those that did not have their turn at once."""

    def __init__(self, clock: Callable[[], float], cpu_clock: Callable[[], float]) -> None:
        super().__init__(clock=clock, cpu_clock=cpu_clock)
        self.waited: list[Turn] = []

    def take(self, turn: Turn) -> bool:
        has_turn = super().take(turn)
        if not has_turn:
            self.waited.append(turn)
        return has_turn


class Bench:
    """Requests in line: `told` are the names of those that got their turn, in order, and `given` the turns."""

    def __init__(self) -> None:
        self.now = 100.0
        self._computed = 0.0  # beside what this thread really computes
        self.turns = Watched(lambda: self.now, lambda: self._computed + time.thread_time())
        self.told: list[str] = []
        self.given: list[Turn] = []

    def asks(self, user: int, name: str = "") -> Turn:
        """A request, which has its turn or waits for it."""

        def tell() -> None:
            self.told.append(name)
            self.given.append(turn)

        turn = Turn(user, tell)
        if self.turns.take(turn):
            tell()
        return turn

    def used(self, user: int, seconds: float) -> None:
        """So long a request of that user has computed."""
        turn = Turn(user, lambda: None)
        self.turns.begin(turn)
        self._computed += seconds
        self.turns.count(turn)

    def first_of(self, *users: int) -> int:
        """Who of them comes first, as they wait for the same turn."""
        holder = self.asks(CARL)
        for user in users:
            self.asks(user)
        self.turns.give_back(holder)
        return self.given[-1].user


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_one_computes_at_a_time_and_then_it_is_the_turn_of_who_used_least(bench: Bench) -> None:
    bench.used(ANNA, 0.5)
    bench.used(BERT, 0.2)
    first = bench.asks(CARL, "carl")
    bench.asks(ANNA, "anna")
    second = bench.asks(BERT, "bert")
    assert bench.told == ["carl"]
    bench.turns.give_back(first)
    assert bench.told == ["carl", "bert"]
    bench.turns.give_back(second)
    assert bench.told == ["carl", "bert", "anna"]


def test_of_one_client_first_comes_what_is_begun_and_then_what_waits_longest(bench: Bench) -> None:
    holder = bench.asks(BERT)
    bench.asks(ANNA, "first")
    bench.asks(ANNA, "second")
    bench.asks(ANNA, "begun").has_begun = True
    order = []
    for _ in range(3):
        bench.turns.give_back(holder)
        holder = bench.given[-1]
        order.append(bench.told[-1])
    assert order == ["begun", "first", "second"]


def test_who_asks_the_database_leaves_its_turn_to_who_has_used_less_and_to_nobody_else(bench: Bench) -> None:
    bench.used(ANNA, 0.5)
    bench.used(CARL, 0.9)
    holder = bench.asks(ANNA, "anna")
    bench.turns.begin(holder)
    bench.asks(CARL, "carl")
    bench.turns.yield_turn(holder)
    assert bench.told == ["anna"]
    bench.asks(BERT, "bert")  # comes while the other is at its query
    assert bench.told == ["anna", "bert"]


def test_who_comes_back_from_a_query_waits_for_who_has_its_turn_now(bench: Bench) -> None:
    bench.used(ANNA, 0.5)
    holder, back = bench.asks(ANNA), threading.Event()
    bench.turns.begin(holder)
    bench.turns.yield_turn(holder)
    other = bench.asks(BERT, "bert")
    waiting = threading.Thread(target=lambda: (bench.turns.wait_for_turn(holder), back.set()))
    waiting.start()
    eventually(lambda: holder in bench.turns.waited)
    bench.turns.give_back(other)
    assert back.wait(10)
    waiting.join(10)
    bench.asks(BERT, "bert again")
    assert bench.told[-1] == "bert"
    bench.turns.give_back(holder)
    assert bench.told[-1] == "bert again"


def test_who_was_at_a_query_when_another_insisted_has_its_turn_as_soon_as_that_one_is_done(bench: Bench) -> None:
    bench.used(BERT, 0.5)
    holder, back = bench.asks(ANNA), threading.Event()
    bench.turns.begin(holder)
    bench.turns.yield_turn(holder)
    other = bench.asks(BERT, "bert")
    bench.now += module.HEAVY_PATIENCE_SECONDS * 1.1  # a query that takes long
    bench.turns.insist(other)
    assert bench.told == ["", "bert"]
    waiting = threading.Thread(target=lambda: (bench.turns.wait_for_turn(holder), back.set()))
    waiting.start()
    eventually(lambda: holder in bench.turns.waited)
    bench.turns.give_back(other)
    assert back.wait(module.OWN_PATIENCE_SECONDS / 2)
    waiting.join(10)
    bench.turns.give_back(holder)
    for user in (ANNA, BERT):  # nothing of theirs is thought to go on
        bench.turns.give_back(bench.asks(user, f"user {user}"))
    assert bench.told[-2:] == ["user 1", "user 2"]


def test_who_comes_back_and_was_not_wanted_away_goes_on(bench: Bench) -> None:
    holder = bench.asks(ANNA)
    bench.turns.begin(holder)
    bench.turns.yield_turn(holder)
    bench.turns.wait_for_turn(holder)
    bench.used(BERT, -1.0)
    bench.asks(BERT, "bert")
    assert bench.told == [""]


@pytest.mark.parametrize(
    ("user", "used", "patience"),
    [
        (BERT, 0.1, module.PATIENCE_SECONDS),
        (BERT, 0.9, module.HEAVY_PATIENCE_SECONDS),
        (ANNA, 0.0, module.OWN_PATIENCE_SECONDS),
    ],
)
def test_who_has_its_turn_for_long_lets_others_go_on_beside_it(
    bench: Bench, user: int, used: float, patience: float
) -> None:
    """Soon who has used less, later who has used more, and last of all what is of the same user."""
    bench.used(ANNA, 0.5)
    bench.used(user, used)
    bench.asks(ANNA)
    other = bench.asks(user, "other")
    assert bench.turns.patience(other) == pytest.approx(patience)
    bench.now += patience * 0.9
    bench.turns.insist(other)
    assert "other" not in bench.told
    bench.now += patience * 0.2
    bench.turns.insist(other)
    assert bench.told[-1] == "other"
    bench.turns.insist(other)
    assert bench.told.count("other") == 1


def test_while_a_users_long_request_goes_on_beside_others_no_other_one_of_it_begins(bench: Bench) -> None:
    bench.used(ANNA, 0.5)
    long = bench.asks(ANNA)
    bench.asks(ANNA, "anna again")
    other = bench.asks(BERT, "bert")
    bench.now += module.PATIENCE_SECONDS * 2
    bench.turns.insist(other)
    bench.turns.give_back(other)
    assert bench.told == ["", "bert"]
    last = bench.asks(CARL, "carl")
    bench.turns.give_back(last)
    assert bench.told == ["", "bert", "carl"]
    bench.turns.begin(long)
    bench.turns.yield_turn(long)  # now it comes back only when it is its turn
    assert bench.told == ["", "bert", "carl", "anna again"]


def test_a_long_request_that_ends_leaves_nothing_behind(bench: Bench) -> None:
    long = bench.asks(ANNA)
    waiting = bench.asks(ANNA, "anna again")
    other = bench.asks(BERT, "bert")
    bench.now += module.HEAVY_PATIENCE_SECONDS * 2
    bench.turns.insist(other)
    bench.turns.give_back(long)
    assert bench.told == ["", "bert"]
    bench.turns.give_back(other)
    assert bench.given[-1] is waiting
    assert bench.turns.is_busy()
    bench.turns.give_back(waiting)
    assert not bench.turns.is_busy()
    for user in (ANNA, BERT):
        bench.turns.give_back(bench.asks(user, f"user {user}"))
    assert bench.told == ["", "bert", "anna again", "user 1", "user 2"]


@pytest.mark.parametrize(("credits_used", "first"), [(0.9, BERT), (1.1, ANNA)])
def test_nobody_saves_up_what_it_did_not_use(bench: Bench, credits_used: float, first: int) -> None:
    """After a while without any, a client is before the others for a moment and not for as long as it was away."""
    bench.used(BERT, 0.001)
    bench.used(ANNA, 100.0)
    bench.turns.give_back(bench.asks(ANNA))
    bench.turns.give_back(bench.asks(BERT))
    bench.used(BERT, credits_used * module.CREDIT_SECONDS)
    assert bench.first_of(ANNA, BERT) == first


@pytest.mark.parametrize(("others_seconds", "first"), [(0.019, BERT), (0.2, ANNA)])
def test_what_was_computed_is_counted(bench: Bench, others_seconds: float, first: int) -> None:
    turn = bench.asks(ANNA)
    with computing(bench.turns, turn):
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
    assert not bench.turns.is_busy()
    bench.used(BERT, others_seconds)
    assert bench.first_of(ANNA, BERT) == first


def test_users_that_were_counted_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_USERS", 5)
    for number in range(50):
        bench.turns.give_back(bench.asks(number))
        bench.used(number, 1.0)
    assert entries_in(bench.turns) <= 5


# Queries ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def told() -> Iterator[list[str]]:
    """What this thread did with its turn: left it, came back."""
    words: list[str] = []

    class Told(Turns):
        def yield_turn(self, turn: Turn) -> None:
            words.append("left")
            super().yield_turn(turn)

        def wait_for_turn(self, turn: Turn) -> None:
            words.append("came back")
            super().wait_for_turn(turn)

    turns, turn = Told(), Turn(ANNA, lambda: None)
    turns.take(turn)
    before = list(connection.execute_wrappers)
    give_way_at_queries(connection)
    give_way_at_queries(connection)
    try:
        with computing(turns, turn):
            yield words
    finally:
        connection.execute_wrappers[:] = before


@pytest.mark.django_db(transaction=True)
def test_a_request_leaves_its_turn_while_it_reads_and_keeps_it_where_it_writes(told: list[str]) -> None:
    assert User.objects.filter(username="nobody").first() is None
    assert told == ["left", "came back"]
    told.clear()
    User.objects.create(username="somebody")
    with transaction.atomic():
        assert User.objects.count() == 1
    assert told == []


@pytest.mark.django_db(transaction=True)
def test_a_query_that_fails_brings_the_turn_back(told: list[str]) -> None:
    with pytest.raises(Exception, match="nothing_here"), connection.cursor() as cursor:
        cursor.execute("SELECT * FROM nothing_here")
    assert told == ["left", "came back"]


def test_work_that_steps_aside_learns_whether_somebody_computes(bench: Bench) -> None:
    own = bench.asks(ANNA)
    with computing(bench.turns, own):
        bench.turns.give_back(own)
        assert not others_compute.get()()
        other = bench.asks(BERT)
        assert others_compute.get()()
        bench.turns.yield_turn(other)  # it is at a query
        assert not others_compute.get()()
        bench.turns.wait_for_turn(other)
        assert others_compute.get()()
        bench.turns.give_back(other)
    assert not others_compute.get()()


def begun(bench: Bench, user: int) -> Turn:
    turn = bench.asks(user)
    bench.turns.begin(turn)
    return turn


def test_a_request_that_came_first_is_not_behind_at_its_end_for_what_it_used_itself(bench: Bench) -> None:
    bench.used(ANNA, 0.5)
    bench.used(BERT, 0.495)
    own = begun(bench, BERT)
    bench.asks(ANNA, "anna")
    bench.used(BERT, 0.01)
    bench.turns.yield_turn(own)
    assert bench.told == [""]
    bench.turns.wait_for_turn(own)
    assert bench.told == [""]


def test_a_request_that_uses_much_is_soon_behind(bench: Bench) -> None:
    bench.used(ANNA, 0.5)
    bench.used(BERT, 0.495)
    own = begun(bench, BERT)
    bench.asks(ANNA, "anna")
    bench.used(BERT, 0.01 + module.CREDIT_SECONDS)
    bench.turns.yield_turn(own)
    assert bench.told == ["", "anna"]


def test_a_request_after_a_long_wait_counts_as_a_new_request(bench: Bench) -> None:
    bench.used(ANNA, 0.5)
    bench.used(BERT, 0.495)
    own = begun(bench, BERT)
    bench.used(BERT, 0.01)
    bench.turns.give_back(own)
    holder = begun(bench, ANNA)
    assert not bench.turns.take(own)
    bench.turns.yield_turn(holder)
    assert bench.given == [own, holder]

"""Whose request computes, told by plain calls; threads only where somebody waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from guildhall import turns as module
from guildhall.turns import Turn, Turns, computing, give_way_at_queries
from tests.conftest import eventually

ANNA, BERT, CARL = 1, 2, 3


class Bench:
    """Requests in line: `told` are the names of those that were woken, in order."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.told: list[str] = []

    def asks(self, user: int, name: str = "") -> Turn:
        """A request, which has its turn or waits for it."""
        turn = Turn(user, lambda: self.told.append(name))
        if self.turns.take(turn):
            self.told.append(name)
        return turn

    def used(self, user: int, seconds: float) -> None:
        self.turns._used[user] = self.turns._used.get(user, 0.0) + seconds


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
    bench.asks(ANNA, "begun").is_begun = True
    order = []
    for _ in range(3):
        bench.turns.give_back(holder)
        assert bench.turns._holder is not None
        holder = bench.turns._holder
        order.append(bench.told[-1])
    assert order == ["begun", "first", "second"]


def test_who_asks_the_database_leaves_its_turn_to_who_has_used_less_and_to_nobody_else(bench: Bench) -> None:
    bench.used(ANNA, 0.5)
    bench.used(CARL, 0.9)
    holder = bench.asks(ANNA, "anna")
    bench.turns.begin(holder)
    bench.asks(CARL, "carl")
    bench.turns.leave(holder)
    assert bench.told == ["anna"]
    bench.asks(BERT, "bert")  # comes while the other is at its query
    assert bench.told == ["anna", "bert"]


def test_who_comes_back_from_a_query_waits_for_who_has_its_turn_now(bench: Bench) -> None:
    bench.used(ANNA, 0.5)
    holder, back = bench.asks(ANNA), threading.Event()
    bench.turns.begin(holder)
    bench.turns.leave(holder)
    other = bench.asks(BERT, "bert")
    waiting = threading.Thread(target=lambda: (bench.turns.come_back(holder), back.set()))
    waiting.start()
    eventually(lambda: holder in bench.turns._waiting)
    bench.turns.give_back(other)
    assert back.wait(10)
    waiting.join(10)
    assert bench.turns._holder is holder


def test_who_comes_back_and_was_not_wanted_away_goes_on(bench: Bench) -> None:
    holder = bench.asks(ANNA)
    bench.turns.begin(holder)
    bench.turns.leave(holder)
    bench.turns.come_back(holder)
    assert bench.turns._holder is holder
    bench.used(BERT, -1.0)
    bench.asks(BERT, "bert")
    assert bench.told == [""]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("guildhall.turns.time.monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("user", "used", "patience"),
    [
        (BERT, 0.1, module.PATIENCE_SECONDS),
        (BERT, 0.9, module.HEAVY_PATIENCE_SECONDS),
        (ANNA, 0.0, module.OWN_PATIENCE_SECONDS),
    ],
)
def test_who_has_its_turn_for_long_lets_others_go_on_beside_it(
    bench: Bench, clock: list[float], user: int, used: float, patience: float
) -> None:
    """Soon who has used less, later who has used more, and last of all what is of the same user."""
    bench.used(ANNA, 0.5)
    bench.asks(ANNA)
    bench.used(user, used)
    other = bench.asks(user, "other")
    assert bench.turns.patience(other) == pytest.approx(patience)
    clock[0] += patience * 0.9
    bench.turns.insist(other)
    assert "other" not in bench.told
    clock[0] += patience * 0.2
    bench.turns.insist(other)
    assert bench.told[-1] == "other"
    bench.turns.insist(other)
    assert bench.told.count("other") == 1


def test_while_a_users_long_request_goes_on_beside_others_no_other_one_of_it_begins(
    bench: Bench, clock: list[float]
) -> None:
    bench.used(ANNA, 0.5)
    long = bench.asks(ANNA)
    bench.asks(ANNA, "anna again")
    other = bench.asks(BERT, "bert")
    clock[0] += module.PATIENCE_SECONDS * 2
    bench.turns.insist(other)
    bench.turns.give_back(other)
    assert bench.told == ["", "bert"]
    last = bench.asks(CARL, "carl")
    bench.turns.give_back(last)
    assert bench.told == ["", "bert", "carl"]
    bench.turns.begin(long)
    bench.turns.leave(long)  # now it comes back only when it is its turn
    assert bench.told == ["", "bert", "carl", "anna again"]
    assert not bench.turns._beside


def test_a_long_request_that_ends_leaves_nothing_behind(bench: Bench, clock: list[float]) -> None:
    long = bench.asks(ANNA)
    waiting = bench.asks(ANNA, "anna again")
    other = bench.asks(BERT, "bert")
    clock[0] += module.HEAVY_PATIENCE_SECONDS * 2
    bench.turns.insist(other)
    bench.turns.give_back(long)
    bench.turns.give_back(other)
    assert bench.turns._holder is waiting
    bench.turns.give_back(waiting)
    assert (bench.turns._holder, bench.turns._beside, bench.turns._waiting) == (None, [], [])


def test_nobody_saves_up_what_it_did_not_use(bench: Bench) -> None:
    """After a while without any, a client is before the others for a moment and not for as long as it was away."""
    bench.used(ANNA, 100.0)
    bench.turns.give_back(bench.asks(ANNA))
    bench.turns.give_back(bench.asks(BERT))
    assert bench.turns._used[BERT] == pytest.approx(100.0 - module.CREDIT_SECONDS)


def test_what_was_computed_is_counted(bench: Bench) -> None:
    turn = bench.asks(ANNA)
    with computing(bench.turns, turn):
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
    assert 0.02 <= bench.turns._used[ANNA] + module.CREDIT_SECONDS < 0.2
    assert bench.turns._holder is None


def test_users_that_were_counted_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_USERS", 5)
    for number in range(50):
        bench.turns.give_back(bench.asks(number))
        bench.used(number, 1.0)
    assert len(bench.turns._used) <= 5


# Queries ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def told() -> Iterator[list[str]]:
    """What this thread did with its turn: left it, came back."""
    words: list[str] = []

    class Told(Turns):
        def leave(self, turn: Turn) -> None:
            words.append("left")
            super().leave(turn)

        def come_back(self, turn: Turn) -> None:
            words.append("came back")
            super().come_back(turn)

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

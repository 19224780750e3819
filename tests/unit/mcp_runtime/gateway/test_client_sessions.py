"""Principals' sessions: whose they are, how they outlive the runtime, and what is kept of them. Streams' outboxes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from mcp_runtime.gateway import client_sessions, outbox
from mcp_runtime.gateway.client_sessions import Sessions
from mcp_runtime.gateway.messages import ClientSession
from mcp_runtime.gateway.outbox import Outbox
from mcp_runtime.security import limits
from mcp_runtime.security.access import Principal
from mcp_runtime.security.limits import BudgetError, ByteBudget

ANN = Principal(1, "ann", token_id=10)
BOB = Principal(2, "bob", token_id=20)


@pytest.fixture
def dropped() -> list[ClientSession]:
    return []


@pytest.fixture
def kept(dropped: list[ClientSession]) -> Sessions:
    return Sessions(dropped.append)


def begin(kept: Sessions, who: Principal = ANN, **capabilities: Any) -> ClientSession:
    return kept.begin(who, "/mcp", "2025-06-18", capabilities)


def test_a_session_is_found_by_its_owner_at_its_path_alone(kept: Sessions) -> None:
    session = begin(kept)
    assert kept.find(session.id, ANN, "/mcp") is session
    assert kept.find(session.id, BOB, "/mcp") is None
    assert kept.find(session.id, Principal(1, "ann", token_id=11), "/mcp") is None
    assert kept.find(session.id, ANN, "/mcp/notes") is None
    assert kept.find("made-up", ANN, "/mcp") is None
    assert kept.find("\xff:\xfe", ANN, "/mcp") is None


def test_a_session_outlives_the_runtime_with_what_it_agreed_on(kept: Sessions) -> None:
    session = begin(kept, roots={"listChanged": True})
    after = Sessions(lambda _: None).find(session.id, ANN, "/mcp")
    assert after is not None
    assert (after.version, after.capabilities) == ("2025-06-18", {"roots": {"listChanged": True}})
    assert Sessions(lambda _: None).find(session.id[:-1] + "x", ANN, "/mcp") is None


def test_a_session_that_carries_too_much_is_kept_in_memory_alone(kept: Sessions) -> None:
    session = begin(kept, experimental="x" * client_sessions.MAX_SESSION_STATE)
    assert len(session.id) < 60
    assert kept.find(session.id, ANN, "/mcp") is session
    assert Sessions(lambda _: None).find(session.id, ANN, "/mcp") is None


def test_an_ended_session_stays_ended(kept: Sessions, dropped: list[ClientSession]) -> None:
    session = begin(kept)
    session.outbox = Outbox()
    kept.end(session)
    assert kept.find(session.id, ANN, "/mcp") is None
    assert dropped == [session]
    assert session.outbox.is_closed
    kept.end(session)
    assert dropped == [session]


def restarted(kept: Sessions) -> Sessions:
    """Those of the next runtime."""
    after = Sessions(lambda _: None)
    after.restore(json.loads(json.dumps(kept.extra_states())))
    return after


def test_a_session_outlives_the_runtime_with_what_it_was_told_once(kept: Sessions) -> None:
    session, other = begin(kept), begin(kept)
    session.log_level = "info"
    session.subscriptions = {"notes": {"x:1", "x:2"}, "none": set()}
    after = restarted(restarted(kept))  # a runtime in which nobody used it does not forget it
    found = after.find(session.id, ANN, "/mcp")
    assert found is not None
    assert (found.log_level, found.subscriptions) == ("info", {"notes": {"x:1", "x:2"}})
    plain = after.find(other.id, ANN, "/mcp")
    assert plain is not None
    assert (plain.log_level, plain.subscriptions) == ("", {})


def test_an_ended_session_stays_ended_in_the_next_runtime(kept: Sessions) -> None:
    session = begin(kept)
    kept.end(session)
    assert restarted(kept).find(session.id, ANN, "/mcp") is None


def test_more_subscriptions_than_are_remembered_are_not(kept: Sessions) -> None:
    session = begin(kept)
    session.log_level = "info"
    session.subscriptions = {"notes": {"x" * (client_sessions.MAX_SESSION_STATE + 1)}}
    assert list(kept.extra_states()["states"].values()) == [{"level": "info"}]


@pytest.mark.parametrize("odd", [{}, {"ended": 1, "states": {}}, {"ended": [], "states": {"a": {"uris": 1}}}])
def test_what_no_runtime_left_behind_is_not_taken(kept: Sessions, odd: Any) -> None:
    with pytest.raises((LookupError, TypeError, ValueError, AttributeError)):
        kept.restore(odd)


def test_what_is_remembered_of_ended_sessions_is_bounded(kept: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_sessions, "MAX_ENDED_SESSIONS", 2)
    ended = [begin(kept) for _ in range(3)]
    for session in ended:
        kept.end(session)
    assert [kept.find(session.id, ANN, "/mcp") is None for session in ended] == [False, True, True]


def test_of_too_many_sessions_the_idle_one_used_longest_ago_leaves_the_memory(
    kept: Sessions, dropped: list[ClientSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_SESSIONS", 3)
    streaming, used, unused = begin(kept), begin(kept), begin(kept)
    streaming.outbox = Outbox()
    assert kept.find(used.id, ANN, "/mcp") is used
    unused.log_level = "info"
    newest = begin(kept)
    assert dropped == [unused]
    assert list(kept._sessions.values()) == [streaming, used, newest]
    # It is made anew from its id, and what it was told once.
    again = kept.find(unused.id, ANN, "/mcp")
    assert again is not None
    assert again is not unused
    assert again.log_level == "info"


def test_of_one_callers_sessions_fewer_are_kept_than_of_all(
    kept: Sessions, dropped: list[ClientSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_SESSIONS_OF_TOKEN", 2)
    monkeypatch.setattr(limits, "MAX_SESSIONS_OF_USER", 3)
    bobs, laptop = begin(kept, BOB), Principal(1, "ann", token_id=11)
    first, second, third = begin(kept), begin(kept), begin(kept)
    assert dropped == [first]
    others = [begin(kept, laptop), begin(kept, laptop)]
    assert dropped == [first, second]
    assert list(kept._sessions.values()) == [bobs, third, *others]


def test_a_session_beside_others_that_are_all_busy_is_kept_and_found(
    kept: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_SESSIONS_OF_TOKEN", 1)
    begin(kept).outbox = Outbox()
    session = begin(kept)
    assert kept.find(session.id, ANN, "/mcp") is session


def test_sessions_with_something_under_way_are_kept_beyond_the_bound(
    kept: Sessions, dropped: list[ClientSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_SESSIONS", 1)
    first = begin(kept)
    first.running[1] = object()  # type: ignore[assignment]
    second = begin(kept)
    assert list(kept._sessions.values()) == [first, second]
    assert dropped == []


def test_an_outbox_gives_what_was_put_and_then_waits_or_ends() -> None:
    async def use() -> list[Any]:
        outbox = Outbox()
        outbox.put(b"a", "1", 5)
        outbox.put(b"b")
        told = [await outbox.take(1), await outbox.take(1), await outbox.take(0.001)]
        asyncio.get_running_loop().call_soon(outbox.put, b"c")
        told.append(await outbox.take(10))
        asyncio.get_running_loop().call_soon(outbox.close)
        told.append(await outbox.take(10))
        outbox.put(b"d")
        return [*told, await outbox.take(10), await outbox.take(10)]

    assert asyncio.run(use()) == [
        *[(b"a", "1", 5), (b"b", "", None), None, (b"c", "", None), None],
        *[(b"d", "", None), None],
    ]


def test_an_outbox_that_nobody_reads_loses_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_WAITING", 2)

    async def use() -> Any:
        outbox = Outbox()
        for letter in (b"a", b"b", b"c"):
            outbox.put(letter)
        return await outbox.take(1)

    assert asyncio.run(use()) == (b"b", "", None)


def test_an_outbox_of_too_many_bytes_is_given_up_and_keeps_nothing() -> None:
    budget = ByteBudget(of_token=3_000_000, of_user=3_000_000, in_all=3_000_000)
    given_up: list[int] = []

    async def use() -> list[Any]:
        outbox = Outbox((1, 1), budget, lambda: given_up.append(1))
        outbox.put(b"x" * 2_000_000)  # one may be larger than many
        told = [len((await outbox.take(1))[0])]  # type: ignore[index]
        for _ in range(3):
            outbox.put(b"y" * 400_000)
        return [*told, await outbox.take(1), outbox.is_closed]

    assert asyncio.run(use()) == [2_000_000, None, True]
    assert given_up == [1]
    budget.take((1, 1), 3_000_000)


def test_outboxes_of_one_token_have_a_budget_together_and_leave_others_theirs() -> None:
    budget = ByteBudget(of_token=1_500_000, of_user=9_000_000, in_all=9_000_000)
    given_up: list[int] = []

    def give_up(number: int) -> Any:
        return lambda: given_up.append(number)

    async def use() -> None:
        boxes = [Outbox((1, token), budget, give_up(token)) for token in (1, 1, 2)]
        for box in boxes:
            box.put(b"x" * 900_000)
        assert given_up == [1]
        assert len((await boxes[0].take(1))[0]) == 900_000  # type: ignore[index]
        boxes[1].put(b"more")
        assert await boxes[1].take(0) is None

    asyncio.run(use())


def test_what_is_being_sent_is_counted_until_it_is_sent() -> None:
    budget = ByteBudget(of_token=100, of_user=100, in_all=100)

    async def use() -> None:
        outbox = Outbox((1, 1), budget)
        outbox.put(b"x" * 100)
        await outbox.take(1)
        with pytest.raises(BudgetError):
            budget.take((1, 1), 1)
        await outbox.take(0)
        budget.take((1, 1), 100)

    asyncio.run(use())

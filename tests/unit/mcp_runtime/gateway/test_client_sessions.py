"""Client sessions: their owners, their state after a restart of the runtime, and their limits. Outboxes of streams."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

import pytest
from django.db import OperationalError

from mcp_runtime.gateway import client_sessions, messages, outbox
from mcp_runtime.gateway.client_sessions import Sessions
from mcp_runtime.gateway.messages import ClientSession
from mcp_runtime.gateway.outbox import Outbox
from mcp_runtime.gateway.session_rows import SavedState
from mcp_runtime.security import limits
from mcp_runtime.security.access import Principal
from mcp_runtime.security.limits import BudgetError, ByteBudget

ANN = Principal(1, "ann", token_id=10)
BOB = Principal(2, "bob", token_id=20)


class Rows:
    """Rows in memory, in place of those in the database (`session_rows`)."""

    def __init__(self) -> None:
        self.states: dict[str, SavedState] = {}

    def load(self, digest: str) -> SavedState:
        return self.states.get(digest, SavedState())

    def save(self, digest: str, log_level: str | None, uris: Mapping[str, frozenset[str]]) -> None:
        before = self.load(digest)
        level = before.log_level if log_level is None else log_level
        self.states[digest] = SavedState(log_level=level, uris={**before.uris, **uris})

    def end(self, digest: str) -> None:
        self.states[digest] = SavedState(is_ended=True)

    def ended_lately(self) -> set[str]:
        return {digest for digest, state in self.states.items() if state.is_ended}


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    rows = Rows()
    monkeypatch.setattr(client_sessions, "session_rows", rows)
    monkeypatch.setattr(client_sessions, "unit_of_work", lambda work: work())
    return rows


@pytest.fixture
def dropped_sessions() -> list[ClientSession]:
    return []


@pytest.fixture
def sessions(dropped_sessions: list[ClientSession]) -> Sessions:
    return Sessions(dropped_sessions.append)


def find(sessions: Sessions, session_id: str, principal: Principal, path: str) -> ClientSession | None:
    return asyncio.run(sessions.find(session_id, principal, path))


def end(sessions: Sessions, session: ClientSession) -> None:
    asyncio.run(sessions.end(session))


def save(sessions: Sessions, session: ClientSession) -> None:
    asyncio.run(sessions.save(session))


def begin_session(sessions: Sessions, principal: Principal = ANN, **capabilities: Any) -> ClientSession:
    return sessions.begin(principal, "/mcp", "2025-06-18", capabilities)


def test_a_session_is_found_only_by_its_owner_at_its_path(sessions: Sessions) -> None:
    session = begin_session(sessions)
    assert find(sessions, session.id, ANN, "/mcp") is session
    assert find(sessions, session.id, BOB, "/mcp") is None
    assert find(sessions, session.id, Principal(1, "ann", token_id=11), "/mcp") is None
    assert find(sessions, session.id, ANN, "/mcp/notes") is None
    assert find(sessions, "made-up", ANN, "/mcp") is None
    assert find(sessions, "\xff:\xfe", ANN, "/mcp") is None


def test_a_session_keeps_version_and_capabilities_in_the_next_runtime(sessions: Sessions) -> None:
    session = begin_session(sessions, roots={"listChanged": True})
    restored = find(Sessions(lambda _: None), session.id, ANN, "/mcp")
    assert restored is not None
    assert (restored.version, restored.capabilities) == ("2025-06-18", {"roots": {"listChanged": True}})
    assert find(Sessions(lambda _: None), session.id[:-1] + "x", ANN, "/mcp") is None


def test_many_similar_capabilities_fit_into_the_id(sessions: Sessions) -> None:
    session = begin_session(sessions, experimental={f"example.com/capability-{number}": {} for number in range(100)})
    assert find(restart(), session.id, ANN, "/mcp") is not None


def test_a_session_with_too_much_state_exists_only_in_memory(sessions: Sessions) -> None:
    session = begin_session(sessions, experimental=secrets.token_hex(client_sessions.MAX_SESSION_ID))
    assert len(session.id) < 60
    assert find(sessions, session.id, ANN, "/mcp") is session
    assert find(Sessions(lambda _: None), session.id, ANN, "/mcp") is None


def test_an_ended_session_stays_ended(sessions: Sessions, dropped_sessions: list[ClientSession]) -> None:
    session = begin_session(sessions)
    session.outbox = Outbox()
    end(sessions, session)
    assert find(sessions, session.id, ANN, "/mcp") is None
    assert dropped_sessions == [session]
    assert session.outbox.is_closed
    end(sessions, session)
    assert dropped_sessions == [session]


def restart() -> Sessions:
    """The sessions of the next runtime, or of another node."""
    return Sessions(lambda _: None)


def test_a_session_keeps_log_level_and_subscriptions_in_the_next_runtime(sessions: Sessions) -> None:
    session, unchanged_session = begin_session(sessions), begin_session(sessions)
    session.log_level = "info"
    session.subscriptions = {"notes": {"x:1", "x:2"}, "none": set()}
    save(sessions, session)
    next_sessions = restart()
    restored = find(next_sessions, session.id, ANN, "/mcp")
    assert restored is not None
    assert (restored.log_level, restored.subscriptions) == ("info", {"notes": {"x:1", "x:2"}})
    restored_unchanged = find(next_sessions, unchanged_session.id, ANN, "/mcp")
    assert restored_unchanged is not None
    assert (restored_unchanged.log_level, restored_unchanged.subscriptions) == ("", {})


def test_two_nodes_store_the_subscriptions_of_their_own_members(sessions: Sessions) -> None:
    session = begin_session(sessions)
    other_node = restart()
    at_other_node = find(other_node, session.id, ANN, "/mcp")
    assert at_other_node is not None
    session.subscribe("notes", "x:1")
    save(sessions, session)
    at_other_node.subscribe("files", "y:1")
    save(other_node, at_other_node)
    restored = find(restart(), session.id, ANN, "/mcp")
    assert restored is not None
    assert restored.subscriptions == {"notes": {"x:1"}, "files": {"y:1"}}


def test_a_session_without_changes_writes_nothing(sessions: Sessions, rows: Rows) -> None:
    session = begin_session(sessions)
    save(sessions, session)
    assert rows.states == {}
    session.log_level = "info"
    save(sessions, session)
    rows.states.clear()
    save(sessions, session)
    assert rows.states == {}


def test_an_ended_session_stays_ended_in_the_next_runtime(sessions: Sessions) -> None:
    session = begin_session(sessions)
    end(sessions, session)
    assert find(restart(), session.id, ANN, "/mcp") is None


def test_a_session_that_ended_at_another_node_ends_here(
    sessions: Sessions, dropped_sessions: list[ClientSession]
) -> None:
    session, other_session = begin_session(sessions), begin_session(sessions)
    end(restart(), session)
    asyncio.run(sessions.end_those_ended_elsewhere())
    assert dropped_sessions == [session]
    assert find(sessions, session.id, ANN, "/mcp") is None
    assert find(sessions, other_session.id, ANN, "/mcp") is other_session


def test_sessions_continue_without_the_database(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(work: object) -> None:
        raise OperationalError("no connection")

    session = begin_session(sessions)
    monkeypatch.setattr(client_sessions, "unit_of_work", fail)
    assert find(restart(), session.id, ANN, "/mcp") is not None
    end(sessions, session)
    assert find(sessions, session.id, ANN, "/mcp") is None
    assert "the state of a session cannot be read or written (no connection)" in caplog.text


def test_too_many_subscriptions_are_not_saved(sessions: Sessions) -> None:
    session = begin_session(sessions)
    session.log_level = "info"
    session.subscriptions = {"notes": {"x" * (messages.MAX_SESSION_STATE + 1)}}
    assert session.state() == SavedState(log_level="info")


def test_the_number_of_ended_sessions_in_memory_is_limited(
    sessions: Sessions, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_sessions, "MAX_ENDED_SESSIONS", 2)
    ended_sessions = [begin_session(sessions) for _ in range(3)]
    for session in ended_sessions:
        end(sessions, session)
    rows.states.clear()
    assert [find(sessions, session.id, ANN, "/mcp") is None for session in ended_sessions] == [False, True, True]


def test_the_idle_session_used_longest_ago_is_dropped_first(
    sessions: Sessions, dropped_sessions: list[ClientSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_SESSIONS", 3)
    streaming_session, used_session, unused_session = (
        begin_session(sessions),
        begin_session(sessions),
        begin_session(sessions),
    )
    streaming_session.outbox = Outbox()
    assert find(sessions, used_session.id, ANN, "/mcp") is used_session
    unused_session.log_level = "info"
    save(sessions, unused_session)
    newest_session = begin_session(sessions)
    assert dropped_sessions == [unused_session]
    assert list(sessions.by_id.values()) == [streaming_session, used_session, newest_session]
    # The session is restored from its id and its row.
    restored = find(sessions, unused_session.id, ANN, "/mcp")
    assert restored is not None
    assert restored is not unused_session
    assert restored.log_level == "info"


def test_tokens_and_users_have_their_own_limits_of_sessions(
    sessions: Sessions, dropped_sessions: list[ClientSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_SESSIONS_OF_TOKEN", 2)
    monkeypatch.setattr(limits, "MAX_SESSIONS_OF_USER", 3)
    bob_session, other_token = begin_session(sessions, BOB), Principal(1, "ann", token_id=11)
    first, second, third = begin_session(sessions), begin_session(sessions), begin_session(sessions)
    assert dropped_sessions == [first]
    other_sessions = [begin_session(sessions, other_token), begin_session(sessions, other_token)]
    assert dropped_sessions == [first, second]
    assert list(sessions.by_id.values()) == [bob_session, third, *other_sessions]


def test_a_new_session_is_kept_when_all_others_are_busy(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_SESSIONS_OF_TOKEN", 1)
    begin_session(sessions).outbox = Outbox()
    session = begin_session(sessions)
    assert find(sessions, session.id, ANN, "/mcp") is session


def test_busy_sessions_are_kept_beyond_the_limit(
    sessions: Sessions, dropped_sessions: list[ClientSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_SESSIONS", 1)
    first = begin_session(sessions)
    first.running[1] = object()  # type: ignore[assignment]
    second = begin_session(sessions)
    assert list(sessions.by_id.values()) == [first, second]
    assert dropped_sessions == []


def test_an_outbox_gives_its_messages_and_then_waits_or_ends() -> None:
    async def use_outbox() -> list[Any]:
        outbox = Outbox()
        outbox.put(b"a", "1", 5)
        outbox.put(b"b")
        messages = [await outbox.take(1), await outbox.take(1), await outbox.take(0.001)]
        asyncio.get_running_loop().call_soon(outbox.put, b"c")
        messages.append(await outbox.take(10))
        asyncio.get_running_loop().call_soon(outbox.close)
        messages.append(await outbox.take(10))
        outbox.put(b"d")
        return [*messages, await outbox.take(10), await outbox.take(10)]

    assert asyncio.run(use_outbox()) == [
        *[(b"a", "1", 5), (b"b", "", None), None, (b"c", "", None), None],
        *[(b"d", "", None), None],
    ]


def test_an_unread_outbox_loses_its_oldest_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_WAITING", 2)

    async def use_outbox() -> Any:
        outbox = Outbox()
        for letter in (b"a", b"b", b"c"):
            outbox.put(letter)
        return await outbox.take(1)

    assert asyncio.run(use_outbox()) == (b"b", "", None)


def test_an_outbox_with_too_many_bytes_is_closed_and_emptied() -> None:
    budget = ByteBudget(of_token=3_000_000, of_user=3_000_000, in_all=3_000_000)
    closed_boxes: list[int] = []

    async def use_outbox() -> list[Any]:
        outbox = Outbox((1, 1), budget, lambda: closed_boxes.append(1))
        outbox.put(b"x" * 2_000_000)  # a single message may be larger than many together
        messages = [len((await outbox.take(1))[0])]  # type: ignore[index]
        for _ in range(3):
            outbox.put(b"y" * 400_000)
        return [*messages, await outbox.take(1), outbox.is_closed]

    assert asyncio.run(use_outbox()) == [2_000_000, None, True]
    assert closed_boxes == [1]
    budget.take((1, 1), 3_000_000)


def test_outboxes_of_one_token_share_a_budget() -> None:
    budget = ByteBudget(of_token=1_500_000, of_user=9_000_000, in_all=9_000_000)
    closed_boxes: list[int] = []

    def record_closing(number: int) -> Any:
        return lambda: closed_boxes.append(number)

    async def use_outbox() -> None:
        boxes = [Outbox((1, token), budget, record_closing(token)) for token in (1, 1, 2)]
        for box in boxes:
            box.put(b"x" * 900_000)
        assert closed_boxes == [1]
        assert len((await boxes[0].take(1))[0]) == 900_000  # type: ignore[index]
        boxes[1].put(b"more")
        assert await boxes[1].take(0) is None

    asyncio.run(use_outbox())


def test_a_message_counts_until_it_is_sent() -> None:
    budget = ByteBudget(of_token=100, of_user=100, in_all=100)

    async def use_outbox() -> None:
        outbox = Outbox((1, 1), budget)
        outbox.put(b"x" * 100)
        await outbox.take(1)
        with pytest.raises(BudgetError):
            budget.take((1, 1), 1)
        await outbox.take(0)
        budget.take((1, 1), 100)

    asyncio.run(use_outbox())

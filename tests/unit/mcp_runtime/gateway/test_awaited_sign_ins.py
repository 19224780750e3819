"""Clients that were asked to let their users sign in: which one is told that it is done, and how often."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from typing import Any

import pytest

from mcp_runtime.gateway import awaited_sign_ins
from mcp_runtime.gateway.awaited_sign_ins import MAX_AWAITED, MAX_OF_USER, SECONDS, AwaitedSignIns
from mcp_runtime.gateway.client_sessions import Sessions
from mcp_runtime.gateway.messages import ClientSession
from mcp_runtime.gateway.outbox import Outbox
from mcp_runtime.members import own_sign_ins
from mcp_runtime.protocol.errors import CallFailedError, ErrorKind, OwnSignIn, PageNeededError
from mcp_runtime.security.access import Principal

VAULT = 7


class Rows:
    """What users have done, in place of the rows of their sign-ins, and how often it was read."""

    def __init__(self) -> None:
        self.done: set[int] = set()  # ids of users
        self.reads = 0

    def read(self, awaited: Collection[OwnSignIn]) -> set[OwnSignIn]:
        self.reads += 1
        return {each for each in awaited if each.user_id in self.done}


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    rows = Rows()
    monkeypatch.setattr(own_sign_ins, "done", rows.read)
    monkeypatch.setattr(awaited_sign_ins, "unit_of_work", lambda work: work())
    return rows


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(awaited_sign_ins, "time", clock)
    return clock


@pytest.fixture
def awaited() -> AwaitedSignIns:
    return AwaitedSignIns()


def session_of(user_id: int, *, listens: bool = True) -> ClientSession:
    session = ClientSession(f"session of {user_id}", (user_id, user_id), "/mcp", "2025-11-25", {})
    session.outbox = Outbox() if listens else None
    return session


def ask(awaited: AwaitedSignIns, session: ClientSession, elicitation_id: str) -> None:
    own = OwnSignIn(VAULT, session.owner[0] or 0, "http://localhost/own")
    failure = CallFailedError(ErrorKind.UNAVAILABLE, "needs a sign-in", "vault")
    awaited.note(session, PageNeededError(failure, -32042, {"elicitationId": elicitation_id}, own))


def look(awaited: AwaitedSignIns) -> None:
    awaited.finish(awaited.look())


def told(session: ClientSession) -> list[str]:
    """The ids in the notifications that wait on the stream of the session."""
    ids = []

    async def take() -> None:
        if session.outbox is not None:
            session.outbox.close()  # then it does not wait for more
        while session.outbox is not None and (message := await session.outbox.take(0)) is not None:
            notification: dict[str, Any] = json.loads(message[0])
            assert notification["method"] == "notifications/elicitation/complete"
            ids.append(notification["params"]["elicitationId"])

    asyncio.run(take())
    return ids


def test_each_client_of_the_user_is_told_once_and_no_client_of_another_user(
    awaited: AwaitedSignIns, rows: Rows
) -> None:
    first, second, other = session_of(1), session_of(1), session_of(2)
    for session, elicitation_id in ((first, "a"), (first, "b"), (second, "c"), (other, "d")):
        ask(awaited, session, elicitation_id)
    look(awaited)
    assert [told(session) for session in (first, second, other)] == [[], [], []]
    rows.done = {1}
    look(awaited)
    look(awaited)
    assert [told(session) for session in (first, second, other)] == [["a", "b"], ["c"], []]


def test_what_was_asked_after_the_look_at_the_rows_is_not_finished_by_it(awaited: AwaitedSignIns, rows: Rows) -> None:
    session = session_of(1)
    ask(awaited, session, "a")
    rows.done = {1}
    done = awaited.look()
    ask(awaited, session, "b")
    awaited.finish(done)
    assert told(session) == ["a"]


def test_the_rows_are_read_only_while_somebody_waits_and_is_in_time(
    awaited: AwaitedSignIns, rows: Rows, clock: Clock
) -> None:
    look(awaited)
    assert rows.reads == 0
    session = session_of(1)
    ask(awaited, session, "a")
    look(awaited)
    assert rows.reads == 1
    clock.now += SECONDS
    rows.done = {1}
    look(awaited)
    assert (rows.reads, told(session)) == (1, [])


def test_a_client_whose_stream_broke_is_told_on_the_next_one_while_its_user_is_signed_in(
    awaited: AwaitedSignIns, rows: Rows, clock: Clock
) -> None:
    session = session_of(1, listens=False)
    ask(awaited, session, "a")
    rows.done = {1}
    look(awaited)
    rows.done = set()  # the user signed out again
    session.outbox = Outbox()
    look(awaited)
    assert told(session) == []
    rows.done = {1}
    look(awaited)
    look(awaited)
    assert told(session) == ["a"]
    session.outbox = None
    ask(awaited, session, "too late")
    look(awaited)
    clock.now += SECONDS
    session.outbox = Outbox()
    look(awaited)
    assert told(session) == []


def test_a_session_that_ended_is_forgotten(
    awaited: AwaitedSignIns, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sessions, "_attempt", staticmethod(_no_rows))
    sessions = Sessions(awaited.forget)
    session = sessions.begin(Principal(1, "ann", token_id=1), "/mcp", "2025-11-25", {})
    session.outbox = Outbox()
    ask(awaited, session, "a")
    asyncio.run(sessions.end(session))
    rows.done = {1}
    look(awaited)
    assert (rows.reads, told(session)) == (0, [])


async def _no_rows(work: object) -> None:
    pass


def test_a_user_who_is_asked_too_often_loses_the_oldest_and_pushes_out_nobody_else(
    awaited: AwaitedSignIns, rows: Rows
) -> None:
    anna, bert = session_of(1), session_of(2)
    ask(awaited, bert, "of bert")
    ids = [f"{number}" for number in range(MAX_OF_USER + 3)]
    for elicitation_id in ids:
        ask(awaited, anna, elicitation_id)
    rows.done = {1, 2}
    look(awaited)
    assert told(anna) == ids[3:]
    assert told(bert) == ["of bert"]


def test_of_all_users_together_the_oldest_are_lost(awaited: AwaitedSignIns, rows: Rows) -> None:
    users = [session_of(number) for number in range(MAX_AWAITED + 2)]
    for number, session in enumerate(users):
        ask(awaited, session, f"{number}")
    rows.done = set(range(MAX_AWAITED + 2))
    look(awaited)
    assert [told(session) for session in users[:3]] == [[], [], ["2"]]
    assert told(users[-1]) == [f"{MAX_AWAITED + 1}"]

"""Answers whose stream the client lost: gone on with when it comes back, written down as what became of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from mcp_runtime.gateway.messages import Client, ClientSession, Deadline, Event, Request, Stream
from mcp_runtime.gateway.streams import resumable
from mcp_runtime.gateway.streams.resumable import ResumableStreams
from mcp_runtime.security.access import OPERATOR
from roster.models import Call
from tests.conftest import eventually
from tests.support.agents import GatewayClient, MessageStream, messages_of
from tests.support.gateway_world import Member, World, event, notification, request, result, text
from tests.support.scripted_server import Request as Asked

PROGRESS = notification("notifications/progress", progressToken=1, progress=1)


class Patient:
    """A member's tool that keeps its events: it says something, and the answer, once `may_end` is set, on a GET."""

    def __init__(self, *, hangs_up: bool = False) -> None:
        self.hangs_up = hangs_up
        self.may_end = threading.Event()
        self.asked_ids: list[Any] = []

    def call(self, asked: Asked) -> None:
        self.asked_ids.append(asked.id)
        asked.stream(event(PROGRESS, f"{len(self.asked_ids)}-1"))
        if self.hangs_up:
            asked.hang_up()
        asked.hang()

    def rest(self, asked: Asked) -> None:
        last = asked.headers.get("Last-Event-ID")
        if last is None:
            asked.http(405)
            return
        number = int(last.partition("-")[0])
        asked.stream(event(notification("notifications/progress", progressToken=1, progress=2), f"{number}-2"))
        while not self.may_end.wait(0.01):
            if asked.server.closing.is_set():
                raise OSError
        asked.stream(event(result(self.asked_ids[number - 1], **text(f"behind {last}")), f"{number}-3"))
        asked.hang_up()

    def member(self, world: World, **options: Any) -> Member:
        return world.member(behaviours={"tools/call": self.call, "GET": self.rest}, **options)


def calling(agent: GatewayClient, message_id: Any = 9) -> MessageStream:
    return agent.stream(request(message_id, "tools/call", name="notes__echo", arguments={}))


def lost(agent: GatewayClient, message_id: Any = 9) -> None:
    """A call whose client heard something of it, and then its connection broke."""
    with calling(agent, message_id) as heard:
        assert heard.next() == PROGRESS


def resumed(agent: GatewayClient, event_id: str) -> list[dict[str, Any]]:
    """What comes behind that event, to the end."""
    return messages_of(agent.http.get(agent.url, headers={"Last-Event-ID": event_id}, timeout=20))


def is_kept(world: World) -> bool:
    return bool(world.gateway._resumable._paused_streams)


def cancelled(member: Member) -> list[Any]:
    """The ids of the requests that the member was told to cancel."""
    return [told["params"]["requestId"] for told in member.messages("notifications/cancelled")]


def statuses() -> list[str]:
    return [row.status for row in Call.objects.order_by("id")]


@pytest.mark.parametrize("hangs_up", [False, True])
def test_a_call_whose_stream_was_lost_is_what_becomes_of_it(world: World, hangs_up: bool) -> None:
    tool = Patient(hangs_up=hangs_up)
    member = tool.member(world)
    agent = world.agent().begin()
    lost(agent)
    agent.http.headers["Last-Event-ID"] = "notes/1-1"
    with agent.listen() as heard:
        assert heard.next()["params"]["progress"] == 2
        assert statuses() == []
        tool.may_end.set()
        assert heard.next() == result(9, **text("behind 1-1"))
        assert heard.ended.wait(10)
    (call,) = world.calls()
    assert (call.status, call.result) == ("succeeded", text("behind 1-1"))
    assert member.messages("notifications/cancelled") == []


def test_a_stream_may_be_lost_more_than_once(world: World) -> None:
    tool = Patient()
    tool.member(world)
    agent = world.agent().begin()
    lost(agent)
    for last in ("notes/1-1", "notes/1-2"):
        agent.http.headers["Last-Event-ID"] = last
        with agent.listen() as heard:
            heard.next()
    tool.may_end.set()
    assert resumed(agent, "notes/1-2")[-1] == result(9, **text("behind 1-2"))
    assert [call.status for call in world.calls()] == ["succeeded"]


def test_a_stream_is_taken_over_whose_old_connection_only_seems_to_be_there(world: World) -> None:
    tool = Patient()
    member = tool.member(world)
    agent = world.agent().begin()
    with calling(agent) as first:
        assert first.next() == PROGRESS
        tool.may_end.set()
        assert resumed(agent, "notes/1-1")[-1] == result(9, **text("behind 1-1"))
        assert first.ended.wait(10)
        assert first._messages.empty()
    assert [call.status for call in world.calls()] == ["succeeded"]
    assert member.messages("notifications/cancelled") == []


def test_a_caller_who_goes_on_sees_its_own_id(world: World) -> None:
    """Two calls of one session under the same id: the member knows each by an id of ours."""
    tool = Patient()
    tool.member(world)
    agent = world.agent().begin()
    with calling(agent) as first:
        first.next()
        lost(agent)
        tool.may_end.set()
        assert len({9, *tool.asked_ids}) == 3
        assert resumed(agent, "notes/2-1")[-1] == result(9, **text("behind 2-1"))
    # Once more, although it was told: what the member says then is heard, whatever call it is of.
    assert resumed(agent, "notes/2-1")[-1] == result(9, **text("behind 2-1"))


def test_what_nobody_comes_back_for_is_cancelled_when_its_time_is_over(world: World) -> None:
    tool = Patient()
    member = tool.member(world, timeout=1.0)
    agent = world.agent().begin()
    lost(agent)
    assert statuses() == []
    (call,) = world.calls()
    assert (call.status, call.error_message) == (
        "cancelled",
        "tool 'echo' of member 'notes': the client cancelled it, or went away",
    )
    eventually(lambda: cancelled(member) == tool.asked_ids)


def test_the_deadline_of_a_call_holds_for_who_goes_on_with_it(world: World) -> None:
    member = Patient().member(world, timeout=1.5)
    agent = world.agent().begin()
    lost(agent)
    error = resumed(agent, "notes/1-1")[-1]
    assert (error["id"], error["error"]["data"]) == (9, {"kind": "timeout", "member": "notes"})
    assert [call.error_kind for call in world.calls()] == ["timeout"]
    eventually(lambda: member.messages("notifications/cancelled"))


def test_a_resumable_call_can_be_cancelled(world: World) -> None:
    tool = Patient()
    member = tool.member(world)
    agent = world.agent().begin()
    lost(agent)
    eventually(lambda: is_kept(world))
    assert agent.notify("notifications/cancelled", requestId=9, reason="enough").status_code == 202
    assert [call.status for call in world.calls()] == ["cancelled"]
    (told,) = member.messages("notifications/cancelled")
    assert told["params"] == {"requestId": tool.asked_ids[0], "reason": "enough"}


def test_a_call_that_its_caller_came_back_for_can_be_cancelled(world: World) -> None:
    tool = Patient()
    member = tool.member(world)
    agent = world.agent().begin()
    lost(agent)
    eventually(lambda: is_kept(world))
    agent.http.headers["Last-Event-ID"] = "notes/1-1"
    with agent.listen() as heard:
        assert heard.next()["params"]["progress"] == 2
        del agent.http.headers["Last-Event-ID"]
        assert agent.notify("notifications/cancelled", requestId=9, reason="enough").status_code == 202
        assert [call.status for call in world.calls()] == ["cancelled"]
    assert cancelled(member) == tool.asked_ids


def test_the_end_of_a_session_ends_its_resumable_calls(world: World) -> None:
    Patient().member(world)
    agent = world.agent().begin()
    lost(agent)
    eventually(lambda: is_kept(world))
    assert agent.http.delete(agent.url, timeout=10).status_code == 204
    assert [call.status for call in world.calls()] == ["cancelled"]


def test_a_stop_of_the_gateway_records_resumable_calls(world: World) -> None:
    Patient().member(world)
    lost(world.agent().begin())
    eventually(lambda: is_kept(world))
    world.gateway.stop()
    assert statuses() == ["cancelled"]


def test_a_member_that_cannot_go_on_fails_the_call(world: World) -> None:
    tool = Patient()
    member = tool.member(world)
    agent = world.agent().begin()
    lost(agent)
    eventually(lambda: is_kept(world))
    member.behaviours["GET"] = lambda asked: asked.http(404)
    error = resumed(agent, "notes/1-1")[-1]
    assert (error["id"], error["error"]["data"]["kind"]) == (9, "transport")
    assert [call.error_kind for call in world.calls()] == ["transport"]


@pytest.mark.parametrize(("bound", "value"), [("MAX_PAUSED_OF_CLIENT", 1), ("MAX_PAUSED_BYTES_OF_CLIENT", 200)])
def test_the_number_of_resumable_calls_of_one_client_is_limited(
    world: World, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(resumable, bound, value)
    tool = Patient()
    member = tool.member(world)
    agent = world.agent().begin()
    lost(agent, 8)
    eventually(lambda: is_kept(world))
    lost(agent, 9)
    assert [call.status for call in world.calls()] == ["cancelled"]
    eventually(lambda: cancelled(member) == tool.asked_ids[1:])


def test_the_tokens_of_one_user_leave_room_for_resumable_calls_of_others() -> None:
    class Lost(Stream):
        is_resumable = True  # type: ignore[assignment]

        async def pause(self) -> None:
            pass

    async def nothing() -> AsyncGenerator[Event]:
        return
        yield

    async def run() -> bool:
        debts = ResumableStreams()
        for user, token in [*((1, number // 40) for number in range(resumable.MAX_PAUSED)), (2, 100)]:
            session = ClientSession("s", (user, token), "/mcp", "2025-06-18", {})
            asked = Request(9, "tools/call", {}, Client(OPERATOR, session, {}), Deadline(30))
            async with debts.reading(asked, Lost(nothing())):
                pass
        is_kept = asked.is_resumable
        debts.close()
        await debts.wait_closed(5)
        return is_kept

    assert asyncio.run(run())


def test_a_call_stays_resumable_if_the_client_disconnects_while_it_resumes() -> None:
    """A client who tries again and again must not lose what another try would still get."""

    async def run() -> bool:
        session = ClientSession("s", (1, 1), "/mcp", "2025-06-18", {})
        client = Client(OPERATOR, session, {})
        pausing, asked = asyncio.Event(), Request(9, "tools/call", {}, client, Deadline(30))

        class Slow(Stream):
            is_resumable = True  # type: ignore[assignment]

            def has_event(self, event_id: str) -> bool:
                return True

            async def pause(self) -> None:
                await pausing.wait()

        async def nothing() -> AsyncGenerator[Event]:
            return
            yield

        stream, debts = Slow(nothing()), ResumableStreams()
        async with debts.reading(asked, stream):
            pass
        back = asyncio.ensure_future(debts.take(session, "notes/1"))
        await asyncio.sleep(0)
        back.cancel()
        await asyncio.wait([back])
        still_owed = asked.is_resumable
        pausing.set()
        return still_owed and await debts.take(session, "notes/1") == (asked, stream) and not asked.is_resumable

    assert asyncio.run(run())


def test_a_stream_without_ids_is_lost_with_its_caller(world: World) -> None:
    def call(asked: Asked) -> None:
        asked.stream(event(PROGRESS))
        asked.hang()

    member = world.member(behaviours={"tools/call": call})
    lost(world.agent().begin())
    assert [call.status for call in world.calls()] == ["cancelled"]
    eventually(lambda: member.messages("notifications/cancelled"))


def test_how_long_to_wait_is_told_with_the_message_it_came_with(world: World) -> None:
    def call(asked: Asked) -> None:
        asked.stream(event(None, "1", retry=50) + event(PROGRESS, "2") + event(PROGRESS, "3", retry=70))
        asked.stream(asked.answer_event(text("done")))

    world.member(behaviours={"tools/call": call})
    told = world.agent().begin().send("tools/call", name="notes__echo", arguments={}).content
    heads = [part.partition(b"data:")[0] for part in told.split(b"\n\n")]
    assert heads[:3] == [b"id: notes/2\nretry: 50\n", b"id: notes/3\nretry: 70\n", b"id: notes/3\n"]

"""Responses whose stream the client lost. The client can resume them, and the row has the final outcome of the call."""

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
from tests.support.scripted_server import Request as MemberRequest

PROGRESS = notification("notifications/progress", progressToken=1, progress=1)


class ResumableTool:
    """A tool whose stream can be resumed. It sends progress. A GET gets the response, once `may_end` is set."""

    def __init__(self, *, hangs_up: bool = False) -> None:
        self.hangs_up = hangs_up
        self.may_end = threading.Event()
        self.request_ids: list[Any] = []

    def call(self, incoming: MemberRequest) -> None:
        self.request_ids.append(incoming.id)
        incoming.stream(event(PROGRESS, f"{len(self.request_ids)}-1"))
        if self.hangs_up:
            incoming.hang_up()
        incoming.hang()

    def resume(self, incoming: MemberRequest) -> None:
        last = incoming.headers.get("Last-Event-ID")
        if last is None:
            incoming.http(405)
            return
        number = int(last.partition("-")[0])
        incoming.stream(event(notification("notifications/progress", progressToken=1, progress=2), f"{number}-2"))
        while not self.may_end.wait(0.01):
            if incoming.server.closing.is_set():
                raise OSError
        incoming.stream(event(result(self.request_ids[number - 1], **text(f"behind {last}")), f"{number}-3"))
        incoming.hang_up()

    def member(self, world: World, **options: Any) -> Member:
        return world.member(behaviours={"tools/call": self.call, "GET": self.resume}, **options)


def start_call(client: GatewayClient, message_id: Any = 9) -> MessageStream:
    return client.stream(request(message_id, "tools/call", name="notes__echo", arguments={}))


def lose_stream(client: GatewayClient, message_id: Any = 9) -> None:
    """Begin a call, read its first message, and then break the connection."""
    with start_call(client, message_id) as stream:
        assert stream.next() == PROGRESS


def resume(client: GatewayClient, event_id: str) -> list[dict[str, Any]]:
    """The messages after this event, to the end."""
    return messages_of(client.http.get(client.url, headers={"Last-Event-ID": event_id}, timeout=20))


def is_paused(world: World) -> bool:
    return bool(world.gateway.resumable.paused_streams)


def cancelled_ids(member: Member) -> list[Any]:
    """The ids of the requests in the cancellations that the member got."""
    return [message["params"]["requestId"] for message in member.messages("notifications/cancelled")]


def statuses() -> list[str]:
    return [row.status for row in Call.objects.order_by("id")]


@pytest.mark.parametrize("hangs_up", [False, True])
def test_the_outcome_of_a_resumed_call_is_recorded(world: World, hangs_up: bool) -> None:
    tool = ResumableTool(hangs_up=hangs_up)
    member = tool.member(world)
    client = world.agent().begin()
    lose_stream(client)
    client.http.headers["Last-Event-ID"] = "notes/1-1"
    with client.listen() as stream:
        assert stream.next()["params"]["progress"] == 2
        assert statuses() == []
        tool.may_end.set()
        assert stream.next() == result(9, **text("behind 1-1"))
        assert stream.ended.wait(10)
    (call,) = world.calls()
    assert (call.status, call.result) == ("succeeded", text("behind 1-1"))
    assert member.messages("notifications/cancelled") == []


def test_a_stream_can_be_resumed_more_than_once(world: World) -> None:
    tool = ResumableTool()
    tool.member(world)
    client = world.agent().begin()
    lose_stream(client)
    for event_id in ("notes/1-1", "notes/1-2"):
        client.http.headers["Last-Event-ID"] = event_id
        with client.listen() as stream:
            stream.next()
    tool.may_end.set()
    assert resume(client, "notes/1-2")[-1] == result(9, **text("behind 1-2"))
    assert [call.status for call in world.calls()] == ["succeeded"]


def test_a_client_can_resume_a_stream_while_its_old_connection_is_open(world: World) -> None:
    tool = ResumableTool()
    member = tool.member(world)
    client = world.agent().begin()
    with start_call(client) as first:
        assert first.next() == PROGRESS
        tool.may_end.set()
        assert resume(client, "notes/1-1")[-1] == result(9, **text("behind 1-1"))
        assert first.ended.wait(10)
        assert first.is_empty
    assert [call.status for call in world.calls()] == ["succeeded"]
    assert member.messages("notifications/cancelled") == []


def test_a_resumed_response_has_the_clients_own_id(world: World) -> None:
    """Two calls of one session have the same id. The member gets different ids, which the gateway made."""
    tool = ResumableTool()
    tool.member(world)
    client = world.agent().begin()
    with start_call(client) as first:
        first.next()
        lose_stream(client)
        tool.may_end.set()
        assert len({9, *tool.request_ids}) == 3
        assert resume(client, "notes/2-1")[-1] == result(9, **text("behind 2-1"))
    # Again, after the response. What the member then sends passes, whatever call it belongs to.
    assert resume(client, "notes/2-1")[-1] == result(9, **text("behind 2-1"))


def test_a_call_that_no_client_resumes_is_cancelled_at_its_deadline(world: World) -> None:
    tool = ResumableTool()
    member = tool.member(world, timeout=1.0)
    client = world.agent().begin()
    lose_stream(client)
    assert statuses() == []
    (call,) = world.calls()
    assert (call.status, call.error_message) == (
        "cancelled",
        "tool 'echo' of member 'notes': the client cancelled it, or went away",
    )
    eventually(lambda: cancelled_ids(member) == tool.request_ids)


def test_the_deadline_of_a_call_also_applies_after_a_resume(world: World) -> None:
    member = ResumableTool().member(world, timeout=1.5)
    client = world.agent().begin()
    lose_stream(client)
    error = resume(client, "notes/1-1")[-1]
    assert (error["id"], error["error"]["data"]) == (9, {"kind": "timeout", "member": "notes"})
    assert [call.error_kind for call in world.calls()] == ["timeout"]
    eventually(lambda: member.messages("notifications/cancelled"))


def test_a_resumable_call_can_be_cancelled(world: World) -> None:
    tool = ResumableTool()
    member = tool.member(world)
    client = world.agent().begin()
    lose_stream(client)
    eventually(lambda: is_paused(world))
    assert client.notify("notifications/cancelled", requestId=9, reason="enough").status_code == 202
    assert [call.status for call in world.calls()] == ["cancelled"]
    (cancellation,) = member.messages("notifications/cancelled")
    assert cancellation["params"] == {"requestId": tool.request_ids[0], "reason": "enough"}


def test_a_resumed_call_can_be_cancelled(world: World) -> None:
    tool = ResumableTool()
    member = tool.member(world)
    client = world.agent().begin()
    lose_stream(client)
    eventually(lambda: is_paused(world))
    client.http.headers["Last-Event-ID"] = "notes/1-1"
    with client.listen() as stream:
        assert stream.next()["params"]["progress"] == 2
        del client.http.headers["Last-Event-ID"]
        assert client.notify("notifications/cancelled", requestId=9, reason="enough").status_code == 202
        assert [call.status for call in world.calls()] == ["cancelled"]
    assert cancelled_ids(member) == tool.request_ids


def test_the_end_of_a_session_ends_its_resumable_calls(world: World) -> None:
    ResumableTool().member(world)
    client = world.agent().begin()
    lose_stream(client)
    eventually(lambda: is_paused(world))
    assert client.http.delete(client.url, timeout=10).status_code == 204
    assert [call.status for call in world.calls()] == ["cancelled"]


def test_a_stop_of_the_gateway_records_resumable_calls(world: World) -> None:
    ResumableTool().member(world)
    lose_stream(world.agent().begin())
    eventually(lambda: is_paused(world))
    world.gateway.stop()
    assert statuses() == ["cancelled"]


def test_a_call_fails_if_the_member_cannot_resume_it(world: World) -> None:
    tool = ResumableTool()
    member = tool.member(world)
    client = world.agent().begin()
    lose_stream(client)
    eventually(lambda: is_paused(world))
    member.behaviours["GET"] = lambda incoming: incoming.http(404)
    error = resume(client, "notes/1-1")[-1]
    assert (error["id"], error["error"]["data"]["kind"]) == (9, "transport")
    assert [call.error_kind for call in world.calls()] == ["transport"]


@pytest.mark.parametrize(("bound", "value"), [("MAX_PAUSED_OF_CLIENT", 1), ("MAX_PAUSED_BYTES_OF_CLIENT", 200)])
def test_the_number_of_resumable_calls_of_one_client_is_limited(
    world: World, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(resumable, bound, value)
    tool = ResumableTool()
    member = tool.member(world)
    client = world.agent().begin()
    lose_stream(client, 8)
    eventually(lambda: is_paused(world))
    lose_stream(client, 9)
    assert [call.status for call in world.calls()] == ["cancelled"]
    eventually(lambda: cancelled_ids(member) == tool.request_ids[1:])


def test_the_tokens_of_one_user_leave_room_for_resumable_calls_of_others() -> None:
    class PausableStream(Stream):
        is_resumable = True  # type: ignore[assignment]

        async def pause(self) -> None:
            pass

    async def no_events() -> AsyncGenerator[Event]:
        return
        yield

    async def run() -> bool:
        streams = ResumableStreams()
        for user, token in [*((1, number // 40) for number in range(resumable.MAX_PAUSED)), (2, 100)]:
            session = ClientSession("s", (user, token), "/mcp", "2025-06-18", {})
            request = Request(9, "tools/call", {}, Client(OPERATOR, session, {}), Deadline(30))
            async with streams.reading(request, PausableStream(no_events())):
                pass
        has_room = request.is_resumable
        streams.close()
        await streams.wait_closed(5)
        return has_room

    assert asyncio.run(run())


def test_a_call_stays_resumable_if_the_client_disconnects_while_it_resumes() -> None:
    """A client that tries to resume again and again must not lose the response."""

    async def run() -> bool:
        session = ClientSession("s", (1, 1), "/mcp", "2025-06-18", {})
        client = Client(OPERATOR, session, {})
        end_of_pause, request = asyncio.Event(), Request(9, "tools/call", {}, client, Deadline(30))

        class SlowStream(Stream):
            is_resumable = True  # type: ignore[assignment]

            def has_event(self, event_id: str) -> bool:
                return True

            async def pause(self) -> None:
                await end_of_pause.wait()

        async def no_events() -> AsyncGenerator[Event]:
            return
            yield

        stream, streams = SlowStream(no_events()), ResumableStreams()
        async with streams.reading(request, stream):
            pass
        resumption = asyncio.ensure_future(streams.take(session, "notes/1"))
        await asyncio.sleep(0)
        resumption.cancel()
        await asyncio.wait([resumption])
        is_still_resumable = request.is_resumable
        end_of_pause.set()
        return (
            is_still_resumable
            and await streams.take(session, "notes/1") == (request, stream)
            and not request.is_resumable
        )

    assert asyncio.run(run())


def test_a_call_without_event_ids_is_cancelled_when_its_client_disconnects(world: World) -> None:
    def call(incoming: MemberRequest) -> None:
        incoming.stream(event(PROGRESS))
        incoming.hang()

    member = world.member(behaviours={"tools/call": call})
    lose_stream(world.agent().begin())
    assert [call.status for call in world.calls()] == ["cancelled"]
    eventually(lambda: member.messages("notifications/cancelled"))


def test_a_retry_time_is_sent_once_with_its_message(world: World) -> None:
    def call(incoming: MemberRequest) -> None:
        incoming.stream(event(None, "1", retry=50) + event(PROGRESS, "2") + event(PROGRESS, "3", retry=70))
        incoming.stream(incoming.answer_event(text("done")))

    world.member(behaviours={"tools/call": call})
    content = world.agent().begin().send("tools/call", name="notes__echo", arguments={}).content
    heads = [part.partition(b"data:")[0] for part in content.split(b"\n\n")]
    assert heads[:3] == [b"id: notes/2\nretry: 50\n", b"id: notes/3\nretry: 70\n", b"id: notes/3\n"]

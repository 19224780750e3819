"""What one stream of events sends, without a database and a connection."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from mcp_runtime.gateway.events.snapshots import CallState, MemberState, Snapshot
from mcp_runtime.gateway.events.subscriber import Position, Selection, Subscriber
from mcp_runtime.gateway.outbox import MAX_WAITING, Outbox
from mcp_runtime.security.access import Principal

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
ANN = Principal(7, "ann", invokes=True)


def member(name: str, status: str = "connected") -> MemberState:
    return MemberState(name, {"name": name, "status": status}, f"{name} {status}".encode())


def call(pk: int, requester_id: int | None = 7, token_id: int | None = None) -> CallState:
    return CallState(pk, "notes", requester_id, token_id, None, b"{}")


def snapshot(*members: MemberState, calls: tuple[CallState, ...] = ()) -> Snapshot:
    return Snapshot(NOW, {state.name: state for state in members}, {c.pk: c for c in calls})


def subscriber(principal: Principal = ANN, selection: Selection | None = None) -> Subscriber:
    return Subscriber(principal, None, selection or Selection(), Outbox())


def sent(stream: Subscriber) -> list[bytes]:
    async def take_all() -> list[bytes]:
        events = []
        while (message := await stream.outbox.take(0)) is not None:
            events.append(message[0])
        return events

    return asyncio.run(take_all())


def test_an_event_has_an_id_a_kind_and_one_line_of_data() -> None:
    stream = subscriber()
    stream.catch_up(snapshot(member("notes")))
    stream.flush(NOW)
    (event,) = sent(stream)
    assert event.startswith(b"id: 1795694400000-")
    assert event.endswith(b'\nevent: roster\ndata: {"members":[{"name":"notes","status":"connected"}]}\n\n')


def test_the_digest_after_changes_is_that_of_the_members_after_them() -> None:
    stream, other_stream = subscriber(), subscriber()
    stream.catch_up(snapshot(member("a"), member("b"), member("c")))
    changes = {"a": (member("a"), member("a", "error")), "b": (member("b"), None), "d": (None, member("d"))}
    stream.send_members(changes)
    other_stream.catch_up(snapshot(member("d"), member("c"), member("a", "error")))
    assert stream.digest == other_stream.digest
    stream.flush(NOW)
    assert [event.split(b"\n")[1] for event in sent(stream)] == [
        b"event: roster",
        b"event: member",
        b"event: member-removed",
        b"event: member",
    ]


def test_a_client_that_does_not_read_is_disconnected_and_never_misses_an_event_silently() -> None:
    aborted: list[bool] = []
    stream = Subscriber(ANN, None, Selection(), Outbox(give_up=lambda: aborted.append(True)))
    stream.send_calls([call(pk) for pk in range(1, MAX_WAITING + 1)])
    stream.flush(NOW)
    assert aborted == []
    stream.send_calls([call(MAX_WAITING + 1)])
    stream.flush(NOW)
    assert aborted == [True]
    assert sent(stream) == []
    stream.send_calls([call(MAX_WAITING + 2)])
    stream.flush(NOW)
    assert aborted == [True]


def times(events: list[bytes]) -> list[datetime]:
    """The times in the ids of the events."""
    positions = [Position.parse(event.split(b"\n")[0].removeprefix(b"id: ").decode()) for event in events]
    return [position.at for position in positions if position is not None]


def test_only_the_last_event_of_a_look_says_that_all_of_it_was_sent() -> None:
    stream = subscriber()
    stream.at = NOW
    stream.send_calls([call(1), call(2), call(3)])
    stream.flush(NOW + timedelta(seconds=1))
    stream.flush(NOW + timedelta(seconds=2))
    stream.send_calls([call(4), call(5)])
    stream.flush(NOW + timedelta(seconds=3))
    assert [(moment - NOW).total_seconds() for moment in times(sent(stream))] == [0, 0, 1, 2, 3]


def test_a_gap_comes_again_while_calls_are_left_out_and_once_after_the_last() -> None:
    stream = subscriber()
    for second in range(20):
        left_out = frozenset([7]) if second in range(1, 8) else frozenset([8])
        look = Snapshot(NOW + timedelta(seconds=second), {}, {}, missing=left_out)
        stream.note_missing(look)
        stream.flush(look.at)
    events = sent(stream)
    assert all(b"event: gap" in event for event in events)
    assert [(moment - NOW).total_seconds() for moment in times(events)] == [1, 6, 11]


@pytest.mark.parametrize(
    ("principal", "missing", "is_cut", "may_lack"),
    [
        (ANN, {7}, False, True),
        (ANN, {8, None}, False, False),
        (ANN, set(), True, True),
        (Principal(7, "ann", views_calls=True), {8}, False, True),
        (Principal(7, "ann", views_calls=True), set(), False, False),
        (Principal(7, "ann", views_calls=True, token_id=3, members=frozenset(["notes"])), {8}, False, False),
    ],
)
def test_a_client_gets_no_gap_because_of_calls_that_it_may_not_see(
    principal: Principal, missing: set[int | None], is_cut: bool, may_lack: bool
) -> None:
    stream = subscriber(principal)
    stream.note_missing(Snapshot(NOW, {}, {}, missing=frozenset(missing), is_cut=is_cut))
    stream.flush(NOW)
    assert bool(sent(stream)) is may_lack


@pytest.mark.parametrize(
    ("principal", "state", "is_readable"),
    [
        (ANN, call(1), True),
        (ANN, call(1, requester_id=8), False),
        (ANN, call(1, requester_id=None), False),
        (Principal(7, "ann", views_calls=True), call(1, requester_id=8), True),
        (Principal(7, "ann", views_calls=True, closed_members=frozenset(["notes"])), call(1, requester_id=8), False),
        (Principal(7, "ann", views_calls=True, closed_members=frozenset(["notes"])), call(1), True),
        (Principal(7, "ann", token_id=3, members=frozenset(["notes"])), call(1), False),
        (Principal(7, "ann", token_id=3, members=frozenset(["notes"])), call(1, token_id=3), True),
        (Principal(7, "ann", members=frozenset(["notes"])), call(1), False),
    ],
)
def test_a_call_in_memory_is_readable_as_its_row_is_over_rest(
    principal: Principal, state: CallState, is_readable: bool
) -> None:
    assert subscriber(principal).may_see_call(state) is is_readable


@pytest.mark.parametrize(
    "text", ["", "1", "1-2", "-5-0000000000000000", "9" * 16 + "-0000000000000000", "1-000000000000000g"]
)
def test_a_text_that_is_no_id_is_no_position(text: str) -> None:
    assert Position.parse(text) is None


def test_a_position_can_be_written_and_read() -> None:
    position = Position(NOW, 2**64 - 1)
    assert Position.parse(str(position)) == position

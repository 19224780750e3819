"""ASGI by hand: bodies within bounds of size and time, events as bytes, callers who go away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mcp_runtime.gateway import asgi
from mcp_runtime.gateway.asgi import GoneError, Refusal
from mcp_runtime.gateway.messages import Event


def receiving(*messages: dict[str, Any]) -> Callable[[], Awaitable[dict[str, Any]]]:
    """What the server gives; when that is all, nothing more comes."""
    left = list(messages)

    async def receive() -> dict[str, Any]:
        if not left:
            await asyncio.Event().wait()
        return {"type": "http.request", **left.pop(0)}

    return receive


GONE = {"type": "http.disconnect"}


def body(*messages: dict[str, Any]) -> bytes:
    return asyncio.run(asgi.body_of(receiving(*messages)))


def test_a_body_comes_in_one_piece_or_in_many() -> None:
    assert body({"body": b"abc"}) == b"abc"
    assert body({"body": b"a", "more_body": True}, {"body": b"b", "more_body": True}, {"body": b"c"}) == b"abc"
    assert body({}) == b""


def test_a_body_larger_than_the_bound_is_refused_as_soon_as_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "MAX_BODY", 5)
    assert body({"body": b"12345"}) == b"12345"
    for messages in ([{"body": b"123456"}], [{"body": b"123", "more_body": True}] * 2):
        with pytest.raises(Refusal) as caught:
            body(*messages)
        assert caught.value.status == 413


@pytest.mark.parametrize("begun", [[], [{"body": b"a", "more_body": True}]])
def test_a_body_that_does_not_come_in_time_is_refused(
    begun: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "BODY_SECONDS", 0.01)
    with pytest.raises(Refusal) as caught:
        body(*begun)
    assert caught.value.status == 408


@pytest.mark.parametrize("messages", [[GONE], [{"body": b"a", "more_body": True}, GONE]])
def test_who_goes_away_while_sending_is_gone(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(GoneError):
        body(*messages)


@pytest.mark.parametrize(
    ("event", "sent"),
    [
        (Event(b"{}"), b"data: {}\n\n"),
        (Event(b"a\nb", "n/1", 5), b"id: n/1\nretry: 5\ndata: a\ndata: b\n\n"),
        (Event(b"", "n/1"), b"id: n/1\ndata:\n\n"),
        (Event(b"", "", 0), b"retry: 0\n\n"),
        (Event(b""), b":\n\n"),
    ],
)
def test_events_are_written_as_streams_have_them(event: Event, sent: bytes) -> None:
    told: list[Any] = []

    async def send(message: Any) -> None:
        told.append(message)

    asyncio.run(asgi.send_event(send, event))
    assert told == [{"type": "http.response.body", "body": sent, "more_body": True}]


@pytest.mark.parametrize("at_once", [True, False])
def test_work_ends_when_its_caller_goes_away(at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "WATCH_AFTER", 0.01)

    async def work() -> None:
        async with asgi.while_there(receiving({"body": b""}, GONE), at_once=at_once):
            await asyncio.sleep(20)

    with pytest.raises(GoneError):
        asyncio.run(asyncio.wait_for(work(), 10))


def test_work_that_is_cancelled_by_others_is_cancelled_and_what_ends_is_not_watched() -> None:
    async def work() -> int:
        async with asgi.while_there(receiving(), at_once=True):
            await asyncio.sleep(0)
        task = asyncio.ensure_future(hang())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    async def hang() -> None:
        async with asgi.while_there(receiving()):
            await asyncio.sleep(20)

    assert asyncio.run(work()) == 1

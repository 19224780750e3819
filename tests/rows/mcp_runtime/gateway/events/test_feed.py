"""The open streams of events, without a connection: whose they are, and when they end."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from mcp_runtime.gateway.events.feed import Feed
from mcp_runtime.gateway.events.subscriber import Selection, Subscriber
from mcp_runtime.gateway.outbox import Outbox
from mcp_runtime.protocol.errors import TokenError
from mcp_runtime.security.access import Principal

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
ANN = Principal(7, "ann", invokes=True)


async def refuse(authorization: bytes | None) -> Principal:
    raise TokenError("revoked")


def test_a_slow_client_gets_no_event_after_its_token_is_revoked() -> None:
    async def events_after_the_end() -> list[bytes]:
        feed, subscriber = Feed(), Subscriber(ANN, None, Selection(), Outbox())
        with feed.opened(subscriber):
            events = feed.events(subscriber, NOW, None)
            subscriber.outbox.put(b"read")
            subscriber.outbox.put(b"not read")
            assert await anext(events) == b"read"
            await feed.access_changed(refuse)
            subscriber.outbox.put(b"later")
            return [event async for event in events]

    assert asyncio.run(events_after_the_end()) == []


def test_a_stream_that_is_being_opened_counts_and_loses_its_access() -> None:
    feed, subscriber = Feed(), Subscriber(ANN, None, Selection(), Outbox())
    with feed.opened(subscriber):
        asyncio.run(feed.access_changed(refuse))
        assert subscriber.outbox.is_closed


def test_rights_that_were_read_before_a_change_do_not_replace_those_after_it() -> None:
    narrow = Principal(7, "ann")

    async def rights_after_both() -> Principal:
        feed, subscriber = Feed(), Subscriber(ANN, None, Selection(), Outbox())

        async def read_slowly(authorization: bytes | None) -> Principal:
            await feed.access_changed(read_at_once)
            return ANN

        async def read_at_once(authorization: bytes | None) -> Principal:
            return narrow

        with feed.opened(subscriber):
            await feed.renew_access(subscriber, read_slowly)
            return subscriber.principal

    assert asyncio.run(rights_after_both()) == narrow

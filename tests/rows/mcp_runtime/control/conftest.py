"""A member with a tool, and a broker that only notes what it was sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mcp_runtime.control import notify
from mcp_runtime.control.notify import queue_name
from roster.models import GuildMember, Tool


@pytest.fixture
def anna() -> GuildMember:
    return GuildMember.objects.create(name="anna", directory="anna", status="connected")


@pytest.fixture
def echo(anna: GuildMember) -> Tool:
    return Tool.objects.create(member=anna, name="echo", definition={"inputSchema": {"type": "object"}})


class Broker:
    """In the place of a broker: what was sent to it."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.queues: set[str] = set()
        self.error: Exception | None = None

    def send_task(self, name: str, *, kwargs: dict[str, Any], queue: str, retry: bool, ignore_result: bool) -> None:
        assert (retry, ignore_result) == (False, True)
        self.sent.append((name, kwargs))
        self.queues.add(queue)
        if self.error:
            raise self.error

    @property
    def members(self) -> list[bool]:
        return [kwargs["members"] for _, kwargs in self.sent]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Broker]:
    broker = Broker()
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    queue_name.cache_clear()
    monkeypatch.setattr(notify, "celery_app", lambda: broker)
    yield broker
    queue_name.cache_clear()

"""A member with a tool, and a broker that only records its messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Exchange

from mcp_runtime.control import notify
from mcp_runtime.control.notify import hall_exchange
from roster.models import GuildMember, Tool


@pytest.fixture
def anna() -> GuildMember:
    return GuildMember.objects.create(name="anna", directory="anna", status="connected")


@pytest.fixture
def echo(anna: GuildMember) -> Tool:
    return Tool.objects.create(member=anna, name="echo", definition={"inputSchema": {"type": "object"}})


class Broker:
    """Replaces a broker and records what was sent to it."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.exchanges: set[str] = set()
        self.declared: set[Exchange] = set()
        self.error: Exception | None = None

    def send_task(
        self, name: str, *, kwargs: dict[str, Any], exchange: str, declare: list[Exchange], **options: Any
    ) -> None:
        assert (options["retry"], options["ignore_result"], options["delivery_mode"]) == (False, True, "transient")
        self.sent.append((name, kwargs))
        self.exchanges.add(exchange)
        self.declared.update(declare)
        if self.error:
            raise self.error

    @property
    def members(self) -> list[bool]:
        return [kwargs["members"] for _, kwargs in self.sent]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Broker]:
    broker = Broker()
    settings.BROKER_URL = "redis://127.0.0.1:1/0"
    hall_exchange.cache_clear()
    monkeypatch.setattr(notify, "celery_app", lambda: broker)
    yield broker
    hall_exchange.cache_clear()

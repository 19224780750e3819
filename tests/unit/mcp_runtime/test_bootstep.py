"""What the Celery worker asks of a broker. RabbitMQ 3 allows more than RabbitMQ 4, so these tests need no broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker.consumer.connection import Connection
from celery.worker.consumer.consumer import Evloop

from guildhall.celery import app
from mcp_runtime.runtime import tasks
from mcp_runtime.runtime.bootstep import NotificationConsumer, NotificationTasks


class Broker:
    """Replaces a connection to RabbitMQ 3, which would allow a limit for a whole channel ("global QoS")."""

    qos_semantics_matches_spec = False

    def __init__(self) -> None:
        self.limits: list[tuple[Any, ...]] = []
        self.default_channel = SimpleNamespace(basic_qos=lambda *arguments: self.limits.append(arguments))
        self.transport = SimpleNamespace(driver_type="amqp")


def test_the_limit_of_messages_is_not_that_of_the_whole_channel() -> None:
    broker = Broker()
    consumer = SimpleNamespace(
        app=SimpleNamespace(amqp=SimpleNamespace(TaskConsumer=lambda *_, **__: None), conf=app.conf),
        connection=broker, initial_prefetch_count=4, update_strategies=lambda: None, on_decode_error=None,
    )  # fmt: skip
    NotificationTasks(consumer).start(consumer)
    assert broker.limits == [(0, 4, False)]


def test_the_consumer_has_no_remote_control_gossip_mingle_and_events() -> None:
    steps = NotificationConsumer.Blueprint().claim_steps()
    assert set(steps.values()) == {Connection, NotificationTasks, Evloop}


def test_the_consumer_handles_a_notification_at_once_and_without_an_acknowledgement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received: list[str] = []
    dispatcher = SimpleNamespace(
        notify=lambda: received.append("calls"), notify_and_sweep=lambda: received.append("members")
    )
    monkeypatch.setattr(tasks, "_dispatcher", dispatcher)
    handle = tasks.drain_task.start_strategy(app, None)
    for members in (False, True):
        handle(SimpleNamespace(payload=((), {"members": members}, {})), None, None, None, [])
    assert received == ["calls", "members"]

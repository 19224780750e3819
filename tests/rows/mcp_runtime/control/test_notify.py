from __future__ import annotations

import logging
import socket
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, current_app
from django.db import transaction
from kombu.transport.base import to_rabbitmq_queue_arguments

from guildhall.celery import app
from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control import notify
from mcp_runtime.control.calls import queue_call
from mcp_runtime.control.notify import celery_app, hall_exchange, node_queue, notify_runtime
from roster.models import Call, Hall, Tool
from tests.rows.mcp_runtime.control.conftest import Broker
from tests.support.machine import Stopwatch

pytestmark = pytest.mark.django_db

COMMAND = Requester(Call.Source.COMMAND)


@pytest.mark.django_db(transaction=True)
def test_a_notification_goes_to_the_exchange_of_the_hall_and_declares_no_queue(broker: Broker) -> None:
    notify_runtime()
    notify_runtime(members=True)
    assert broker.sent == [
        ("mcp_runtime.tasks.drain", {"members": False}),
        ("mcp_runtime.tasks.drain", {"members": True}),
    ]
    assert broker.exchanges == {f"guildhall-{Hall.objects.get().hall_id}"}
    assert broker.declared == {hall_exchange()}


@pytest.mark.django_db(transaction=True)
def test_a_notification_is_sent_after_the_row_is_committed(broker: Broker, echo: Tool) -> None:
    with transaction.atomic():
        queue_call("anna", "echo", {}, requester=COMMAND)
        assert broker.sent == []
    assert broker.members == [False]


@pytest.mark.django_db(transaction=True)
def test_no_notification_is_sent_for_a_rolled_back_call(broker: Broker, echo: Tool) -> None:
    with transaction.atomic():
        queue_call("anna", "echo", {}, requester=COMMAND)
        transaction.set_rollback(True)
    assert broker.sent == []
    assert not Call.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", [OSError("refused"), TimeoutError("mute"), ValueError("anything at all")])
def test_a_failed_notification_is_one_line_in_the_log_and_the_call_stays(
    broker: Broker, echo: Tool, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    broker.error = error
    call, created = queue_call("anna", "echo", {}, requester=COMMAND)
    assert created
    assert Call.objects.get() == call
    (record,) = caplog.records
    assert (record.levelno, record.exc_info) == (logging.WARNING, None)
    assert str(error) in record.getMessage()
    assert "within a second" in record.getMessage()


@pytest.mark.django_db(transaction=True)
def test_without_a_broker_nothing_is_sent(broker: Broker, settings: Any, echo: Tool) -> None:
    settings.BROKER_URL = ""
    queue_call("anna", "echo", {}, requester=COMMAND)
    assert broker.sent == []


def test_two_halls_have_different_exchanges(broker: Broker) -> None:
    first = hall_exchange()
    Hall.objects.update(hall_id=uuid.uuid4())
    hall_exchange.cache_clear()
    assert hall_exchange().name != first.name


def test_each_node_has_a_queue_with_its_name(broker: Broker, settings: Any) -> None:
    names = set()
    for settings.GUILD_HALL_NODE in ("first", "second"):
        names.add(node_queue().name)
    assert names == {f"{hall_exchange().name}.first", f"{hall_exchange().name}.second"}


class Channel:
    """Replaces a channel of AMQP and records what was declared, with the arguments that RabbitMQ would get."""

    is_open = True

    def __init__(self) -> None:
        self.queues: list[dict[str, Any]] = []
        self.exchanges: list[dict[str, Any]] = []
        self.bindings: list[dict[str, Any]] = []

    def prepare_queue_arguments(self, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
        return to_rabbitmq_queue_arguments(arguments, **options)

    def queue_declare(self, **arguments: Any) -> tuple[str, int, int]:
        self.queues.append(arguments)
        return arguments["queue"], 0, 0

    def exchange_declare(self, **arguments: Any) -> None:
        self.exchanges.append(arguments)

    def queue_bind(self, **arguments: Any) -> None:
        self.bindings.append(arguments)


def test_rabbitmq_4_accepts_what_the_runtime_declares(broker: Broker) -> None:
    channel = Channel()
    node_queue()(channel).declare()
    (queue,), (exchange,), (binding,) = channel.queues, channel.exchanges, channel.bindings
    # https://www.rabbitmq.com/docs/deprecated-features-list: a queue that is neither durable nor exclusive is refused.
    assert queue["durable"]
    assert not queue["exclusive"]
    assert not queue["auto_delete"]
    assert queue["arguments"] == {"x-queue-type": "classic", "x-expires": 3_600_000, "x-message-ttl": 10_000}
    assert (exchange["type"], exchange["durable"], exchange["auto_delete"]) == ("fanout", True, False)
    assert (binding["queue"], binding["exchange"]) == (queue["queue"], exchange["exchange"])


@pytest.mark.parametrize("address", ["", "redis://127.0.0.1:1/0", "amqp://127.0.0.1:1//"])
def test_the_keys_and_queues_of_the_broker_have_the_id_of_the_hall(settings: Any, address: str) -> None:
    settings.BROKER_URL = address
    hall_exchange.cache_clear()
    celery_app.cache_clear()
    options = app.conf.broker_transport_options
    before = dict(options)
    default_queue = app.conf.task_default_queue
    try:
        assert celery_app() is app
        assert current_app == app
        name = hall_exchange().name
        assert name == f"guildhall-{Hall.objects.get().hall_id}"
        is_redis = address.startswith("redis")
        assert options == {**before, **({"global_keyprefix": f"{name}:"} if is_redis else {})}
        assert [queue.name for queue in app.conf.task_queues] == [f"{name}.main"]
    finally:
        app.conf.task_queues, app.conf.task_default_queue = None, default_queue
        options.clear()
        options.update(before)
        celery_app.cache_clear()
        hall_exchange.cache_clear()


@pytest.fixture
def silent_broker() -> Iterator[str]:
    """The address of a server that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:
        connections: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    connections.append(listener.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for connection in connections:
            connection.close()


@pytest.mark.django_db(transaction=True)
def test_a_silent_broker_delays_nobody(
    silent_broker: str, settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, echo: Tool
) -> None:
    settings.BROKER_URL = silent_broker
    app: Celery[Any] = Celery("mute", broker=silent_broker, set_as_current=False)
    app.conf.broker_transport_options = {"socket_connect_timeout": 0.5, "socket_timeout": 0.5, "max_retries": 0}
    app.conf.broker_connection_timeout = 0.5
    monkeypatch.setattr(notify, "celery_app", lambda: app)
    watch = Stopwatch()
    assert queue_call("anna", "echo", {}, requester=COMMAND)[1]
    assert watch.seconds < 5
    assert "cannot be notified" in caplog.text
    app.pool.force_close_all()
    app.close()

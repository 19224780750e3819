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

from guildhall.celery import app
from mcp_runtime.calls.transitions import Caller
from mcp_runtime.control import notify
from mcp_runtime.control.calls import queue_call
from mcp_runtime.control.notify import celery_app, notify_runtime, queue_name
from roster.models import Call, Hall, Tool
from tests.rows.mcp_runtime.control.conftest import Broker
from tests.support.machine import Stopwatch

pytestmark = pytest.mark.django_db

COMMAND = Caller(Call.Source.COMMAND)


@pytest.mark.django_db(transaction=True)
def test_a_notification_goes_to_the_halls_own_queue(broker: Broker) -> None:
    notify_runtime()
    notify_runtime(members=True)
    assert broker.sent == [
        ("mcp_runtime.tasks.drain", {"members": False}),
        ("mcp_runtime.tasks.drain", {"members": True}),
    ]
    assert broker.queues == {f"guildhall-{Hall.objects.get().hall_id}"}


@pytest.mark.django_db(transaction=True)
def test_a_notification_is_sent_only_when_the_row_can_be_seen(broker: Broker, echo: Tool) -> None:
    with transaction.atomic():
        queue_call("anna", "echo", {}, caller=COMMAND)
        assert broker.sent == []
    assert broker.members == [False]


@pytest.mark.django_db(transaction=True)
def test_what_was_rolled_back_is_not_announced(broker: Broker, echo: Tool) -> None:
    with transaction.atomic():
        queue_call("anna", "echo", {}, caller=COMMAND)
        transaction.set_rollback(True)
    assert broker.sent == []
    assert not Call.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", [OSError("refused"), TimeoutError("mute"), ValueError("anything at all")])
def test_a_notification_that_fails_is_one_line_in_the_log_and_the_call_is_safe(
    broker: Broker, echo: Tool, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    broker.error = error
    call, created = queue_call("anna", "echo", {}, caller=COMMAND)
    assert created
    assert Call.objects.get() == call
    (said,) = caplog.records
    assert (said.levelno, said.exc_info) == (logging.WARNING, None)
    assert str(error) in said.getMessage()
    assert "within a second" in said.getMessage()


@pytest.mark.django_db(transaction=True)
def test_without_a_broker_nothing_is_sent(broker: Broker, settings: Any, echo: Tool) -> None:
    settings.REDIS_URL = ""
    queue_call("anna", "echo", {}, caller=COMMAND)
    assert broker.sent == []


def test_two_halls_have_two_queues(broker: Broker) -> None:
    one = queue_name()
    Hall.objects.update(hall_id=uuid.uuid4())
    queue_name.cache_clear()
    assert queue_name() != one


@pytest.mark.parametrize("address", ["", "redis://127.0.0.1:1/0"])
def test_the_brokers_keys_carry_the_halls_id_when_there_is_a_broker(settings: Any, address: str) -> None:
    settings.REDIS_URL = address
    queue_name.cache_clear()
    celery_app.cache_clear()
    options = app.conf.broker_transport_options
    before = dict(options)
    try:
        assert celery_app() is app
        assert current_app == app
        expected = {"global_keyprefix": f"guildhall-{Hall.objects.get().hall_id}:"} if address else {}
        assert options == {**before, **expected}
    finally:
        options.clear()
        options.update(before)
        celery_app.cache_clear()
        queue_name.cache_clear()


@pytest.fixture
def mute_broker() -> Iterator[str]:
    """An address that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:
        taken: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    taken.append(listener.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for connection in taken:
            connection.close()


@pytest.mark.django_db(transaction=True)
def test_a_broker_that_is_mute_holds_nobody_up(
    mute_broker: str, settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, echo: Tool
) -> None:
    settings.REDIS_URL = mute_broker
    app: Celery[Any] = Celery("mute", broker=mute_broker, set_as_current=False)
    app.conf.broker_transport_options = {"socket_connect_timeout": 0.5, "socket_timeout": 0.5, "max_retries": 0}
    app.conf.broker_connection_timeout = 0.5
    monkeypatch.setattr(notify, "celery_app", lambda: app)
    watch = Stopwatch()
    assert queue_call("anna", "echo", {}, caller=COMMAND)[1]
    assert watch.seconds < 5
    assert "cannot be notified" in caplog.text
    app.pool.force_close_all()
    app.close()

"""Notifies the runtimes of changed rows. They see every change within a second even without a notification."""

from __future__ import annotations

import logging
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import transaction
from django.utils.module_loading import import_string

from mcp_runtime.rows import lease

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Exchange, Queue

logger = logging.getLogger("guildhall.control")
DRAIN_TASK = "mcp_runtime.tasks.drain"
QUEUE_SECONDS = 3600.0  # without a consumer, until RabbitMQ deletes the queue
MESSAGE_SECONDS = 10.0  # the runtime has long seen the change by then


def notify_runtime(*, members: bool = False) -> None:
    """Notify the runtimes of all nodes, after the current transaction, to check the queue (or their members).

    A notification that fails is one log line, never an error.
    """
    if settings.BROKER_URL:
        transaction.on_commit(partial(_notify_now, members))


def _notify_now(members: bool) -> None:
    try:
        exchange = hall_exchange()
        celery_app().send_task(
            DRAIN_TASK,
            kwargs={"members": members},
            exchange=exchange.name,
            exchange_type=exchange.type,
            routing_key=exchange.name,
            delivery_mode="transient",
            declare=[exchange],
            retry=False,
            ignore_result=True,
        )
    except Exception as error:  # noqa: BLE001 - whatever a broker does, the runtime will see the row
        logger.warning("the broker cannot be notified (%s); the runtime will see the change within a second", error)


@cache
def hall_exchange() -> Exchange:
    """The hall's own exchange, because two halls on one broker must not get each other's notifications.

    It copies a notification to the queues of all nodes. Who sends one declares only the exchange, and so never makes
    the queue of a dead node again.
    """
    from kombu import Exchange

    return Exchange(f"guildhall-{lease.hall().hall_id}", type="fanout", durable=True)


def node_queue() -> Queue:
    """The queue of this node. Only its runtime declares it.

    RabbitMQ deletes it if no runtime uses it, and notifications that nobody needs. It is durable, because RabbitMQ 4
    refuses other queues that outlive a connection. Redis has a subscription instead, which ends with the runtime.
    """
    from kombu import Queue

    exchange = hall_exchange()
    return Queue(
        f"{exchange.name}.{settings.GUILD_HALL_NODE}",
        exchange,
        exchange.name,
        durable=True,
        expires=QUEUE_SECONDS,
        message_ttl=MESSAGE_SECONDS,
        no_ack=True,
        queue_arguments={"x-queue-type": "classic"},
    )


@cache
def celery_app() -> Celery[Any]:
    """The Celery app with the queue of this node. Its keys or queues in the broker have the hall's id."""
    app: Celery[Any] = import_string(settings.CELERY_APP)
    queue = node_queue()
    app.conf.task_queues, app.conf.task_default_queue = [queue], queue.name
    if settings.BROKER_URL and not settings.BROKER_URL.startswith("amqp"):
        app.conf.broker_transport_options["global_keyprefix"] = f"{queue.exchange.name}:"
    return app

"""Notifies the runtime of changed rows. It sees every change within a second even without a notification."""

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

logger = logging.getLogger("guildhall.control")
DRAIN_TASK = "mcp_runtime.tasks.drain"


def notify_runtime(*, members: bool = False) -> None:
    """Notify the runtime, after the current transaction, to check the queue (or its members).

    A notification that fails is one log line, never an error.
    """
    if settings.REDIS_URL:
        transaction.on_commit(partial(_notify_now, members))


def _notify_now(members: bool) -> None:
    try:
        celery_app().send_task(
            DRAIN_TASK, kwargs={"members": members}, queue=queue_name(), retry=False, ignore_result=True
        )
    except Exception as error:  # noqa: BLE001 - whatever a broker does, the runtime will see the row
        logger.warning("the broker cannot be notified (%s); the runtime will see the change within a second", error)


@cache
def queue_name() -> str:
    """The hall's own queue, because two halls on one Redis must not get each other's notifications."""
    return f"guildhall-{lease.hall().hall_id}"


@cache
def celery_app() -> Celery[Any]:
    """The Celery app. Its keys in the broker begin with the hall's id."""
    app: Celery[Any] = import_string(settings.CELERY_APP)
    if settings.REDIS_URL:
        app.conf.broker_transport_options["global_keyprefix"] = f"{queue_name()}:"
    return app

"""The runtime is notified that rows changed. It sees every change within a second even when no notification arrives."""

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
    """Tell the runtime, after the current transaction, to look at the queue (or at its members).

    A notification that fails is one log line, never an error.
    """
    if settings.REDIS_URL:
        transaction.on_commit(partial(_notify_now, members))


def _notify_now(members: bool) -> None:
    try:
        celery_app().send_task(
            DRAIN_TASK, kwargs={"members": members}, queue=queue_name(), retry=False, ignore_result=True
        )
    except Exception as error:  # noqa: BLE001 - whatever a broker does, the row is safe and will be seen
        logger.warning("the broker could not be told (%s); the runtime will see it within a second", error)


@cache
def queue_name() -> str:
    """The hall's own queue: two halls on one Redis must not hear each other."""
    return f"guildhall-{lease.hall().hall_id}"


@cache
def celery_app() -> Celery[Any]:
    """The Celery app, its broker keys prefixed with the hall's id."""
    app: Celery[Any] = import_string(settings.CELERY_APP)
    if settings.REDIS_URL:
        app.conf.broker_transport_options["global_keyprefix"] = f"{queue_name()}:"
    return app

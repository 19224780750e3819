"""The Celery worker of the runtime. Its thread pool runs calls, and its consumer receives notifications."""

from __future__ import annotations

import gc
import os
import signal
import warnings
from types import FrameType
from typing import TYPE_CHECKING, Any

from celery import Celery, bootsteps, signals
from celery.exceptions import SecurityWarning
from celery.worker import state
from celery.worker.consumer import Consumer
from celery.worker.consumer.connection import Connection
from celery.worker.consumer.consumer import Evloop
from celery.worker.consumer.tasks import Tasks
from django.conf import settings

from mcp_runtime.control.notify import celery_app, hall_exchange
from mcp_runtime.rows.database import patiently

if TYPE_CHECKING:
    from mcp_runtime.runtime.runtime import Runtime


class RuntimeStep(bootsteps.StartStopStep):
    """Starts the runtime in the worker, after its pool and before its consumer."""

    requires = ("celery.worker.components:Pool",)
    runtime: Runtime

    def start(self, worker: Any) -> None:
        # This replaces Celery's handler, which prints. With this one the stop begins at once, and not 3 s later.
        signal.signal(signal.SIGTERM, self._on_sigterm)
        try:
            self.runtime.start(worker.pool.apply_async)
        except Exception as error:  # noqa: BLE001 - raised again by `end`
            # Celery stops no steps of a worker that has not fully started, so end the parts of the runtime here.
            self.runtime.end(error)
        gc.freeze()

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        state.should_stop = os.EX_OK  # type: ignore[assignment]
        self.runtime.ask_to_stop()

    def stop(self, worker: Any) -> None:
        self.runtime.end()


class NotificationTasks(Tasks):
    """Consumes the queue of this node. RabbitMQ 4 refuses a limit for all consumers of a channel ("global QoS")."""

    requires = (Connection,)

    def qos_global(self, consumer: Any) -> bool:
        return False


class NotificationConsumer(Consumer):
    """The consumer without remote control, gossip, mingle and events. They make queues of their own in the broker."""

    event_dispatcher = None

    class Blueprint(Consumer.Blueprint):  # type: ignore[misc, valid-type]
        default_steps = (Connection, NotificationTasks, Evloop)


def serve(runtime: Runtime) -> int:
    """Build the worker and run it to its end. Returns Celery's exit code."""
    RuntimeStep.runtime = runtime
    # Freeze the existing objects. Without that the garbage collector would block the interpreter for 40 ms each time it
    # goes through them, and again when the runtime is built. Enable it before steps that may wait for a database for
    # hours, while members serve.
    gc.freeze()
    gc.enable()
    patiently(hall_exchange, runtime.is_stopping)  # it is cached, so the following steps do not need the database
    app: Celery[Any] = celery_app()
    app.steps["worker"].add(RuntimeStep)
    # Django has set up logging. With a listener here Celery does not change it.
    signals.setup_logging.connect(lambda **_: None, weak=False)
    # Running as root is the operator's decision. These messages contain nothing that could be abused.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    worker = app.Worker(
        pool="threads",
        concurrency=settings.GUILD_HALL_CONCURRENCY,
        consumer_cls=NotificationConsumer,
        hostname=f"guildhall-{runtime.parts.lease_id}@%h",
        loglevel="WARNING",
        quiet=True,
    )
    worker.start()
    return int(worker.exitcode or 0)

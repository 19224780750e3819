"""Celery tasks. They are notifications: they contain no data and may be lost, because all work is in rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Celery puts another module in its own place at the end of its import. If another thread is just importing it, the next
# line would wait for that and then look into the old module. So this line waits first.
import celery  # noqa: F401
from celery import Task, shared_task

from mcp_runtime.calls.dispatcher import Dispatcher

_dispatcher: Dispatcher | None = None


def answer_with(dispatcher: Dispatcher | None) -> None:
    """Set the dispatcher that receives the notifications of this process."""
    global _dispatcher
    _dispatcher = dispatcher


class Notification(Task[..., None]):
    """A task that needs no thread of the pool.

    Calls may use all these threads. Notifications would wait for one in memory, without a limit.
    """

    def start_strategy(self, app: Any, consumer: Any, **_: Any) -> Callable[..., None]:
        """What the consumer does with a message. It needs no acknowledgement (`node_queue`)."""

        def run(message: Any, *_: Any) -> None:
            _args, kwargs, _options = message.payload
            self.run(**kwargs)

        return run


@shared_task(base=Notification, name="mcp_runtime.tasks.drain")
def drain_task(members: bool = False) -> None:
    if _dispatcher is None:
        return
    if members:
        _dispatcher.notify_and_sweep()
    else:
        _dispatcher.notify()

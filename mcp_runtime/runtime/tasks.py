"""Celery tasks. They are notifications: they contain no data and may be lost, because all work is in rows."""

from __future__ import annotations

from celery import shared_task

from mcp_runtime.calls.dispatcher import Dispatcher

_dispatcher: Dispatcher | None = None


def answer_with(dispatcher: Dispatcher | None) -> None:
    """Set the dispatcher that receives the notifications of this process."""
    global _dispatcher
    _dispatcher = dispatcher


@shared_task(name="mcp_runtime.tasks.drain")
def drain_task(members: bool = False) -> None:
    if _dispatcher is None:
        return
    if members:
        _dispatcher.notify_and_sweep()
    else:
        _dispatcher.notify()

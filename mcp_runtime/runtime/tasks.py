"""Celery tasks: doorbells. They carry nothing and may be lost; the rows are the truth."""

from __future__ import annotations

from celery import shared_task

from mcp_runtime.calls.dispatcher import Dispatcher

_dispatcher: Dispatcher | None = None


def answer_with(dispatcher: Dispatcher | None) -> None:
    """Who hears notifications in this process."""
    global _dispatcher
    _dispatcher = dispatcher


@shared_task(name="mcp_runtime.tasks.drain")
def drain_task(members: bool = False) -> None:
    if _dispatcher is None:
        return
    if members:
        _dispatcher.look_everywhere()
    else:
        _dispatcher.notify()

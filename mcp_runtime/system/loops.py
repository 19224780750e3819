"""Event loops in separate threads, for work that one thread can do for many members. No Django."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable

LOOK_SECONDS = 0.05  # between two checks of a process, if the OS does not report its end
_creation = threading.Lock()  # functools.cache has no lock, so two concurrent threads would create two loops


def loop(name: str) -> asyncio.AbstractEventLoop:
    """The process's event loop with that name. Its thread starts with it, and ends with the process."""
    with _creation:
        return _running_loop(name)


@functools.cache
def _running_loop(name: str) -> asyncio.AbstractEventLoop:
    new_loop = asyncio.SelectorEventLoop()
    threading.Thread(target=new_loop.run_forever, name=name, daemon=True).start()
    return new_loop


def call_at_exit(pid: int, has_ended: Callable[[], bool], callback: Callable[[], None]) -> None:
    """Call `callback` on an event loop once the child `pid` has ended, before it is reaped. It must not block for long.

    Without a pidfd (macOS, an old kernel, no free descriptor) the event loop calls `has_ended` every LOOK_SECONDS.
    """
    exits = loop("member-exits")
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):
        exits.call_soon_threadsafe(_look, has_ended, callback)
    else:
        exits.call_soon_threadsafe(exits.add_reader, descriptor, _handle_exit, descriptor, callback)


def _handle_exit(descriptor: int, callback: Callable[[], None]) -> None:
    loop("member-exits").remove_reader(descriptor)
    os.close(descriptor)
    callback()


def _look(has_ended: Callable[[], bool], callback: Callable[[], None]) -> None:
    if has_ended():
        callback()
    else:
        loop("member-exits").call_later(LOOK_SECONDS, _look, has_ended, callback)

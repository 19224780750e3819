"""Event loops in threads of their own, for what many members need and one thread can do. No Django."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable

LOOK_SECONDS = 0.05  # between two looks at a process where the OS does not tell of its end
_making = threading.Lock()  # functools.cache has none: of two threads at once each would make one


def loop(name: str) -> asyncio.AbstractEventLoop:
    """The process's loop of that name; its thread begins with it, and ends with the process."""
    with _making:
        return _running_loop(name)


@functools.cache
def _running_loop(name: str) -> asyncio.AbstractEventLoop:
    new_loop = asyncio.SelectorEventLoop()
    threading.Thread(target=new_loop.run_forever, name=name, daemon=True).start()
    return new_loop


def call_at_exit(pid: int, has_ended: Callable[[], bool], callback: Callable[[], None]) -> None:
    """Call `callback` on a loop once the child `pid` has ended, and before it is reaped. It must not block for long.

    Where there is no pidfd (macOS, an old kernel, no free descriptor) the loop asks `has_ended` every LOOK_SECONDS.
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

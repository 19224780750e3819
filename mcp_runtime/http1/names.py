"""Looks up host names, each in a thread of its own.

getaddrinfo has no deadline. The name of a machine that is gone, or a name server that does not answer, can block it for
half a minute. An event loop has only a few threads for it (uvloop has two), so one such name would hold up the
connections to all others.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading


class Names:
    """Use it on one event loop. Callers that ask for a name at the same time share one look-up."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Future[list[str]]] = {}

    async def look_up(self, host: str) -> list[str]:
        """Return the addresses of a name, at least one. Raise OSError and UnicodeError."""
        with contextlib.suppress(ValueError):
            return [str(ipaddress.ip_address(host))]
        running = self._running.get(host)
        if running is None:
            running = self._running[host] = asyncio.get_running_loop().create_future()
            running.add_done_callback(lambda future: self._end(host, future))
            thread = threading.Thread(target=_look_up, args=(host, running), name=f"look up {host}", daemon=True)
            thread.start()
        return await asyncio.shield(running)  # it goes on for others, and for the next caller

    def _end(self, host: str, future: asyncio.Future[list[str]]) -> None:
        self._running.pop(host, None)
        if not future.cancelled():
            future.exception()  # all callers may have given up


def _look_up(host: str, future: asyncio.Future[list[str]]) -> None:
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    except (OSError, UnicodeError) as error:
        _finish(future, error)
    else:
        _finish(future, addresses)


def _finish(future: asyncio.Future[list[str]], result: list[str] | Exception) -> None:
    def finish() -> None:
        if future.done():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    with contextlib.suppress(RuntimeError):  # the loop is closed
        future.get_loop().call_soon_threadsafe(finish)

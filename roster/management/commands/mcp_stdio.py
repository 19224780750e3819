from __future__ import annotations

import logging
import os
import sys
import threading
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

from django.core.management.base import BaseCommand
from django.db import Error, close_old_connections

from mcp_runtime import jsonrpc
from mcp_runtime.errors import MethodError, ProtocolError
from mcp_runtime.invocations import Caller
from mcp_runtime.jsonrpc import MethodDispatcher
from roster.management.terminal import caller
from roster.mcp_server import RosterServer
from roster.models import Invocation

logger = logging.getLogger("guildhall.stdio")

# Calls that are served at the same time, and that are taken in; beyond that the client's next lines wait in the pipe.
THREADS = 64
MAX_WAITING = 1000
MAX_LINE = 4_000_000
GRACE_SECONDS = 2.0  # for calls under way when the client closes its end
# How often the roster is looked at for tools that came or went.
LOOK_SECONDS = 2.0


class Command(BaseCommand):
    help = (
        "Serve MCP on stdin and stdout, one JSON-RPC message a line: every tool of the roster, for agents that know "
        "no HTTP. The hall must run beside it."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--user", help="what this user may, alone; without it everything")

    def handle(self, *args: Any, **options: Any) -> None:
        output = sys.stdout.buffer
        sys.stdout = sys.stderr  # whoever prints must not break the conversation
        StdioServer(sys.stdin.buffer, output, caller(Invocation.Door.GATEWAY, options["user"])).serve()
        # Calls that were cancelled may take their members a while to end; nobody waits for them.
        sys.stderr.flush()
        os._exit(0)


class StdioServer:
    """One client on a pair of pipes."""

    def __init__(self, source: BinaryIO, sink: BinaryIO, caller: Caller) -> None:
        self._source = source
        self._sink = sink
        self._sink_lock = threading.Lock()
        self._over = threading.Event()
        self._places = threading.BoundedSemaphore(MAX_WAITING)
        self._server = RosterServer(caller, self._notify)
        self._dispatcher = MethodDispatcher(self._server.methods, max_bytes=MAX_LINE)

    def serve(self) -> None:
        """Until the client closes its end. Calls under way get a moment then, and are cancelled."""
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="stdio")
        while line := self._source.readline(MAX_LINE + 2):
            if not line.endswith(b"\n"):
                self._skip_rest_of_line()
            if not line.strip():
                continue
            self._places.acquire()
            if self._takes_long(line):
                threads.submit(self._serve_line, line)
            else:
                self._serve_line(line)
        self._server.end(GRACE_SECONDS)
        self._over.set()
        threads.shutdown(wait=False)

    def _takes_long(self, line: bytes) -> bool:
        """Whether it is a call, or a batch. All else, cancellations and pings first, is served before the next line."""
        try:
            message = jsonrpc.decode(line)
        except ProtocolError:
            return False
        self._server.expect(message)
        return isinstance(message, list) or (isinstance(message, dict) and message.get("method") == "tools/call")

    def _skip_rest_of_line(self) -> None:
        while (rest := self._source.readline(MAX_LINE)) and not rest.endswith(b"\n"):
            pass

    def _serve_line(self, line: bytes) -> None:
        try:
            if answer := self._dispatcher.answer(line):
                self._write(answer)
        finally:
            close_old_connections()
            self._places.release()

    def _write(self, message: bytes) -> None:
        with self._sink_lock:
            try:
                self._sink.write(message + b"\n")
                self._sink.flush()
            except (BrokenPipeError, ValueError):
                self._over.set()  # nobody reads any more

    def _notify(self, method: str, params: dict[str, Any]) -> None:
        self._write(jsonrpc.encode(jsonrpc.notification(method, params)))

    def _watch(self) -> None:
        """Tell the client when the list of tools is another than it was told."""
        while not self._over.wait(LOOK_SECONDS):
            try:
                if self._server.is_initialized and self._server.tools_changed():
                    self._notify("notifications/tools/list_changed", {})
            except MethodError:
                pass  # the user may do nothing any more; the client is told when it asks
            except Error as error:
                logger.warning("the roster cannot be read (%s)", str(error).strip())
            finally:
                close_old_connections()

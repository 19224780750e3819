from __future__ import annotations

import logging
import sys
import threading
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

from django.core.management.base import BaseCommand
from django.db import Error, close_old_connections

from mcp_runtime import jsonrpc
from mcp_runtime.invocations import Caller
from mcp_runtime.jsonrpc import MethodDispatcher
from roster.mcp_server import RosterServer
from roster.models import Invocation

logger = logging.getLogger("guildhall.stdio")

# Messages that are served at the same time; beyond that the client's next lines wait in the pipe.
THREADS = 64
MAX_LINE = 4_000_000
# How often the roster is looked at for tools that came or went.
LOOK_SECONDS = 2.0


class Command(BaseCommand):
    help = (
        "Serve MCP on stdin and stdout, one JSON-RPC message a line: every tool of the roster, for agents that know "
        "no HTTP. The hall must run beside it."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        pass

    def handle(self, *args: Any, **options: Any) -> None:
        output = sys.stdout.buffer
        sys.stdout = sys.stderr  # whoever prints must not break the conversation
        StdioServer(sys.stdin.buffer, output).serve()


class StdioServer:
    """One client on a pair of pipes."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source = source
        self._sink = sink
        self._sink_lock = threading.Lock()
        self._over = threading.Event()
        self._places = threading.BoundedSemaphore(THREADS)
        self._server = RosterServer(Caller(Invocation.Door.GATEWAY), self._notify)
        self._dispatcher = MethodDispatcher(self._server.methods, max_bytes=MAX_LINE)

    def serve(self) -> None:
        """Until the client closes its end; calls under way are answered first."""
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        with ThreadPoolExecutor(THREADS, thread_name_prefix="stdio") as threads:
            while line := self._source.readline(MAX_LINE + 2):
                if not line.endswith(b"\n"):
                    self._skip_rest_of_line()
                if line.strip():
                    self._places.acquire()
                    threads.submit(self._serve_line, line)
        self._over.set()

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
            except Error as error:
                logger.warning("the roster cannot be read (%s)", str(error).strip())
            finally:
                close_old_connections()

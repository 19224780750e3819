"""The runtime as one: its parts, its heartbeat, and its end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import uuid
from collections.abc import Callable
from typing import Any

from mcp_runtime.runtime.heartbeat import Heartbeat
from mcp_runtime.runtime.parts import Parts
from mcp_runtime.runtime.stopping import EX_SOFTWARE, EX_TEMPFAIL, Stopping

logger = logging.getLogger("guildhall.runtime")


class Runtime:
    """Everything of the runtime that is not Celery, from its members' start to its end."""

    def __init__(
        self,
        lease_id: uuid.UUID,
        gateway_sockets: list[socket.socket],
        stop_asked: threading.Event | None = None,
        exit_process: Callable[[int], object] = os._exit,
    ) -> None:
        self._stop_asked = stop_asked or threading.Event()
        self.parts = Parts(lease_id, gateway_sockets, self._stop_asked)
        self.stopping = Stopping(self.parts, self._stop_asked, exit_process)
        self.heartbeat = Heartbeat(lease_id, self.stopping.done, self._lease_lost)

    def start_members(self) -> None:
        """First of all: members take the longest, and the rest is imported and built meanwhile."""
        self.stopping.start()  # before what may hang as well
        self.heartbeat.start()
        self.parts.supervisor.start()

    def start(self, run_in_pool: Callable[..., Any]) -> None:
        """The rest: called by the bootstep when Celery's pool is there. Nothing once a stop is asked for."""
        self.parts.build(run_in_pool)

    def _lease_lost(self) -> bool:
        """Whether that ends this runtime; not while it is stopping, which gives the lease back."""
        if self._stop_asked.is_set():
            return False
        logger.error("another runtime took this hall; ending the members and exiting")
        self.stopping.exit_code = EX_TEMPFAIL
        self.parts.lifecycle.kill_everything()
        os.kill(os.getpid(), signal.SIGTERM)
        return True

    def ask_to_stop(self) -> None:
        """Called from a signal handler: sets a flag and nothing else."""
        self._stop_asked.set()

    def is_stopping(self) -> bool:
        return self._stop_asked.is_set()

    def end(self, error: BaseException | None = None) -> int:
        """The one way out: returns the exit code when all there is has ended.

        Raises `error` then, unless a stop was asked for before, which it may be part of.
        """
        is_fault = error is not None and not self._stop_asked.is_set()
        if is_fault:
            self.stopping.exit_code = self.stopping.exit_code or EX_SOFTWARE
        self._stop_asked.set()
        self.stopping.done.wait()
        if error is not None and is_fault:
            raise error
        return self.stopping.exit_code

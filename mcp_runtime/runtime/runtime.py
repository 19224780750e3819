"""The runtime as a whole: its parts, its heartbeat, and its end."""

from __future__ import annotations

import logging
import os
import signal
import threading
import uuid
from collections.abc import Callable
from typing import Any

from mcp_runtime.http1.listeners import Sockets
from mcp_runtime.runtime.heartbeat import Heartbeat
from mcp_runtime.runtime.parts import Parts
from mcp_runtime.runtime.stopping import EX_SOFTWARE, EX_TEMPFAIL, Stopping

logger = logging.getLogger("guildhall.runtime")


class Runtime:
    """Everything of the runtime that is not Celery, from its members' start to its end."""

    def __init__(
        self,
        lease_id: uuid.UUID,
        gateway_sockets: Sockets,
        stop_requested: threading.Event | None = None,
        exit_process: Callable[[int], object] = os._exit,
    ) -> None:
        self._stop_requested = stop_requested or threading.Event()
        self.parts = Parts(lease_id, gateway_sockets, self._stop_requested)
        self.stopping = Stopping(self.parts, self._stop_requested, exit_process)
        self.heartbeat = Heartbeat(lease_id, self.stopping.is_over, self._handle_lost_lease)

    def start_members(self) -> None:
        """Start the members first, because they take the longest. The rest is imported and built meanwhile."""
        self.stopping.start()  # first, because the other steps may hang
        self.heartbeat.start()
        self.parts.supervisor.start()

    def start(self, run_in_pool: Callable[..., Any]) -> None:
        """Start the rest, unless a stop was requested. The bootstep calls it when Celery's pool exists."""
        self.parts.build(run_in_pool)

    def _handle_lost_lease(self) -> bool:
        """End this runtime, unless it is stopping. Returns whether it ends because of the lost lease."""
        if self._stop_requested.is_set():
            return False
        logger.error("another runtime took this hall; ending the members and exiting")
        self.stopping.exit_code = EX_TEMPFAIL
        self.parts.lifecycle.kill_everything()
        os.kill(os.getpid(), signal.SIGTERM)
        return True

    def ask_to_stop(self) -> None:
        """Set a flag, and nothing else, because a signal handler calls this."""
        self._stop_requested.set()

    def is_stopping(self) -> bool:
        return self._stop_requested.is_set()

    def end(self, error: BaseException | None = None) -> int:
        """End all parts, and return the exit code. The runtime never ends without this.

        Raises `error` after that, unless a stop was requested before, because the stop may have caused it.
        """
        is_fault = error is not None and not self._stop_requested.is_set()
        if is_fault:
            self.stopping.exit_code = self.stopping.exit_code or EX_SOFTWARE
        self._stop_requested.set()
        self.stopping.is_over.wait()
        if error is not None and is_fault:
            raise error
        return self.stopping.exit_code

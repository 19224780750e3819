"""The stop of a runtime. With tens of members it takes under five seconds from the signal to the last process's end."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from mcp_runtime.runtime.guard import guard_is_gone
from mcp_runtime.system import console

if TYPE_CHECKING:
    from mcp_runtime.runtime.parts import Parts

logger = logging.getLogger("guildhall.runtime")

EX_SOFTWARE = 70  # sysexits.h
EX_TEMPFAIL = 75  # try again later
CALLS_GRACE = 2.5
BUSY_STOP_TIMEOUT = 0.7
STOP_TIMEOUT = 3.0
CELERY_GRACE = 0.3
# Without the guard nothing ends the remaining processes, and the stop has only two seconds. So it waits for no call.
ORPHANED_STOP_TIMEOUT = 0.4
# A stop that takes longer kills everything. The likely reason is a database that is not available. Each member's end
# takes CPU time. The maximum is below the patience of `manage.py up`.
STOP_BOUND = 4.2
STOP_BOUND_OF_MEMBER = 0.03
MAX_STOP_BOUND = 7.0
ORPHANED_STOP_BOUND = 1.3
GUARD_LOOK = 0.1


class Stopping:
    """Ends `parts` once `stop_requested` is set, and then the process by `exit_process(code)`.

    One thread ends the parts. Another ends the process if that takes too long.
    """

    def __init__(
        self, parts: Parts, stop_requested: threading.Event, exit_process: Callable[[int], object] = os._exit
    ) -> None:
        self._parts = parts
        self._stop_requested = stop_requested
        self._exit_process = exit_process
        self.is_over = threading.Event()
        self.exit_code = 0

    def start(self) -> None:
        threading.Thread(target=self.limit_stop, name="bound", daemon=True).start()
        threading.Thread(target=self.end_parts, name="end", daemon=True).start()

    def end_parts(self) -> None:
        """Wait for the stop and do it. Celery's own stop comes seconds later, or never with a broker that hangs."""
        from django.db import connections

        self._stop_requested.wait()
        from mcp_runtime.agents import transitions as agent_transitions
        from mcp_runtime.calls import transitions
        from mcp_runtime.rows import lease
        from mcp_runtime.runtime import tasks

        logger.info("stopping: no new calls; members end concurrently")
        parts = self._parts
        parts.wait_for_build()
        try:
            tasks.answer_with(None)
            if parts.gateway is not None:
                parts.gateway.stop_accepting()
            if parts.dispatcher is not None:
                parts.dispatcher.stop_claiming()
            if parts.agents is not None:
                parts.agents.stop()
            parts.supervisor.stop()
            self._stop_members()
            if parts.gateway is not None:
                parts.gateway.stop()
            if parts.dispatcher is not None:
                parts.dispatcher.stop()
            transitions.end_calls_of_lease(parts.lease_id, "the runtime was stopped during the call")
            agent_transitions.end_messages_of_lease(parts.lease_id, "the runtime was stopped while the agent worked")
            parts.lifecycle.kill_everything()
            lease.release(parts.lease_id)
        except Exception:
            logger.exception("the stop failed; the guard ends the remaining processes")
            self.exit_code = self.exit_code or EX_SOFTWARE
        finally:
            connections.close_all()
            self.is_over.set()
        time.sleep(CELERY_GRACE)
        console.flush()
        # Celery still runs, most likely because it waits for a broker. All parts of the runtime have ended.
        self._exit_process(self.exit_code)

    def limit_stop(self) -> None:
        """Wait for the stop, and end the process if the stop hangs."""
        self._stop_requested.wait()
        deadline = time.monotonic() + stop_seconds(len(self._parts.lifecycle.live_members()))
        while (remaining := deadline - time.monotonic()) > 0:
            if guard_is_gone():
                deadline = min(deadline, time.monotonic() + ORPHANED_STOP_BOUND)
            if self.is_over.wait(min(remaining, GUARD_LOOK)):
                return
        self.end_hard()

    def end_hard(self) -> None:
        """Kill the members and end the process, whatever hangs."""
        try:
            self._parts.lifecycle.kill_everything()
            # In a thread, because it may be the log that hangs.
            message = "the stop takes too long; the members are killed, and the next runtime corrects the rows"
            log_thread = threading.Thread(target=_log_last, args=(message,), daemon=True)
            log_thread.start()
            log_thread.join(GUARD_LOOK)
        finally:
            self._exit_process(self.exit_code or EX_SOFTWARE)

    def _stop_members(self) -> None:
        threads = [
            threading.Thread(target=self._stop_member, args=(member.member_id,))
            for member in self._parts.lifecycle.live_members()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _calls_in(self, member_id: int) -> int:
        member = self._parts.lifecycle.live_member(member_id)
        return self._parts.calls_in(member_id) + (member.relayed_calls if member else 0)

    def _stop_member(self, member_id: int) -> None:
        """Stop a member. Its calls may run for CALLS_GRACE, and the process gets the rest of the time."""
        from mcp_runtime.rows.database import unit_of_work

        began_at = time.monotonic()
        while self._calls_in(member_id) and time.monotonic() < began_at + CALLS_GRACE and not guard_is_gone():
            time.sleep(0.02)
        if self._parts.dispatcher is not None:
            self._parts.dispatcher.abandon(member_id)
        timeout = max(STOP_TIMEOUT - (time.monotonic() - began_at), BUSY_STOP_TIMEOUT)
        if guard_is_gone():
            timeout = ORPHANED_STOP_TIMEOUT
        if self._parts.lifecycle.connected_member(member_id) is None:
            self._parts.lifecycle.abort_start(member_id)
        # No sweep, because `kill_everything` does one for all members.
        unit_of_work(partial(self._parts.lifecycle.stop, member_id, cause="runtime stop", timeout=timeout, sweep=False))


def stop_seconds(members: int) -> float:
    """Seconds that a stop may take with this number of live members."""
    return min(STOP_BOUND + STOP_BOUND_OF_MEMBER * members, MAX_STOP_BOUND)


def _log_last(message: str) -> None:
    logger.error(message)
    console.flush()

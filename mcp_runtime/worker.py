"""The runtime's worker: one Celery worker with a thread pool; supervisor, dispatcher and agents' sessions hang
on it as a bootstep.

Started by the guard (`manage.py runtime`), never by hand. Exit code 75: another runtime owns the hall.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import django
from celery import Celery, bootsteps, signals
from celery.exceptions import SecurityWarning
from celery.worker import state

logger = logging.getLogger("guildhall.runtime")

EX_TEMPFAIL = 75  # sysexits.h: try again later
EX_SOFTWARE = 70
EX_UNAVAILABLE = 69
PR_SET_PDEATHSIG = 1
HEARTBEAT_SECONDS = 1.0
PRUNE_SECONDS = 3600.0
# Threads change hands this often (default 5 ms): a relay must not wait for somebody's computing.
SWITCH_INTERVAL = 0.0001

# A stop, from the first signal to the last process gone, stays under five seconds.
CALLS_GRACE = 2.5
BUSY_STOP_TIMEOUT = 0.7
STOP_TIMEOUT = 3.0
CELERY_GRACE = 0.3
# When the guard is gone nobody ends what we leave, and two seconds are all we have: no call is waited for.
ORPHANED_STOP_TIMEOUT = 0.4
# A stop that is not over by then, most likely because the database is away, ends the hard way.
STOP_BOUND = 4.2
ORPHANED_STOP_BOUND = 1.3
GUARD_LOOK = 0.1


class Runtime:
    """Everything of the runtime that is not Celery: lease, lifecycle, supervisor, dispatcher, sessions; and its end."""

    def __init__(self, lease_id: uuid.UUID, gateway_sockets: list[socket.socket]) -> None:
        from django.conf import settings

        from mcp_runtime import lease
        from mcp_runtime.gateway.server import Gateway, Options
        from mcp_runtime.lifecycle import Lifecycle
        from mcp_runtime.supervisor import Supervisor

        self.lease_id = lease_id
        self.exit_code = 0
        self._stop_asked = threading.Event()
        self._stopped = threading.Event()
        self._dispatcher: Any = None
        self._sessions: Any = None
        self._hall_id = lease.hall().hall_id
        self.lifecycle = Lifecycle(
            lease_id=lease_id,
            hall_id=self._hall_id,
            members_dir=settings.GUILD_HALL_MEMBERS_DIR,
            data_dir=settings.GUILD_HALL_DATA_DIR,
            port_range=settings.GUILD_HALL_PORT_RANGE,
            max_result_bytes=settings.GUILD_HALL_MAX_RESULT_BYTES,
            plain_http_hosts=settings.GUILD_HALL_PLAIN_HTTP_HOSTS,
            private=settings.PRIVATE_PLACES,
            on_change=self._member_changed,
            on_lists_changed=lambda member_id: self._gateway.lists_changed(member_id),
        )
        self.supervisor = Supervisor(
            lifecycle=self.lifecycle,
            members_dir=settings.GUILD_HALL_MEMBERS_DIR,
            start_concurrency=settings.GUILD_HALL_START_CONCURRENCY,
        )
        options = Options(
            allowed_hosts=settings.ALLOWED_HOSTS,
            trusted_origins=settings.CSRF_TRUSTED_ORIGINS,
            max_bytes=settings.GUILD_HALL_MAX_RESULT_BYTES,
            record_bytes=settings.GUILD_HALL_RECORD_BYTES,
            data_dir=settings.GUILD_HALL_DATA_DIR,
        )
        self._gateway = Gateway(
            lifecycle=self.lifecycle,
            sockets=gateway_sockets,
            options=options,
            wake_supervisor=self.supervisor.wake,
        )

    def _member_changed(self, member_id: int) -> None:
        self.supervisor.wake()
        self._gateway.member_changed(member_id)
        if self._dispatcher is not None:
            self._dispatcher.member_changed(member_id)

    def _look_everywhere(self) -> None:
        self.supervisor.wake()
        if self._sessions is not None:
            self._sessions.wake()

    # Start --------------------------------------------------------------------------------------------------------

    def start(self, run_in_pool: Callable[..., Any]) -> None:
        """Begin: called by the bootstep when Celery's pool is there."""
        from django.conf import settings

        from mcp_runtime import invocations, sessions, tasks
        from mcp_runtime.dispatcher import Dispatcher
        from mcp_runtime.session_runner import SessionRunner

        # First of all, for what follows may hang as well.
        threading.Thread(target=self._bound_the_stop, name="bound", daemon=True).start()
        self._dispatcher = Dispatcher(
            lease_id=self.lease_id,
            lifecycle=self.lifecycle,
            run_in_pool=run_in_pool,
            concurrency=settings.GUILD_HALL_CONCURRENCY,
            wake_supervisor=self._look_everywhere,
            has_broker=bool(settings.REDIS_URL),
        )
        self._sessions = SessionRunner(
            lease_id=self.lease_id,
            mark=f"{self._hall_id}/{self.lease_id}/",
            directory=settings.GUILD_HALL_DATA_DIR / "agent",
            concurrency=settings.GUILD_HALL_AGENT_CONCURRENCY,
            gateway_port=settings.GUILD_HALL_GATEWAY_PORT,
            has_broker=bool(settings.REDIS_URL),
        )
        self.lifecycle.reset_rows()
        lost = "the runtime ended while it ran; it is not run again by itself"
        invocations.end_lost(self.lease_id, lost)
        sessions.end_lost(self.lease_id, lost)
        tasks.answer_with(self._dispatcher)
        self.supervisor.start()
        self._dispatcher.start()
        self._gateway.start()
        self._sessions.start()
        threading.Thread(target=self._keep_lease, name="lease", daemon=True).start()
        threading.Thread(target=self._keep_house, name="housekeeping", daemon=True).start()
        threading.Thread(target=self._end, name="end", daemon=True).start()

    def _keep_lease(self) -> None:
        """The heartbeat. A lease that is somebody else's now ends this runtime."""
        from django.db import Error, connection

        from mcp_runtime import lease

        while not self._stopped.wait(HEARTBEAT_SECONDS):
            try:
                kept = lease.renew(self.lease_id)  # on a connection that nobody else can take meanwhile
            except Error as error:
                logger.warning("the heartbeat could not be written (%s)", str(error).strip())
                connection.close()
                continue
            if not kept and not self._stop_asked.is_set():
                logger.error("another runtime took this hall; ending the members and exiting")
                self.exit_code = EX_TEMPFAIL
                self.lifecycle.kill_everything()
                os.kill(os.getpid(), signal.SIGTERM)
                return
        connection.close()

    def _keep_house(self) -> None:
        """Every quarter of a minute the calls that ended are summed; once an hour what is older than kept goes."""
        from django.db import Error, connection

        from mcp_runtime import statistics

        next_prune = time.monotonic() + PRUNE_SECONDS
        while not self._stop_asked.wait(statistics.SUM_SECONDS):
            try:
                statistics.sum_up(keep_going=lambda: not self._stop_asked.is_set())
                if time.monotonic() >= next_prune:
                    self._prune()
                    next_prune = time.monotonic() + PRUNE_SECONDS
            except Error as error:
                logger.warning("cannot keep house (%s); trying again", str(error).strip())
            except Exception:
                logger.exception("cannot keep house; trying again")
            connection.close()

    @staticmethod
    def _prune() -> None:
        from django.conf import settings

        from mcp_runtime import invocations, sessions, statistics

        days, keep = settings.GUILD_HALL_KEEP_INVOCATIONS_DAYS, settings.GUILD_HALL_KEEP_INVOCATIONS
        pruned = invocations.prune(days=days, keep=keep)
        invocations.prune_status_changes(days=days)
        sessions.prune(days=days)
        statistics.forget()
        if pruned:
            logger.info("pruned %d finished invocations", pruned)

    # Stop ---------------------------------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        """Called from a signal handler: sets a flag and nothing else."""
        self._stop_asked.set()

    def wait_until_stopped(self) -> None:
        self._stop_asked.set()
        self._stopped.wait()

    def _end(self) -> None:
        """A thread that waits for the stop and does it: Celery's own comes seconds later, or never at a mute broker."""
        from django.db import connections

        from mcp_runtime import invocations, lease, sessions, tasks

        self._stop_asked.wait()
        logger.info("stopping: no new calls; members end side by side")
        try:
            tasks.answer_with(None)
            self._gateway.close_doors()
            self._dispatcher.stop_claiming()
            self._sessions.stop()
            self.supervisor.stop()
            self._stop_members()
            self._gateway.stop()
            self._dispatcher.stop()
            invocations.end_own(self.lease_id, "the runtime was stopped while it ran")
            sessions.end_own(self.lease_id, "the runtime was stopped while it ran")
            self.lifecycle.kill_everything()
            lease.release(self.lease_id)
        except Exception:
            logger.exception("the stop went wrong; the guard ends what is left")
            self.exit_code = self.exit_code or EX_SOFTWARE
        finally:
            connections.close_all()
            self._stopped.set()
        time.sleep(CELERY_GRACE)
        os._exit(self.exit_code)  # Celery hangs, most likely in a broker that says nothing; nothing of ours is left

    def _bound_the_stop(self) -> None:
        """A thread that sees to it that a stop has an end, wherever it hangs."""
        self._stop_asked.wait()
        deadline = time.monotonic() + STOP_BOUND
        while (left := deadline - time.monotonic()) > 0:
            if guard_is_gone():
                deadline = min(deadline, time.monotonic() + ORPHANED_STOP_BOUND)
            if self._stopped.wait(min(left, GUARD_LOOK)):
                return
        self._end_hard()

    def _end_hard(self) -> None:
        try:
            self.lifecycle.kill_everything()
            # Said in a thread, for it may be the log that hangs.
            said = "the stop takes too long; the members are killed, and the next runtime puts the rows in order"
            saying = threading.Thread(target=logger.error, args=(said,), daemon=True)
            saying.start()
            saying.join(GUARD_LOOK)
        finally:
            os._exit(self.exit_code or EX_SOFTWARE)

    def _stop_members(self) -> None:
        threads = [
            threading.Thread(target=self._stop_member, args=(live.member_id,)) for live in self.lifecycle.live_members()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _calls_in(self, member_id: int) -> int:
        live = self.lifecycle.connected(member_id)
        queued: int = self._dispatcher.calls_in(member_id)
        return queued + (live.relayed if live else 0)

    def _stop_member(self, member_id: int) -> None:
        """Running calls get a while, then they are cancelled; the longer they took, the shorter the farewell."""
        from mcp_runtime.database import unit_of_work

        began = time.monotonic()
        while self._calls_in(member_id) and time.monotonic() < began + CALLS_GRACE and not guard_is_gone():
            time.sleep(0.02)
        self._dispatcher.abandon(member_id)
        timeout = max(STOP_TIMEOUT - (time.monotonic() - began), BUSY_STOP_TIMEOUT)
        if guard_is_gone():
            timeout = ORPHANED_STOP_TIMEOUT
        if self.lifecycle.connected(member_id) is None:
            self.lifecycle.abort_start(member_id)
        # `kill_everything` sweeps for all of them.
        unit_of_work(partial(self.lifecycle.stop, member_id, cause="runtime stop", timeout=timeout, sweep=False))


class RuntimeStep(bootsteps.StartStopStep):
    """Hangs the runtime on the worker, after its pool and before its consumer."""

    requires = ("celery.worker.components:Pool",)
    runtime: Runtime

    def start(self, worker: Any) -> None:
        # In place of Celery's handler, which prints: same effect, and our own stop begins at once, not 3 s later.
        signal.signal(signal.SIGTERM, self._on_sigterm)
        self.runtime.start(worker.pool.apply_async)
        # The garbage collector would hold the interpreter for 40 ms each time it walked through all that is there now.
        gc.freeze()

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        state.should_stop = os.EX_OK  # type: ignore[assignment]
        self.runtime.ask_to_stop()

    def stop(self, worker: Any) -> None:
        self.runtime.wait_until_stopped()


def guard_is_gone() -> bool:
    """Whether our parent is another than the guard that started us."""
    return os.environ.get("GUILD_HALL_GUARD_PID") not in (None, str(os.getppid()))


def end_with_parent() -> None:
    """SIGTERM to us when the guard dies (Linux). A parent that died before the call left us to init already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if guard_is_gone():
        sys.exit(EX_SOFTWARE)


def run() -> int:
    """Take the lease, build the worker, run it to its end; the exit code."""
    from django.conf import settings

    from mcp_runtime import control, lease, listeners
    from mcp_runtime.errors import AddressTakenError, LeaseError

    try:
        lease_id = lease.take()
    except LeaseError as error:
        logger.error("%s", error)
        return EX_TEMPFAIL
    try:
        # Before the worker is built: a bootstep that fails leaves those before it running.
        host, port = settings.GUILD_HALL_HOST, settings.GUILD_HALL_GATEWAY_PORT
        sockets = listeners.take_over() or listeners.bind(host, port)
    except AddressTakenError as error:
        logger.error("%s", error)
        lease.release(lease_id)
        return EX_UNAVAILABLE
    runtime = Runtime(lease_id, sockets)
    RuntimeStep.runtime = runtime
    app: Celery[Any] = control.bell()
    app.steps["worker"].add(RuntimeStep)
    # Django has set logging up; with a listener here Celery leaves it alone.
    signals.setup_logging.connect(lambda **_: None, weak=False)
    # Root is for the operator to avoid; messages here carry nothing that could be abused.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    worker = app.Worker(
        pool="threads",
        concurrency=_concurrency(),
        queues=[control.queue_name()],
        hostname=f"guildhall-{os.getpid()}@%h",
        loglevel="WARNING",
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        quiet=True,
    )
    worker.start()
    return runtime.exit_code or int(worker.exitcode or 0)


def _concurrency() -> int:
    from django.conf import settings

    return int(settings.GUILD_HALL_CONCURRENCY)


def main() -> int:
    end_with_parent()
    sys.setswitchinterval(SWITCH_INTERVAL)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "guildhall.settings")
    # `manage.py` ran the checks; here they would import every view, for a third of the memory.
    os.environ["CELERY_SKIP_CHECKS"] = "1"
    django.setup()
    try:
        return run()
    finally:
        gc.freeze()  # as in manage.py: its end is quicker


if __name__ == "__main__":
    # Under its own name: bootsteps and tasks import this module again, and there must be one of it.
    from mcp_runtime import worker

    sys.exit(worker.main())

"""The runtime's parent: whatever ends the worker, SIGKILL included, nothing that it started outlives it.

Small and standard library only, for it must not fail. As subreaper (Linux) it becomes the parent of every process
whose own parent died, members' grandchildren in sessions of their own included; when the worker is gone, all that is
left is ours to kill and reap. `manage.py up` is a subreaper as well, for the case that guard and worker die together.
macOS has no subreaper: there only the worker's own sweep by environment tag remains.

Memory counts, for it is there as long as the hall: what it needs now and then alone is imported then.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Collection
from types import FrameType

PR_SET_CHILD_SUBREAPER = 36
PR_SET_PDEATHSIG = 1
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Isolated, for it imports nothing but Python's own; and not by -m, which takes a megabyte.
COMMAND = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
WORKER = [sys.executable, "-m", "mcp_runtime.runtime.worker"]
SWEEP_INTERVAL = 0.005
SWEEP_SECONDS = 5.0  # at most; a process in the kernel's hands may not end even then
# From the death of `manage.py up` to the worker's, which is asked to end meanwhile: nobody else is left to see to it.
ORPHANED_SECONDS = 1.0


def become_subreaper() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> int:
    """`manage.py up` asks for this, with its pid: SIGTERM to us when it dies. It may have died before we asked.

    Returns the pid, or 0 when nobody asked or the system has no such signal.
    """
    parent = int(os.environ.pop("GUILD_HALL_END_WITH_PARENT", "") or 0)
    if not parent or sys.platform != "linux":
        return 0
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        end_descendants()  # a forked worker
        sys.exit(1)
    return parent


def forked_worker_pid() -> int:
    """The pid of a worker that became our child before we were this program (see `warm`), else 0."""
    return int(os.environ.pop("GUILD_HALL_WORKER_PID", "0"))


def inherited_sockets() -> list[int]:
    """The gateway's sockets, which `manage.py up` keeps over our end; see mcp_runtime/http1/listeners.py."""
    return [int(number) for number in os.environ.get("GUILD_HALL_GATEWAY_SOCKETS", "").split(",") if number]


class Guard:
    """Runs `argv` as its one child. `run()` returns the exit code when the child and all it left are gone.

    It does not outlive `parent`, a pid, by more than ORPHANED_SECONDS. `worker_pid` is of one that runs already.
    """

    def __init__(self, argv: list[str], parent: int = 0, worker_pid: int = 0) -> None:
        self._argv = argv
        self._parent = parent
        self._signal_count = 0
        self._worker_pid = worker_pid

    def run(self) -> int:
        become_subreaper()
        # Children of the script that became us, perhaps a `tee` for its output.
        strangers = set(children()) - {self._worker_pid}
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGALRM, lambda *_: self._tell_worker(signal.SIGKILL))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # blocked by who became us
        if not self._worker_pid:
            self._start_worker()
        status = self._reap_until_worker_ends(strangers)
        end_descendants(spare=strangers)
        return status

    def _start_worker(self) -> None:
        import subprocess  # not for a worker that runs already

        environment = {**os.environ, "GUILD_HALL_GUARD_PID": str(os.getpid())}
        # A session of its own: the terminal's Ctrl-C reaches us alone, and we pass on one SIGTERM.
        worker = subprocess.Popen(self._argv, env=environment, start_new_session=True, pass_fds=inherited_sockets())
        self._worker_pid = worker.pid
        self._unreaped = worker  # one that is forgotten while it ends would be reaped then, and we never hear of it
        for descriptor in inherited_sockets():
            os.close(descriptor)  # clients wait there as long as the worker accepts, or up will start another
        if self._signal_count:  # one that came before there was anybody to tell
            self._pass_on()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP and self._signal_count:
            return  # a terminal that closes sends it more than once: that is no second Ctrl-C
        self._signal_count += 1
        if self._worker_pid:
            self._pass_on()

    def _pass_on(self) -> None:
        """The first signal asks, the second one kills."""
        self._tell_worker(signal.SIGTERM if self._signal_count == 1 else signal.SIGKILL)
        if self._parent and os.getppid() != self._parent:
            signal.setitimer(signal.ITIMER_REAL, ORPHANED_SECONDS)

    def _tell_worker(self, number: signal.Signals) -> None:
        """It is not reaped yet, so its pid is its own."""
        if self._worker_pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._worker_pid, number)

    def _reap_until_worker_ends(self, strangers: set[int]) -> int:
        while True:
            pid, status = os.waitpid(-1, 0)  # adopted zombies come by here too
            strangers.discard(pid)  # from now on the number may be another's
            if pid == self._worker_pid:
                self._worker_pid = 0
                return os.waitstatus_to_exitcode(status)


def end_descendants(spare: Collection[int] = ()) -> None:
    """SIGKILL and reap our children until none is left but those to spare, or for SWEEP_SECONDS.

    The children of the killed become ours in turn.
    """
    deadline = time.monotonic() + SWEEP_SECONDS
    while end_children(spare) and time.monotonic() < deadline:
        time.sleep(SWEEP_INTERVAL)


def end_children(spare: Collection[int] = (), is_target: Callable[[int], bool] = lambda pid: True) -> bool:
    """SIGKILL our children that `is_target` selects, and reap all that ended, except those to spare.

    Returns whether to look again, because the children of one that ended may be ours now. Those that took another
    user (sudo) are not ours to kill.
    """
    look_again = False
    for pid in children():
        if pid in spare:
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if is_target(pid):
                os.kill(pid, signal.SIGKILL)
                look_again = True
        with contextlib.suppress(ChildProcessError):
            look_again = os.waitpid(pid, os.WNOHANG)[0] == pid or look_again
    return look_again


def children() -> list[int]:
    """Our children's pids. Only zombies and the living of our own: never a reused pid."""
    if sys.platform != "linux":
        return []
    pids = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
            # The name in parentheses may hold anything, parentheses too.
            fields = file.read().rpartition(b")")[2].split()
            if int(fields[1]) == os.getpid():
                pids.append(int(name))
    return pids


def main() -> int:
    code = Guard(WORKER, end_with_parent(), forked_worker_pid()).run()
    # 128 + n, as shells say it: a process cannot end with a negative code.
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())

"""The runtime's parent. Nothing that the worker started outlives it, even if the worker is killed with SIGKILL.

The guard is small and uses only the standard library, because it must not fail. It is a subreaper (Linux), so it
becomes the parent of every process whose own parent died. That includes members' grandchildren in other sessions. After
the end of the worker it kills and reaps all remaining processes. `manage.py up` is a subreaper too, in case guard and
worker die together. macOS has no subreaper. There only the worker's own sweep by environment tag remains.

Memory counts, because the guard runs as long as the hall. It imports modules that it needs rarely only on use.
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
# Isolated, because it imports only the standard library. Not by -m, which takes a megabyte.
COMMAND = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
WORKER = [sys.executable, "-m", "mcp_runtime.runtime.worker"]
SWEEP_INTERVAL = 0.005
SWEEP_SECONDS = 5.0  # at most. A process that hangs in the kernel may not end even then
# After the death of `manage.py up` the worker gets SIGTERM, and this much later SIGKILL.
ORPHANED_SECONDS = 1.0


def become_subreaper() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> int:
    """Get SIGTERM when `manage.py up` dies, if it has set the variable with its pid. Exit if it has died before.

    Returns the pid. Returns 0 without the variable, or if the system has no such signal.
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
    """The pid of a worker that was forked before this process became the guard (see `warm`), or 0."""
    return int(os.environ.pop("GUILD_HALL_WORKER_PID", "0"))


def inherited_sockets() -> list[int]:
    """The gateway's sockets. In `manage.py up` they stay open when the guard ends (mcp_runtime/http1/listeners.py)."""
    return [int(number) for number in os.environ.get("GUILD_HALL_GATEWAY_SOCKETS", "").split(",") if number]


class Guard:
    """Runs `argv` as its only child. `run()` returns its exit code after the child and all its descendants have ended.

    It does not outlive `parent`, a pid, by more than ORPHANED_SECONDS. `worker_pid` is a worker that runs already.
    """

    def __init__(self, argv: list[str], parent: int = 0, worker_pid: int = 0) -> None:
        self._argv = argv
        self._parent = parent
        self._signal_count = 0
        self._worker_pid = worker_pid

    def run(self) -> int:
        become_subreaper()
        # Children of the script that became this process, perhaps a `tee` for its output.
        strangers = set(children()) - {self._worker_pid}
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGALRM, lambda *_: self._signal_worker(signal.SIGKILL))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # `warm` has blocked them
        if not self._worker_pid:
            self._start_worker()
        status = self._reap_until_worker_ends(strangers)
        end_descendants(spare=strangers)
        return status

    def _start_worker(self) -> None:
        import subprocess  # not needed for a worker that runs already

        environment = {**os.environ, "GUILD_HALL_GUARD_PID": str(os.getpid())}
        # In a separate session, so that the terminal's Ctrl-C reaches only the guard, which passes on one SIGTERM.
        worker = subprocess.Popen(self._argv, env=environment, start_new_session=True, pass_fds=inherited_sockets())
        self._worker_pid = worker.pid
        self._unreaped = worker  # without a reference `subprocess` may reap it, and the guard would not see its end
        for descriptor in inherited_sockets():
            os.close(descriptor)  # the worker accepts there, and `up` has the sockets for its successor
        if self._signal_count:  # a signal that came before the worker started
            self._pass_on()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP and self._signal_count:
            return  # a terminal that closes sends it more than once, which does not count as a second Ctrl-C
        self._signal_count += 1
        if self._worker_pid:
            self._pass_on()

    def _pass_on(self) -> None:
        """Pass the first signal on as SIGTERM, and the second one as SIGKILL."""
        self._signal_worker(signal.SIGTERM if self._signal_count == 1 else signal.SIGKILL)
        if self._parent and os.getppid() != self._parent:
            signal.setitimer(signal.ITIMER_REAL, ORPHANED_SECONDS)

    def _signal_worker(self, number: signal.Signals) -> None:
        """Send a signal to the worker. It is not reaped yet, so no other process can have its pid."""
        if self._worker_pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._worker_pid, number)

    def _reap_until_worker_ends(self, strangers: set[int]) -> int:
        while True:
            pid, status = os.waitpid(-1, 0)  # this reaps adopted zombies too
            strangers.discard(pid)  # from now on another process may get this pid
            if pid == self._worker_pid:
                self._worker_pid = 0
                return os.waitstatus_to_exitcode(status)


def end_descendants(spare: Collection[int] = ()) -> None:
    """Kill and reap all children except those in `spare`, for at most SWEEP_SECONDS.

    The children of a killed process become children of this process, and are killed too.
    """
    deadline = time.monotonic() + SWEEP_SECONDS
    while end_children(spare) and time.monotonic() < deadline:
        time.sleep(SWEEP_INTERVAL)


def end_children(spare: Collection[int] = (), is_target: Callable[[int], bool] = lambda pid: True) -> bool:
    """Kill the children that `is_target` selects, and reap all that ended, except those in `spare`.

    Returns whether to look again, because the children of an ended child may be children of this process now. Children
    that run as another user (sudo) cannot be killed.
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
    """The pids of this process's children, including zombies. Never a reused pid."""
    if sys.platform != "linux":
        return []
    pids = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
            # The name in parentheses may contain any character, even parentheses.
            fields = file.read().rpartition(b")")[2].split()
            if int(fields[1]) == os.getpid():
                pids.append(int(name))
    return pids


def main() -> int:
    code = Guard(WORKER, end_with_parent(), forked_worker_pid()).run()
    # 128 + n as in shells, because an exit code cannot be negative.
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())

"""The runtime's parent. Nothing that the worker started outlives it, even if the worker is killed with SIGKILL.

The guard is small and uses only the standard library, because it must not fail. It is a subreaper (Linux), so it
becomes the parent of every process whose own parent died. That includes members' grandchildren in other sessions. After
the end of the worker it kills and reaps all remaining processes. `manage.py up` is a subreaper too, in case guard and
worker die together. macOS has no subreaper. There only the worker's own sweep by environment tag remains.

The guard also contains the fence, for halls with more than one node. Another node may start the members of a node that
renews its lease no more. So the guard ends the worker and all members before that, even if the worker hangs.

Memory counts, because the guard runs as long as the hall. It imports modules that it needs rarely only on use.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
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
# The kernel sends the signal for the death of the parent once for each of its threads. So a second signal kills the
# worker only if the parent is alive a moment later.
DOUBT_SECONDS = 0.05
# The fence strikes this long after the worker sent its last successful renewal of the lease.
FENCE_SECONDS = 5.0
LOOK_SECONDS = 0.25  # at most, between two looks at the times of the worker
# The file that guard and worker share. The worker writes the moment of its renewal, and the guard its own state.
RENEWAL, STATE = struct.Struct("d"), struct.Struct("B")
STATE_OFFSET = RENEWAL.size
READY, WATCHING = 1, 2  # states. The guard has a handler for FENCE_SIGNAL only when it is ready
FENCE_SIGNAL = signal.SIGUSR1
# The exit code after the fence struck (EX_IOERR of sysexits.h). `manage.py up` always starts the runtime again.
EX_FENCED = 74


def guard_is_gone() -> bool:
    """Whether the guard that started this process is not its parent any more."""
    return os.environ.get("GUILD_HALL_GUARD_PID") not in (None, str(os.getppid()))


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


def boot_time() -> float:
    """Seconds of a clock that no one sets, and that runs while the machine sleeps, if the system has one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def create_fence_file() -> int:
    """The descriptor of the file that guard and worker share. It has no name. -1 if the system refuses it."""
    try:
        descriptor = _create_unnamed_file()
        os.ftruncate(descriptor, STATE_OFFSET + STATE.size)  # all zeros, so that there is always a value to read
    except OSError:
        return -1
    return descriptor


def _create_unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):
            return os.memfd_create("guild-hall-fence")
    import tempfile

    descriptor, path = tempfile.mkstemp(prefix="guild-hall-fence-")
    os.unlink(path)
    return descriptor


def inherited_fence_file() -> int:
    """The descriptor that `warm` created, because its worker is older than the guard. -1 without one."""
    return int(os.environ.pop("GUILD_HALL_FENCE", "-1"))


class Fence:
    """The guard's side of the fence. It costs nothing until the worker turns it on (see the module `fence`)."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.is_on = False

    def write_state(self, state: int) -> None:
        with contextlib.suppress(OSError):  # without a file, or if there is no memory. The worker asks again
            os.pwrite(self.descriptor, STATE.pack(state), STATE_OFFSET)

    def turn_on(self) -> None:
        self.is_on = self.descriptor >= 0
        self.write_state(WATCHING)

    @property
    def has_renewal(self) -> bool:
        return self._renewal_sent_at() > 0

    def seconds_left(self) -> float:
        """Seconds until the fence strikes, unless the worker renews its lease."""
        return self._renewal_sent_at() + FENCE_SECONDS - boot_time() if self.is_on else float("inf")

    def _renewal_sent_at(self) -> float:
        """The moment of the worker's last renewal. 0 without one."""
        with contextlib.suppress(OSError, struct.error):
            return float(RENEWAL.unpack(os.pread(self.descriptor, RENEWAL.size, 0))[0])
        return 0.0


class Guard:
    """Runs `argv` as its only child. `run()` returns its exit code after the child and all its descendants have ended.

    It does not outlive `parent`, a pid, by more than ORPHANED_SECONDS. `worker_pid` is a worker that runs already, and
    `fence_file` the descriptor of the file that they share. After a strike of the fence, `run()` returns EX_FENCED.
    """

    def __init__(self, argv: list[str], parent: int = 0, worker_pid: int = 0, fence_file: int = -1) -> None:
        self._argv = argv
        self._parent = parent
        self._signal_count = 0
        self._worker_pid = worker_pid
        # By the monotonic clock: the first look without the parent, and when a second signal kills the worker.
        self._orphaned_at = self._second_signal_at = float("inf")
        self._fence = Fence(fence_file if worker_pid else create_fence_file())
        self._is_fenced = False
        self._strangers: set[int] = set()

    def run(self) -> int:
        become_subreaper()
        # Children of the script that became this process, perhaps a `tee` for its output.
        self._strangers = set(children()) - {self._worker_pid}
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGALRM, lambda *_: self._look())
        signal.signal(FENCE_SIGNAL, self._on_fence_signal)
        self._fence.write_state(READY)
        # `warm` has blocked the stop signals, and any program before it may have blocked the others.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*STOP_SIGNALS, signal.SIGALRM, FENCE_SIGNAL))
        if not self._worker_pid:
            self._start_worker()
        status = self._reap_until_worker_ends()
        signal.setitimer(signal.ITIMER_REAL, 0)
        end_descendants(spare=self._strangers)
        return EX_FENCED if self._is_fenced else status

    def _start_worker(self) -> None:
        import subprocess  # not needed for a worker that runs already

        environment = {**os.environ, "GUILD_HALL_GUARD_PID": str(os.getpid())}
        descriptors = inherited_sockets()
        if self._fence.descriptor >= 0:
            environment["GUILD_HALL_FENCE"] = str(self._fence.descriptor)
            descriptors.append(self._fence.descriptor)
        # In a separate session, so that the terminal's Ctrl-C reaches only the guard, which passes on one SIGTERM.
        worker = subprocess.Popen(self._argv, env=environment, start_new_session=True, pass_fds=descriptors)
        self._worker_pid = worker.pid
        self._unreaped = worker  # without a reference `subprocess` may reap it, and the guard would not see its end
        for descriptor in inherited_sockets():
            os.close(descriptor)  # the worker accepts there, and `up` has the sockets for its successor
        if self._signal_count:  # a signal that came before the worker started
            self._pass_on(is_first=self._signal_count == 1)
        if self._fence.is_on:  # a worker that was faster than this process
            self._look()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP and self._signal_count:
            return  # a terminal that closes sends it more than once, which does not count as a second Ctrl-C
        is_first = not self._signal_count  # now, because another signal may interrupt this function at any line
        self._signal_count += 1
        if self._worker_pid:
            self._pass_on(is_first=is_first)

    def _pass_on(self, *, is_first: bool) -> None:
        """Pass the first signal on as SIGTERM, and the second one as SIGKILL."""
        if is_first:
            self._signal_worker(signal.SIGTERM)
        else:
            doubt = DOUBT_SECONDS if self._parent else 0.0
            self._second_signal_at = min(self._second_signal_at, time.monotonic() + doubt)
        self._look()

    def _on_fence_signal(self, number: int, frame: FrameType | None) -> None:
        if self._fence.has_renewal:  # otherwise the signal is from a stranger
            self._fence.turn_on()
            self._look()

    def _look(self) -> None:
        """Kill the worker if one of its times is over. Otherwise look again when the first one is, or sooner.

        The timer repeats, because a signal just before a `waitpid` does not interrupt it, and its handler has to wait.
        """
        if not self._worker_pid:
            return
        now = time.monotonic()
        if self._signal_count and self._parent and os.getppid() != self._parent:
            self._orphaned_at = min(self._orphaned_at, now)
            self._second_signal_at = float("inf")
        overdue = min(self._orphaned_at + ORPHANED_SECONDS, self._second_signal_at) - now
        fenced = self._fence.seconds_left()
        if overdue <= 0:
            self._signal_worker(signal.SIGKILL)
        if fenced <= 0:
            self._strike()
        next_look = min(seconds for seconds in (overdue, fenced, LOOK_SECONDS) if seconds > 0)
        signal.setitimer(signal.ITIMER_REAL, next_look, LOOK_SECONDS)

    def _strike(self) -> None:
        """Kill the worker and all its descendants. Not one after the other, because the worker may hang in the kernel.

        Until the worker has ended, each look repeats it. After that, `end_descendants` does.
        """
        signal.setitimer(signal.ITIMER_REAL, 0)  # no other look meanwhile
        self._signal_worker(signal.SIGKILL)
        kill_descendants(spare=self._strangers)
        if not self._is_fenced:
            self._is_fenced = True
            next_step = "" if self._signal_count else "; the runtime must start again, and waits for the database then"
            write_error(
                f"the database accepted no heartbeat of this node for {FENCE_SECONDS:g} s, so another node may run its "
                f"members now. Ended the runtime and its members{next_step}. Check that this node can reach the "
                "database, and that nothing suspended the worker."
            )

    def _signal_worker(self, number: signal.Signals) -> None:
        """Send a signal to the worker. It is not reaped yet, so no other process can have its pid."""
        if self._worker_pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._worker_pid, number)

    def _reap_until_worker_ends(self) -> int:
        while True:
            pid, status = os.waitpid(-1, 0)  # this reaps adopted zombies too
            self._strangers.discard(pid)  # from now on another process may get this pid
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


def kill_descendants(spare: Collection[int] = ()) -> None:
    """Kill all descendants except those in `spare` and their descendants. Reaps none. For at most SWEEP_SECONDS.

    Looks again until it finds no more, because processes may start others until they are killed.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + SWEEP_SECONDS
    while (remaining := descendants(spare) - killed) and time.monotonic() < deadline:
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= remaining


def descendants(spare: Collection[int] = ()) -> set[int]:
    """The pids of the children of this process, of their children, and so on, without `spare` and their descendants."""
    children_of: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children_of.setdefault(parent, []).append(pid)
    pids: set[int] = set()
    parents_left = [os.getpid()]
    while parents_left:
        found = [pid for pid in children_of.pop(parents_left.pop(), ()) if pid not in spare]
        pids.update(found)
        parents_left += found
    return pids


def children() -> list[int]:
    """The pids of this process's children, including zombies. Never a reused pid."""
    return [pid for pid, parent in parents().items() if parent == os.getpid()]


def parents() -> dict[int, int]:
    """The pid of the parent of each process. Empty on systems without Linux's /proc."""
    if sys.platform != "linux":
        return {}
    pids = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
            # The name in parentheses may contain any character, even parentheses.
            pids[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    return pids


def write_error(text: str) -> None:
    """Write a line to stderr, unless nobody reads it. A console that is full must not stop the guard."""
    import select

    with contextlib.suppress(OSError, ValueError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, f"{time.strftime('%H:%M:%S')} {'guard':<14} | error: {text}\n".encode())  # as in `console`


def main() -> int:
    code = Guard(WORKER, end_with_parent(), forked_worker_pid(), inherited_fence_file()).run()
    # 128 + n as in shells, because an exit code cannot be negative.
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())

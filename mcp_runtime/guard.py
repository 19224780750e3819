"""The runtime's parent: whatever ends the worker, SIGKILL included, nothing that it started outlives it.

Small and standard library only, for it must not fail. As subreaper (Linux) it becomes the parent of every process
whose own parent died, members' grandchildren in sessions of their own included; when the worker is gone, all that is
left is ours to kill and reap. macOS has no subreaper: there the worker's own sweep by mark is all.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

PR_SET_CHILD_SUBREAPER = 36
PR_SET_PDEATHSIG = 1
WORKER = [sys.executable, "-m", "mcp_runtime.worker"]
SWEEP_INTERVAL = 0.005


def become_subreaper() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """`manage.py up` asks for this, with its pid: SIGTERM to us when it dies. It may have died before we asked."""
    parent = os.environ.pop("GUILD_HALL_END_WITH_PARENT", "")
    if parent and sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):
            sys.exit(1)


def handed_down() -> list[int]:
    """The gateway's sockets, which `manage.py up` keeps over our end; see mcp_runtime/listeners.py."""
    return [int(number) for number in os.environ.get("GUILD_HALL_GATEWAY_SOCKETS", "").split(",") if number]


class Guard:
    """Runs `argv` as its one child. `run()` returns the exit code when the child and all it left are gone."""

    def __init__(self, argv: list[str]) -> None:
        self._argv = argv
        self._signals_seen = 0
        self._worker_pid = 0

    def run(self) -> int:
        become_subreaper()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        environment = {**os.environ, "GUILD_HALL_GUARD_PID": str(os.getpid())}
        # A session of its own: the terminal's Ctrl-C reaches us alone, and we pass on one SIGTERM.
        worker = subprocess.Popen(self._argv, env=environment, start_new_session=True, pass_fds=handed_down())
        self._worker_pid = worker.pid
        if self._signals_seen:  # one that came before there was anybody to tell
            self._pass_on()
        status = self._reap_until_worker_ends()
        end_descendants()
        return status

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP and self._signals_seen:
            return  # a terminal that closes sends it more than once: that is no second Ctrl-C
        self._signals_seen += 1
        if self._worker_pid:
            self._pass_on()

    def _pass_on(self) -> None:
        """The first signal asks, the second one kills. The worker is not reaped yet, so its pid is its own."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._worker_pid, signal.SIGTERM if self._signals_seen == 1 else signal.SIGKILL)

    def _reap_until_worker_ends(self) -> int:
        while True:
            pid, status = os.waitpid(-1, 0)  # adopted zombies come by here too
            if pid == self._worker_pid:
                self._worker_pid = 0
                return os.waitstatus_to_exitcode(status)


def end_descendants() -> None:
    """SIGKILL and reap our children until none is left; the children of the killed become ours in turn."""
    while True:
        for pid in children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(SWEEP_INTERVAL)


def children() -> list[int]:
    """Our children's pids. Only zombies and the living of our own: never a reused pid."""
    if sys.platform != "linux":
        return []
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name in parentheses may hold anything, parentheses too.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(fields[1]) == os.getpid():
                    found.append(int(entry.name))
    return found


def main() -> int:
    end_with_parent()
    code = Guard(WORKER).run()
    # 128 + n, as shells say it: a process cannot end with a negative code.
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())

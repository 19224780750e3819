"""One member's process: spawn it, drain what it writes, notice its end, stop its whole group. The OS and nothing else.

Every process of a member carries MARK_VARIABLE in its environment: what left the process group is found by it, and a
pid is never trusted alone.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import logging.handlers
import math
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

import psutil

from mcp_runtime import logs
from mcp_runtime.errors import SpawnError

MARK_VARIABLE = "GUILD_HALL_MEMBER"
# What a child gets of our environment; never our settings, keys or addresses.
INHERITED = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"),
    )
)
STOP_TIMEOUT = 3.0  # seconds from SIGTERM to SIGKILL
REAP_TIMEOUT = 5.0  # a killed process is gone in milliseconds, unless the kernel holds it
REAP_INTERVAL = 0.005
DRAIN_TIMEOUT = 0.05  # what a dead member wrote last is in the pipe already
# Who else holds the pipe, a process that got away, is heard this long after the exit, at most twice as long.
DRAIN_AFTER_EXIT = 2.0

TAIL_LINES = 20
MAX_LINE = 4000
LOG_BYTES = 1_000_000
READ_BYTES = 65_536
# A flood is slowed at its source: beyond this the member waits in its own write(). Each line costs as much as so many
# bytes: empty ones are dear too.
BYTES_PER_SECOND = 2_000_000
LINE_COST = 500
CONSOLE_LINES_PER_SECOND = 50


class MemberLog:
    """What a member writes: to the console with its name, to a bounded rotating file, and the last lines kept."""

    def __init__(self, name: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._name = name
        self._console = logging.getLogger(f"guildhall.member.{name}")
        self._file = logging.handlers.RotatingFileHandler(
            path, maxBytes=LOG_BYTES, backupCount=logs.BACKUPS, encoding="utf-8", errors="replace", delay=True
        )
        self._file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self._second = 0
        self._shown = 0

    def write(self, text: str) -> None:
        clean = logs.plain(text)
        self._tail.append(clean)
        self._file.handle(logging.makeLogRecord({"msg": clean}))
        self._show(clean)

    def _show(self, text: str) -> None:
        second = int(time.monotonic())
        if second != self._second:
            if self._shown > CONSOLE_LINES_PER_SECOND:
                hidden = self._shown - CONSOLE_LINES_PER_SECOND
                self._console.info("… %d more lines: manage.py logs %s", hidden, self._name)
            self._second, self._shown = second, 0
        self._shown += 1
        if self._shown <= CONSOLE_LINES_PER_SECOND:
            self._console.info("%s", text)

    def tail(self) -> str:
        return "\n".join(list(self._tail))

    def last_line(self) -> str:
        return next((line for line in reversed(list(self._tail)) if line.strip()), "").strip()

    def close(self) -> None:
        self._file.close()


def child_environment(own: Mapping[str, str], mark: str) -> dict[str, str]:
    """The allow-listed part of our environment, the member's `own` variables, and its mark."""
    inherited = {name: value for name, value in os.environ.items() if name in INHERITED}
    return {**inherited, **own, MARK_VARIABLE: mark}


def user_umask() -> int:
    """The umask that the hall was started with, for what it starts in turn; its own is private (see the settings)."""
    return int(os.environ.get("GUILD_HALL_USER_UMASK", "-1"), 8)  # -1: as ours


class MemberProcess:
    """A running server process, leader of a session and process group of its own."""

    def __init__(self, popen: subprocess.Popen[bytes], log: MemberLog, mark: str) -> None:
        self._popen = popen
        self._log = log
        self._signal_lock = threading.Lock()
        self._reaped = False
        self._second = 0.0
        self._taken = 0
        self._hurry = threading.Event()
        self._drainer = threading.Thread(
            target=self._drain, args=(popen.stdout,), name=f"drain-{popen.pid}", daemon=True
        )
        self.pid = popen.pid
        self.mark = mark
        self.spawned_at = time.monotonic()
        self.exited = threading.Event()
        self.exit_code: int | None = None

    @classmethod
    def spawn(
        cls,
        argv: list[str],
        *,
        directory: Path,
        environment: dict[str, str],
        log: MemberLog,
        on_exit: Callable[[MemberProcess], None],
    ) -> MemberProcess:
        """Start `argv` in `directory` (REQ-MCP-HTTP-11). Raises SpawnError (REQ-MCP-HTTP-40).

        `on_exit` is called once, from a thread of its own, after the end; what is left of the group is dead by then.
        """
        if not directory.is_dir():
            raise SpawnError(f"its folder {directory} is gone")
        try:
            popen = subprocess.Popen(
                argv,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=user_umask(),
            )
        except FileNotFoundError as error:
            raise SpawnError(f"command not found: {argv[0]!r}") from error
        except PermissionError as error:
            raise SpawnError(f"permission denied: {argv[0]!r} is not executable") from error
        except (OSError, ValueError) as error:
            raise SpawnError(f"command {argv[0]!r} cannot be started: {error}") from error
        process = cls(popen, log, environment[MARK_VARIABLE])
        process._drainer.start()
        threading.Thread(target=process._watch, args=(on_exit,), name=f"watch-{popen.pid}", daemon=True).start()
        return process

    def tail(self) -> str:
        """The last lines it wrote."""
        return self._log.tail()

    def last_line(self) -> str:
        """The last line it wrote that is not blank."""
        return self._log.last_line()

    @property
    def is_over(self) -> bool:
        """Whether it ended, as the OS knows: sooner than `exited`, which waits for its last words."""
        if self._reaped or self.exited.is_set():
            return True
        if not hasattr(os, "waitid"):
            return False
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # reaped in this moment
            return True

    # Watching -----------------------------------------------------------------------------------------------------

    def _watch(self, on_exit: Callable[[MemberProcess], None]) -> None:
        if not hasattr(os, "waitid"):
            self._popen.wait()  # an older macOS: the mark alone finds what is left of the group
            self._reaped = True
        else:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._signal_lock:
            if not self._reaped:
                # The zombie keeps pid and group from being reused until the rest of the group is killed.
                self._signal_group(signal.SIGKILL)
            self.exit_code = self._popen.wait()
            self._reaped = True
        self._hurry.set()
        self._drainer.join(DRAIN_TIMEOUT)
        self.exited.set()
        on_exit(self)

    def _drain(self, output: IO[bytes]) -> None:
        rest = b""
        for chunk in self._chunks(output.fileno()):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._write(line)
            while len(rest) > MAX_LINE:
                self._write(rest[:MAX_LINE])
                rest = rest[MAX_LINE:]
        if rest:
            self._write(rest)
        output.close()
        self._log.close()

    def _chunks(self, descriptor: int) -> Iterator[bytes]:
        """What it writes, until nobody holds the other end any more, or its exit is long past."""
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        deadline = math.inf
        while time.monotonic() < deadline:
            if poll.poll(DRAIN_AFTER_EXIT * 1000):
                chunk = os.read(descriptor, READ_BYTES)
                if not chunk:
                    return
                yield chunk
            if self.exited.is_set():
                deadline = min(deadline, time.monotonic() + DRAIN_AFTER_EXIT)

    def _write(self, line: bytes) -> None:
        for start in range(0, max(len(line), 1), MAX_LINE):
            self._log.write(line[start : start + MAX_LINE].decode("utf-8", "replace").rstrip("\r"))
            self._pace(len(line[start : start + MAX_LINE]) + LINE_COST)

    def _pace(self, cost: int) -> None:
        now = time.monotonic()
        if now >= self._second + 1:
            self._second, self._taken = now, 0
        self._taken += cost
        if self._taken > BYTES_PER_SECOND and self._hurry.wait(self._second + 1 - now):
            self._hurry.clear()  # it ended: what it wrote last is wanted now
            self._taken = 0

    # Ending -------------------------------------------------------------------------------------------------------

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """SIGTERM to the group, at most `timeout` seconds of patience, SIGKILL; then whatever left the group."""
        self.terminate()
        self.wait_or_kill(timeout)
        kill_marked(self.mark)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def wait_or_kill(self, timeout: float) -> None:
        if not self.exited.wait(timeout):
            self.kill()

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self.exited.wait(REAP_TIMEOUT)

    def _signal(self, number: signal.Signals) -> None:
        with self._signal_lock:
            if not self._reaped:
                self._signal_group(number)

    def _signal_group(self, number: signal.Signals) -> None:
        # EPERM: on macOS a zombie leader refuses; elsewhere a member that changed its user.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


class NoProcess:
    """In the place of a MemberProcess where the server runs elsewhere: nothing to stop here, and no end to notice."""

    pid = None
    exit_code = None
    mark = ""
    is_over = False

    def __init__(self) -> None:
        self.exited = threading.Event()
        self.spawned_at = time.monotonic()

    def tail(self) -> str:
        return ""

    def last_line(self) -> str:
        return ""

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        pass

    def terminate(self) -> None:
        pass

    def wait_or_kill(self, timeout: float) -> None:
        pass

    def kill(self) -> None:
        pass


def kill_marked(mark: str) -> int:
    """SIGKILL every process whose mark is `mark`, or begins with it when it ends in `/`; how many there were.

    Looks again until a look finds none: a process may fork while it is being looked for.
    """
    if not mark:  # which every process but the members' carries
        return 0
    killed: set[psutil.Process] = set()
    deadline = time.monotonic() + REAP_TIMEOUT
    while found := [process for process in psutil.process_iter() if _carries(process, mark)]:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        killed.update(found)
        if time.monotonic() > deadline:
            break
        # Not psutil.wait_procs: it reaps children of ours, whose end their watching threads then never see.
        time.sleep(REAP_INTERVAL)
    return len(killed)


def _carries(process: psutil.Process, mark: str) -> bool:
    if process.pid == os.getpid():
        return False
    try:
        carried = process.environ().get(MARK_VARIABLE, "")
        return (carried.startswith(mark) if mark.endswith("/") else carried == mark) and (
            process.status() != psutil.STATUS_ZOMBIE
        )
    except (psutil.Error, OSError):
        return False

"""One member's process: spawn it, notice its end, stop its whole group. Uses only the operating system.

Every process of a member has TAG_VARIABLE, its environment tag, and a birthmark in case it drops that variable. With
them the hall finds processes that left the process group. A pid alone is never trusted.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, cast

import psutil

from mcp_runtime.members.manifest.commands import spawn_fault
from mcp_runtime.members.output import MemberLog, Output
from mcp_runtime.protocol.errors import SpawnError
from mcp_runtime.system import birthmark
from mcp_runtime.system.loops import call_at_exit
from mcp_runtime.system.runtime_id import RuntimeId

logger = logging.getLogger("guildhall.runtime")

TAG_VARIABLE = "GUILD_HALL_MEMBER"
# The variables that a child gets from our environment. Our settings, keys and addresses are not among them.
INHERITED = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"),
    )
)
ABOUT_COMMAND = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC)  # of a spawn that failed
STOP_TIMEOUT = 3.0  # seconds from SIGTERM to SIGKILL
REAP_TIMEOUT = 5.0  # a killed process ends in milliseconds, unless it hangs in the kernel
REAP_INTERVAL = 0.005
LAST_OUTPUT_TIMEOUT = 0.05  # for the last output of a member that ended, because it is already in the pipe
LATE_OUTPUT_TIMEOUT = 2.0  # for the same on a busy machine, if somebody needs it
# Threads that handle exits, which includes writes to the database. If there are more exits at once, some wait.
EXIT_THREADS = 8
exit_threads = ThreadPoolExecutor(EXIT_THREADS, thread_name_prefix="member-exit")


def tag_prefix(hall_id: uuid.UUID, runtime: RuntimeId) -> str:
    """The prefix of the environment tags of all processes that `runtime` starts for the hall."""
    return f"{hall_id}/{runtime}/"


def child_environment(variables: Mapping[str, str], tag: str) -> dict[str, str]:
    """The allowed part of our environment, the member's own `variables`, and its environment tag."""
    environment = {name: value for name, value in os.environ.items() if name in INHERITED}
    return {**environment, **variables, TAG_VARIABLE: tag}


def user_umask() -> int:
    """The umask of the user who started the hall, for its members. The hall's own is private (see the settings)."""
    return int(os.environ.get("GUILD_HALL_USER_UMASK", "-1"), 8)  # -1 means that it does not change


class MemberProcess:
    """A running server process, the leader of its own session and process group."""

    def __init__(self, popen: subprocess.Popen[bytes], log: MemberLog, tag: str) -> None:
        self._popen = popen
        self._log = log
        self._output = Output(cast("IO[bytes]", popen.stdout), log)
        self._signal_lock = threading.Lock()
        self._reaped = False
        self.pid = popen.pid
        self.tag = tag
        self.spawned_at = time.monotonic()
        self.exited = threading.Event()
        self.exit_handled = threading.Event()  # `on_exit` has returned
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
        descriptors: Collection[int] = (),
    ) -> MemberProcess:
        """Start `argv` in `directory` (REQ-MCP-HTTP-11). Raises SpawnError (REQ-MCP-HTTP-40).

        It inherits the `descriptors`. `on_exit` is called once after the end, in one of `exit_threads`, and may wait.
        By then the whole group has ended.
        """
        if not directory.is_dir():
            raise SpawnError(f"its folder {directory} is gone")
        try:
            with birthmark.inheritance(environment[TAG_VARIABLE]):
                popen = subprocess.Popen(
                    argv,
                    bufsize=0,
                    cwd=directory,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=descriptors,
                    umask=user_umask(),
                )
        except (OSError, ValueError) as error:
            is_about_command = isinstance(error, OSError) and error.errno in ABOUT_COMMAND
            path = environment.get("PATH") or os.defpath
            fault = spawn_fault(argv[0], directory, path) if is_about_command else ""
            raise SpawnError(fault or f"command {argv[0]!r} cannot be started: {error}") from error
        process = cls(popen, log, environment[TAG_VARIABLE])
        call_at_exit(popen.pid, process._has_ended, partial(process._handle_end, on_exit))
        return process

    def tail(self) -> str:
        """The last lines of its output. Waits for them if it has just ended."""
        if self.exited.is_set():
            self._output.wait_until_read(LATE_OUTPUT_TIMEOUT)
        return self._log.tail()

    def last_line(self) -> str:
        """The last line of its output that is not blank."""
        return self._log.last_line()

    @property
    def is_over(self) -> bool:
        """Whether it has ended, according to the OS. `exited` is set later, because it waits for the last output."""
        if self._reaped or self.exited.is_set():
            return True
        if not hasattr(os, "waitid"):
            return False
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # it was reaped at this moment
            return True

    # Watching -----------------------------------------------------------------------------------------------------

    def _has_ended(self) -> bool:
        if hasattr(os, "waitid"):
            return self.is_over
        with self._signal_lock:  # on an older macOS only the environment tag finds the rest of the group
            self._reaped = self._popen.poll() is not None
            return self._reaped

    def _handle_end(self, on_exit: Callable[[MemberProcess], None]) -> None:
        """Handle the exit, on the event loop of all exits. So it must not wait for disk, console or database."""
        with self._signal_lock:
            if not self._reaped:
                # The zombie keeps pid and group from being reused until the rest of the group is killed.
                self._signal_group(signal.SIGKILL)
            self.exit_code = self._popen.wait()
            self._reaped = True
        self._output.finish(LAST_OUTPUT_TIMEOUT)
        self.exited.set()
        exit_threads.submit(self._run_exit_handler, on_exit)

    def _run_exit_handler(self, on_exit: Callable[[MemberProcess], None]) -> None:
        try:
            on_exit(self)
        except Exception:
            logger.exception("the handler of the exit of process %d failed", self.pid)
        finally:
            self.exit_handled.set()

    # Ending -------------------------------------------------------------------------------------------------------

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """Send SIGTERM to the group, and SIGKILL after at most `timeout` seconds. Then kill what left the group."""
        self.terminate()
        self.wait_or_kill(timeout)
        kill_tagged(self.tag)

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
        # EPERM comes from a zombie leader (macOS), or from a member that changed its user.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


class NoProcess:
    """Takes the place of a MemberProcess for a remote server, which has no process to stop or to watch."""

    pid = None
    exit_code = None
    tag = ""
    is_over = False

    def __init__(self) -> None:
        self.exited = self.exit_handled = threading.Event()
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


def kill_tagged(tag: str) -> int:
    """SIGKILL every process whose environment tag is `tag`, or begins with it if it ends in `/`. Returns how many."""
    if not tag:  # processes that are not of members have no tag
        return 0
    return _kill_all(lambda process: carries(process, tag))


def kill_left_behind(hall_id: uuid.UUID, last_holder: str = "") -> int:
    """SIGKILL the processes of the hall's runtimes that are provably dead. Returns how many there were.

    `last_holder` is the runtime that the lease names. A process without our environment is found only if its
    runtime is this one, or is named in the environment of another process. A copy of the database is the same hall, so
    the processes of a living runtime are not ended.
    """
    dead: set[str] = set()  # the prefixes of their environment tags

    def note(runtime: str) -> None:
        if _is_dead(runtime):
            dead.add(f"{hall_id}/{runtime}/")

    def is_left_behind(process: psutil.Process) -> bool:
        hall, _, rest = _tag_in_environment(process).partition("/")
        if hall == str(hall_id):
            note(rest.partition("/")[0])
        return any(carries(process, tag) for tag in dead)

    note(last_holder)
    count = _kill_all(is_left_behind)
    if count:
        logger.warning("ended %d processes that an earlier runtime left behind", count)
    return count


def _is_dead(runtime: str) -> bool:
    """Whether the runtime of a tag is provably dead. The release before used a UUID in tags, and no longer runs."""
    runtime_id = RuntimeId.parse(runtime)
    if runtime_id is not None:
        return runtime_id.is_dead
    try:
        return bool(uuid.UUID(runtime))
    except ValueError:
        return False


def _kill_all(is_target: Callable[[psutil.Process], bool]) -> int:
    """SIGKILL every process that `is_target` selects. Searches until none is left, because they may fork meanwhile."""
    killed: set[psutil.Process] = set()
    deadline = time.monotonic() + REAP_TIMEOUT
    while targets := [process for process in psutil.process_iter() if is_target(process)]:
        for process in targets:
            with contextlib.suppress(psutil.Error):
                process.kill()
        killed.update(targets)
        if time.monotonic() > deadline:
            break
        # Not psutil.wait_procs, which reaps our children. Then the threads that watch them would never see their end.
        time.sleep(REAP_INTERVAL)
    return len(killed)


def carries(process: psutil.Process, tag: str) -> bool:
    """Whether another living process has the tag, as its birthmark or in its environment."""
    try:
        return (
            process.pid != os.getpid()
            and (birthmark.is_for(process.pid, tag) or _is_for(_tag_in_environment(process), tag))
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.Error:
        return False


def _is_for(process_tag: str, tag: str) -> bool:
    return process_tag.startswith(tag) if tag.endswith("/") else process_tag == tag


def _tag_in_environment(process: psutil.Process) -> str:
    try:
        return str(process.environ().get(TAG_VARIABLE, ""))
    except (psutil.Error, OSError):
        return ""

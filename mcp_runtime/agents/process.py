"""An agent as a process: its input, its events, its end. Uses only the operating system.

The process is `mcp_runtime.agents.host`, which starts the agent itself, a program of the Agent SDK. Both have the
hall's environment tag, like the processes of members, and only the variables that `setup` lists.
"""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from mcp_runtime.agents import setup
from mcp_runtime.members.process import child_environment, kill_tagged, user_umask
from mcp_runtime.protocol.errors import SpawnError
from mcp_runtime.system import birthmark

logger = logging.getLogger("guildhall.agent")

HOST = Path(__file__).with_name("host.py")
TAIL_LINES = 20
MAX_LINE = 2_000_000  # of our own program, which cuts its events much shorter
QUEUED_EVENTS = 1000
REAP_TIMEOUT = 5.0
GATEWAY = "guild-hall"  # the gateway's name among the agent's servers
EXIT_GRACE = 1.0  # after its last event


def tool_rule(server: str, tool: str = "") -> str:
    """The agent's name for a tool of an MCP server, or for all its tools."""
    return "__".join(re.sub(r"[^A-Za-z0-9_-]", "_", part) for part in ("mcp", server, tool) if part)


@dataclass(frozen=True)
class Job:
    """The input of one run. `servers` have the form of the SDK's `mcp_servers`."""

    prompt: str
    servers: Mapping[str, Mapping[str, Any]]
    allowed_tools: list[str] = field(default_factory=list)
    disallowed_tools: list[str] = field(default_factory=list)
    resume: str = ""
    model: str = ""


class AgentProcess:
    """The program and the agent, in their own session and process group. Used by one thread."""

    def __init__(self, popen: subprocess.Popen[bytes], tag: str, files: list[Path]) -> None:
        self._popen = popen
        self._tag = tag
        self._files = files
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue(QUEUED_EVENTS)
        self._tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self._lock = threading.Lock()
        self._reaped = False
        self.has_ended = False
        self._readers = [
            threading.Thread(target=self._read_events, args=(popen.stdout,), name=f"agent-{popen.pid}", daemon=True),
            threading.Thread(target=self._drain, args=(popen.stderr,), name=f"agent-log-{popen.pid}", daemon=True),
        ]

    @classmethod
    def spawn(cls, job: Job, *, directory: Path, tag: str, environment: Mapping[str, str]) -> AgentProcess:
        """Start the program in `directory`, which is private. Raises SpawnError."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        stem = tag.replace("/", "-")
        config, task = directory / f"mcp-{stem}.json", directory / f"job-{stem}.json"
        values = {key: value for key, value in asdict(job).items() if key != "servers"}
        try:
            _write_private(config, {"mcpServers": job.servers})
            _write_private(task, {**values, "mcp_config": str(config), "directory": str(directory)})
            with birthmark.inheritance(tag):
                popen = subprocess.Popen(
                    # -P, because modules in the program's folder have the names of other modules.
                    [sys.executable, "-P", str(HOST), str(task)],
                    cwd=directory,
                    env=child_environment(setup.agent_environment(environment, directory), tag),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    umask=user_umask(),
                )
        except OSError as error:
            raise SpawnError(f"the agent cannot be started: {error}") from error
        process = cls(popen, tag, [config, task])
        for reader in process._readers:
            reader.start()
        return process

    def _read_events(self, output: IO[bytes]) -> None:
        with output:
            while line := output.readline(MAX_LINE):
                try:
                    event = json.loads(line)
                except ValueError:
                    logger.warning("the agent's program wrote a line that is not an event: %.200r", line)
                else:
                    self._events.put(event)
        self._events.put(None)

    def _drain(self, output: IO[bytes]) -> None:
        with output:
            while line := output.readline(4000):
                text = line.decode("utf-8", "replace").rstrip()
                self._tail.append(text)
                logger.debug("%s", text)

    def next_event(self, timeout: float) -> dict[str, Any] | None:
        """The next event, {"kind", "data"}. None after `timeout`, or if the process has ended (`has_ended`)."""
        try:
            event = self._events.get(timeout=max(timeout, 0.001))
        except queue.Empty:
            return None
        self.has_ended = event is None
        return event

    def tail(self) -> str:
        """The last lines of the process on stderr."""
        return "\n".join(list(self._tail))

    def stop(self) -> None:
        """Request a stop by closing its stdin."""
        with contextlib.suppress(OSError):
            self._popen.stdin.close()  # type: ignore[union-attr]

    def kill(self) -> None:
        """Send SIGKILL to the whole group. Any thread may call this."""
        with self._lock:
            if not self._reaped:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._popen.pid, signal.SIGKILL)

    def close(self) -> int:
        """End and reap the process within EXIT_GRACE, and remove its files. Returns the exit code."""
        self.stop()
        if hasattr(os, "waitid"):
            has_exited = threading.Event()
            threading.Thread(target=self._watch, args=(has_exited,), daemon=True).start()
            has_exited.wait(EXIT_GRACE)
        self.kill()  # safe, because no other group can get this number while the zombie exists
        with self._lock:
            code = self._popen.wait(REAP_TIMEOUT)
            self._reaped = True
        kill_tagged(self._tag)
        deadline = time.monotonic() + EXIT_GRACE
        while self._readers[0].is_alive() and time.monotonic() < deadline:  # it may wait for space in the queue
            self.next_event(0.01)
        for path in self._files:
            path.unlink(missing_ok=True)
        return code

    def _watch(self, has_exited: threading.Event) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
        has_exited.set()


def remove_files_of_earlier_runs(directory: Path) -> None:
    """Remove the files of a runtime that was killed."""
    for path in [*directory.glob("mcp-*.json"), *directory.glob("job-*.json")]:
        path.unlink(missing_ok=True)


def _write_private(path: Path, value: Any) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(value, file)

"""The hall in the storm: `manage.py up` with its own folder and ports, and with twenty members of six kinds.

The working folder of a process shows whether it belongs to the hall. Members and all their processes work below the
members folder, with or without the environment tag of the hall.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.hall import BenchHall, family, wait_until
from tests.attack.client import Client
from tests.storm.surroundings import Clock, Disk, make_proxy, through

MEMBER = Path(__file__).parent / "members" / "member.py"
# Members of each kind. `bare` is a forking one whose grandchild has no environment.
KINDS = {"http": 6, "stdio": 4, "forking": 2, "bare": 1, "flaky": 3, "slow": 2, "lying": 2}
HEALTHY_KINDS = ("http", "stdio", "forking", "bare")  # they respond at once and correctly, except during a fault
FAIL_BY_THEMSELVES = ("flaky", "lying")
CALL_SECONDS = 10.0  # for a whole call
CLIENTS = 40
# A prefix of commands. The command ends with its parent, even if the parent is killed (Linux).
END_WITH_US = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
LOG_LINES = 40  # of the log, to show if the hall does not start
# The end of a word in the command line of each part.
PARTS = {"guard": "/mcp_runtime/runtime/guard.py", "worker": "mcp_runtime.runtime.worker", "web": "guildhall.web"}
MAKE_TOKENS = """
import json
from django.contrib.auth.models import Permission, User
from roster.models import Token
root = User.objects.create_superuser("root-of-storm")
user = User.objects.create_user("client-of-storm")
user.user_permissions.set(Permission.objects.filter(codename="invoke_tool"))
tokens = {str(number): Token.make(user=user, **Token.UNLIMITED)[1] for number in range(%d)}
print(json.dumps({**tokens, "root": Token.make(user=root, **Token.UNLIMITED)[1]}))
"""
Processes = dict[int, tuple[float, str]]  # from pid to start time and member or command
_PAUSE_TEXT = re.compile(r"starting it again in ([0-9.]+) s")


@dataclass(frozen=True)
class Stop:
    """The stop of `manage.py up`. `status`: its exit status, negative for a signal, or None if there was no process."""

    seconds: float
    status: int | None


class StormHall(BenchHall):
    """`ledgers`: the folder in which members write their effects. `log`: the output on the operator's console.

    `database` and `redis` are proxies of these services, if their URLs are set. Otherwise the hall uses SQLite.
    """

    def __init__(self, *, database_url: str = "", redis_url: str = "") -> None:
        self.database, self.redis = None, None
        if database_url:
            self.database = make_proxy(database_url, 5432)
            database_url = through(self.database, database_url)
        if redis_url:
            self.redis = make_proxy(redis_url, 6379)
            redis_url = through(self.redis, redis_url)
        super().__init__(0, prepare=False, database_url=database_url, redis_url=redis_url)
        self.data.mkdir()
        self.disk, self.clock = Disk(self.data), Clock(self.folder)
        self.environment |= self.clock.environment
        self.environment["GUILD_HALL_MAX_IN_FLIGHT"] = "64"
        self.log = self.folder / "log"
        self.ledgers = self.folder / "ledgers"
        self.ledgers.mkdir()
        self.tokens: dict[str, str] = {}
        for kind, count in KINDS.items():
            for number in range(count):
                self._add(kind, f"{kind}-{number}")

    def _add(self, kind: str, name: str) -> None:
        argv = ["member.py", kind, str(self.ledgers / f"{name}.ledger")]
        transport = "stdio" if kind == "stdio" else "http"
        port = [] if transport == "stdio" else ["${PORT}"]
        self.add(name, *argv, *port, transport=transport, timeout=CALL_SECONDS, max_concurrency=32)
        shutil.copy(MEMBER, self.folder / "members" / name / "member.py")

    def up(self) -> None:
        """Start for the first time, and wait until every member is connected."""
        self.start_up()
        wait_until(self._answers, 60, "the web answers")
        self.tokens = json.loads(self.manage("shell", "-v0", "-c", MAKE_TOKENS % CLIENTS).splitlines()[-1])
        self.wait_connected(self.tokens["root"])

    def start_up(self) -> None:
        """Start `manage.py up`, as the operator's init system does after it ended."""
        self._start([*END_WITH_US, sys.executable, "manage.py", "up"])

    def well(self) -> list[str]:
        return [name for name in self.names if kind_of(name) in HEALTHY_KINDS]

    # Requests ---------------------------------------------------------------------------------------------------------

    def web(self, client: str, seconds: float = 40.0) -> Client:
        """A client of REST."""
        return Client(self.port, self.tokens[client], seconds=seconds)

    def agent(self, client: str, seconds: float = 40.0) -> Client:
        """A client of the gateway."""
        return Client(self.gateway_port, self.tokens[client], seconds=seconds)

    def read(self, path: str, seconds: float = 3.0) -> dict[str, Any] | None:
        """The response of REST, or None if there is none."""
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError), self.web("root", seconds) as client:
            reply = client.rest("GET", path, Connection="close")
            return dict(json.loads(reply.body)) if reply.status == 200 else None
        return None

    def connected(self) -> set[str]:
        response = self.read("/api/roster/") or {"members": []}
        return {member["name"] for member in response["members"] if member["status"] == "connected"}

    # Processes --------------------------------------------------------------------------------------------------------

    @property
    def up_process(self) -> psutil.Process | None:
        processes = [process for process in self._processes if process.poll() is None]
        return psutil.Process(processes[-1].pid) if processes else None

    def part(self, name: str) -> psutil.Process | None:
        """`up`, or its guard, worker or web. None if it is not live."""
        if (root := self.up_process) is None or name == "up":
            return root
        with contextlib.suppress(psutil.Error):
            for process in family(root):
                with contextlib.suppress(psutil.Error):
                    is_match = any(word.endswith(PARTS[name]) for word in process.cmdline())
                    if is_match and process.status() != psutil.STATUS_ZOMBIE:
                        return process
        return None

    def all_processes(self) -> Processes:
        """The processes of the hall, of a hall on a copy, and of their members, whatever their parents are.

        They work below the folder of the hall, or their environment names it.
        """
        processes = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                places = process.cwd(), process.environ().get("GUILD_HALL_DATA_DIR", "")
                is_own = any(place.startswith(str(self.folder)) for place in places)
                if is_own and process.status() != psutil.STATUS_ZOMBIE:
                    processes[process.pid] = process.create_time(), " ".join(process.cmdline()[-2:])
        return processes

    def member_processes(self, member: str = "") -> Processes:
        """The processes of one member or of all, whatever their parents and environments are."""
        members = str(self.folder / "members") + os.sep
        processes = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                place = process.cwd()
                name = place.removeprefix(members).partition(os.sep)[0] if place.startswith(members) else ""
                if name and (not member or name == member) and process.status() != psutil.STATUS_ZOMBIE:
                    processes[process.pid] = process.create_time(), name
        return processes

    def ports_of(self, pids: set[int]) -> set[int]:
        """The ports of the hall's range on which these processes listen."""
        first, last = self.ports
        return {
            connection.laddr.port
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
            and connection.pid in pids
            and first <= connection.laddr.port <= last
        }

    def pauses_since(self, offset: int) -> float:
        """The sum of the restart pauses that `up` wrote to its log after `offset`, in seconds."""
        with self.log.open("rb") as log:
            log.seek(offset)
            pauses = _PAUSE_TEXT.findall(log.read().decode(errors="replace"))
        return sum(map(float, pauses))

    def thaw(self) -> None:
        """Continue all frozen processes, because a frozen process does not handle SIGTERM."""
        for pid in self.all_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def stop_whole(self, seconds: float = 20.0) -> Stop:
        """Send SIGTERM to `up`, and SIGKILL if it has not ended after `seconds`."""
        self.thaw()
        start, processes = time.monotonic(), [process for process in self._processes if process.poll() is None]
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        return Stop(time.monotonic() - start, processes[-1].returncode if processes else None)


def kind_of(member: str) -> str:
    return member.rpartition("-")[0]


def end_strays(hall: StormHall) -> None:
    """Kill all processes that remain. They were counted before."""
    for pid in hall.all_processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def hall_in_storm(keep_log: Path, **services: str) -> Iterator[StormHall]:
    """`keep_log`: the file for a copy of the hall's log. The log is also shown if the hall does not start."""
    hall = StormHall(**services)
    try:
        try:
            hall.up()
        except (Exception, SystemExit):
            print("The hall did not come up. The end of its log:", *_last_lines(hall.log), sep="\n")
            raise
        yield hall
    finally:
        try:
            hall.stop_whole()
            end_strays(hall)
        finally:
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(hall.log, keep_log)
            hall.disk.end()
            shutil.rmtree(hall.folder, ignore_errors=True)


def _last_lines(log: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return []

"""The hall in the storm: `manage.py up` on a folder and ports of its own, with twenty members of six kinds.

Who belongs to it is told by where a process works: members and all that came from them work below the members' folder,
with or without the hall's mark.
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
from tests.storm.surroundings import Clock, Disk, proxy_before, through

MEMBER = Path(__file__).parent / "members" / "member.py"
# Members of each kind. `bare` is a forking one whose grandchild has no environment.
KINDS = {"http": 6, "stdio": 4, "forking": 2, "bare": 1, "flaky": 3, "slow": 2, "lying": 2}
WELL = ("http", "stdio", "forking", "bare")  # answer at once and rightly, unless something is done to them
FAIL_BY_THEMSELVES = ("flaky", "lying")
CALL_SECONDS = 10.0  # that a call may take in total
CLIENTS = 40
# Before a command: it does not outlive who starts it, be it killed (Linux).
END_WITH_US = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
LOG_LINES = 40  # shown, of a hall that did not come up
# The end of one of the words of its command line.
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
Processes = dict[int, tuple[float, str]]  # pid to start time and whose it is
_SAID_PAUSE = re.compile(r"starting it again in ([0-9.]+) s")


@dataclass(frozen=True)
class Stop:
    """How `manage.py up` obeyed SIGTERM. `status`: of its exit, negative for a signal; None where it was not there."""

    seconds: float
    status: int | None


class StormHall(BenchHall):
    """`ledgers`: where members write what took effect. `log`: what the operator's console shows.

    `database` and `redis` stand before those services, where their urls are given; else there is SQLite, and no broker.
    """

    def __init__(self, *, database_url: str = "", redis_url: str = "") -> None:
        self.database, self.redis = None, None
        if database_url:
            self.database = proxy_before(database_url, 5432)
            database_url = through(self.database, database_url)
        if redis_url:
            self.redis = proxy_before(redis_url, 6379)
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
        """For the first time: every member connected."""
        self.start_up()
        wait_until(self._answers, 60, "the web answers")
        self.tokens = json.loads(self.manage("shell", "-v0", "-c", MAKE_TOKENS % CLIENTS).splitlines()[-1])
        self.wait_connected(self.tokens["root"])

    def start_up(self) -> None:
        """As the operator's init system does, when `manage.py up` ended."""
        self._start([*END_WITH_US, sys.executable, "manage.py", "up"])

    def well(self) -> list[str]:
        return [name for name in self.names if kind_of(name) in WELL]

    # Asking -----------------------------------------------------------------------------------------------------------

    def web(self, client: str, seconds: float = 40.0) -> Client:
        """At the REST API."""
        return Client(self.port, self.tokens[client], seconds=seconds)

    def agent(self, client: str, seconds: float = 40.0) -> Client:
        """At the gateway."""
        return Client(self.gateway_port, self.tokens[client], seconds=seconds)

    def asked(self, path: str, seconds: float = 3.0) -> dict[str, Any] | None:
        """What REST answers; None when it does not."""
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError), self.web("root", seconds) as client:
            reply = client.rest("GET", path, Connection="close")
            return dict(json.loads(reply.body)) if reply.status == 200 else None
        return None

    def connected(self) -> set[str]:
        answer = self.asked("/api/roster/") or {"members": []}
        return {member["name"] for member in answer["members"] if member["status"] == "connected"}

    # Processes --------------------------------------------------------------------------------------------------------

    @property
    def up_process(self) -> psutil.Process | None:
        found = [process for process in self._processes if process.poll() is None]
        return psutil.Process(found[-1].pid) if found else None

    def part(self, name: str) -> psutil.Process | None:
        """`up`, or the guard, worker or web under it; None when it does not live."""
        if (root := self.up_process) is None or name == "up":
            return root
        with contextlib.suppress(psutil.Error):
            for process in family(root):
                with contextlib.suppress(psutil.Error):
                    is_it = any(word.endswith(PARTS[name]) for word in process.cmdline())
                    if is_it and process.status() != psutil.STATUS_ZOMBIE:
                        return process
        return None

    def all_processes(self) -> Processes:
        """Of the hall, of one on a copy and of their members, whatever their parents.

        They work below our folder, or their environment names it.
        """
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                places = process.cwd(), process.environ().get("GUILD_HALL_DATA_DIR", "")
                is_ours = any(place.startswith(str(self.folder)) for place in places)
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = process.create_time(), " ".join(process.cmdline()[-2:])
        return found

    def member_processes(self, member: str = "") -> Processes:
        """Of one member or of all: pid to start time and member, whatever their parents and environments."""
        members = str(self.folder / "members") + os.sep
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                place = process.cwd()
                name = place.removeprefix(members).partition(os.sep)[0] if place.startswith(members) else ""
                if name and (not member or name == member) and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = process.create_time(), name
        return found

    def ports_of(self, pids: set[int]) -> set[int]:
        """That such processes listen on, in the hall's range."""
        first, last = self.ports
        return {
            one.laddr.port
            for one in psutil.net_connections("tcp")
            if one.status == psutil.CONN_LISTEN and one.pid in pids and first <= one.laddr.port <= last
        }

    def pauses_since(self, place: int) -> float:
        """Seconds that `up` said it would wait before it starts a part again, behind that place of its log."""
        with self.log.open("rb") as log:
            log.seek(place)
            said = _SAID_PAUSE.findall(log.read().decode(errors="replace"))
        return sum(map(float, said))

    def thaw(self) -> None:
        """What is frozen obeys no SIGTERM."""
        for pid in self.all_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def stop_whole(self, seconds: float = 20.0) -> Stop:
        """SIGTERM for `up`, and SIGKILL where it has not ended so much later."""
        self.thaw()
        began, alive = time.monotonic(), [process for process in self._processes if process.poll() is None]
        for process in alive:
            process.terminate()
        for process in alive:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        return Stop(time.monotonic() - began, alive[-1].returncode if alive else None)


def kind_of(member: str) -> str:
    return member.rpartition("-")[0]


def end_strays(hall: StormHall) -> None:
    """What the hall left behind is counted by now; the machine is not to keep it."""
    for pid in hall.all_processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def hall_in_storm(keep_log: Path, **services: str) -> Iterator[StormHall]:
    """`keep_log`: where the hall's log is copied to in the end; it is shown where the hall did not come up."""
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

"""A throw-away hall for a measurement: its own data folder, members, ports; ended by pid."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import requests

ROOT = Path(__file__).resolve().parent.parent
# Nor what would have each start compile all of the hall again, which takes as long as all its other imports.
NOT_OURS = ("GUILD_HALL_", "PYTHONDONTWRITEBYTECODE")
EXAMPLE = ROOT / "guild-members" / "example"


def wait_until(condition: Callable[[], Any], seconds: float, expectation: str, *, every: float = 0.005) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"bench: not true within {seconds:g} s: {expectation}")
        time.sleep(every)
    return value


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def free_range(size: int) -> tuple[int, int]:
    """A part of the managed range that nobody listens in now."""
    while True:
        first = random.randrange(20000, 30000 - size)
        if all(_can_bind(port) for port in range(first, first + size)):
            return first, first + size - 1


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class BenchHall:
    """Members are copies of the shipped example. `database_url` and `redis_url` empty: the defaults."""

    def __init__(
        self, members: int, *, database_url: str = "", redis_url: str = "", prepare: bool = True, **manifest: Any
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="guildhall-bench-"))
        self.data = self.folder / "data"
        self.port = free_port()
        self.gateway_port = free_port()
        self.ports = free_range(max(60, members * 2))
        self.names = [f"m{number:03}" for number in range(members)]
        self._manifest = manifest
        self._processes: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(NOT_OURS)},
            "DATABASE_URL": database_url,
            "REDIS_URL": redis_url,
            "CELERY_BROKER_URL": "",
            "GUILD_HALL_ENV_FILE": os.devnull,
            "GUILD_HALL_DATA_DIR": str(self.data),
            "GUILD_HALL_MEMBERS_DIR": str(self.folder / "members"),
            "GUILD_HALL_PORT": str(self.port),
            "GUILD_HALL_GATEWAY_PORT": str(self.gateway_port),
            "GUILD_HALL_PORT_RANGE": "{}-{}".format(*self.ports),
            "GUILD_HALL_ADMIN_PASSWORD": "bench-password",
            "PYTHONPATH": str(ROOT),
        }
        (self.folder / "members").mkdir()
        for name in self.names:
            self._add_example(name)
        if prepare:  # else `manage.py up` does it
            self.manage("migrate", "-v0")
            self.manage("collectstatic", "-v0", "--noinput")

    def add(self, name: str, *argv: str, **manifest: Any) -> None:
        """A member that runs a Python script, e.g. `script.py ${PORT}`. Before the runtime starts."""
        folder = self.folder / "members" / name
        folder.mkdir()
        content = {
            "name": name,
            "version": "1",
            "transport": "http",
            "command": sys.executable,
            "args": argv,
            **manifest,
        }
        (folder / "guild-member.json").write_text(json.dumps(content))
        self.names.append(name)

    def _add_example(self, name: str) -> None:
        folder = self.folder / "members" / name
        shutil.copytree(EXAMPLE, folder)
        path = folder / "guild-member.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "name": name, **self._manifest}))

    def manage(self, *argv: str) -> str:
        return subprocess.run(
            [sys.executable, "manage.py", *argv],
            cwd=ROOT,
            env=self.environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def start_runtime(self) -> psutil.Process:
        return self._start([sys.executable, "-m", "mcp_runtime.runtime.guard"])

    def start_up(self) -> psutil.Process:
        """All of it, as `make run` does; on its way up."""
        return self._start([sys.executable, "manage.py", "up"])

    def start_web(self) -> psutil.Process:
        web = self._start([sys.executable, "-m", "guildhall.web"])
        wait_until(self._answers, 20, "the web answers")
        return web

    def _answers(self) -> bool:
        try:
            return requests.get(f"http://127.0.0.1:{self.port}/healthz", timeout=5).ok
        except requests.RequestException:
            return False

    def _start(self, argv: list[str]) -> psutil.Process:
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                argv, cwd=ROOT, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        self._processes.append(process)
        return psutil.Process(process.pid)

    def token(self) -> str:
        script = (
            "from django.contrib.auth import get_user_model as g; from roster.models import Token;"
            "u, _ = g().objects.get_or_create(username='bench', is_superuser=True, is_staff=True);"
            "print(Token.make(user=u, **Token.UNLIMITED, max_in_flight=4096)[1])"
        )
        return self.manage("shell", "-v0", "-c", script).split()[-1]

    def local_token(self) -> str:
        """What `manage.py up` leaves for whoever may read the data folder. Raises OSError."""
        return (self.data / "local-token").read_text().strip()

    def roster(self, token: str) -> list[dict[str, Any]]:
        answer = requests.get(
            f"http://127.0.0.1:{self.port}/api/roster/", headers={"Authorization": f"Bearer {token}"}, timeout=10
        )
        members: list[dict[str, Any]] = answer.json()["members"]
        return members

    def wait_connected(self, token: str, seconds: float = 60) -> list[dict[str, Any]]:
        def everybody() -> list[dict[str, Any]] | None:
            members = self.roster(token)
            done = len(members) == len(self.names) and all(member["status"] == "connected" for member in members)
            return members if done else None

        members: list[dict[str, Any]] = wait_until(everybody, seconds, "every member is connected")
        return members

    def sqlite(self) -> sqlite3.Connection:
        return sqlite3.connect(self.data / "guildhall.sqlite3", isolation_level=None)

    def stop(self) -> None:
        """Web and runtime; they may be started again."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(15)
        self._processes.clear()

    def end(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def bench_hall(members: int, **options: Any) -> Iterator[BenchHall]:
    hall = BenchHall(members, **options)
    try:
        yield hall
    finally:
        hall.end()


def family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def is_member(process: psutil.Process) -> bool:
    try:
        return "GUILD_HALL_MEMBER" in process.environ()
    except psutil.Error:
        return False


def pss(process: psutil.Process) -> float:
    """Its memory in MB, what it shares with others counted in parts; 0 when it ended (Linux)."""
    with contextlib.suppress(psutil.Error):
        return float(process.memory_full_info().pss) / 1e6
    return 0.0


def cpu_seconds(processes: list[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total

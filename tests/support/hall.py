"""Real runtimes with real members on the test database. All processes that are started here are ended here, by pid."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from django.conf import settings
from django.db import connection

from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control.calls import queue_call, wait_for_call
from mcp_runtime.control.notify import celery_app, hall_exchange
from mcp_runtime.members import ports
from mcp_runtime.rows import lease
from roster.models import Call, GuildMember
from roster.models import Hall as HallRow
from tests.conftest import ROOT, eventually
from tests.support.leases import current_lease_id
from tests.support.ports import free_range

# One for all tests, because the broker's connections of this process notify the hall for which they were made.
HALL_ID = uuid.uuid4()
SERVER = ROOT / "tests" / "support" / "servers" / "server.py"
# Seconds to wait for things whose speed is not tested.
PATIENCE = 30.0


def database_url() -> str:
    values = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{values['NAME']}"
    user = f"{values['USER']}:{values['PASSWORD']}@" if values["USER"] else ""
    return f"postgres://{user}{values['HOST'] or '127.0.0.1'}:{values['PORT'] or 5432}/{values['NAME']}"


class Hall:
    """A members folder, a port range and a data folder on the test database. Starts runtimes for them."""

    address = "127.0.0.1"  # of its gateway
    root = ROOT  # of the version that it runs

    def __init__(self, folder: Path) -> None:
        self.members_dir = folder / "members"
        self.data_dir = folder / "data"
        self.members_dir.mkdir()
        first, last = free_range(43)
        self.port_range, self.node_port = (first, last - 3), last - 2
        self.gateway_port, self.web_port = last - 1, last
        self.processes: list[subprocess.Popen[bytes]] = []
        self.log = folder / "runtime.log"

    def environment(self, **more: str) -> dict[str, str]:
        return {
            **{key: value for key, value in os.environ.items() if not key.startswith("GUILD_HALL_")},
            "DATABASE_URL": database_url(),
            "REDIS_URL": settings.BROKER_URL,
            "CELERY_BROKER_URL": "",
            "GUILD_HALL_ENV_FILE": os.devnull,
            "GUILD_HALL_DATA_DIR": str(self.data_dir),
            "GUILD_HALL_MEMBERS_DIR": str(self.members_dir),
            "GUILD_HALL_PORT_RANGE": "{}-{}".format(*self.port_range),
            "GUILD_HALL_PORT": str(self.web_port),
            "GUILD_HALL_GATEWAY_PORT": str(self.gateway_port),
            "PYTHONPATH": str(self.root),
            **more,
        }

    def add(self, name: str, *modes: str, **manifest: Any) -> Path:
        folder = self.members_dir / name
        folder.mkdir(exist_ok=True, parents=True)
        shutil.copy(SERVER, folder / "server.py")
        values = {
            "name": Path(name).name,
            "version": "1.0.0",
            "transport": "http",
            "command": sys.executable,
            "args": ["server.py", "${PORT}", *modes],
            **manifest,
        }
        (folder / "guild-member.json").write_text(json.dumps(values))
        return folder

    def popen(self, argv: list[str], *, umask: int = -1, **environment: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                argv,
                cwd=self.root,
                env=self.environment(**environment),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=umask,
            )
        self.processes.append(process)
        return process

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        """Start a runtime, and wait until it has the lease."""
        old_lease_id = current_lease_id()
        process = self.popen([sys.executable, "-m", "mcp_runtime.runtime.guard"], **environment)
        eventually(
            lambda: process.poll() is not None or current_lease_id() not in (None, old_lease_id),
            within=20,
            what="the runtime takes the lease",
        )
        assert process.poll() is None, self.output()
        return process

    def up(self, *, umask: int = -1, **environment: str) -> subprocess.Popen[bytes]:
        """Start the whole hall with the web, as `make run` does. Does not wait until it is up."""
        return self.popen([sys.executable, "manage.py", "up"], umask=umask, **environment)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.web_port}"

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def manage(
        self, *argv: str, env: Mapping[str, str] = {}, timeout: float = 40, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "manage.py", *argv],
            cwd=self.root,
            env=self.environment(**env),
            capture_output=True,
            text=True,
            timeout=timeout,
            **options,
        )

    @property
    def worker_pid(self) -> int:
        return node.pid or 0 if (node := lease.holder_node()) else 0

    def tagged_processes(self, name: str = "") -> list[psutil.Process]:
        """Every process with the environment tag of this hall, or of its member `name`."""
        start, end = f"{lease.hall().hall_id}/", f"/{name}" if name else ""
        processes = []
        for process in psutil.process_iter():
            try:
                tag = process.environ().get("GUILD_HALL_MEMBER", "")
                if tag.startswith(start) and tag.endswith(end) and process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
            except psutil.Error:
                continue
        return processes

    def busy_ports(self) -> list[int]:
        return [port for port in range(self.port_range[0], self.port_range[1] + 1) if not ports.is_free(port)]

    def end(self) -> None:
        """Kill everything that was started here. Tests that are about the end of a hall stop it themselves."""
        families = [member for process in self.processes if process.poll() is None for member in family(process)]
        for process in families:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        wait_for_end_of(families, within=PATIENCE)
        for started in self.processes:
            started.wait(PATIENCE)


@contextlib.contextmanager
def hall_in(folder: Path) -> Iterator[Hall]:
    hall_exchange.cache_clear()
    celery_app.cache_clear()
    HallRow.objects.create(hall_id=HALL_ID)
    hall = Hall(folder)
    try:
        yield hall
    finally:
        hall.end()
        for process in hall.tagged_processes():  # those that are not descendants any more
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The process and all its descendants."""
    root = psutil.Process(process.pid)
    return [root, *root.children(recursive=True)]


def is_live(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def command_of(process: psutil.Process) -> str:
    """The last words of its command line. Empty if the process has ended."""
    try:
        return " ".join(list(filter(None, process.cmdline()))[-3:])  # a process title ends with empty words
    except psutil.Error:
        return ""


def wait_for_end_of(processes: list[psutil.Process], *, within: float) -> None:
    names = {process: command_of(process) for process in processes}
    try:
        eventually(lambda: not any(map(is_live, processes)), within=within)
    except pytest.fail.Exception:
        pytest.fail(f"still live after {within} s: {[names[process] for process in processes if is_live(process)]}")


def member(name: str) -> GuildMember:
    return GuildMember.objects.get(name=name)


def status_is(name: str, *statuses: str) -> Callable[[], bool]:
    return lambda: GuildMember.objects.filter(name=name, status__in=statuses).exists()


def wait_for_status(hall: Hall, name: str, *statuses: str, within: float = 15.0) -> GuildMember:
    expectation = f"{name} is {' or '.join(statuses)}"
    try:
        eventually(status_is(name, *statuses), within=within, what=expectation)
    except pytest.fail.Exception:
        rows = list(GuildMember.objects.values_list("name", "status", "last_error"))
        pytest.fail(f"not true: {expectation}; {rows}\n{hall.output()}")
    return member(name)


def call(name: str, tool: str, arguments: dict[str, Any] | None = None, *, within: float = 20.0) -> Call:
    """Queue a call and wait for its end."""
    row = queue(name, tool, arguments)
    wait_for_call(row.pk, within)
    row.refresh_from_db()
    return row


def queue(name: str, tool: str, arguments: dict[str, Any] | None = None) -> Call:
    return queue_call(name, tool, arguments or {}, requester=Requester(Call.Source.COMMAND))[0]


def web_responds(hall: Hall) -> bool:
    try:
        return requests.get(f"{hall.url}/healthz", timeout=5).ok
    except requests.ConnectionError:
        return False


def wait_for_web(hall: Hall) -> None:
    eventually(lambda: web_responds(hall), within=20, what=f"the web responds; so far:\n{hall.output()}")


def bring_up(hall: Hall, *names: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start the whole hall, and wait until these members are connected."""
    process = hall.up(**environment)
    for name in names:
        wait_for_status(hall, name, "connected", within=30)
    wait_for_web(hall)
    return process


def token_of(hall: Hall, **environment: str) -> str:
    result = hall.manage("create_token", "admin", env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1]


def roster(hall: Hall, token: str) -> dict[str, str]:
    response = requests.get(f"{hall.url}/api/roster/", headers={"Authorization": f"Bearer {token}"}, timeout=10)
    assert response.status_code == 200, response.text
    return {row["name"]: row["status"] for row in response.json()["members"]}


WEB = [sys.executable, "-m", "guildhall.web"]

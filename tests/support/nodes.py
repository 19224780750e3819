"""A hall with several nodes on this machine. Each is a runtime with its own folders and ports."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from django.db import connection

from roster.models import GuildMember, Node
from tests.conftest import eventually
from tests.support.hall import PATIENCE, Hall, wait_for_end_of, wait_for_status

on_postgresql = pytest.mark.skipif(connection.vendor == "sqlite", reason="a hall on SQLite has one node")
GUARD = [sys.executable, "-m", "mcp_runtime.runtime.guard"]
UP = [sys.executable, "manage.py", "up"]
LOOK_SECONDS = 0.01  # between two looks at all processes
# The server writes a log into its folder, so only this file is the same on all nodes.
MOVABLE = {"state": "none", "files": ["server.py"]}


class Machine(Hall):
    """A node with a members folder, a data folder and ports of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir()
        super().__init__(folder)
        self.name = name
        self.broker_url = ""
        self.node_url: str | None = None  # None: at its own address
        self.key = folder.parent / "secret-key"  # of all machines
        self.key.write_text("k" * 50)
        self.more_environment: dict[str, str] = {}
        self.guard: subprocess.Popen[bytes] | None = None

    def environment(self, **more: str) -> dict[str, str]:
        url = f"http://{self.address}:{self.node_port}" if self.node_url is None else self.node_url
        names = {"GUILD_HALL_NODE": self.name, "GUILD_HALL_NODE_URL": url}
        more = {"GUILD_HALL_SECRET_KEY_FILE": str(self.key), **self.more_environment, **more}
        values = super().environment(**names, **more)
        return {**values, "CELERY_BROKER_URL": self.broker_url or values["CELERY_BROKER_URL"]}

    def run(self, argv: list[str] = GUARD) -> None:
        """Start the runtime, and wait until it has taken a lease. The row may still have that of a killed runtime."""
        old_lease = self._lease_id
        self.guard = self.popen(argv)
        eventually(
            lambda: self._is_running(old_lease), within=PATIENCE, what=f"node {self.name} runs:\n{self.output()}"
        )

    def _is_running(self, old_lease: uuid.UUID | None) -> bool:
        assert self.guard is not None
        assert self.guard.poll() is None, self.output()
        return self._lease_id not in (None, old_lease)

    @property
    def _lease_id(self) -> uuid.UUID | None:
        node = Node.objects.filter(name=self.name).first()
        return node.lease_id if node is not None else None

    @property
    def row(self) -> Node:
        return Node.objects.get(name=self.name)

    @property
    def worker_pid(self) -> int:
        node = Node.objects.filter(name=self.name).first()
        return node.pid or 0 if node is not None else 0

    def kill(self) -> None:
        """End the guard and the worker at the same moment, as a power cut does. The members die with them."""
        assert self.guard is not None
        processes = [psutil.Process(self.guard.pid), *psutil.Process(self.guard.pid).children(recursive=True)]
        for process in processes:
            process.send_signal(signal.SIGKILL)
        wait_for_end_of(processes, within=PATIENCE)
        self.guard.wait(PATIENCE)


class Copies:
    """Counts the processes of members again and again."""

    def __init__(self, hall: Hall, *names: str) -> None:
        self._hall = hall
        self._most = dict.fromkeys(names, 0)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._count)
        self._thread.start()

    def _count(self) -> None:
        while not self._end.wait(LOOK_SECONDS):
            names = Counter(map(member_of, self._hall.tagged_processes()))
            self._most = {name: max(most, names[name]) for name, most in self._most.items()}
        connection.close()

    def end(self) -> dict[str, int]:
        """Return the highest number of each."""
        self._end.set()
        self._thread.join()
        return self._most


def member_of(process: psutil.Process) -> str:
    """The member to which the process belongs. Empty if it has ended."""
    try:
        return process.environ().get("GUILD_HALL_MEMBER", "").rpartition("/")[2]
    except psutil.Error:
        return ""


def owner_of(name: str) -> str:
    row = GuildMember.objects.select_related("node").filter(name=name).first()
    return row.node.name if row is not None and row.node is not None else ""


def wait_for_fences(*machines: Machine) -> None:
    """A node is taken over only if its row says that its fence is on."""
    for machine in machines:
        eventually(lambda row=machine: row.row.fence_is_on, within=PATIENCE, what=f"the fence of {machine.name} is on")


def wait_for_folders(*machines: Machine) -> None:
    names = {folder.name for folder in machines[0].members_dir.iterdir()}
    for machine in machines:
        eventually(lambda row=machine: names <= set(row.row.folders), within=PATIENCE, what="its folders are noted")


def two_nodes(make_node: Callable[[str], Machine], *members: str, broker_url: str = "") -> tuple[Machine, Machine]:
    """Two nodes with the same members. The first one owns them all, because it was alone when it started."""
    first, second = make_node("first"), make_node("second")
    for machine in (first, second):
        machine.broker_url = broker_url
        for name in members:
            machine.add(name, node={"state": "local"} if name == "local" else MOVABLE)
    first.run()
    for name in members:
        wait_for_status(first, name, "connected")
        assert owner_of(name) == "first"
    second.run()
    wait_for_fences(first, second)
    wait_for_folders(first, second)
    return first, second

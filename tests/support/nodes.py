"""A hall with several nodes on this machine. Each is a runtime with its own folders and ports."""

from __future__ import annotations

import signal
import subprocess
import sys
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
# The server writes a log into its folder, so only this file is the same on all nodes.
MOVABLE = {"state": "none", "files": ["server.py"]}


class Machine(Hall):
    """A node with a members folder, a data folder and ports of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir()
        super().__init__(folder)
        self.name = name
        self.broker_url = ""
        self.node_url = f"http://127.0.0.1:{self.node_port}"
        self.key = folder.parent / "secret-key"  # of all machines
        self.key.write_text("k" * 50)
        self.guard: subprocess.Popen[bytes] | None = None

    def environment(self, **more: str) -> dict[str, str]:
        names = {"GUILD_HALL_NODE": self.name, "GUILD_HALL_NODE_URL": self.node_url}
        values = super().environment(**names, GUILD_HALL_SECRET_KEY_FILE=str(self.key), **more)
        return {**values, "CELERY_BROKER_URL": self.broker_url or values["CELERY_BROKER_URL"]}

    def run(self) -> None:
        """Start the runtime, and wait until it has taken its lease."""
        self.guard = self.popen(GUARD)
        eventually(self._is_running, within=PATIENCE, what=f"node {self.name} runs:\n{self.output()}")

    def _is_running(self) -> bool:
        assert self.guard is not None
        assert self.guard.poll() is None, self.output()
        return psutil.pid_exists(self.worker_pid) and self.row.lease_id is not None

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

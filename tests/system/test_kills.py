"""Nodes, workers, guards, the broker and connections to PostgreSQL are killed under load (`KILLS=100` for more)."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from django.db import connection

from roster.models import Call, GuildMember
from tests.conftest import eventually, skip_at_home
from tests.support.hall import PATIENCE
from tests.support.nodes import MOVABLE, Machine, on_postgresql, wait_for_fences, wait_for_folders
from tests.support.nodes_load import Load, contradictions, runs_of
from tests.support.ports import free_range

pytestmark = [pytest.mark.services, on_postgresql]
KILLS = int(os.environ.get("KILLS", "5"))
NAMES = ("one", "two", "three")


class Broker:
    """A Redis server of this test alone."""

    def __init__(self, folder: Path) -> None:
        self.port = free_range(1)[0]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self.start()

    def start(self) -> None:
        program = shutil.which("redis-server")
        assert program
        argv = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder)]
        self._process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    if not shutil.which("redis-server"):
        skip_at_home("no redis-server")
    broker = Broker(tmp_path)
    yield broker
    broker.kill()


@pytest.fixture
def machines(make_node: Callable[[str], Machine], broker: Broker) -> list[Machine]:
    machines = [make_node(name) for name in ("first", "second", "third")]
    for machine in machines:
        machine.broker_url = broker.url
        for name in NAMES:
            machine.add(name, node=MOVABLE)
        machine.run()
    wait_for_fences(*machines)
    wait_for_folders(*machines)
    wait_until_connected(machines)
    assert machines[0].manage("rebalance").returncode == 0
    wait_until_connected(machines)
    return machines


def wait_until_connected(machines: list[Machine]) -> None:
    connected = GuildMember.objects.filter(status="connected", node__lease_id__isnull=False)
    output = "\n".join(machine.output()[-2000:] for machine in machines)
    eventually(lambda: connected.count() == len(NAMES), within=2 * PATIENCE, what=f"all are connected:\n{output}")


def kill_node(machine: Machine) -> None:
    machine.kill()
    machine.run()


def kill_worker(machine: Machine) -> None:
    """The guard ends too, and a supervisor such as systemd starts it again."""
    assert machine.guard is not None
    psutil.Process(machine.worker_pid).kill()
    machine.guard.wait(PATIENCE)
    machine.run()


def kill_guard(machine: Machine) -> None:
    assert machine.guard is not None
    machine.guard.kill()
    machine.guard.wait(PATIENCE)
    eventually(lambda: not psutil.pid_exists(machine.worker_pid), within=PATIENCE, what="its worker ends too")
    machine.run()


def kill_database_connections() -> None:
    """What clients see of a PostgreSQL server that crashes and starts again."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def test_kills_under_load_run_no_call_twice_and_every_caller_is_told_the_truth(
    machines: list[Machine], broker: Broker
) -> None:
    random.seed(KILLS)
    load = Load(machines, NAMES)

    def kill_broker() -> None:
        broker.kill()
        load.wait_for_calls(10)
        broker.start()

    of_nodes = itertools.cycle((kill_node, kill_worker, kill_guard))
    of_services = itertools.cycle((kill_broker, kill_database_connections))
    try:
        for number in range(KILLS):
            load.wait_for_calls(10)
            if number % 5 < 3:
                next(of_nodes)(random.choice(machines))
            else:
                next(of_services)()
            wait_until_connected(machines)
        load.wait_for_calls(50)
    finally:
        load.end()
    eventually(lambda: not Call.objects.filter(finished_at=None).exists(), within=2 * PATIENCE, what="all calls end")
    assert contradictions(load, runs_of(machines, NAMES)) == []
    successes = sum(record.is_success for record in load.records)
    assert successes > 20 * KILLS
    if KILLS > 5:
        statuses = {status: Call.objects.filter(status=status).count() for status in ("succeeded", "failed")}
        print(f"{KILLS} kills: {len(load.records)} calls of agents, {successes} succeeded; rows: {statuses}")

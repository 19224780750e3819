"""The shape of docker-compose.yml as processes: two web workers, one runtime, Postgres and Redis. And on SQLite."""

from __future__ import annotations

import collections
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
import requests
from django.contrib.auth.models import User
from django.db import connection

from roster.models import Call, Token
from tests.conftest import eventually, needs_service
from tests.support.hall import PATIENCE, Hall, member, wait_for_status
from tests.support.member_process import free_port

pytestmark = pytest.mark.services

CLIENTS = 8


class Broker:
    """A Redis of this test alone, because it is killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self.client = redis.Redis.from_url(self.url)
        self.start()

    def start(self) -> None:
        program = shutil.which("redis-server") or needs_service("redis-server")
        argv = [program, "--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder)]
        self._process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, start_new_session=True)
        eventually(self._answers)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        self.client.close()
        self.kill()

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False


class Production:
    """Web and runtime as docker-compose.yml runs them. The test database is prepared already."""

    def __init__(self, hall: Hall, broker: Broker | None = None) -> None:
        self.hall = hall
        self.broker = broker
        self.settings = {"GUILD_HALL_WEB_WORKERS": "2", "REDIS_URL": broker.url if broker else ""}
        self.folder = hall.add("one", max_concurrency=8)
        (hall.data_dir / "static").mkdir(parents=True)
        self.web = hall.popen([sys.executable, "-m", "guildhall.web"], **self.settings)
        self.runtime = hall.start(**self.settings)
        self._token = Token.make(user=User.objects.create_superuser("admin"))[1]
        wait_for_status(hall, "one", "connected", within=30)
        eventually(lambda: len(self.web_workers()) == 2, within=20)
        eventually(self._is_ready, within=20, what="the hall is ready")

    def _is_ready(self) -> bool:
        try:
            return requests.get(f"{self.hall.url}/readyz", timeout=5).ok
        except requests.ConnectionError:
            return False

    def web_workers(self) -> list[psutil.Process]:
        return psutil.Process(self.web.pid).children()

    def open_session(self) -> requests.Session:
        """A client with its own connection."""
        session = requests.Session()
        session.trust_env = False
        session.headers["Authorization"] = f"Bearer {self._token}"
        return session

    def call_tool(self, session: requests.Session, text: str, key: str | None = None) -> requests.Response:
        return session.post(
            f"{self.hall.url}/api/members/one/tools/echo/invoke/",
            json={"arguments": {"text": text}},
            headers={"Prefer": "wait=20", **({"Idempotency-Key": key} if key else {})},
            timeout=30,
        )

    def wait_for_call(self, session: requests.Session, response: requests.Response) -> dict[str, Any]:
        """The finished call. If the response is 202, too many requests waited, so this asks again."""
        deadline = time.monotonic() + 30
        while response.status_code == 202 or response.json()["status"] in ("queued", "running"):
            assert time.monotonic() < deadline, response.text
            response = session.get(self.hall.url + response.json()["url"], headers={"Prefer": "wait=5"}, timeout=30)
        assert response.status_code == 200, response.text
        return dict(response.json())

    def received_texts(self) -> collections.Counter[str]:
        lines = (self.folder / "calls-one.log").read_text().splitlines()
        return collections.Counter(arguments["text"] for _, arguments in map(json.loads, lines))

    def restart_runtime(self) -> None:
        self.runtime.send_signal(signal.SIGTERM)
        self.runtime.wait(PATIENCE)
        self.runtime = self.hall.start(**self.settings)

    def kill_worker(self) -> None:
        os.kill(self.hall.worker_pid, signal.SIGKILL)
        self.runtime.wait(PATIENCE)
        self.runtime = self.hall.start(**self.settings)

    def kill_a_web_worker(self) -> None:
        self.web_workers()[0].kill()

    def kill_broker(self) -> None:
        assert self.broker
        self.broker.kill()
        self.broker.start()

    def cut_broker_connections(self) -> None:
        assert self.broker
        assert self.broker.client.client_kill_filter(_type="normal", skipme=True) > 0

    def cut_database_connections(self) -> None:
        """Cut the connections three times, each time as soon as there are connections again."""
        for _ in range(3):
            eventually(self._cut_other_connections, within=20, what="somebody connects to the database again")

    @staticmethod
    def _cut_other_connections() -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            return int(cursor.fetchone()[0])


@pytest.fixture
def production(hall: Hall, tmp_path: Path) -> Iterator[Production]:
    needs_service("DATABASE_URL")
    needs_service("REDIS_URL")
    broker = Broker(tmp_path)
    try:
        yield Production(hall, broker)
    finally:
        hall.end()
        broker.end()


@pytest.fixture
def sqlite_production(hall: Hall) -> Production:
    if connection.vendor != "sqlite":
        pytest.skip("for SQLite")
    return Production(hall)


class Load:
    """Clients that call all the time. They repeat a call that was not accepted, with the same Idempotency-Key."""

    def __init__(self, production: Production, clients: int = CLIENTS) -> None:
        self._production = production
        self._numbers = itertools.count()
        self._end = threading.Event()
        self._threads = ThreadPoolExecutor(clients)
        self.accepted_texts: dict[int, str] = {}
        self.refusal_count = 0
        self._futures = [self._threads.submit(self._call_repeatedly) for _ in range(clients)]

    def _call_repeatedly(self) -> None:
        with self._production.open_session() as session:
            while not self._end.is_set():
                self._call(session, f"text {next(self._numbers)}")

    def _call(self, session: requests.Session, text: str) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                response = self._production.call_tool(session, text, key=text)
            except requests.RequestException:
                response = None
            if response is not None and response.ok:
                self.accepted_texts[response.json()["id"]] = text
                return
            assert response is None or response.status_code >= 500, response.text
            self.refusal_count += 1
            self._end.wait(0.05)
        pytest.fail(f"{text!r} was never accepted")

    def wait_for_more(self, count: int) -> None:
        goal = len(self.accepted_texts) + count
        eventually(
            lambda: len(self.accepted_texts) >= goal or self._has_failed(), within=40, what=f"{count} more calls"
        )

    def _has_failed(self) -> bool:
        return any(future.done() for future in self._futures)

    def stop(self) -> None:
        self._end.set()
        self._threads.shutdown()
        for future in self._futures:
            future.result()


def check_no_call_is_lost(production: Production, disturb: Callable[[], None]) -> Load:
    """Call before, during and after the disturbance. Then each accepted call must have ended, and none ran twice."""
    load = Load(production)
    try:
        load.wait_for_more(20)
        disturb()
        load.wait_for_more(40)
    finally:
        load.stop()
    unfinished = Call.objects.filter(pk__in=load.accepted_texts, status__in=Call.ACTIVE)
    eventually(lambda: not unfinished.exists(), within=40, what=f"all over\n{production.hall.output()}")
    rows = Call.objects.in_bulk(load.accepted_texts)
    assert rows.keys() == load.accepted_texts.keys()
    outcomes = collections.Counter((row.status, row.error_kind) for row in rows.values())
    # Calls that ran while the runtime was killed may be lost, or may fail because their member ended too.
    assert outcomes["succeeded", ""] >= len(rows) - 2 * CLIENTS, outcomes
    assert set(outcomes) <= {("succeeded", ""), ("failed", "lost"), ("failed", "transport")}, outcomes
    counts = production.received_texts()
    assert [text for text, count in counts.items() if count > 1] == []
    assert {row.arguments["text"] for row in rows.values() if row.status == "succeeded"} <= counts.keys()
    return load


def test_many_clients_through_both_web_workers_each_get_their_own_results(production: Production) -> None:
    clients, calls = 24, 8
    barrier = threading.Barrier(clients)
    connection_counts: list[int] = []

    def client(number: int) -> None:
        with production.open_session() as session:
            session.get(f"{production.hall.url}/healthz", timeout=10)
            if barrier.wait(20) == 0:
                connection_counts.extend(len(worker.net_connections("tcp")) - 1 for worker in production.web_workers())
            barrier.wait(20)
            for call in range(calls):
                text = f"{number} {call}"
                body = production.wait_for_call(session, production.call_tool(session, text))
                assert body["status"] == "succeeded", body
                assert body["result"]["content"][0]["text"] == text

    with ThreadPoolExecutor(clients) as threads:
        list(threads.map(client, range(clients)))
    assert len(connection_counts) == 2, connection_counts
    assert all(connection_counts), f"one web worker served nobody: {connection_counts}"
    assert Call.objects.filter(status="succeeded").count() == clients * calls
    assert set(production.received_texts().values()) == {1}


def test_one_idempotency_key_makes_one_call_across_web_workers(production: Production) -> None:
    clients = 16
    barrier = threading.Barrier(clients)

    def client(_: int) -> tuple[int, bool]:
        with production.open_session() as session:
            barrier.wait(20)
            response = production.call_tool(session, "once", key="the key")
            assert response.ok, response.text
            return response.json()["id"], response.headers.get("Idempotent-Replayed") == "true"

    with ThreadPoolExecutor(clients) as threads:
        results = list(threads.map(client, range(clients)))
    assert len({pk for pk, _ in results}) == 1
    assert [is_replay for _, is_replay in results].count(False) == 1
    assert production.received_texts() == {"once": 1}


@pytest.mark.parametrize("disturbance", ["restart_runtime", "kill_worker", "kill_a_web_worker"])
def test_no_accepted_call_is_lost_when_processes_end(production: Production, disturbance: str) -> None:
    check_no_call_is_lost(production, getattr(production, disturbance))
    assert member("one").status == "connected"


@pytest.mark.parametrize("disturbance", ["kill_broker", "cut_broker_connections"])
def test_no_accepted_call_is_lost_when_the_broker_fails_and_comes_back(
    production: Production, disturbance: str
) -> None:
    broker = production.broker
    assert broker
    load = check_no_call_is_lost(production, getattr(production, disturbance))
    assert load.refusal_count == 0
    assert all(row.status == "succeeded" for row in Call.objects.all())
    eventually(
        lambda: any(client["cmd"] == "psubscribe" for client in broker.client.client_list()),
        within=20,
        what="the runtime listens to the broker again",
    )


def test_no_accepted_call_is_lost_when_database_connections_are_cut(production: Production) -> None:
    check_no_call_is_lost(production, production.cut_database_connections)
    assert production.runtime.poll() is None
    session = production.open_session()
    assert production.wait_for_call(session, production.call_tool(session, "afterwards"))["status"] == "succeeded"
    session.close()


@pytest.mark.parametrize("disturbance", ["kill_worker", "kill_a_web_worker"])
def test_no_accepted_call_is_lost_on_sqlite(sqlite_production: Production, disturbance: str) -> None:
    check_no_call_is_lost(sqlite_production, getattr(sqlite_production, disturbance))


def test_sqlite_is_never_locked_while_web_and_command_line_call_at_once(sqlite_production: Production) -> None:
    hall = sqlite_production.hall
    load = Load(sqlite_production, clients=2)
    call_commands = [
        ["invoke", "one", "echo", json.dumps({"text": f"from the command line {number}"})] for number in range(3)
    ]
    other_commands = [["sync_roster"], ["member", "refresh", "one"], ["prune_calls"]]
    try:
        with ThreadPoolExecutor(3) as threads:
            results = list(threads.map(lambda argv: hall.manage(*argv), [*call_commands, *other_commands]))
    finally:
        load.stop()
    assert [(result.args, result.stderr) for result in results if result.returncode] == []
    assert [result.stdout.strip() for result in results[: len(call_commands)]] == [
        json.loads(argv[3])["text"] for argv in call_commands
    ]
    assert load.refusal_count == 0
    assert "database is locked" not in hall.output() + "".join(result.stderr for result in results)
    assert set(sqlite_production.received_texts().values()) == {1}

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
    """A Redis of our own, for it will be killed."""

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
    """Web and runtime as docker-compose.yml runs them; the test database is prepared already."""

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

    def visitor(self) -> requests.Session:
        """A client with a connection of its own."""
        session = requests.Session()
        session.trust_env = False
        session.headers["Authorization"] = f"Bearer {self._token}"
        return session

    def invoke(self, visitor: requests.Session, text: str, key: str | None = None) -> requests.Response:
        return visitor.post(
            f"{self.hall.url}/api/members/one/tools/echo/invoke/",
            json={"arguments": {"text": text}},
            headers={"Prefer": "wait=20", **({"Idempotency-Key": key} if key else {})},
            timeout=30,
        )

    def finished(self, visitor: requests.Session, answer: requests.Response) -> dict[str, Any]:
        """The call at its end. 202: every seat for those who wait was taken, so ask again."""
        deadline = time.monotonic() + 30
        while answer.status_code == 202 or answer.json()["status"] in ("queued", "running"):
            assert time.monotonic() < deadline, answer.text
            answer = visitor.get(self.hall.url + answer.json()["url"], headers={"Prefer": "wait=5"}, timeout=30)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def texts_seen_by_the_member(self) -> collections.Counter[str]:
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
        """Three times, each as soon as somebody is connected again."""
        for _ in range(3):
            eventually(self._cut_those_of_others, within=20, what="somebody connects to the database again")

    @staticmethod
    def _cut_those_of_others() -> int:
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
def on_sqlite(hall: Hall) -> Production:
    if connection.vendor != "sqlite":
        pytest.skip("for SQLite")
    return Production(hall)


class Load:
    """Clients that call all the time, and repeat with the same Idempotency-Key what was not accepted."""

    def __init__(self, production: Production, clients: int = CLIENTS) -> None:
        self._production = production
        self._numbers = itertools.count()
        self._over = threading.Event()
        self._threads = ThreadPoolExecutor(clients)
        self.accepted: dict[int, str] = {}
        self.turned_away = 0
        self._work = [self._threads.submit(self._call_and_call) for _ in range(clients)]

    def _call_and_call(self) -> None:
        with self._production.visitor() as visitor:
            while not self._over.is_set():
                self._call(visitor, f"text {next(self._numbers)}")

    def _call(self, visitor: requests.Session, text: str) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                answer = self._production.invoke(visitor, text, key=text)
            except requests.RequestException:
                answer = None
            if answer is not None and answer.ok:
                self.accepted[answer.json()["id"]] = text
                return
            assert answer is None or answer.status_code >= 500, answer.text
            self.turned_away += 1
            self._over.wait(0.05)
        pytest.fail(f"{text!r} was never accepted")

    def wait_for_more(self, count: int) -> None:
        goal = len(self.accepted) + count
        eventually(lambda: len(self.accepted) >= goal or self._failed(), within=40, what=f"{count} more calls")

    def _failed(self) -> bool:
        return any(work.done() for work in self._work)

    def stop(self) -> None:
        self._over.set()
        self._threads.shutdown()
        for work in self._work:
            work.result()


def survive(production: Production, disturb: Callable[[], None]) -> Load:
    """Calls before, during and after the disturbance; then every accepted one is over, and none ran twice."""
    load = Load(production)
    try:
        load.wait_for_more(20)
        disturb()
        load.wait_for_more(40)
    finally:
        load.stop()
    unfinished = Call.objects.filter(pk__in=load.accepted, status__in=Call.ACTIVE)
    eventually(lambda: not unfinished.exists(), within=40, what=f"all over\n{production.hall.output()}")
    rows = Call.objects.in_bulk(load.accepted)
    assert rows.keys() == load.accepted.keys()
    ends = collections.Counter((row.status, row.error_kind) for row in rows.values())
    # What was running while the runtime died; a call whose member went down with it says so.
    assert ends["succeeded", ""] >= len(rows) - 2 * CLIENTS, ends
    assert set(ends) <= {("succeeded", ""), ("failed", "lost"), ("failed", "transport")}, ends
    seen = production.texts_seen_by_the_member()
    assert [text for text, times in seen.items() if times > 1] == []
    assert {row.arguments["text"] for row in rows.values() if row.status == "succeeded"} <= seen.keys()
    return load


def test_many_clients_through_both_web_workers_each_get_their_own_answer(production: Production) -> None:
    clients, calls = 24, 8
    together = threading.Barrier(clients)
    held: list[int] = []

    def client(number: int) -> None:
        with production.visitor() as visitor:
            visitor.get(f"{production.hall.url}/healthz", timeout=10)
            if together.wait(20) == 0:
                held.extend(len(worker.net_connections("tcp")) - 1 for worker in production.web_workers())
            together.wait(20)
            for call in range(calls):
                text = f"{number} {call}"
                done = production.finished(visitor, production.invoke(visitor, text))
                assert done["status"] == "succeeded", done
                assert done["result"]["content"][0]["text"] == text

    with ThreadPoolExecutor(clients) as threads:
        list(threads.map(client, range(clients)))
    assert len(held) == 2, held
    assert all(held), f"one web worker served nobody: {held}"
    assert Call.objects.filter(status="succeeded").count() == clients * calls
    assert set(production.texts_seen_by_the_member().values()) == {1}


def test_one_idempotency_key_is_one_call_whichever_web_worker_is_asked(production: Production) -> None:
    clients = 16
    together = threading.Barrier(clients)

    def client(_: int) -> tuple[int, bool]:
        with production.visitor() as visitor:
            together.wait(20)
            answer = production.invoke(visitor, "once", key="the key")
            assert answer.ok, answer.text
            return answer.json()["id"], answer.headers.get("Idempotent-Replayed") == "true"

    with ThreadPoolExecutor(clients) as threads:
        answers = list(threads.map(client, range(clients)))
    assert len({pk for pk, _ in answers}) == 1
    assert [replayed for _, replayed in answers].count(False) == 1
    assert production.texts_seen_by_the_member() == {"once": 1}


@pytest.mark.parametrize("what", ["restart_runtime", "kill_worker", "kill_a_web_worker"])
def test_no_accepted_call_is_lost_when_processes_end(production: Production, what: str) -> None:
    survive(production, getattr(production, what))
    assert member("one").status == "connected"


@pytest.mark.parametrize("what", ["kill_broker", "cut_broker_connections"])
def test_no_accepted_call_is_lost_with_the_broker_which_is_heard_again(production: Production, what: str) -> None:
    broker = production.broker
    assert broker
    load = survive(production, getattr(production, what))
    assert load.turned_away == 0
    assert all(row.status == "succeeded" for row in Call.objects.all())
    eventually(
        lambda: any(client["cmd"] == "brpop" for client in broker.client.client_list()),
        within=20,
        what="the runtime listens to the broker again",
    )


def test_no_accepted_call_is_lost_with_the_connections_to_the_database(production: Production) -> None:
    survive(production, production.cut_database_connections)
    assert production.runtime.poll() is None
    visitor = production.visitor()
    assert production.finished(visitor, production.invoke(visitor, "afterwards"))["status"] == "succeeded"
    visitor.close()


@pytest.mark.parametrize("what", ["kill_worker", "kill_a_web_worker"])
def test_no_accepted_call_is_lost_on_sqlite(on_sqlite: Production, what: str) -> None:
    survive(on_sqlite, getattr(on_sqlite, what))


def test_sqlite_is_never_locked_while_web_and_command_line_call_at_once(on_sqlite: Production) -> None:
    hall = on_sqlite.hall
    load = Load(on_sqlite, clients=2)
    words = [["invoke", "one", "echo", json.dumps({"text": f"from the command line {number}"})] for number in range(3)]
    others = [["sync_roster"], ["member", "refresh", "one"], ["prune_calls"]]
    try:
        with ThreadPoolExecutor(3) as threads:
            ran = list(threads.map(lambda argv: hall.manage(*argv), [*words, *others]))
    finally:
        load.stop()
    assert [(done.args, done.stderr) for done in ran if done.returncode] == []
    assert [done.stdout.strip() for done in ran[: len(words)]] == [json.loads(argv[3])["text"] for argv in words]
    assert load.turned_away == 0
    assert "database is locked" not in hall.output() + "".join(done.stderr for done in ran)
    assert set(on_sqlite.texts_seen_by_the_member().values()) == {1}

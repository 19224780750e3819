"""/readyz answers in half a second, whatever the database does, and says what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
import requests
from django.db import connection

from tests.conftest import eventually
from tests.storm.proxy import Proxy
from tests.support.hall import PATIENCE, WEB, Hall, wait_for_web
from tests.support.machine import Stopwatch, take_alone

pytestmark = [pytest.mark.services, pytest.mark.alone]

SECONDS = 0.5
NOTHING = {"ready": False, "database": False, "runtime": False}


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    values = connection.settings_dict
    if connection.vendor != "postgresql":
        pytest.skip("of a database over a network")
    proxy = Proxy(values["HOST"] or "127.0.0.1", int(values["PORT"] or 5432))
    yield proxy
    proxy.close()


@pytest.fixture
def web(hall: Hall, proxy: Proxy) -> Iterator[psutil.Process]:
    hall.start()
    values = connection.settings_dict
    user = values["USER"] + (f":{values['PASSWORD']}" if values["PASSWORD"] else "")
    process = hall.popen(WEB, DATABASE_URL=f"postgres://{user}@{proxy.address}/{values['NAME']}")
    wait_for_web(hall)
    eventually(lambda: ready(hall)["ready"], within=PATIENCE, what="the hall is ready")
    take_alone()
    yield psutil.Process(process.pid)
    proxy.heal()


def ready(hall: Hall) -> dict[str, Any]:
    body: dict[str, Any] = requests.get(f"{hall.url}/readyz", timeout=30).json()
    return body


@pytest.mark.parametrize("fault", ["kill", "mute", "cut"])
def test_a_database_that_is_away_is_said_at_once_and_its_return_soon(
    hall: Hall, web: psutil.Process, proxy: Proxy, fault: str
) -> None:
    getattr(proxy, fault)()
    for _ in range(5):
        watch = Stopwatch()
        body = ready(hall)
        assert watch.seconds < SECONDS
        assert body == NOTHING if not hall.environment()["REDIS_URL"] else body["database"] is False
    proxy.heal()
    eventually(lambda: ready(hall)["ready"], within=5, what="it is back")


def test_many_who_ask_of_a_mute_database_take_neither_time_nor_threads(
    hall: Hall, web: psutil.Process, proxy: Proxy
) -> None:
    proxy.mute()
    before = web.num_threads()
    with ThreadPoolExecutor(16) as threads:
        bodies = list(threads.map(lambda _: ready(hall), range(32)))
    assert {body["database"] for body in bodies} == {False}
    assert web.num_threads() <= before + 16 + 4  # those of the web that answer, and the looks at database and broker

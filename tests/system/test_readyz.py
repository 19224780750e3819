"""/readyz responds in half a second, also without the database, and says what is missing."""

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

pytestmark = pytest.mark.services

SECONDS = 0.5
NOT_READY = {"ready": False, "database": False, "runtime": False}


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    values = connection.settings_dict
    if connection.vendor != "postgresql":
        pytest.skip("needs a database over a network")
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
    eventually(lambda: get_readyz(hall)["ready"], within=PATIENCE, what="the hall is ready")
    yield psutil.Process(process.pid)
    proxy.heal()


def get_readyz(hall: Hall) -> dict[str, Any]:
    body: dict[str, Any] = requests.get(f"{hall.url}/readyz", timeout=30).json()
    return body


@pytest.mark.alone
@pytest.mark.parametrize("fault", ["kill", "mute", "cut"])
def test_a_lost_database_is_reported_at_once_and_its_return_within_seconds(
    hall: Hall, web: psutil.Process, proxy: Proxy, fault: str
) -> None:
    take_alone()
    getattr(proxy, fault)()
    for _ in range(5):
        watch = Stopwatch()
        body = get_readyz(hall)
        assert watch.seconds < SECONDS
        assert body == NOT_READY if not hall.environment()["REDIS_URL"] else body["database"] is False
    proxy.heal()
    eventually(lambda: get_readyz(hall)["ready"], within=5, what="the database is back")


def test_many_requests_use_few_threads_while_the_database_is_mute(
    hall: Hall, web: psutil.Process, proxy: Proxy
) -> None:
    proxy.mute()
    thread_count = web.num_threads()
    with ThreadPoolExecutor(16) as threads:
        bodies = list(threads.map(lambda _: get_readyz(hall), range(32)))
    assert {body["database"] for body in bodies} == {False}
    assert (
        web.num_threads() <= thread_count + 16 + 4
    )  # threads of the web that respond, and those that check database and broker

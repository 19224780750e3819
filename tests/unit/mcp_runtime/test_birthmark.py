"""Birthmarks as the kernel hands them on."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator

import pytest

from mcp_runtime.system import birthmark

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")

RUNTIME = f"{uuid.uuid4()}/1.2.3.4/"
ANNA = f"{RUNTIME}1/anna"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["env", "-i", shutil.which("sleep") or "", "600"], start_new_session=True)


def test_who_is_started_within_has_it_and_we_and_those_after_have_not(started: list[subprocess.Popen[bytes]]) -> None:
    before = resource.getrlimit(birthmark.LIMIT)
    with birthmark.inheritance(ANNA):
        started.append(sleeper())
    started.append(sleeper())
    assert [birthmark.is_for(process.pid, ANNA) for process in started] == [True, False]
    assert resource.getrlimit(birthmark.LIMIT) == before


def test_it_is_that_of_one_member_and_of_its_runtime(started: list[subprocess.Popen[bytes]]) -> None:
    with birthmark.inheritance(ANNA):
        started.append(sleeper())
    pid = started[0].pid
    assert birthmark.is_for(pid, ANNA)
    assert birthmark.is_for(pid, RUNTIME)
    hall = RUNTIME.partition("/")[0]
    for other in (
        f"{RUNTIME}2/anna",
        f"{hall}/1.2.3.5/",
        f"{hall}/",
        f"{RUNTIME}1/",
        f"{uuid.uuid4()}/1.2.3.4/",
        "/",
        "",
    ):
        assert not birthmark.is_for(pid, other), other


def test_who_ended_has_none(started: list[subprocess.Popen[bytes]]) -> None:
    with birthmark.inheritance(ANNA):
        process = sleeper()
    process.kill()
    process.wait()
    assert not birthmark.is_for(process.pid, ANNA)


def test_two_that_start_something_at_once_do_not_mix_theirs_up(started: list[subprocess.Popen[bytes]]) -> None:
    marks = [f"{RUNTIME}{number}/x" for number in range(12)]
    born: dict[str, subprocess.Popen[bytes]] = {}

    def start(mark: str) -> None:
        with birthmark.inheritance(mark):
            born[mark] = sleeper()
            started.append(born[mark])

    threads = [threading.Thread(target=start, args=(mark,)) for mark in marks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert all(birthmark.is_for(born[mark].pid, mark) for mark in marks)


def test_numbers_differ_and_limit_nobody() -> None:
    numbers = {birthmark.number_of(f"{uuid.uuid4()}/1.2.3.4/{number}/x") for number in range(10_000)}
    assert len(numbers) == 10_000
    hundred_thousand_years = 100_000 * 365 * 24 * 3600 * 1_000_000
    assert all(hundred_thousand_years < number < 2**63 for number in numbers)


def test_where_the_limit_may_not_be_set_so_high_all_else_works() -> None:
    script = (
        "import resource, subprocess; from mcp_runtime.system import birthmark\n"
        "resource.setrlimit(birthmark.LIMIT, (1000, 2000))\n"
        "with birthmark.inheritance('a/b/c'): child = subprocess.Popen(['sleep', '600'])\n"
        "print(birthmark.is_for(child.pid, 'a/b/c'), resource.getrlimit(birthmark.LIMIT)); child.kill()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert done.stdout == "False (1000, 2000)\n", done.stderr


def test_elsewhere_than_on_linux_nobody_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(birthmark.sys, "platform", "darwin")
    monkeypatch.setattr(birthmark.resource, "setrlimit", pytest.fail)
    with birthmark.inheritance(ANNA):
        pass
    assert not birthmark.is_for(1, ANNA)

"""How long a start may take: what decides, and what the kernel tells of a process that waits for a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from mcp_runtime.client.transport import Exchange
from mcp_runtime.members import start_limits
from mcp_runtime.members.start_limits import CpuTime, StartLimits, cpu_time
from mcp_runtime.protocol.errors import RequestCancelledError, RequestTimeoutError
from tests.conftest import eventually

BURN = "while True: pass"
SLEEP = "import time; time.sleep(600)"
ONE_CPU = "import os\nos.sched_setaffinity(0, {0})\n"


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def started(processes: list[subprocess.Popen[bytes]], program: str) -> int:
    processes.append(subprocess.Popen([sys.executable, "-c", program]))
    return processes[-1].pid


def limits(elapsed: float = 0.0, **options: Any) -> StartLimits:
    values = {"start_timeout": None, "fetches": False, "has_port": True, "is_first": True, **options}
    return StartLimits.of(os.getpid(), time.monotonic() - elapsed, **values)


@pytest.fixture
def _the_clock_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)


def waited(monkeypatch: pytest.MonkeyPatch, seconds: float | None) -> None:
    told = None if seconds is None else CpuTime(1.0, seconds)
    monkeypatch.setattr(start_limits, "cpu_time", lambda pid: told)


# What the kernel tells --------------------------------------------------------------------------------------------


def test_who_shares_a_cpu_waits_for_it_and_who_sleeps_does_not(processes: list[subprocess.Popen[bytes]]) -> None:
    sharing = [started(processes, ONE_CPU + BURN) for _ in range(3)]
    sleeping = started(processes, ONE_CPU + SLEEP)

    def all_waited() -> bool:
        return all((cpu := cpu_time(pid)) and cpu.waiting > 0.3 < cpu.running for pid in sharing)

    eventually(all_waited, within=20)
    asleep = cpu_time(sleeping)
    assert asleep is not None
    assert asleep.running < 0.3


def test_descendants_count(processes: list[subprocess.Popen[bytes]]) -> None:
    child = f"import time\n{BURN}"
    parent = started(processes, f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])")
    try:
        eventually(lambda: (cpu := cpu_time(parent)) and cpu.running > 0.7, within=20)
    finally:
        for burning in psutil.Process(parent).children():  # nobody else ends what it started
            burning.kill()


def test_of_a_process_that_is_gone_nothing_is_known(processes: list[subprocess.Popen[bytes]]) -> None:
    pid = started(processes, "")
    processes[-1].wait()
    assert cpu_time(pid) is None


def test_a_start_that_computes_is_told_from_one_that_hangs(processes: list[subprocess.Popen[bytes]]) -> None:
    burning, hanging = started(processes, BURN), started(processes, SLEEP)
    began = time.monotonic()

    def of(pid: int) -> StartLimits:
        options = {"start_timeout": None, "fetches": False, "has_port": True, "is_first": True}
        return StartLimits.of(pid, began, **options)  # type: ignore[arg-type]

    eventually(lambda: of(burning).is_computing and not of(hanging).is_computing)


# The budget -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "seconds_waited", "budget"),
    [
        ({}, 0.0, 5),
        ({}, 4.0, 9),
        ({}, 600.0, 30),
        ({}, None, 30),  # where the system does not tell
        ({"is_first": False}, 0.0, 30),
        ({"fetches": True}, 0.0, 120),
        ({"start_timeout": 2.0}, 600.0, 2),
        ({"start_timeout": 90.0, "fetches": True, "is_first": False}, 0.0, 90),
    ],
)
@pytest.mark.usefixtures("_the_clock_stands_still")
def test_until_the_port_accepts_there_are_five_seconds_without_those_spent_waiting_for_a_cpu(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], seconds_waited: float | None, budget: float
) -> None:
    waited(monkeypatch, seconds_waited)
    assert limits(elapsed=budget - 0.1, **options).remaining() == pytest.approx(0.1)
    assert limits(elapsed=budget + 0.1, **options).remaining() < 0


@pytest.mark.usefixtures("_the_clock_stands_still")
def test_a_budget_that_is_not_over_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_limits, "cpu_time", pytest.fail)
    assert limits(elapsed=4).remaining() == pytest.approx(1)


@pytest.mark.parametrize(
    ("options", "handshake"),
    [({}, 5), ({"is_first": False}, 5), ({"fetches": True}, 5), ({"start_timeout": 9.0}, 7), ({"has_port": False}, 28)],
)
@pytest.mark.usefixtures("_the_clock_stands_still")
def test_then_the_handshake_has_five_seconds_or_what_is_left(options: dict[str, Any], handshake: float) -> None:
    found = limits(elapsed=2, **options).handshake_deadline() - time.monotonic()
    assert found == pytest.approx(handshake)


# A stdio server: the budget is for both ---------------------------------------------------------------------------


def test_a_handshake_is_ended_when_the_budget_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    waited(monkeypatch, 0.2)
    exchange, found = Exchange(), limits(elapsed=5, has_port=False)
    with pytest.raises(RequestTimeoutError, match=r"within 5\.2 s"), found.enforce(exchange):  # noqa: PT012
        eventually(lambda: exchange.is_aborted)
        raise RequestCancelledError
    assert time.monotonic() - found.spawned_at > 5.15


def test_a_handshake_that_is_done_in_time_leaves_no_thread() -> None:
    before, exchange = set(threading.enumerate()), Exchange()
    with limits(has_port=False).enforce(exchange):
        pass
    assert set(threading.enumerate()) == before
    assert not exchange.is_aborted


def test_somebody_elses_abort_stays_one() -> None:
    with pytest.raises(RequestCancelledError), limits(has_port=False).enforce(Exchange()):
        raise RequestCancelledError

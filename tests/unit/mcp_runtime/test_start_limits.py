"""How long a start may take, and what the kernel reports about a process that waits for a CPU."""

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

from mcp_runtime.client.exchanges import Exchange
from mcp_runtime.members import start_limits
from mcp_runtime.members.start_limits import CpuTime, StartLimits, cpu_time
from mcp_runtime.protocol.errors import RequestCancelledError, RequestTimeoutError
from tests.conftest import eventually

BUSY_LOOP = "while True: pass"
SLEEP = "import time; time.sleep(600)"
ONE_CPU = "import os\nos.sched_setaffinity(0, {0})\n"


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started_processes: list[subprocess.Popen[bytes]] = []
    yield started_processes
    for process in started_processes:
        process.kill()
        process.wait()


def start(processes: list[subprocess.Popen[bytes]], program: str) -> int:
    processes.append(subprocess.Popen([sys.executable, "-c", program]))
    return processes[-1].pid


def limits(elapsed: float = 0.0, **options: Any) -> StartLimits:
    values = {"start_timeout": None, "fetches": False, "has_port": True, "is_first": True, **options}
    return StartLimits.of(os.getpid(), time.monotonic() - elapsed, **values)


@pytest.fixture
def _fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)


def set_waiting_time(monkeypatch: pytest.MonkeyPatch, seconds: float | None) -> None:
    time = None if seconds is None else CpuTime(1.0, seconds)
    monkeypatch.setattr(start_limits, "cpu_time", lambda pid: time)


# Figures of the kernel --------------------------------------------------------------------------------------------


def test_only_busy_processes_wait_for_a_shared_cpu(processes: list[subprocess.Popen[bytes]]) -> None:
    busy_pids = [start(processes, ONE_CPU + BUSY_LOOP) for _ in range(3)]
    sleeping_pid = start(processes, ONE_CPU + SLEEP)

    def have_all_waited() -> bool:
        return all((cpu := cpu_time(pid)) and cpu.waiting > 0.3 < cpu.running for pid in busy_pids)

    eventually(have_all_waited, within=20)
    sleeping_time = cpu_time(sleeping_pid)
    assert sleeping_time is not None
    assert sleeping_time.running < 0.3


def test_the_cpu_time_of_descendants_counts(processes: list[subprocess.Popen[bytes]]) -> None:
    child = f"import time\n{BUSY_LOOP}"
    parent = start(processes, f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])")
    try:
        eventually(lambda: (cpu := cpu_time(parent)) and cpu.running > 0.7, within=20)
    finally:
        for busy_child in psutil.Process(parent).children():  # nothing else ends the children
            busy_child.kill()


def test_a_process_that_ended_has_no_cpu_time(processes: list[subprocess.Popen[bytes]]) -> None:
    pid = start(processes, "")
    processes[-1].wait()
    assert cpu_time(pid) is None


def test_only_a_start_that_uses_the_cpu_is_computing(processes: list[subprocess.Popen[bytes]]) -> None:
    busy_pid, sleeping_pid = start(processes, BUSY_LOOP), start(processes, SLEEP)
    started_at = time.monotonic()

    def limits_of(pid: int) -> StartLimits:
        options = {"start_timeout": None, "fetches": False, "has_port": True, "is_first": True}
        return StartLimits.of(pid, started_at, **options)  # type: ignore[arg-type]

    eventually(lambda: limits_of(busy_pid).is_computing and not limits_of(sleeping_pid).is_computing)


# The budget -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "seconds_waited", "budget"),
    [
        ({}, 0.0, 5),
        ({}, 4.0, 9),
        ({}, 600.0, 30),
        ({}, None, 30),  # if the system gives no figures
        ({"is_first": False}, 0.0, 30),
        ({"fetches": True}, 0.0, 120),
        ({"start_timeout": 2.0}, 600.0, 2),
        ({"start_timeout": 90.0, "fetches": True, "is_first": False}, 0.0, 90),
    ],
)
@pytest.mark.usefixtures("_fixed_clock")
def test_time_of_waiting_for_a_cpu_does_not_count_for_the_start_budget(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], seconds_waited: float | None, budget: float
) -> None:
    set_waiting_time(monkeypatch, seconds_waited)
    assert limits(elapsed=budget - 0.1, **options).remaining() == pytest.approx(0.1)
    assert limits(elapsed=budget + 0.1, **options).remaining() < 0


@pytest.mark.usefixtures("_fixed_clock")
def test_the_cpu_time_is_not_read_before_the_budget_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_limits, "cpu_time", pytest.fail)
    assert limits(elapsed=4).remaining() == pytest.approx(1)


@pytest.mark.parametrize(
    ("options", "handshake"),
    [({}, 5), ({"is_first": False}, 5), ({"fetches": True}, 5), ({"start_timeout": 9.0}, 7), ({"has_port": False}, 28)],
)
@pytest.mark.usefixtures("_fixed_clock")
def test_the_handshake_has_five_seconds_or_the_rest_of_the_budget(options: dict[str, Any], handshake: float) -> None:
    remaining = limits(elapsed=2, **options).handshake_deadline() - time.monotonic()
    assert remaining == pytest.approx(handshake)


# A stdio server has one budget for start and handshake ------------------------------------------------------------


def test_a_handshake_is_ended_when_the_budget_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    set_waiting_time(monkeypatch, 0.2)
    exchange, handshake_limits = Exchange(), limits(elapsed=5, has_port=False)
    with pytest.raises(RequestTimeoutError, match=r"within 5\.2 s"), handshake_limits.enforce(exchange):  # noqa: PT012
        eventually(lambda: exchange.is_aborted)
        raise RequestCancelledError
    assert time.monotonic() - handshake_limits.spawned_at > 5.15


def test_a_handshake_that_is_done_in_time_leaves_no_thread() -> None:
    threads_before, exchange = set(threading.enumerate()), Exchange()
    with limits(has_port=False).enforce(exchange):
        pass
    assert set(threading.enumerate()) == threads_before
    assert not exchange.is_aborted


def test_an_abort_for_another_reason_is_not_changed() -> None:
    with pytest.raises(RequestCancelledError), limits(has_port=False).enforce(Exchange()):
        raise RequestCancelledError

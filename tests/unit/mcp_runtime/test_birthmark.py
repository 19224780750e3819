"""Birthmarks, which the kernel passes on to child processes."""

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
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started_processes: list[subprocess.Popen[bytes]] = []
    yield started_processes
    for process in started_processes:
        process.kill()
        process.wait()


def start_sleep() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["env", "-i", shutil.which("sleep") or "", "600"], start_new_session=True)


def test_only_a_process_started_within_the_context_has_the_birthmark(processes: list[subprocess.Popen[bytes]]) -> None:
    limit_before = resource.getrlimit(birthmark.LIMIT)
    with birthmark.inheritance(ANNA):
        processes.append(start_sleep())
    processes.append(start_sleep())
    assert [birthmark.is_for(process.pid, ANNA) for process in processes] == [True, False]
    assert resource.getrlimit(birthmark.LIMIT) == limit_before


def test_a_birthmark_belongs_to_one_member_and_its_runtime(processes: list[subprocess.Popen[bytes]]) -> None:
    with birthmark.inheritance(ANNA):
        processes.append(start_sleep())
    pid = processes[0].pid
    assert birthmark.is_for(pid, ANNA)
    assert birthmark.is_for(pid, RUNTIME)
    hall = RUNTIME.partition("/")[0]
    for other_tag in (
        f"{RUNTIME}2/anna",
        f"{hall}/1.2.3.5/",
        f"{hall}/",
        f"{RUNTIME}1/",
        f"{uuid.uuid4()}/1.2.3.4/",
        "/",
        "",
    ):
        assert not birthmark.is_for(pid, other_tag), other_tag


def test_a_process_that_ended_has_no_birthmark(processes: list[subprocess.Popen[bytes]]) -> None:
    with birthmark.inheritance(ANNA):
        process = start_sleep()
    process.kill()
    process.wait()
    assert not birthmark.is_for(process.pid, ANNA)


def test_concurrent_threads_give_each_process_its_own_birthmark(processes: list[subprocess.Popen[bytes]]) -> None:
    tags = [f"{RUNTIME}{number}/x" for number in range(12)]
    processes_by_tag: dict[str, subprocess.Popen[bytes]] = {}

    def start(tag: str) -> None:
        with birthmark.inheritance(tag):
            processes_by_tag[tag] = start_sleep()
            processes.append(processes_by_tag[tag])

    threads = [threading.Thread(target=start, args=(tag,)) for tag in tags]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert all(birthmark.is_for(processes_by_tag[tag].pid, tag) for tag in tags)


def test_birthmarks_are_unique_and_too_large_to_limit_a_process() -> None:
    numbers = {birthmark.number_of(f"{uuid.uuid4()}/1.2.3.4/{number}/x") for number in range(10_000)}
    assert len(numbers) == 10_000
    hundred_thousand_years = 100_000 * 365 * 24 * 3600 * 1_000_000
    assert all(hundred_thousand_years < number < 2**63 for number in numbers)


def test_a_process_starts_without_birthmark_if_the_limit_is_too_low() -> None:
    script = (
        "import resource, subprocess; from mcp_runtime.system import birthmark\n"
        "resource.setrlimit(birthmark.LIMIT, (1000, 2000))\n"
        "with birthmark.inheritance('a/b/c'): child = subprocess.Popen(['sleep', '600'])\n"
        "print(birthmark.is_for(child.pid, 'a/b/c'), resource.getrlimit(birthmark.LIMIT)); child.kill()"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert result.stdout == "False (1000, 2000)\n", result.stderr


def test_no_process_has_a_birthmark_outside_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(birthmark.sys, "platform", "darwin")
    monkeypatch.setattr(birthmark.resource, "setrlimit", pytest.fail)
    with birthmark.inheritance(ANNA):
        pass
    assert not birthmark.is_for(1, ANNA)

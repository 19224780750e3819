"""Which members are ended for what they use. The processes are real, and the lifecycle only records."""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from mcp_runtime.members import usage
from mcp_runtime.members.lifecycle import Lifecycle
from mcp_runtime.members.live import LiveMember
from mcp_runtime.members.output import MemberLog
from mcp_runtime.members.process import MemberProcess, carries, child_environment, kill_tagged
from mcp_runtime.members.usage import Usage
from tests.conftest import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the hall reads /proc")

CHILDREN = (
    "import subprocess, sys, time\n"
    "for _ in range(3): subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    "print('ready', flush=True); time.sleep(600)"
)


class Stage:
    """A member with four processes in three sessions, and the usage of its runtime."""

    def __init__(self, folder: Path) -> None:
        self.tag = f"{uuid.uuid4()}/1.2.3.4/1/anna"
        self.process = MemberProcess.spawn(
            [sys.executable, "-c", CHILDREN],
            directory=folder,
            environment=child_environment({}, self.tag),
            log=MemberLog("anna", folder / "anna.log"),
            on_exit=lambda _: None,
        )
        self.failures: list[tuple[str, str, float]] = []
        self.error: Exception | None = None
        self.run_apart: Callable[[Callable[[], None]], object] = lambda work: work()
        values: dict[str, Any] = {"client": None, "process": self.process}
        self.member = LiveMember(1, "anna", 0, endpoint="", connected_at=1.0, **values)
        lifecycle = SimpleNamespace(live_members=lambda: [self.member], fail=self.fail)
        self.usage = Usage(cast(Lifecycle, lifecycle), lambda work: self.run_apart(work))
        eventually(lambda: "ready" in self.process.tail())

    def fail(self, member: LiveMember, cause: str, message: str, timeout: float) -> None:
        if self.error:
            raise self.error
        self.failures.append((cause, message, timeout))


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(usage, "unit_of_work", lambda work: work())  # there is no database
    stage = Stage(tmp_path)
    yield stage
    kill_tagged(stage.tag)


def test_a_member_within_its_limits_stays(stage: Stage) -> None:
    stage.usage.turn()
    stage.member.max_processes, stage.member.max_memory = 4, 1_000_000_000
    stage.usage.turn()
    assert stage.failures == []


def test_a_member_with_too_many_processes_is_ended_at_once_also_those_in_other_sessions_count(stage: Stage) -> None:
    stage.member.max_processes = 3
    stage.usage.turn()
    text = "member 'anna' was ended: it had 4 processes, and processes in limits allows 3"
    assert stage.failures == [("limit", text, 0)]


def test_a_member_whose_end_is_in_progress_is_not_ended_twice(stage: Stage) -> None:
    works: list[Callable[[], None]] = []
    stage.run_apart = works.append
    stage.member.max_memory = 1
    for _ in range(3):
        stage.usage.turn()
    assert len(works) == 1
    works[0]()
    stage.usage.turn()
    assert (len(works), len(stage.failures)) == (2, 1)


def test_a_member_that_is_starting_is_killed_and_its_start_finds_out(stage: Stage) -> None:
    stage.member.connected_at = None
    stage.member.max_processes = 3
    stage.usage.turn()
    assert stage.failures == []
    assert stage.process.exited.wait(10)
    assert not [candidate for candidate in psutil.process_iter() if carries(candidate, stage.tag)]


def test_without_a_thread_or_after_a_failure_the_next_turn_tries_again(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    def give_no_thread(work: object) -> None:
        raise RuntimeError("can't start new thread")

    stage.member.max_processes = 3
    with caplog.at_level(logging.WARNING):
        stage.run_apart = give_no_thread
        stage.usage.turn()
        stage.run_apart = lambda work: work()
        stage.error = ValueError("of the test")
        stage.usage.turn()
        stage.error = None
        stage.usage.turn()
    assert "cannot be ended (can't start new thread)" in caplog.text
    assert "the end of member 'anna' failed" in caplog.text
    assert len(stage.failures) == 1

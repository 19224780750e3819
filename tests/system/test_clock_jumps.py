"""The wall clock is set while the hall waits for something. What waits, waits by the monotonic clock."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from mcp_runtime.control.calls import wait_for_call
from roster.models import GuildMember, Tool
from tests.conftest import ROOT, eventually
from tests.support.hall import Hall, call, member, queue, status_is, wait_for_status
from tests.support.machine import Stopwatch

pytestmark = pytest.mark.services

# Python imports it before all else: the wall clock of the process is as far off as the file says, in seconds.
SHIFTED_CLOCK = """
import time
from datetime import timedelta
from pathlib import Path
from django.utils import timezone

OFFSET = Path({offset!r})
real_time, real_now = time.time, timezone.now

def offset():
    return float(OFFSET.read_text() or 0)

time.time = lambda: real_time() + offset()
timezone.now = lambda: real_now() + timedelta(seconds=offset())
"""


@pytest.fixture
def set_clock(hall: Hall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the clock of the runtimes that the test starts so many seconds ahead, or back."""
    offset, folder = tmp_path / "offset", tmp_path / "clock"
    folder.mkdir()
    offset.write_text("0")
    (folder / "sitecustomize.py").write_text(SHIFTED_CLOCK.format(offset=str(offset)))
    environment = hall.environment
    path = f"{folder}{os.pathsep}{ROOT}"
    monkeypatch.setattr(hall, "environment", lambda **more: environment(**{"PYTHONPATH": path, **more}))

    def set_clock(seconds: float) -> None:
        written = offset.with_suffix(".new")
        written.write_text(str(seconds))
        written.rename(offset)

    return set_clock


@pytest.mark.parametrize("seconds", [-600, 600])
def test_a_restart_that_is_due_comes_in_time_and_calls_wait_for_it_though_the_clock_is_set(
    hall: Hall, set_clock: Callable[[float], None], seconds: float
) -> None:
    hall.add("one")
    hall.start()
    up = wait_for_status(hall, "one", "connected")
    GuildMember.objects.update(restarts=1)  # so that there are two seconds to set the clock
    watch = Stopwatch()
    os.kill(up.pid or 0, signal.SIGKILL)
    eventually(status_is("one", "error"))
    set_clock(seconds)
    answered = call("one", "echo", {"text": "hi"})
    assert (answered.status, answered.error_message) == ("succeeded", "")
    assert watch.elapsed > 1.5  # the pause after the kill
    assert watch.seconds < 8


@pytest.mark.parametrize("seconds", [-600, 600])
def test_the_roster_shows_when_a_member_is_tried_again_by_the_clock_that_was_set(
    hall: Hall, set_clock: Callable[[float], None], seconds: float
) -> None:
    hall.add("one", "exit=3")
    hall.start()
    wait_for_status(hall, "one", "error")
    GuildMember.objects.update(restarts=5, next_restart_at="2020-01-01T00:00Z")
    failed = eventually(lambda: GuildMember.objects.filter(status="error", restarts=6).first())
    set_clock(seconds)
    shown = eventually(lambda: (at := member("one").next_restart_at) != failed.next_restart_at and at)
    assert shown - failed.next_restart_at == pytest.approx(timedelta(seconds=seconds), abs=timedelta(seconds=1))
    assert member("one").restarts == 6


@pytest.mark.parametrize("seconds", [-600, 600])
def test_a_call_waits_as_long_as_it_may_though_the_clock_is_set(
    hall: Hall, set_clock: Callable[[float], None], seconds: float
) -> None:
    hall.add("one", "hang-initialize", start_timeout=60, timeout=4)
    hall.start()
    wait_for_status(hall, "one", "starting")
    Tool.objects.create(member=member("one"), name="echo", definition={"name": "echo", "inputSchema": {}})
    watch = Stopwatch()
    waiting = queue("one", "echo")
    eventually(lambda: watch.elapsed > 2)
    set_clock(seconds)
    wait_for_call(waiting.pk, 15)
    waiting.refresh_from_db()
    assert (waiting.error_kind, "not connected within 4 s" in waiting.error_message) == ("unavailable", True)
    assert watch.elapsed >= 4
    assert watch.seconds < 8

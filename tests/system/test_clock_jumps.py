"""The wall clock is changed while the hall waits. All waits use the monotonic clock."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from mcp_runtime.control.calls import wait_for_call
from mcp_runtime.nodes.watch import GONE_SECONDS
from roster.models import GuildMember, StatusChange, Tool
from tests.conftest import ROOT, eventually
from tests.support.agents import GatewayClient, make_token
from tests.support.hall import PATIENCE, Hall, call, member, queue, status_is, wait_for_status
from tests.support.machine import Stopwatch
from tests.support.nodes import Machine, on_postgresql, owner_of, two_nodes

pytestmark = pytest.mark.services

# Python imports this module first. It shifts the wall clock of the process by the seconds in the file.
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
    """Sets the clock of the runtimes that the test starts ahead by so many seconds, or back."""
    return give_clock(hall, tmp_path / "clock", monkeypatch)


def give_clock(hall: Hall, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Give the hall a clock of its own, and return the function that sets it."""
    folder.mkdir()
    offset = folder / "offset"
    offset.write_text("0")
    (folder / "sitecustomize.py").write_text(SHIFTED_CLOCK.format(offset=str(offset)))
    environment = hall.environment
    path = f"{folder}{os.pathsep}{ROOT}"
    monkeypatch.setattr(hall, "environment", lambda **more: environment(**{"PYTHONPATH": path, **more}))

    def set_clock(seconds: float) -> None:
        new_file = offset.with_suffix(".new")
        new_file.write_text(str(seconds))
        new_file.rename(offset)

    return set_clock


@pytest.mark.parametrize("seconds", [-600, 600])
def test_a_restart_is_in_time_and_calls_wait_for_it_after_a_clock_change(
    hall: Hall, set_clock: Callable[[float], None], seconds: float
) -> None:
    hall.add("one")
    hall.start()
    member_row = wait_for_status(hall, "one", "connected")
    GuildMember.objects.update(restarts=1)  # so that there are two seconds to set the clock
    watch = Stopwatch()
    os.kill(member_row.pid or 0, signal.SIGKILL)
    eventually(status_is("one", "error"))
    set_clock(seconds)
    call_row = call("one", "echo", {"text": "hi"})
    assert (call_row.status, call_row.error_message) == ("succeeded", "")
    assert watch.elapsed > 1.5  # the pause after the kill
    assert watch.seconds < 8


@pytest.mark.parametrize("seconds", [-600, 600])
def test_the_roster_shows_the_next_restart_by_the_changed_clock(
    hall: Hall, set_clock: Callable[[float], None], seconds: float
) -> None:
    hall.add("one", "exit=3")
    hall.start()
    wait_for_status(hall, "one", "error")
    GuildMember.objects.update(restarts=5, next_restart_at="2020-01-01T00:00Z")
    failed_row = eventually(lambda: GuildMember.objects.filter(status="error", restarts=6).first())
    set_clock(seconds)
    restart_time = eventually(lambda: (at := member("one").next_restart_at) != failed_row.next_restart_at and at)
    assert restart_time - failed_row.next_restart_at == pytest.approx(
        timedelta(seconds=seconds), abs=timedelta(seconds=1)
    )
    assert member("one").restarts == 6


@pytest.mark.parametrize("seconds", [-600, 600])
def test_a_call_waits_for_its_whole_timeout_after_a_clock_change(
    hall: Hall, set_clock: Callable[[float], None], seconds: float
) -> None:
    hall.add("one", "hang-initialize", start_timeout=60, timeout=4)
    hall.start()
    wait_for_status(hall, "one", "starting")
    Tool.objects.create(member=member("one"), name="echo", definition={"name": "echo", "inputSchema": {}})
    watch = Stopwatch()
    queued_call = queue("one", "echo")
    eventually(lambda: watch.elapsed > 2)
    set_clock(seconds)
    wait_for_call(queued_call.pk, 15)
    queued_call.refresh_from_db()
    assert (queued_call.error_kind, "not connected within 4 s" in queued_call.error_message) == ("unavailable", True)
    assert watch.elapsed >= 4
    assert watch.seconds < 8


@on_postgresql
@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_no_member_ends_or_moves_when_the_clock_of_one_of_two_nodes_jumps(
    make_node: Callable[[str], Machine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    clocks = {}

    def make(name: str) -> Machine:
        machine = make_node(name)
        clocks[name] = give_clock(machine, tmp_path / f"clock-{name}", monkeypatch)
        return machine

    machines = first, second = two_nodes(make, "one", "two")
    assert first.manage("move_member", "two", "second").returncode == 0
    eventually(lambda: owner_of("two") == "second", within=PATIENCE, what=first.output())
    wait_for_status(second, "two", "connected")
    agents = [GatewayClient(machine, make_token()).begin() for machine in machines]
    rows = GuildMember.objects.order_by("name").values("name", "node", "lease_id", "epoch", "pid", "status")
    before, changes = list(rows), StatusChange.objects.count()
    beats = [machine.row.beat for machine in machines]
    clocks["first"](seconds)
    for machine, beat in zip(machines, beats, strict=True):  # each beat takes a second
        eventually(lambda machine=machine, beat=beat: machine.row.beat > beat + GONE_SECONDS + 2, within=PATIENCE)
    for name in ("one", "two"):
        assert call(name, "echo", {"text": "queued"}).status == "succeeded"
        assert [agent.text(f"{name}__echo", text="at a gateway") for agent in agents] == ["at a gateway"] * 2
    assert (list(rows), StatusChange.objects.count()) == (before, changes)

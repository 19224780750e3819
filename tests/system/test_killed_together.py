"""Parts of the hall that are killed at the same moment: whoever is left ends what they started, daemons included."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import psutil
import pytest

from mcp_runtime.control.members import live_runtime
from mcp_runtime.runtime import pid_namespace
from tests.conftest import ROOT, eventually
from tests.support.hall import PATIENCE, Hall, call, command_of, family, lives, member, wait_for_status
from tests.support.machine import take_alone

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers"),
]


def in_members_folders(hall: Hall) -> list[psutil.Process]:
    """All that members started and that lives, whatever their environment says: they work in the members' folders."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd().startswith(str(hall.members_dir)) and lives(process):
                found.append(process)
        except psutil.Error:
            continue
    return found


def innermost(started: subprocess.Popen[bytes], command: str) -> psutil.Process:
    """The process with that command; in a pid namespace the one outside has it in its own."""
    return [process for process in family(started) if command_of(process).endswith(command)][-1]


def bring_up(hall: Hall, **environment: str) -> dict[str, psutil.Process]:
    """A hall with members that leave much behind; its parts by name."""
    hall.add("plain")
    hall.add("deaf", "ignore-term", "fork", "escape")
    up = hall.up(**environment)
    for name in ("plain", "deaf"):
        wait_for_status(hall, name, "connected", within=2 * PATIENCE)
    eventually(lambda: len(in_members_folders(hall)) == 5, what="two members, and three that one of them started")
    parts = {
        name: part
        for part in family(up)
        for name in ("guard", "worker")
        if f"runtime.{name}" in command_of(part).replace("/", ".")
    }
    return {"up": innermost(up, "manage.py up"), "outside": psutil.Process(up.pid), **parts}


def kill_at_once(processes: list[psutil.Process]) -> None:
    for process in processes:
        process.suspend()  # none sees another one die
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # it may have gone with the one before
            process.kill()


def gone_in_two_seconds(hall: Hall, processes: list[psutil.Process], *, and_ports: bool) -> None:
    names = {process: command_of(process) for process in processes}
    try:
        eventually(lambda: not any(map(lives, processes)) and not (and_ports and hall.busy_ports()), within=2)
    except pytest.fail.Exception:
        left = [names[process] for process in processes if lives(process)]
        pytest.fail(f"{left}, ports {hall.busy_ports()}")


@pytest.mark.alone
@pytest.mark.parametrize("victims", ["up", "guard worker", "up guard", "up worker"])
def test_two_seconds_later_nothing_of_members_lives_or_holds_a_port(hall: Hall, victims: str) -> None:
    parts = bring_up(hall)
    started = [*in_members_folders(hall), *hall.tagged_processes()]
    rest = [] if victims == "guard worker" else list(parts.values())
    take_alone()
    kill_at_once([parts[name] for name in victims.split()])
    gone_in_two_seconds(hall, [*started, *rest], and_ports=bool(rest))
    if not rest:  # `up` lives, and starts it again
        eventually(lambda: {p.pid for p in in_members_folders(hall)} & {member("plain").pid}, within=PATIENCE)
        assert psutil.Process(hall.processes[0].pid).children()


@pytest.mark.alone
def test_a_daemon_that_a_member_started_ends_with_it_whether_it_is_killed_or_stopped(hall: Hall) -> None:
    hall.add("one", "escape")
    hall.start()
    pid = wait_for_status(hall, "one", "connected").pid
    first = [process for process in in_members_folders(hall) if process.pid != pid]
    assert len(first) == 1
    take_alone()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not any(map(lives, first)), within=2)
    wait_for_status(hall, "one", "error")
    wait_for_status(hall, "one", "connected")
    assert len(in_members_folders(hall)) == 2
    subprocess.run(
        [sys.executable, "manage.py", "member", "stop", "one"], env=hall.environment(), check=True, timeout=60
    )
    eventually(lambda: not in_members_folders(hall), within=PATIENCE)


def test_a_daemon_that_is_all_there_is_left_ends_with_the_next_start(hall: Hall) -> None:
    hall.add("one", "escape")
    hall.start()
    member_process = psutil.Process(wait_for_status(hall, "one", "connected").pid or 0)
    daemons = [process for process in in_members_folders(hall) if process != member_process]
    assert len(daemons) == 1
    kill_at_once([process for process in family(hall.processes[-1]) if process not in daemons])
    eventually(lambda: not lives(member_process))
    assert all(map(lives, daemons))
    hall.start()
    eventually(lambda: not any(map(lives, daemons)), within=PATIENCE)


# In a pid namespace -----------------------------------------------------------------------------------------------


@pytest.fixture
def namespace() -> dict[str, str]:
    done = subprocess.run(pid_namespace.command_line(["true"]), cwd=ROOT, check=False, capture_output=True)
    if done.returncode:
        pytest.skip("no pid namespaces here")
    return {"GUILD_HALL_PID_NAMESPACE": "1"}


@pytest.mark.alone
@pytest.mark.parametrize("victims", ["up guard worker", "outside"])
def test_in_a_pid_namespace_all_of_it_may_be_killed_at_once_and_nothing_is_left(
    hall: Hall, namespace: dict[str, str], victims: str
) -> None:
    parts = bring_up(hall, **namespace)
    # Readers outside go by the heartbeat, for its pid says nothing to them.
    assert live_runtime() is not None
    assert call("plain", "echo", {"text": "hi"}).status == "succeeded"
    started = in_members_folders(hall)
    take_alone()
    kill_at_once([parts[name] for name in victims.split()])
    gone_in_two_seconds(hall, [*started, *parts.values()], and_ports=True)


def test_ctrl_c_ends_a_hall_in_a_pid_namespace_in_peace(hall: Hall, namespace: dict[str, str]) -> None:
    hall.add("plain")
    up = hall.up(**namespace)
    wait_for_status(hall, "plain", "connected", within=2 * PATIENCE)
    os.killpg(up.pid, signal.SIGINT)
    assert up.wait(PATIENCE) == 0
    assert not in_members_folders(hall)
    assert member("plain").status == "disconnected"


def test_a_runtime_alone_runs_in_a_pid_namespace_as_well(hall: Hall, namespace: dict[str, str]) -> None:
    hall.add("plain")
    outside = hall.popen([sys.executable, "manage.py", "runtime"], **namespace)
    wait_for_status(hall, "plain", "connected", within=2 * PATIENCE)
    started = [*family(outside), *in_members_folders(hall)]
    innermost(outside, "mcp_runtime/runtime/guard.py").kill()
    gone_in_two_seconds(hall, started, and_ports=False)
    assert outside.wait(PATIENCE) == 128 + signal.SIGKILL

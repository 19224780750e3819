"""Parts of the hall are killed at the same moment. The other parts end their processes, daemons included."""

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
from tests.support.hall import PATIENCE, Hall, call, command_of, family, is_live, member, wait_for_status
from tests.support.machine import take_alone

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers"),
]


def processes_in_members_folders(hall: Hall) -> list[psutil.Process]:
    """All live processes of members, found by their working folder, because a daemon may have no environment tag."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.cwd().startswith(str(hall.members_dir)) and is_live(process):
                processes.append(process)
        except psutil.Error:
            continue
    return processes


def innermost(launcher: subprocess.Popen[bytes], command: str) -> psutil.Process:
    """The process with that command. In a pid namespace the launcher outside has the same words in its command."""
    return [process for process in family(launcher) if command_of(process).endswith(command)][-1]


def bring_up(hall: Hall, **environment: str) -> dict[str, psutil.Process]:
    """Start a hall whose members start daemons. Returns the parts of the hall by name."""
    hall.add("plain")
    hall.add("deaf", "ignore-term", "fork", "escape")
    up = hall.up(**environment)
    for name in ("plain", "deaf"):
        wait_for_status(hall, name, "connected", within=2 * PATIENCE)
    eventually(
        lambda: len(processes_in_members_folders(hall)) == 5, what="two members, and three that one of them started"
    )
    parts = {
        name: part
        for part in family(up)
        for name in ("guard", "worker")
        if f"runtime.{name}" in command_of(part).replace("/", ".")
    }
    return {"up": innermost(up, "manage.py up"), "outside": psutil.Process(up.pid), **parts}


def kill_at_once(processes: list[psutil.Process]) -> None:
    for process in processes:
        process.suspend()  # so that no process notices the end of another
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # it may have ended with the previous process
            process.kill()


def wait_for_end(hall: Hall, processes: list[psutil.Process], *, and_ports: bool) -> None:
    names = {process: command_of(process) for process in processes}
    try:
        eventually(lambda: not any(map(is_live, processes)) and not (and_ports and hall.busy_ports()), within=2)
    except pytest.fail.Exception:
        survivors = [names[process] for process in processes if is_live(process)]
        pytest.fail(f"{survivors}, ports {hall.busy_ports()}")


@pytest.mark.alone
@pytest.mark.parametrize("victims", ["up", "guard worker", "up guard", "up worker"])
def test_no_member_process_and_no_port_remains_two_seconds_after_a_kill(hall: Hall, victims: str) -> None:
    parts = bring_up(hall)
    processes = [*processes_in_members_folders(hall), *hall.tagged_processes()]
    other_parts = [] if victims == "guard worker" else list(parts.values())
    take_alone()
    kill_at_once([parts[name] for name in victims.split()])
    wait_for_end(hall, [*processes, *other_parts], and_ports=bool(other_parts))
    if not other_parts:  # `up` is live, and starts the runtime again
        eventually(lambda: {p.pid for p in processes_in_members_folders(hall)} & {member("plain").pid}, within=PATIENCE)
        assert psutil.Process(hall.processes[0].pid).children()


@pytest.mark.alone
def test_a_daemon_of_a_member_ends_when_the_member_is_killed_or_stopped(hall: Hall) -> None:
    hall.add("one", "escape")
    hall.start()
    pid = wait_for_status(hall, "one", "connected").pid
    daemons = [process for process in processes_in_members_folders(hall) if process.pid != pid]
    assert len(daemons) == 1
    take_alone()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not any(map(is_live, daemons)), within=2)
    wait_for_status(hall, "one", "error")
    wait_for_status(hall, "one", "connected")
    assert len(processes_in_members_folders(hall)) == 2
    subprocess.run(
        [sys.executable, "manage.py", "member", "stop", "one"], env=hall.environment(), check=True, timeout=60
    )
    eventually(lambda: not processes_in_members_folders(hall), within=PATIENCE)


def test_the_next_start_ends_a_daemon_that_survived_all_other_processes(hall: Hall) -> None:
    hall.add("one", "escape")
    hall.start()
    member_process = psutil.Process(wait_for_status(hall, "one", "connected").pid or 0)
    daemons = [process for process in processes_in_members_folders(hall) if process != member_process]
    assert len(daemons) == 1
    kill_at_once([process for process in family(hall.processes[-1]) if process not in daemons])
    eventually(lambda: not is_live(member_process))
    assert all(map(is_live, daemons))
    hall.start()
    eventually(lambda: not any(map(is_live, daemons)), within=PATIENCE)


# In a pid namespace -----------------------------------------------------------------------------------------------


@pytest.fixture
def namespace() -> dict[str, str]:
    result = subprocess.run(pid_namespace.command_line(["true"]), cwd=ROOT, check=False, capture_output=True)
    if result.returncode:
        pytest.skip("no pid namespaces here")
    return {"GUILD_HALL_PID_NAMESPACE": "1"}


@pytest.mark.alone
@pytest.mark.parametrize("victims", ["up guard worker", "outside"])
def test_in_a_pid_namespace_nothing_remains_after_all_parts_are_killed_at_once(
    hall: Hall, namespace: dict[str, str], victims: str
) -> None:
    parts = bring_up(hall, **namespace)
    # Readers outside use the heartbeat, because they cannot use a pid of the namespace.
    assert live_runtime() is not None
    assert call("plain", "echo", {"text": "hi"}).status == "succeeded"
    processes = processes_in_members_folders(hall)
    take_alone()
    kill_at_once([parts[name] for name in victims.split()])
    wait_for_end(hall, [*processes, *parts.values()], and_ports=True)


def test_ctrl_c_ends_a_hall_in_a_pid_namespace_cleanly(hall: Hall, namespace: dict[str, str]) -> None:
    hall.add("plain")
    up = hall.up(**namespace)
    wait_for_status(hall, "plain", "connected", within=2 * PATIENCE)
    os.killpg(up.pid, signal.SIGINT)
    assert up.wait(PATIENCE) == 0
    assert not processes_in_members_folders(hall)
    assert member("plain").status == "disconnected"


def test_a_runtime_alone_runs_in_a_pid_namespace_as_well(hall: Hall, namespace: dict[str, str]) -> None:
    hall.add("plain")
    launcher = hall.popen([sys.executable, "manage.py", "runtime"], **namespace)
    wait_for_status(hall, "plain", "connected", within=2 * PATIENCE)
    processes = [*family(launcher), *processes_in_members_folders(hall)]
    innermost(launcher, "mcp_runtime/runtime/guard.py").kill()
    wait_for_end(hall, processes, and_ports=False)
    assert launcher.wait(PATIENCE) == 128 + signal.SIGKILL

"""`manage.py up`, which `make run` runs. Tests the whole hall from outside, by HTTP, output and process table."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from django.db import connection

from mcp_runtime.runtime import guard
from mcp_runtime.runtime.processes import RESTART_DELAYS, Part
from roster.models import GuildMember, PortAllocation
from tests.conftest import ROOT, eventually
from tests.support.agents import GatewayClient, make_token
from tests.support.hall import (
    PATIENCE,
    Hall,
    bring_up,
    command_of,
    family,
    is_live,
    member,
    roster,
    token_of,
    wait_for_end_of,
    wait_for_status,
    wait_for_web,
    web_responds,
)
from tests.support.leases import current_lease_id
from tests.support.machine import Stopwatch, take_alone

OWN_SQLITE = {"DATABASE_URL": "", "REDIS_URL": ""}  # the defaults of a new machine
PASSWORD = re.compile(r"log in as  admin  with the password  (\S+)")


def can_log_in(hall: Hall, password: str) -> bool:
    """Whether `admin` can log in with the form that a browser shows."""
    with requests.Session() as browser:
        page = browser.get(f"{hall.url}/admin/login/", timeout=10)
        field = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text)
        assert field, page.text
        form = {"username": "admin", "password": password, "csrfmiddlewaretoken": field[1], "next": "/admin/"}
        response = browser.post(page.url, data=form, headers={"Origin": hall.url}, timeout=10)
        return response.url == f"{hall.url}/admin/"


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """Send SIGINT to the whole process group, as Ctrl-C does."""
    os.killpg(process.pid, signal.SIGINT)


# The first start --------------------------------------------------------------------------------------------------


def test_only_the_first_start_prints_a_password_that_works(hall: Hall) -> None:
    hall.add("one")
    first = hall.up(**OWN_SQLITE)
    wait_for_web(hall)
    match = eventually(lambda: PASSWORD.search(hall.output()))
    password = match[1]
    assert len(password) >= 16
    assert not can_log_in(hall, "another password")
    assert can_log_in(hall, password)
    token = token_of(hall, **OWN_SQLITE)
    eventually(lambda: roster(hall, token) == {"one": "connected"}, what="the roster comes up")
    interrupt(first)
    assert first.wait(PATIENCE) == 0

    hall.up(**OWN_SQLITE)
    wait_for_web(hall)
    assert can_log_in(hall, password)
    eventually(lambda: roster(hall, token) == {"one": "connected"})
    assert hall.output().count(password) == 1
    assert len(PASSWORD.findall(hall.output())) == 1


def test_the_password_of_the_first_account_can_be_chosen(hall: Hall) -> None:
    hall.up(GUILD_HALL_ADMIN_PASSWORD="chosen by hand")
    wait_for_web(hall)
    assert can_log_in(hall, "chosen by hand")
    assert "GUILD_HALL_ADMIN_PASSWORD" in hall.output()
    assert "chosen by hand" not in hall.output()


def test_the_output_begins_with_addresses_and_has_the_names_of_members(hall: Hall) -> None:
    hall.add("good")
    hall.add("bad", "exit=3", restart="never")
    bring_up(hall, "good")
    wait_for_status(hall, "bad", "error")
    eventually(lambda: "member 'bad' could not be started" in hall.output())
    lines = hall.output().splitlines()
    assert f"http://localhost:{hall.web_port}/ " in lines[0]
    assert f"http://localhost:{hall.web_port}/api/docs/" in lines[0]
    assert any(re.search(r" good +\| hello from the member", line) for line in lines)
    assert any(re.search(r" bad +\| cannot go on like this", line) for line in lines)
    assert any(re.search(r" runtime +\| member 'good' is connected: http://localhost:\d+/mcp", line) for line in lines)
    assert any(re.search(r" web +\| ready", line) for line in lines)
    assert not [line for line in lines if not re.match(r"\d\d:\d\d:\d\d \w+ +\| ", line)]


# The end ----------------------------------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.parametrize(
    "sent_signal", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda sent_signal: sent_signal.name
)
def test_a_signal_ends_an_idle_hall_within_two_seconds(hall: Hall, sent_signal: signal.Signals) -> None:
    hall.add("one")
    hall.add("two")
    up = bring_up(hall, "one", "two")
    processes = family(up)
    assert len(processes) == 6  # up, guard, worker, web, two members
    take_alone()
    os.killpg(up.pid, sent_signal)
    wait_for_end_of(processes, within=2)
    assert up.wait(PATIENCE) == 0
    assert hall.busy_ports() == []
    assert "Traceback" not in hall.output()


@pytest.mark.alone
def test_ctrl_c_ends_a_hall_with_a_hung_member_within_five_seconds(hall: Hall) -> None:
    hall.add("hung", "ignore-term", "fork")
    up = bring_up(hall, "hung")
    processes = [*family(up), *hall.tagged_processes()]
    take_alone()
    interrupt(up)
    wait_for_end_of(processes, within=5)
    assert up.wait(PATIENCE) == 0
    assert hall.tagged_processes() == []


@pytest.mark.alone
def test_ctrl_c_ends_a_hall_of_many_members_without_warnings_or_leftovers(hall: Hall) -> None:
    names = [f"m{number:02}" for number in range(24)]
    for name in names:
        hall.add(name)
    up = bring_up(hall, *names)
    processes = family(up)
    assert len(processes) == 4 + len(names)
    take_alone()
    interrupt(up)
    wait_for_end_of(processes, within=5)  # a hundred members have ten seconds
    assert up.wait(PATIENCE) == 0
    text = hall.output().partition("stopping: no new calls")[2]
    assert text, hall.output()
    assert "warning" not in text
    assert "error" not in text
    assert hall.busy_ports() == []
    assert PortAllocation.objects.count() == 0
    assert current_lease_id() is None
    assert set(GuildMember.objects.values_list("status", "pid")) == {("disconnected", None)}


@pytest.mark.alone
def test_a_second_ctrl_c_ends_the_hall_within_a_second(hall: Hall) -> None:
    hall.add("hung", "ignore-term", "fork")
    up = bring_up(hall, "hung")
    processes = [*family(up), *hall.tagged_processes()]
    take_alone()
    interrupt(up)
    eventually(lambda: "stopping" in hall.output())
    interrupt(up)
    wait_for_end_of(processes, within=1)
    assert up.wait(PATIENCE) == 0
    assert hall.tagged_processes() == []


def test_running_calls_succeed_after_two_hangup_signals(hall: Hall) -> None:
    hall.add("one")
    up = bring_up(hall, "one", GUILD_HALL_ADMIN_PASSWORD="x")
    url = f"{hall.url}/api/members/one/tools/sleep/invoke/"
    headers = {"Authorization": f"Bearer {token_of(hall)}"}
    path = requests.post(url, json={"arguments": {"seconds": 1.5}}, headers=headers, timeout=10).headers["Location"]
    eventually(lambda: requests.get(hall.url + path, headers=headers, timeout=10).json()["status"] == "running")
    up.send_signal(signal.SIGHUP)
    eventually(lambda: "stopping" in hall.output())
    up.send_signal(signal.SIGHUP)
    assert up.wait(PATIENCE) == 0
    result = hall.manage("shell", "-c", "from roster.models import Call as I; print(I.objects.get().status)")
    assert result.stdout.split()[-1] == "succeeded"


@pytest.mark.skipif(sys.platform != "linux", reason="PDEATHSIG is Linux's")
def test_a_killed_hall_leaves_no_process_and_no_port(hall: Hall) -> None:
    hall.add("plain")
    hall.add("deaf", "ignore-term", "fork")
    up = bring_up(hall, "plain", "deaf")
    processes = [*family(up), *hall.tagged_processes()]
    up.kill()
    wait_for_end_of(processes, within=6)
    assert hall.tagged_processes() == []
    assert hall.busy_ports() == []


@pytest.mark.skipif(sys.platform != "linux", reason="PDEATHSIG is Linux's")
def test_a_hall_killed_during_its_start_leaves_no_process(hall: Hall) -> None:
    up = hall.up()
    processes = eventually(lambda: len(processes := family(up)) >= 3 and processes, within=20)
    up.kill()
    wait_for_end_of(processes, within=6)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_run_ends_without_errors(hall: Hall) -> None:
    hall.add("one")
    # make does not make them, because the tests run in an installation
    marker, script = f"{sys.prefix}/.installed", f"{sys.prefix}/bin/guildhall"
    make = hall.popen(["make", "run", f"VENV={sys.prefix}", "-o", marker, "-o", script])
    wait_for_status(hall, "one", "connected", within=30)
    processes = family(make)
    interrupt(make)
    wait_for_end_of(processes, within=5)
    assert make.wait(PATIENCE) in (0, -signal.SIGINT)
    assert "Traceback" not in hall.output()
    assert "***" not in hall.output()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no part is a fork")
def test_parts_are_forks_with_shared_memory_unblocked_signals_and_own_sockets(hall: Hall) -> None:
    hall.add("one")
    up = bring_up(hall, "one")
    parent, *descendants = family(up)
    parts = {command_of(part): part for part in descendants}
    worker, web = parts["mcp_runtime.runtime.worker"], parts["guildhall.web"]
    assert (worker.ppid(), web.ppid()) == (parts[next(name for name in parts if "guard" in name)].pid, parent.pid)
    for process in (parent, *descendants):
        blocked_signals = re.search(r"SigBlk:\s+0*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
        assert blocked_signals
        assert int(blocked_signals[1], 16) == 0, process
    listeners = [
        process
        for process in (parent, *descendants)
        if any(sock.laddr.port == hall.gateway_port and sock.status == "LISTEN" for sock in process.net_connections())
    ]
    assert listeners == [parent, worker]
    shared_memory = re.search(r"Shared_Dirty:\s+(\d+)", Path(f"/proc/{web.pid}/smaps_rollup").read_text())
    assert shared_memory
    assert int(shared_memory[1]) > 12_000
    assert parent.memory_info().rss < 20_000_000
    total = sum(
        process.memory_full_info().pss for process in (parent, *descendants) if process not in hall.tagged_processes()
    )
    assert total < (130_000_000 if connection.vendor == "sqlite" else 150_000_000), parts


# A part that ends -------------------------------------------------------------------------------------------------


def is_back(name: str, old_pid: int | None) -> bool:
    row = member(name)
    return row.status == "connected" and row.pid not in (None, old_pid)


@pytest.mark.alone
@pytest.mark.parametrize("victim", ["worker", "guard", "guildhall.web"])
def test_a_killed_part_serves_again_within_three_seconds_and_others_keep_running(hall: Hall, victim: str) -> None:
    hall.add("one")
    up = bring_up(hall, "one")
    old_pid = member("one").pid
    web = next(part for part in family(up) if command_of(part) == "guildhall.web")
    take_alone()
    next(part for part in family(up) if victim in command_of(part)).kill()
    within = 3 + RESTART_DELAYS[0]  # the hall is young, so there is a pause before the restart

    if victim == "guildhall.web":
        eventually(lambda: not is_live(web))
        eventually(lambda: web_responds(hall), within=within, what=hall.output())
        assert member("one").pid == old_pid
    else:
        eventually(lambda: is_back("one", old_pid), within=within, what=hall.output())
        assert is_live(web)
    assert up.poll() is None


def test_clients_that_connect_during_a_restart_wait_for_the_runtime(hall: Hall) -> None:
    hall.add("one")
    up = bring_up(hall, "one")
    token = make_token()
    agent = GatewayClient(hall, token).begin()
    tools = eventually(agent.tools)
    worker = next(part for part in family(up) if "worker" in command_of(part))

    worker.kill()
    with contextlib.suppress(requests.ConnectionError):  # the old connection ends with the killed worker
        agent.ask("ping")

    assert GatewayClient(hall, token).begin().tools() == tools
    assert agent.tools() == tools
    eventually(lambda: "starting it again" in hall.output())


def run_parts(**commands: list[str]) -> subprocess.CompletedProcess[str]:
    """`up` with other parts and short restart delays."""
    script = (
        "import sys, django; django.setup()\n"
        "from mcp_runtime.runtime import processes as up\n"
        f"up.COMMANDS = {commands!r}\n"
        "up.RESTART_DELAYS = (0.05, 0.05)\n"
        "sys.exit(up.Processes(print).run())"
    )
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=30)


def test_a_part_that_will_not_stay_up_ends_the_hall_with_its_exit_code() -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    result = run_parts(web=sleeper, runtime=[sys.executable, "-c", "raise SystemExit(9)"])
    assert result.returncode == 9
    assert result.stdout.count("The runtime ended with exit code 9; starting it again in 0.05 s.") == 2
    assert "The runtime ended with exit code 9 and will not stay up; stopping." in result.stdout


def fence_files(process: psutil.Process) -> list[Path]:
    """The descriptors of the file that guard and worker share."""
    folder = Path(f"/proc/{process.pid}/fd")
    paths = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            paths += [path] if "guild-hall-fence" in os.readlink(path) else []
    return paths


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")
def test_the_fence_ends_a_suspended_runtime_with_its_members_and_up_starts_it_again(hall: Hall) -> None:
    hall.add("one", "ignore-term", "fork", "escape")
    up = bring_up(hall, "one")
    strike_fence(hall, up, count=1)  # guard and worker are forks
    strike_fence(hall, up, count=2)  # they are new programs


def strike_fence(hall: Hall, up: subprocess.Popen[bytes], *, count: int) -> None:
    """Suspend the worker of a hall, as if it had a second node, until the runtime was started again."""
    parts = {command_of(part): part for part in family(up)}
    guard_process = next(part for name, part in parts.items() if "runtime/guard" in name)
    worker = next(part for name, part in parts.items() if "runtime.worker" in name)
    tagged_processes, old_pid = hall.tagged_processes(), member("one").pid
    assert [process for process in family(up) if fence_files(process)] == [guard_process, worker]
    worker.suspend()
    guard_process.send_signal(guard.FENCE_SIGNAL)  # as the worker sends it
    eventually(lambda: not is_live(worker), within=2 * guard.FENCE_SECONDS)
    eventually(lambda: not any(map(is_live, tagged_processes)), within=2)
    eventually(lambda: hall.output().count("The runtime ended with exit code 74; starting it again") == count)
    assert hall.output().count("accepted no heartbeat of this node for 5 s") == count
    eventually(lambda: is_back("one", old_pid), within=2 * PATIENCE)


def test_a_runtime_that_the_fence_ends_again_and_again_is_always_started_again() -> None:
    part = Part("runtime", [])
    assert {part.restart_delay(guard.EX_FENCED) for _ in range(10)} == {RESTART_DELAYS[0]}
    assert part.restart_delay(1) == RESTART_DELAYS[0]


def test_restart_delays_grow_after_short_lifetimes_only() -> None:
    part = Part("runtime", [])
    delays = []
    for lifetime in (60.0, 1.0, 1.0, 60.0, 1.0, 1.0, 1.0, 1.0):
        part._started_at = time.monotonic() - lifetime
        delays.append(part.restart_delay())
    assert delays == [0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 4.0, None]


# Two halls --------------------------------------------------------------------------------------------------------


def test_two_halls_run_at_the_same_time(hall: Hall, tmp_path: Path) -> None:
    (tmp_path / "another").mkdir()
    second_hall = Hall(tmp_path / "another")
    try:
        halls = (hall, second_hall)
        tokens = []
        for each in halls:
            each.add("same-name")
            each.up(**OWN_SQLITE)
        for each in halls:
            wait_for_web(each)
            tokens.append(token_of(each, **OWN_SQLITE))
        for each, token in zip(halls, tokens, strict=True):
            eventually(lambda each=each, token=token: roster(each, token) == {"same-name": "connected"}, within=20)
            assert call_echo(each, token)["status"] == "succeeded"
        interrupt(second_hall.processes[0])
        assert second_hall.processes[0].wait(PATIENCE) == 0
        assert roster(hall, tokens[0]) == {"same-name": "connected"}
    finally:
        second_hall.end()


def call_echo(hall: Hall, token: str) -> dict[str, Any]:
    response = requests.post(
        f"{hall.url}/api/members/same-name/tools/echo/invoke/",
        json={"arguments": {"text": "hi"}},
        headers={"Authorization": f"Token {token}", "Prefer": "wait=10"},
        timeout=20,
    )
    return dict(response.json())


def test_a_second_start_of_the_same_hall_is_refused_with_the_reason(hall: Hall) -> None:
    hall.add("one")
    first = bring_up(hall, "one")
    watch = Stopwatch()
    web_conflict = hall.manage("up")
    assert web_conflict.returncode == 1
    assert f"cannot listen on 127.0.0.1:{hall.web_port}: Address already in use" in web_conflict.stderr
    assert "GUILD_HALL_PORT" in web_conflict.stderr
    web_port, gateway_port = (str(hall.port_range[1] - number) for number in range(2))
    gateway_conflict = hall.manage("up", env={"GUILD_HALL_PORT": web_port})
    assert gateway_conflict.returncode == 1
    assert (
        f"The gateway cannot listen on 127.0.0.1:{hall.gateway_port}: Address already in use" in gateway_conflict.stderr
    )
    assert "GUILD_HALL_GATEWAY_PORT" in gateway_conflict.stderr
    lease_conflict = hall.manage("up", env={"GUILD_HALL_PORT": web_port, "GUILD_HALL_GATEWAY_PORT": gateway_port})
    assert lease_conflict.returncode == 1
    assert f"its runtime is process {hall.worker_pid} on " in lease_conflict.stderr
    assert watch.seconds < 20  # three commands take most of the time
    assert "Traceback" not in web_conflict.stderr + lease_conflict.stderr
    assert first.poll() is None
    wait_for_web(hall)
    wait_for_status(hall, "one", "connected")


# Wrong environments -----------------------------------------------------------------------------------------------


def test_only_the_first_start_makes_a_members_folder_that_is_missing(hall: Hall) -> None:
    hall.members_dir.rmdir()
    process = hall.up(**OWN_SQLITE)
    wait_for_web(hall)
    assert hall.members_dir.is_dir()
    assert f"Made the members folder {hall.members_dir}." in hall.output()
    interrupt(process)
    assert process.wait(PATIENCE) == 0
    hall.members_dir.rmdir()
    second_start = hall.manage("up", env=OWN_SQLITE)
    assert (second_start.returncode, hall.members_dir.exists()) == (1, False)
    assert f"GUILD_HALL_MEMBERS_DIR={hall.members_dir} is not a folder" in second_start.stderr


@pytest.mark.parametrize("command", ["up", "prepare", "runtime", "roster", "migrate"])
def test_every_command_refuses_a_wrong_setting_in_one_line(tmp_path: Path, command: str) -> None:
    environment = {**os.environ, "GUILD_HALL_DATA_DIR": str(tmp_path), "GUILD_HALL_PORT": "eighty"}
    result = subprocess.run(
        [sys.executable, "manage.py", command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=30
    )
    assert result.returncode == 1
    assert result.stderr == (
        "Guild Hall cannot start. GUILD_HALL_PORT='eighty': give a whole number from 1 to 65535, e.g. 8000.\n"
    )


@pytest.mark.parametrize(
    ("environment", "text", "code"),
    [
        ({"GUILD_HALL_HOST": "192.0.2.1"}, "The web cannot listen on 192.0.2.1:", 1),
        ({"GUILD_HALL_MEMBERS_DIR": "/nowhere"}, "GUILD_HALL_MEMBERS_DIR=/nowhere is not a folder", 1),
        ({"DATABASE_URL": "sqlite:////nowhere/hall.sqlite3"}, "The database cannot be used (unable to open", 3),
        ({"DATABASE_URL": "postgres://nobody@127.0.0.1:1/hall"}, "The database cannot be used (connection failed", 3),
    ],
)
def test_a_wrong_environment_is_reported_and_nothing_starts(
    hall: Hall, environment: dict[str, str], text: str, code: int
) -> None:
    result = hall.manage("up", env=environment)
    assert result.returncode == code
    assert text in result.stderr
    assert "Traceback" not in result.stderr
    assert "runtime" not in result.stdout


def test_without_its_packages_the_command_line_says_how_to_install_them() -> None:
    result = subprocess.run(
        [sys.executable, "-S", "-I", "manage.py", "up"], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    assert result.returncode == 1
    assert "make run" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_command_ends_without_a_last_garbage_collection() -> None:
    script = "import gc, sys, manage; sys.argv = ['manage.py', 'check']; manage.main(); print(gc.get_freeze_count())"
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert int(result.stdout.splitlines()[-1]) > 10_000, result.stderr

"""`manage.py up`, which `make run` runs: the whole hall from the outside, by HTTP, output and process table."""

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

import pytest
import requests
from django.db import connection

from mcp_runtime.rows import lease
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
    lives,
    member,
    roster,
    token_of,
    wait_for_end_of,
    wait_for_status,
    wait_for_web,
    web_answers,
)
from tests.support.machine import Stopwatch, take_alone

OWN_SQLITE = {"DATABASE_URL": "", "REDIS_URL": ""}  # as on a bare machine: all defaults
PASSWORD = re.compile(r"log in as  admin  with the password  (\S+)")


def logs_in(hall: Hall, password: str) -> bool:
    """Whether `admin` gets in, through the form that a browser shows."""
    with requests.Session() as browser:
        page = browser.get(f"{hall.url}/admin/login/", timeout=10)
        field = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text)
        assert field, page.text
        form = {"username": "admin", "password": password, "csrfmiddlewaretoken": field[1], "next": "/admin/"}
        answer = browser.post(page.url, data=form, headers={"Origin": hall.url}, timeout=10)
        return answer.url == f"{hall.url}/admin/"


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """Ctrl-C: to the whole process group in front."""
    os.killpg(process.pid, signal.SIGINT)


# The first start --------------------------------------------------------------------------------------------------


def test_the_first_start_says_a_password_that_opens_the_door_and_later_starts_say_none(hall: Hall) -> None:
    hall.add("one")
    first = hall.up(**OWN_SQLITE)
    wait_for_web(hall)
    said = eventually(lambda: PASSWORD.search(hall.output()))
    password = said[1]
    assert len(password) >= 16
    assert not logs_in(hall, "another password")
    assert logs_in(hall, password)
    token = token_of(hall, **OWN_SQLITE)
    eventually(lambda: roster(hall, token) == {"one": "connected"}, what="the roster comes up")
    interrupt(first)
    assert first.wait(PATIENCE) == 0

    hall.up(**OWN_SQLITE)
    wait_for_web(hall)
    assert logs_in(hall, password)
    eventually(lambda: roster(hall, token) == {"one": "connected"})
    assert hall.output().count(password) == 1
    assert len(PASSWORD.findall(hall.output())) == 1


def test_the_password_of_the_first_account_can_be_chosen(hall: Hall) -> None:
    hall.up(GUILD_HALL_ADMIN_PASSWORD="chosen by hand")
    wait_for_web(hall)
    assert logs_in(hall, "chosen by hand")
    assert "GUILD_HALL_ADMIN_PASSWORD" in hall.output()
    assert "chosen by hand" not in hall.output()


def test_addresses_come_first_then_the_roster_as_it_comes_up_with_members_names_on_their_words(hall: Hall) -> None:
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
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_ends_an_idle_hall_within_two_seconds(hall: Hall, number: signal.Signals) -> None:
    hall.add("one")
    hall.add("two")
    up = bring_up(hall, "one", "two")
    processes = family(up)
    assert len(processes) == 6  # up, guard, worker, web, two members
    take_alone()
    os.killpg(up.pid, number)
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
def test_ctrl_c_ends_a_hall_of_many_members_quietly_and_leaves_nothing_to_put_in_order(hall: Hall) -> None:
    names = [f"m{number:02}" for number in range(24)]
    for name in names:
        hall.add(name)
    up = bring_up(hall, *names)
    processes = family(up)
    assert len(processes) == 4 + len(names)
    take_alone()
    interrupt(up)
    wait_for_end_of(processes, within=5)  # a hundred have ten seconds
    assert up.wait(PATIENCE) == 0
    said = hall.output().partition("stopping: no new calls")[2]
    assert said, hall.output()
    assert "warning" not in said
    assert "error" not in said
    assert hall.busy_ports() == []
    assert PortAllocation.objects.count() == 0
    assert lease.hall().lease_id is None
    assert set(GuildMember.objects.values_list("status", "pid")) == {("disconnected", None)}


@pytest.mark.alone
def test_a_second_ctrl_c_ends_it_within_a_second(hall: Hall) -> None:
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


def test_a_terminal_that_closes_hangs_up_twice_and_calls_still_end_in_peace(hall: Hall) -> None:
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
    done = hall.manage("shell", "-c", "from roster.models import Call as I; print(I.objects.get().status)")
    assert done.stdout.split()[-1] == "succeeded"


@pytest.mark.skipif(sys.platform != "linux", reason="PDEATHSIG is Linux's")
def test_up_killed_leaves_nothing_behind(hall: Hall) -> None:
    hall.add("plain")
    hall.add("deaf", "ignore-term", "fork")
    up = bring_up(hall, "plain", "deaf")
    processes = [*family(up), *hall.tagged_processes()]
    up.kill()
    wait_for_end_of(processes, within=6)
    assert hall.tagged_processes() == []
    assert hall.busy_ports() == []


@pytest.mark.skipif(sys.platform != "linux", reason="PDEATHSIG is Linux's")
def test_up_killed_at_once_leaves_nothing_behind(hall: Hall) -> None:
    up = hall.up()
    children = eventually(lambda: len(found := family(up)) >= 3 and found, within=20)
    up.kill()
    wait_for_end_of(children, within=6)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_run_ends_without_a_complaint(hall: Hall) -> None:
    hall.add("one")
    installed = f"{sys.prefix}/.installed"  # never made here: the tests run in what is installed
    make = hall.popen(["make", "run", f"VENV={sys.prefix}", "-o", installed])
    wait_for_status(hall, "one", "connected", within=30)
    processes = family(make)
    interrupt(make)
    wait_for_end_of(processes, within=5)
    assert make.wait(PATIENCE) in (0, -signal.SIGINT)
    assert "Traceback" not in hall.output()
    assert "***" not in hall.output()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no part is a fork")
def test_parts_are_forks_that_share_memory_hear_signals_and_keep_nothing_of_others(hall: Hall) -> None:
    hall.add("one")
    up = bring_up(hall, "one")
    waiting, *rest = family(up)
    parts = {command_of(part): part for part in rest}
    worker, web = parts["mcp_runtime.runtime.worker"], parts["guildhall.web"]
    assert (worker.ppid(), web.ppid()) == (parts[next(name for name in parts if "guard" in name)].pid, waiting.pid)
    for process in (waiting, *rest):
        blocked = re.search(r"SigBlk:\s+0*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
        assert blocked
        assert int(blocked[1], 16) == 0, process
    listeners = [
        process
        for process in (waiting, *rest)
        if any(one.laddr.port == hall.gateway_port and one.status == "LISTEN" for one in process.net_connections())
    ]
    assert listeners == [waiting, worker]
    shared = re.search(r"Shared_Dirty:\s+(\d+)", Path(f"/proc/{web.pid}/smaps_rollup").read_text())
    assert shared
    assert int(shared[1]) > 12_000
    assert waiting.memory_info().rss < 20_000_000
    total = sum(
        process.memory_full_info().pss for process in (waiting, *rest) if process not in hall.tagged_processes()
    )
    assert total < (130_000_000 if connection.vendor == "sqlite" else 150_000_000), parts


# A part that dies -------------------------------------------------------------------------------------------------


def is_back(name: str, old_pid: int | None) -> bool:
    row = member(name)
    return row.status == "connected" and row.pid not in (None, old_pid)


@pytest.mark.alone
@pytest.mark.parametrize("victim", ["worker", "guard", "guildhall.web"])
def test_a_part_that_was_killed_serves_again_within_three_seconds_and_the_others_go_on(hall: Hall, victim: str) -> None:
    hall.add("one")
    up = bring_up(hall, "one")
    before = member("one").pid
    web = next(part for part in family(up) if command_of(part) == "guildhall.web")
    take_alone()
    next(part for part in family(up) if victim in command_of(part)).kill()
    within = 3 + RESTART_DELAYS[0]  # the hall is young, so there is a pause before

    if victim == "guildhall.web":
        eventually(lambda: not lives(web))
        eventually(lambda: web_answers(hall), within=within, what=hall.output())
        assert member("one").pid == before
    else:
        eventually(lambda: is_back("one", before), within=within, what=hall.output())
        assert lives(web)
    assert up.poll() is None


def test_agents_who_come_while_the_runtime_restarts_wait_for_it(hall: Hall) -> None:
    hall.add("one")
    up = bring_up(hall, "one")
    token = make_token()
    agent = GatewayClient(hall, token).begin()
    tools = agent.tools()
    worker = next(part for part in family(up) if "worker" in command_of(part))

    worker.kill()
    with contextlib.suppress(requests.ConnectionError):  # on the connection of the one that was killed
        agent.ask("ping")

    assert GatewayClient(hall, token).begin().tools() == tools
    assert agent.tools() == tools
    assert "starting it again" in hall.output()


def run_parts(**commands: list[str]) -> subprocess.CompletedProcess[str]:
    """`up` with other parts and no patience."""
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
    done = run_parts(web=sleeper, runtime=[sys.executable, "-c", "raise SystemExit(9)"])
    assert done.returncode == 9
    assert done.stdout.count("The runtime ended with exit code 9; starting it again in 0.05 s.") == 2
    assert "The runtime ended with exit code 9 and will not stay up; stopping." in done.stdout


def test_a_part_is_started_again_at_once_after_a_long_life_and_later_after_short_ones() -> None:
    part = Part("runtime", [])
    delays = []
    for lived in (60.0, 1.0, 1.0, 60.0, 1.0, 1.0, 1.0, 1.0):
        part._started_at = time.monotonic() - lived
        delays.append(part.restart_delay())
    assert delays == [0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 4.0, None]


# Two halls --------------------------------------------------------------------------------------------------------


def test_two_halls_run_side_by_side(hall: Hall, tmp_path: Path) -> None:
    (tmp_path / "another").mkdir()
    another = Hall(tmp_path / "another")
    try:
        halls = (hall, another)
        tokens = []
        for one in halls:
            one.add("same-name")
            one.up(**OWN_SQLITE)
        for one in halls:
            wait_for_web(one)
            tokens.append(token_of(one, **OWN_SQLITE))
        for one, token in zip(halls, tokens, strict=True):
            eventually(lambda one=one, token=token: roster(one, token) == {"same-name": "connected"}, within=20)
            assert call_echo(one, token)["status"] == "succeeded"
        interrupt(another.processes[0])
        assert another.processes[0].wait(PATIENCE) == 0
        assert roster(hall, tokens[0]) == {"same-name": "connected"}
    finally:
        another.end()


def call_echo(hall: Hall, token: str) -> dict[str, Any]:
    answer = requests.post(
        f"{hall.url}/api/members/same-name/tools/echo/invoke/",
        json={"arguments": {"text": "hi"}},
        headers={"Authorization": f"Token {token}", "Prefer": "wait=10"},
        timeout=20,
    )
    return dict(answer.json())


def test_a_second_start_of_the_same_hall_refuses_and_says_why(hall: Hall) -> None:
    hall.add("one")
    first = bring_up(hall, "one")
    watch = Stopwatch()
    again = hall.manage("up")
    assert again.returncode == 1
    assert f"cannot listen on 127.0.0.1:{hall.web_port}: Address already in use" in again.stderr
    assert "GUILD_HALL_PORT" in again.stderr
    web_port, gateway_port = (str(hall.port_range[1] - number) for number in range(2))
    half = hall.manage("up", env={"GUILD_HALL_PORT": web_port})
    assert half.returncode == 1
    assert f"The gateway cannot listen on 127.0.0.1:{hall.gateway_port}: Address already in use" in half.stderr
    assert "GUILD_HALL_GATEWAY_PORT" in half.stderr
    elsewhere = hall.manage("up", env={"GUILD_HALL_PORT": web_port, "GUILD_HALL_GATEWAY_PORT": gateway_port})
    assert elsewhere.returncode == 1
    assert f"its runtime is process {hall.worker_pid} on " in elsewhere.stderr
    assert watch.seconds < 20  # of which three commands take most
    assert "Traceback" not in again.stderr + elsewhere.stderr
    assert first.poll() is None
    wait_for_web(hall)
    wait_for_status(hall, "one", "connected")


# What cannot work -------------------------------------------------------------------------------------------------


def test_only_the_first_start_makes_a_members_folder_that_is_missing(hall: Hall) -> None:
    hall.members_dir.rmdir()
    process = hall.up(**OWN_SQLITE)
    wait_for_web(hall)
    assert hall.members_dir.is_dir()
    assert f"Made the members folder {hall.members_dir}." in hall.output()
    interrupt(process)
    assert process.wait(PATIENCE) == 0
    hall.members_dir.rmdir()
    again = hall.manage("up", env=OWN_SQLITE)
    assert (again.returncode, hall.members_dir.exists()) == (1, False)
    assert f"GUILD_HALL_MEMBERS_DIR={hall.members_dir} is not a folder" in again.stderr


@pytest.mark.parametrize("command", ["up", "prepare", "runtime", "roster", "migrate"])
def test_a_wrong_setting_is_refused_in_one_line_whatever_the_command(tmp_path: Path, command: str) -> None:
    environment = {**os.environ, "GUILD_HALL_DATA_DIR": str(tmp_path), "GUILD_HALL_PORT": "eighty"}
    done = subprocess.run(
        [sys.executable, "manage.py", command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert done.stderr == (
        "Guild Hall cannot start. GUILD_HALL_PORT='eighty': give a whole number from 1 to 65535, e.g. 8000.\n"
    )


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"GUILD_HALL_HOST": "192.0.2.1"}, "The web cannot listen on 192.0.2.1:"),
        ({"GUILD_HALL_MEMBERS_DIR": "/nowhere"}, "GUILD_HALL_MEMBERS_DIR=/nowhere is not a folder"),
        ({"DATABASE_URL": "sqlite:////nowhere/hall.sqlite3"}, "The database cannot be used (unable to open"),
        ({"DATABASE_URL": "postgres://nobody@127.0.0.1:1/hall"}, "The database cannot be used (connection failed"),
    ],
)
def test_what_is_missing_is_said_and_nothing_is_started(hall: Hall, environment: dict[str, str], words: str) -> None:
    done = hall.manage("up", env=environment)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "runtime" not in done.stdout


def test_without_its_packages_the_command_line_says_how_to_install_them() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-I", "manage.py", "up"], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert "make run" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_ends_without_looking_through_all_that_it_loaded() -> None:
    script = "import gc, sys, manage; sys.argv = ['manage.py', 'check']; manage.main(); print(gc.get_freeze_count())"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert int(done.stdout.splitlines()[-1]) > 10_000, done.stderr

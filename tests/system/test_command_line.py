"""A second terminal beside a real hall: it finds the hall, calls tools, completes in a shell, and starts fast."""

from __future__ import annotations

import contextlib
import os
import pty
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guildhall import entry_point
from mcp_runtime.system import running_halls
from tests.conftest import ROOT, eventually
from tests.support import machine
from tests.support.hall import Hall
from tests.support.terminal import PROGRAM, environment, guildhall

# Commands that only read. docs/command-line.md promises their share of the time of `manage.py check`.
READING = (
    *("roster", "nodes", "logs example", "audit", "secrets", "tool_sets", "trash", "contracts list"),
    *("prompt list example", "resource list example", "explain_access admin example/echo", "runtime --check"),
)
MOST = 0.4
MAX_ROUNDS = 10


@pytest.fixture
def state(tmp_path: Path) -> str:
    """The state folder of a user without other halls."""
    return str(tmp_path / "state")


@pytest.fixture
def running(hall: Hall, state: str) -> Hall:
    hall.add("notes")
    hall.up(XDG_STATE_HOME=state)
    eventually((hall.data_dir / running_halls.FILE).exists, within=60, what="the hall announces itself")
    eventually(
        lambda: "connected" in guildhall("roster", env={"XDG_STATE_HOME": state}).stdout, within=60, what="a connection"
    )
    return hall


def test_a_second_terminal_uses_the_running_hall_without_variables(running: Hall, state: str, tmp_path: Path) -> None:
    def terminal(*words: str) -> subprocess.CompletedProcess[str]:
        return guildhall(*words, cwd=tmp_path, env={"XDG_STATE_HOME": state})

    answer = terminal("invoke", "notes", "echo", '{"text": "hi"}')
    assert (answer.returncode, answer.stdout) == (0, "hi\n"), answer.stderr
    refusal = terminal("invoke", "notes", "echo", "[]")
    assert (refusal.returncode, len(refusal.stderr.splitlines())) == (5, 1)
    made = terminal("new_member", "fresh")
    assert made.returncode == 0, made.stderr
    assert made.stdout.index("Made member fresh") < made.stdout.index("It is connected. Next:")
    assert (running.members_dir / "fresh").is_dir()
    assert terminal("help").stdout.splitlines()[-1] == f"Data folder: {running.data_dir}"

    running.processes[0].send_signal(signal.SIGTERM)
    assert running.processes[0].wait(30) == 0
    assert not [hall for hall in _halls(state) if hall.data_dir == running.data_dir]
    assert guildhall("--hall", str(running.data_dir), "roster", env={"XDG_STATE_HOME": state}).returncode == 0


def _halls(state: str) -> list[running_halls.RunningHall]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", state)
        return running_halls.running_halls()


@pytest.mark.usefixtures("running")
def test_a_real_bash_completes_names_of_the_hall(state: str, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    entry_point.write(tmp_path / "guildhall", Path(sys.executable))
    variables = environment(XDG_STATE_HOME=state, PATH=f"{tmp_path}:{os.environ['PATH']}", PS1="$ ", TERM="dumb")
    with shell([bash, "--norc", "--noprofile", "-i"], variables) as terminal:
        terminal.write("source <(guildhall completion bash); echo rea''dy\n")
        terminal.read_until("ready")
        terminal.write("guildhall member restart n\t")
        terminal.read_until("restart notes ")
        terminal.write("\x15guildhall invoke notes ech\t")
        terminal.read_until("notes echo ")
        terminal.write("\x15guildhall rost\t--js\t")
        terminal.read_until("roster --json ")


class Terminal:
    """A shell in a pseudo-terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._text = ""

    def write(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def read_until(self, end: str) -> None:
        """Read what the shell shows, until `end`."""
        deadline = time.monotonic() + 60
        while end not in self._text:
            ready, _, _ = select.select([self._descriptor], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"{end!r} is not in {self._text!r}"
            self._text += os.read(self._descriptor, 4096).decode(errors="replace")
        self._text = self._text.partition(end)[2]


@contextlib.contextmanager
def shell(argv: list[str], variables: dict[str, str]) -> Iterator[Terminal]:
    pid, descriptor = pty.fork()
    if not pid:
        os.execve(argv[0], argv, variables)
    try:
        yield Terminal(descriptor)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(descriptor)


# Speed ------------------------------------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.timeout(400)
def test_commands_that_read_need_a_small_part_of_the_time_of_a_check(tmp_path: Path) -> None:
    """Processor time, as a share of `manage.py check` in the same run, and the least of some rounds.

    More rounds follow only while a share is too large, because something else may have taken the caches.
    """
    variables = _small_hall(tmp_path)
    check = [sys.executable, "manage.py", "check"]
    argvs = {words: [*PROGRAM, *words.split()] for words in READING}
    for argv in [check, *argvs.values()]:
        _cpu_seconds(argv, variables)  # this compiles the modules
    machine.take_alone()
    least: dict[str, float] = {}
    for _ in range(MAX_ROUNDS):
        for name, argv in {"check": check, **argvs}.items():
            if least.get(name, 1.0) > MOST * least.get("check", 0.0):
                least[name] = min(least.get(name, 1e9), _cpu_seconds(argv, variables))
        shares = {name: least[name] / least["check"] for name in READING}
        if max(shares.values()) <= MOST:
            return
    pytest.fail(f"shares of the time of `manage.py check`: {shares}")


def _small_hall(folder: Path) -> dict[str, str]:
    """The variables of a hall with one member, which does not run."""
    shutil.copytree(ROOT / "guild-members" / "example", folder / "members" / "example")
    variables = environment(GUILD_HALL_DATA_DIR=str(folder / "data"), GUILD_HALL_MEMBERS_DIR=str(folder / "members"))
    # Coverage would take most of the time, and not the same part of each.
    variables = {name: value for name, value in variables.items() if not name.startswith("COV")}
    for command in ("prepare", "sync_roster"):
        argv = [sys.executable, "manage.py", command]
        subprocess.run(argv, cwd=ROOT, env=variables, capture_output=True, check=True, timeout=120)
    return variables


def _cpu_seconds(argv: list[str], variables: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, cwd=ROOT, env=variables, capture_output=True, timeout=120)  # some exit with 1: no runtime
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

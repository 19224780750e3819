"""`manage.py up` ends the processes of the hall, and no other processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT, eventually
from tests.support.hall import command_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")

PARTS = """
import os, subprocess, sys, django
django.setup()
from mcp_runtime.runtime import processes as up
{before}
up.COMMANDS = {{"runtime": [sys.executable, "-c", {runtime!r}], "web": ["sleep", "600"]}}
sys.exit(up.Processes({say}).run())
"""
QUIET = "import time; time.sleep(600)"


class Up:
    """`up` with a runtime that the test defines. Processes write their ids into files of `folder`."""

    def __init__(
        self, folder: Path, *, runtime: str = QUIET, before: str = "", say: str = "print", **environment: str
    ) -> None:
        self.folder = folder
        script = PARTS.format(before=textwrap.dedent(before), runtime=textwrap.dedent(runtime), say=say)
        environment = {
            **os.environ,
            "FOLDER": str(folder),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            **environment,
        }
        with (folder / "output").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", script], cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
            )

    def pid(self, name: str) -> int:
        file = self.folder / name
        eventually(lambda: file.exists() and file.read_text().strip(), what=self.output())
        return int(file.read_text())

    def output(self) -> str:
        return (self.folder / "output").read_text()

    @property
    def parts(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def part(self, word: str) -> psutil.Process:
        def find() -> list[psutil.Process]:
            return [part for part in self.parts if word in command_of(part)]

        eventually(find, what=f"{word} begins; so far: {self.output()}")
        return find()[0]


StartUp = Callable[..., Up]


@pytest.fixture
def start_up(tmp_path: Path) -> Iterator[StartUp]:
    instances: list[Up] = []

    def start(**values: str) -> Up:
        instances.append(Up(tmp_path, **values))
        return instances[-1]

    yield start
    for up in instances:
        with contextlib.suppress(psutil.Error):
            processes = psutil.Process(up.process.pid).children(recursive=True)
            up.process.kill()
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        up.process.wait(10)
    for file in tmp_path.glob("stranger*"):
        with contextlib.suppress(psutil.Error, ValueError):
            psutil.Process(int(file.read_text())).kill()


def is_live(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def test_children_from_before_up_and_their_processes_are_not_ended(start_up: StartUp) -> None:
    up = start_up(
        before="""
        # One is a child as a script leaves it; of the other the parent dies once `up` runs.
        leave = "sleep 600 & echo $! > $FOLDER/stranger-later; sleep 1"
        early = subprocess.Popen(["sleep", "600"])
        open(os.environ["FOLDER"] + "/stranger-early", "w").write(str(early.pid))
        left = subprocess.Popen(["sh", "-c", leave])
        open(os.environ["FOLDER"] + "/parent", "w").write(str(left.pid))
        """
    )
    stranger_pids = [up.pid("stranger-early"), up.pid("stranger-later")]
    web = up.part("sleep 600")
    eventually(lambda: not psutil.pid_exists(up.pid("parent")), what="the stranger's parent is reaped")
    eventually(lambda: psutil.Process(stranger_pids[1]).ppid() == up.process.pid, what="the stranger is adopted")
    up.part("time.sleep").kill()
    eventually(lambda: "starting it again" in up.output())
    assert all(map(is_live, stranger_pids))
    assert web.pid
    up.process.send_signal(signal.SIGTERM)
    assert up.process.wait(10) == 0
    assert all(map(is_live, stranger_pids))


def test_an_adopted_process_is_reaped_when_it_ends(start_up: StartUp) -> None:
    up = start_up(before='subprocess.Popen(["sh", "-c", "sleep 1 & echo $! > $FOLDER/stranger"])')
    stranger_pid = up.pid("stranger")
    eventually(lambda: not psutil.pid_exists(stranger_pid), what="the stranger is reaped")
    assert up.process.poll() is None


@pytest.mark.parametrize("launcher", ["env -i setsid", "setsid"])
def test_processes_of_a_killed_part_are_ended(start_up: StartUp, launcher: str) -> None:
    up = start_up(
        runtime=f"""
        import os, subprocess, time
        subprocess.run("{launcher} sleep 600 & echo $! > $FOLDER/left", shell=True)
        time.sleep(600)
        """
    )
    orphan_pid = up.pid("left")
    eventually(
        lambda: command_of(psutil.Process(orphan_pid)).startswith("sleep"), what="the orphan has its own environment"
    )
    up.part("time.sleep").kill()
    eventually(lambda: not is_live(orphan_pid), within=5, what=up.output())
    assert up.process.poll() is None


def test_without_birthmarks_the_environment_identifies_processes_of_the_hall(start_up: StartUp) -> None:
    up = start_up(
        before="up.birthmark.sys = type(sys)('elsewhere'); up.birthmark.sys.platform = 'elsewhere'",
        runtime="""
        import os, subprocess, time
        subprocess.run("sleep 600 & echo $! > $FOLDER/left", shell=True)
        time.sleep(600)
        """,
    )
    orphan_pid = up.pid("left")
    up.part("time.sleep").kill()
    eventually(lambda: not is_live(orphan_pid), within=5, what=up.output())


@pytest.mark.parametrize("times", [1, 2])
def test_a_frozen_part_and_its_processes_are_killed_after_the_patience(start_up: StartUp, times: int) -> None:
    up = start_up(
        before="up.PATIENCE_SECONDS = 0.5 if os.environ['TIMES'] == '1' else 60",
        runtime="""
        import subprocess, time
        subprocess.run("setsid sleep 600 & echo $! > $FOLDER/left", shell=True)
        time.sleep(600)
        """,
        TIMES=str(times),
    )
    orphan_pid = up.pid("left")

    def sleepers() -> list[int]:
        return [part.pid for part in up.parts if part.pid != orphan_pid and command_of(part).startswith("sleep")]

    eventually(sleepers, what="the web runs its program")
    (web,) = sleepers()
    up.part("time.sleep").suspend()
    up.process.send_signal(signal.SIGTERM)
    eventually(lambda: not is_live(web), what="the web has ended")
    if times == 2:
        up.process.send_signal(signal.SIGTERM)
    assert up.process.wait(10) == 0
    assert not is_live(orphan_pid)


FULL_PIPE = """
reader, writer = os.pipe()
os.set_blocking(writer, False)
try:
    while True: os.write(writer, b"x" * 4096)
except BlockingIOError:
    os.set_blocking(writer, True)
def say(text): os.write(writer, text.encode())
"""


def test_processes_of_a_killed_part_are_ended_while_the_output_is_blocked(start_up: StartUp) -> None:
    up = start_up(
        before=FULL_PIPE,
        say="say",
        runtime="""
        import subprocess, time
        subprocess.run("setsid sleep 600 & echo $! > $FOLDER/left", shell=True)
        time.sleep(600)
        """,
    )
    orphan_pid = up.pid("left")
    up.part("time.sleep").kill()
    eventually(lambda: not is_live(orphan_pid), within=5, what="the orphan is ended")

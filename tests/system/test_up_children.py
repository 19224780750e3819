"""Whose children `manage.py up` ends: the hall's own, and nobody else's."""

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
    """`up` with a runtime of the test's own and its process ids in files of `folder`."""

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


Ups = Callable[..., Up]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Ups]:
    started: list[Up] = []

    def start(**values: str) -> Up:
        started.append(Up(tmp_path, **values))
        return started[-1]

    yield start
    for up in started:
        with contextlib.suppress(psutil.Error):
            left = psutil.Process(up.process.pid).children(recursive=True)
            up.process.kill()
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        up.process.wait(10)
    for file in tmp_path.glob("stranger*"):
        with contextlib.suppress(psutil.Error, ValueError):
            psutil.Process(int(file.read_text())).kill()


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def test_children_of_the_script_that_became_up_live_on_and_so_do_the_processes_they_leave(run: Ups) -> None:
    up = run(
        before="""
        # One is a child as a script leaves it; of the other the parent dies once `up` runs.
        leave = "sleep 600 & echo $! > $FOLDER/stranger-later; sleep 1"
        early = subprocess.Popen(["sleep", "600"])
        open(os.environ["FOLDER"] + "/stranger-early", "w").write(str(early.pid))
        left = subprocess.Popen(["sh", "-c", leave])
        open(os.environ["FOLDER"] + "/parent", "w").write(str(left.pid))
        """
    )
    strangers = [up.pid("stranger-early"), up.pid("stranger-later")]
    web = up.part("sleep 600")
    eventually(lambda: not psutil.pid_exists(up.pid("parent")), what="the stranger's parent is reaped")
    eventually(lambda: psutil.Process(strangers[1]).ppid() == up.process.pid, what="the stranger is adopted")
    up.part("time.sleep").kill()
    eventually(lambda: "starting it again" in up.output())
    assert all(map(lives, strangers))
    assert web.pid
    up.process.send_signal(signal.SIGTERM)
    assert up.process.wait(10) == 0
    assert all(map(lives, strangers))


def test_a_stranger_that_was_adopted_is_reaped_when_it_ends(run: Ups) -> None:
    up = run(before='subprocess.Popen(["sh", "-c", "sleep 1 & echo $! > $FOLDER/stranger"])')
    stranger = up.pid("stranger")
    eventually(lambda: not psutil.pid_exists(stranger), what="the stranger is reaped")
    assert up.process.poll() is None


@pytest.mark.parametrize("clean", ["env -i setsid", "setsid"])
def test_what_a_part_leaves_is_ended_when_the_part_was_killed(run: Ups, clean: str) -> None:
    up = run(
        runtime=f"""
        import os, subprocess, time
        subprocess.run("{clean} sleep 600 & echo $! > $FOLDER/left", shell=True)
        time.sleep(600)
        """
    )
    left = up.pid("left")
    eventually(lambda: command_of(psutil.Process(left)).startswith("sleep"), what="it has its own environment")
    up.part("time.sleep").kill()
    eventually(lambda: not lives(left), within=5, what=up.output())
    assert up.process.poll() is None


def test_without_birthmarks_the_environment_tells_what_is_of_the_hall(run: Ups) -> None:
    up = run(
        before="up.birthmark.sys = type(sys)('elsewhere'); up.birthmark.sys.platform = 'elsewhere'",
        runtime="""
        import os, subprocess, time
        subprocess.run("sleep 600 & echo $! > $FOLDER/left", shell=True)
        time.sleep(600)
        """,
    )
    left = up.pid("left")
    up.part("time.sleep").kill()
    eventually(lambda: not lives(left), within=5, what=up.output())


@pytest.mark.parametrize("times", [1, 2])
def test_a_frozen_part_is_killed_when_patience_ends_and_what_it_started_ends_too(run: Ups, times: int) -> None:
    up = run(
        before="up.PATIENCE_SECONDS = 0.5 if os.environ['TIMES'] == '1' else 60",
        runtime="""
        import subprocess, time
        subprocess.run("setsid sleep 600 & echo $! > $FOLDER/left", shell=True)
        time.sleep(600)
        """,
        TIMES=str(times),
    )
    left = up.pid("left")

    def sleepers() -> list[int]:
        return [part.pid for part in up.parts if part.pid != left and command_of(part).startswith("sleep")]

    eventually(sleepers, what="the web runs its program")
    (web,) = sleepers()
    up.part("time.sleep").suspend()
    up.process.send_signal(signal.SIGTERM)
    eventually(lambda: not lives(web), what="the web has ended")
    if times == 2:
        up.process.send_signal(signal.SIGTERM)
    assert up.process.wait(10) == 0
    assert not lives(left)


FULL_PIPE = """
reader, writer = os.pipe()
os.set_blocking(writer, False)
try:
    while True: os.write(writer, b"x" * 4096)
except BlockingIOError:
    os.set_blocking(writer, True)
def say(text): os.write(writer, text.encode())
"""


def test_what_a_part_leaves_is_ended_even_when_saying_so_takes_for_ever(run: Ups) -> None:
    up = run(
        before=FULL_PIPE,
        say="say",
        runtime="""
        import subprocess, time
        subprocess.run("setsid sleep 600 & echo $! > $FOLDER/left", shell=True)
        time.sleep(600)
        """,
    )
    left = up.pid("left")
    up.part("time.sleep").kill()
    eventually(lambda: not lives(left), within=5, what="it is ended")

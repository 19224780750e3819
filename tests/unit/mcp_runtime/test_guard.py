"""The guard as a real process, with a small Python child as its worker."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mcp_runtime.runtime import guard
from tests.conftest import ROOT, eventually
from tests.support.machine import Stopwatch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")

RUN = """
import sys
from mcp_runtime.runtime import guard
guard.WORKER = [sys.executable, "-c", sys.argv[1]]
sys.exit(guard.main())
"""
# The worker is there before the guard is, and signals are held back, as `warm` has it.
RUN_FORKED = """
import os, signal, sys
from mcp_runtime.runtime import guard
signal.pthread_sigmask(signal.SIG_BLOCK, guard.STOP_SIGNALS)
worker = os.fork()
if not worker:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, guard.STOP_SIGNALS)
    os.setsid()
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
os.environ["GUILD_HALL_WORKER_PID"] = str(worker)
sys.exit(guard.main())
"""
# A worker that writes down each SIGTERM and goes on. A handler of Python's runs after a `sleep` that begins just as the
# signal comes, so sleeps are short.
STUBBORN = """
    import signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
    print("up", flush=True)
    while True: time.sleep(0.05)
"""
POLITE = """
    import signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: (print("asked", flush=True), sys.exit(7)))
    print("up", flush=True)
    while True: time.sleep(0.05)
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"


class Guarded:
    """A guard and its worker. Whatever they start carries `mark`."""

    def __init__(self, folder: Path, worker: str, run: str = RUN, stdin: int | None = None, **environment: str) -> None:
        self.mark = str(uuid.uuid4())
        self.output = folder / f"{self.mark}.log"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", run, textwrap.dedent(worker)],
                env={**os.environ, "PYTHONPATH": str(ROOT), "TEST_MARK": self.mark, **environment},
                stdin=stdin,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    def wait_for(self, line: str, times: int = 1) -> None:
        eventually(lambda: self.lines.count(line) >= times, what=f"{line!r}; so far {self.lines}")

    def end(self) -> int:
        """The guard's exit code; nothing of it is left."""
        code = self.process.wait(10)
        assert self.left() == []
        return code

    def left(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TEST_MARK") == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def clean_up(self) -> None:
        for process in self.left():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait(10)
        if self.process.stdin:
            self.process.stdin.close()


class Guards:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Guarded] = []

    def __call__(self, worker: str, run: str = RUN, stdin: int | None = None, **environment: str) -> Guarded:
        self.started.append(Guarded(self.folder, worker, run, stdin, **environment))
        return self.started[-1]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Guards]:
    guards = Guards(tmp_path)
    yield guards
    for guarded in guards.started:
        guarded.clean_up()


# Exit codes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", [RUN, RUN_FORKED], ids=["started", "forked"])
@pytest.mark.parametrize("code", [0, 3, 75])
def test_the_guard_ends_with_the_workers_exit_code(run: Guards, code: int, program: str) -> None:
    assert run(f"raise SystemExit({code})", program).end() == code


def test_a_worker_that_was_there_before_the_guard_is_asked_and_what_it_leaves_is_ended(run: Guards) -> None:
    left = "import subprocess; subprocess.Popen(['setsid', 'sleep', '600'])\n"
    guarded = run(left + textwrap.dedent(POLITE), RUN_FORKED)
    guarded.wait_for("up")
    guarded.process.send_signal(signal.SIGTERM)
    assert guarded.end() == 7
    assert guarded.lines.count("asked") == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_worker_that_a_signal_ended_is_said_as_shells_say_it(run: Guards, number: signal.Signals) -> None:
    assert run(f"import os; os.kill(os.getpid(), {int(number)})").end() == 128 + number


# Signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_whichever_asks_the_worker_to_end_once(run: Guards, number: signal.Signals) -> None:
    guarded = run(POLITE)
    guarded.wait_for("up")
    guarded.process.send_signal(number)
    assert guarded.end() == 7
    assert guarded.lines == ["up", "asked"]


def test_the_second_signal_kills_a_worker_that_takes_its_time(run: Guards) -> None:
    guarded = run(STUBBORN)
    guarded.wait_for("up")
    guarded.process.send_signal(signal.SIGINT)
    guarded.wait_for("asked")
    guarded.process.send_signal(signal.SIGINT)
    assert guarded.end() == 128 + signal.SIGKILL
    assert guarded.lines == ["up", "asked"]


@pytest.mark.parametrize("first", [signal.SIGHUP, signal.SIGINT])
def test_a_terminal_that_closes_however_often_it_says_so_kills_no_worker_that_is_stopping(
    run: Guards, first: signal.Signals
) -> None:
    guarded = run(STUBBORN)
    guarded.wait_for("up")
    guarded.process.send_signal(first)
    guarded.wait_for("asked")
    for _ in range(3):
        guarded.process.send_signal(signal.SIGHUP)
        eventually(lambda: not pending(guarded.process.pid, signal.SIGHUP), what="it is handled")
    (worker,) = psutil.Process(guarded.process.pid).children()
    worker.send_signal(signal.SIGTERM)  # a worker that was killed does not answer
    guarded.wait_for("asked", times=2)
    guarded.process.send_signal(signal.SIGINT)  # a second Ctrl-C is one still
    assert guarded.end() == 128 + signal.SIGKILL
    assert guarded.lines == ["up", "asked", "asked"]


def pending(pid: int, number: signal.Signals) -> bool:
    """Whether the signal was sent and not yet delivered."""
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd:")]
    return bool(int(mask, 16) & 1 << number - 1)


def test_a_signal_that_came_before_there_was_a_worker_is_passed_on(run: Guards) -> None:
    early = """
import os, signal, subprocess, sys
from mcp_runtime.runtime.guard import Guard
real = subprocess.Popen
def popen(*args, **options):
    os.kill(os.getpid(), signal.SIGTERM)
    return real(*args, **options)
subprocess.Popen = popen
sys.exit(128 - Guard([sys.executable, "-c", "import time; time.sleep(600)"]).run())
"""
    assert run("", early).end() == 128 + signal.SIGTERM


def test_the_worker_has_a_session_of_its_own_so_that_ctrl_c_reaches_the_guard_alone(run: Guards) -> None:
    guarded = run("import os; print(os.getsid(0) == os.getpid(), os.environ['GUILD_HALL_GUARD_PID'], os.getppid())")
    assert guarded.end() == 0
    assert guarded.lines == [f"True {guarded.process.pid} {guarded.process.pid}"]


# Orphans ----------------------------------------------------------------------------------------------------------

# A child, a grandchild in a session of its own, and one whose parents are gone as well. All deaf to SIGTERM.
FAMILY = f"""
    import os, subprocess, sys, time
    deaf = {DEAF!r}
    start = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True)"
    subprocess.Popen([sys.executable, "-c", deaf])
    subprocess.Popen([sys.executable, "-c", start + "; import time; time.sleep(600)", deaf])
    subprocess.run([sys.executable, "-c", start, deaf])
    print("up", flush=True)
"""


def test_all_that_the_worker_left_is_gone_when_the_guard_is(run: Guards) -> None:
    guarded = run(FAMILY)
    assert guarded.end() == 0


def test_a_killed_worker_leaves_nothing_either(run: Guards) -> None:
    guarded = run(FAMILY + "    time.sleep(600)\n")
    guarded.wait_for("deaf", times=3)
    (worker,) = [
        p for p in psutil.Process(guarded.process.pid).children() if p.cmdline()[-1].lstrip().startswith("import os")
    ]
    worker.kill()
    assert guarded.end() == 128 + signal.SIGKILL


def test_what_forks_while_it_is_being_ended_is_ended_too(run: Guards) -> None:
    # One at a time, each the child of the last, which exits: a target that moves, and never more than a few processes.
    moving = """
import os, time
for _ in range(500):
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.001)
time.sleep(600)
"""
    guarded = run(f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {moving!r}])")
    guarded.end()


def test_adopted_zombies_are_reaped_while_the_worker_lives(run: Guards) -> None:
    orphan = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'pass'])"
    guarded = run(
        f"""
        import subprocess, sys, time
        for _ in range(5): subprocess.run([sys.executable, "-c", {orphan!r}])
        print("up", flush=True)
        time.sleep(600)
        """
    )
    guarded.wait_for("up")
    ours = psutil.Process(guarded.process.pid)
    eventually(lambda: len(ours.children()) == 1, what="the worker alone is left")


# Its own parent ---------------------------------------------------------------------------------------------------


# A parent that starts the guard, and then is killed.
PARENT = """
import os, subprocess, sys, time
run = sys.argv[1].split("---")
environment = {**os.environ, "GUILD_HALL_END_WITH_PARENT": str(os.getpid())}
guard = subprocess.Popen([sys.executable, "-c", run[0], run[1]], env=environment, start_new_session=True)
time.sleep(600)
"""


def test_a_guard_that_is_told_so_ends_with_its_parent(run: Guards) -> None:
    guarded = run(RUN + "---" + textwrap.dedent(POLITE), PARENT)
    guarded.wait_for("up")
    guarded.process.kill()
    guarded.wait_for("asked")
    eventually(lambda: guarded.left() == [])


def test_a_guard_whose_parent_was_killed_kills_a_worker_that_takes_more_than_a_second(run: Guards) -> None:
    guarded = run(RUN + "---" + textwrap.dedent(STUBBORN), PARENT)
    guarded.wait_for("up")
    guarded.process.kill()
    guarded.wait_for("asked")
    watch = Stopwatch()
    eventually(lambda: guarded.left() == [], within=2)
    assert watch.elapsed > 0.5


def test_a_guard_whose_parent_asks_it_to_end_gives_the_worker_its_time(run: Guards) -> None:
    asking = PARENT.replace("time.sleep(600)", "sys.stdin.read(1); guard.terminate(); time.sleep(600)")
    guarded = run(RUN + "---" + textwrap.dedent(STUBBORN), asking, stdin=subprocess.PIPE)
    guarded.wait_for("up")
    guarded.process.stdin.write(b"x")
    guarded.process.stdin.flush()
    guarded.wait_for("asked")
    time.sleep(guard.ORPHANED_SECONDS + 0.3)
    assert len(guarded.left()) == 3


def test_a_guard_whose_parent_died_before_it_could_ask_starts_nothing(run: Guards) -> None:
    guarded = run(POLITE, GUILD_HALL_END_WITH_PARENT="1")
    assert guarded.end() == 1
    assert guarded.lines == []


# Children ---------------------------------------------------------------------------------------------------------


def test_children_are_found_whatever_they_are_called(tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 (b"
    shutil.copy(shutil.which("sleep") or "", odd)
    child = subprocess.Popen([odd, "600"])
    try:
        assert child.pid in guard.children()
        assert os.getppid() not in guard.children()
    finally:
        child.kill()
        assert child.pid in guard.children()  # a zombie is ours still
        child.wait()
    assert child.pid not in guard.children()


def test_children_that_are_to_be_spared_live_on_and_the_others_are_ended_and_reaped(run: Guards) -> None:
    guarded = run(
        """
        import subprocess, time
        from mcp_runtime.runtime import guard
        spared, ended = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
        while guard.end_children(spare=[spared.pid]):
            time.sleep(0.01)
        print(spared.poll(), guard.children() == [spared.pid])
        """
    )
    guarded.wait_for("None True")


def test_a_sigterm_that_came_before_there_was_a_handler_ends_the_guard_all_the_same(run: Guards) -> None:
    early = "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [15]); os.kill(os.getpid(), 15)"
    guarded = run("import time; time.sleep(600)", run=early + RUN)
    assert guarded.end() == 128 + signal.SIGTERM


REFUSED = """
    import os, subprocess, time
    from mcp_runtime.runtime import guard
    other_user, ended = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    kill = os.kill
    def refuse(pid, number):
        if pid == other_user.pid:
            raise PermissionError
        kill(pid, number)
    os.kill = refuse
"""


def test_a_child_that_took_another_user_is_left_alone_and_the_others_are_ended(run: Guards) -> None:
    guarded = run(
        f"""{REFUSED}
    guard.end_descendants()
    print(other_user.poll(), guard.children() == [other_user.pid], guard.end_children())
    """
    )
    guarded.wait_for("None True False")


def test_a_child_that_does_not_end_keeps_nobody_for_ever(run: Guards) -> None:
    guarded = run(
        """
        import os, subprocess
        from mcp_runtime.runtime import guard
        held = subprocess.Popen(["sleep", "600"])
        kill, os.kill = os.kill, lambda *_: None  # as if the kernel held it, in a wait for a disk
        guard.SWEEP_SECONDS = 0.2
        guard.end_descendants()
        print("went on", held.poll())
        kill(held.pid, 9)
        """
    )
    guarded.wait_for("went on None")


def test_children_of_the_script_that_became_the_guard_outlive_it(tmp_path: Path) -> None:
    script = "import os, subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"
    guarded = Guarded(tmp_path, "print('over')", run=script + RUN)
    try:
        guarded.wait_for("over")
        assert guarded.process.wait(10) == 0
        stranger = psutil.Process(int(guarded.lines[0]))
        assert stranger.status() != psutil.STATUS_ZOMBIE
    finally:
        guarded.process.wait(10)
        psutil.Process(int(guarded.lines[0])).kill()


def test_without_children_there_is_nothing_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_child(*_: object) -> tuple[int, int]:
        raise ChildProcessError

    monkeypatch.setattr(guard, "children", list)
    monkeypatch.setattr(guard.os, "waitpid", no_child)
    guard.end_descendants()


def test_elsewhere_than_on_linux_nothing_is_asked_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard.sys, "platform", "darwin")
    monkeypatch.setattr(guard.ctypes, "CDLL", None)
    guard.become_subreaper()
    monkeypatch.setenv("GUILD_HALL_END_WITH_PARENT", "1")
    guard.end_with_parent()
    assert guard.children() == []

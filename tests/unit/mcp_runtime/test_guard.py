"""The guard as a real process, with a small Python child as its worker."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
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

START_WORKER = """
import sys
from mcp_runtime.runtime import guard
guard.WORKER = [sys.executable, "-c", sys.argv[1]]
sys.exit(guard.main())
"""
# The worker exists before the guard, and signals are blocked, as in `warm`.
ADOPT_WORKER = """
import os, signal, sys
from mcp_runtime.runtime import guard
signal.pthread_sigmask(signal.SIG_BLOCK, guard.STOP_SIGNALS)
fence_file = guard.create_fence_file()
os.set_inheritable(fence_file, True)
os.environ.update(GUILD_HALL_FENCE=str(fence_file), GUILD_HALL_GUARD_PID=str(os.getpid()))
worker = os.fork()
if not worker:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, guard.STOP_SIGNALS)
    os.setsid()
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
os.environ["GUILD_HALL_WORKER_PID"] = str(worker)
sys.exit(guard.main())
"""
# A worker that writes down each SIGTERM and continues. If a signal comes just before a `sleep`, Python's handler runs
# after it, so sleeps are short. A line is written at once: a `print` can be interrupted before the end of its line.
WORKER_THAT_STAYS = """
    import os, signal, time
    signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"asked\\n"))
    os.write(1, b"up\\n")
    while True: time.sleep(0.05)
"""
WORKER_THAT_ENDS = """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"asked\\n"), sys.exit(7)))
    os.write(1, b"up\\n")
    while True: time.sleep(0.05)
"""
IGNORE_SIGTERM = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
)


class GuardProcess:
    """A guard and its worker. All processes that they start have the tag `tag`."""

    def __init__(
        self, folder: Path, worker: str, program: str = START_WORKER, stdin: int | None = None, **environment: str
    ) -> None:
        self.tag = str(uuid.uuid4())
        self.output = folder / f"{self.tag}.log"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, textwrap.dedent(worker)],
                env={**os.environ, "PYTHONPATH": str(ROOT), "TEST_MARK": self.tag, **environment},
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
        """Wait for the exit code of the guard. None of its processes may remain."""
        code = self.process.wait(10)
        assert self.processes() == []
        return code

    def processes(self) -> list[psutil.Process]:
        processes = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TEST_MARK") == self.tag and process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
        return processes

    def clean_up(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait(10)
        if self.process.stdin:
            self.process.stdin.close()


class GuardStarter:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[GuardProcess] = []

    def __call__(
        self, worker: str, program: str = START_WORKER, stdin: int | None = None, **environment: str
    ) -> GuardProcess:
        self.started.append(GuardProcess(self.folder, worker, program, stdin, **environment))
        return self.started[-1]


@pytest.fixture
def start_guard(tmp_path: Path) -> Iterator[GuardStarter]:
    starter = GuardStarter(tmp_path)
    yield starter
    for guard_process in starter.started:
        guard_process.clean_up()


# Exit codes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", [START_WORKER, ADOPT_WORKER], ids=["started", "forked"])
@pytest.mark.parametrize("code", [0, 3, 75])
def test_the_guard_ends_with_the_workers_exit_code(start_guard: GuardStarter, code: int, program: str) -> None:
    assert start_guard(f"raise SystemExit({code})", program).end() == code


def test_a_worker_older_than_the_guard_gets_sigterm_and_its_children_are_ended(start_guard: GuardStarter) -> None:
    start_child = "import subprocess; subprocess.Popen(['setsid', 'sleep', '600'])\n"
    guard_process = start_guard(start_child + textwrap.dedent(WORKER_THAT_ENDS), ADOPT_WORKER)
    guard_process.wait_for("up")
    guard_process.process.send_signal(signal.SIGTERM)
    assert guard_process.end() == 7
    assert guard_process.lines.count("asked") == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_the_exit_code_for_a_worker_ended_by_a_signal_is_128_plus_the_signal(
    start_guard: GuardStarter, number: signal.Signals
) -> None:
    assert start_guard(f"import os; os.kill(os.getpid(), {int(number)})").end() == 128 + number


# Signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_of_any_kind_sends_one_sigterm_to_the_worker(
    start_guard: GuardStarter, number: signal.Signals
) -> None:
    guard_process = start_guard(WORKER_THAT_ENDS)
    guard_process.wait_for("up")
    guard_process.process.send_signal(number)
    assert guard_process.end() == 7
    assert guard_process.lines == ["up", "asked"]


def test_the_second_signal_kills_a_slow_worker(start_guard: GuardStarter) -> None:
    guard_process = start_guard(WORKER_THAT_STAYS)
    guard_process.wait_for("up")
    guard_process.process.send_signal(signal.SIGINT)
    guard_process.wait_for("asked")
    guard_process.process.send_signal(signal.SIGINT)
    assert guard_process.end() == 128 + signal.SIGKILL
    assert guard_process.lines == ["up", "asked"]


@pytest.mark.parametrize("first", [signal.SIGHUP, signal.SIGINT])
def test_repeated_sighup_does_not_kill_a_stopping_worker(start_guard: GuardStarter, first: signal.Signals) -> None:
    guard_process = start_guard(WORKER_THAT_STAYS)
    guard_process.wait_for("up")
    guard_process.process.send_signal(first)
    guard_process.wait_for("asked")
    for _ in range(3):
        guard_process.process.send_signal(signal.SIGHUP)
        eventually(lambda: not is_pending(guard_process.process.pid, signal.SIGHUP), what="the signal is handled")
    (worker,) = psutil.Process(guard_process.process.pid).children()
    worker.send_signal(signal.SIGTERM)  # a killed worker would write nothing
    guard_process.wait_for("asked", times=2)
    guard_process.process.send_signal(signal.SIGINT)  # the second Ctrl-C still counts
    assert guard_process.end() == 128 + signal.SIGKILL
    assert guard_process.lines == ["up", "asked", "asked"]


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether the signal was sent and not yet delivered."""
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd:")]
    return bool(int(mask, 16) & 1 << number - 1)


def test_a_signal_before_the_worker_started_is_passed_on(start_guard: GuardStarter) -> None:
    program = """
import os, signal, subprocess, sys
from mcp_runtime.runtime.guard import Guard
real = subprocess.Popen
def popen(*args, **options):
    os.kill(os.getpid(), signal.SIGTERM)
    return real(*args, **options)
subprocess.Popen = popen
sys.exit(128 - Guard([sys.executable, "-c", "import time; time.sleep(600)"]).run())
"""
    assert start_guard("", program).end() == 128 + signal.SIGTERM


def test_the_worker_has_its_own_session(start_guard: GuardStarter) -> None:
    guard_process = start_guard(
        "import os; print(os.getsid(0) == os.getpid(), os.environ['GUILD_HALL_GUARD_PID'], os.getppid())"
    )
    assert guard_process.end() == 0
    assert guard_process.lines == [f"True {guard_process.process.pid} {guard_process.process.pid}"]


# Orphans ----------------------------------------------------------------------------------------------------------

# A child, a grandchild in its own session, and a process whose parents have ended. All of them ignore SIGTERM.
WORKER_WITH_CHILDREN = f"""
    import os, subprocess, sys, time
    deaf = {IGNORE_SIGTERM!r}
    start = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True)"
    subprocess.Popen([sys.executable, "-c", deaf])
    subprocess.Popen([sys.executable, "-c", start + "; import time; time.sleep(600)", deaf])
    subprocess.run([sys.executable, "-c", start, deaf])
    print("up", flush=True)
"""


def test_the_guard_ends_all_processes_that_the_worker_left(start_guard: GuardStarter) -> None:
    guard_process = start_guard(WORKER_WITH_CHILDREN)
    assert guard_process.end() == 0


def test_the_guard_ends_all_processes_of_a_killed_worker(start_guard: GuardStarter) -> None:
    guard_process = start_guard(WORKER_WITH_CHILDREN + "    time.sleep(600)\n")
    guard_process.wait_for("deaf", times=3)
    (worker,) = [
        p
        for p in psutil.Process(guard_process.process.pid).children()
        if p.cmdline()[-1].lstrip().startswith("import os")
    ]
    worker.kill()
    assert guard_process.end() == 128 + signal.SIGKILL


def test_the_guard_ends_processes_that_fork_while_they_are_ended(start_guard: GuardStarter) -> None:
    # Each process forks one child and exits, so that the pid changes and there are never more than a few processes.
    forking_program = """
import os, time
for _ in range(500):
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.001)
time.sleep(600)
"""
    guard_process = start_guard(
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {forking_program!r}])"
    )
    guard_process.end()


def test_adopted_zombies_are_reaped_while_the_worker_runs(start_guard: GuardStarter) -> None:
    start_orphan = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'pass'])"
    guard_process = start_guard(
        f"""
        import subprocess, sys, time
        for _ in range(5): subprocess.run([sys.executable, "-c", {start_orphan!r}])
        print("up", flush=True)
        time.sleep(600)
        """
    )
    guard_process.wait_for("up")
    guard_info = psutil.Process(guard_process.process.pid)
    eventually(lambda: len(guard_info.children()) == 1, what="only the worker remains")


# The fence --------------------------------------------------------------------------------------------------------

SHORT_FENCE = "from mcp_runtime.runtime import guard; guard.FENCE_SECONDS = 0.6\n"
# The worker renews its lease until SIGTERM. After that all renewals fail.
FENCED_WORKER = """
    import os, signal, subprocess, sys, threading, time
    from mcp_runtime.runtime import fence
    fails = threading.Event()
    # No print, because it raises an error if the signal comes during another print.
    signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"cut off\\n"), fails.set()))
    fence.take_inherited()
    fence.note_renewal(fence.now())
    fence.turn_on()
    is_told = False
    while True:
        if not fails.is_set(): fence.note_renewal(fence.now())
        if fence.is_watched() and not is_told:
            print("fenced", flush=True)
            is_told = True
        time.sleep(0.02)
"""
FENCED_WORKER_WITH_CHILDREN = WORKER_WITH_CHILDREN + FENCED_WORKER
PROGRAMS = pytest.mark.parametrize(
    "program", [SHORT_FENCE + START_WORKER, SHORT_FENCE + ADOPT_WORKER], ids=["started", "forked"]
)


def start_fenced(start_guard: GuardStarter, program: str, worker: str = FENCED_WORKER) -> GuardProcess:
    guard_process = start_guard(worker, program)
    guard_process.wait_for("fenced")
    return guard_process


def worker_of(guard_process: GuardProcess) -> psutil.Process:
    """The worker. It is a session's leader, as other children of the guard may be, but it came first."""
    return min(psutil.Process(guard_process.process.pid).children(), key=lambda process: process.create_time())


def fence_lines(guard_process: GuardProcess) -> list[str]:
    return [line for line in guard_process.lines if "heartbeat" in line]


def context_switches(pid: int) -> list[str]:
    return [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "ctxt_switches" in line]


@PROGRAMS
def test_without_a_request_of_the_worker_there_is_no_fence_and_the_guard_sleeps(
    start_guard: GuardStarter, program: str
) -> None:
    worker = FENCED_WORKER.replace("fence.turn_on()", "print('up', flush=True)").replace("fence.now()", "0.0")
    guard_process = start_guard(worker, program)
    guard_process.wait_for("up")
    pid = guard_process.process.pid
    eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_SLEEPING)
    before = context_switches(pid)
    time.sleep(1)
    assert context_switches(pid) == before
    assert guard_process.process.poll() is None


def test_a_signal_of_a_stranger_turns_no_fence_on_before_the_first_renewal(start_guard: GuardStarter) -> None:
    worker = """
        import os, signal, time
        os.kill(os.getppid(), signal.SIGUSR1)
        print("sent", flush=True)
        time.sleep(600)
    """
    guard_process = start_guard(worker, SHORT_FENCE + START_WORKER)
    guard_process.wait_for("sent")
    time.sleep(1)
    assert guard_process.process.poll() is None
    assert fence_lines(guard_process) == []


@PROGRAMS
def test_the_fence_ends_a_suspended_worker_and_all_processes_that_it_left(
    start_guard: GuardStarter, program: str
) -> None:
    guard_process = start_fenced(start_guard, program, FENCED_WORKER_WITH_CHILDREN)
    guard_process.wait_for("deaf", times=3)
    worker_of(guard_process).suspend()
    assert guard_process.end() == guard.EX_FENCED
    (line,) = fence_lines(guard_process)
    assert "accepted no heartbeat of this node for 0.6 s" in line
    assert "must start again" in line


@PROGRAMS
def test_the_fence_ends_a_worker_that_runs_and_cannot_renew_its_lease(start_guard: GuardStarter, program: str) -> None:
    guard_process = start_fenced(start_guard, program, FENCED_WORKER_WITH_CHILDREN)
    watch = Stopwatch()
    worker_of(guard_process).terminate()
    guard_process.wait_for("cut off")
    assert guard_process.end() == guard.EX_FENCED
    assert watch.elapsed > 0.5  # the last renewal was just before
    assert len(fence_lines(guard_process)) == 1


def test_the_fence_does_not_end_a_worker_that_renews_its_lease(start_guard: GuardStarter) -> None:
    program = SHORT_FENCE.replace("0.6", "2.0") + START_WORKER
    guard_process = start_fenced(start_guard, program)
    time.sleep(5)
    assert guard_process.process.poll() is None
    worker_of(guard_process).kill()
    assert guard_process.end() == 128 + signal.SIGKILL
    assert fence_lines(guard_process) == []


def test_the_fence_works_if_the_worker_turns_it_on_before_the_guard_knows_its_pid(start_guard: GuardStarter) -> None:
    slow_start = """
import os, subprocess, time
real = subprocess.Popen
def popen(*args, **options):
    worker = real(*args, **options)
    while os.pread(options["pass_fds"][-1], 1, guard.STATE_OFFSET)[0] != guard.WATCHING:
        time.sleep(0.01)
    return worker
subprocess.Popen = popen
"""
    guard_process = start_fenced(start_guard, SHORT_FENCE + slow_start + START_WORKER)
    worker_of(guard_process).suspend()
    assert guard_process.end() == guard.EX_FENCED


def test_a_guard_that_was_suspended_ends_an_overdue_worker_at_once(start_guard: GuardStarter) -> None:
    guard_process = start_fenced(start_guard, SHORT_FENCE.replace("0.6", "3.0") + START_WORKER)
    worker = worker_of(guard_process)
    guard_process.process.send_signal(signal.SIGSTOP)
    worker.terminate()
    guard_process.wait_for("cut off")
    time.sleep(3.1)
    assert worker.is_running()
    watch = Stopwatch()
    guard_process.process.send_signal(signal.SIGCONT)
    guard_process.process.wait(10)
    assert watch.elapsed < 2.5  # not another 3 s
    assert guard_process.end() == guard.EX_FENCED


def test_members_end_although_the_worker_hangs_in_the_kernel(start_guard: GuardStarter) -> None:
    worker_that_hangs = """
import os
kill = os.kill
os.kill = lambda pid, number: kill(pid, number) if pid not in hanging() else None
def hanging():  # the child of the guard that came first
    return sorted(guard.children())[:1]
"""
    guard_process = start_fenced(
        start_guard, SHORT_FENCE + worker_that_hangs + START_WORKER, FENCED_WORKER_WITH_CHILDREN
    )
    guard_process.wait_for("deaf", times=3)
    worker = worker_of(guard_process)
    worker.suspend()
    eventually(lambda: len(guard_process.processes()) == 2, what="only guard and worker remain")
    assert worker.is_running()
    eventually(lambda: len(fence_lines(guard_process)) == 1, what="the guard says so although the worker is not dead")
    worker.kill()
    assert guard_process.end() == guard.EX_FENCED


def test_a_stop_during_which_the_fence_strikes_announces_no_start(start_guard: GuardStarter) -> None:
    guard_process = start_fenced(start_guard, SHORT_FENCE + START_WORKER)
    guard_process.process.terminate()
    guard_process.wait_for("cut off")
    assert guard_process.end() == guard.EX_FENCED
    assert "start again" not in fence_lines(guard_process)[0]


def test_the_fence_spares_children_older_than_the_guard(start_guard: GuardStarter) -> None:
    older_child = (
        "import subprocess; older = subprocess.Popen(['sleep', '600'], env={}); print(older.pid, flush=True)\n"
    )
    guard_process = start_fenced(start_guard, older_child + SHORT_FENCE + START_WORKER)
    older = psutil.Process(int(guard_process.lines[0]))
    try:
        worker_of_guard = next(p for p in psutil.Process(guard_process.process.pid).children() if p != older)
        worker_of_guard.suspend()
        assert guard_process.end() == guard.EX_FENCED
        assert older.status() != psutil.STATUS_ZOMBIE
    finally:
        older.kill()


def test_without_a_shared_file_the_guard_works_and_the_worker_knows_that_nobody_watches(
    start_guard: GuardStarter,
) -> None:
    program = "from mcp_runtime.runtime import guard; guard.create_fence_file = lambda: -1\n" + START_WORKER
    worker = """
        from mcp_runtime.runtime import fence
        fence.take_inherited()
        fence.note_renewal(0.0)
        fence.turn_on()
        print(fence.is_watched())
        raise SystemExit(3)
    """
    guard_process = start_guard(worker, program)
    assert guard_process.end() == 3
    assert guard_process.lines == ["False"]


@pytest.mark.parametrize("refused", ["memfd_create", "missing memfd_create", "both"])
def test_a_system_without_files_in_memory_gets_a_file_without_a_name(
    refused: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> int:
        raise OSError

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing" if refused == "both" else tmp_path))
    if refused == "missing memfd_create":
        monkeypatch.delattr(os, "memfd_create")
    else:
        monkeypatch.setattr(os, "memfd_create", refuse)
    descriptor = guard.create_fence_file()
    assert (descriptor == -1) == (refused == "both")
    assert list(tmp_path.iterdir()) == []
    if descriptor >= 0:
        assert os.pread(descriptor, 100, 0) == bytes(9)
        os.close(descriptor)


def test_a_console_that_nobody_reads_does_not_stop_the_guard() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    program = "from mcp_runtime.runtime.guard import write_error; write_error('x'); raise SystemExit(3)"
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=writer)
    try:
        assert process.wait(10) == 3
    finally:
        process.kill()
        process.wait()
        os.close(reader)
        os.close(writer)


# The parent of the guard ------------------------------------------------------------------------------------------


# A parent that starts the guard, and then is killed.
PARENT = """
import os, subprocess, sys, time
run = sys.argv[1].split("---")
environment = {**os.environ, "GUILD_HALL_END_WITH_PARENT": str(os.getpid())}
guard = subprocess.Popen([sys.executable, "-c", run[0], run[1]], env=environment, start_new_session=True)
time.sleep(600)
"""


def test_a_guard_with_the_setting_ends_with_its_parent(start_guard: GuardStarter) -> None:
    guard_process = start_guard(START_WORKER + "---" + textwrap.dedent(WORKER_THAT_ENDS), PARENT)
    guard_process.wait_for("up")
    guard_process.process.kill()
    guard_process.wait_for("asked")
    eventually(lambda: guard_process.processes() == [])


def test_a_guard_without_its_parent_kills_a_slow_worker(start_guard: GuardStarter) -> None:
    guard_process = start_guard(START_WORKER + "---" + textwrap.dedent(WORKER_THAT_STAYS), PARENT)
    guard_process.wait_for("up")
    guard_process.process.kill()
    guard_process.wait_for("asked")
    watch = Stopwatch()
    eventually(lambda: guard_process.processes() == [], within=2)
    assert watch.elapsed > 0.5


def test_a_parent_with_threads_that_is_killed_counts_as_one_signal(start_guard: GuardStarter) -> None:
    """The kernel sends a signal for each of its threads, and a second signal would kill the worker at once."""
    threads = (
        "import threading\nfor _ in range(8): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    )
    for _ in range(5):
        guard_process = start_guard(
            START_WORKER + "---" + textwrap.dedent(WORKER_THAT_STAYS),
            PARENT.replace("time.sleep(600)", f"{threads}\ntime.sleep(600)"),
        )
        guard_process.wait_for("up")
        guard_process.process.kill()
        guard_process.wait_for("asked")
        watch = Stopwatch()
        eventually(lambda running=guard_process: running.processes() == [], within=2)
        assert watch.elapsed > 0.5


def test_a_guard_terminated_by_its_parent_waits_for_a_slow_worker(start_guard: GuardStarter) -> None:
    parent_program = PARENT.replace("time.sleep(600)", "sys.stdin.read(1); guard.terminate(); time.sleep(600)")
    guard_process = start_guard(
        START_WORKER + "---" + textwrap.dedent(WORKER_THAT_STAYS), parent_program, stdin=subprocess.PIPE
    )
    guard_process.wait_for("up")
    guard_process.process.stdin.write(b"x")
    guard_process.process.stdin.flush()
    guard_process.wait_for("asked")
    time.sleep(guard.ORPHANED_SECONDS + 0.3)
    assert len(guard_process.processes()) == 3


def test_a_guard_whose_parent_ended_before_its_start_starts_no_worker(start_guard: GuardStarter) -> None:
    guard_process = start_guard(WORKER_THAT_ENDS, GUILD_HALL_END_WITH_PARENT="1")
    assert guard_process.end() == 1
    assert guard_process.lines == []


# Children ---------------------------------------------------------------------------------------------------------


def test_children_with_unusual_names_are_found(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    shutil.copy(shutil.which("sleep") or "", program)
    child = subprocess.Popen([program, "600"])
    try:
        assert child.pid in guard.children()
        assert os.getppid() not in guard.children()
    finally:
        child.kill()
        assert child.pid in guard.children()  # a zombie is still a child
        child.wait()
    assert child.pid not in guard.children()


def test_end_children_ends_and_reaps_all_children_but_the_spared_ones(start_guard: GuardStarter) -> None:
    guard_process = start_guard(
        """
        import subprocess, time
        from mcp_runtime.runtime import guard
        spared, ended = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
        while guard.end_children(spare=[spared.pid]):
            time.sleep(0.01)
        print(spared.poll(), guard.children() == [spared.pid])
        """
    )
    guard_process.wait_for("None True")


def test_a_sigterm_before_the_handler_was_set_ends_the_guard(start_guard: GuardStarter) -> None:
    send_blocked_sigterm = "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [15]); os.kill(os.getpid(), 15)"
    guard_process = start_guard("import time; time.sleep(600)", program=send_blocked_sigterm + START_WORKER)
    assert guard_process.end() == 128 + signal.SIGTERM


CHILD_OF_ANOTHER_USER = """
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


def test_a_child_of_another_user_is_skipped_and_the_others_are_ended(start_guard: GuardStarter) -> None:
    guard_process = start_guard(
        f"""{CHILD_OF_ANOTHER_USER}
    guard.end_descendants()
    print(other_user.poll(), guard.children() == [other_user.pid], guard.end_children())
    """
    )
    guard_process.wait_for("None True False")


def test_a_child_that_does_not_end_does_not_block_the_guard_forever(start_guard: GuardStarter) -> None:
    guard_process = start_guard(
        """
        import os, subprocess
        from mcp_runtime.runtime import guard
        held = subprocess.Popen(["sleep", "600"])
        kill, os.kill = os.kill, lambda *_: None  # as if the kernel blocked the process during a wait for a disk
        guard.SWEEP_SECONDS = 0.2
        guard.end_descendants()
        print("went on", held.poll())
        kill(held.pid, 9)
        """
    )
    guard_process.wait_for("went on None")


def test_children_older_than_the_guard_are_not_ended(tmp_path: Path) -> None:
    script = "import os, subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"
    guard_process = GuardProcess(tmp_path, "print('over')", program=script + START_WORKER)
    try:
        guard_process.wait_for("over")
        assert guard_process.process.wait(10) == 0
        older_child = psutil.Process(int(guard_process.lines[0]))
        assert older_child.status() != psutil.STATUS_ZOMBIE
    finally:
        guard_process.process.wait(10)
        psutil.Process(int(guard_process.lines[0])).kill()


def test_end_descendants_works_without_children(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_child_process_error(*_: object) -> tuple[int, int]:
        raise ChildProcessError

    monkeypatch.setattr(guard, "children", list)
    monkeypatch.setattr(guard.os, "waitpid", raise_child_process_error)
    guard.end_descendants()


def test_the_guard_makes_no_kernel_calls_outside_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard.sys, "platform", "darwin")
    monkeypatch.setattr(guard.ctypes, "CDLL", None)
    guard.become_subreaper()
    monkeypatch.setenv("GUILD_HALL_END_WITH_PARENT", "1")
    guard.end_with_parent()
    assert guard.children() == []

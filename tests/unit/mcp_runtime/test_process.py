"""Real processes. Each test has its own hall id in the tags, and no process with it remains when the test ends."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from mcp_runtime.members import output, process
from mcp_runtime.members.output import MemberLog
from mcp_runtime.members.process import TAG_VARIABLE, MemberProcess, child_environment, kill_left_behind, kill_tagged
from mcp_runtime.protocol.errors import SpawnError
from mcp_runtime.system.runtime_id import RuntimeId
from tests.conftest import eventually

# A flood does not belong into the report of a failed test. Its rest is still being read when its test is over.
logging.getLogger("guildhall.member.anna").setLevel(logging.WARNING)

SLEEP = "import time; time.sleep(600)"
# If a signal comes just before a `sleep`, Python's handler runs after it, so these sleeps are short.
WAIT_FOR_SIGNALS = "import time\nwhile True: time.sleep(0.05)"
IGNORE_SIGTERM = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); {SLEEP}"
# A child in its own session whose parent has ended. Neither its group nor its parent leads to it.
START_ORPHAN = (
    "import subprocess, sys; "
    f"script = {IGNORE_SIGTERM!r}; "
    "go = 'import subprocess, sys; subprocess.Popen([sys.executable, \"-c\", sys.argv[1]], start_new_session=True)'; "
    "subprocess.run([sys.executable, '-c', go, script])"
)


class Spawner:
    """Starts the processes of one test, in its folder and with its hall id."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hall = f"test-{uuid.uuid4()}/"
        self.exits: list[MemberProcess] = []

    @property
    def log_path(self) -> Path:
        return self.folder / "logs" / "anna.log"

    @property
    def log_text(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def python(self, code: str, *argv: str, tag: str = "anna", on_exit: Callable[..., None] | None = None, **env: str):  # type: ignore[no-untyped-def]
        return self.spawn([sys.executable, "-c", code, *argv], tag=tag, on_exit=on_exit, **env)

    def spawn(
        self, argv: list[str], *, tag: str = "anna", on_exit: Callable[..., None] | None = None, **env: str
    ) -> MemberProcess:
        return MemberProcess.spawn(
            argv,
            directory=self.folder,
            environment=child_environment(env, self.hall + tag),
            log=MemberLog("anna", self.log_path),
            on_exit=on_exit or self.exits.append,
        )

    def processes(self, tag: str = "") -> list[psutil.Process]:
        return [candidate for candidate in psutil.process_iter() if process.carries(candidate, self.hall + tag)]


@pytest.fixture
def spawner(tmp_path: Path) -> Iterator[Spawner]:
    spawner = Spawner(tmp_path)
    yield spawner
    kill_tagged(spawner.hall)
    assert spawner.processes() == []


def threads() -> set[threading.Thread]:
    """The threads of this process, without the few that serve all members and stay."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith("member-")}


def wait_for_exit(member: MemberProcess) -> int | None:
    assert member.exited.wait(10)
    return member.exit_code


def wait_for_line(member: MemberProcess, line: str) -> None:
    eventually(lambda: line in member.tail().splitlines(), what=f"{line!r} is written")


# Spawning ---------------------------------------------------------------------------------------------------------


def test_a_member_runs_in_its_folder_as_leader_of_its_own_session_without_a_shell(spawner: Spawner) -> None:
    code = "import os, sys; print(os.getcwd()); print(os.getsid(0), os.getpgid(0)); print(sys.argv[1:])"
    member = spawner.python(code, "$HOME; echo", "*")
    assert wait_for_exit(member) == 0
    lines = member.tail().splitlines()
    assert lines == [str(spawner.folder), f"{member.pid} {member.pid}", "['$HOME; echo', '*']"]


def test_the_stdin_of_a_member_is_empty(spawner: Spawner) -> None:
    member = spawner.python("import sys; print(repr(sys.stdin.read()))")
    assert wait_for_exit(member) == 0
    assert member.tail() == "''"


def test_a_member_gets_the_allowed_variables_its_own_and_its_tag(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SECRET_KEY", "DATABASE_URL", "GUILD_HALL_ADMIN_PASSWORD", "AWS_SECRET_ACCESS_KEY", "LD_PRELOAD_X"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    environment = child_environment({"GREETING": "hello", "PATH": "/mine"}, "hall/anna")
    assert set(environment) <= process.INHERITED | {"GREETING", TAG_VARIABLE}
    assert (environment["GREETING"], environment["PATH"], environment["TZ"]) == ("hello", "/mine", "Europe/Berlin")
    assert environment[TAG_VARIABLE] == "hall/anna"
    assert "secret" not in environment.values()


def test_a_member_cannot_choose_its_own_tag() -> None:
    assert child_environment({TAG_VARIABLE: "another"}, "hall/anna")[TAG_VARIABLE] == "hall/anna"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["no-such-command-anywhere"], "command not found: 'no-such-command-anywhere'"),
        (["./missing.sh"], "command not found: './missing.sh'"),
        (["./plain.txt"], "permission denied: './plain.txt' is not executable"),
        (["./no-interpreter"], "cannot be started"),
        (["nul\0"], "cannot be started"),
        (["sh", "x" * 3_000_000], "cannot be started"),
    ],
)
def test_a_command_that_cannot_be_spawned_is_an_error_with_the_reason(
    spawner: Spawner, argv: list[str], message: str
) -> None:
    (spawner.folder / "plain.txt").write_text("no script")
    (spawner.folder / "no-interpreter").write_bytes(b"\x7fELF nonsense")
    (spawner.folder / "no-interpreter").chmod(0o755)
    with pytest.raises(SpawnError, match=message):
        spawner.spawn(argv)


def test_a_missing_folder_is_reported_before_a_missing_command(spawner: Spawner, tmp_path: Path) -> None:
    with pytest.raises(SpawnError, match=r"its folder .*nowhere is gone"):
        MemberProcess.spawn(
            ["sh"],
            directory=tmp_path / "nowhere",
            environment=child_environment({}, spawner.hall),
            log=MemberLog("anna", spawner.log_path),
            on_exit=spawner.exits.append,
        )


def test_a_failed_spawn_leaves_no_thread(spawner: Spawner) -> None:
    threads_before = threads()
    with pytest.raises(SpawnError):
        spawner.spawn(["no-such-command-anywhere"])
    assert threads() <= threads_before


# The exit ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("import os; os.abort()", -6),
    ],
)
def test_an_exit_is_noticed_once_with_its_code(spawner: Spawner, code: str, exit_code: int) -> None:
    member = spawner.python(code)
    assert wait_for_exit(member) == exit_code
    eventually(lambda: spawner.exits)
    assert spawner.exits == [member]
    assert member.exited.is_set()


def test_the_last_output_is_in_the_tail_when_the_exit_is_reported(spawner: Spawner) -> None:
    tails: list[str] = []
    for number in range(10):
        spawner.python(f"print('last words {number}'); raise SystemExit(1)", on_exit=lambda m: tails.append(m.tail()))
    eventually(lambda: len(tails) == 10)
    assert sorted(tails) == [f"last words {number}" for number in range(10)]


def test_the_last_output_is_in_the_tail_even_if_it_is_read_late(spawner: Spawner) -> None:
    loop_is_blocked, may_continue = threading.Event(), threading.Event()

    def block() -> None:
        loop_is_blocked.set()
        may_continue.wait(10)

    member = spawner.python("print('last words')")
    output.loop("member-output").call_soon_threadsafe(block)
    assert loop_is_blocked.wait(10)
    wait_for_exit(member)
    threading.Timer(0.3, may_continue.set).start()  # longer than the exit waits for the output
    assert member.tail() == "last words"


def test_the_rest_of_the_group_is_dead_when_the_exit_is_reported(spawner: Spawner) -> None:
    processes_at_exit: list[list[psutil.Process]] = []
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {IGNORE_SIGTERM!r}]); sys.stdin.read()"
    member = spawner.python(
        code,
        on_exit=lambda m: processes_at_exit.append(
            [process for process in spawner.processes() if not is_dead_or_dying(process)]
        ),
    )
    assert wait_for_exit(member) == 0
    eventually(lambda: processes_at_exit)
    assert processes_at_exit == [[]]


def is_dead_or_dying(process: psutil.Process) -> bool:
    """Whether the process is dead, or has a pending SIGKILL."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    status = dict(line.split(":\t", 1) for line in lines)
    return status["State"][0] in "ZX" or bool(int(status["SigPnd"], 16) & 1 << signal.SIGKILL - 1)


def test_a_member_that_ended_leaves_no_threads_files_or_processes(spawner: Spawner) -> None:
    spawner.python("pass").exited.wait(10)  # creates what all members share
    threads_before, descriptors_before = threads(), psutil.Process().num_fds()
    children_before = set(psutil.Process().children())  # processes of other tests
    for _ in range(5):
        assert wait_for_exit(spawner.python("print('hello')")) == 0
    eventually(lambda: threads() <= threads_before, what="no thread is left")
    eventually(lambda: psutil.Process().num_fds() <= descriptors_before, what="no file is left open")
    assert set(psutil.Process().children()) <= children_before


# A process that continues to write when its output is not read.
WRITE_FOREVER = "\nwhile True:\n try: time.sleep(0.001); print('chatter', flush=True)\n except OSError: pass"


@pytest.mark.parametrize("code_after_start", ["time.sleep(600)", WRITE_FOREVER], ids=["silent", "chatty"])
def test_an_escaped_process_occupies_no_thread_and_no_file_of_the_runtime(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch, code_after_start: str
) -> None:
    monkeypatch.setattr(output, "DRAIN_AFTER_EXIT", 0.2)
    spawner.python("pass").exited.wait(10)  # creates what all members share
    threads_before, descriptors_before = threads(), psutil.Process().num_fds()
    remove_birthmark = (
        "import resource; resource.setrlimit(resource.RLIMIT_RTTIME, (-1, -1))" if sys.platform == "linux" else ""
    )
    code = f"{remove_birthmark}\nimport os, time; print('pid', os.getpid(), flush=True); {code_after_start}"
    escape_command = ["env", "-i", "setsid", sys.executable, "-c", code]
    member = spawner.python(f"import subprocess; subprocess.Popen({escape_command!r}); {SLEEP}")
    eventually(lambda: "pid " in spawner.log_text)
    escaped_process = psutil.Process(int(spawner.log_text.partition("pid ")[2].split()[0]))
    try:
        member.stop()
        eventually(lambda: threads() <= threads_before, what="no thread is left", within=5)
        eventually(lambda: psutil.Process().num_fds() <= descriptors_before, what="no file is left open", within=5)
        assert escaped_process.status() != psutil.STATUS_ZOMBIE
    finally:
        escaped_process.kill()


def test_a_pid_is_reaped_only_after_its_group_was_killed(spawner: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watcher does not reap before it kills the group, so that no new process can have the pid."""
    signals = []
    real_killpg = os.killpg

    def record_signal(group: int, number: signal.Signals) -> None:
        signals.append((number, psutil.Process(group).status()))
        real_killpg(group, number)

    monkeypatch.setattr(os, "killpg", record_signal)
    member = spawner.python("pass")
    assert wait_for_exit(member) == 0
    assert signals == [(signal.SIGKILL, psutil.STATUS_ZOMBIE)]
    member.kill()
    member.stop()
    assert signals == [
        (signal.SIGKILL, psutil.STATUS_ZOMBIE)
    ]  # a reaped pid may belong to another process, so it gets no signal


# Stopping ---------------------------------------------------------------------------------------------------------


def test_stop_sends_sigterm_first(spawner: Spawner) -> None:
    code = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print('up', flush=True)\n"
    member = spawner.python(code + WAIT_FOR_SIGNALS)
    wait_for_line(member, "up")
    member.stop()
    assert member.exit_code == 7


def test_stop_sends_sigterm_to_the_whole_group(spawner: Spawner) -> None:
    child = "import signal,sys; signal.signal(signal.SIGTERM, lambda *_: (print('bye'), sys.exit(0)));"
    child += f"print('up', flush=True)\n{WAIT_FOR_SIGNALS}"
    code = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {child!r}]).returncode)"
    member = spawner.python("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + code)
    # The child inherits the ignored signal until it sets its own handler.
    wait_for_line(member, "up")
    member.stop(10)
    assert member.exit_code == 0
    eventually(lambda: "bye" in member.tail())


def test_stop_kills_a_process_that_ignores_sigterm(spawner: Spawner) -> None:
    member = spawner.python(IGNORE_SIGTERM)
    wait_for_line(member, "deaf")
    started_at = time.monotonic()
    member.stop(0.3)
    assert 0.3 <= time.monotonic() - started_at < 10
    assert member.exit_code == -signal.SIGKILL
    assert spawner.processes() == []


def test_stop_ends_a_suspended_process_too(spawner: Spawner) -> None:
    member = spawner.python(SLEEP)
    os.kill(member.pid, signal.SIGSTOP)
    eventually(lambda: psutil.Process(member.pid).status() == psutil.STATUS_STOPPED)
    member.stop(0.2)
    assert member.exit_code == -signal.SIGKILL


def test_stop_ends_a_process_outside_the_group_without_a_parent(spawner: Spawner) -> None:
    member = spawner.python(START_ORPHAN + "; " + SLEEP)
    wait_for_line(member, "deaf")
    assert len(spawner.processes()) == 2
    member.stop(0.5)
    assert spawner.processes() == []


def test_stop_and_kill_of_an_ended_member_do_nothing(spawner: Spawner) -> None:
    member = spawner.python("raise SystemExit(4)")
    assert wait_for_exit(member) == 4
    member.stop()
    member.kill()
    assert member.exit_code == 4
    eventually(lambda: spawner.exits == [member])


def test_many_threads_can_stop_one_member_at_the_same_time(spawner: Spawner) -> None:
    member = spawner.python(SLEEP)
    threads = [threading.Thread(target=member.stop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert member.exit_code == -signal.SIGTERM
    eventually(lambda: spawner.exits == [member])


# Environment tags -------------------------------------------------------------------------------------------------


def test_only_processes_with_exactly_the_tag_are_killed(spawner: Spawner) -> None:
    anna, annabel = spawner.python(SLEEP, tag="anna"), spawner.python(SLEEP, tag="annabel")
    assert kill_tagged(spawner.hall + "anna") == 1
    assert wait_for_exit(anna) == -signal.SIGKILL
    assert not annabel.exited.wait(0.1)


def test_a_tag_that_ends_with_a_slash_matches_all_tags_below_it(spawner: Spawner) -> None:
    members = [spawner.python(SLEEP, tag=tag) for tag in ("1/anna", "1/bob", "2/anna")]
    other_tag = f"{spawner.hall[:-1]}-not/"
    assert kill_tagged(other_tag) == 0
    assert kill_tagged(spawner.hall + "1/") == 2
    assert kill_tagged(spawner.hall) == 1
    assert [wait_for_exit(member) for member in members] == [-signal.SIGKILL] * 3


def test_an_empty_tag_kills_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_if_called() -> None:
        raise AssertionError("every process without a tag would be killed")

    monkeypatch.setattr(psutil, "process_iter", fail_if_called)
    assert kill_tagged("") == 0


def test_killing_by_tag_does_not_reap_the_member(spawner: Spawner) -> None:
    for number in range(20):
        member = spawner.python(SLEEP, tag=str(number))
        eventually(psutil.Process(member.pid).environ)  # during its exec the environment is not visible
        assert kill_tagged(spawner.hall + str(number)) == 1
        assert wait_for_exit(member) == -signal.SIGKILL


def test_killing_by_tag_waits_for_the_exits_and_counts_each_process_once(spawner: Spawner) -> None:
    start_children = f"for _ in range(5): subprocess.Popen([sys.executable, '-c', {IGNORE_SIGTERM!r}])"
    spawner.python(f"import subprocess, sys\n{start_children}\n{SLEEP}")
    eventually(lambda: len(spawner.processes()) == 6)
    assert kill_tagged(spawner.hall) == 6
    assert spawner.processes() == []


def test_killing_by_tag_finds_processes_that_fork_during_the_search(spawner: Spawner) -> None:
    child = "    if os.fork() == 0: os.setsid(); time.sleep(600)\n"
    spawner.python(f"import os, time\nfor _ in range(200):\n{child}    time.sleep(0.002)")
    eventually(lambda: len(spawner.processes()) > 3)
    kill_tagged(spawner.hall)
    assert spawner.processes() == []


@pytest.mark.skipif(sys.platform != "linux", reason="birthmarks are Linux's")
def test_a_daemon_without_our_environment_is_found_by_its_birthmark(spawner: Spawner) -> None:
    daemon = 'env -i setsid --fork sh -c "echo born >&2; sleep 600"'
    tag, other_tag = "7.8.9.0/1/anna", "7.8.9.0/2/bob"
    members = [
        spawner.spawn(["sh", "-c", f"{daemon}; exec sleep 600"], tag=member_tag) for member_tag in (tag, other_tag)
    ]
    for member in members:
        wait_for_line(member, "born")
    assert kill_tagged(spawner.hall + tag) == 3  # the member, and a daemon of two processes
    assert not members[1].is_over
    assert kill_tagged(spawner.hall + "7.8.9.0/") == 3


@pytest.mark.skipif(sys.platform != "linux", reason="birthmarks are Linux's")
def test_processes_of_a_dead_runtime_are_found_by_tag_and_birthmark(spawner: Spawner) -> None:
    hall = uuid.uuid4()
    spawner.hall = f"{hall}/"
    dead_runtime = dataclasses.replace(RuntimeId.own(), started=1)
    daemon = 'env -i setsid --fork sh -c "echo born >&2; sleep 600"'
    for runtime in (dead_runtime, RuntimeId.own()):
        member = spawner.spawn(["sh", "-c", f"{daemon}; exec sleep 600"], tag=f"{runtime}/1/anna")
        wait_for_line(member, "born")
    assert kill_left_behind(hall) == 3
    assert not member.is_over
    assert kill_tagged(f"{spawner.hall}{RuntimeId.own()}/") == 3
    assert kill_left_behind(uuid.uuid4()) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="birthmarks are Linux's")
def test_a_daemon_without_a_tag_is_found_with_the_id_of_its_dead_runtime(spawner: Spawner) -> None:
    hall = uuid.uuid4()
    spawner.hall = f"{hall}/"
    dead_runtime = dataclasses.replace(RuntimeId.own(), started=1)
    daemon = 'env -i setsid --fork sh -c "echo born >&2; sleep 600"'
    for runtime in (dead_runtime, RuntimeId.own()):
        member = spawner.spawn(["sh", "-c", f"{daemon}; exec sleep 600"], tag=f"{runtime}/1/anna")
        wait_for_line(member, "born")
        member.kill()
    assert kill_left_behind(hall) == 0
    assert kill_left_behind(hall, str(RuntimeId.own())) == 0
    assert kill_left_behind(hall, str(dead_runtime)) == 2
    assert kill_tagged(f"{spawner.hall}{RuntimeId.own()}/") == 2


def test_processes_of_a_runtime_of_the_previous_release_are_killed(spawner: Spawner) -> None:
    """Its tags began with the id of the lease."""
    hall = uuid.uuid4()
    spawner.hall = f"{hall}/"
    old_member, other_member = (
        spawner.spawn(["sleep", "600"], tag=tag) for tag in (f"{uuid.uuid4()}/anna", "somebody/anna")
    )
    assert kill_left_behind(hall) == 1
    assert old_member.exited.wait(5)
    assert not other_member.is_over


def test_killing_by_tag_never_kills_its_own_process(tmp_path: Path) -> None:
    tag = f"test-{uuid.uuid4()}/me"
    code = f"from mcp_runtime.members.process import kill_tagged; print(kill_tagged({tag!r}))"
    environment = {**os.environ, TAG_VARIABLE: tag, "PYTHONPATH": os.getcwd()}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=30)
    assert process.stdout == "0\n"


# Output -----------------------------------------------------------------------------------------------------------


def test_output_and_errors_go_to_the_file_the_tail_and_the_console(
    spawner: Spawner, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "guildhall.member.anna")
    member = spawner.python("import sys; print('out', flush=True); print('err', file=sys.stderr)")
    assert wait_for_exit(member) == 0
    assert member.tail().splitlines() == ["out", "err"]
    assert [line[24:] for line in spawner.log_text.splitlines()] == ["out", "err"]
    assert [(record.name, record.getMessage()) for record in caplog.records] == [
        ("guildhall.member.anna", "out"),
        ("guildhall.member.anna", "err"),
    ]


def test_the_tail_is_the_last_lines(spawner: Spawner) -> None:
    member = spawner.python("for n in range(100): print(n)")
    assert wait_for_exit(member) == 0
    assert member.tail().splitlines() == [str(n) for n in range(80, 100)]


def test_long_lines_are_cut_in_pieces_and_nothing_is_lost(spawner: Spawner) -> None:
    member = spawner.python("print('x' * 10_000); print('y' * 4000); print('z' * 200_000, end='')")
    assert wait_for_exit(member) == 0
    eventually(lambda: spawner.log_text.count("z") == 200_000)
    lengths = [len(line[24:]) for line in spawner.log_text.splitlines()]
    assert max(lengths) == output.MAX_LINE
    assert (spawner.log_text.count("x"), spawner.log_text.count("y")) == (10_000, 4000)


def test_binary_output_is_shown_without_control_characters(spawner: Spawner) -> None:
    noise = b"\x1b[31mred\x00\xff\xfe\x07\ttab\r\n\n\xc3(\nafter\n"
    member = spawner.python(f"import sys; sys.stdout.buffer.write({noise!r})")
    assert wait_for_exit(member) == 0
    assert member.tail().split("\n") == ["red\ufffd\ufffd\ufffd\ufffd\ttab", "", "\ufffd(", "after"]


def test_a_last_line_without_a_line_end_is_in_the_tail(spawner: Spawner) -> None:
    member = spawner.python("print('no end', end='')")
    assert wait_for_exit(member) == 0
    eventually(lambda: member.tail() == "no end")


def test_the_log_is_rotated_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "LOG_BYTES", 10_000)
    log = MemberLog("anna", tmp_path / "anna.log")
    for number in range(2000):
        log.write([f"line {number}"])
    log.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["anna.log", "anna.log.1", "anna.log.2"]
    assert all(path.stat().st_size <= 10_000 for path in tmp_path.iterdir())
    assert (tmp_path / "anna.log").read_text().endswith("line 1999\n")


def test_the_next_process_continues_the_same_log(spawner: Spawner) -> None:
    for word in ("first", "second"):
        assert wait_for_exit(spawner.python(f"print({word!r})")) == 0
    assert [line[24:] for line in spawner.log_text.splitlines()] == ["first", "second"]


def test_the_console_shows_few_lines_a_second_and_the_number_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "guildhall.member.anna")
    times = [100.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: times[0])
    log = MemberLog("anna", tmp_path / "anna.log")
    for number in range(80):
        log.write([f"line {number}"])
    assert caplog.messages == [f"line {number}" for number in range(50)]
    times[0] += 1
    log.write(["later"])
    assert caplog.messages[50:] == ["… 30 more lines: guildhall logs anna", "later"]
    assert log.tail().splitlines()[-3:] == ["line 78", "line 79", "later"]
    log.close()


def test_member_and_tail_work_if_the_log_cannot_be_written(
    spawner: Spawner, capsys: pytest.CaptureFixture[str]
) -> None:
    spawner.log_path.parent.mkdir()
    spawner.log_path.mkdir()  # a folder instead of the log
    member = spawner.python("print('x' * 100_000); print('still here')")
    assert wait_for_exit(member) == 0
    eventually(lambda: member.tail().endswith("still here"))

"""Real processes. Each test's hall has a mark of its own, and whatever carries it is gone when the test ends."""

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

# Floods are not for the reports of failed tests; what is left of one is still being read when its test is over.
logging.getLogger("guildhall.member.anna").setLevel(logging.WARNING)

FOREVER = "import time; time.sleep(600)"
# A handler of Python's runs after a `sleep` that begins just as the signal comes: short ones, where one is waited for.
HEARING = "import time\nwhile True: time.sleep(0.05)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); {FOREVER}"
# A child in a session of its own whose parent is gone: neither group nor parent lead to it.
ESCAPED = (
    "import subprocess, sys; "
    f"script = {DEAF!r}; "
    "go = 'import subprocess, sys; subprocess.Popen([sys.executable, \"-c\", sys.argv[1]], start_new_session=True)'; "
    "subprocess.run([sys.executable, '-c', go, script])"
)


class Yard:
    """Where a test's processes run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hall = f"test-{uuid.uuid4()}/"
        self.exits: list[MemberProcess] = []

    @property
    def log_path(self) -> Path:
        return self.folder / "logs" / "anna.log"

    @property
    def written(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def python(self, code: str, *argv: str, mark: str = "anna", on_exit: Callable[..., None] | None = None, **env: str):  # type: ignore[no-untyped-def]
        return self.spawn([sys.executable, "-c", code, *argv], mark=mark, on_exit=on_exit, **env)

    def spawn(
        self, argv: list[str], *, mark: str = "anna", on_exit: Callable[..., None] | None = None, **env: str
    ) -> MemberProcess:
        return MemberProcess.spawn(
            argv,
            directory=self.folder,
            environment=child_environment(env, self.hall + mark),
            log=MemberLog("anna", self.log_path),
            on_exit=on_exit or self.exits.append,
        )

    def alive(self, mark: str = "") -> list[psutil.Process]:
        return [p for p in psutil.process_iter() if process.carries(p, self.hall + mark)]


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    kill_tagged(yard.hall)
    assert yard.alive() == []


def threads() -> set[threading.Thread]:
    """Those of this process but the few that serve all members and stay."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith("member-")}


def ended(member: MemberProcess) -> int | None:
    assert member.exited.wait(10)
    return member.exit_code


def wait_for_line(member: MemberProcess, line: str) -> None:
    eventually(lambda: line in member.tail().splitlines(), what=f"{line!r} is written")


# Spawning ---------------------------------------------------------------------------------------------------------


def test_a_member_runs_in_its_folder_as_leader_of_its_own_session_without_a_shell(yard: Yard) -> None:
    code = "import os, sys; print(os.getcwd()); print(os.getsid(0), os.getpgid(0)); print(sys.argv[1:])"
    member = yard.python(code, "$HOME; echo", "*")
    assert ended(member) == 0
    lines = member.tail().splitlines()
    assert lines == [str(yard.folder), f"{member.pid} {member.pid}", "['$HOME; echo', '*']"]


def test_a_member_reads_nothing_from_our_terminal(yard: Yard) -> None:
    member = yard.python("import sys; print(repr(sys.stdin.read()))")
    assert ended(member) == 0
    assert member.tail() == "''"


def test_a_member_gets_the_allow_listed_environment_its_own_and_its_mark(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SECRET_KEY", "DATABASE_URL", "GUILD_HALL_ADMIN_PASSWORD", "AWS_SECRET_ACCESS_KEY", "LD_PRELOAD_X"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    environment = child_environment({"GREETING": "hello", "PATH": "/mine"}, "hall/anna")
    assert set(environment) <= process.INHERITED | {"GREETING", TAG_VARIABLE}
    assert (environment["GREETING"], environment["PATH"], environment["TZ"]) == ("hello", "/mine", "Europe/Berlin")
    assert environment[TAG_VARIABLE] == "hall/anna"
    assert "secret" not in environment.values()


def test_a_member_cannot_choose_its_own_mark() -> None:
    assert child_environment({TAG_VARIABLE: "another"}, "hall/anna")[TAG_VARIABLE] == "hall/anna"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["no-such-command-anywhere"], "command not found: 'no-such-command-anywhere'"),
        (["./missing.sh"], "command not found: './missing.sh'"),
        (["./plain.txt"], "permission denied: './plain.txt' is not executable"),
        (["./no-interpreter"], "cannot be started"),
        (["nul\0"], "cannot be started"),
        (["sh", "x" * 3_000_000], "cannot be started"),
    ],
)
def test_what_cannot_be_spawned_is_said(yard: Yard, argv: list[str], said: str) -> None:
    (yard.folder / "plain.txt").write_text("no script")
    (yard.folder / "no-interpreter").write_bytes(b"\x7fELF nonsense")
    (yard.folder / "no-interpreter").chmod(0o755)
    with pytest.raises(SpawnError, match=said):
        yard.spawn(argv)


def test_a_folder_that_is_gone_is_said_before_the_command_is_blamed(yard: Yard, tmp_path: Path) -> None:
    with pytest.raises(SpawnError, match=r"its folder .*nowhere is gone"):
        MemberProcess.spawn(
            ["sh"],
            directory=tmp_path / "nowhere",
            environment=child_environment({}, yard.hall),
            log=MemberLog("anna", yard.log_path),
            on_exit=yard.exits.append,
        )


def test_a_failed_spawn_leaves_no_thread(yard: Yard) -> None:
    before = threads()
    with pytest.raises(SpawnError):
        yard.spawn(["no-such-command-anywhere"])
    assert threads() <= before


# Its end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("import os; os.abort()", -6),
    ],
)
def test_an_exit_is_noticed_once_with_its_code(yard: Yard, code: str, exit_code: int) -> None:
    member = yard.python(code)
    assert ended(member) == exit_code
    eventually(lambda: yard.exits)
    assert yard.exits == [member]
    assert member.exited.is_set()


def test_the_last_output_is_there_when_the_exit_is_reported(yard: Yard) -> None:
    tails: list[str] = []
    for number in range(10):
        yard.python(f"print('last words {number}'); raise SystemExit(1)", on_exit=lambda m: tails.append(m.tail()))
    eventually(lambda: len(tails) == 10)
    assert sorted(tails) == [f"last words {number}" for number in range(10)]


def test_the_last_words_are_in_the_tail_though_they_are_read_late(yard: Yard) -> None:
    blocked, go_on = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        go_on.wait(10)

    member = yard.python("print('last words')")
    output.loop("member-output").call_soon_threadsafe(block)
    assert blocked.wait(10)
    ended(member)
    threading.Timer(0.3, go_on.set).start()  # longer than the exit waits for them
    assert member.tail() == "last words"


def test_the_rest_of_the_group_is_dead_when_the_exit_is_reported(yard: Yard) -> None:
    left: list[list[psutil.Process]] = []
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {DEAF!r}]); sys.stdin.read()"
    member = yard.python(code, on_exit=lambda m: left.append([p for p in yard.alive() if not is_killed(p)]))
    assert ended(member) == 0
    eventually(lambda: left)
    assert left == [[]]


def is_killed(process: psutil.Process) -> bool:
    """It is dead, or has no more to do than to die, once it gets a processor."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    status = dict(line.split(":\t", 1) for line in lines)
    return status["State"][0] in "ZX" or bool(int(status["SigPnd"], 16) & 1 << signal.SIGKILL - 1)


def test_nothing_is_left_of_a_member_that_ended(yard: Yard) -> None:
    yard.python("pass").exited.wait(10)  # what all members share is there from now on
    before, descriptors = threads(), psutil.Process().num_fds()
    for _ in range(5):
        assert ended(yard.python("print('hello')")) == 0
    eventually(lambda: threads() <= before, what="no thread is left")
    eventually(lambda: psutil.Process().num_fds() <= descriptors, what="no file is left open")
    assert psutil.Process().children() == []


# One that is silent, and one that is not: it writes on when nobody reads any more.
CHATTER = "\nwhile True:\n try: time.sleep(0.001); print('chatter', flush=True)\n except OSError: pass"


@pytest.mark.parametrize("then", ["time.sleep(600)", CHATTER], ids=["silent", "chatty"])
def test_who_got_away_without_a_trace_holds_neither_thread_nor_file_of_ours(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    monkeypatch.setattr(output, "DRAIN_AFTER_EXIT", 0.2)
    yard.python("pass").exited.wait(10)  # what all members share is there from now on
    before, descriptors = threads(), psutil.Process().num_fds()
    no_birthmark = (
        "import resource; resource.setrlimit(resource.RLIMIT_RTTIME, (-1, -1))" if sys.platform == "linux" else ""
    )
    code = f"{no_birthmark}\nimport os, time; print('pid', os.getpid(), flush=True); {then}"
    escape = ["env", "-i", "setsid", sys.executable, "-c", code]
    member = yard.python(f"import subprocess; subprocess.Popen({escape!r}); {FOREVER}")
    eventually(lambda: "pid " in yard.written)
    runaway = psutil.Process(int(yard.written.partition("pid ")[2].split()[0]))
    try:
        member.stop()
        eventually(lambda: threads() <= before, what="no thread is left", within=5)
        eventually(lambda: psutil.Process().num_fds() <= descriptors, what="no file is left open", within=5)
        assert runaway.status() != psutil.STATUS_ZOMBIE
    finally:
        runaway.kill()


def test_the_pid_stays_its_own_until_its_group_was_signalled(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watcher looks at the dead without reaping, so that no new process has the pid when the group is killed."""
    seen = []
    real = os.killpg

    def watched(group: int, number: signal.Signals) -> None:
        seen.append((number, psutil.Process(group).status()))
        real(group, number)

    monkeypatch.setattr(os, "killpg", watched)
    member = yard.python("pass")
    assert ended(member) == 0
    assert seen == [(signal.SIGKILL, psutil.STATUS_ZOMBIE)]
    member.kill()
    member.stop()
    assert seen == [(signal.SIGKILL, psutil.STATUS_ZOMBIE)]  # a reaped pid may be a stranger's: not signalled again


# Stopping ---------------------------------------------------------------------------------------------------------


def test_stop_asks_first(yard: Yard) -> None:
    code = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print('up', flush=True)\n"
    member = yard.python(code + HEARING)
    wait_for_line(member, "up")
    member.stop()
    assert member.exit_code == 7


def test_stop_asks_the_whole_group(yard: Yard) -> None:
    child = "import signal,sys; signal.signal(signal.SIGTERM, lambda *_: (print('bye'), sys.exit(0)));"
    child += f"print('up', flush=True)\n{HEARING}"
    code = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {child!r}]).returncode)"
    member = yard.python("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + code)
    # The child inherits the ignored signal until it sets its own handler.
    wait_for_line(member, "up")
    member.stop(10)
    assert member.exit_code == 0
    eventually(lambda: "bye" in member.tail())


def test_stop_kills_what_does_not_listen_after_its_patience(yard: Yard) -> None:
    member = yard.python(DEAF)
    wait_for_line(member, "deaf")
    began = time.monotonic()
    member.stop(0.3)
    assert 0.3 <= time.monotonic() - began < 10
    assert member.exit_code == -signal.SIGKILL
    assert yard.alive() == []


def test_stop_ends_a_stopped_process_too(yard: Yard) -> None:
    member = yard.python(FOREVER)
    os.kill(member.pid, signal.SIGSTOP)
    eventually(lambda: psutil.Process(member.pid).status() == psutil.STATUS_STOPPED)
    member.stop(0.2)
    assert member.exit_code == -signal.SIGKILL


def test_stop_ends_what_left_the_group_and_lost_its_parent(yard: Yard) -> None:
    member = yard.python(ESCAPED + "; " + FOREVER)
    wait_for_line(member, "deaf")
    assert len(yard.alive()) == 2
    member.stop(0.5)
    assert yard.alive() == []


def test_stop_and_kill_of_the_dead_do_nothing(yard: Yard) -> None:
    member = yard.python("raise SystemExit(4)")
    assert ended(member) == 4
    member.stop()
    member.kill()
    assert member.exit_code == 4
    eventually(lambda: yard.exits == [member])


def test_many_threads_may_stop_one_member_at_once(yard: Yard) -> None:
    member = yard.python(FOREVER)
    threads = [threading.Thread(target=member.stop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert member.exit_code == -signal.SIGTERM
    eventually(lambda: yard.exits == [member])


# Marks ------------------------------------------------------------------------------------------------------------


def test_only_what_carries_the_very_mark_is_killed(yard: Yard) -> None:
    anna, annabel = yard.python(FOREVER, mark="anna"), yard.python(FOREVER, mark="annabel")
    assert kill_tagged(yard.hall + "anna") == 1
    assert ended(anna) == -signal.SIGKILL
    assert not annabel.exited.wait(0.1)


def test_a_mark_with_a_slash_at_its_end_means_all_below_it(yard: Yard) -> None:
    members = [yard.python(FOREVER, mark=mark) for mark in ("1/anna", "1/bob", "2/anna")]
    other = f"{yard.hall[:-1]}-not/"
    assert kill_tagged(other) == 0
    assert kill_tagged(yard.hall + "1/") == 2
    assert kill_tagged(yard.hall) == 1
    assert [ended(member) for member in members] == [-signal.SIGKILL] * 3


def test_no_mark_is_nobodys_and_kills_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def look() -> None:
        raise AssertionError("every process without a mark would be next")

    monkeypatch.setattr(psutil, "process_iter", look)
    assert kill_tagged("") == 0


def test_killing_by_mark_never_takes_an_exit_from_the_thread_that_watches_for_it(yard: Yard) -> None:
    for number in range(20):
        member = yard.python(FOREVER, mark=str(number))
        eventually(psutil.Process(member.pid).environ)  # in the midst of its exec it has none to be seen
        assert kill_tagged(yard.hall + str(number)) == 1
        assert ended(member) == -signal.SIGKILL


def test_killing_by_mark_waits_until_they_are_gone_and_counts_each_once(yard: Yard) -> None:
    yard.python(
        f"import subprocess, sys\nfor _ in range(5): subprocess.Popen([sys.executable, '-c', {DEAF!r}])\n{FOREVER}"
    )
    eventually(lambda: len(yard.alive()) == 6)
    assert kill_tagged(yard.hall) == 6
    assert yard.alive() == []


def test_killing_by_mark_finds_what_is_forked_while_it_looks(yard: Yard) -> None:
    child = "    if os.fork() == 0: os.setsid(); time.sleep(600)\n"
    yard.python(f"import os, time\nfor _ in range(200):\n{child}    time.sleep(0.002)")
    eventually(lambda: len(yard.alive()) > 3)
    kill_tagged(yard.hall)
    assert yard.alive() == []


@pytest.mark.skipif(sys.platform != "linux", reason="birthmarks are Linux's")
def test_a_daemon_without_our_environment_is_found_by_its_birthmark(yard: Yard) -> None:
    daemon = 'env -i setsid --fork sh -c "echo born >&2; sleep 600"'
    mark, other = "7.8.9.0/1/anna", "7.8.9.0/2/bob"
    members = [yard.spawn(["sh", "-c", f"{daemon}; exec sleep 600"], mark=one) for one in (mark, other)]
    for member in members:
        wait_for_line(member, "born")
    assert kill_tagged(yard.hall + mark) == 3  # the member, and a daemon of two processes
    assert not members[1].is_over
    assert kill_tagged(yard.hall + "7.8.9.0/") == 3


@pytest.mark.skipif(sys.platform != "linux", reason="birthmarks are Linux's")
def test_what_a_dead_runtime_left_is_found_by_what_its_kin_have_kept_in_their_environment(yard: Yard) -> None:
    hall = uuid.uuid4()
    yard.hall = f"{hall}/"
    dead = dataclasses.replace(RuntimeId.own(), started=1)
    daemon = 'env -i setsid --fork sh -c "echo born >&2; sleep 600"'
    for runtime in (dead, RuntimeId.own()):
        member = yard.spawn(["sh", "-c", f"{daemon}; exec sleep 600"], mark=f"{runtime}/1/anna")
        wait_for_line(member, "born")
    assert kill_left_behind(hall) == 3
    assert not member.is_over
    assert kill_tagged(f"{yard.hall}{RuntimeId.own()}/") == 3
    assert kill_left_behind(uuid.uuid4()) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="birthmarks are Linux's")
def test_a_daemon_that_alone_is_left_is_found_when_its_dead_runtime_is_named(yard: Yard) -> None:
    hall = uuid.uuid4()
    yard.hall = f"{hall}/"
    dead = dataclasses.replace(RuntimeId.own(), started=1)
    daemon = 'env -i setsid --fork sh -c "echo born >&2; sleep 600"'
    for runtime in (dead, RuntimeId.own()):
        member = yard.spawn(["sh", "-c", f"{daemon}; exec sleep 600"], mark=f"{runtime}/1/anna")
        wait_for_line(member, "born")
        member.kill()
    assert kill_left_behind(hall) == 0
    assert kill_left_behind(hall, str(RuntimeId.own())) == 0
    assert kill_left_behind(hall, str(dead)) == 2
    assert kill_tagged(f"{yard.hall}{RuntimeId.own()}/") == 2


def test_what_a_runtime_of_the_release_before_left_is_ended(yard: Yard) -> None:
    """It marked with the lease's id."""
    hall = uuid.uuid4()
    yard.hall = f"{hall}/"
    old, other = (yard.spawn(["sleep", "600"], mark=mark) for mark in (f"{uuid.uuid4()}/anna", "somebody/anna"))
    assert kill_left_behind(hall) == 1
    assert old.exited.wait(5)
    assert not other.is_over


def test_we_ourselves_are_never_killed_though_we_carry_a_mark(tmp_path: Path) -> None:
    mark = f"test-{uuid.uuid4()}/me"
    code = f"from mcp_runtime.members.process import kill_tagged; print(kill_tagged({mark!r}))"
    environment = {**os.environ, TAG_VARIABLE: mark, "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=30)
    assert done.stdout == "0\n"


# What it writes ---------------------------------------------------------------------------------------------------


def test_output_and_errors_go_to_the_file_the_tail_and_the_console(
    yard: Yard, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "guildhall.member.anna")
    member = yard.python("import sys; print('out', flush=True); print('err', file=sys.stderr)")
    assert ended(member) == 0
    assert member.tail().splitlines() == ["out", "err"]
    assert [line[24:] for line in yard.written.splitlines()] == ["out", "err"]
    assert [(r.name, r.getMessage()) for r in caplog.records] == [
        ("guildhall.member.anna", "out"),
        ("guildhall.member.anna", "err"),
    ]


def test_the_tail_is_the_last_lines(yard: Yard) -> None:
    member = yard.python("for n in range(100): print(n)")
    assert ended(member) == 0
    assert member.tail().splitlines() == [str(n) for n in range(80, 100)]


def test_long_lines_are_cut_in_pieces_and_nothing_is_lost(yard: Yard) -> None:
    member = yard.python("print('x' * 10_000); print('y' * 4000); print('z' * 200_000, end='')")
    assert ended(member) == 0
    eventually(lambda: yard.written.count("z") == 200_000)
    lengths = [len(line[24:]) for line in yard.written.splitlines()]
    assert max(lengths) == output.MAX_LINE
    assert (yard.written.count("x"), yard.written.count("y")) == (10_000, 4000)


def test_binary_noise_is_survived_and_shown_harmless(yard: Yard) -> None:
    noise = b"\x1b[31mred\x00\xff\xfe\x07\ttab\r\n\n\xc3(\nafter\n"
    member = yard.python(f"import sys; sys.stdout.buffer.write({noise!r})")
    assert ended(member) == 0
    assert member.tail().split("\n") == ["red\ufffd\ufffd\ufffd\ufffd\ttab", "", "\ufffd(", "after"]


def test_a_last_line_without_an_end_is_kept(yard: Yard) -> None:
    member = yard.python("print('no end', end='')")
    assert ended(member) == 0
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


def test_the_next_process_writes_on_in_the_same_log(yard: Yard) -> None:
    for word in ("first", "second"):
        assert ended(yard.python(f"print({word!r})")) == 0
    assert [line[24:] for line in yard.written.splitlines()] == ["first", "second"]


def test_the_console_shows_some_lines_a_second_and_says_how_many_it_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "guildhall.member.anna")
    clock = [100.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: clock[0])
    log = MemberLog("anna", tmp_path / "anna.log")
    for number in range(80):
        log.write([f"line {number}"])
    assert caplog.messages == [f"line {number}" for number in range(50)]
    clock[0] += 1
    log.write(["later"])
    assert caplog.messages[50:] == ["… 30 more lines: manage.py logs anna", "later"]
    assert log.tail().splitlines()[-3:] == ["line 78", "line 79", "later"]
    log.close()


def test_a_log_that_cannot_be_written_stops_neither_member_nor_tail(
    yard: Yard, capsys: pytest.CaptureFixture[str]
) -> None:
    yard.log_path.parent.mkdir()
    yard.log_path.mkdir()  # a folder in its place
    member = yard.python("print('x' * 100_000); print('still here')")
    assert ended(member) == 0
    eventually(lambda: member.tail().endswith("still here"))

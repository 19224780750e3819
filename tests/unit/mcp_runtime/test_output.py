"""The output of members, from real processes. Any amount costs little, and one thread reads it."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mcp_runtime.members.output import MemberLog
from mcp_runtime.members.process import MemberProcess, child_environment, kill_tagged
from mcp_runtime.secrets.references import Mask
from tests.conftest import eventually
from tests.support import machine

for _name in ("quiet", *(f"flood-{number}" for number in range(5))):
    logging.getLogger(f"guildhall.member.{_name}").setLevel(logging.WARNING)  # floods are not for test reports

SLEEP = "import time; time.sleep(600)"
FLOODS = {
    "long lines": "import os\nwhile True: os.write(1, (b'x' * 3999 + b'\\n') * 16)",
    "empty lines": "import os\nwhile True: os.write(1, b'\\n' * 65536)",
    "one endless line": "import os\nwhile True: os.write(1, b'x' * 65536)",
    "ordinary lines": "while True: print('12:00:00 INFO 127.0.0.1 - POST /mcp HTTP/1.1 200', flush=True)",
    "noise": "import os\nwhile True: os.write(1, os.urandom(65536))",
}
# For all floods together. Measurements gave 2 to 5 % of a core.
MAX_SHARE_OF_A_CORE = 0.1


class Spawner:
    """Starts the members of one test, in its folder and with its hall id."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hall = f"test-{uuid.uuid4()}/"

    def run(self, name: str, code: str, on_exit: Callable[[MemberProcess], None] = lambda _: None) -> MemberProcess:
        return MemberProcess.spawn(
            [sys.executable, "-c", code],
            directory=self.folder,
            environment=child_environment({}, self.hall + name),
            log=MemberLog(name, self.folder / f"{name}.log"),
            on_exit=on_exit,
        )


@pytest.fixture
def spawner(tmp_path: Path) -> Iterator[Spawner]:
    spawner = Spawner(tmp_path)
    yield spawner
    kill_tagged(spawner.hall)


# Secrets ----------------------------------------------------------------------------------------------------------

SECRET = "hunter2-hunter2-hunter2"


@pytest.mark.parametrize(
    ("code", "pieces"),
    [
        (f"print('key', '{SECRET}')", ["key ***"]),
        (f"print('x' * 3990 + '{SECRET}' + 'y' * 10)", ["x" * 3990 + "***" + "y" * 7, "yyy"]),
        (f"print('x' * 7990 + '{SECRET}' + 'y' * 100_000, end='')", ["x" * 4000, "x" * 3990 + "***" + "y" * 7]),
        (f"print('{SECRET[:10]}\\x1b[0m{SECRET[10:]}')", ["***"]),
        (f"import json; print(json.dumps('{SECRET}'))", ['"***"']),
    ],
)
def test_a_secret_is_masked_wherever_the_output_is_cut(tmp_path: Path, code: str, pieces: list[str]) -> None:
    log = MemberLog("quiet", tmp_path / "quiet.log", [SECRET])
    environment = child_environment({}, f"test-{uuid.uuid4()}/quiet")
    argv = [sys.executable, "-c", code]
    member = MemberProcess.spawn(argv, directory=tmp_path, environment=environment, log=log, on_exit=lambda _: None)
    assert member.exited.wait(10)
    eventually(lambda: len((tmp_path / "quiet.log").read_text().splitlines()) >= len(pieces))
    lines = [line[24:] for line in (tmp_path / "quiet.log").read_text().splitlines()]
    assert lines[: len(pieces)] == pieces
    assert "hunter2" not in "".join(lines)


def test_a_secret_with_many_lines_masks_fast() -> None:
    mask = Mask(["\n".join(f"line-{number:04}" for number in range(200))])
    began = time.process_time()
    assert mask.apply("\n" * 16_384) == "\n" * 16_384
    first = time.process_time() - began
    assert mask.apply("x line-0007 y") == "x *** y"
    assert first < 1  # a hundredth of that here. One pass for each line took minutes


# Threads ----------------------------------------------------------------------------------------------------------


def test_many_members_need_no_more_threads_than_one(spawner: Spawner) -> None:
    first_member = spawner.run("quiet", SLEEP)
    count_before = threading.active_count()
    members = [spawner.run("quiet", SLEEP) for _ in range(20)]
    assert threading.active_count() == count_before
    for member in (first_member, *members):
        member.kill()
    assert threading.active_count() <= count_before + 8


def test_an_exit_is_noticed_while_other_exits_wait_for_the_database(spawner: Spawner) -> None:
    database_is_back = threading.Event()
    ended_members: list[MemberProcess] = []

    def wait(member: MemberProcess) -> None:
        database_is_back.wait(20)
        ended_members.append(member)

    members = [spawner.run("quiet", "print('why')", wait) for _ in range(20)]
    try:
        for member in members:
            assert member.exited.wait(10)
            assert (member.exit_code, member.tail()) == (0, "why")
    finally:
        database_is_back.set()
    eventually(lambda: len(ended_members) == 20)


@pytest.mark.parametrize("reason", ["no such call", "not allowed"])
def test_an_exit_is_noticed_without_pidfd_open(spawner: Spawner, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    def refuse(pid: int) -> int:
        raise PermissionError

    if reason == "no such call":
        monkeypatch.delattr(os, "pidfd_open")
    else:
        monkeypatch.setattr(os, "pidfd_open", refuse)
    ended_members: list[MemberProcess] = []
    member = spawner.run("quiet", "import sys; sys.stdin.read(); raise SystemExit(3)", ended_members.append)
    assert member.exited.wait(10)
    assert member.exit_code == 3
    eventually(lambda: ended_members == [member])


def test_a_blocked_console_delays_no_exit(spawner: Spawner) -> None:
    """For example a terminal after Ctrl-S, or an unread pipe."""
    may_continue = threading.Event()

    class BlockedHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            may_continue.wait(20)

    console, handler = logging.getLogger("guildhall.member.stuck"), BlockedHandler()
    console.addHandler(handler)
    console.setLevel(logging.INFO)
    try:
        spawner.run("stuck", f"print('to the console', flush=True); {SLEEP}")
        member = spawner.run("quiet", "raise SystemExit(3)")
        assert member.exited.wait(5)
        assert member.exit_code == 3
    finally:
        may_continue.set()
        console.removeHandler(handler)


# Floods -----------------------------------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.parametrize("flood", FLOODS)
def test_five_floods_together_use_little_cpu(spawner: Spawner, flood: str) -> None:
    machine.take_alone()
    for number in range(5):
        spawner.run(f"flood-{number}", FLOODS[flood])
    for number in range(5):
        eventually((spawner.folder / f"flood-{number}.log").exists)
    slowness = machine.slowness()
    cpu_before, started_at = time.process_time(), time.monotonic()
    time.sleep(2)
    share = (time.process_time() - cpu_before) / (time.monotonic() - started_at)
    assert share < MAX_SHARE_OF_A_CORE * max(slowness, machine.slowness())


@pytest.mark.alone
def test_the_output_of_a_quiet_member_is_read_soon_while_others_flood(spawner: Spawner) -> None:
    machine.take_alone()
    for number in range(5):
        spawner.run(f"flood-{number}", FLOODS["ordinary lines"])
    quiet_member = spawner.run(
        "quiet", "import sys, time\nfor n in range(1000): print(time.monotonic(), flush=True); time.sleep(0.1)"
    )
    delays = []
    for _ in range(10):
        last_line = quiet_member.last_line()
        eventually(lambda last_line=last_line: quiet_member.last_line() != last_line)  # type: ignore[misc]
        delays.append(time.monotonic() - float(quiet_member.last_line()))
    assert sorted(delays)[5] < 1


def test_the_last_line_after_a_flood_is_in_the_tail(spawner: Spawner) -> None:
    for number in range(5):
        spawner.run(f"flood-{number}", FLOODS["empty lines"])
    code = "for _ in range(60): print('x' * 6000)\nprint('the reason'); raise SystemExit(1)"
    member = spawner.run("quiet", code)
    assert member.exited.wait(20)
    assert member.tail().splitlines()[-1] == "the reason"


def test_a_flooding_member_is_slowed_down(spawner: Spawner) -> None:
    count = "n += os.write(1, b'x' * 4095 + b'\\n'); open('written', 'w').write(str(n))"
    code = f"import os\nn = 0\nwhile True: {count}"
    spawner.run("flood-0", code)
    count_file = spawner.folder / "written"
    eventually(lambda: count_file.exists() and count_file.read_text())
    started_at = time.monotonic()
    time.sleep(2)
    assert int(count_file.read_text() or 0) < 2_000_000 * (time.monotonic() - started_at)


# The log file -----------------------------------------------------------------------------------------------------


def test_a_full_disk_loses_log_lines_with_one_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "logs" / "quiet.log"
    log = MemberLog("quiet", path)
    path.symlink_to("/dev/full")
    for number in range(3):
        log.write([f"line {number}"])
    assert log.tail().splitlines() == ["line 0", "line 1", "line 2"]
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "the log of member 'quiet' cannot be written (No space left on device); its lines are lost until it can"
    ]
    assert "Traceback" not in capsys.readouterr().err

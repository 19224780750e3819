"""What members write, from real processes: however much it is, it costs little and is read by one thread."""

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
from tests.conftest import eventually
from tests.support import machine

for _name in ("quiet", *(f"flood-{number}" for number in range(5))):
    logging.getLogger(f"guildhall.member.{_name}").setLevel(logging.WARNING)  # floods are not for test reports

FOREVER = "import time; time.sleep(600)"
FLOODS = {
    "long lines": "import os\nwhile True: os.write(1, (b'x' * 3999 + b'\\n') * 16)",
    "empty lines": "import os\nwhile True: os.write(1, b'\\n' * 65536)",
    "one endless line": "import os\nwhile True: os.write(1, b'x' * 65536)",
    "ordinary lines": "while True: print('12:00:00 INFO 127.0.0.1 - POST /mcp HTTP/1.1 200', flush=True)",
    "noise": "import os\nwhile True: os.write(1, os.urandom(65536))",
}
# As a whole; what it costs is measured at 2 to 5 % of a core.
SHARE_OF_A_CORE = 0.1


class Yard:
    """Where a test's members run."""

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
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    kill_tagged(yard.hall)


# Threads ----------------------------------------------------------------------------------------------------------


def test_many_members_take_no_more_threads_than_one(yard: Yard) -> None:
    first = yard.run("quiet", FOREVER)
    before = threading.active_count()
    members = [yard.run("quiet", FOREVER) for _ in range(20)]
    assert threading.active_count() == before
    for member in (first, *members):
        member.kill()
    assert threading.active_count() <= before + 8


def test_exits_that_wait_for_the_database_keep_nobody_from_learning_of_others(yard: Yard) -> None:
    database_is_back = threading.Event()
    told: list[MemberProcess] = []

    def wait(member: MemberProcess) -> None:
        database_is_back.wait(20)
        told.append(member)

    members = [yard.run("quiet", "print('why')", wait) for _ in range(20)]
    try:
        for member in members:
            assert member.exited.wait(10)
            assert (member.exit_code, member.tail()) == (0, "why")
    finally:
        database_is_back.set()
    eventually(lambda: len(told) == 20)


@pytest.mark.parametrize("reason", ["no such call", "not allowed"])
def test_an_exit_is_noticed_where_the_system_gives_no_descriptor_of_a_process(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    def refuse(pid: int) -> int:
        raise PermissionError

    if reason == "no such call":
        monkeypatch.delattr(os, "pidfd_open")
    else:
        monkeypatch.setattr(os, "pidfd_open", refuse)
    told: list[MemberProcess] = []
    member = yard.run("quiet", "import sys; sys.stdin.read(); raise SystemExit(3)", told.append)
    assert member.exited.wait(10)
    assert member.exit_code == 3
    eventually(lambda: told == [member])


def test_a_console_that_takes_no_more_delays_no_exit(yard: Yard) -> None:
    """A terminal after Ctrl-S, or a pipe that nobody reads."""
    goes_on = threading.Event()

    class Stuck(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            goes_on.wait(20)

    console, stuck = logging.getLogger("guildhall.member.stuck"), Stuck()
    console.addHandler(stuck)
    console.setLevel(logging.INFO)
    try:
        yard.run("stuck", f"print('to the console', flush=True); {FOREVER}")
        member = yard.run("quiet", "raise SystemExit(3)")
        assert member.exited.wait(5)
        assert member.exit_code == 3
    finally:
        goes_on.set()
        console.removeHandler(stuck)


# Floods -----------------------------------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.parametrize("flood", FLOODS)
def test_five_floods_together_cost_little(yard: Yard, flood: str) -> None:
    machine.take_alone()
    for number in range(5):
        yard.run(f"flood-{number}", FLOODS[flood])
    for number in range(5):
        eventually((yard.folder / f"flood-{number}.log").exists)
    slowness = machine.slowness()
    cpu, began = time.process_time(), time.monotonic()
    time.sleep(2)
    share = (time.process_time() - cpu) / (time.monotonic() - began)
    assert share < SHARE_OF_A_CORE * max(slowness, machine.slowness())


@pytest.mark.alone
def test_one_that_writes_little_is_read_soon_while_others_flood(yard: Yard) -> None:
    machine.take_alone()
    for number in range(5):
        yard.run(f"flood-{number}", FLOODS["ordinary lines"])
    quiet = yard.run(
        "quiet", "import sys, time\nfor n in range(1000): print(time.monotonic(), flush=True); time.sleep(0.1)"
    )
    delays = []
    for _ in range(10):
        last = quiet.last_line()
        eventually(lambda last=last: quiet.last_line() != last)  # type: ignore[misc]
        delays.append(time.monotonic() - float(quiet.last_line()))
    assert sorted(delays)[5] < 1


def test_the_last_words_after_a_flood_are_not_held_back(yard: Yard) -> None:
    for number in range(5):
        yard.run(f"flood-{number}", FLOODS["empty lines"])
    code = "for _ in range(60): print('x' * 6000)\nprint('the reason'); raise SystemExit(1)"
    member = yard.run("quiet", code)
    assert member.exited.wait(20)
    assert member.tail().splitlines()[-1] == "the reason"


def test_what_floods_waits_in_its_own_write(yard: Yard) -> None:
    count = "n += os.write(1, b'x' * 4095 + b'\\n'); open('written', 'w').write(str(n))"
    code = f"import os\nn = 0\nwhile True: {count}"
    yard.run("flood-0", code)
    written = yard.folder / "written"
    eventually(lambda: written.exists() and written.read_text())
    began = time.monotonic()
    time.sleep(2)
    assert int(written.read_text() or 0) < 2_000_000 * (time.monotonic() - began)


# Its file ---------------------------------------------------------------------------------------------------------


def test_a_full_disk_costs_lines_of_the_log_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "logs" / "quiet.log"
    log = MemberLog("quiet", path)
    path.symlink_to("/dev/full")
    for number in range(3):
        log.write([f"line {number}"])
    assert log.tail().splitlines() == ["line 0", "line 1", "line 2"]
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "the log of member 'quiet' cannot be written (No space left on device); its lines are lost until it can"
    ]
    assert "Traceback" not in capsys.readouterr().err

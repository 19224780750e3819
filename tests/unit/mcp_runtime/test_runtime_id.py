from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mcp_runtime.system import runtime_id
from mcp_runtime.system.runtime_id import RuntimeId


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def test_it_is_read_back_from_its_text(child: subprocess.Popen[bytes]) -> None:
    for one in (RuntimeId.own(), RuntimeId.of(child.pid)):
        assert RuntimeId.parse(str(one)) == one
    assert RuntimeId.own().pid == os.getpid()


@pytest.mark.parametrize("text", ["", "1.2.3", "1.2.3.4.5", "a.1.2.3", "7c1d3b1e-88d4-4c4f-9d7e-000000000000"])
def test_another_text_is_nobody(text: str) -> None:
    assert RuntimeId.parse(text) is None


def test_a_process_is_dead_when_it_ended_reaped_or_not(child: subprocess.Popen[bytes]) -> None:
    one = RuntimeId.of(child.pid)
    assert not one.is_dead
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert one.is_dead  # a zombie
    child.wait()
    assert one.is_dead


def test_another_process_that_got_its_pid_does_not_make_it_live(child: subprocess.Popen[bytes]) -> None:
    one = RuntimeId.of(child.pid)
    assert dataclasses.replace(one, started=one.started - 1).is_dead


@pytest.mark.parametrize("change", [{"boot": "another"}, {"namespace": "1"}])
def test_of_another_boot_or_pid_namespace_nothing_is_proved(
    child: subprocess.Popen[bytes], change: dict[str, str]
) -> None:
    gone = dataclasses.replace(RuntimeId.of(child.pid), started=1, **change)
    assert gone.is_elsewhere
    assert not gone.is_dead


def test_names_of_programs_do_not_confuse_it(tmp_path: Path) -> None:
    odd = tmp_path / "a) Z 1 (b"
    shutil.copy(shutil.which("sleep") or "", odd)
    process = subprocess.Popen([odd, "600"])
    try:
        one = RuntimeId.of(process.pid)
        assert not one.is_dead
        assert one.started >= RuntimeId.own().started
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize("read", [FileNotFoundError, PermissionError], ids=["hidepid=2", "hidepid=1"])
@pytest.mark.parametrize("asked", [None, PermissionError])
def test_of_a_process_that_proc_hides_nothing_is_proved(
    monkeypatch: pytest.MonkeyPatch, read: type[OSError], asked: type[OSError] | None
) -> None:
    hidden = dataclasses.replace(RuntimeId.own(), pid=4711)
    answer_with(monkeypatch, read, asked)
    assert not hidden.is_dead


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize("asked", [ProcessLookupError, OverflowError])
def test_a_process_that_neither_proc_nor_the_kernel_knows_is_dead(
    monkeypatch: pytest.MonkeyPatch, asked: type[Exception]
) -> None:
    gone = dataclasses.replace(RuntimeId.own(), pid=4711)
    answer_with(monkeypatch, FileNotFoundError, asked)
    assert gone.is_dead


def test_a_number_that_no_process_can_have_is_dead() -> None:
    assert dataclasses.replace(RuntimeId.own(), pid=10**30).is_dead


def answer_with(monkeypatch: pytest.MonkeyPatch, read: type[OSError], asked: type[Exception] | None) -> None:
    """What reading /proc raises, and what asking the kernel for the process does."""

    def read_bytes(path: Path) -> bytes:
        raise read

    def kill(pid: int, number: int) -> None:
        assert (pid, number) == (4711, 0)
        if asked:
            raise asked

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    monkeypatch.setattr(os, "kill", kill)


def test_elsewhere_than_on_linux_it_is_told_by_what_psutil_says(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_id.sys, "platform", "darwin")
    one = RuntimeId.of(child.pid)
    assert one.started == int(psutil.Process(child.pid).create_time() * 1000)
    assert not one.is_dead
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert one.is_dead


def test_a_machine_that_does_not_number_its_boots_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", absent)
    monkeypatch.setattr(os, "readlink", absent)
    assert runtime_id.own_namespace.__wrapped__() == ""
    boots = []
    for name in ("here", "there", "here"):
        monkeypatch.setattr(runtime_id.socket, "gethostname", lambda name=name: name)
        boots.append(runtime_id.own_boot.__wrapped__())
    assert boots[0] == boots[2] != boots[1]

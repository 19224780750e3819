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


def test_a_runtime_id_is_parsed_from_its_text(child: subprocess.Popen[bytes]) -> None:
    for identity in (RuntimeId.own(), RuntimeId.of(child.pid)):
        assert RuntimeId.parse(str(identity)) == identity
    assert RuntimeId.own().pid == os.getpid()


@pytest.mark.parametrize("text", ["", "1.2.3", "1.2.3.4.5", "a.1.2.3", "7c1d3b1e-88d4-4c4f-9d7e-000000000000"])
def test_an_invalid_text_is_no_runtime_id(text: str) -> None:
    assert RuntimeId.parse(text) is None


def test_a_process_is_dead_before_and_after_it_is_reaped(child: subprocess.Popen[bytes]) -> None:
    identity = RuntimeId.of(child.pid)
    assert not identity.is_dead
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert identity.is_dead  # a zombie
    child.wait()
    assert identity.is_dead


def test_a_process_whose_pid_was_reused_is_dead(child: subprocess.Popen[bytes]) -> None:
    identity = RuntimeId.of(child.pid)
    assert dataclasses.replace(identity, started=identity.started - 1).is_dead


@pytest.mark.parametrize("change", [{"boot": "another"}, {"namespace": "1"}])
def test_a_process_of_another_boot_or_pid_namespace_is_not_dead(
    child: subprocess.Popen[bytes], change: dict[str, str]
) -> None:
    other_identity = dataclasses.replace(RuntimeId.of(child.pid), started=1, **change)
    assert other_identity.is_elsewhere
    assert not other_identity.is_dead


def test_unusual_names_of_programs_are_parsed(tmp_path: Path) -> None:
    program = tmp_path / "a) Z 1 (b"
    shutil.copy(shutil.which("sleep") or "", program)
    process = subprocess.Popen([program, "600"])
    try:
        identity = RuntimeId.of(process.pid)
        assert not identity.is_dead
        assert identity.started >= RuntimeId.own().started
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize(
    "read_error", [FileNotFoundError, PermissionError], ids=["hidden process", "unreadable process"]
)
@pytest.mark.parametrize("kill_error", [None, PermissionError])
def test_a_process_that_proc_hides_is_not_dead(
    monkeypatch: pytest.MonkeyPatch, read_error: type[OSError], kill_error: type[OSError] | None
) -> None:
    hidden_identity = dataclasses.replace(RuntimeId.own(), pid=4711)
    replace_system_calls(monkeypatch, read_error, kill_error)
    assert not hidden_identity.is_dead


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize("kill_error", [ProcessLookupError, OverflowError])
def test_a_process_unknown_to_proc_and_kernel_is_dead(
    monkeypatch: pytest.MonkeyPatch, kill_error: type[Exception]
) -> None:
    dead_identity = dataclasses.replace(RuntimeId.own(), pid=4711)
    replace_system_calls(monkeypatch, FileNotFoundError, kill_error)
    assert dead_identity.is_dead


def test_an_impossible_pid_is_dead() -> None:
    assert dataclasses.replace(RuntimeId.own(), pid=10**30).is_dead


def replace_system_calls(
    monkeypatch: pytest.MonkeyPatch, read_error: type[OSError], kill_error: type[Exception] | None
) -> None:
    """Replace reading /proc and `kill` by functions that raise these errors."""

    def read_bytes(path: Path) -> bytes:
        raise read_error

    def kill(pid: int, number: int) -> None:
        assert (pid, number) == (4711, 0)
        if kill_error:
            raise kill_error

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    monkeypatch.setattr(os, "kill", kill)


def test_psutil_identifies_processes_outside_linux(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_id.sys, "platform", "darwin")
    identity = RuntimeId.of(child.pid)
    assert identity.started == int(psutil.Process(child.pid).create_time() * 1000)
    assert not identity.is_dead
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert identity.is_dead


def test_the_host_name_replaces_a_missing_boot_id(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_not_found(*_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", raise_not_found)
    monkeypatch.setattr(os, "readlink", raise_not_found)
    assert runtime_id.own_namespace.__wrapped__() == ""
    boots = []
    for name in ("here", "there", "here"):
        monkeypatch.setattr(runtime_id.socket, "gethostname", lambda name=name: name)
        boots.append(runtime_id.own_boot.__wrapped__())
    assert boots[0] == boots[2] != boots[1]

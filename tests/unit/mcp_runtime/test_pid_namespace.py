"""The program that runs a command in a pid namespace, as a real process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mcp_runtime.runtime import pid_namespace
from tests.conftest import ROOT, eventually

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    command = pid_namespace.command_line(list(argv))
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=30)


@pytest.fixture
def namespaces() -> None:
    if run("true").returncode:
        pytest.skip("no pid namespaces here")


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$ & wait", 0), ("exit 0", 0)])
def test_the_exit_code_is_that_of_the_command(namespaces: None, script: str, code: int) -> None:
    assert run("sh", "-c", script).returncode == code


def test_the_command_is_process_one_of_the_same_user_and_sees_no_other_process(namespaces: None) -> None:
    list_processes = (
        "import os; print(os.getpid(), os.getuid(), os.getgid(), sorted(n for n in os.listdir('/proc') if n.isdigit()))"
    )
    process = run(sys.executable, "-c", list_processes)
    assert process.stdout == f"1 {os.getuid()} {os.getgid()} ['1']\n", process.stderr


MASK = "import signal; print(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, []))"


def test_sigterm_is_blocked_when_the_command_starts(namespaces: None) -> None:
    assert run(sys.executable, "-c", MASK).stdout == "True\n"


def test_sigterm_is_blocked_when_up_becomes_another_program() -> None:
    script = (
        "import django, sys; django.setup()\n"
        "from roster.management.commands.up import become\n"
        f"become([sys.executable, '-c', {MASK!r}])"
    )
    process = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert process.stdout == "True\n", process.stderr


def test_a_signal_is_passed_on_once(namespaces: None, tmp_path: Path) -> None:
    script = (
        "import signal, sys, time\n"
        "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):\n"
        "    signal.signal(number, lambda number, _: print(int(number), flush=True))\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(0.05)\n"
    )
    log = tmp_path / "log"
    with log.open("w") as output:
        command = pid_namespace.command_line([sys.executable, "-c", script])
        outer_process = subprocess.Popen(command, env=ENVIRONMENT, stdout=output, start_new_session=True)
    try:
        eventually(lambda: log.read_text() == "up\n")
        [inner_process] = psutil.Process(outer_process.pid).children()
        os.killpg(outer_process.pid, signal.SIGINT)  # as a terminal does
        eventually(lambda: log.read_text() == "up\n2\n")
        outer_process.send_signal(signal.SIGHUP)
        eventually(lambda: log.read_text() == "up\n2\n1\n")
    finally:
        outer_process.kill()
        outer_process.wait()
    eventually(lambda: not inner_process.is_running(), what="the kernel ends process 1 with the outer process")


def test_without_user_namespaces_there_is_an_error_and_no_command(tmp_path: Path) -> None:
    close_namespaces = (
        "echo 0 > /proc/sys/user/max_user_namespaces && "
        'exec setpriv --bounding-set -all --inh-caps -all --no-new-privs "$@"'
    )
    outer_command = ["unshare", "--user", "--map-root-user", "sh", "-c", close_namespaces, "sh"]
    if shutil.which("setpriv") is None or subprocess.run([*outer_command, "true"], capture_output=True).returncode:
        pytest.skip("needs user namespaces, to close them within one")
    command = [*outer_command, *pid_namespace.command_line(["touch", str(tmp_path / "started")])]
    process = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=30)
    assert process.returncode == pid_namespace.EX_UNAVAILABLE
    assert process.stderr.startswith(
        "GUILD_HALL_PID_NAMESPACE=1: no pid namespace can be had here: user namespaces are closed ("
    )
    assert process.stderr.count("\n") == 1
    assert not (tmp_path / "started").exists()


def test_a_system_without_pid_namespaces_gives_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pid_namespace.sys, "platform", "darwin")
    assert pid_namespace.main() == pid_namespace.EX_UNAVAILABLE
    assert "there are none on this system" in capsys.readouterr().err

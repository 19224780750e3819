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
def test_it_ends_with_the_commands_exit_code(namespaces: None, script: str, code: int) -> None:
    assert run("sh", "-c", script).returncode == code


def test_the_command_is_process_one_as_the_same_user_and_sees_nobody_else(namespaces: None) -> None:
    look = (
        "import os; print(os.getpid(), os.getuid(), os.getgid(), sorted(n for n in os.listdir('/proc') if n.isdigit()))"
    )
    done = run(sys.executable, "-c", look)
    assert done.stdout == f"1 {os.getuid()} {os.getgid()} ['1']\n", done.stderr


MASK = "import signal; print(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, []))"


def test_a_sigterm_waits_for_the_command_until_it_can_obey(namespaces: None) -> None:
    assert run(sys.executable, "-c", MASK).stdout == "True\n"


def test_a_sigterm_waits_for_the_program_that_a_command_becomes() -> None:
    script = (
        "import django, sys; django.setup()\n"
        "from roster.management.commands.up import become\n"
        f"become([sys.executable, '-c', {MASK!r}])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.stdout == "True\n", done.stderr


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
        outside = subprocess.Popen(command, env=ENVIRONMENT, stdout=output, start_new_session=True)
    try:
        eventually(lambda: log.read_text() == "up\n")
        [inside] = psutil.Process(outside.pid).children()
        os.killpg(outside.pid, signal.SIGINT)  # as a terminal does
        eventually(lambda: log.read_text() == "up\n2\n")
        outside.send_signal(signal.SIGHUP)
        eventually(lambda: log.read_text() == "up\n2\n1\n")
    finally:
        outside.kill()
        outside.wait()
    eventually(lambda: not inside.is_running(), what="the kernel ends process 1 with the process outside")


def test_where_user_namespaces_are_closed_it_says_so_and_starts_nothing(tmp_path: Path) -> None:
    closed = (
        "echo 0 > /proc/sys/user/max_user_namespaces && "
        'exec setpriv --bounding-set -all --inh-caps -all --no-new-privs "$@"'
    )
    outer = ["unshare", "--user", "--map-root-user", "sh", "-c", closed, "sh"]
    if shutil.which("setpriv") is None or subprocess.run([*outer, "true"], capture_output=True).returncode:
        pytest.skip("needs user namespaces, to close them within one")
    command = [*outer, *pid_namespace.command_line(["touch", str(tmp_path / "started")])]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=30)
    assert done.returncode == pid_namespace.EX_UNAVAILABLE
    assert done.stderr.startswith(
        "GUILD_HALL_PID_NAMESPACE=1: no pid namespace can be had here: user namespaces are closed ("
    )
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "started").exists()


def test_a_system_without_them_is_told_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pid_namespace.sys, "platform", "darwin")
    assert pid_namespace.main() == pid_namespace.EX_UNAVAILABLE
    assert "there are none on this system" in capsys.readouterr().err

"""Process 1 of a container. It has no default actions for signals, so it ignores a signal without a handler."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT, eventually

UNSHARE_COMMAND = ["unshare", "--map-root-user", "--pid", "--fork", "--kill-child"]
# A process that begins to import Django waits there for ever.
WAIT_IN_IMPORTS = """
import pathlib, sys, time
sys.path.insert(0, {root!r})
class Slow:
    def find_spec(name, path=None, target=None):
        if name == "django.core.management":
            pathlib.Path("ready").touch()
            while True:
                time.sleep(0.05)  # short: a handler of Python's runs after a sleep that begins just as the signal comes
sys.meta_path.insert(0, Slow)
import manage
manage.main()
"""
WAIT = "import pathlib, time\npathlib.Path('ready').touch()\nwhile True: time.sleep(0.05)"


def has_namespaces() -> bool:
    if shutil.which(UNSHARE_COMMAND[0]) is None:
        return False
    return subprocess.run([*UNSHARE_COMMAND, "true"], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    "program",
    [
        pytest.param([str(ROOT / "manage.py"), "shell", "-v0", "-c", WAIT], id="a command"),
        pytest.param(["-c", WAIT_IN_IMPORTS.format(root=str(ROOT))], id="a command while it imports"),
        pytest.param(["-c", f"import guildhall\n{WAIT}"], id="the web while it imports"),
    ],
)
def test_a_stop_ends_process_one_before_it_has_handlers_of_its_own(program: list[str], tmp_path: Path) -> None:
    if not has_namespaces():
        pytest.skip("needs a pid namespace")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GUILD_HALL_DATA_DIR": str(tmp_path)}
    with subprocess.Popen([*UNSHARE_COMMAND, sys.executable, *program], cwd=tmp_path, env=environment) as launcher:
        try:
            eventually((tmp_path / "ready").exists, within=20)
            [process_one] = psutil.Process(launcher.pid).children()
            process_one.send_signal(signal.SIGTERM)
            assert launcher.wait(10) == 128 + signal.SIGTERM
        finally:
            launcher.kill()


def test_a_stop_ends_a_hall_in_a_namespace_of_its_own_while_it_starts(tmp_path: Path) -> None:
    if not has_namespaces():
        pytest.skip("needs a pid namespace")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GUILD_HALL_DATA_DIR": str(tmp_path)}
    command = [sys.executable, str(ROOT / "manage.py"), "shell", "-v0", "-c", WAIT]
    argv = [sys.executable, "-m", "mcp_runtime.runtime.pid_namespace", *command]
    with subprocess.Popen(argv, cwd=tmp_path, env=environment) as launcher:
        try:
            eventually((tmp_path / "ready").exists, within=20)
            launcher.send_signal(signal.SIGTERM)  # the signal is blocked until the hall handles it
            assert launcher.wait(10) == 128 + signal.SIGTERM
        finally:
            launcher.kill()

"""A test that crashes its process fails, and the other tests of the run go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

MODULES, TESTS = "abc", 3
TEXT = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range({tests}))
def test(number):
    first_time = pathlib.Path({first_time!r})
    if (__name__, number) == ({crashing!r}, {number}) and first_time.exists():
        first_time.unlink()
        os._exit(1)
"""


@pytest.mark.parametrize("number", [0, TESTS - 1])
def test_the_tests_of_a_crashed_worker_run_in_another(tmp_path: Path, number: int) -> None:
    crashing, first_time = f"test_{MODULES[-1]}", tmp_path / "first-time"
    first_time.touch()
    for module in MODULES:
        text = TEXT.format(tests=TESTS, first_time=str(first_time), crashing=crashing, number=number)
        (tmp_path / f"test_{module}.py").write_text(text)
    (tmp_path / "pytest.ini").touch()
    plugins = ["-p", "xdist", "-p", "tests.support.scheduling", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "--dist", "loadfile", *plugins, str(tmp_path)]
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "PYTHONFAULTHANDLER": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    output = run(command, tmp_path, environment)
    assert f"crashed while running 'test_{MODULES[-1]}.py::test[{number}]'" in output
    assert f"1 failed, {len(MODULES) * TESTS} passed" in output


def run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    """The output of a test run. If it hangs, the test fails with the stacks of all its processes."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=100)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)  # their fault handlers write the stacks
        pytest.fail(process.communicate(timeout=10)[0])

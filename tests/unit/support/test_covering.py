"""What a test run covers: the first sets of parameters of each test, in its workers and in what they start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from coverage import CoverageData

from tests.conftest import ROOT
from tests.support.covering import MAX_SETS

SETTINGS = """
[run]
source = .
parallel = true
patch = subprocess
"""
CONFTEST = """
from tests.support import covering
from tests.support.covering import pytest_itemcollected

def pytest_runtest_setup(item):
    covering.count(item)
"""
TESTS = """
import subprocess, sys, pytest
import lines

@pytest.mark.parametrize("number", range({sets}))
def test_here(number):
    getattr(lines, f"in_set_{{number}}")()
    subprocess.run([sys.executable, "-c", f"import elsewhere; elsewhere.in_set_{{number}}()"], check=True)

def test_next():
    lines.in_next_test()
"""


def test_further_sets_of_parameters_do_not_count_in_workers_and_in_what_they_start(tmp_path: Path) -> None:
    names = [*(f"in_set_{number}" for number in range(MAX_SETS + 2)), "in_next_test"]
    functions = "".join(f"def {name}():\n    return 1\n" for name in names)
    for name in ("lines", "elsewhere"):
        (tmp_path / f"{name}.py").write_text(functions)
    (tmp_path / ".coveragerc").write_text(SETTINGS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_sets.py").write_text(TESTS.format(sets=MAX_SETS + 2))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE_")}
    environment |= {"PYTHONPATH": f"{ROOT}:{tmp_path}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    pytest_and_plugins = ["-m", "pytest", "-q", "-n", "1", "-p", "xdist", "-p", "no:cacheprovider", "-c", "/dev/null"]
    command = [sys.executable, "-m", "coverage", "run", *pytest_and_plugins, "--rootdir=.", "test_sets.py"]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stdout + result.stderr

    assert covered_functions(tmp_path, "lines", names) == [*names[:MAX_SETS], "in_next_test"]
    assert covered_functions(tmp_path, "elsewhere", names) == names[:MAX_SETS]


def covered_functions(folder: Path, module: str, names: list[str]) -> list[str]:
    """Those whose second line was run, according to the files of all processes."""
    lines: set[int] = set()
    for file in folder.glob(".coverage.*"):
        data = CoverageData(str(file))
        data.read()
        lines |= set(data.lines(str(folder / f"{module}.py")) or ())
    return [name for number, name in enumerate(names) if 2 * number + 2 in lines]

from __future__ import annotations

import subprocess
import sys

from tests.conftest import ROOT
from tests.support.ports import WIDTH, free_range


def test_concurrent_test_processes_have_different_ports() -> None:
    own_range = free_range(6)
    code = "from tests.support.ports import free_range; print(*free_range(6)); input()"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    ranges = [
        own_range,
        *(tuple(map(int, process.stdout.readline().split())) for process in processes if process.stdout),
    ]
    for process in processes:
        process.communicate(b"\n", timeout=10)
    assert [last - first for first, last in ranges] == [5] * 3
    assert len({(first - 20_000) // WIDTH for first, _ in ranges}) == 3

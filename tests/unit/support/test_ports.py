from __future__ import annotations

import subprocess
import sys

from tests.conftest import ROOT
from tests.support.ports import WIDTH, free_range


def test_test_processes_side_by_side_have_ports_of_their_own() -> None:
    mine = free_range(6)
    code = "from tests.support.ports import free_range; print(*free_range(6)); input()"
    others = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    ranges = [mine, *(tuple(map(int, other.stdout.readline().split())) for other in others if other.stdout)]
    for other in others:
        other.communicate(b"\n", timeout=10)
    assert [last - first for first, last in ranges] == [5] * 3
    assert len({(first - 20_000) // WIDTH for first, _ in ranges}) == 3

"""The name of a process in `ps`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone keeps the command line where it is")


@pytest.mark.parametrize(
    ("module", "shown"),
    [("guildhall.web", "guildhall.web"), (f"{'long.' * 500}worker", "worker")],
    ids=["fits", "long"],
)
def test_a_process_is_called_what_it_runs(module: str, shown: str) -> None:
    script = (
        "import os\nfrom mcp_runtime.system.title import set_title\n"
        "set_title(os.environ['MODULE'])\n"
        "print(open('/proc/self/cmdline').read().rstrip(chr(0)), os.environ['MODULE'])"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, env={"MODULE": module}, capture_output=True, text=True, timeout=30)
    assert done.stdout == f"{shown} {module}\n", done.stderr  # the environment, which stands behind, is as it was

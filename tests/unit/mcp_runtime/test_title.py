"""The name of a process in `ps`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone keeps the command line where it is")


@pytest.mark.parametrize(
    ("module", "title"),
    [("guildhall.web", "guildhall.web"), (f"{'long.' * 500}worker", "worker")],
    ids=["short title", "long title"],
)
def test_the_title_of_a_process_is_its_module(module: str, title: str) -> None:
    script = (
        "import os\nfrom mcp_runtime.system.title import set_title\n"
        "set_title(os.environ['MODULE'])\n"
        "print(open('/proc/self/cmdline').read().rstrip(chr(0)), os.environ['MODULE'])"
    )
    command = [sys.executable, "-c", script]
    process = subprocess.run(command, cwd=ROOT, env={"MODULE": module}, capture_output=True, text=True, timeout=30)
    assert process.stdout == f"{title} {module}\n", (
        process.stderr
    )  # the environment behind the command line is unchanged

"""A second terminal beside a hall: it has none of the hall's variables, and runs `guildhall`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from mcp_runtime.system import running_halls
from tests.conftest import ROOT

PROGRAM = [
    sys.executable,
    "-c",
    "import sys; from guildhall.command_line import main; sys.argv[0] = 'guildhall'; main()",
]


def environment(**more: str) -> dict[str, str]:
    """That of this process, without the variables of any hall."""
    names = [name for name in os.environ if name.startswith(running_halls.PREFIXES) or name in running_halls.NAMES]
    others = {name: value for name, value in os.environ.items() if name not in names}
    return {**others, "PYTHONPATH": str(ROOT), "GUILD_HALL_ENV_FILE": os.devnull, **more}


def guildhall(*words: str, cwd: Path | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    variables = options.pop("env", {})
    return subprocess.run(
        [*PROGRAM, *words],
        cwd=cwd,
        env=environment(**variables),
        text=True,
        timeout=60,
        **{"capture_output": True, **options},
    )

"""Writes the script `guildhall`, which `make run` puts beside the Python of the virtual environment.

    python -m guildhall.entry_point .venv/bin/guildhall

The hall is no package that pip installs, so its folder is written into the script.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
LONGEST_SHEBANG = 127  # bytes, which is what Linux reads
SCRIPT = """\
{start}
import sys

sys.path[0] = {project!r}
try:
    from guildhall.command_line import main
except ModuleNotFoundError as error:
    sys.exit(f"guildhall: {{error}}. Run `make run` in the folder of Guild Hall, which installs this command again.")
main()
"""


def write(path: Path, python: Path) -> None:
    """Write the script for this Python, in one step, so that nobody runs half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(SCRIPT.format(start=start_of(python), project=str(PROJECT)), encoding="utf-8")
    draft.chmod(0o755)
    draft.replace(path)


def start_of(python: Path) -> str:
    """The first lines. A path that the kernel cannot read from them is run by the shell, as in the scripts of pip."""
    shebang = f"#!{python}"
    if " " not in shebang and len(os.fsencode(shebang)) <= LONGEST_SHEBANG:
        return shebang
    return f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''"


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.executable))

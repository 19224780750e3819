"""How the bridge is started, and what it says and ends with when it could not begin."""

from __future__ import annotations

import os
import sys

# So that nothing in the server's folder or environment is taken for a module of ours; and it starts sooner.
ISOLATED = ["-I", "-S"]
PROGRAM = os.path.dirname(os.path.abspath(__file__))
PORT_TAKEN = "bridge: somebody else listens on port"
EXIT_PORT_TAKEN = 2  # the plugin contract
EXIT_USAGE = 64  # sysexits.h
EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND = 126, 127  # as shells say it


def command_line(port: int, argv: list[str], max_bytes: int) -> list[str]:
    """What to spawn for the server `argv`."""
    return [sys.executable, *ISOLATED, PROGRAM, str(port), "--max-bytes", str(max_bytes), "--", *argv]

"""The command line of the bridge, and its message and exit codes if it cannot start."""

from __future__ import annotations

import os
import sys

# Without these options a file in the server's folder or environment could replace a module. It also starts faster.
ISOLATED = ["-I", "-S"]
PROGRAM = os.path.dirname(os.path.abspath(__file__))
PORT_TAKEN = "bridge: somebody else listens on port"
EXIT_PORT_TAKEN = 2  # the plugin contract
EXIT_USAGE = 64  # sysexits.h
EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND = 126, 127  # as in shells


def command_line(port: int, argv: list[str], max_bytes: int) -> list[str]:
    """The command that starts the bridge for the server `argv`."""
    return [sys.executable, *ISOLATED, PROGRAM, str(port), "--max-bytes", str(max_bytes), "--", *argv]

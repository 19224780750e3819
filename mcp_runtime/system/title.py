"""The name of this process in `ps` and the like, for a fork whose command line is that of another program (Linux)."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

# Of /proc/self/stat behind the name in parentheses: where the kernel finds the command line, fields 48 and 49.
ARG_START, ARG_END = 45, 46


def set_title(module: str) -> None:
    """The module that runs, as its command line would name it; its last part where there is no room for more."""
    if sys.platform != "linux":
        return
    command_line = Path("/proc/self/cmdline").read_bytes()
    fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
    start, end = int(fields[ARG_START]), int(fields[ARG_END])
    if not start or end - start != len(command_line):
        return  # the kernel hides it, or somebody has moved it
    room = len(command_line) - 1  # the last byte stays zero: else the kernel reads on
    text = module if len(module) <= room else module.rpartition(".")[2][:room]
    ctypes.memmove(start, text.encode().ljust(len(command_line), b"\0"), len(command_line))

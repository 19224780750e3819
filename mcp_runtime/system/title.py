"""Sets the name of this process in `ps`, for a fork that has the command line of another program (Linux)."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

# The fields 48 and 49 of /proc/self/stat, counted after the name in parentheses: the place of the command line.
ARG_START, ARG_END = 45, 46


def set_title(module: str) -> None:
    """Set the command line to the module that runs, or to the last part of its name if there is no space for more."""
    if sys.platform != "linux":
        return
    command_line = Path("/proc/self/cmdline").read_bytes()
    fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
    start, end = int(fields[ARG_START]), int(fields[ARG_END])
    if not start or end - start != len(command_line):
        return  # the kernel hides it, or it was moved
    max_length = len(command_line) - 1  # the last byte must stay zero, or the kernel reads beyond it
    text = module if len(module) <= max_length else module.rpartition(".")[2][:max_length]
    ctypes.memmove(start, text.encode().ljust(len(command_line), b"\0"), len(command_line))

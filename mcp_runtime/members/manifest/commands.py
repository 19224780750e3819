"""Why a command cannot be started: looks it up as the system does. Reads files, and runs nothing."""

from __future__ import annotations

import difflib
import os
import shutil
from pathlib import Path

from mcp_runtime.members.manifest.declaration import Manifest

# Other names of a program. Many systems have only one of them.
OTHER_NAMES = {
    "python": ("python3",),
    "python3": ("python",),
    "pip": ("pip3",),
    "node": ("nodejs",),
    "nodejs": ("node",),
    "docker": ("podman",),
    "podman": ("docker",),
}
# What members are usually started with. A command that is nearly one of them is misspelt.
USUAL_PROGRAMS = ("python", "python3", "node", "npx", "npm", "uvx", "uv", "docker", "podman", "deno", "bunx", "java")
FIRST_LINE_BYTES = 256  # the kernel reads no more of the first line


def command_fault(manifest: Manifest, folder: Path) -> str:
    """Why the command of a manifest cannot be started from the member's `folder`. Empty if nothing is wrong."""
    command = manifest.command
    if manifest.url:
        return ""
    if os.path.dirname(command):
        program = folder / command
        if not program.exists():
            return f"{command!r} does not exist" + ("" if os.path.isabs(command) else " in the member's folder")
        is_executable = program.is_file() and os.access(program, os.X_OK)
        return _interpreter_fault(command, program) if is_executable else f"{command!r} is not executable"
    path = manifest.env.get("PATH") or os.environ.get("PATH") or os.defpath
    if shutil.which(command, path=path):
        return ""
    if (folder / command).exists():
        return f"{command!r} is not on the PATH; write './{command}' for the one in the member's folder"
    file = shutil.which(command, mode=os.F_OK, path=path)
    return f"{file!r} is not executable" if file else f"{command!r} is not on the PATH{_other_name(command, path)}"


def spawn_fault(command: str, folder: Path, path: str) -> str:
    """The sentence for a command that could not be executed in `folder` with this PATH. Empty if nothing is wrong now.

    `command` is the first part of the command line, after all values are filled in.
    """
    program = folder / command
    if os.path.dirname(command):
        if not program.exists():
            return f"command not found: {command!r}"
        if not program.is_file() or not os.access(program, os.X_OK):
            return f"permission denied: {command!r} is not executable"
        return _interpreter_fault(command, program)
    if shutil.which(command, path=path):
        return ""
    if program.is_file():
        return f"command not found: {command!r}; did you mean './{command}', in the member's folder?"
    if file := shutil.which(command, mode=os.F_OK, path=path):
        return f"permission denied: {file!r} is not executable"
    return f"command not found: {command!r}{_other_name(command, path)}"


def _other_name(command: str, path: str) -> str:
    similar = [] if command in USUAL_PROGRAMS else difflib.get_close_matches(command[:100], USUAL_PROGRAMS, cutoff=0.75)
    names = [name for name in (*OTHER_NAMES.get(command, ()), *similar) if shutil.which(name, path=path)]
    return f"; did you mean {names[0]!r}?" if names else ""


def _interpreter_fault(command: str, program: Path) -> str:
    """Why the system cannot run an executable script. Empty for a program, or if its interpreter exists."""
    try:
        with program.open("rb") as file:
            head = file.read(FIRST_LINE_BYTES)
    except OSError:
        return ""
    line, _, _ = head.partition(b"\n")
    if not line.startswith(b"#!"):
        is_text = b"\0" not in head and not head.startswith(b"\x7fELF")
        return (
            f"{command!r} has no first line that names its interpreter, such as #!/usr/bin/env python3"
            if is_text
            else ""
        )
    interpreter = os.fsdecode(line[2:].strip(b" \t").split(b" ")[0])
    if os.path.exists(interpreter):
        return ""
    endings = "; its lines end with CR and LF, as on Windows" if line.endswith(b"\r") else ""
    return f"the interpreter in the first line of {command!r} does not exist: {interpreter!r}{endings}"

"""The command line of the program, and its exit codes."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp_runtime.sandbox.policy import Policy

# As for the bridge: without these options a file or variable of the member could replace a module.
ISOLATED = ["-I", "-S"]
PROGRAM = os.path.dirname(os.path.abspath(__file__))
PROBE = [sys.executable, *ISOLATED, PROGRAM, "--probe"]
EXIT_USAGE = 64  # sysexits.h
EXIT_NOT_PROTECTED = 71  # EX_OSERR: the kernel refused a rule, so the command was not started
EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND = 126, 127  # as in shells


def command_line(policy: Policy, variables: int, argv: list[str]) -> list[str]:
    """The command that starts `argv` in a sandbox with this policy.

    `variables` is the descriptor of a file with its environment (`variables.write`), which the command inherits.
    """
    return [sys.executable, *ISOLATED, PROGRAM, json.dumps(policy), str(variables), "--", *argv]

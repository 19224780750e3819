"""Finds the line of a member's output that says most about its end. No Django."""

from __future__ import annotations

import re

from mcp_runtime.bridge.complaints import NO_ANSWER
from mcp_runtime.members.logs import plain

MAX_LINE = 1200  # characters of a line that are read

# What says nothing about the fault: frames, marks, closing brackets, and what npm writes after the line with the fault.
_EMPTY_WORDS = re.compile(
    r"npm (?:ERR!|error)(?: 404)?(?:$| A complete log of| Note that you can also| tarball, folder, http| code "
    r"| errno | syscall"
    r"| If you are behind a proxy|\s+at | network (?:This|In most|If you)|  (?:code|errno|syscall|address|port"
    r"|type)\b| \})"
    r"|npm (?:ERR!|error) network$"
    r"|Node\.js v|\s*at |[\s^~}\]{]*$|(?:code|errno|syscall|address|port|hostname|requireStack): |bridge: |sandbox: "
    r"|\s*\d+: 0x|----- Native|Run 'docker run --help'|usage: "
)
_SILENCE = re.compile(rf"bridge: {NO_ANSWER}\. [^\n]*?: (?P<line>[^\n]*)")


def last_words(tail: str) -> str:
    """The last line of the output that says something, as plain text. Empty if there is none.

    It has single spaces, and at most `MAX_LINE` characters.
    """
    if silence := _SILENCE.search(tail):
        return _one_line(silence["line"])
    lines = map(_one_line, reversed(tail.splitlines()))
    return next((line for line in lines if line and not _EMPTY_WORDS.match(line)), "")


def _one_line(text: str) -> str:
    return " ".join(plain(text[:MAX_LINE]).split())

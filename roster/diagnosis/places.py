"""Finds in a member's output the line of its code where it failed, and the line that says most."""

from __future__ import annotations

import re

from mcp_runtime.members import last_words as whole_output
from mcp_runtime.members.logs import plain
from roster.diagnosis.facts import one_line

_PYTHON = re.compile(r'^\s*File "(?P<path>[^"<\n]{1,400})", line (?P<line>\d{1,7})\b', re.MULTILINE)
_NODE = re.compile(r"^(?:file://)?(?P<path>/[^\n:()]{1,400}):(?P<line>\d{1,7})$", re.MULTILINE)
_NODE_FRAME = re.compile(
    r"^\s+at (?:[^\n(]{0,200}\()?(?:file://)?(?P<path>/[^\n:()]{1,400}):(?P<line>\d{1,7}):\d+\)?$", re.M
)
# Files of others, in which nobody fixes anything.
_FOREIGN = re.compile(r"/(?:lib|lib64)/python\d|/(?:site|dist)-packages/|/node_modules/|^node:|^<")


def place_in(tail: str, directory: str) -> str:
    """The line of the member's own code that failed, such as `line 3 of src/server.py`. Empty if it is not known."""
    for pattern in (_PYTHON, _NODE, _NODE_FRAME):
        matches = [match for match in pattern.finditer(tail) if not _FOREIGN.search(match["path"])]
        if matches:
            # A traceback of Python ends with the innermost frame, one of Node.js begins with it.
            match = matches[-1] if pattern is _PYTHON else matches[0]
            path = one_line(plain(match["path"])).replace("`", "'")
            return f"line {match['line']} of {path.partition(f'/{directory}/')[2] or path}"
    return ""


def last_words(tail: str, at: int | None = None) -> str:
    """The line of the output that says most: the one at offset `at`, or the last one that is not empty words."""
    if at is not None:
        start = tail.rfind("\n", 0, at) + 1
        line = one_line(plain(tail[start:].partition("\n")[0]))
        return "" if line.startswith(("bridge: ", "sandbox: ")) else line
    return one_line(whole_output.last_words(tail))

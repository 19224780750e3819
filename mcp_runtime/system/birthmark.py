"""A number that a process hands on to all that come from it, though they leave session, parent and environment behind.

The kernel keeps it, as a soft resource limit: RLIMIT_RTTIME, microseconds that a real-time process may compute without
a pause (setrlimit(2)). Every process inherits it, and at more than a hundred thousand years it limits nobody. Linux
alone; where the limit may not be set so high, and elsewhere, nobody has a birthmark.
"""

from __future__ import annotations

import contextlib
import resource
import sys
import threading
from collections.abc import Iterator

LIMIT: int = getattr(resource, "RLIMIT_RTTIME", -1)
FLAG = 1 << 62  # a number with it is a birthmark; then 24 bits of the runtime's, and 37 of the member's
MEMBER_BITS = 37
PART = ""  # the environment tag of the hall's own parts, whose birthmark is that of no member
_PART_FLAG = 1 << 61
_turn = threading.Lock()  # what we start meanwhile would inherit it too


def number_of(tag: str) -> int:
    """The birthmark for `tag`, of the form hall/runtime/... or PART."""
    if tag == PART:
        return FLAG | _PART_FLAG
    return FLAG | _hash(_runtime_of(tag), 24) << MEMBER_BITS | _hash(tag, MEMBER_BITS)


def take(tag: str) -> None:
    """From now on this process has the birthmark for `tag`, and so has what it starts."""
    if sys.platform == "linux":
        with contextlib.suppress(ValueError, OSError):  # as below
            resource.setrlimit(LIMIT, (number_of(tag), resource.getrlimit(LIMIT)[1]))


@contextlib.contextmanager
def inheritance(tag: str) -> Iterator[None]:
    """Within, what this process starts is born with the birthmark for `tag`."""
    if sys.platform != "linux":
        yield
        return
    with _turn:
        soft, hard = resource.getrlimit(LIMIT)
        with contextlib.suppress(ValueError, OSError):  # the hard limit is lower, or the kernel knows no such limit
            resource.setrlimit(LIMIT, (number_of(tag), hard))
        try:
            yield
        finally:
            resource.setrlimit(LIMIT, (soft, hard))


def is_for(pid: int, tag: str) -> bool:
    """Whether the process has the birthmark for `tag`, or for one below it when that is hall/runtime/.

    Not when it ended, or is another user's: then it is none of ours to end either.
    """
    if sys.platform != "linux":
        return False
    try:
        number: int = resource.prlimit(pid, LIMIT)[0]
    except (OSError, ValueError):
        return False
    if tag.endswith("/"):
        return tag == _runtime_of(tag) and number >> MEMBER_BITS == number_of(tag) >> MEMBER_BITS
    return number == number_of(tag)


def is_another(pid: int) -> bool:
    """Whether the process has a birthmark, and not the one that we were born with. It may be another user's (Linux)."""
    try:
        with open(f"/proc/{pid}/limits") as file:
            limits = file.read()
    except OSError:
        return False
    soft = next((line.split()[3] for line in limits.splitlines() if line.startswith("Max realtime timeout")), "")
    return soft.isdigit() and bool(int(soft) & FLAG) and int(soft) != resource.getrlimit(LIMIT)[0]


def _runtime_of(tag: str) -> str:
    return "/".join([*tag.split("/")[:2], ""])


def _hash(text: str, bits: int) -> int:
    import hashlib  # `manage.py up`, which is to be small, has no need of it

    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 64 - bits

"""A number that all descendants of a process inherit, even if they leave its session, parent and environment.

The kernel stores it as a soft resource limit, RLIMIT_RTTIME. That is how many microseconds a real-time process may
compute without a pause (setrlimit(2)). Every process inherits it. A limit of more than a hundred thousand years has no
effect. Only Linux has it. On other systems, or if the limit cannot be set so high, there are no birthmarks.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
from collections.abc import Iterator

LIMIT: int = getattr(resource, "RLIMIT_RTTIME", -1)
FLAG = 1 << 62  # marks a birthmark. Below it are 24 bits for the runtime and 37 for the member
MEMBER_BITS = 37
PART = ""  # the environment tag of the hall's own parts, whose birthmark belongs to no member
_PART_FLAG = 1 << 61
_turn = threading.Lock()  # a process that another thread starts meanwhile would inherit it too


def number_of(tag: str) -> int:
    """The birthmark for `tag`, of the form hall/runtime/... or PART."""
    if tag == PART:
        return FLAG | _PART_FLAG
    return FLAG | _hash(_runtime_of(tag), 24) << MEMBER_BITS | _hash(tag, MEMBER_BITS)


def take(tag: str) -> None:
    """Give this process, and all that it starts from now on, the birthmark for `tag`."""
    if sys.platform == "linux":
        with contextlib.suppress(ValueError, OSError):  # as below
            resource.setrlimit(LIMIT, (number_of(tag), resource.getrlimit(LIMIT)[1]))


@contextlib.contextmanager
def inheritance(tag: str) -> Iterator[None]:
    """Give processes that this process starts within the context the birthmark for `tag`."""
    if sys.platform != "linux":
        yield
        return
    with _turn:
        soft, hard = resource.getrlimit(LIMIT)
        with contextlib.suppress(ValueError, OSError):  # the hard limit is lower, or the kernel has no such limit
            resource.setrlimit(LIMIT, (number_of(tag), hard))
        try:
            yield
        finally:
            resource.setrlimit(LIMIT, (soft, hard))


def is_for(pid: int, tag: str) -> bool:
    """Whether the process has the birthmark for `tag`. For hall/runtime/ also that of any tag below it.

    False if it has ended, or belongs to another user. Then this process may not end it either.
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


def pids_by_number() -> dict[int, list[int]]:
    """The processes of this user with a birthmark, by its number. Empty on other systems than Linux."""
    pids: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        with contextlib.suppress(OSError, ValueError):  # no process, or it has ended, or belongs to another user
            number: int = resource.prlimit(int(name), LIMIT)[0]
            if number != resource.RLIM_INFINITY and number & FLAG:
                pids.setdefault(number, []).append(int(name))
    return pids


def is_another(pid: int) -> bool:
    """Whether the process has another birthmark than this process. It may be another user's process (Linux)."""
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
    import hashlib  # imported here, because `manage.py up` must be small and does not need it

    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 64 - bits

"""What the kernel of this machine can enforce. Probed without any effect on this process."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache

from mcp_runtime.sandbox import landlock, system_calls

# Each protection, with what it means for a member.
PROTECTIONS = {
    "files": "it cannot read or write files outside of its folder, its home and its programs",
    "ports": "it cannot connect to other members, the hall and its database, or listen on another port than its own",
    "signals": "it cannot send signals to the hall, other members and other programs",
    "sockets": "it cannot use Unix sockets or the keys in the kernel",
}


@dataclass(frozen=True)
class Capabilities:
    """What the machine has."""

    landlock: int
    """The version of Landlock. 0 without it."""
    has_filter: bool
    """Whether system calls can be filtered."""

    @property
    def gaps(self) -> dict[str, str]:
        """The protections that do not hold here, or not fully, each with the reason."""
        reasons = {
            "files": self._landlock_reason(3, "6.2", partly=bool(self.landlock)),
            "ports": self._landlock_reason(landlock.PORTS_SINCE, "6.7") or self._filter_reason,
            "signals": self._landlock_reason(landlock.SCOPES_SINCE, "6.12"),
            "sockets": self._filter_reason,
        }
        return {name: reason for name, reason in reasons.items() if reason}

    def _landlock_reason(self, version: int, kernel: str, *, partly: bool = False) -> str:
        if self.landlock >= version:
            return ""
        if sys.platform != "linux":
            return "only Linux has Landlock"
        has = f"has version {self.landlock}" if self.landlock else "has none, or it is off or refused"
        note = "; until then a file that it may read can be emptied" if partly else ""
        return f"it needs Landlock {version}, which Linux {kernel} has, and this kernel {has}{note}"

    @property
    def _filter_reason(self) -> str:
        return "" if self.has_filter else "this machine cannot filter system calls"


@cache
def probe() -> Capabilities:
    """The capabilities of this machine. They do not change while a process runs."""
    return Capabilities(landlock.version(), system_calls.is_available())

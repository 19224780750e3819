"""Control groups for members (cgroups(7), version 2), if the system has delegated a group to the hall. No Django.

The kernel then limits the memory and the threads of all processes of a member together. With systemd 254 or newer,
`Delegate=memory pids` and `DelegateSubgroup=hall` in the unit do that: the hall runs in the group `hall`, and the group
above it is for the groups of members.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
PREFIX = "member-"
NEEDED = ("memory", "pids")


@dataclass(frozen=True)
class ControlGroups:
    """The groups of members below `parent`. Without one, `reason` says why there are none."""

    parent: Path | None
    reason: str = ""

    @classmethod
    def find(cls, root: Path = ROOT, own: Path = OWN) -> ControlGroups:
        """The group that was delegated to the hall, ready for groups of members. Removes those of earlier runtimes."""
        try:
            # Version 2 has one line, which begins with 0. Without one, the paths of version 1 are no use.
            path = next(line[3:] for line in own.read_text().splitlines() if line.startswith("0::"))
        except (OSError, StopIteration):
            return cls(None, "this system has no control groups of version 2")
        parent = (root / path.strip("/")).parent
        if path.strip("/") == "" or not (parent / "cgroup.controllers").is_file() or not _is_delegated(parent):
            return cls(None, "no control group was delegated to the hall")
        try:
            if missing := set(NEEDED) - set((parent / "cgroup.controllers").read_text().split()):
                return cls(None, f"its control group {parent} lacks {' and '.join(sorted(missing))}")
            (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in NEEDED))
        except OSError as error:
            return cls(None, f"its control group {parent} cannot be used: {error.strerror}")
        for group in parent.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):  # processes that are left over are ended elsewhere
                group.rmdir()
        return cls(parent)

    def create(self, name: str, *, memory: int, threads: int) -> Path | None:
        """The group of the member, with limits in bytes and threads. 0 is no limit. None without groups.

        Raises OSError. The member's next start uses the group again, with new limits.
        """
        if self.parent is None:
            return None
        group = self.parent / f"{PREFIX}{name}"
        group.mkdir(exist_ok=True)
        (group / "memory.max").write_text(str(memory or "max"))
        (group / "pids.max").write_text(str(threads or "max"))
        with contextlib.suppress(OSError):  # not in all kernels
            # If memory runs out, all processes of the member end, so that none is left without the others.
            (group / "memory.oom.group").write_text("1")
            (group / "memory.swap.max").write_text("0" if memory else "max")
        return group


def _is_delegated(group: Path) -> bool:
    """Whether systemd says that the group is for the hall. Its owner does not say so: a user owns all of a session."""
    for attribute in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError, AttributeError):  # AttributeError on systems that have no such attributes
            if os.getxattr(group, attribute) == b"1":
                return True
    return False

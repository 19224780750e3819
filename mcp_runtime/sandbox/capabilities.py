"""What the kernel of this machine can enforce. Another process tries it, so this one does not change."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from mcp_runtime.sandbox import landlock
from mcp_runtime.sandbox.command import PROBE

PROBE_SECONDS = 20.0  # usual are 0.06
REST_SECONDS = 5.0  # from a fault to the next try, so that many starts together do not wait one after the other
NO_MOUNTS = (
    "this machine gives the user of the hall no namespace for mounts. On Ubuntu, the setting "
    "kernel.apparmor_restrict_unprivileged_userns=0 allows it, and in a container the capability SYS_ADMIN"
)
# Each protection, with what it means for a member.
PROTECTIONS = {
    "files": "it cannot read or write files outside of its folder, its home and its programs",
    "attributes": "it cannot change the mode, owner or times of files outside of its folders",
    "ports": "it cannot connect to other members, the hall and its database, or listen on another port than its own",
    "signals": "it cannot send signals to other programs, or change their limits and priorities",
    "sockets": "it cannot use Unix sockets, shared memory with a name or the keys in the kernel",
}


@dataclass(frozen=True)
class Capabilities:
    """What the machine has."""

    landlock: int
    """The version of Landlock. 0 without it."""
    has_filter: bool
    """Whether system calls can be filtered."""
    has_mounts: bool
    """Whether a process can have a read-only view of the file system."""
    fault: str = ""
    """Why the machine gave no answer. Then it may have more than this says."""

    @property
    def gaps(self) -> dict[str, str]:
        """The protections that do not hold here, or not fully, each with the reason."""
        if self.fault:
            return dict.fromkeys(PROTECTIONS, self.fault)
        reasons = {
            "files": self._landlock_reason(3, "6.2", partly=bool(self.landlock)),
            "attributes": "" if self.has_mounts else NO_MOUNTS,
            "ports": self._landlock_reason(landlock.PORTS_SINCE, "6.7") or self._filter_reason,
            "signals": self._landlock_reason(landlock.SCOPES_SINCE, "6.12") or self._filter_reason,
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


class Machine:
    """This machine, which is asked until it answers. Its answer does not change while a process runs."""

    def __init__(self) -> None:
        self._turn = threading.Lock()  # those who ask meanwhile wait for the same answer
        self._answer: Capabilities | None = None
        self.next_try = 0.0

    def probe(self) -> Capabilities:
        """The capabilities. Takes up to PROBE_SECONDS, and has a fault if the machine gave no answer in this time."""
        with self._turn:
            if self._answer is None or (self._answer.fault and time.monotonic() >= self.next_try):
                self._answer = _ask()
                self.next_try = time.monotonic() + REST_SECONDS
            return self._answer


_machine = Machine()


def probe() -> Capabilities:
    """The capabilities of this machine. A fault is not remembered for longer than REST_SECONDS."""
    return _machine.probe()


def _ask() -> Capabilities:
    if sys.platform != "linux":
        return Capabilities(0, has_filter=False, has_mounts=False)
    try:
        process = subprocess.run(PROBE, capture_output=True, timeout=PROBE_SECONDS, check=True, text=True)
        return Capabilities(**json.loads(process.stdout))
    except subprocess.TimeoutExpired:
        reason = f"it took longer than {PROBE_SECONDS:g} s"
    except subprocess.CalledProcessError as error:
        reason = f"the program for it ended with {error.returncode}, {error.stderr.strip()[-200:]!r}"
    except OSError as error:
        reason = error.strerror or str(error)
    except (ValueError, TypeError):
        reason = "the program for it gave an unreadable answer"
    fault = f"the look at what this machine can enforce failed: {reason}"
    return Capabilities(0, has_filter=False, has_mounts=False, fault=fault)

"""Which process a runtime is: never taken for another one, of another boot, container or time. No Django."""

from __future__ import annotations

import os
import socket
import sys
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil


@dataclass(frozen=True)
class RuntimeId:
    """A process, by what no other process has in common with it. As text `pid.started.namespace.boot`."""

    pid: int
    started: int  # clock ticks since the boot; elsewhere than on Linux milliseconds since the epoch
    namespace: str  # of pids; "" elsewhere than on Linux
    boot: str  # of the machine; elsewhere than on Linux only which machine

    def __str__(self) -> str:
        return f"{self.pid}.{self.started}.{self.namespace}.{self.boot}"

    @classmethod
    def own(cls) -> RuntimeId:
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> RuntimeId:
        """Raises psutil.NoSuchProcess when there is none, or a zombie alone."""
        return cls(pid, _start_time(pid), own_namespace(), own_boot())

    @classmethod
    def parse(cls, text: str) -> RuntimeId | None:
        """None for any other text."""
        try:
            pid, started, namespace, boot = text.split(".")
            return cls(int(pid), int(started), namespace, boot)
        except ValueError:
            return None

    @property
    def is_elsewhere(self) -> bool:
        """Of another machine, boot or pid namespace: its pid says nothing here."""
        return (self.namespace, self.boot) != (own_namespace(), own_boot())

    @property
    def is_dead(self) -> bool:
        """Whether it is provably dead. False for one elsewhere, or one that the system hides."""
        if self.is_elsewhere:
            return False
        try:
            return _start_time(self.pid) != self.started
        except psutil.NoSuchProcess:
            return True
        except (OSError, psutil.AccessDenied):
            return False


def _start_time(pid: int) -> int:
    """When the process started, by a clock that nobody can set.

    Raises psutil.NoSuchProcess, for zombies too; OSError or psutil.AccessDenied for one that the system hides.
    """
    if sys.platform != "linux":
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            raise psutil.NoSuchProcess(pid)
        return int(process.create_time() * 1000)
    # As the kernel wrote it down: psutil adds the time of the boot, which moves with the wall clock.
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        # With hidepid=2 (proc(5)) processes of other users are not there either; the kernel knows them.
        if _exists(pid):
            raise
        raise psutil.NoSuchProcess(pid) from None
    # The name in parentheses may hold anything, parentheses too; proc(5): the state is field 3, the start field 22.
    fields = stat.rpartition(b")")[2].split()
    if fields[0] in (b"Z", b"X"):
        raise psutil.NoSuchProcess(pid)
    return int(fields[19])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


@cache
def own_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return ""


@cache
def own_boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return f"{zlib.crc32(socket.gethostname().encode()):08x}"

"""Identifies the process of a runtime, without confusion with one of another boot, container or time. No Django."""

from __future__ import annotations

import os
import socket
import sys
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path


class NoProcessError(Exception):
    """There is no process with that pid, or only a zombie."""


@dataclass(frozen=True)
class RuntimeId:
    """Identifies one process. No other process has the same values. As text it is `pid.started.namespace.boot`."""

    pid: int
    started: int  # clock ticks since the boot. On other systems than Linux milliseconds since the epoch
    namespace: str  # of pids. "" on other systems than Linux
    boot: str  # of the machine. On other systems than Linux it identifies only the machine

    def __str__(self) -> str:
        return f"{self.pid}.{self.started}.{self.namespace}.{self.boot}"

    @classmethod
    def own(cls) -> RuntimeId:
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> RuntimeId:
        """Raises NoProcessError."""
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
        """Whether it is of another machine, boot or pid namespace. Then its pid has no meaning here."""
        return (self.namespace, self.boot) != (own_namespace(), own_boot())

    @property
    def is_dead(self) -> bool:
        """Whether it is provably dead. False if it is elsewhere, or the system hides it."""
        if self.is_elsewhere:
            return False
        try:
            return _start_time(self.pid) != self.started
        except NoProcessError:
            return True
        except OSError:
            return False


def _start_time(pid: int) -> int:
    """The start time of the process, by a clock that nobody can set.

    Raises NoProcessError, also for zombies. Raises OSError if the system hides it.
    """
    if sys.platform != "linux":
        return _start_time_by_psutil(pid)
    # Read the kernel's value, because psutil adds the time of the boot, which moves with the wall clock.
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        # With hidepid=2 (proc(5)) processes of other users have no file, but a signal shows that they exist.
        if _exists(pid):
            raise
        raise NoProcessError(pid) from None
    # The name in parentheses may contain any character. In proc(5) the state is field 3, and the start is field 22.
    fields = stat.rpartition(b")")[2].split()
    if fields[0] in (b"Z", b"X"):
        raise NoProcessError(pid)
    return int(fields[19])


def _start_time_by_psutil(pid: int) -> int:
    import psutil  # only here, because commands must start fast, and Linux does not need it

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            raise NoProcessError(pid)
        return int(process.create_time() * 1000)
    except psutil.NoSuchProcess as error:
        raise NoProcessError(pid) from error
    except psutil.AccessDenied as error:
        raise PermissionError(str(error)) from error


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

"""The surroundings of the hall that the storm can break: its disk, its clock, and its services.

They belong to the storm: a small disk in memory, a clock that only the hall's processes see, and a proxy for each
service. So no other program on the machine is affected.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from tests.storm.proxy import Proxy

DISK_MEGABYTES = 192
CLOCK_SOURCE = Path(__file__).parent / "clock.c"


class Disk:
    """A small file system at `folder`. `why_not`: why there is none, or empty."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._filler = folder, folder / "filler"
        self.why_not = "" if os.geteuid() == 0 else "only root can mount a small disk"
        if not self.why_not:
            argv = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MEGABYTES}m,mode=0700", "tmpfs", str(folder)]
            result = subprocess.run(argv, check=False, capture_output=True, text=True)
            self.why_not = "" if result.returncode == 0 else f"no small disk could be mounted: {result.stderr.strip()}"

    def fill(self) -> None:
        """Write until the disk is full."""
        with self._filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4_096))

    def empty(self) -> None:
        self._filler.unlink(missing_ok=True)

    def end(self) -> None:
        if not self.why_not:
            subprocess.run(["umount", "--lazy", str(self._folder)], check=False, capture_output=True)


class Clock:
    """The wall clock that processes with `environment` see. `why_not`: why there is none, or empty."""

    def __init__(self, folder: Path) -> None:
        self._file, library = folder / "clock", folder / "clock.so"
        self.environment: dict[str, str] = {}
        self.jump_to(0.0)
        compiler = shutil.which("cc") or shutil.which("gcc")
        self.why_not = "" if compiler else "no C compiler (cc) to make a clock that can be moved"
        if compiler:
            argv = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(CLOCK_SOURCE), "-ldl"]
            result = subprocess.run(argv, check=False, capture_output=True, text=True)
            self.why_not = "" if result.returncode == 0 else f"the clock could not be built: {result.stderr[-200:]}"
        if not self.why_not:
            self.environment = {"LD_PRELOAD": str(library), "STORM_CLOCK": str(self._file)}

    def jump_to(self, seconds: float) -> None:
        """Shift the clock by `seconds` from now on."""
        # Write in place, because processes have mapped the file into memory.
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("d", seconds))


def through(proxy: Proxy, url: str) -> str:
    """The URL of the service, with the proxy instead of its host."""
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{login}@{proxy.address}" if login else proxy.address))


def make_proxy(url: str, default_port: int) -> Proxy:
    parts = urlsplit(url)
    return Proxy(parts.hostname or "127.0.0.1", parts.port or default_port)

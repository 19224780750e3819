"""What the hall stands on, made so that it can be taken away: its disk, its clock, and the services it is given.

All of it belongs to the storm: a small disk in memory of its own, a clock that only the hall's processes see, and a
proxy before each service, so that nobody else on the machine notices anything.
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
    """A file system of its own at `place`. `why_not`: why there is none; empty where there is."""

    def __init__(self, place: Path) -> None:
        self._place, self._filler = place, place / "filler"
        self.why_not = "" if os.geteuid() == 0 else "only root can mount a small disk"
        if not self.why_not:
            argv = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MEGABYTES}m,mode=0700", "tmpfs", str(place)]
            mounted = subprocess.run(argv, check=False, capture_output=True, text=True)
            self.why_not = (
                "" if mounted.returncode == 0 else f"no small disk could be mounted: {mounted.stderr.strip()}"
            )

    def fill(self) -> None:
        """Until nothing more can be written."""
        with self._filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4_096))

    def empty(self) -> None:
        self._filler.unlink(missing_ok=True)

    def end(self) -> None:
        if not self.why_not:
            subprocess.run(["umount", "--lazy", str(self._place)], check=False, capture_output=True)


class Clock:
    """The wall clock that processes with `environment` see. `why_not`: why there is none; empty where there is."""

    def __init__(self, folder: Path) -> None:
        self._file, library = folder / "clock", folder / "clock.so"
        self.environment: dict[str, str] = {}
        self.jump_to(0.0)
        compiler = shutil.which("cc") or shutil.which("gcc")
        self.why_not = "" if compiler else "no C compiler (cc) to make a clock that can be moved"
        if compiler:
            argv = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(CLOCK_SOURCE), "-ldl"]
            built = subprocess.run(argv, check=False, capture_output=True, text=True)
            self.why_not = "" if built.returncode == 0 else f"the clock could not be built: {built.stderr[-200:]}"
        if not self.why_not:
            self.environment = {"LD_PRELOAD": str(library), "STORM_CLOCK": str(self._file)}

    def jump_to(self, seconds: float) -> None:
        """From now on the clock is wrong by so much."""
        # In place: processes have the file in their memory.
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("d", seconds))


def through(proxy: Proxy, url: str) -> str:
    """The service's url, with the proxy in the place of its host."""
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{login}@{proxy.address}" if login else proxy.address))


def proxy_before(url: str, default_port: int) -> Proxy:
    parts = urlsplit(url)
    return Proxy(parts.hostname or "127.0.0.1", parts.port or default_port)

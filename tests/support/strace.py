"""The processes that a command and its descendants start, and the addresses to which they connect, by strace."""

from __future__ import annotations

import re
from pathlib import Path

_CALLS = ("execve", "execveat", "clone", "clone3", "fork", "vfork", "connect")
# A call of the system may be split into two lines. The first one has the arguments.
_EXECUTION = re.compile(r'execve(?:at)?\((?:\w+, )?"((?:[^"\\]|\\.)*)"')
_FORK = re.compile(r"(?:clone3?|v?fork)\(")
_CONNECTION = re.compile(
    r"connect\(\d+, \{sa_family=AF_INET6?, sin6?_port=htons\((\d+)\).*?"
    r'(?:inet_addr\("|inet_pton\(AF_INET6, ")([^"]+)"'
)


class Strace:
    """The trace of one command, in `file`. It has what happened since the last `forget`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read_from = 0

    def command(self, argv: list[str]) -> list[str]:
        calls = ",".join(_CALLS)
        return ["strace", "-f", "--seccomp-bpf", "-qq", "-e", f"trace={calls}", "-o", str(self._file), *argv]

    def forget(self) -> None:
        self._read_from = self._file.stat().st_size

    @property
    def programs(self) -> list[str]:
        """The programs that processes tried to become, also those that do not exist."""
        return [match[1] for line in self._lines() if (match := _EXECUTION.search(line))]

    @property
    def forks(self) -> list[str]:
        """The lines about processes that were created. A thread is no process."""
        return [line for line in self._lines() if _FORK.search(line) and "CLONE_THREAD" not in line]

    @property
    def connections(self) -> list[tuple[str, int]]:
        """The addresses with their ports to which processes tried to connect by IP."""
        return [(match[2], int(match[1])) for line in self._lines() if (match := _CONNECTION.search(line))]

    def _lines(self) -> list[str]:
        with self._file.open(errors="replace") as file:
            file.seek(self._read_from)
            return file.readlines()

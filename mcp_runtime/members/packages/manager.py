"""What `npm` and `pypi` have in common: commands, and what is read from a lock. No Django."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from mcp_runtime.members.packages.lines import PackageLine

MAX_LOCK_BYTES = 10_000_000
MAX_SCRIPTS = 50  # packages with install scripts that are named


@dataclass(frozen=True)
class Step:
    """A command of an installation. It runs in the folder of the installation."""

    args: tuple[str, ...]
    """The arguments of the program."""
    program: str = ""
    """A program in the folder. Without it, the manager's program."""
    runs_packages: bool = False
    """Whether it may run code of the packages. Then the member's sandbox is for it too, and it gets no credentials."""
    may_fail: bool = False
    """Whether the installation goes on if it ends with an error."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Written into the folder before it, by name."""


@dataclass(frozen=True)
class LockFacts:
    """What a lock says."""

    version: str
    """The exact version of the main package."""
    count: int
    """The number of packages."""
    scripts: tuple[str, ...] = ()
    """The packages with install scripts, at most MAX_SCRIPTS."""


class Manager(Protocol):
    """A program that makes locks and installs packages. The modules `npm` and `pypi` are such objects."""

    PROGRAM: str
    REMEDY: str
    """What to do if the program is missing."""
    LOCK_FILE: str
    VARIABLES: str
    """The beginning of the variables that configure the program, in small letters."""

    def lock_steps(self, line: PackageLine, *, with_scripts: bool) -> list[Step]:
        """The commands that write LOCK_FILE."""

    def install_steps(self, line: PackageLine, lock: str, *, with_scripts: bool) -> list[Step]:
        """The commands that install exactly what is in the lock."""

    def facts(self, line: PackageLine, lock: str) -> LockFacts:
        """What the lock says. Raises InstallError if not everything in it has a hash."""

    def contents(self, folder: Path) -> list[str]:
        """Some files of each installed package, relative to the folder. A start checks that they exist."""

    def program(self, line: PackageLine, lock: str, folder: Path) -> Path:
        """The program that the member runs. Raises InstallError if the packages do not have it."""

    def programs(self, folder: Path) -> Path:
        """The folder with all programs of the packages."""

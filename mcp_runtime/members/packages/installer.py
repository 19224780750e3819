"""Installs the packages of a member before its start, unless they are installed already.

The first node makes the lock of a member and stores it as a row. Each node installs from this row. If the folder of an
installation is complete, a start fetches nothing.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from django.db.models import QuerySet

from mcp_runtime.members import logs, process, sandboxes
from mcp_runtime.members.manifest.declaration import Manifest
from mcp_runtime.members.packages import folders, locks, npm, pypi, steps
from mcp_runtime.members.packages.lines import LineError, PackageLine, newest_of, package_line
from mcp_runtime.members.packages.manager import MAX_LOCK_BYTES, LockFacts, Manager, Step
from mcp_runtime.members.packages.steps import LOOK_SECONDS, Run, secrets_in, tool_environment
from mcp_runtime.members.readiness import StoppedWhileStartingError
from mcp_runtime.members.sandboxes import Sandboxes
from mcp_runtime.protocol.errors import InstallError
from mcp_runtime.rows.database import give_connection_back
from roster.models import GuildMember, PackageLock

LOOK_UP_SECONDS = 60.0  # to find out the newest version, and to wait for a turn before that
LOOK_UPS = ".look-ups"  # in place of a member's name, which begins with a letter or digit
MAX_INSTALLATIONS = 2  # at the same time. They use the network, the disk and whole CPUs
MANAGERS = {"npm": cast(Manager, npm), "pypi": cast(Manager, pypi)}


@dataclass(frozen=True)
class Program:
    """The installed program of a member, which takes the place of npx or uvx."""

    path: Path
    consumed: int
    """How many arguments of the manifest were for npx or uvx."""
    folder: Path
    """The installation, which the program must be able to read."""
    programs: Path
    """The folder with the programs of all packages. npx and uvx put it on the PATH."""


@dataclass(frozen=True)
class _Work:
    """What is installed for one start."""

    member: GuildMember
    manifest: Manifest
    line: PackageLine
    manager: Manager
    with_scripts: bool

    @property
    def specification(self) -> str:
        return self.line.specification(with_scripts=self.with_scripts)


class Installer:
    """Installs packages for the starts of one runtime. Each installation runs in the thread that calls `program`.

    `next_tag(name)` returns the environment tag for a process of a member. `spawning(name)` is entered for each spawn.
    `is_cancelled(member_id)` says whether the member or the runtime is to stop.
    """

    def __init__(
        self,
        *,
        data_dir: Path,
        members_dir: Path,
        sandboxes: Sandboxes,
        own_row: Callable[[int], QuerySet[GuildMember]],
        next_tag: Callable[[str], str],
        spawning: Callable[[str], AbstractContextManager[None]],
        is_cancelled: Callable[[int], bool],
    ) -> None:
        self._data_dir = data_dir
        self._members_dir = members_dir
        self._sandboxes = sandboxes
        self._own_row = own_row
        self._next_tag = next_tag
        self._spawning = spawning
        self._is_cancelled = is_cancelled
        self._turns = threading.Semaphore(MAX_INSTALLATIONS)
        self._runs: dict[int, Run | None] = {}  # member id -> its installation, None while it waits for its turn

    def program(self, member: GuildMember, manifest: Manifest) -> Program | None:
        """The program that the member runs. None if its command fetches what it needs itself.

        It installs the packages first if necessary. Raises McpRuntimeError, and then no process remains.
        """
        if manifest.packages == "fetched":
            return None
        line = _line(manifest)
        work = _Work(member, manifest, line, MANAGERS[line.kind], manifest.packages == "locked-with-scripts")
        lock = locks.find(member, work.specification)
        if lock is None or not folders.is_complete(self._place(work, lock)):
            lock = self._install(work, lock)
        place = self._place(work, lock)
        path = work.manager.program(line, lock.text, place)
        return Program(path, line.consumed, place, work.manager.programs(place))

    def newest(self, member: GuildMember, manifest: Manifest) -> LockFacts:
        """What a lock of the newest version of its package says. Nothing is stored, and nothing is installed.

        Nobody has approved this version, so none of its code runs. Raises McpRuntimeError.
        """
        line = newest_of(_line(manifest))
        work = _Work(member, manifest, line, MANAGERS[line.kind], with_scripts=False)
        give_connection_back()
        if not self._turns.acquire(timeout=LOOK_UP_SECONDS):
            raise InstallError("other members are being installed; try again later")
        folder = folders.folder_of(self._data_dir, f"{LOOK_UPS}/{member.name}")  # beside a start of the member
        try:
            return work.manager.facts(line, self._lock_text(work, self._run_of(member, LOOK_UP_SECONDS), folder))
        except OSError as error:
            raise InstallError(f"the data folder cannot take it: {error}") from error
        finally:
            self._turns.release()

    def progress(self) -> dict[int, str]:
        """What the installations are doing, by member id."""
        return {
            member_id: "waits for other installations" if run is None else f"installs its packages: {run.last_line()}"
            for member_id, run in list(self._runs.items())
        }

    def _place(self, work: _Work, lock: PackageLock) -> Path:
        return folders.place_of(self._data_dir, work.member.name, lock.digest, with_scripts=work.with_scripts)

    # One installation ---------------------------------------------------------------------------------------------

    def _install(self, work: _Work, lock: PackageLock | None) -> PackageLock:
        """Install the packages from the lock, which it makes if there is none. Returns the lock."""
        give_connection_back()
        try:
            with self._turn(work.member) as run:
                lock = lock or self._make_lock(work, run)
                give_connection_back()
                if not folders.is_complete(self._place(work, lock)):  # another lock with the same text may have it
                    self._install_from(work, lock, run)
                return lock
        except InstallError as error:
            if self._is_cancelled(work.member.pk):
                raise StoppedWhileStartingError(work.member.name) from error
            raise
        except OSError as error:
            raise InstallError(f"the data folder cannot take them: {error}") from error

    @contextlib.contextmanager
    def _turn(self, member: GuildMember) -> Iterator[Run]:
        """Wait until less than MAX_INSTALLATIONS run. The time limit begins then."""
        self._runs[member.pk] = None
        try:
            while not self._turns.acquire(timeout=LOOK_SECONDS):
                if self._is_cancelled(member.pk):
                    raise StoppedWhileStartingError(member.name)
            try:
                run = self._runs[member.pk] = self._run_of(member)
                yield run
            finally:
                self._turns.release()
        finally:
            self._runs.pop(member.pk, None)

    def _run_of(self, member: GuildMember, seconds: float | None = None) -> Run:
        return Run(
            member.name,
            logs.path_of(self._data_dir, member.name),
            spawning=lambda: self._spawning(member.name),
            is_cancelled=lambda: self._is_cancelled(member.pk),
            seconds=steps.INSTALL_SECONDS if seconds is None else seconds,
        )

    def _make_lock(self, work: _Work, run: Run) -> PackageLock:
        text = self._lock_text(work, run, folders.folder_of(self._data_dir, work.member.name))
        facts = work.manager.facts(work.line, text)
        return locks.store(work.member, work.specification, text, facts, self._own_row)

    def _lock_text(self, work: _Work, run: Run, parent: Path) -> str:
        with folders.unfinished(parent) as folder:
            steps = work.manager.lock_steps(work.line, with_scripts=work.with_scripts)
            self._run(work, run, steps, folder, f"making a lock for {work.specification}")
            try:
                return folders.read(folder / work.manager.LOCK_FILE, MAX_LOCK_BYTES).decode()
            except (OSError, UnicodeDecodeError) as error:
                raise InstallError(f"{work.manager.PROGRAM} wrote no usable lock: {error}") from None

    def _install_from(self, work: _Work, lock: PackageLock, run: Run) -> None:
        count = f"{lock.count} package{'' if lock.count == 1 else 's'}"
        note = f"installing {work.specification}: {count} of the lock {lock.digest}"
        with folders.unfinished(folders.folder_of(self._data_dir, work.member.name)) as folder:
            steps = work.manager.install_steps(work.line, lock.text, with_scripts=work.with_scripts)
            self._run(work, run, steps, folder, note)
            work.manager.program(work.line, lock.text, folder)  # if there is none, nothing is installed
            folders.finish(folder, self._place(work, lock), work.manager.contents(folder))

    def _run(self, work: _Work, run: Run, steps: list[Step], folder: Path, note: str) -> None:
        """Run the steps. `note` is the first line in the log of the member."""
        run.note(note)
        for step in steps:
            self._run_step(work, run, step, folder)

    def _run_step(self, work: _Work, run: Run, step: Step, folder: Path) -> None:
        for name, text in step.files.items():
            (folder / name).write_text(text)
        tool, tag = _tool(work.manager), self._next_tag(work.member.name)
        variables = tool_environment(work.manager.VARIABLES, runs_packages=step.runs_packages)
        secrets, descriptors = secrets_in(variables), list[int]()
        program = folder / step.program if step.program else tool
        argv, environment = [str(program), *step.args], process.child_environment(variables, tag)
        with contextlib.ExitStack() as stack:
            if step.runs_packages:
                own_folder = self._members_dir / work.member.directory
                policy = self._sandboxes.policy(work.manifest, own_folder, 0, read=[tool.resolve()], write=[folder])
                environment |= self._sandboxes.environment(work.manifest)
                if policy is not None:
                    argv, descriptors = stack.enter_context(sandboxes.entrance(policy, argv, environment))
                    environment = process.child_environment({}, tag)
            run.run(argv, environment, folder, secrets=secrets, descriptors=descriptors, may_fail=step.may_fail)


def delete_unused(data_dir: Path) -> None:
    """Delete the locks that no member needs, and the folders on this node of packages that no member uses."""
    locks.prune()
    used = {
        folders.place_of(data_dir, member.name, lock.digest, with_scripts=with_scripts)
        for member, lock, with_scripts in locks.used()
    }
    folders.delete_unused(data_dir, used)


def _line(manifest: Manifest) -> PackageLine:
    try:
        return package_line(manifest.command, manifest.args, manifest.env)
    except LineError as error:
        raise InstallError(f"{error}") from None


def _tool(manager: Manager) -> Path:
    # Of the hall's own PATH. A member could have written a program into a folder that its manifest names.
    found = shutil.which(manager.PROGRAM)
    if found is None:
        raise InstallError(f"{manager.PROGRAM} is not on the PATH of the hall; {manager.REMEDY}")
    return Path(found).absolute()

"""Runs the commands of an installation, each as a process of the member, within limits of time and size. No Django."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mcp_runtime.members import process
from mcp_runtime.members.output import MemberLog
from mcp_runtime.members.packages import folders
from mcp_runtime.members.process import MemberProcess
from mcp_runtime.protocol.errors import InstallError, describe_exit

INSTALL_SECONDS = 600.0  # for all steps of one installation
MAX_BYTES = 10_000_000_000  # of the installed packages
MAX_FILES = 1_000_000
LOOK_SECONDS = 0.1
SIZE_SECONDS = 2.0  # between two looks at the size, or longer if a look takes long
SIZE_SHARE = 10  # a look takes at most one of so many parts of the time
PROXIES = {"http_proxy", "https_proxy", "all_proxy", "no_proxy"}
_SECRET_NAME = re.compile(r"token|passw|secret|_auth|key", re.IGNORECASE)


@dataclass
class Run:
    """One installation of a member, while its steps run.

    `is_cancelled` says whether the member or the runtime is to stop. `spawning` is entered for each spawn.
    """

    member: str
    log_path: Path
    spawning: Callable[[], AbstractContextManager[None]]
    is_cancelled: Callable[[], bool]
    seconds: float
    """For all steps together, from now on."""
    _began_at: float = field(default_factory=time.monotonic)
    _process: MemberProcess | None = None
    _note: str = ""

    def run(
        self,
        argv: list[str],
        environment: dict[str, str],
        folder: Path,
        *,
        secrets: Collection[str] = (),
        descriptors: Collection[int] = (),
        may_fail: bool = False,
    ) -> None:
        """Run one command in `folder` to its end. When it returns or raises, none of its processes is left.

        With `may_fail` its exit code does not count. Its output goes to the log of the member, where `secrets` are
        masked. Raises InstallError and SpawnError.
        """
        tag = environment[process.TAG_VARIABLE]
        log = MemberLog(self.member, self.log_path, secrets)
        try:
            with self.spawning():
                started = MemberProcess.spawn(
                    argv,
                    directory=folder,
                    environment=environment,
                    log=log,
                    on_exit=lambda _: None,
                    descriptors=descriptors,
                )
        except Exception:
            log.close()
            raise
        self._process = started
        try:
            fault = self._wait(started, folder)
        finally:
            started.kill()
            process.kill_tagged(tag)
            self._process = None
        if not fault and started.exit_code and not may_fail:
            fault = f"{os.path.basename(argv[0])} ended with {describe_exit(started.exit_code)}"
        if fault:
            raise InstallError(fault, started.tail())

    def note(self, text: str) -> None:
        """Write a line to the log of the member."""
        log = MemberLog(self.member, self.log_path)
        log.write([text])
        log.close()
        self._note = text

    def last_line(self) -> str:
        """The last line of output of the present step, or the last note."""
        return (current.last_line() if (current := self._process) is not None else "") or self._note

    def _wait(self, started: MemberProcess, folder: Path) -> str:
        """Wait for the end of the process. Returns why it must end before, or nothing."""
        next_look = time.monotonic() + SIZE_SECONDS
        while not started.exited.wait(LOOK_SECONDS):
            now = time.monotonic()
            if self.is_cancelled():
                started.stop()
                return "it was stopped"
            if now >= self._began_at + self.seconds:
                started.stop()
                return f"it took longer than {self.seconds:.0f} s"
            if now >= next_look:
                size, count = folders.size_of(folder)
                if size > MAX_BYTES or count > MAX_FILES:
                    started.kill()
                    return f"it has more than {MAX_BYTES:,} bytes or {MAX_FILES:,} files"
                next_look = time.monotonic() + max(SIZE_SECONDS, SIZE_SHARE * (time.monotonic() - now))
        return ""


def tool_environment(variables: str, *, runs_packages: bool = False) -> dict[str, str]:
    """The variables of ours that only a manager needs: its own, whose names begin so, and the proxies.

    Those with credentials are not for steps that run code of packages.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if (name.lower().startswith(variables) or name.lower() in PROXIES)
        and not (runs_packages and secrets_in({name: value}))
    }


def secrets_in(environment: Mapping[str, str]) -> list[str]:
    """Values that must not be shown: the passwords in addresses, and variables whose names sound like secrets."""
    secrets = [value for name, value in environment.items() if _SECRET_NAME.search(name)]
    for value in environment.values():
        for address in value.split():
            if password := _password(address):
                secrets += [password, unquote(password)]
    return secrets


def _password(address: str) -> str:
    try:
        return urlsplit(address).password or "" if "@" in address else ""
    except ValueError:
        return ""

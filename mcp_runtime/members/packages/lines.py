"""Reads which packages an npx or uvx command line runs, if they can be installed from a lock. No Django.

Only packages of the registry have hashes in a lock. So repositories, paths and addresses are refused, and so is every
option that is not known here. Sources: npm's npx-cli.js, and `uvx --help`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

MAX_PACKAGES = 20
Kind = Literal["npm", "pypi"]

_NPM = re.compile(
    r"(?P<name>(@[A-Za-z0-9~][A-Za-z0-9._~-]*/)?[A-Za-z0-9~_][A-Za-z0-9._~-]*)"
    r"(@(?P<version>[A-Za-z0-9^~<>=*][A-Za-z0-9.^~<>=*+_| -]{0,99}))?"
)
_VERSION = r"[A-Za-z0-9.!+*_-]{1,60}"
_SPECIFIER = rf"\s?(===?|~=|!=|<=?|>=?)\s?{_VERSION}"
_PYPI = re.compile(
    r"(?P<name>[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)(?P<extras>\[[A-Za-z0-9,._-]{1,100}\])?"
    rf"(@(?P<version>{_VERSION})|(?P<specifiers>{_SPECIFIER}(,{_SPECIFIER}){{0,5}}))?"
)
_FILE = re.compile(r"\.(tgz|tar|tar\.[a-z0-9]+|zip|whl)$", re.IGNORECASE)
_PROGRAM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_PYTHON = re.compile(r"[A-Za-z0-9][A-Za-z0-9.@+-]{0,39}")
_EXACT = re.compile(r"v?\d+\.\d+\.\d+([.+-].*)?")

_NPX_FLAGS = {"-y", "--yes", "-q", "--quiet", "--silent"}
_UVX_FLAGS = {"-q", "--quiet", "--isolated"}
_VARIABLES = {"npx": "npm_config_", "uvx": "uv_"}


class LineError(ValueError):
    """The packages of the command cannot be installed from a lock. The text is a sentence without its subject."""


@dataclass(frozen=True)
class PackageLine:
    """The packages of a command line, and the program in them that it runs."""

    kind: Kind
    packages: tuple[tuple[str, str], ...]
    """Names, with the versions that are wanted: an npm range or tag, or extras and specifiers. The first is the main
    package."""
    program: str
    """The name of the program. Empty if the main package decides."""
    consumed: int
    """How many arguments are those of npx or uvx. The others are those of the program."""
    python: str = ""
    """The Python that is wanted. Empty for any."""

    @property
    def name(self) -> str:
        return self.packages[0][0]

    @property
    def is_pinned(self) -> bool:
        """Whether the text names one exact version of the main package."""
        version = self.packages[0][1]
        return bool(_EXACT.fullmatch(version) if self.kind == "npm" else "==" in version and "*" not in version)

    @property
    def exact_version(self) -> str:
        """The version of the main package if the text names exactly one. Otherwise empty."""
        version = self.packages[0][1]
        return version.rpartition("==")[2] if self.is_pinned else ""

    def specification(self, *, with_scripts: bool) -> str:
        """What a lock is for, as a short text. Two lines with the same text have the same lock."""
        joint = "@" if self.kind == "npm" else ""
        packages = " ".join(f"{name}{joint if version else ''}{version}" for name, version in self.packages)
        python = f" (Python {self.python})" if self.python else ""
        built = " (may be built)" if with_scripts and self.kind == "pypi" else ""
        return f"{self.kind} {packages}{python}{built}"


def package_line(command: str, args: Sequence[str], env: Mapping[str, str]) -> PackageLine:
    """The packages that this command runs. Raises LineError."""
    program = os.path.basename(command)
    if program not in _VARIABLES or command not in (program, os.path.abspath(command)):
        raise LineError("only npx and uvx, by name or absolute path, have packages that can be installed")
    for name in env:
        if name.lower().startswith(_VARIABLES[program]):
            raise LineError(f"the variable {name} in env configures {program}, and an installation does not have it")
    reading = _Reading(list(args))
    return _npx(reading) if program == "npx" else _uvx(reading)


def newest_of(line: PackageLine) -> PackageLine:
    """The line without a version of its main package."""
    (name, version), *others = line.packages
    return replace(line, packages=((name, _extras_of(version)), *others))


def with_version(command: str, args: Sequence[str], env: Mapping[str, str], version: str) -> list[str]:
    """The arguments with exactly this version of the main package. Raises LineError."""
    line = package_line(command, args, env)
    name, old_version = line.packages[0]
    pinned = f"@{version}" if line.kind == "npm" else f"{_extras_of(old_version)}=={version}"
    for place in range(line.consumed):
        option, is_joined, value = args[place].partition("=")
        is_option = bool(is_joined) and option in ("-p", "--package", "--from")
        if _package(line.kind, value if is_option else args[place]) == line.packages[0]:
            changed = [*args[:place], f"{option}={name}{pinned}" if is_option else name + pinned, *args[place + 1 :]]
            read_again = package_line(command, changed, env)
            if read_again.exact_version == version and read_again.packages[1:] == line.packages[1:]:
                return changed
    raise LineError("the version in its arguments cannot be replaced")


def _package(kind: Kind, text: str) -> tuple[str, str] | None:
    """The package that an argument names. None if it names none."""
    try:
        return _npm_package(text) if kind == "npm" else _pypi_package(text)
    except LineError:
        return None


def _extras_of(version: str) -> str:
    return version.partition("]")[0] + "]" if version.startswith("[") else ""


def locked_line(manifest: Mapping[str, Any]) -> tuple[PackageLine, bool] | None:
    """The packages of a manifest that are installed from a lock, and whether their scripts may run.

    `manifest` has JSON values, as in the member's row. None for a member without such packages.
    """
    mode = manifest.get("packages")
    if mode not in ("locked", "locked-with-scripts"):
        return None
    try:
        line = package_line(manifest["command"], manifest["args"], manifest["env"])
    except LineError:  # the manifest is of another version of the hall
        return None
    return line, mode == "locked-with-scripts"


def line_fault(command: str, args: Sequence[str], env: Mapping[str, str]) -> str:
    """Why the packages of this command cannot be installed from a lock. Empty if they can."""
    try:
        package_line(command, args, env)
    except LineError as error:
        return str(error)
    return ""


class _Reading:
    """The arguments, read one by one."""

    def __init__(self, args: list[str]) -> None:
        self._args = args
        self.at = 0

    def options(self) -> Iterator[tuple[str, str | None]]:
        """The options before the first other argument, each with the value after its `=`."""
        while self.at < len(self._args) and self._args[self.at].startswith("-"):
            option, is_joined, value = self._args[self.at].partition("=")
            self.at += 1
            if option == "--" and not is_joined:
                return
            yield option, value if is_joined else None

    def next(self, what: str) -> str:
        if self.at >= len(self._args):
            raise LineError(f"its arguments end without {what}")
        self.at += 1
        return self._args[self.at - 1]


def _npx(reading: _Reading) -> PackageLine:
    packages = []
    for option, value in reading.options():
        if option in ("-p", "--package"):
            packages.append(_npm_package(value if value is not None else reading.next("a package")))
        elif option not in _NPX_FLAGS or value is not None:
            raise LineError(f"npx has {_shown(option)}, which an installation does not know")
    word = reading.next("a package" if not packages else "a program")
    program = _program(word) if packages else ""
    packages = packages or [_npm_package(word)]
    return PackageLine("npm", _bounded(packages), program, reading.at)


def _npm_package(text: str) -> tuple[str, str]:
    match = _NPM.fullmatch(text)
    if match is None or _FILE.search(text) or ".." in match["name"]:
        raise LineError("a package of it is not named as in the registry, such as NAME@VERSION")
    return match["name"], (match["version"] or "").strip()


def _uvx(reading: _Reading) -> PackageLine:
    source, more, python = "", [], ""
    for option, value in reading.options():
        if option in _UVX_FLAGS and value is None:
            continue
        if option not in ("--from", "--with", "-w", "--python", "-p"):
            raise LineError(f"uvx has {_shown(option)}, which an installation does not know")
        value = value if value is not None else reading.next(f"a value for {option}")
        if option == "--from":
            source = value
        elif option in ("--with", "-w"):
            more.append(_pypi_package(value))
        elif not _PYTHON.fullmatch(value):
            raise LineError("the value of --python is not a version")
        else:
            python = value
    word = reading.next("a package")
    main = _pypi_package(source or word)
    program = _program(word if source else re.split(r"[\[@=~!<>\s]", word, maxsplit=1)[0])
    return PackageLine("pypi", _bounded([main, *more]), program, reading.at, python)


def _pypi_package(text: str) -> tuple[str, str]:
    match = _PYPI.fullmatch(text)
    if match is None or _FILE.search(match["name"]):
        raise LineError("a package of it is not named as in the index, such as NAME==VERSION")
    version = match["version"] or ""
    pinned = f"=={version}" if version not in ("", "latest") else match["specifiers"] or ""
    return match["name"], (match["extras"] or "") + pinned.replace(" ", "")


def _program(word: str) -> str:
    if not _PROGRAM.fullmatch(word):
        raise LineError("it does not name a program after its options")
    return word


def _bounded(packages: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    if len(packages) > MAX_PACKAGES:
        raise LineError(f"it has more than {MAX_PACKAGES} packages")
    return tuple(packages)


def _shown(option: str) -> str:
    """The option in words. Others than long ones may contain a value, which may be a secret."""
    return f"the option {option}" if re.fullmatch(r"--[a-z-]{2,30}", option) else "an option"

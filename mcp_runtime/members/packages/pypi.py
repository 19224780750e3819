"""Packages of PyPI: `uv pip compile` makes the lock, and `uv pip install` installs from it. No Django.

uvx finds its Python and its index in the same places, except in files of projects, which it does not read either.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from mcp_runtime.members.packages.lines import PackageLine
from mcp_runtime.members.packages.manager import LockFacts, Step
from mcp_runtime.protocol.errors import InstallError

PROGRAM = "uv"
REMEDY = "install uv, for example with pip install uv"
LOCK_FILE = "requirements.txt"
VARIABLES = "uv_"

_ENVIRONMENT = "environment"
_PYTHON = f"{_ENVIRONMENT}/bin/python"
_INPUT = "requirements.in"
_ONLY_WHEELS = ("--only-binary", ":all:")  # all other packages run code when they are installed
_OPTIONS = ("--no-progress", "--color", "never")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
_LOCKED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.!+_-]+)(\s*;.*)?")


def lock_steps(line: PackageLine, *, with_scripts: bool) -> list[Step]:
    requirements = "".join(f"{name}{version}\n" for name, version in line.packages)
    command = ("pip", "compile", "--universal", "--generate-hashes", "--no-header", "--no-annotate", "--quiet")
    wheels = () if with_scripts else _ONLY_WHEELS
    args = (*command, *_OPTIONS, *wheels, "--python", _PYTHON, "--output-file", LOCK_FILE, _INPUT)
    return [_environment(line), Step(args, runs_packages=with_scripts, files={_INPUT: requirements})]


def install_steps(line: PackageLine, lock: str, *, with_scripts: bool) -> list[Step]:
    # The files are copied, because links would lead into the cache, which other programs use too.
    install = ("pip", "install", "--require-hashes", "--no-deps", "--link-mode", "copy")
    wheels = () if with_scripts else _ONLY_WHEELS
    args = (*install, *_OPTIONS, *wheels, "--python", _PYTHON, "-r", LOCK_FILE)
    install_step = Step(args, runs_packages=with_scripts, files={LOCK_FILE: lock})
    # A member in a sandbox cannot write compiled files. The Python of the environment runs *.pth files and
    # sitecustomize.py of the packages, so nothing outside of the sandbox may start it from here on.
    compile_step = Step(
        ("-m", "compileall", "-q", f"{_ENVIRONMENT}/lib"), program=_PYTHON, runs_packages=True, may_fail=True
    )
    return [_environment(line), install_step, compile_step]


def _environment(line: PackageLine) -> Step:
    # "3" means the first Python that uv finds, as for uvx. Without it, and without an empty uv.toml, uv would also read
    # files of the folders above. The folder gets another name in the end, so the environment must be relocatable.
    create = ("venv", "--quiet", "--relocatable", "--no-project", "--python", line.python or "3")
    return Step((*create, *_OPTIONS, _ENVIRONMENT), files={"uv.toml": ""})


def facts(line: PackageLine, lock: str) -> LockFacts:
    versions = {_normal(name): version for name, version in _requirements(lock)}
    if _normal(line.name) not in versions:
        raise InstallError(f"the lock does not have the package {line.name!r}")
    return LockFacts(versions[_normal(line.name)][:100], len(versions))


def _requirements(lock: str) -> Iterator[tuple[str, str]]:
    """The names and versions of the packages. Raises InstallError if one has no hash, or if there is anything else."""
    for entry in lock.replace("\\\n", " ").splitlines():
        requirement, *hashes = re.split(r"\s+(?=--)", entry.strip())
        if not requirement or requirement.startswith("#"):
            continue
        match = _LOCKED.fullmatch(requirement)
        if match is None or not hashes or not all(map(_HASH.fullmatch, hashes)):
            raise InstallError(f"the lock has an entry that is not a version with hashes: {requirement[:100]!r}")
        yield match["name"], match["version"]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def contents(folder: Path) -> list[str]:
    files = [*folder.glob(f"{_ENVIRONMENT}/lib/python*/site-packages/*.dist-info/RECORD")]
    files += [folder / _ENVIRONMENT / "pyvenv.cfg", programs(folder) / "python"]
    return [str(file.relative_to(folder)) for file in files]


def programs(folder: Path) -> Path:
    return folder / _ENVIRONMENT / "bin"


def program(line: PackageLine, lock: str, folder: Path) -> Path:
    file = programs(folder) / line.program
    real = Path(os.path.realpath(file))
    if not real.is_relative_to(os.path.realpath(folder)) or not real.is_file():
        raise InstallError(f"its packages have no program {line.program!r}. They have: {_offered(folder)}")
    return file


def _offered(folder: Path) -> str:
    """The programs of the packages, without those of the environment itself."""
    own = re.compile(r"(python|pip|activate|deactivate|pydoc)")
    names = sorted(file.name for file in programs(folder).iterdir() if not own.match(file.name))
    return ", ".join(names[:10])[:300] or "none"

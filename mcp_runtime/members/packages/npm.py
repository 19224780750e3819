"""Packages of npm: `npm install --package-lock-only` makes the lock, and `npm ci` installs from it. No Django."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from mcp_runtime.members.packages.folders import read
from mcp_runtime.members.packages.lines import PackageLine
from mcp_runtime.members.packages.manager import MAX_LOCK_BYTES, MAX_SCRIPTS, LockFacts, Step
from mcp_runtime.protocol.errors import InstallError

PROGRAM = "npm"
REMEDY = "install Node.js with npm 7 or later"
LOCK_FILE = "package-lock.json"
VARIABLES = "npm_config_"

# Nothing of a package may run, and nothing without a hash may come. `git` is the program that npm would run for a
# repository, and npm before 11.10 does not know the option for it. The others are options that a user may have changed.
_OPTIONS = (
    *("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--location=project", "--loglevel=warn"),
    *("--git=git-is-not-used", "--allow-git=none", "--allow-file=none", "--allow-directory=none"),
    *("--allow-remote=none", "--package-lock", "--no-dry-run", "--bin-links"),
    *("--omit=dev", "--lockfile-version=3"),
)
_PLACE = re.compile(r"(node_modules/(@[^/@]+/)?[^/@][^/]*/)*node_modules/(@[^/@]+/)?[^/@][^/]*")
# One hash of an algorithm that npm knows. Of several it accepts any, and unknown ones it ignores.
_HASH = re.compile(r"sha(512|384|256|1)-[A-Za-z0-9+/]{20,}={0,2}")
# Where a registry has the archives of packages. A file of this machine, or another address, may have a hash too.
_OF_REGISTRY = re.compile(r"https?://[^?#]*/-/[^/?#]+\.tgz$")
_PROGRAM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def lock_steps(line: PackageLine, *, with_scripts: bool) -> list[Step]:
    return [Step(("install", "--package-lock-only", *_OPTIONS), files={"package.json": _package_json(line)})]


def install_steps(line: PackageLine, lock: str, *, with_scripts: bool) -> list[Step]:
    files = {"package.json": _package_json(line), LOCK_FILE: lock}
    steps = [Step(("ci", *_OPTIONS), files=files)]
    if with_scripts:
        # npm 11 asks for an approval of each script, which the manifest has given. Older ones ignore this option.
        steps.append(Step(("rebuild", "--no-ignore-scripts", "--dangerously-allow-all-scripts"), runs_packages=True))
    return steps


def _package_json(line: PackageLine) -> str:
    # With a fixed name, because the name of the folder would become a part of the lock.
    dependencies = {name: version or "latest" for name, version in line.packages}
    return json.dumps({"name": "guild-hall-installation", "private": True, "dependencies": dependencies})


def facts(line: PackageLine, lock: str) -> LockFacts:
    packages = _packages(lock)
    for place, package in packages.items():
        name = place.rpartition("node_modules/")[2][:100]
        if not _PLACE.fullmatch(place) or ".." in place.split("/") or package.get("link"):
            raise InstallError(f"the lock has the package {name!r} in a folder of its own, which has no hash")
        is_in_other = bool(package.get("inBundle")) and place.count("node_modules/") > 1  # which has a hash
        if not _HASH.fullmatch(str(package.get("integrity", ""))) and not is_in_other:
            raise InstallError(f"the package {name!r} is not from the registry, so the lock has no usable hash for it")
        resolved = str(package.get("resolved", ""))
        if resolved and not _OF_REGISTRY.match(resolved):
            raise InstallError(f"the package {name!r} is not from the registry, but from a file or another address")
    main = packages.get(f"node_modules/{line.name}")
    if main is None:
        raise InstallError(f"the lock does not have the package {line.name!r}")
    scripts = [place.rpartition("node_modules/")[2] for place, package in packages.items() if _has_scripts(package)]
    return LockFacts(str(main.get("version", ""))[:100], len(packages), tuple(sorted(set(scripts))[:MAX_SCRIPTS]))


def _has_scripts(package: dict[str, Any]) -> bool:
    return bool(package.get("hasInstallScript"))


def _packages(lock: str) -> dict[str, dict[str, Any]]:
    """The packages of the lock by their places, without the root."""
    try:
        values = json.loads(lock)
        packages = values["packages"]
        sound = {str(place): dict(package) for place, package in packages.items() if place}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise InstallError(f"npm wrote a lock that the hall cannot read; {REMEDY}") from None
    return sound


def contents(folder: Path) -> list[str]:
    try:
        installed = read(folder / "node_modules" / ".package-lock.json", MAX_LOCK_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InstallError(f"npm left no list of the packages: {error}") from None
    return [f"{place}/package.json" for place in _packages(installed)]


def programs(folder: Path) -> Path:
    return folder / "node_modules" / ".bin"


def program(line: PackageLine, lock: str, folder: Path) -> Path:
    name = line.program or _main_program(line, _packages(lock))
    file = programs(folder) / name
    real = Path(os.path.realpath(file))
    # The link is of npm, and leads into a package. A package that says otherwise gets nothing to run.
    if not real.is_relative_to(os.path.realpath(folder / "node_modules")) or not real.is_file():
        raise InstallError(f"its packages have no program {name!r}")
    return real


def _main_program(line: PackageLine, packages: dict[str, dict[str, Any]]) -> str:
    """The name of the program by the rules of npx: the only one, or the one with the name of the package."""
    programs = packages[f"node_modules/{line.name}"].get("bin")
    programs = programs if isinstance(programs, dict) else {}
    short = line.name.rpartition("/")[2]
    name = next(iter(programs), "") if len({str(path) for path in programs.values()}) == 1 else short
    if name not in programs:
        offered = ", ".join(sorted(map(str, programs))[:10]) or "none"
        raise InstallError(
            f"npx cannot tell which program of {line.name!r} to run, which has: {offered[:300]}. Write npx -p "
            f"{line.name} PROGRAM"
        )
    if not _PROGRAM.fullmatch(name):
        raise InstallError(f"the package {line.name!r} has a program whose name is not allowed: {name[:100]!r}")
    return str(name)

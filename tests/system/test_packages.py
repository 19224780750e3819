"""Members whose packages are installed from a lock, in real halls with a registry of this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from roster.models import PackageLock
from tests.conftest import eventually, needs_program
from tests.support.hall import Hall, call, family, member, wait_for_end_of, wait_for_status
from tests.support.package_index import package_index


@pytest.fixture(autouse=True)
def npm() -> None:
    needs_program("npm")


def version(name: str) -> str:
    text = call(name, "about", {}, within=30).result["content"][0]["text"]
    return str(json.loads(text)["version"])


def version_meanwhile(name: str) -> str:
    """The same while the member restarts. Empty if its call failed."""
    result = call(name, "about", {}, within=30).result
    return str(json.loads(result["content"][0]["text"])["version"]) if result else ""


def test_an_approved_member_is_installed_once_and_then_needs_no_network(hall: Hall, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with package_index() as index:
        index.add_npm("pocket-mcp", "1.0.0")
        environment = {"HOME": str(home), "npm_config_registry": index.url}
        hall.start(**environment)
        proposed = hall.manage("add_member", "npx -y pocket-mcp", "--json").stdout
        assert '"packages": "locked"' in proposed
        assert "its lock keeps it from then on" in proposed
        hall.manage("sync_roster")
        assert (index.requests, hall.tagged_processes(), list(hall.data_dir.glob("packages"))) == ([], [], [])
        assert hall.manage("add_member", "pocket", "--approve").returncode == 0
        wait_for_status(hall, "pocket", "connected", within=60)
        assert version("pocket") == "1.0.0"
        hall.end()
    shutil.rmtree(home)
    home.mkdir()
    hall.start(**environment)
    wait_for_status(hall, "pocket", "connected", within=60)
    assert version("pocket") == "1.0.0"
    assert PackageLock.objects.count() == 1
    assert not (hall.data_dir / "sandboxes" / "pocket" / "home" / ".npm").exists()


def test_a_runtime_that_is_killed_during_an_installation_leaves_nothing_that_counts(hall: Hall, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "npm").write_text("#!/bin/sh\necho '{}' > package-lock.json; setsid sleep 600 & sleep 600\n")
    (programs / "npm").chmod(0o755)
    hall.add("anna", transport="stdio", command="npx", args=["-y", "pocket-mcp"], packages="locked")
    with package_index() as index:
        index.add_npm("pocket-mcp", "1.0.0")
        environment = {"HOME": str(tmp_path), "npm_config_registry": index.url}
        runtime = hall.start(**{**environment, "PATH": f"{programs}:{os.environ['PATH']}"})
        eventually(lambda: len(hall.tagged_processes("anna")) >= 3, within=30, what="the installer runs")
        installers = hall.tagged_processes("anna")
        for process in family(runtime):
            if process not in installers:
                process.send_signal(signal.SIGKILL)
        runtime.wait(10)
        (left,) = hall.data_dir.glob("packages/anna/*")
        assert left.name.startswith(".unfinished-")
        hall.start(**environment)
        wait_for_end_of(installers, within=30)
        wait_for_status(hall, "anna", "connected", within=60)
        names = [path.name for path in hall.data_dir.glob("packages/anna/*")]
        assert names == [PackageLock.objects.get().digest]
        assert version("anna") == "1.0.0"
        assert psutil.pid_exists(member("anna").pid or 0)


def test_a_newer_version_is_looked_up_approved_and_taken_back(hall: Hall, tmp_path: Path) -> None:
    with package_index() as index:
        index.add_npm("pocket-mcp", "1.0.0")
        hall.add("anna", transport="stdio", command="npx", args=["-y", "pocket-mcp@1.0.0"], packages="locked")
        hall.start(HOME=str(tmp_path), npm_config_registry=index.url)
        wait_for_status(hall, "anna", "connected", within=60)
        assert json.loads(hall.manage("newest_version", "anna", "--json").stdout)["is_newer"] is False
        index.add_npm("pocket-mcp", "1.1.0", scripts={"postinstall": f"touch {tmp_path}/ran"}, bin={"x": "server.js"})
        newest = json.loads(hall.manage("newest_version", "anna", "--propose", "--json").stdout)
        assert (newest["newest"], version("anna")) == ("1.1.0", "1.0.0")
        hall.manage("edit_member", "anna", "--approve", str(newest["edit"]))
        eventually(lambda: version_meanwhile("anna") == "1.1.0", within=60)
        hall.manage("edit_member", "anna", "--undo", str(newest["edit"]))
        eventually(lambda: version_meanwhile("anna") == "1.0.0", within=60)
        assert not (tmp_path / "ran").exists()
        assert {lock.version for lock in PackageLock.objects.all()} == {"1.0.0", "1.1.0"}

"""Starts of members whose packages are installed from a lock, with a registry of this machine."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.utils import timezone

from mcp_runtime.control.packages import package_report, relock
from mcp_runtime.members.manifest.declaration import Manifest
from mcp_runtime.members.packages import folders, installer, locks, steps
from mcp_runtime.members.packages.manager import LockFacts
from mcp_runtime.members.process import kill_tagged
from mcp_runtime.protocol.errors import McpRuntimeError, RequestRefusedError
from mcp_runtime.sandbox.capabilities import probe
from mcp_runtime.system.loops import loop
from roster.models import AuditEntry, GuildMember, PackageLock
from tests.conftest import eventually, needs_program
from tests.support.lifecycle_stage import Stage, Status, history, in_thread, row, wait_for_exit_callbacks
from tests.support.package_index import PackageIndex, package_index

pytestmark = pytest.mark.django_db(transaction=True)

NPX: dict[str, Any] = {
    "transport": "stdio",
    "command": "npx",
    "args": ["-y", "pocket-mcp", "--rest"],
    "packages": "locked",
}
UVX: dict[str, Any] = {**NPX, "command": "uvx", "args": ["pocket-mcp", "--rest"]}
SCRIPTS = {**NPX, "packages": "locked-with-scripts"}
PATH = os.environ["PATH"]


def need(*names: str) -> None:
    for name in names:
        needs_program(name)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    for live_member in stage.lifecycle.live_members():
        stage.lifecycle.stop(live_member.member_id)
    kill_tagged(f"{stage.hall_id}/")
    eventually(lambda: not psutil.Process().children(), what="all exits are known")
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop("member-exits")).result(10)
    wait_for_exit_callbacks()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    """A registry and an index, which npm and uv use, with an empty cache."""
    (tmp_path / "home").mkdir()
    (tmp_path / "uv").mkdir()
    if own := shutil.which(
        "uv", path=os.path.dirname(sys.executable)
    ):  # of the tests' environment, and no Python of it
        (tmp_path / "uv" / "uv").symlink_to(own)
    monkeypatch.setenv("PATH", f"{tmp_path / 'uv'}:{PATH}")
    with package_index() as index:
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setenv("npm_config_registry", index.url)
        monkeypatch.setenv("npm_config_fetch_retries", "0")
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"{index.url}/simple/")
        monkeypatch.setenv("UV_HTTP_RETRIES", "0")
        monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
        yield index


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    """Put a program of this name first on the PATH of the hall."""
    folder = folder / "programs"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def about(stage: Stage, member: GuildMember) -> dict[str, Any]:
    """What the server says about itself."""
    result = stage.live(member).client.invoke_tool("about", {}, 20)
    values: dict[str, Any] = json.loads(result["content"][0]["text"])
    return values


def restarted(stage: Stage, member: GuildMember) -> GuildMember:
    stage.lifecycle.stop(member.pk)
    stage.lifecycle.start(member.pk)
    return row(member)


def failed(stage: Stage, member: GuildMember) -> str:
    """The error of a start that must fail. Checks that nothing of it remains."""
    stage.lifecycle.start(member.pk)
    assert row(member).status == Status.ERROR
    assert row(member).next_restart_at is not None
    assert stage.processes() == []
    assert [path.name for path in stage.data_dir.glob("packages/*/*") if len(path.name) != 64] == []
    return row(member).last_error


# Once, and then without the network -------------------------------------------------------------------------------


@pytest.mark.parametrize("sandbox", ["off", "on"])
@pytest.mark.parametrize("kind", ["npm", "uv"])
def test_later_starts_need_no_registry_and_no_cache(
    stage: Stage, index: PackageIndex, tmp_path: Path, kind: str, sandbox: str
) -> None:
    need(kind, "node")
    index.add_npm("dependency", "1.0.0", {"index.js": ""})
    index.add_npm("pocket-mcp", "1.2.3", dependencies={"dependency": "^1"})
    index.add_wheel("dependency", "1.0.0")
    index.add_wheel("pocket-mcp", "1.2.3", ["dependency>=1"], program="pocket-mcp")
    member = stage.up("anna", **(NPX if kind == "npm" else UVX), sandbox=sandbox, tools=[])
    assert about(stage, member)["version"] == "1.2.3"
    assert about(stage, member)["args"] == ["--rest"]
    lock = PackageLock.objects.get()
    assert (lock.version, lock.count, lock.member_id) == ("1.2.3", 2, member.pk)
    (entry,) = AuditEntry.objects.filter(kind="packages_locked")
    assert (entry.member, entry.after["sha256"], entry.after["version"]) == ("anna", lock.digest, "1.2.3")
    index.close()
    shutil.rmtree(tmp_path / "home")
    (tmp_path / "home").mkdir()
    count = len(index.requests)
    member = restarted(stage, member)
    assert (member.status, member.last_error) == (Status.CONNECTED, "")
    assert about(stage, member)["version"] == "1.2.3"
    assert len(index.requests) == count
    assert not list((tmp_path / "home").rglob("pocket*"))


def test_nothing_is_fetched_for_a_manifest_without_the_key(stage: Stage, index: PackageIndex) -> None:
    stage.up("anna")
    assert (PackageLock.objects.count(), index.requests, list(stage.data_dir.glob("packages*"))) == (0, [], [])


def test_the_programs_of_all_packages_are_on_the_path(stage: Stage, index: PackageIndex) -> None:
    need("npm", "node")
    index.add_npm("pocket-mcp", "1.0.0")
    path = about(stage, stage.up("anna", **NPX, env={"PATH": f"/first:{PATH}"}))["path"].split(":")
    assert path[0].endswith("node_modules/.bin")
    assert path[1] == "/first"


def test_a_version_that_the_manifest_leaves_open_stays_until_somebody_deletes_the_lock(
    stage: Stage, index: PackageIndex
) -> None:
    need("npm", "node")
    index.add_npm("pocket-mcp", "1.0.0")
    member = stage.up("anna", **NPX)
    index.add_npm("pocket-mcp", "2.0.0")
    shutil.rmtree(stage.data_dir / "packages")
    assert about(stage, restarted(stage, member))["version"] == "1.0.0"
    relock(row(member))
    assert row(member).restart_requested_at is not None
    assert about(stage, restarted(stage, member))["version"] == "2.0.0"
    assert AuditEntry.objects.filter(kind="packages_unlocked", member="anna").count() == 1


def test_other_packages_get_another_lock_and_the_old_ones_their_old_lock(stage: Stage, index: PackageIndex) -> None:
    need("npm", "node")
    index.add_npm("pocket-mcp", "1.0.0")
    index.add_npm("pocket-mcp", "2.0.0")
    member = stage.up("anna", **{**NPX, "args": ["pocket-mcp@^1"]})
    stage.write_manifest("anna", **{**NPX, "args": ["pocket-mcp@2"]})
    assert about(stage, restarted(stage, member))["version"] == "2.0.0"
    index.add_npm("pocket-mcp", "1.1.0")
    stage.write_manifest("anna", **{**NPX, "args": ["pocket-mcp@^1"]})
    assert about(stage, restarted(stage, member))["version"] == "1.0.0"
    assert PackageLock.objects.count() == 2


def test_a_folder_with_a_missing_package_is_installed_again(stage: Stage, index: PackageIndex) -> None:
    need("npm", "node")
    index.add_npm("dependency", "1.0.0", {"index.js": ""})
    index.add_npm("pocket-mcp", "1.0.0", dependencies={"dependency": "1"})
    member = stage.up("anna", **NPX)
    (package,) = stage.data_dir.glob("packages/anna/*/node_modules/dependency")
    shutil.rmtree(package)
    assert restarted(stage, member).status == Status.CONNECTED
    assert (package / "package.json").exists()
    (place,) = stage.data_dir.glob("packages/anna/*")
    assert place.stat().st_mode & 0o777 == 0o700


def test_another_node_installs_what_is_in_the_row(stage: Stage, index: PackageIndex, tmp_path: Path) -> None:
    need("npm", "node")
    index.add_npm("pocket-mcp", "1.0.0")
    member = stage.up("anna", **NPX)
    index.add_npm("pocket-mcp", "2.0.0")
    stage.lifecycle.stop(member.pk)
    other = stage.make_lifecycle(data_dir=tmp_path / "other")
    other.start(member.pk)
    assert (row(member).status, PackageLock.objects.count()) == (Status.CONNECTED, 1)
    names = [path.name for path in (tmp_path / "other" / "packages" / "anna").iterdir()]
    assert names == [PackageLock.objects.get().digest]
    other.stop(member.pk)


# Attacks ----------------------------------------------------------------------------------------------------------


def test_install_scripts_run_only_if_the_manifest_allows_them(
    stage: Stage, index: PackageIndex, tmp_path: Path
) -> None:
    need("npm", "node")
    scripts = {"postinstall": f"touch ran; touch {tmp_path}/outside; env > variables"}
    index.add_npm("pocket-mcp", "1.0.0", scripts=scripts)
    member = stage.up("anna", **NPX, sandbox="on")
    (package,) = stage.data_dir.glob("packages/anna/*/node_modules/pocket-mcp")
    assert not (package / "ran").exists()
    report = package_report(row(member))
    assert report is not None
    assert report.scripts == ("pocket-mcp",)
    stage.write_manifest("anna", **SCRIPTS, sandbox="on")
    assert restarted(stage, member).status == Status.CONNECTED
    (package,) = stage.data_dir.glob("packages/anna/*-with-scripts/node_modules/pocket-mcp")
    assert (package / "ran").exists()
    if "files" not in probe().gaps:
        assert not (tmp_path / "outside").exists()
        assert f"HOME={stage.data_dir}/sandboxes/anna/home" in (package / "variables").read_text()


def test_a_package_that_must_be_built_needs_the_permission_for_scripts(
    stage: Stage, index: PackageIndex, tmp_path: Path
) -> None:
    need("uv")
    code = f"for place in {str(tmp_path / 'outside')!r}, {str(tmp_path / 'data' / 'packages' / 'x')!r}, 'inside':\n"
    code += "    try:\n        pathlib.Path(place).write_text('')\n    except OSError:\n        pass"
    index.add_source("pocket-mcp", "1.0.0", "pocket-mcp", code)
    member = stage.add("anna", **UVX, sandbox="on")
    assert "its packages could not be installed" in failed(stage, member)
    assert not (tmp_path / "outside").exists()
    stage.write_manifest("anna", **{**UVX, "packages": "locked-with-scripts"}, sandbox="on")
    stage.lifecycle.start(member.pk)
    assert (row(member).status, row(member).last_error) == (Status.CONNECTED, "")
    assert PackageLock.objects.get().specification == "pypi pocket-mcp (may be built)"
    assert list(
        (stage.data_dir / "sandboxes" / "anna" / "home").rglob("uv")
    )  # it was built with the home of the member
    if "files" not in probe().gaps:
        assert not (tmp_path / "outside").exists()
        assert not (tmp_path / "data" / "packages" / "x").exists()


def test_an_install_script_cannot_lead_the_hall_to_another_file(
    stage: Stage, index: PackageIndex, tmp_path: Path
) -> None:
    need("npm", "node")
    (tmp_path / "precious").write_text("precious")
    index.add_npm(
        "pocket-mcp",
        "1.0.0",
        scripts={"postinstall": f"ln -s {tmp_path}/precious ../../installed.json; chmod 777 ../.."},
    )
    stage.up("anna", **SCRIPTS)
    (place,) = stage.data_dir.glob("packages/anna/*")
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (place / "installed.json").is_symlink()
    assert place.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["npm", "uv"])
def test_a_package_that_is_not_that_of_the_lock_is_refused(
    stage: Stage, index: PackageIndex, tmp_path: Path, kind: str
) -> None:
    need(kind, "node")
    tarball = index.add_npm("pocket-mcp", "1.0.0")
    wheel = index.add_wheel("pocket-mcp", "1.0.0", program="pocket-mcp")
    path, manifest = (tarball, NPX) if kind == "npm" else (wheel, UVX)
    member = stage.up("anna", **manifest)
    stage.lifecycle.stop(member.pk)
    shutil.rmtree(stage.data_dir / "packages")
    shutil.rmtree(tmp_path / "home")
    (tmp_path / "home").mkdir()
    other = index.add_npm("other", "1.0.0") if kind == "npm" else index.add_wheel("other", "1.0.0", program="x")
    index.files[path] = index.files[other]
    error = failed(stage, member)
    assert "its packages could not be installed" in error
    assert ("EINTEGRITY" if kind == "npm" else "Hash mismatch") in error or "hash" in error.lower()


def test_a_dependency_that_has_no_hash_is_refused(stage: Stage, index: PackageIndex, tmp_path: Path) -> None:
    need("npm", "node")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "package.json").write_text('{"name": "folder", "version": "1.0.0"}')
    index.add_npm("pocket-mcp", "1.0.0", dependencies={"folder": f"file:{tmp_path}/folder"})
    assert "its packages could not be installed" in failed(stage, stage.add("anna", **NPX))
    assert PackageLock.objects.count() == 0
    index.add_npm("pocket-mcp", "1.0.1", dependencies={"repository": "git+ssh://git@127.0.0.1:1/x.git"})
    assert "its packages could not be installed" in failed(stage, GuildMember.objects.get())


@pytest.mark.parametrize("name", ["../../../escaped", "..", "/escaped"])
def test_a_program_with_a_path_for_a_name_is_refused(
    stage: Stage, index: PackageIndex, tmp_path: Path, name: str
) -> None:
    need("npm", "node")
    index.add_npm("pocket-mcp", "1.0.0", bin={name: "server.js"})
    stage.lifecycle.start(stage.add("anna", **NPX).pk)
    assert not list(tmp_path.rglob("escaped"))[1:]
    for file in tmp_path.rglob("escaped"):
        assert file.parent.name == ".bin"  # npm has made a harmless name of it


def test_a_program_outside_of_its_package_is_refused(stage: Stage, index: PackageIndex, tmp_path: Path) -> None:
    need("npm", "node")
    (tmp_path / "outside.js").write_text("#!/bin/sh\ntouch ran\n")
    index.add_npm("pocket-mcp", "1.0.0", bin={"pocket-mcp": "../../../../../outside.js"})
    assert "no program" in failed(stage, stage.add("anna", **NPX))


def test_a_lock_whose_text_was_changed_is_not_used(stage: Stage, index: PackageIndex) -> None:
    need("npm", "node")
    index.add_npm("pocket-mcp", "1.0.0")
    member = stage.up("anna", **NPX)
    PackageLock.objects.update(text=PackageLock.objects.get().text.replace("1.0.0", "1.0.1"))
    stage.lifecycle.stop(member.pk)
    assert "guildhall relock anna" in failed(stage, member)


def test_a_program_of_the_member_is_never_taken_for_npm(
    stage: Stage, index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stage.members_dir / "anna" / "sub"
    program(tmp_path, monkeypatch, "npm", "echo npm of the hall; exit 3")
    member = stage.add("anna", **NPX, env={"PATH": str(folder)})
    folder.mkdir()
    (folder / "npm").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (folder / "npm").chmod(0o755)
    assert "npm of the hall" in failed(stage, member)
    assert not (tmp_path / "ran").exists()


# Installers that fail ---------------------------------------------------------------------------------------------


def test_a_missing_installer_is_named(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    member = stage.add("anna", **UVX)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "uv is not on the PATH of the hall; install uv" in failed(stage, member)


def test_an_installer_that_fails_is_quoted_without_secrets(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://anna:geheim-1234@127.0.0.1:9")
    monkeypatch.setenv("npm_config__authToken", "token-5678-token")
    monkeypatch.setenv("GUILD_HALL_MEMBER_KEY", "member-9012-key")
    program(tmp_path, monkeypatch, "npm", "env; echo the registry is closed; exit 7")
    error = failed(stage, stage.add("anna", **NPX, env={"OWN": "own-value"}))
    assert "npm ended with exit code 7" in error
    assert "the registry is closed" in error
    written = error + "".join(path.read_text() for path in stage.data_dir.rglob("*.log*"))
    assert "HTTPS_PROXY=http://anna:***@127.0.0.1:9" in written
    for secret in ("geheim", "token-5678", "member-9012", "own-value", "GUILD_HALL_SECRET"):
        assert secret not in written


def test_an_installer_that_hangs_is_killed_with_its_children(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "INSTALL_SECONDS", 1.0)
    program(tmp_path, monkeypatch, "npm", "setsid sleep 600 & trap '' TERM; sleep 600")
    assert "it took longer than 1 s" in failed(stage, stage.add("anna", **NPX))


def test_an_installer_that_writes_without_end_is_killed_and_its_log_is_bounded(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "INSTALL_SECONDS", 2.0)
    program(tmp_path, monkeypatch, "npm", "yes 'a line without end'")
    assert "it took longer than 2 s" in failed(stage, stage.add("anna", **NPX))
    assert sum(path.stat().st_size for path in stage.data_dir.rglob("*.log*")) < 5_000_000
    assert len(row(GuildMember.objects.get()).last_error) < 100_000


def test_an_installation_that_fills_the_disk_is_ended(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "MAX_BYTES", 1_000_000)
    monkeypatch.setattr(steps, "SIZE_SECONDS", 0.1)
    program(tmp_path, monkeypatch, "npm", "head -c 5000000 /dev/zero > big; sleep 600")
    assert "more than 1,000,000 bytes" in failed(stage, stage.add("anna", **NPX))
    assert not list(stage.data_dir.rglob("big"))


def test_a_stop_ends_an_installation(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, "npm", "echo downloads; sleep 600")
    member = stage.add("anna", **NPX)
    thread = in_thread(lambda: stage.lifecycle.start(member.pk))
    eventually(lambda: len(stage.processes()) > 0, what="the installer runs")

    def shows_it() -> bool:
        stage.lifecycle.write_progress()
        return row(member).progress == "installs its packages: downloads"

    eventually(shows_it, what="the row says what happens")
    stage.lifecycle.abort_start(member.pk)
    thread.join(20)
    assert (row(member).status, stage.processes()) == (Status.DISCONNECTED, [])
    assert history(member)[-1].endswith("-> disconnected: stop")
    assert list(stage.data_dir.glob("packages/anna/*")) == []


def test_the_end_of_a_runtime_ends_its_installations(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, monkeypatch, "npm", "sleep 600")
    member = stage.add("anna", **NPX)
    thread = in_thread(lambda: stage.lifecycle.start(member.pk))
    eventually(lambda: len(stage.processes()) > 0, what="the installer runs")
    stage.lifecycle.kill_everything()
    thread.join(20)
    assert (row(member).status, stage.processes()) == (Status.DISCONNECTED, [])


def test_only_some_installations_run_at_the_same_time(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, monkeypatch, "npm", "sleep 600")
    members = [stage.add(f"anna{number}", **NPX) for number in range(installer.MAX_INSTALLATIONS + 1)]
    threads = [in_thread(lambda pk=member.pk: stage.lifecycle.start(pk)) for member in members]  # type: ignore[misc]

    def waiting() -> list[GuildMember]:
        stage.lifecycle.write_progress()
        return [member for member in members if row(member).progress == "waits for other installations"]

    eventually(lambda: len(waiting()) == 1 and len(stage.processes()) >= installer.MAX_INSTALLATIONS)
    for member in members:
        stage.lifecycle.abort_start(member.pk)
    for thread in threads:
        thread.join(30)
    assert {row(member).status for member in members} == {Status.DISCONNECTED}


# Rows and folders -------------------------------------------------------------------------------------------------


def store(stage: Stage, member: GuildMember, text: str, specification: str = "npm pocket-mcp") -> PackageLock:
    return locks.store(member, specification, text, LockFacts("1.0.0", 1), stage.lifecycle.own_row)


def test_of_two_locks_for_the_same_packages_the_first_wins(stage: Stage) -> None:
    member = stage.add("anna", **NPX)
    first = store(stage, member, "first")
    assert store(stage, member, "second").pk == first.pk
    assert PackageLock.objects.get().text == "first"
    assert AuditEntry.objects.filter(kind="packages_locked").count() == 1


def test_a_runtime_without_its_lease_stores_no_lock(stage: Stage) -> None:
    member = stage.add("anna", **NPX)
    GuildMember.objects.update(lease_id=None)
    with pytest.raises(McpRuntimeError, match="lost its lease"):
        store(stage, member, "text")
    assert PackageLock.objects.count() == 0


def test_housekeeping_deletes_what_no_member_uses(stage: Stage) -> None:
    anna, bob = stage.add("anna", **NPX), stage.add("bob", **NPX)
    used, unused, of_removed = store(stage, anna, "a"), store(stage, anna, "b", "npm other"), store(stage, bob, "c")
    places = {
        lock.pk: folders.place_of(stage.data_dir, lock.member.name, lock.digest, with_scripts=False)
        for lock in (used, unused, of_removed)
    }
    left = stage.data_dir / "packages" / "anna" / ".unfinished-x"
    young = stage.data_dir / "packages" / "anna" / "young"
    for place in (*places.values(), left, young):
        (place / "sub").mkdir(parents=True)
    for place in (*places.values(), left):
        os.utime(place, (0, 0))
    GuildMember.objects.filter(name="bob").update(removed_at=timezone.now())
    installer.delete_unused(stage.data_dir)
    assert PackageLock.objects.count() == 3  # an edit may be taken back, and a removed member may be restored
    assert sorted((stage.data_dir / "packages").rglob("*")) == sorted(
        [stage.data_dir / "packages" / "anna", places[used.pk], places[used.pk] / "sub", young, young / "sub"]
    )
    PackageLock.objects.update(used_at=timezone.now() - 2 * PackageLock.KEEP)
    installer.delete_unused(stage.data_dir)
    assert list(PackageLock.objects.all()) == [used]


def test_a_report_names_what_will_be_locked_and_what_is(stage: Stage) -> None:
    member = stage.add("anna", **NPX)
    report = package_report(member)
    assert report is not None
    assert report.summary == "npm pocket-mcp, locked and installed at the first start"
    lock = store(stage, member, "text")
    report = package_report(member)
    assert report is not None
    assert (report.sha256, report.version, report.count, report.node) == (lock.digest, "1.0.0", 1, lock.node)
    assert package_report(stage.add("bob")) is None


def test_a_member_without_locked_packages_has_nothing_to_lock_again(stage: Stage) -> None:
    with pytest.raises(RequestRefusedError, match="has no lock"):
        relock(stage.add("anna"))


def test_a_disabled_member_gets_another_lock_when_it_starts(stage: Stage) -> None:
    member = stage.add("anna", **NPX, enabled=False)
    store(stage, member, "text")
    relock(row(member))
    assert (PackageLock.objects.count(), row(member).restart_requested_at) == (0, None)


def test_only_a_whole_folder_of_the_hall_counts_as_installed(tmp_path: Path) -> None:
    place = tmp_path / "packages" / "anna" / "digest"
    with folders.unfinished(place.parent) as folder:
        (folder / "file").write_text("")
        folders.finish(folder, place, ["file"])
    assert folders.is_complete(place)
    assert [path.name for path in place.parent.iterdir()] == ["digest"]
    (place / "file").unlink()
    assert not folders.is_complete(place)
    (place / "file").write_text("")
    place.chmod(0o755)
    assert not folders.is_complete(place)
    place.chmod(0o700)
    (place / "installed.json").unlink()
    os.mkfifo(place / "installed.json")
    assert not folders.is_complete(place)
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    assert not folders.is_complete(place)
    with folders.unfinished(place.parent) as folder:
        (folder / "file").write_text("")
        folders.finish(folder, place, ["file"])
    assert folders.is_complete(place)
    assert (tmp_path / "elsewhere").exists()


def test_an_installation_that_ends_early_leaves_nothing(tmp_path: Path) -> None:
    parent = tmp_path / "packages" / "anna"
    (parent / ".unfinished-of-a-killed-one" / "x").mkdir(parents=True)
    with folders.unfinished(parent) as folder:
        (folder / "file").write_text("")
        assert [path.name for path in parent.iterdir()] == [folder.name]
    assert list(parent.iterdir()) == []
    assert parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["evil.pth", "sitecustomize.py"])
def test_code_of_a_wheel_runs_only_in_the_sandbox(
    stage: Stage, index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The Python of an environment runs such files whenever it starts, also to compile other files."""
    need("uv")
    if not probe().landlock:
        pytest.skip("this machine has no Landlock")
    monkeypatch.setenv("UV_INDEX_OTHER_PASSWORD", "canary-4711")
    canary = tmp_path / "canary"
    path = index.add_wheel("pocket-mcp", "1.0.0", program="pocket-mcp")
    code = f"import os; open({str(canary)!r}, 'a').write(str(os.environ))\n"
    index.files[path] = with_file(index.files[path], name, code)
    stage.lifecycle.start(stage.add("anna", **UVX, sandbox="on").pk)
    assert row(GuildMember.objects.get()).status == Status.CONNECTED
    assert not canary.exists()


def with_file(wheel: bytes, name: str, text: str) -> bytes:
    """The wheel with one more file, which its list names too."""
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(wheel)) as old, zipfile.ZipFile(result, "w") as new:
        for entry in old.namelist():
            more = f"{name},,\n".encode() if entry.endswith("/RECORD") else b""
            new.writestr(entry, old.read(entry) + more)
        new.writestr(name, text)
    return result.getvalue()


def test_steps_that_run_packages_get_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("npm_config__auth", "canary-4711")
    monkeypatch.setenv("npm_config_registry", "https://bob:canary-4712@example.com/")
    monkeypatch.setenv("npm_config_cache", "/cache")
    assert steps.tool_environment("npm_config_")["npm_config__auth"] == "canary-4711"
    assert steps.tool_environment("npm_config_", runs_packages=True).get("npm_config_cache") == "/cache"
    assert "canary" not in str(steps.tool_environment("npm_config_", runs_packages=True))


def test_a_package_of_another_address_or_a_file_is_refused(stage: Stage, index: PackageIndex, tmp_path: Path) -> None:
    need("npm", "node")
    (tmp_path / "private").mkdir()
    archive = tmp_path / "private" / "x.tgz"
    archive.write_bytes(index.files[index.add_npm("private", "1.0.0")])
    index.add_npm("pocket-mcp", "1.0.0", dependencies={"private": f"file:{archive}"})
    assert failed(stage, stage.add("anna", **NPX))
    assert PackageLock.objects.count() == 0


def test_a_look_up_leaves_an_installation_alone(stage: Stage, index: PackageIndex) -> None:
    need("npm", "node")
    index.add_npm("pocket-mcp", "1.0.0")
    member = stage.add("anna", **NPX)
    folder = folders.folder_of(stage.data_dir, "anna")
    with folders.unfinished(folder) as unfinished:
        starter = stage.lifecycle._starter
        assert starter.newest_version(member, Manifest.from_json(member.manifest)) == "1.0.0"
        assert unfinished.exists()

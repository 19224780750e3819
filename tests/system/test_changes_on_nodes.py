"""What people change in the browser reaches the folders of all nodes: new members, packages, edits, removals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roster.models import GuildMember, ManifestEdit, PackageLock, TrashedMember
from tests.conftest import eventually, needs_program
from tests.support.bundles import node_bundle
from tests.support.hall import PATIENCE, call, wait_for_status
from tests.support.nodes import Machine, on_postgresql, owner_of, two_nodes
from tests.support.package_index import package_index

pytestmark = [pytest.mark.services, on_postgresql]


def manifest(machine: Machine, name: str) -> dict[str, Any]:
    return dict(json.loads((machine.members_dir / name / "guild-member.json").read_text()))


def move(name: str, machine: Machine) -> None:
    """Move the member, and wait until it answers there."""
    # The folder is there a moment before its node says so.
    eventually(lambda: machine.manage("move_member", name, machine.name, "--force").returncode == 0, within=PATIENCE)
    eventually(lambda: owner_of(name) == machine.name, within=PATIENCE, what=machine.output())
    wait_for_status(machine, name, "connected", within=PATIENCE)


def manage(machine: Machine, *argv: str) -> str:
    result = machine.manage(*argv)
    assert result.returncode == 0, result.stderr
    return result.stdout


def text_of(name: str, tool: str, arguments: dict[str, Any]) -> str:
    done = call(name, tool, arguments)
    assert done.status == "succeeded", done.error_message
    return str(done.result["content"][0]["text"])


def test_a_bundle_is_unpacked_on_every_node_also_on_one_that_was_away(
    make_node: Callable[[str], Machine], tmp_path: Path
) -> None:
    needs_program("node")
    first, second = two_nodes(make_node, "other")
    (tmp_path / "echo.mcpb").write_bytes(node_bundle())
    second.kill()
    manage(first, "add_member", str(tmp_path / "echo.mcpb"), "--set", "greeting=hello")
    assert not (first.members_dir / "echo").exists()
    manage(first, "add_member", "echo", "--approve")
    (tmp_path / "echo.mcpb").unlink()
    wait_for_status(first, "echo", "connected", within=PATIENCE)
    assert owner_of("echo") == "first"
    assert not (second.members_dir / "echo").exists()
    second.run()
    eventually(lambda: (second.members_dir / "echo").exists(), within=PATIENCE, what=second.output())
    answer = text_of("echo", "greet", {})
    move("echo", second)
    assert text_of("echo", "greet", {}) == answer


def test_every_node_installs_the_locked_version_although_a_newer_one_was_published_between(
    make_node: Callable[[str], Machine], tmp_path: Path
) -> None:
    needs_program("npm")

    def versions(machine: Machine) -> set[str]:
        places = machine.data_dir.glob("packages/pocket/*/node_modules/pocket-mcp/package.json")
        return {json.loads(place.read_text())["version"] for place in places}

    with package_index() as index:
        index.add_npm("pocket-mcp", "1.0.0")

        def make(name: str) -> Machine:
            machine = make_node(name)
            home = tmp_path / f"home-of-{name}"
            home.mkdir()
            machine.more_environment = {"HOME": str(home), "npm_config_registry": index.url}
            return machine

        first, second = two_nodes(make, "other")
        manage(first, "add_member", "npx -y pocket-mcp")
        manage(first, "add_member", "pocket", "--approve")
        wait_for_status(first, "pocket", "connected", within=2 * PATIENCE)
        owner = owner_of("pocket")
        away = second if owner == "first" else first
        index.add_npm("pocket-mcp", "1.1.0")
        move("pocket", away)
        assert json.loads(text_of("pocket", "about", {}))["version"] == "1.0.0"
        assert versions(first) == versions(second) == {"1.0.0"}
        assert PackageLock.objects.count() == 1
        index.requests.clear()
    move("pocket", first if away is second else second)  # it is installed there, so no registry is needed
    assert json.loads(text_of("pocket", "about", {}))["version"] == "1.0.0"


def test_an_edit_is_written_on_every_node_and_taken_back_on_every_node(make_node: Callable[[str], Machine]) -> None:
    first, second = two_nodes(make_node, "movable")
    second.kill()
    manage(first, "edit_member", "movable", "--set", "description=after", "--approve")
    eventually(lambda: manifest(first, "movable").get("description") == "after", within=PATIENCE, what=first.output())
    half = {"first": "", "second": ManifestEdit.NOT_YET}
    eventually(lambda: ManifestEdit.objects.get().nodes == half, within=PATIENCE)
    edit = ManifestEdit.objects.get()
    assert "description" not in manifest(second, "movable")
    second.run()
    eventually(lambda: manifest(second, "movable") == manifest(first, "movable"), within=PATIENCE, what=second.output())
    eventually(lambda: ManifestEdit.objects.get().nodes == {"first": "", "second": ""}, within=PATIENCE)
    move("movable", second)
    manage(second, "edit_member", "movable", "--undo", str(edit.pk))
    for machine in (first, second):
        eventually(lambda machine=machine: "description" not in manifest(machine, "movable"), within=PATIENCE)
    assert text_of("movable", "echo", {"text": "hi"}) == "hi"


def test_an_edit_that_one_node_cannot_write_is_written_by_the_others_and_says_which_node_cannot(
    make_node: Callable[[str], Machine],
) -> None:
    first, second = two_nodes(make_node, "movable")
    path = second.members_dir / "movable/guild-member.json"
    right = path.read_text()
    path.write_text("{")
    manage(first, "edit_member", "movable", "--set", "description=after", "--approve")
    eventually(lambda: manifest(first, "movable").get("description") == "after", within=PATIENCE, what=first.output())
    eventually(lambda: str(path) in ManifestEdit.objects.get().nodes["second"], within=PATIENCE, what=second.output())
    eventually(lambda: ManifestEdit.objects.get().nodes["first"] == "", within=PATIENCE)
    assert path.read_text() == "{"
    path.write_text(right)
    eventually(lambda: manifest(second, "movable").get("description") == "after", within=PATIENCE, what=second.output())
    assert GuildMember.objects.get(name="movable").status == "connected"


def test_a_removed_member_is_in_the_trash_of_every_node_and_comes_back_on_every_node(
    make_node: Callable[[str], Machine],
) -> None:
    first, second = two_nodes(make_node, "movable")
    (second.members_dir / "movable/own.txt").write_text("only here")
    second.kill()
    manage(first, "remove_member", "movable")
    eventually(lambda: not (first.members_dir / "movable").exists(), within=PATIENCE, what=first.output())
    assert (second.members_dir / "movable").exists()
    second.run()
    eventually(lambda: not (second.members_dir / "movable").exists(), within=PATIENCE, what=second.output())
    eventually(lambda: GuildMember.objects.get(name="movable").removed_at is not None, within=PATIENCE)
    row = TrashedMember.objects.get()
    eventually(lambda: TrashedMember.objects.get().nodes == {"first": "", "second": ""}, within=PATIENCE)
    manage(second, "trash", "--restore", str(row.pk))
    for machine in (first, second):
        eventually(lambda machine=machine: (machine.members_dir / "movable").exists(), within=PATIENCE)
    assert (second.members_dir / "movable/own.txt").read_text() == "only here"
    wait_for_status(first, "movable", "connected", within=PATIENCE)
    assert text_of("movable", "echo", {"text": "back"}) == "back"


def test_a_node_that_joins_later_gets_the_bundles_but_not_the_edits_of_files_that_it_brings(
    make_node: Callable[[str], Machine], tmp_path: Path
) -> None:
    """Its own file may be newer than the edit. A member from a bundle has no other source than the hall."""
    needs_program("node")
    first, second = two_nodes(make_node, "movable")
    (tmp_path / "echo.mcpb").write_bytes(node_bundle())
    manage(first, "add_member", str(tmp_path / "echo.mcpb"), "--set", "greeting=hello")
    manage(first, "add_member", "echo", "--approve")
    manage(first, "edit_member", "movable", "--set", "description=after", "--approve")
    for machine in (first, second):
        eventually(lambda machine=machine: manifest(machine, "movable").get("description") == "after", within=PATIENCE)
        eventually(lambda machine=machine: (machine.members_dir / "echo").exists(), within=PATIENCE)
    third = make_node("third")
    shutil.copytree(first.members_dir / "movable", third.members_dir / "movable")
    path = third.members_dir / "movable/guild-member.json"
    own = json.dumps({**json.loads(path.read_text()), "description": "newer"})
    path.write_text(own)
    third.run()
    eventually(lambda: (third.members_dir / "echo").exists(), within=PATIENCE, what=third.output())
    move("echo", third)
    assert text_of("echo", "greet", {})
    assert path.read_text() == own

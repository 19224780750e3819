"""Members folders on several machines become one roster. Each machine decides about the members of its own node."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from mcp_runtime.control.members import sync_roster
from mcp_runtime.members import discovery, disk
from mcp_runtime.members.folders import TOO_LARGE, FolderDigest, FolderDigests
from mcp_runtime.members.manifest.files import FILE_NAME
from roster.models import GuildMember, Node

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor == "sqlite", reason="a hall on SQLite has one node"),
]


@dataclass
class Machine:
    """A machine with a members folder. With `has_node`, a runtime is alive on it."""

    name: str
    members_dir: Path
    settings: Any
    has_node: bool = True

    def __post_init__(self) -> None:
        self.members_dir.mkdir()
        if self.has_node:
            Node.objects.create(name=self.name, lease_id=uuid.uuid4())

    @property
    def node(self) -> Node:
        return Node.objects.get(name=self.name)

    @property
    def folders(self) -> dict[str, str]:
        folders: dict[str, str] = self.node.folders
        return folders

    def write(self, path: str, text: str = "", /, **changes: Any) -> None:
        values = {
            "name": Path(path).name,
            "version": "1.0.0",
            "transport": "http",
            "command": "python3",
            "args": ["server.py", "${PORT}"],
            "node": {"state": "none"},
            **changes,
        }
        folder = self.members_dir / path
        folder.mkdir(exist_ok=True)
        (folder / FILE_NAME).write_text(text or json.dumps(values))

    def remove(self, path: str) -> None:
        shutil.rmtree(self.members_dir / path)

    def sync(self) -> str:
        self.settings.GUILD_HALL_NODE = self.name
        return str(discovery.sync(self.members_dir))

    def note_folders(self) -> discovery.SyncReport | None:
        self.settings.GUILD_HALL_NODE = self.name
        return discovery.note_folders(self.members_dir)

    def own(self, *names: str) -> None:
        assert GuildMember.objects.filter(name__in=names).update(node=self.node) == len(names)


MachineFactory = Callable[..., Machine]


@pytest.fixture
def machine(tmp_path: Path, settings: Any) -> MachineFactory:
    return lambda name, has_node=True: Machine(name, tmp_path / name, settings, has_node)


@pytest.fixture
def a(machine: MachineFactory) -> Machine:
    return machine("a")


@pytest.fixture
def b(machine: MachineFactory) -> Machine:
    return machine("b")


def row_of(name: str) -> GuildMember:
    return GuildMember.objects.get(name=name)


def names_in_roster() -> list[str]:
    return list(GuildMember.objects.filter(removed_at=None).values_list("name", flat=True))


# One node ---------------------------------------------------------------------------------------------------------


def test_a_hall_with_one_node_computes_no_digest_and_only_asks_twice_for_others(
    a: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FolderDigests, "compute", lambda *_: pytest.fail("a digest was computed"))
    a.write("echo")
    a.sync()
    a.own("echo")
    with CaptureQueriesContext(connection) as queries:
        assert a.sync() == "nothing changed"
    assert sum('"roster_node"' in query["sql"] for query in queries) == 2
    assert a.note_folders() is None
    assert (a.folders, row_of("echo").digest) == ({}, "")
    a.remove("echo")
    assert a.sync() == "1 removed: echo"


# New members ------------------------------------------------------------------------------------------------------


def test_members_of_all_machines_are_in_the_roster(a: Machine, b: Machine) -> None:
    a.write("on-a")
    a.write("on-both")
    b.write("on-b")
    b.write("on-both")
    assert a.sync() == "2 added: on-a, on-both"
    assert b.sync() == "1 added: on-b"
    assert a.sync() == b.sync() == "nothing changed"
    assert names_in_roster() == ["on-a", "on-b", "on-both"]
    assert (set(a.folders), set(b.folders)) == ({"on-a", "on-both"}, {"on-b", "on-both"})
    assert a.folders["on-both"] == b.folders["on-both"] == row_of("on-both").digest != ""


def test_a_new_member_leaves_the_roster_when_no_machine_has_its_folder(a: Machine, b: Machine) -> None:
    for either in (a, b):
        either.write("echo")
        either.sync()
    a.remove("echo")
    assert a.sync() == "nothing changed"
    assert (a.folders, set(b.folders)) == ({}, {"echo"})
    b.remove("echo")
    assert b.sync() == "1 removed: echo"


def test_folders_with_faults_stay_in_the_roster_of_all(a: Machine, b: Machine) -> None:
    a.write("broken", "{")
    a.write("empty", " ")
    b.write("broken")
    assert a.sync() == "2 added: broken, empty; 2 faulty: broken, empty"
    assert b.sync() == "1 changed: broken"
    assert a.sync() == b.sync() == "nothing changed"  # the valid folder counts
    assert (a.folders, row_of("broken").digest) == ({"broken": "", "empty": ""}, b.folders["broken"])
    assert row_of("empty").manifest_error != ""
    a.remove("empty")
    assert a.sync() == "1 removed: empty"


# Members with a node ----------------------------------------------------------------------------------------------


def test_a_disk_does_not_touch_the_members_of_another_node(a: Machine, b: Machine) -> None:
    names = ("edited", "broken", "absent")
    for name in names:
        a.write(name)
    a.sync()
    a.own(*names)
    before = list(GuildMember.objects.values())
    b.write("edited", version="2.0.0")
    b.write("broken", "{")
    assert b.sync() == "nothing changed"
    assert list(GuildMember.objects.values()) == before
    assert b.folders["broken"] == ""
    assert b.folders["edited"] not in ("", a.folders["edited"])
    assert set(b.folders) == {"edited", "broken"}


def test_a_fault_is_noted_on_the_own_member_although_another_node_uses_the_same_path(a: Machine, b: Machine) -> None:
    b.write("folder", name="b-member")
    b.sync()
    b.own("b-member")
    a.write("folder", name="own-member")
    a.sync()
    a.own("own-member")
    a.write("folder", "{")
    assert a.sync() == "1 changed: own-member; 1 faulty: own-member"
    assert (row_of("own-member").manifest_error != "", row_of("b-member").manifest_error) == (True, "")


def test_the_owner_changes_and_removes_its_members(a: Machine, b: Machine) -> None:
    a.write("echo")
    a.write("gone")
    a.sync()
    a.own("echo", "gone")
    a.write("echo", version="2.0.0")
    a.remove("gone")
    assert a.sync() == "1 changed: echo; 1 removed: gone"
    assert (row_of("echo").version, row_of("echo").digest) == ("2.0.0", a.folders["echo"])
    assert b.sync() == "nothing changed"


def test_a_removed_member_returns_with_a_folder_on_any_machine_which_then_gets_it(a: Machine, b: Machine) -> None:
    a.write("echo")
    a.sync()
    a.own("echo")
    a.remove("echo")
    a.sync()
    b.write("echo")
    assert b.sync() == "1 added: echo"
    assert a.sync() == "1 leaving: echo"
    assert (row_of("echo").requested_node, names_in_roster()) == (b.node, ["echo"])


# A folder that is only elsewhere now ------------------------------------------------------------------------------


@pytest.fixture
def lost(a: Machine, b: Machine, machine: MachineFactory) -> Machine:
    """Node c. `echo` is in all three folders, b has another version, and a owns it. Then it is gone from a."""
    c = machine("c")
    for one in (a, b, c):
        one.write("echo", version="old" if one is b else "new", node={"labels": ["gpu"]})
        one.sync()
    Node.objects.update(labels=["gpu", "eu"])
    a.own("echo")
    a.sync()
    a.remove("echo")
    return c


def test_a_member_whose_folder_is_gone_goes_to_a_node_with_the_same_files(a: Machine, lost: Machine) -> None:
    assert a.sync() == "1 leaving: echo"
    assert a.sync() == "nothing changed"
    row = row_of("echo")
    assert (row.requested_node, row.node, row.removed_at) == (lost.node, a.node, None)


@pytest.mark.parametrize("obstacle", [{"lease_id": None}, {"is_draining": True}, {"labels": ["eu"]}, {"folders": {}}])
def test_it_goes_to_another_node_if_that_one_cannot_take_it(
    a: Machine, b: Machine, lost: Machine, obstacle: dict[str, Any]
) -> None:
    Node.objects.filter(name="c").update(**obstacle)
    assert a.sync() == "1 leaving: echo"
    assert row_of("echo").requested_node == b.node


def test_it_stays_where_it_is_while_no_node_can_take_it(a: Machine, lost: Machine) -> None:
    Node.objects.exclude(name="a").update(lease_id=None)
    assert a.sync() == "nothing changed"
    assert (row_of("echo").requested_node, names_in_roster()) == (None, ["echo"])


def test_the_choice_of_an_operator_is_not_replaced(a: Machine, b: Machine, lost: Machine) -> None:
    GuildMember.objects.update(requested_node=b.node)
    assert a.sync() == "nothing changed"
    assert row_of("echo").requested_node == b.node


# Digests ----------------------------------------------------------------------------------------------------------


def test_another_file_of_a_member_is_noted_without_a_new_manifest(a: Machine, b: Machine) -> None:
    a.write("echo")
    a.sync()
    a.own("echo")
    before = a.folders["echo"]
    (a.members_dir / "echo" / "server.py").write_text("print(1)")
    assert str(a.note_folders()) == "1 changed: echo"
    assert row_of("echo").digest == a.folders["echo"] != before
    with CaptureQueriesContext(connection) as queries:
        assert str(a.note_folders()) == "nothing changed"
    assert not [query for query in queries if query["sql"].startswith(("UPDATE", "INSERT", "DELETE"))]


def test_files_that_a_member_with_local_state_writes_change_no_digest(a: Machine, b: Machine) -> None:
    a.write("notes", node={})
    a.sync()
    before = a.folders["notes"]
    (a.members_dir / "notes" / "notes.json").write_text("[]")
    assert str(a.note_folders()) == "nothing changed"
    assert a.folders["notes"] == before


def test_a_folder_that_is_too_large_has_a_warning_and_no_digest(
    a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compute(_: FolderDigests, folders: dict[Path, Any]) -> dict[Path, FolderDigest]:
        return dict.fromkeys(folders, TOO_LARGE)

    monkeypatch.setattr(FolderDigests, "compute", compute)
    a.write("echo")
    a.sync()
    assert (a.folders, row_of("echo").digest, row_of("echo").manifest_error) == ({"echo": ""}, "", "")
    assert row_of("echo").manifest_warnings == [TOO_LARGE.fault]
    assert b.sync() == "nothing changed"


def test_other_nodes_know_a_folder_before_its_member_is_in_the_roster(
    a: Machine, b: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders_at_creation = []
    real_create = GuildMember.objects.create

    def create(**values: Any) -> GuildMember:
        folders_at_creation.append(set(a.folders))
        return real_create(**values)

    monkeypatch.setattr(disk.GuildMember.objects, "create", create)
    a.write("echo")
    a.sync()
    assert folders_at_creation == [{"echo"}]


# Machines without a node ------------------------------------------------------------------------------------------


def test_a_machine_without_a_node_removes_nothing(a: Machine, machine: MachineFactory, settings: Any) -> None:
    a.write("owned")
    a.write("new")
    a.sync()
    a.own("owned")
    web = machine("web", has_node=False)
    web.write("owned", version="2.0.0")
    settings.GUILD_HALL_NODE, settings.GUILD_HALL_MEMBERS_DIR = web.name, web.members_dir
    assert str(sync_roster()) == "nothing changed"
    assert names_in_roster() == ["new", "owned"]
    assert list(Node.objects.values_list("name", flat=True)) == ["a"]

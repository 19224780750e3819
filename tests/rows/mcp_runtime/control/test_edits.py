"""Members are edited, with real files. The turns of the supervisor are called one by one."""

from __future__ import annotations

import json
import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from mcp_runtime.control import edits, secrets
from mcp_runtime.control.members import find_member
from mcp_runtime.members import discovery
from mcp_runtime.members import edits as files
from mcp_runtime.protocol.errors import (
    InvalidEditError,
    MemberInUseError,
    RequestRefusedError,
    UnknownEditError,
    UnknownMemberError,
)
from mcp_runtime.security.access import OPERATOR, Principal
from roster.models import Agent, AgentMessage, AuditEntry, GuildMember, ManifestEdit, Node, Secret

pytestmark = pytest.mark.django_db

FILE = {"name": "notes", "version": "1", "transport": "stdio", "command": "serve", "env": {"REGION": "eu"}}
CANARY = "canary-4711-abcdef"


@pytest.fixture
def members_dir(tmp_path: Path) -> Path:
    path = tmp_path / "members"
    (path / "notes").mkdir(parents=True)
    write(path, FILE)
    discovery.sync(path)
    return path


@pytest.fixture
def ada(db: None) -> User:
    return User.objects.create_user("ada")


def write(members_dir: Path, content: Any) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (members_dir / "notes" / "guild-member.json").write_text(text)


def read(members_dir: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((members_dir / "notes" / "guild-member.json").read_text())
    return content


def turn(members_dir: Path) -> None:
    files.write_approved(members_dir)
    discovery.sync(members_dir)
    files.allow_secrets()


def propose(patch: dict[str, Any], by: User | None = None) -> ManifestEdit:
    return edits.propose_edit(find_member("notes"), patch, by)


def edit(members_dir: Path, patch: dict[str, Any], by: User | None = None) -> ManifestEdit:
    row = edits.approve_edit(propose(patch, by), by)
    turn(members_dir)
    row.refresh_from_db()
    return row


def test_an_edit_changes_the_file_when_it_is_approved(members_dir: Path, ada: User) -> None:
    proposed = propose({"timeout": 60, "env": {"LANG": "de"}}, ada)
    turn(members_dir)
    assert (read(members_dir), proposed.state) == (FILE, "proposed")
    edits.approve_edit(proposed, ada)
    turn(members_dir)
    proposed.refresh_from_db()
    assert read(members_dir) == {**FILE, "timeout": 60, "env": {"REGION": "eu", "LANG": "de"}}
    assert (proposed.state, proposed.faults, proposed.approved_by) == ("written", [], ada)
    assert find_member("notes").call_timeout == 60
    turn(members_dir)  # and nothing more
    assert read(members_dir)["timeout"] == 60


def test_an_edit_is_taken_back_by_another_one(members_dir: Path, ada: User) -> None:
    row = edit(members_dir, {"timeout": 60, "env": {"REGION": None}})
    back = edits.undo_edit(row, ada)
    turn(members_dir)
    assert read(members_dir) == FILE
    assert (back.undoes, back.approved_by) == (row, ada)
    with pytest.raises(RequestRefusedError, match=f"taken back by edit {back.pk} already"):
        edits.undo_edit(row, ada)


def test_an_edit_that_is_in_no_file_is_discarded_and_not_taken_back(members_dir: Path) -> None:
    row = propose({"timeout": 60})
    with pytest.raises(RequestRefusedError, match="in no file yet"):
        edits.undo_edit(row, None)
    edits.approve_edit(row, None)
    edits.discard_edit(row)
    turn(members_dir)
    assert read(members_dir) == FILE
    with pytest.raises(UnknownEditError, match="was discarded"):
        edits.approve_edit(row, None)


def test_a_written_edit_cannot_be_discarded_or_approved_again(members_dir: Path) -> None:
    row = edit(members_dir, {"timeout": 60})
    with pytest.raises(RequestRefusedError, match="take it back"):
        edits.discard_edit(row)
    with pytest.raises(RequestRefusedError, match="approved already"):
        edits.approve_edit(row, None)


def test_a_value_that_is_not_valid_is_refused_with_its_key(members_dir: Path) -> None:
    with pytest.raises(InvalidEditError) as refusal:
        propose({"timeout": 0, "max_concurrency": "x", "env": {"GUILD_HALL_X": "1"}})
    assert {fault.path for fault in refusal.value.faults} == {"timeout", "max_concurrency", "env.GUILD_HALL_X"}
    with pytest.raises(InvalidEditError, match="headers: belongs to url"):
        propose({"headers": {"X-A": "1"}})
    with pytest.raises(RequestRefusedError, match="another value"):
        propose({"env": {"REGION": "eu"}})
    assert ManifestEdit.objects.count() == 0


# Somebody else -----------------------------------------------------------------------------------------------------


def test_a_file_that_somebody_changed_by_hand_keeps_its_values_and_the_edit_says_so(members_dir: Path) -> None:
    row = edits.approve_edit(propose({"timeout": 60}), None)
    write(members_dir, {**FILE, "timeout": 50})
    turn(members_dir)
    row.refresh_from_db()
    assert read(members_dir)["timeout"] == 50
    assert "timeout: was changed in the file since" in row.faults[0]
    write(members_dir, FILE)
    turn(members_dir)  # it is tried again
    row.refresh_from_db()
    assert (row.faults, read(members_dir)["timeout"]) == ([], 60)


def test_an_edit_of_values_that_changed_before_its_approval_is_refused(members_dir: Path) -> None:
    row = propose({"timeout": 60})
    write(members_dir, {**FILE, "timeout": 50})
    discovery.sync(members_dir)
    with pytest.raises(RequestRefusedError, match="other values"):
        edits.approve_edit(row, None)


def test_an_edit_of_a_member_that_runs_something_else_now_is_refused(members_dir: Path) -> None:
    row = propose({"timeout": 60})
    write(members_dir, {**FILE, "command": "other"})
    discovery.sync(members_dir)
    with pytest.raises(RequestRefusedError, match="not what it was"):
        edits.approve_edit(row, None)


def test_a_second_edit_waits_until_the_first_one_is_written(members_dir: Path) -> None:
    first, second = propose({"timeout": 60}), propose({"restart": "never"})
    edits.approve_edit(first, None)
    with pytest.raises(RequestRefusedError, match=f"edit {first.pk} of member 'notes' is approved and not written"):
        edits.approve_edit(second, None)
    turn(members_dir)
    edits.approve_edit(second, None)
    turn(members_dir)
    assert read(members_dir) == {**FILE, "timeout": 60, "restart": "never"}


def test_an_edit_that_restarts_a_member_is_refused_while_an_agent_needs_it(members_dir: Path, ada: User) -> None:
    agent = Agent.objects.create(name="anna", created_by=ada)
    agent.members.add(find_member("notes"))
    AgentMessage.objects.create(agent=agent, prompt="hi", timeout=60, source="admin", requester="ada")
    quiet, loud = propose({"timeout": 60}), propose({"args": ["x"]})
    assert (quiet.needs_restart, loud.needs_restart) == (False, True)
    edits.approve_edit(quiet, None)
    turn(members_dir)
    with pytest.raises(MemberInUseError):
        edits.approve_edit(loud, None)
    edits.approve_edit(loud, None, force=True)


def test_edits_of_members_that_are_reserved_for_others_do_not_exist(members_dir: Path) -> None:
    row = propose({"timeout": 60})
    stranger = Principal(1, "bob", closed_members=frozenset({"notes"}))
    assert list(edits.edits_of(stranger)) == []
    with pytest.raises(UnknownEditError):
        edits.find_edit(row.pk, stranger)
    assert edits.find_edit(row.pk, OPERATOR) == row


def test_the_number_of_proposed_edits_is_bounded(members_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ManifestEdit, "MAX_OPEN", 1)
    propose({"timeout": 60})
    with pytest.raises(RequestRefusedError, match="has 1 proposed edits"):
        propose({"timeout": 70})


def test_a_removed_member_is_not_edited(members_dir: Path) -> None:
    row = propose({"timeout": 60})
    GuildMember.objects.update(removed_at=timezone.now())
    for act in (lambda: edits.approve_edit(row, None), lambda: propose({"timeout": 60})):
        with pytest.raises(UnknownMemberError):
            act()


# Secrets -----------------------------------------------------------------------------------------------------------


def test_a_secret_in_an_edit_becomes_a_secret_of_the_hall_that_the_member_may_use(members_dir: Path) -> None:
    row = edit(members_dir, {"env": {"API_TOKEN": CANARY}})
    assert read(members_dir)["env"]["API_TOKEN"] == "${secret:notes-API_TOKEN}"
    need, *others = secrets.needs_of(find_member("notes"))
    assert (need.name, need.fault, others) == ("notes-API_TOKEN", "", [])
    texts = [json.dumps(row.changes), *map(str, AuditEntry.objects.values_list("before", "after"))]
    assert CANARY not in "".join(texts)


def test_a_discarded_edit_deletes_its_secrets(members_dir: Path) -> None:
    row = propose({"env": {"API_TOKEN": CANARY}})
    assert Secret.objects.filter(name="notes-API_TOKEN").exists()
    edits.discard_edit(row)
    assert not Secret.objects.exists()


def test_a_member_may_use_its_secrets_after_an_edit_as_before_and_no_others(members_dir: Path) -> None:
    edit(members_dir, {"env": {"API_TOKEN": CANARY}})
    secrets.set_secret("of-others", "value", None)
    row = edit(members_dir, {"args": ["--verbose"], "env": {"OTHER": "${secret:of-others}"}})
    faults = {need.name: need.fault for need in secrets.needs_of(find_member("notes"))}
    assert faults["notes-API_TOKEN"] == ""
    assert "may not use the secret 'of-others'" in faults["of-others"]
    edits.undo_edit(row, None)
    turn(members_dir)
    assert [need.fault for need in secrets.needs_of(find_member("notes"))] == [""]


def test_a_member_that_was_changed_by_hand_too_must_be_allowed_again(members_dir: Path) -> None:
    edit(members_dir, {"env": {"API_TOKEN": CANARY}})
    edits.approve_edit(propose({"args": ["--verbose"]}), None)
    files.write_approved(members_dir)
    write(members_dir, {**read(members_dir), "command": "evil"})
    discovery.sync(members_dir)
    files.allow_secrets()
    assert "has changed since" in secrets.needs_of(find_member("notes"))[0].fault


def test_clear_values_that_could_be_secrets_are_masked_for_people(members_dir: Path) -> None:
    write(members_dir, {**FILE, "env": {"API_TOKEN": CANARY}})
    discovery.sync(members_dir)
    edit(members_dir, {"env": {"API_TOKEN": None, "REGION": "us"}})
    entry = AuditEntry.objects.filter(kind=AuditEntry.Kind.EDIT_APPROVED).get()
    assert CANARY not in str(entry.before)
    assert entry.after is not None
    assert entry.after["env.REGION"] == "us"


# Files -------------------------------------------------------------------------------------------------------------


def test_a_faulty_file_is_repaired_by_values_that_replace_its_own(members_dir: Path) -> None:
    write(members_dir, {**FILE, "timeout": "soon", "x-own": 1})
    discovery.sync(members_dir)
    row = edit(members_dir, {"timeout": 20})
    assert row.is_forced
    assert find_member("notes").manifest_error == ""
    assert read(members_dir) == {**FILE, "timeout": 20, "x-own": 1}
    with pytest.raises(RequestRefusedError, match="did not know"):
        edits.undo_edit(row, None)


def test_a_repair_that_does_not_repair_everything_says_what_is_left(members_dir: Path) -> None:
    write(members_dir, {**FILE, "timeout": "soon", "max_concurrency": 0})
    discovery.sync(members_dir)
    row = edit(members_dir, {"timeout": 20})
    assert "max_concurrency: must be a whole number" in row.faults[0]
    assert read(members_dir)["timeout"] == "soon"


def test_a_file_that_is_no_json_is_not_changed(members_dir: Path) -> None:
    row = edits.approve_edit(propose({"timeout": 60}), None)
    write(members_dir, "{")
    turn(members_dir)
    row.refresh_from_db()
    assert "not JSON" in row.faults[0]


def test_the_file_keeps_its_mode_and_a_link_stays_a_link(members_dir: Path) -> None:
    real = members_dir / "notes" / "real.json"
    path = members_dir / "notes" / "guild-member.json"
    path.rename(real)
    path.symlink_to("real.json")
    real.chmod(0o640)
    edit(members_dir, {"timeout": 60})
    assert (path.is_symlink(), real.stat().st_mode & 0o777, read(members_dir)["timeout"]) == (True, 0o640, 60)
    assert {entry.name for entry in real.parent.iterdir()} == {"real.json", "guild-member.json"}


def test_a_file_that_cannot_be_written_is_left_and_the_edit_says_what_to_do(
    members_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        row = edit(members_dir, {"timeout": 60})
    assert "Permission denied; change it by hand" in row.faults[0]
    assert (read(members_dir), sorted(path.name for path in (members_dir / "notes").iterdir())) == (
        FILE,
        ["guild-member.json"],
    )


def test_a_link_out_of_the_members_folder_is_not_written(members_dir: Path, tmp_path: Path) -> None:
    row = edits.approve_edit(propose({"timeout": 60}), None)
    path = members_dir / "notes" / "guild-member.json"
    path.rename(tmp_path / "outside.json")
    path.symlink_to(tmp_path / "outside.json")
    files.write_approved(members_dir)
    row.refresh_from_db()
    assert "outside of the members folder" in row.faults[0]
    assert "timeout" not in read(members_dir)


def test_the_file_of_another_member_is_not_changed(members_dir: Path) -> None:
    row = edits.approve_edit(propose({"timeout": 60}), None)
    write(members_dir, {**FILE, "name": "other"})
    files.write_approved(members_dir)
    row.refresh_from_db()
    assert "is that of another member" in row.faults[0]
    assert "timeout" not in read(members_dir)


@pytest.fixture
def other(members_dir: Path, tmp_path: Path, settings: Any) -> Path:
    """The members folder of another node, which is this one from now on. Both exist when an edit is approved."""
    for name in ("main", "other"):
        Node.objects.update_or_create(name=name, defaults={"folders": {"notes": "0" * 64}})
    path = tmp_path / "other"
    (path / "notes").mkdir(parents=True)
    return path


def on(node: str, members_dir: Path, settings: Any) -> None:
    settings.GUILD_HALL_NODE, own = node, settings.GUILD_HALL_NODE
    files.write_approved(members_dir)
    settings.GUILD_HALL_NODE = own


def test_each_node_changes_its_own_file_when_it_can(members_dir: Path, other: Path, settings: Any) -> None:
    row = edit(members_dir, {"timeout": 60})
    assert row.nodes == {"main": "", "other": ManifestEdit.NOT_YET}
    on("other", other, settings)  # it has no file yet
    write(other, FILE)
    on("other", other, settings)
    row.refresh_from_db()
    assert (row.nodes["other"], read(other)["timeout"], row.faults) == ("", 60, [])
    back = edits.undo_edit(row, None)
    on("other", other, settings)
    back.refresh_from_db()
    assert (back.nodes["other"], read(other), read(members_dir)["timeout"]) == ("", FILE, 60)


def test_a_node_without_the_folder_owes_nothing(members_dir: Path, other: Path) -> None:
    Node.objects.update(folders={})
    GuildMember.objects.update(node=Node.objects.get(name="main"))
    row = edit(members_dir, {"timeout": 60})
    assert row.nodes == {"main": ""}
    Node.objects.filter(name="other").update(folders={"notes": "0" * 64})
    assert edits.undo_edit(row, None).nodes == {"main": ManifestEdit.NOT_YET, "other": ManifestEdit.NOT_YET}


def test_a_node_that_was_away_makes_the_last_of_several_edits(members_dir: Path, other: Path, settings: Any) -> None:
    edit(members_dir, {"timeout": 60})
    edit(members_dir, {"timeout": 90})
    edit(members_dir, {"timeout": None})
    write(other, {**FILE, "timeout": 60})
    on("other", other, settings)
    assert read(other) == FILE
    assert all(row.faults == [] for row in ManifestEdit.objects.all())


def owned_by_main() -> None:
    """The owner notes the fault of a file."""
    GuildMember.objects.update(node=Node.objects.get(name="main"))


def repaired_and_edited(members_dir: Path, other: Path) -> tuple[ManifestEdit, ManifestEdit]:
    """An edit that repaired a faulty file, and a later one. Node `other` has made neither."""
    owned_by_main()
    for path in (members_dir, other):
        write(path, {**FILE, "timeout": "soon"})
    discovery.sync(members_dir)
    forced, later = edit(members_dir, {"timeout": 20}), edit(members_dir, {"restart": "never"})
    assert (forced.is_forced, later.is_forced) == (True, False)
    return forced, later


def test_a_node_that_was_away_repairs_its_file_and_makes_the_later_edit_too(
    members_dir: Path, other: Path, settings: Any
) -> None:
    repaired_and_edited(members_dir, other)
    edit(members_dir, {"timeout": 25})  # based on the result of the first one
    on("other", other, settings)
    assert read(other) == read(members_dir) == {**FILE, "timeout": 25, "restart": "never"}
    assert [row.faults for row in ManifestEdit.objects.all()] == [[], [], []]


def test_a_node_repairs_a_file_although_an_earlier_edit_is_not_in_it(
    members_dir: Path, other: Path, settings: Any
) -> None:
    owned_by_main()
    edit(members_dir, {"restart": "never"})
    write(members_dir, {**FILE, "restart": "never", "timeout": "soon"})
    write(other, {**FILE, "timeout": "soon"})
    discovery.sync(members_dir)
    assert edit(members_dir, {"timeout": 20}).is_forced
    on("other", other, settings)
    assert read(other) == read(members_dir) == {**FILE, "timeout": 20, "restart": "never"}


@pytest.mark.parametrize("shares_folder", [True, False])
def test_a_repair_is_also_for_a_node_whose_file_has_the_new_value_or_the_last_valid_one(
    members_dir: Path, other: Path, settings: Any, *, shares_folder: bool
) -> None:
    owned_by_main()
    write(other, {**FILE, "timeout": 30, "x-own": 1})
    write(members_dir, {**FILE, "timeout": 30})
    discovery.sync(members_dir)
    write(members_dir, {**FILE, "timeout": "soon"})
    discovery.sync(members_dir)
    row = edit(members_dir, {"timeout": 20})
    on("other", members_dir if shares_folder else other, settings)
    row.refresh_from_db()
    assert (row.is_forced, row.faults, read(members_dir)["timeout"]) == (True, [], 20)
    assert shares_folder or read(other) == {**FILE, "timeout": 20, "x-own": 1}


def test_an_edit_says_for_which_other_edit_it_waits_and_is_made_without_that(
    members_dir: Path, other: Path, settings: Any
) -> None:
    forced, later = repaired_and_edited(members_dir, other)
    write(other, {**FILE, "timeout": 77})
    on("other", other, settings)
    forced.refresh_from_db()
    later.refresh_from_db()
    assert "timeout: was changed in the file since" in forced.faults[0]
    assert later.faults == [f"On node other: its file waits for edit {forced.pk}."]
    assert read(other) == {**FILE, "timeout": 77}
    edits.discard_edit(forced)
    on("other", other, settings)
    later.refresh_from_db()
    assert (later.faults, read(other)) == ([], {**FILE, "timeout": 77, "restart": "never"})


def test_a_node_that_came_after_the_approval_keeps_its_file(members_dir: Path, other: Path, settings: Any) -> None:
    row = edit(members_dir, {"timeout": 60})
    write(other, FILE)
    on("newcomer", other, settings)
    row.refresh_from_db()
    assert (read(other), "newcomer" in row.nodes) == (FILE, False)


def test_a_node_that_cannot_change_its_file_may_be_given_up(members_dir: Path, other: Path, settings: Any) -> None:
    row = edit(members_dir, {"timeout": 60})
    write(other, {**FILE, "timeout": 7})
    on("other", other, settings)
    row.refresh_from_db()
    assert "was changed in the file" in row.faults[0]
    edits.discard_edit(row)
    row.refresh_from_db()
    assert (row.state, row.faults, read(members_dir)["timeout"]) == ("written", [], 60)
    write(other, FILE)
    on("other", other, settings)
    assert read(other) == FILE


def test_edits_are_forgotten_after_thirty_days_and_proposed_ones_stay(members_dir: Path) -> None:
    old = edit(members_dir, {"timeout": 60})
    propose({"timeout": 70})
    ManifestEdit.objects.update(created_at=timezone.now() - timedelta(days=31))
    ManifestEdit.objects.filter(pk=old.pk).update(approved_at=timezone.now() - timedelta(days=31))
    files.prune()
    assert [row.state for row in ManifestEdit.objects.all()] == ["proposed"]


# What a file or a person may have done ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('"\\ud83d"', "cannot be written again"),
        ("1e999", "cannot be written again"),
        ("[" * 700 + "]" * 700, "cannot be written again|nested too deep"),
    ],
)
def test_a_file_that_cannot_be_written_again_stays_and_stops_nobody(members_dir: Path, text: str, fault: str) -> None:
    content = json.dumps(FILE)[:-1] + f', "x-own": {text}}}'
    write(members_dir, content)
    discovery.sync(members_dir)
    row = edit(members_dir, {"timeout": 60})
    path = members_dir / "notes" / "guild-member.json"
    if row.faults:
        assert re.search(fault, row.faults[0])
        assert path.read_text() == content
    assert find_member("notes").manifest_error == ""
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_file_that_would_become_too_large_stays(members_dir: Path) -> None:
    write(members_dir, {**FILE, "x-own": "y" * 900_000})
    discovery.sync(members_dir)
    row = edit(members_dir, {"args": ["a b " * 20_000, "c d " * 20_000]})
    assert "larger than 1,000,000 bytes" in row.faults[0]
    assert "args" not in read(members_dir)


def test_a_hand_edit_at_the_same_moment_is_not_lost(members_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def write_by_hand(descriptor: int) -> None:
        write(members_dir, {**FILE, "version": "by hand"})
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", write_by_hand)
        row = edit(members_dir, {"timeout": 60})
    assert "was changed at this moment" in row.faults[0]
    assert read(members_dir)["version"] == "by hand"
    turn(members_dir)
    assert (read(members_dir)["version"], read(members_dir)["timeout"]) == ("by hand", 60)


def test_a_faulty_file_that_was_repaired_meanwhile_is_not_replaced(members_dir: Path) -> None:
    write(members_dir, {**FILE, "timeout": "soon"})
    discovery.sync(members_dir)
    row = edits.approve_edit(propose({"timeout": 20}), None)
    write(members_dir, {**FILE, "timeout": 77})
    files.write_approved(members_dir)
    row.refresh_from_db()
    assert "timeout: was changed in the file since" in row.faults[0]
    assert read(members_dir)["timeout"] == 77
    discovery.sync(members_dir)
    other = propose({"timeout": 20})
    write(members_dir, {**FILE, "timeout": "soon"})
    discovery.sync(members_dir)
    edits.discard_edit(row)
    with pytest.raises(RequestRefusedError, match="edit it again"):
        edits.approve_edit(other, None)


def test_edits_do_not_outlive_their_member(members_dir: Path, tmp_path: Path) -> None:
    edits.approve_edit(propose({"timeout": 60}), None)
    propose({"env": {"API_TOKEN": CANARY}})
    (members_dir / "notes").rename(tmp_path / "away")
    discovery.sync(members_dir)
    assert (ManifestEdit.objects.count(), Secret.objects.count()) == (0, 0)
    (members_dir / "notes").mkdir()
    write(members_dir, FILE)
    discovery.sync(members_dir)
    turn(members_dir)
    assert read(members_dir) == FILE


@pytest.mark.parametrize(
    "patch",
    [
        {"env": {"TOKEN": "\ud83dabc"}},
        {"\ud83d": 5},
        {"description": "a\0b"},
        {"timeout": float("inf")},
        {"env": {"API_TOKEN": "********"}},
        {"description": "x" * 300_000},
    ],
)
def test_values_that_cannot_be_kept_are_refused(members_dir: Path, patch: dict[str, Any]) -> None:
    for text in (json.dumps(FILE), json.dumps({**FILE, "timeout": "soon"})):
        write(members_dir, text)
        discovery.sync(members_dir)
        with pytest.raises(RequestRefusedError):
            propose(patch)
    assert (ManifestEdit.objects.count(), Secret.objects.count()) == (0, 0)


def test_the_last_valid_value_may_be_the_one_that_repairs_a_file(members_dir: Path) -> None:
    write(members_dir, {**FILE, "timeout": "soon"})
    discovery.sync(members_dir)
    edit(members_dir, {"timeout": 30})
    assert (find_member("notes").manifest_error, read(members_dir)) == ("", FILE)


@pytest.mark.parametrize(
    "content",
    [
        *("{", "[]", '{"name": "notes", "name": "notes"}', " " * 1_100_000),
        json.dumps({**FILE, "mcp": "none"}),
        json.dumps({**FILE, "mcp": {"command": FILE["command"]}}),
    ],
)
def test_a_file_that_cannot_be_read_is_not_edited_here(members_dir: Path, content: str) -> None:
    write(members_dir, content)
    discovery.sync(members_dir)
    with pytest.raises(RequestRefusedError, match="repair it by hand"):
        propose({"timeout": 20})


def test_a_wrong_value_for_a_faulty_file_is_refused(members_dir: Path) -> None:
    write(members_dir, {**FILE, "timeout": "soon"})
    discovery.sync(members_dir)
    with pytest.raises(InvalidEditError, match="timeout: must be seconds"):
        propose({"timeout": "later"})


def test_an_edit_that_cannot_be_approved_at_once_leaves_nothing(members_dir: Path, ada: User) -> None:
    edits.approve_edit(propose({"restart": "never"}), None)
    with pytest.raises(RequestRefusedError, match="not written yet"):
        edits.propose_edit(find_member("notes"), {"env": {"API_TOKEN": CANARY}}, ada, approve=True)
    assert (ManifestEdit.objects.count(), Secret.objects.count()) == (1, 0)


def test_a_new_value_of_a_header_may_be_a_secret_of_the_member(members_dir: Path) -> None:
    far = {"name": "notes", "version": "1", "transport": "http", "url": "https://example.com/mcp"}
    write(members_dir, {**far, "headers": {"X-Trace": "eu"}})
    discovery.sync(members_dir)
    edits.approve_edit(propose({"headers": {"X-Trace": CANARY}}), None)
    files.allow_secrets()  # before the file is written, there is nothing to allow
    turn(members_dir)
    assert [need.fault for need in secrets.needs_of(find_member("notes"))] == [""]


def test_who_may_not_allow_secrets_takes_them_from_a_member_with_an_edit(members_dir: Path, ada: User) -> None:
    edit(members_dir, {"env": {"API_TOKEN": CANARY}})
    row = edits.propose_edit(find_member("notes"), {"command": "other", "env": {"OWN_KEY": CANARY}}, ada, approve=True)
    turn(members_dir)
    assert not row.keeps_secrets
    faults = {need.name: need.fault for need in secrets.needs_of(find_member("notes"))}
    assert "has changed since" in faults["notes-API_TOKEN"]
    assert faults["notes-OWN_KEY"] == ""  # it came with the edit


def test_a_secret_that_something_else_needs_stays_when_its_edit_is_discarded(members_dir: Path) -> None:
    first, second = propose({"env": {"API_TOKEN": CANARY}}), propose({"env": {"B_TOKEN": CANARY}})
    propose({"env": {"C": "${secret:notes-API_TOKEN}"}})
    secrets.set_secret("notes-B_TOKEN", "by somebody", None)
    for row in (first, second):
        edits.discard_edit(row)
    assert {secret.name for secret in Secret.objects.all()} == {"notes-API_TOKEN", "notes-B_TOKEN"}


def test_clear_arguments_that_could_be_secrets_are_in_no_audit_entry(members_dir: Path) -> None:
    write(members_dir, {**FILE, "args": ["--api-key", CANARY]})
    discovery.sync(members_dir)
    edit(members_dir, {"args": ["--api-key", "${secret:mine}"]})
    assert CANARY not in str(list(AuditEntry.objects.values_list("before", "after")))


def test_an_edit_of_a_text_starts_no_failed_member_again(members_dir: Path) -> None:
    GuildMember.objects.update(status="error")
    edit(members_dir, {"description": "Another text."})
    assert find_member("notes").restart_requested_at is None

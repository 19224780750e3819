"""Members are removed and restored with real folders. The turns of the supervisor are called one by one."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from mcp_runtime.control import trash
from mcp_runtime.control.members import find_member
from mcp_runtime.members import discovery
from mcp_runtime.members import trash as folders
from mcp_runtime.protocol.errors import MemberInUseError, RequestRefusedError, UnknownMemberError
from mcp_runtime.security.access import OPERATOR, Principal
from roster.models import Agent, AgentMessage, AuditEntry, GuildMember, TrashedMember

pytestmark = pytest.mark.django_db


@pytest.fixture
def members_dir(tmp_path: Path) -> Path:
    path = tmp_path / "members"
    write(path / "notes")
    discovery.sync(path)
    return path


@pytest.fixture
def ada(db: None) -> User:
    return User.objects.create_user("ada")


def write(folder: Path, name: str = "notes") -> None:
    folder.mkdir(parents=True)
    manifest = {"name": name, "version": "1", "transport": "stdio", "command": "serve"}
    (folder / "guild-member.json").write_text(json.dumps(manifest))
    (folder / "data.txt").write_text("kept")


def turn(members_dir: Path) -> None:
    folders.turn(members_dir)
    discovery.sync(members_dir)


def remove(members_dir: Path, by: User | None = None) -> TrashedMember:
    row = trash.remove_member(find_member("notes"), by)
    turn(members_dir)
    row.refresh_from_db()
    return row


def names(members_dir: Path) -> set[str]:
    return {path.relative_to(members_dir).as_posix() for path in members_dir.glob("**/data.txt")}


# Remove -----------------------------------------------------------------------------------------------------------


def test_a_removed_member_leaves_the_roster_and_its_folder_is_in_the_trash(members_dir: Path, ada: User) -> None:
    row = trash.remove_member(find_member("notes"), ada)
    assert names(members_dir) == {"notes/data.txt"}  # the web moves nothing
    turn(members_dir)
    assert names(members_dir) == {f".trash/{row.pk}-notes/data.txt"}
    assert GuildMember.objects.get().removed_at is not None
    (listed,) = trash.trashed_members(OPERATOR)
    assert (listed.name, listed.removed_by, listed.faults) == ("notes", ada, [])
    kinds = list(AuditEntry.objects.order_by("pk").values_list("kind", flat=True))
    assert kinds[-2:] == ["member_trashed", "member_removed"]


def test_a_member_in_a_collection_is_removed_alone(tmp_path: Path) -> None:
    members_dir = tmp_path / "members"
    write(members_dir / "team" / "notes")
    write(members_dir / "team" / "files", "files")
    discovery.sync(members_dir)
    row = remove(members_dir)
    assert names(members_dir) == {"team/files/data.txt", f".trash/{row.pk}-notes/data.txt"}
    trash.restore_member(row.pk, OPERATOR)
    turn(members_dir)
    assert names(members_dir) == {"team/files/data.txt", "team/notes/data.txt"}


def test_a_link_is_moved_and_its_target_stays(members_dir: Path) -> None:
    (members_dir / "notes").rename(members_dir / "_real")
    (members_dir / "notes").symlink_to("_real")
    discovery.sync(members_dir)
    row = remove(members_dir)
    assert names(members_dir) == {"_real/data.txt"}
    assert (members_dir / ".trash" / f"{row.pk}-notes").is_symlink()


def test_what_an_agent_needs_is_removed_only_by_force(members_dir: Path) -> None:
    agent = Agent.objects.create(name="helper", created_by=User.objects.create_user("bob"))
    agent.members.add(find_member("notes"))
    AgentMessage.objects.create(agent=agent, prompt="hi", timeout=60, source="admin", requester="bob")
    with pytest.raises(MemberInUseError):
        trash.remove_member(find_member("notes"), None)
    trash.remove_member(find_member("notes"), None, force=True)


def test_a_second_request_says_how_far_the_first_is(members_dir: Path) -> None:
    trash.remove_member(find_member("notes"), None)
    with pytest.raises(RequestRefusedError, match="when it runs"):
        trash.remove_member(find_member("notes"), None)
    TrashedMember.objects.update(nodes={"main": "the disk is full"})
    with pytest.raises(RequestRefusedError, match="On node main: the disk is full"):
        trash.remove_member(find_member("notes"), None)


def test_a_member_that_is_gone_is_unknown(members_dir: Path) -> None:
    stale = find_member("notes")
    remove(members_dir)
    with pytest.raises(UnknownMemberError):
        trash.remove_member(stale, None)


def test_the_trash_has_a_bound(members_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrashedMember, "MAX", 0)
    with pytest.raises(RequestRefusedError, match="by hand"):
        trash.remove_member(find_member("notes"), None)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_the_right_to_write_stays_and_the_fault_is_shown(members_dir: Path) -> None:
    members_dir.chmod(0o555)
    try:
        row = remove(members_dir)
    finally:
        members_dir.chmod(0o755)
    assert "cannot be moved" in row.faults[0]


def test_a_fault_is_shown_and_tried_again(members_dir: Path) -> None:
    (members_dir / ".trash").write_text("a file")
    row = remove(members_dir)
    assert "cannot be moved" in row.faults[0]
    assert "by hand" in row.faults[0]
    assert find_member("notes")
    (members_dir / ".trash").unlink()
    turn(members_dir)
    assert names(members_dir) == {f".trash/{row.pk}-notes/data.txt"}
    assert TrashedMember.objects.get().faults == []


def test_a_removal_with_a_fault_can_be_taken_back(members_dir: Path) -> None:
    (members_dir / ".trash").write_text("a file")
    row = remove(members_dir)
    trash.restore_member(row.pk, OPERATOR)
    (members_dir / ".trash").unlink()
    turn(members_dir)
    assert names(members_dir) == {"notes/data.txt"}
    assert list(trash.trashed_members(OPERATOR)) == []


@pytest.mark.parametrize("directory", ["../outside", "a/../../outside", "/outside"])
def test_only_folders_in_the_members_folder_are_moved(members_dir: Path, directory: str) -> None:
    outside = members_dir.parent / "outside"
    write(outside)
    path = str(outside) if directory == "/outside" else directory
    TrashedMember.objects.create(name="notes", directory=path)
    folders.turn(members_dir)
    assert outside.exists()
    assert "not in the members folder" in TrashedMember.objects.get().faults[0]


# Restore ----------------------------------------------------------------------------------------------------------


def test_a_restored_member_is_in_the_roster_as_it_was(members_dir: Path) -> None:
    before = find_member("notes")
    row = remove(members_dir)
    trash.restore_member(row.pk, OPERATOR)
    turn(members_dir)
    assert names(members_dir) == {"notes/data.txt"}
    after = find_member("notes")
    assert (after.pk, after.manifest, after.enabled) == (before.pk, before.manifest, before.enabled)
    assert list(trash.trashed_members(OPERATOR)) == []
    with pytest.raises(RequestRefusedError, match="restored already"):
        trash.restore_member(row.pk, OPERATOR)


def test_a_restored_member_can_be_removed_again(members_dir: Path) -> None:
    first = remove(members_dir)
    trash.restore_member(first.pk, OPERATOR)
    turn(members_dir)
    second = remove(members_dir)
    assert names(members_dir) == {f".trash/{second.pk}-notes/data.txt"}


def test_nothing_is_restored_over_another_member_or_folder(members_dir: Path) -> None:
    row = remove(members_dir)
    write(members_dir / "notes")
    discovery.sync(members_dir)
    with pytest.raises(RequestRefusedError, match="another member"):
        trash.restore_member(row.pk, OPERATOR)
    (members_dir / "notes" / "guild-member.json").unlink()
    discovery.sync(members_dir)
    trash.restore_member(row.pk, OPERATOR)
    turn(members_dir)
    assert "exists already" in TrashedMember.objects.get().faults[0]
    assert names(members_dir) == {"notes/data.txt", f".trash/{row.pk}-notes/data.txt"}


def test_a_member_that_came_back_by_hand_is_not_removed_again(members_dir: Path, settings: Any) -> None:
    remove(members_dir)
    write(members_dir / "notes")
    discovery.sync(members_dir)
    settings.GUILD_HALL_NODE = "late"  # it was away, and has not seen the removal
    turn(members_dir)
    assert "notes/data.txt" in names(members_dir)


def test_each_node_moves_its_own_folder(members_dir: Path, tmp_path: Path, settings: Any) -> None:
    write(tmp_path / "other" / "notes")
    row = remove(members_dir)
    settings.GUILD_HALL_NODE = "other"
    folders.turn(tmp_path / "other")
    assert names(tmp_path / "other") == {f".trash/{row.pk}-notes/data.txt"}
    assert TrashedMember.objects.get().nodes == {"main": "", "other": ""}


def test_a_node_that_was_away_handles_the_oldest_request_first(
    members_dir: Path, tmp_path: Path, settings: Any
) -> None:
    other = tmp_path / "other"
    write(other / "notes")
    first = remove(members_dir)
    settings.GUILD_HALL_NODE = "other"
    folders.turn(other)
    settings.GUILD_HALL_NODE = "main"
    trash.restore_member(first.pk, OPERATOR)
    turn(members_dir)
    remove(members_dir)
    settings.GUILD_HALL_NODE = "other"
    folders.turn(other)
    assert not (other / "notes").exists()


def test_a_folder_of_another_member_at_the_same_path_stays(members_dir: Path, tmp_path: Path, settings: Any) -> None:
    remove(members_dir)
    write(tmp_path / "other" / "notes", "journal")
    settings.GUILD_HALL_NODE = "other"
    folders.turn(tmp_path / "other")
    assert names(tmp_path / "other") == {"notes/data.txt"}


def test_a_folder_with_a_faulty_manifest_is_removed_too(members_dir: Path) -> None:
    (members_dir / "notes" / "guild-member.json").write_text('{"name": "notes"}')
    discovery.sync(members_dir)
    row = remove(members_dir)
    assert names(members_dir) == {f".trash/{row.pk}-notes/data.txt"}


def test_a_sync_that_read_the_folder_before_its_move_brings_nothing_back(
    members_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = discovery.read_all

    def read_all(*args: Any) -> Any:
        files = original(*args)
        monkeypatch.setattr(discovery, "read_all", original)
        turn(members_dir)
        return files

    trash.remove_member(find_member("notes"), None)
    monkeypatch.setattr(discovery, "read_all", read_all)
    discovery.sync(members_dir)
    assert GuildMember.objects.get().removed_at is not None
    assert not TrashedMember.objects.get().is_replaced


def test_a_member_that_another_node_still_has_leaves_the_roster_too(
    members_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery.Disk, "may_remove", lambda disk, row: False)
    monkeypatch.setattr(discovery.Disk, "new_node", lambda disk, row: pytest.fail("it must not move to another node"))
    remove(members_dir)
    assert GuildMember.objects.get().removed_at is not None


def test_members_that_are_reserved_for_others_are_not_in_the_trash(members_dir: Path) -> None:
    row = remove(members_dir)
    other = Principal(None, "bob", closed_members=frozenset({"notes"}))
    assert list(trash.trashed_members(other)) == []
    with pytest.raises(UnknownMemberError):
        trash.restore_member(row.pk, other)


def test_an_unknown_number_is_refused(members_dir: Path) -> None:
    with pytest.raises(UnknownMemberError, match="number 7"):
        trash.restore_member(7, OPERATOR)


# The end ----------------------------------------------------------------------------------------------------------


def age(row: TrashedMember, days: int) -> None:
    moment = timezone.now() - timedelta(days=days)
    moved_at = dict.fromkeys(row.moved_at, moment.timestamp())
    TrashedMember.objects.filter(pk=row.pk).update(removed_at=moment, moved_at=moved_at)


def test_after_thirty_days_the_folder_is_deleted_and_cannot_be_restored(members_dir: Path) -> None:
    row = remove(members_dir)
    age(row, 29)
    folders.delete_expired(members_dir)
    assert names(members_dir) == {f".trash/{row.pk}-notes/data.txt"}
    age(row, 31)
    folders.delete_expired(members_dir)
    assert names(members_dir) == set()
    assert list(trash.trashed_members(OPERATOR)) == []
    with pytest.raises(UnknownMemberError):
        trash.restore_member(row.pk, OPERATOR)
    TrashedMember.prune()
    assert TrashedMember.objects.count() == 1  # for a node that moved its folder later
    age(row, 61)
    TrashedMember.prune()
    assert TrashedMember.objects.count() == 0


def test_a_folder_stays_for_thirty_days_on_a_node_that_moved_it_late(
    members_dir: Path, tmp_path: Path, settings: Any
) -> None:
    row = remove(members_dir)
    age(row, 29)
    write(tmp_path / "other" / "notes")
    settings.GUILD_HALL_NODE = "other"
    folders.turn(tmp_path / "other")
    TrashedMember.objects.update(removed_at=timezone.now() - timedelta(days=40))
    folders.delete_expired(tmp_path / "other")
    assert names(tmp_path / "other") == {f".trash/{row.pk}-notes/data.txt"}


def test_a_node_that_was_away_for_longer_keeps_its_folder(members_dir: Path, tmp_path: Path, settings: Any) -> None:
    age(remove(members_dir), 31)
    write(tmp_path / "other" / "notes")
    settings.GUILD_HALL_NODE = "other"
    for _ in range(2):
        folders.turn(tmp_path / "other")
        folders.delete_expired(tmp_path / "other")
    assert names(tmp_path / "other") == {"notes/data.txt"}


def test_a_link_in_the_trash_is_deleted_and_not_its_target(members_dir: Path) -> None:
    row = remove(members_dir)
    place = folders.place_of(row, members_dir)
    place.rename(members_dir / "_real")
    place.symlink_to("../_real")
    age(row, 31)
    folders.delete_expired(members_dir)
    assert not place.is_symlink()
    assert names(members_dir) == {"_real/data.txt"}


@pytest.mark.parametrize(
    ("error", "words"), [(OSError(13, "Permission denied"), "Permission denied"), (RecursionError(), "too deep")]
)
def test_a_folder_that_cannot_be_deleted_is_named_in_the_log(
    members_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    words: str,
) -> None:
    def fail(path: Path) -> None:
        raise error

    row = remove(members_dir)
    age(row, 31)
    monkeypatch.setattr("shutil.rmtree", fail)
    folders.delete_expired(members_dir)
    assert f"{row.pk}-notes in the trash cannot be deleted: " in caplog.text
    assert words in caplog.text


def test_a_restored_folder_is_never_deleted(members_dir: Path) -> None:
    row = remove(members_dir)
    trash.restore_member(row.pk, OPERATOR)
    turn(members_dir)
    row.refresh_from_db()
    age(row, 31)
    turn(members_dir)
    folders.delete_expired(members_dir)
    assert names(members_dir) == {"notes/data.txt"}

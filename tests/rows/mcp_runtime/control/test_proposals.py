"""Members that somebody wants to add: from the text to the folder, and everything that must stop them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from mcp_runtime.control import proposals, secrets
from mcp_runtime.members import discovery
from mcp_runtime.members.manifest.files import FILE_NAME
from mcp_runtime.members.proposals import allow_secrets, write_approved
from mcp_runtime.protocol.errors import RequestRefusedError, SourceError, UnknownProposalError
from mcp_runtime.secrets import values
from roster.models import AuditEntry, GuildMember, MemberProposal, Secret, SecretUse

pytestmark = pytest.mark.django_db

CANARY = "canary-4711-abc"
TEXT = json.dumps({"mcpServers": {"notes": {"command": "serve", "args": ["--fast"], "env": {"API_KEY": CANARY}}}})


@pytest.fixture(autouse=True)
def hall(settings: Any, tmp_path: Path) -> None:
    settings.GUILD_HALL_SECRETS_KEY_FILE = tmp_path / "secrets-key"
    settings.GUILD_HALL_NODE = "here"


@pytest.fixture
def members_dir(tmp_path: Path) -> Path:
    return tmp_path / "members"


@pytest.fixture
def ada() -> User:
    return User.objects.create_user("ada")


def propose(text: str = TEXT, by: User | None = None, name: str = "") -> MemberProposal:
    (row,) = proposals.propose(text, by, name=name)[1]
    return row


def approved(text: str = TEXT, by: User | None = None) -> MemberProposal:
    row = propose(text, by)
    return proposals.approve(row.name, row.digest, by)


def turn(members_dir: Path) -> None:
    """What the supervisor does in each turn."""
    turn_without_secrets(members_dir)
    allow_secrets()


def turn_without_secrets(members_dir: Path) -> None:
    write_approved(members_dir)
    discovery.sync(members_dir)


def dump_of_rows() -> str:
    return repr(list(MemberProposal.objects.values())) + repr(list(AuditEntry.objects.values()))


# Proposing --------------------------------------------------------------------------------------------------------


def test_a_proposal_holds_the_manifest_and_no_secret(ada: User) -> None:
    row = propose(by=ada)
    assert row.manifest["env"] == {"API_KEY": "${secret:notes-API_KEY}"}
    assert (row.created_by, row.secrets, row.approved_at) == (ada, ["notes-API_KEY"], None)
    assert values.decrypt(Secret.objects.get(name="notes-API_KEY")) == CANARY
    assert CANARY not in dump_of_rows()


def test_before_the_approval_no_folder_and_no_member_exists(members_dir: Path) -> None:
    propose()
    turn(members_dir)
    assert not members_dir.exists()
    assert GuildMember.objects.count() == SecretUse.objects.count() == 0


def test_a_name_that_is_taken_is_refused_also_in_another_case() -> None:
    GuildMember.objects.create(name="Notes", directory="Notes", manifest={})
    with pytest.raises(RequestRefusedError, match="has a member 'notes' already"):
        propose()
    propose(name="other")
    with pytest.raises(RequestRefusedError, match="proposed already"):
        propose(name="OTHER")


def test_a_refused_text_leaves_nothing_behind() -> None:
    GuildMember.objects.create(name="b", directory="b", manifest={})
    text = json.dumps(
        {"mcpServers": {"a": {"command": "x", "env": {"KEY": CANARY}}, "b": {"command": "x", "env": {"KEY": "v"}}}}
    )
    with pytest.raises(RequestRefusedError):
        proposals.propose(text, None)
    with pytest.raises(SourceError):
        proposals.propose("docker run x", None)
    assert (MemberProposal.objects.count(), Secret.objects.count()) == (0, 0)


def test_secrets_of_others_are_never_set_or_used() -> None:
    secrets.set_secret("notes-API_KEY", "of another member", None)
    row = propose()
    assert row.manifest["env"] == {"API_KEY": "${secret:notes-API_KEY-2}"}
    assert values.decrypt(Secret.objects.get(name="notes-API_KEY")) == "of another member"


def test_a_proposal_that_waits_for_a_secret_keeps_its_name() -> None:
    propose('{"mcpServers": {"a": {"command": "x", "env": {"b_KEY": "${env:b_KEY}"}}}}')
    row = propose('{"mcpServers": {"a-b_KEY": {"command": "x", "args": ["--token", "v"]}, "q": {"command": 1}}}')
    assert "a-b_KEY" not in row.secrets


def test_there_is_a_limit_of_open_proposals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemberProposal, "MAX_OPEN", 1)
    propose()
    with pytest.raises(RequestRefusedError, match="approve or discard"):
        propose(name="second")


# Approving --------------------------------------------------------------------------------------------------------


def test_what_a_runtime_that_died_has_left_does_not_stay(members_dir: Path, ada: User) -> None:
    row = propose(by=ada)
    proposals.approve("notes", row.digest, ada)
    (members_dir / ".notes.draft").mkdir(parents=True)
    (members_dir / ".notes.draft" / "guild-member.json").write_text("{")
    turn(members_dir)
    assert [path.name for path in members_dir.iterdir()] == ["notes"]
    assert (members_dir / "notes" / "guild-member.json").read_text() == row.text


def test_an_approved_member_gets_its_folder_its_row_and_its_secrets(members_dir: Path, ada: User) -> None:
    row = approved(by=ada)
    turn(members_dir)
    assert (members_dir / "notes" / FILE_NAME).read_text() == row.text
    member = GuildMember.objects.get(name="notes")
    assert (member.manifest["command"], member.sandbox, member.manifest_error) == ("serve", "on", "")
    expected = [("notes-API_KEY", "", [])]
    assert [(need.name, need.fault, need.changed_parts) for need in secrets.needs_of(member)] == expected
    assert SecretUse.objects.get().allowed_by == ada
    assert list(AuditEntry.objects.exclude(kind="user_created").order_by("id").values_list("kind", flat=True)) == [
        *("secret_set", "member_proposed", "member_approved"),
        *("member_added", "secret_allowed"),
    ]
    assert CANARY not in dump_of_rows()


def test_an_approval_is_for_one_digest() -> None:
    row = propose()
    for digest in ("", row.digest[:-1], row.digest.upper(), "\ud800"):
        with pytest.raises(RequestRefusedError, match="has another digest"):
            proposals.approve("notes", digest, None)
    assert MemberProposal.objects.get().approved_at is None


def test_a_proposal_that_was_replaced_needs_another_approval() -> None:
    seen = propose()
    proposals.discard("notes")
    propose(TEXT.replace("--fast", "--evil"))
    with pytest.raises(RequestRefusedError, match="has another digest"):
        proposals.approve("notes", seen.digest, None)


def test_a_row_that_is_not_what_was_approved_is_not_written(members_dir: Path) -> None:
    row = approved()
    MemberProposal.objects.filter(pk=row.pk).update(text=row.text.replace("--fast", "--evil"))
    turn(members_dir)
    assert not members_dir.exists()
    assert "not what was approved" in MemberProposal.objects.get().nodes["here"]


def test_a_proposal_is_approved_once() -> None:
    row = approved()
    with pytest.raises(UnknownProposalError):
        proposals.approve("notes", row.digest, None)


def test_secrets_that_the_client_knew_are_set_before_the_approval(members_dir: Path) -> None:
    row = propose('{"mcpServers": {"notes": {"command": "x", "env": {"TOKEN": "${env:TOKEN}"}}}}')
    with pytest.raises(RequestRefusedError, match="notes-TOKEN"):
        proposals.approve("notes", row.digest, None)
    secrets.set_secret("notes-TOKEN", CANARY, None)
    proposals.approve("notes", row.digest, None)
    turn(members_dir)
    assert secrets.needs_of(GuildMember.objects.get())[0].fault == ""


def test_a_member_that_took_the_name_meanwhile_stops_the_approval() -> None:
    row = propose()
    GuildMember.objects.create(name="NOTES", directory="NOTES", manifest={})
    with pytest.raises(RequestRefusedError, match="already"):
        proposals.approve("notes", row.digest, None)


# The folder -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [None, "{}"])
@pytest.mark.parametrize("name", ["notes", "NOTES"])
def test_a_folder_that_exists_is_never_changed(members_dir: Path, name: str, content: str | None) -> None:
    folder = members_dir / name
    folder.mkdir(parents=True)
    if content is not None:
        (folder / FILE_NAME).write_text(content)
    approved()
    turn(members_dir)
    assert "exists already" in MemberProposal.objects.get().nodes["here"]
    assert [path.read_text() for path in folder.iterdir()] == ([content] if content else [])
    assert [path.name for path in members_dir.iterdir()] == [name]


def test_a_link_in_the_place_of_the_folder_is_not_followed(members_dir: Path, tmp_path: Path) -> None:
    members_dir.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (members_dir / "notes").symlink_to(tmp_path / "elsewhere")
    approved()
    write_approved(members_dir)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_that_becomes_possible_is_created_later(members_dir: Path) -> None:
    (members_dir / "notes").mkdir(parents=True)
    approved()
    turn(members_dir)
    (members_dir / "notes").rmdir()
    turn(members_dir)
    assert MemberProposal.objects.get().nodes == {"here": ""}
    assert GuildMember.objects.get().name == "notes"


def test_a_members_folder_that_cannot_be_written_is_a_fault_of_the_row(members_dir: Path) -> None:
    members_dir.write_text("a file")
    approved()
    write_approved(members_dir)
    assert "cannot be created" in MemberProposal.objects.get().nodes["here"]


def test_every_node_creates_its_folder_once(tmp_path: Path, settings: Any) -> None:
    approved()
    for node in ("here", "there", "here"):
        settings.GUILD_HALL_NODE = node
        write_approved(tmp_path / node)
    assert MemberProposal.objects.get().nodes == {"here": "", "there": ""}
    assert (tmp_path / "here/notes" / FILE_NAME).read_text() == (tmp_path / "there/notes" / FILE_NAME).read_text()


def test_nodes_that_share_a_folder_all_have_it(members_dir: Path, settings: Any) -> None:
    approved()
    for node in ("here", "there"):
        settings.GUILD_HALL_NODE = node
        write_approved(members_dir)
    assert MemberProposal.objects.get().nodes == {"here": "", "there": ""}


def test_a_member_that_was_removed_does_not_come_back(tmp_path: Path, members_dir: Path, settings: Any) -> None:
    approved()
    turn(members_dir)
    (members_dir / "notes" / FILE_NAME).unlink()
    (members_dir / "notes").rmdir()
    turn(members_dir)
    assert not (members_dir / "notes").exists()
    settings.GUILD_HALL_NODE = "new"
    write_approved(tmp_path / "new")
    assert not (tmp_path / "new" / "notes").exists()


def test_a_node_that_was_away_creates_the_member_that_was_approved_last(
    tmp_path: Path, members_dir: Path, settings: Any
) -> None:
    approved()
    turn(members_dir)
    (members_dir / "notes" / FILE_NAME).unlink()
    (members_dir / "notes").rmdir()
    turn(members_dir)
    row = approved(TEXT.replace("--fast", "--slow"))
    turn(members_dir)
    settings.GUILD_HALL_NODE = "there"
    write_approved(tmp_path / "there")
    assert (tmp_path / "there/notes" / FILE_NAME).read_text() == row.text
    assert "--slow" in row.text


def test_a_member_that_was_removed_can_be_proposed_again(members_dir: Path) -> None:
    GuildMember.objects.create(name="notes", directory="notes", manifest={}, removed_at=timezone.now())
    approved()
    turn(members_dir)
    assert GuildMember.objects.get().removed_at is None


def test_a_manifest_that_was_edited_before_the_sync_gets_no_secrets(members_dir: Path) -> None:
    row = approved()
    write_approved(members_dir)
    (members_dir / "notes" / FILE_NAME).write_text(row.text.replace("--fast", "--evil"))
    discovery.sync(members_dir)
    allow_secrets()
    assert SecretUse.objects.count() == 0


def test_a_manifest_of_a_newer_release_stops_no_turn(members_dir: Path) -> None:
    row = approved()
    turn_without_secrets(members_dir)
    MemberProposal.objects.filter(pk=row.pk).update(text=row.text.replace('"serve"', "7"))
    allow_secrets()
    assert (SecretUse.objects.count(), MemberProposal.objects.get().allowed_at) == (0, None)


def test_a_member_that_failed_without_its_secrets_is_tried_again(members_dir: Path) -> None:
    approved()
    turn_without_secrets(members_dir)
    GuildMember.objects.update(status=GuildMember.Status.ERROR)
    allow_secrets()
    assert GuildMember.objects.get().restart_requested_at is not None


# Discarding -------------------------------------------------------------------------------------------------------


def test_a_discarded_proposal_leaves_no_secret() -> None:
    propose()
    secrets.set_secret("other", CANARY, None)
    proposals.discard("notes")
    assert list(Secret.objects.values_list("name", flat=True)) == ["other"]
    with pytest.raises(UnknownProposalError):
        proposals.find_proposal("notes")


def test_an_approved_member_without_a_folder_can_be_discarded(members_dir: Path) -> None:
    (members_dir / "notes").mkdir(parents=True)
    approved()
    turn(members_dir)
    assert [row.name for row in proposals.without_folder()] == ["notes"]
    proposals.discard("notes")
    assert (MemberProposal.objects.count(), Secret.objects.count()) == (0, 0)
    (members_dir / "notes").rmdir()
    turn(members_dir)
    assert GuildMember.objects.count() == 0


def test_an_approved_member_with_a_folder_cannot_be_discarded(members_dir: Path) -> None:
    approved()
    turn(members_dir)
    with pytest.raises(UnknownProposalError):
        proposals.discard("notes")


def test_old_approvals_are_deleted_and_proposals_that_are_not_members_stay(members_dir: Path) -> None:
    approved()
    turn(members_dir)
    propose(name="open")
    row = propose(name="waiting")
    proposals.approve("waiting", row.digest, None)
    old = timezone.now() - 2 * MemberProposal.KEEP
    MemberProposal.objects.update(created_at=old)
    MemberProposal.objects.exclude(approved_at=None).update(approved_at=old)
    MemberProposal.prune()
    assert list(MemberProposal.objects.values_list("name", flat=True)) == ["open", "waiting"]

"""Proposed members with a bundle: from the bytes to the folder, and everything that must stop them."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcp_runtime.control import bundles, proposals
from mcp_runtime.members import archives, discovery, unpacking
from mcp_runtime.members import bundles as unpackers
from mcp_runtime.members.bundles import Unpacker
from mcp_runtime.members.manifest.files import digest_of
from mcp_runtime.members.proposals import allow_secrets, write_approved
from mcp_runtime.protocol.errors import RequestRefusedError, SourceError
from mcp_runtime.sources.server_json import Filled
from roster import template
from roster.models import AuditEntry, Bundle, BundlePart, GuildMember, MemberProposal, Secret, SecretUse
from tests.support.bundles import Raw, bundle, manifest, raw_zip, server

pytestmark = pytest.mark.django_db

CANARY = "canary-4711-abc"
FILES = {"server/index.js": b"// a server\n", "bin/run": b"#!/bin/sh\n", "docs/a b.md": b"x" * 3_000_000}
KEYED = manifest(
    server=server(args=["${__dirname}/server/index.js"], env={"API_KEY": "${user_config.key}"}),
    user_config={"key": {"type": "string", "title": "Key", "description": "", "sensitive": True, "required": True}},
)


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


def propose(content: bytes | None = None, by: User | None = None, name: str = "", **values: str) -> MemberProposal:
    file = io.BytesIO(content or bundle(files=FILES))
    (row,) = proposals.propose_bundle(file, by, name=name, filled=Filled(0, values))[1]
    return row


def approved(content: bytes | None = None, **values: str) -> MemberProposal:
    row = propose(content, **values)
    return proposals.approve(row.name, row.digest, None)


def turn(members_dir: Path, unpacker: Unpacker | None = None) -> dict[str, str]:
    """What the supervisor does in each turn. The result is the state of each node in the first proposal."""
    write_approved(members_dir)
    (unpacker or Unpacker(members_dir)).turn()
    discovery.sync(members_dir)
    allow_secrets()
    row = MemberProposal.objects.first()
    return row.nodes if row else {}


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Proposing --------------------------------------------------------------------------------------------------------


def test_a_proposal_has_the_bytes_in_small_parts_and_what_an_approver_sees(ada: User) -> None:
    content = bundle(files={**FILES, "noise": os.urandom(2_500_000)})
    row = propose(content, ada)
    stored = Bundle.objects.get()
    assert stored.proposal == row
    assert b"".join(bytes(part.content) for part in stored.parts.all()) == content
    assert [len(part.content) <= BundlePart.SIZE for part in stored.parts.all()] == [True] * stored.parts.count()
    assert stored.parts.count() > 2
    assert (stored.size, stored.file_count, stored.author) == (len(content), 5, "Anna")
    assert stored.files == ["bin/run", "docs/a b.md", "manifest.json", "noise", "server/index.js"]
    assert row.digest == digest_of(row.text, stored.digest)
    (entry,) = AuditEntry.objects.filter(kind="member_proposed")
    assert entry.after["bundle"] == stored.digest


def test_before_the_approval_nothing_is_unpacked(members_dir: Path) -> None:
    propose()
    turn(members_dir)
    assert not members_dir.exists()


def test_the_list_of_proposals_does_not_load_the_bytes() -> None:
    propose()
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert [row.bundle.file_count for row in proposals.open_proposals()] == [4]
    assert len(queries) == 1
    assert "bundlepart" not in queries[0]["sql"]


@pytest.mark.parametrize("content", [b"x", raw_zip([Raw(b"../evil")]), bundle(b"{}")])
def test_a_refused_bundle_leaves_nothing_behind(content: bytes) -> None:
    with pytest.raises(SourceError):
        propose(content)
    assert Bundle.objects.count() == BundlePart.objects.count() == MemberProposal.objects.count() == 0


def test_a_bundle_with_a_file_that_lies_is_refused_before_it_is_stored() -> None:
    lie = Raw(b"zzz", b"x", crc=1)
    honest = [
        Raw(
            b"manifest.json",
            b'{"manifest_version": "0.3", "name": "a", "server": {"type": "node", "entry_point": "x"}}',
        )
    ]
    with pytest.raises(SourceError, match="checksum"):
        propose(raw_zip([*honest, lie]))
    assert Bundle.objects.count() == 0


def test_a_taken_name_leaves_nothing_behind() -> None:
    GuildMember.objects.create(name="Echo", directory="Echo", manifest={})
    with pytest.raises(RequestRefusedError, match="already"):
        propose()
    assert Bundle.objects.count() == BundlePart.objects.count() == 0
    assert propose(name="other").name == "other"


def test_values_become_secrets_and_are_nowhere_else() -> None:
    row = propose(bundle(KEYED), key=CANARY)
    assert row.manifest["env"] == {"API_KEY": "${secret:echo-key}"}
    assert Secret.objects.get().name == "echo-key"
    assert CANARY not in repr(list(MemberProposal.objects.values()))


def test_there_is_a_bound_for_all_bundles_together(monkeypatch: pytest.MonkeyPatch) -> None:
    row = propose()
    monkeypatch.setattr(Bundle, "MAX_STORED", Bundle.objects.get().size + 10)
    with pytest.raises(RequestRefusedError, match="all bundles together"):
        propose(name="second")
    proposals.discard(row.name)
    assert propose(name="second").name == "second"


# Waiting for values -----------------------------------------------------------------------------------------------


def test_a_bundle_that_waits_belongs_to_the_person_who_uploaded_it(ada: User) -> None:
    held = bundles.hold(io.BytesIO(bundle(KEYED)), ada)
    bob = User.objects.create_user("bob")
    for other in (bob, None):
        with pytest.raises(RequestRefusedError, match="upload it again"):
            bundles.find_waiting(str(held.pk), other)
    assert bundles.find_waiting(str(held.pk), ada) == held
    for wrong in ("", "x", "-1", "9" * 30, "²"):
        with pytest.raises(RequestRefusedError, match="upload it again"):
            bundles.find_waiting(wrong, ada)


def test_a_bundle_that_waits_is_proposed_once(ada: User) -> None:
    held = bundles.hold(io.BytesIO(bundle(KEYED)), ada)
    proposals.propose_held(held, ada, filled=Filled(1, {"key": CANARY}))
    with pytest.raises(RequestRefusedError):
        proposals.propose_held(held, ada, name="again", filled=Filled(1, {"key": CANARY}))
    assert MemberProposal.objects.count() == Secret.objects.count() == 1


def test_bundles_that_wait_are_few_and_do_not_wait_long(ada: User) -> None:
    first = bundles.hold(io.BytesIO(bundle(KEYED)), ada)
    of_bob = bundles.hold(io.BytesIO(bundle(KEYED)), User.objects.create_user("bob"))
    later = [bundles.hold(io.BytesIO(bundle(KEYED)), ada) for _ in range(Bundle.MAX_WAITING)]
    assert set(Bundle.objects.all()) == {of_bob, *later}
    assert first not in later
    proposed = propose(name="stays")
    Bundle.objects.update(created_at=timezone.now() - Bundle.KEEP_WAITING - timedelta(seconds=1))
    Bundle.prune()
    assert list(Bundle.objects.all()) == [proposed.bundle]


# The folder -------------------------------------------------------------------------------------------------------


def test_an_approved_bundle_becomes_a_folder_with_its_files(members_dir: Path) -> None:
    row = approved(bundle(files=FILES, modes={"bin/run": stat.S_IFREG | 0o6777}))
    assert turn(members_dir) == {"here": ""}
    assert [path.name for path in members_dir.iterdir()] == ["echo"]
    files = tree(members_dir / "echo")
    assert files.pop("guild-member.json").decode() == row.text
    assert files.pop("bundle.sha256").decode().strip() == row.bundle.digest
    assert files.pop("bundle/manifest.json")
    assert files == {f"bundle/{name}": content for name, content in FILES.items()}
    modes = {path.name: path.stat().st_mode for path in (members_dir / "echo").rglob("*") if path.is_file()}
    assert {name for name, mode in modes.items() if mode & stat.S_IXUSR} == {"run"}
    assert not any(mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX | 0o022) for mode in modes.values())
    assert GuildMember.objects.get().manifest["args"] == ["${MEMBER_FOLDER}/bundle/server/index.js"]


def test_the_program_of_a_bundle_is_executable_whatever_the_zip_says(members_dir: Path) -> None:
    approved(bundle(manifest(server=server("binary", command="${__dirname}/bin/run")), FILES))
    turn(members_dir)
    assert os.access(members_dir / "echo/bundle/bin/run", os.X_OK)
    assert not (members_dir / "echo/bundle/server/index.js").stat().st_mode & 0o111


def test_an_approved_bundle_gets_its_secrets(members_dir: Path) -> None:
    approved(bundle(KEYED), key=CANARY)
    turn(members_dir)
    assert SecretUse.objects.get().member == GuildMember.objects.get()


def test_bytes_that_changed_after_the_approval_are_not_unpacked(members_dir: Path) -> None:
    approved()
    part = BundlePart.objects.get(number=0)
    part.content = bytes(part.content).replace(b"server/index.js", b"server/evil1.js")
    part.save()
    assert "not what was approved" in turn(members_dir)["here"]
    assert list(members_dir.iterdir()) == []


def test_a_bundle_that_was_replaced_with_its_digest_is_not_unpacked(members_dir: Path) -> None:
    row = approved()
    evil = bundle(files={"server/index.js": b"evil"})
    Bundle.objects.all().delete()
    other = bundles.hold(io.BytesIO(evil), None)
    Bundle.objects.filter(pk=other.pk).update(proposal=row)
    assert "not what was approved" in turn(members_dir)["here"]
    assert not (members_dir / "echo").exists()


def test_a_manifest_without_its_bundle_is_not_created(members_dir: Path) -> None:
    """As a node of an earlier release would see it, too: its digest is not that of the text alone."""
    approved()
    Bundle.objects.all().delete()
    assert "not what was approved" in turn(members_dir)["here"]
    assert not (members_dir / "echo").exists()


def test_a_row_that_lies_about_its_zip_is_checked_again_while_it_is_unpacked(
    members_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = approved()
    evil = raw_zip([Raw(b"manifest.json", b"{}"), Raw(b"../../evil", b"x")])
    digest = hashlib.sha256(evil).hexdigest()
    Bundle.objects.update(digest=digest)
    BundlePart.objects.all().delete()
    BundlePart.objects.create(bundle=row.bundle, number=0, content=evil)
    MemberProposal.objects.update(digest=digest_of(row.text, digest))
    assert "leave the folder" in turn(members_dir)["here"]
    assert list(members_dir.iterdir()) == []
    assert not list(members_dir.parent.rglob("evil"))


def test_more_parts_than_a_bundle_may_have_are_not_read(members_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    approved(bundle(files={"noise": os.urandom(100_000)}))
    monkeypatch.setattr(unpackers, "MAX_SIZE", 50_000)
    assert "larger than 50,000 bytes" in turn(members_dir)["here"]


def test_every_node_unpacks_it_also_in_a_shared_folder(tmp_path: Path, members_dir: Path, settings: Any) -> None:
    approved()
    for node, folder in (("here", members_dir), ("there", members_dir), ("far", tmp_path / "far")):
        settings.GUILD_HALL_NODE = node
        Unpacker(folder).turn()
    assert MemberProposal.objects.get().nodes == {"here": "", "there": "", "far": ""}
    assert tree(members_dir / "echo") == tree(tmp_path / "far/echo")


def test_a_folder_that_exists_is_never_changed(members_dir: Path) -> None:
    (members_dir / "ECHO").mkdir(parents=True)
    approved()
    assert "exists already" in turn(members_dir)["here"]
    assert [path.name for path in members_dir.iterdir()] == ["ECHO"]
    assert tree(members_dir) == {}


def test_a_folder_with_the_same_manifest_and_another_bundle_does_not_count(members_dir: Path) -> None:
    row = approved()
    (members_dir / "echo/bundle").mkdir(parents=True)
    (members_dir / "echo/guild-member.json").write_text(row.text)
    (members_dir / "echo/bundle.sha256").write_text("0" * 64)
    assert "another bundle" in turn(members_dir)["here"]


def test_a_link_in_the_place_of_a_draft_is_not_followed(members_dir: Path, tmp_path: Path) -> None:
    members_dir.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (members_dir / ".echo.here.draft").symlink_to(tmp_path / "elsewhere")
    approved()
    turn(members_dir)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert not (members_dir / "echo").exists()


def test_what_a_killed_process_left_is_deleted_and_unpacked_again(members_dir: Path) -> None:
    for draft in (".echo.here.draft", ".gone.here.draft", ".echo.there.draft", ".echo.draft"):
        (members_dir / draft / "bundle").mkdir(parents=True)
        (members_dir / draft / "bundle" / "half").write_text("half")
    approved()
    assert turn(members_dir) == {"here": ""}
    assert {path.name for path in members_dir.iterdir()} == {"echo", ".echo.there.draft", ".echo.draft"}
    assert "bundle/half" not in tree(members_dir / "echo")


def test_a_proposal_that_is_discarded_while_it_is_unpacked_leaves_no_folder(
    members_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    approved()
    write = unpackers.write_draft

    def write_and_discard(*args: Any) -> None:
        write(*args)
        proposals.discard("echo")

    monkeypatch.setattr(unpackers, "write_draft", write_and_discard)
    turn(members_dir)
    assert list(members_dir.iterdir()) == []
    assert MemberProposal.objects.count() == Bundle.objects.count() == BundlePart.objects.count() == 0


def test_a_full_disk_is_noted_and_tried_again_after_longer_and_longer_pauses(
    members_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    approved()
    now, tries = 1000.0, []

    def full(*args: Any) -> None:
        tries.append(now)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(unpackers.time, "monotonic", lambda: now)
    monkeypatch.setattr(unpackers, "write_draft", full)
    unpacker = Unpacker(members_dir)
    for _ in range(2000):
        if unpacker.is_due():
            unpacker.turn()
        now += 1
    pauses = [later - before for before, later in itertools.pairwise(tries)]
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300, 300, 300]
    assert "No space left on device" in MemberProposal.objects.get().nodes["here"]
    assert "No space left" in MemberProposal.objects.get().faults[0]
    assert list(members_dir.iterdir()) == []
    monkeypatch.undo()
    assert turn(members_dir) == {"here": ""}


def test_a_fault_in_the_middle_of_a_file_leaves_no_draft(members_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    approved()
    monkeypatch.setattr(archives, "BLOCK", 1000)
    count = 0
    real = os.fsync

    def fail(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise OSError(5, "Input/output error")
        real(descriptor)

    monkeypatch.setattr(unpacking.os, "fsync", fail)
    assert "Input/output error" in turn(members_dir)["here"]
    assert list(members_dir.iterdir()) == []


def test_bundles_go_with_their_proposals_and_stay_for_nodes_that_join(members_dir: Path) -> None:
    approved()
    turn(members_dir)
    MemberProposal.prune()
    Bundle.prune()
    assert BundlePart.objects.exists()
    MemberProposal.objects.update(approved_at=timezone.now() - MemberProposal.KEEP - timedelta(days=1))
    MemberProposal.prune()
    assert Bundle.objects.count() == BundlePart.objects.count() == 0
    assert (members_dir / "echo").exists()


# The template -----------------------------------------------------------------------------------------------------


def begin(name: str) -> MemberProposal:
    (row,) = proposals.propose_template(name, template.files_of(name), None)[1]
    return row


def test_the_template_becomes_the_folder_that_new_member_makes(members_dir: Path, tmp_path: Path) -> None:
    from roster.management.commands.new_member import scaffold

    row = begin("greeter")
    assert (row.source, row.manifest["name"], row.bundle.files) == (
        "the template",
        "greeter",
        ["README.md", "server.py"],
    )
    proposals.approve("greeter", row.digest, None)
    assert turn(members_dir) == {"here": ""}
    by_hand = tree(scaffold("greeter", tmp_path))
    by_proposal = tree(members_dir / "greeter")
    assert by_proposal.pop("guild-member.json").decode() == row.text
    by_hand.pop("guild-member.json")
    assert by_proposal == by_hand


@pytest.mark.parametrize("name", ["", "../evil", "a b", "x" * 65, "\u0435cho"])
def test_a_wrong_name_for_a_new_member_is_refused(name: str) -> None:
    with pytest.raises(SourceError, match="name"):
        begin(name)
    assert Bundle.objects.count() == 0


def test_a_taken_name_for_a_new_member_is_refused() -> None:
    begin("greeter")
    with pytest.raises(RequestRefusedError, match="proposed already"):
        begin("Greeter")
    assert Bundle.objects.count() == 1

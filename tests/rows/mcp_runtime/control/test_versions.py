"""Newer versions of packages: the question, the answer of the node, and the edit to it."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from mcp_runtime.control.versions import PATIENCE, ask_for_newest, propose_newest, version_report
from mcp_runtime.members.packages import look_ups
from mcp_runtime.protocol.errors import InstallError, RequestRefusedError
from roster.models import GuildMember, ManifestEdit, PackageLock, VersionLookUp

pytestmark = pytest.mark.django_db

LEASE = uuid.uuid4()
MANIFEST: dict[str, Any] = {
    **{"name": "pocket", "version": "1.0.0", "transport": "stdio", "command": "npx"},
    **{"args": ["-y", "pocket-mcp@1.0.0", "--rest"], "env": {}, "packages": "locked"},
}


@pytest.fixture
def pocket() -> GuildMember:
    return GuildMember.objects.create(name="pocket", directory="pocket", manifest=MANIFEST, lease_id=LEASE)


def answer(text: str = "", error: Exception | None = None) -> None:
    def newest(*_: Any) -> str:
        if error:
            raise error
        return text

    for look_up in look_ups.due(LEASE):
        look_ups.answer(look_up, newest)


def report_of(member: GuildMember) -> Any:
    report = version_report(member)
    assert report is not None
    return report


def test_the_newest_version_is_asked_for_answered_and_proposed(pocket: GuildMember) -> None:
    ada = User.objects.create_user("ada")
    assert (report_of(pocket).version, report_of(pocket).newest) == ("1.0.0", "")
    assert ask_for_newest(pocket).is_asked
    assert report_of(pocket).is_asked
    answer("1.2.0")
    report = report_of(pocket)
    assert (report.is_asked, report.newest, report.is_newer, report.fault) == (False, "1.2.0", True, "")
    edit = propose_newest(pocket, ada)
    assert edit.created_by == ada
    assert {change["path"][0]: change["after"] for change in edit.changes} == {
        "args": ["-y", "pocket-mcp@1.2.0", "--rest"],
        "version": "1.2.0",
    }


def test_the_own_version_of_a_member_stays(pocket: GuildMember) -> None:
    pocket.manifest = {**MANIFEST, "version": "our 7"}
    pocket.save()
    ask_for_newest(pocket)
    answer("1.2.0")
    assert [change["path"] for change in propose_newest(pocket, None).changes] == [["args"]]


@pytest.mark.parametrize(
    ("newest", "is_newer"), [("1.0.0", False), ("0.9.9", False), ("1.0.10", True), ("1.1", True), ("2.0.0-beta", True)]
)
def test_only_higher_numbers_are_newer(pocket: GuildMember, newest: str, is_newer: bool) -> None:
    ask_for_newest(pocket)
    answer(newest)
    assert report_of(pocket).is_newer is is_newer


def test_without_a_version_in_the_manifest_that_of_the_lock_counts(pocket: GuildMember) -> None:
    pocket.manifest = {**MANIFEST, "args": ["-y", "pocket-mcp"], "version": "unpinned"}
    pocket.save()
    PackageLock.objects.create(
        member=pocket,
        specification="npm pocket-mcp",
        key=PackageLock.key_of("npm pocket-mcp"),
        version="1.3.0",
        count=1,
    )
    ask_for_newest(pocket)
    answer("1.3.0")
    assert (report_of(pocket).version, report_of(pocket).is_newer) == ("1.3.0", False)


def test_the_newest_version_is_not_proposed_again(pocket: GuildMember) -> None:
    ask_for_newest(pocket)
    answer("1.0.0")
    assert not report_of(pocket).is_newer
    with pytest.raises(RequestRefusedError, match="has the newest version of pocket-mcp already"):
        propose_newest(pocket, None)


def test_without_an_answer_nothing_is_proposed(pocket: GuildMember) -> None:
    with pytest.raises(RequestRefusedError, match="ask for it first"):
        propose_newest(pocket, None)
    assert ManifestEdit.objects.count() == 0


@pytest.mark.parametrize(
    "error", [InstallError("npm ended with exit code 1"), ValueError("npm ended with exit code 1")]
)
def test_a_failed_look_up_says_why(pocket: GuildMember, error: Exception) -> None:
    ask_for_newest(pocket)
    answer(error=error)
    assert "npm ended with exit code 1" in report_of(pocket).fault
    ask_for_newest(pocket)
    assert (report_of(pocket).is_asked, report_of(pocket).fault) == (True, "")


def test_a_question_without_an_answer_may_be_asked_again_later(pocket: GuildMember) -> None:
    ask_for_newest(pocket)
    asked_at = VersionLookUp.objects.get().asked_at
    ask_for_newest(pocket)  # at once, that changes nothing
    assert VersionLookUp.objects.get().asked_at == asked_at
    VersionLookUp.objects.update(asked_at=timezone.now() - PATIENCE - timedelta(seconds=1))
    assert "gave no answer" in report_of(pocket).fault
    ask_for_newest(pocket)
    assert VersionLookUp.objects.get().asked_at > asked_at


def test_an_answer_to_an_older_question_is_ignored(pocket: GuildMember) -> None:
    ask_for_newest(pocket)
    (old,) = look_ups.due(LEASE)
    VersionLookUp.objects.update(asked_at=timezone.now() + timedelta(seconds=1))
    look_ups.answer(old, lambda *_: "0.9.0")
    assert report_of(pocket).newest == ""


def test_an_answer_about_another_package_does_not_count(pocket: GuildMember) -> None:
    ask_for_newest(pocket)
    answer("1.2.0")
    pocket.manifest = {**MANIFEST, "args": ["-y", "other-mcp"]}
    pocket.save()
    assert (report_of(pocket).package, report_of(pocket).newest) == ("other-mcp", "")


def test_only_the_node_of_the_member_answers(pocket: GuildMember) -> None:
    ask_for_newest(pocket)
    assert look_ups.due(uuid.uuid4()) == []
    GuildMember.objects.update(removed_at=timezone.now())
    assert look_ups.due(LEASE) == []


@pytest.mark.parametrize(
    "manifest", [{}, {**MANIFEST, "command": "node"}, {"name": "far", "url": "https://example.com"}]
)
def test_a_member_without_a_package_has_no_newer_version(manifest: dict[str, Any]) -> None:
    member = GuildMember.objects.create(name="other", directory="other", manifest=manifest)
    assert version_report(member) is None
    for act in (lambda: ask_for_newest(member), lambda: propose_newest(member, None)):
        with pytest.raises(RequestRefusedError, match="runs no package"):
            act()

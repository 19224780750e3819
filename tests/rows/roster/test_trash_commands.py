from __future__ import annotations

import io
import json

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import CommandError

from roster.models import GuildMember, TrashedMember

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def notes() -> None:
    GuildMember.objects.create(name="notes", directory="team/notes", manifest={})


def run(*argv: str) -> str:
    output = io.StringIO()
    call_command(*argv, stdout=output, stderr=output)
    return output.getvalue()


def test_a_member_is_removed_and_restored() -> None:
    assert "The trash is empty." in run("trash")
    text = run("remove_member", "notes")
    row = TrashedMember.objects.get()
    assert f"guildhall trash --restore {row.pk}" in text
    assert "no runtime" in text.lower()
    assert "notes" in run("trash")
    text = run("trash", "--restore", str(row.pk))
    assert "back to team/notes" in text
    assert "The trash is empty." in run("trash")


def test_faults_and_who_removed_it_are_listed() -> None:
    ada = User.objects.create_user("ada")
    TrashedMember.objects.create(name="notes", directory="notes", removed_by=ada, nodes={"main": "\x1b[31mno room"})
    text = run("trash")
    assert "by ada, deleted" in text
    assert "On node main:" in text
    assert "\x1b" not in text
    (values,) = json.loads(run("trash", "--json"))
    assert (values["name"], values["removed_by"], len(values["faults"])) == ("notes", "ada", 1)
    TrashedMember.objects.update(restore_requested_at="2026-01-01T00:00:00Z")
    assert "not back yet" in run("trash")


def test_refusals_are_errors_of_the_command() -> None:
    with pytest.raises(CommandError, match="no member 'x'"):
        run("remove_member", "x")
    with pytest.raises(CommandError, match="number 9"):
        run("trash", "--restore", "9")

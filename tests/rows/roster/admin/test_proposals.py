from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from mcp_runtime.control import proposals, secrets
from roster.models import MemberProposal, Secret
from tests.support.admin import allow, html, messages_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("runtime")]

CANARY = "canary-4711-abc"
SOURCE = json.dumps(
    {"mcpServers": {"notes": {"command": "serve", "args": ["<b>x"], "env": {"KEY": CANARY, "TOKEN": "${env:TOKEN}"}}}}
)
PAGE = "/admin/roster/guildmember/proposals/"


@pytest.fixture(autouse=True)
def key_path(settings: Any, tmp_path: Path) -> None:
    settings.GUILD_HALL_SECRETS_KEY_FILE = tmp_path / "secrets-key"


def test_a_source_is_looked_up_shown_and_approved(page: Client, alice: User) -> None:
    text = html(page.post(PAGE, {"source": SOURCE, "name": ""}, follow=True))
    row = MemberProposal.objects.get()
    for part in ("serve", "&lt;b&gt;x", "${secret:notes-KEY}", row.digest, "guild-members/notes", "notes-TOKEN"):
        assert part in text
    assert CANARY not in text
    assert "Approve notes" not in text  # a secret is missing
    secrets.set_secret("notes-TOKEN", "value", None)
    assert "Approve notes" in html(page.get(PAGE))
    answer = page.post(PAGE, {"name": "notes", "approve": row.digest}, follow=True)
    assert "notes is approved" in " ".join(messages_of(answer))
    assert MemberProposal.objects.get().approved_by == alice


def test_an_approval_is_for_what_the_page_showed(page: Client) -> None:
    page.post(PAGE, {"source": "npx -y thing", "name": "thing"})
    answer = page.post(PAGE, {"name": "thing", "approve": "0" * 64}, follow=True)
    assert "another digest" in " ".join(messages_of(answer))
    assert MemberProposal.objects.get().approved_at is None


def test_a_discarded_proposal_is_gone(page: Client) -> None:
    page.post(PAGE, {"source": SOURCE})
    assert "discarded" in " ".join(messages_of(page.post(PAGE, {"name": "notes", "discard": "1"}, follow=True)))
    assert MemberProposal.objects.count() == Secret.objects.count() == 0


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (f"docker run -e KEY={CANARY} x", "containers"),
        (f'{{"a": "{CANARY}"', "is not JSON"),
        ("", "required"),
        (CANARY + " " * 262_144, "at most 262144 characters"),
    ],
)
def test_a_refused_source_is_explained_and_never_shown_again(page: Client, source: str, words: str) -> None:
    answer = page.post(PAGE, {"source": source}, follow=True)
    assert words in " ".join(messages_of(answer))
    assert CANARY not in html(answer)


def test_a_folder_that_stands_in_the_way_is_named(page: Client) -> None:
    (row,) = proposals.propose("npx -y thing", None)[1]
    proposals.approve("thing", row.digest, None)
    MemberProposal.objects.update(nodes={"main": "the folder x exists already; rename or remove it"})
    assert "has no folder on node main: the folder x exists already" in html(page.get(PAGE))


def test_an_approved_member_without_a_folder_can_be_discarded(page: Client) -> None:
    (row,) = proposals.propose("serve", None, name="notes")[1]
    proposals.approve("notes", row.digest, None)
    assert "Discard notes" in page.get(PAGE).content.decode()
    page.post(PAGE, {"name": "notes", "discard": "1"})
    assert MemberProposal.objects.count() == 0
    assert "Discard notes" not in page.get(PAGE).content.decode()


def test_the_roster_leads_to_the_page_only_for_users_who_may_approve(page: Client, client: Client) -> None:
    address = reverse("admin:roster_guildmember_proposals")
    assert html(page.get("/admin/")).count(address) == 2  # above, and in the empty roster
    bob = User.objects.create_user("bob", is_staff=True)
    allow(bob, "view_guildmember")
    client.force_login(bob)
    assert address not in html(client.get("/admin/"))
    assert client.get(PAGE).status_code == 403

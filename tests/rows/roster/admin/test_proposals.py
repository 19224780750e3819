from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import Client
from django.urls import reverse

from mcp_runtime.control import proposals, secrets
from roster.models import MemberProposal, Secret
from tests.support.admin import allow, html, messages_of
from tests.support.registry import WEATHER, Registry, serve

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


# Servers of a registry --------------------------------------------------------------------------------------------


@pytest.fixture
def server(settings: Any) -> Iterator[Registry]:
    cache.clear()
    with serve() as running:
        settings.GUILD_HALL_REGISTRY_URL = running.url
        yield running


def filling(way: int, **values: str) -> dict[str, Any]:
    named = {f"value-{key}": value for key, value in values.items()}
    return {"source": json.dumps(WEATHER), "way": way, "name": "", **named}


def test_the_registry_is_searched_only_when_asked(page: Client, server: Registry) -> None:
    assert "Search the registry" in html(page.get(PAGE))
    assert server.requests == []
    text = html(page.get(PAGE, {"registry": "weather"}))
    assert "Choose io.github.anna/weather-mcp" in text
    assert "containers yet" in text
    assert "no server with this name" in html(page.get(PAGE, {"registry": "nothing"}))
    server.answers["/v0.1/servers"] = (500, b"")
    assert "HTTP 500" in html(page.get(PAGE, {"registry": "x"}))


def test_without_a_registry_there_is_no_search(page: Client) -> None:
    assert "Search the registry" not in html(page.get(PAGE, {"registry": "weather"}))


def test_a_long_list_of_servers_has_a_link_to_the_next_page(page: Client, server: Registry) -> None:
    server.page = 1
    assert "?registry=&amp;after=com.example/clock" in html(page.get(PAGE, {"registry": ""}))
    assert "Choose io.github.anna" in html(page.get(PAGE, {"registry": "", "after": "com.example/clock"}))


def test_a_chosen_server_asks_for_its_values_and_is_proposed(page: Client, server: Registry) -> None:
    text = html(page.post(PAGE, {"source": f"{WEATHER['name']}@1.2.0"}))
    for part in ("npm package @anna/weather 1.2.0", 'name="value-folder"', "Amsterdam Noord", "SSE", 'type="password"'):
        assert part in text
    assert MemberProposal.objects.count() == 0
    values = {"folder": "/a\r\n/b", "WEATHER_API_KEY": CANARY, "PROXY_PASSWORD": "", "CITY": "Oss", "verbose": ""}
    answer = page.post(PAGE, filling(2, units="metric", **values), follow=True)
    assert "Proposed, and not approved yet" in " ".join(messages_of(answer))
    assert CANARY not in html(answer)
    row = MemberProposal.objects.get()
    assert row.manifest["args"][-2:] == ["/a", "/b"]
    assert row.manifest["env"] == {"WEATHER_API_KEY": "${secret:weather-WEATHER_API_KEY}", "CITY": "Oss"}
    assert Secret.objects.get().name == "weather-WEATHER_API_KEY"


def test_a_wrong_value_is_named_and_the_others_stay_except_secrets(page: Client) -> None:
    text = html(page.post(PAGE, filling(2, CITY="<b>Oss", WEATHER_API_KEY=CANARY)))
    assert "folder: needs a value" in text
    assert "&lt;b&gt;Oss" in text
    assert CANARY not in text
    assert MemberProposal.objects.count() == Secret.objects.count() == 0


def test_a_server_that_needs_no_values_is_proposed_at_once(page: Client, server: Registry) -> None:
    page.post(PAGE, {"source": "com.example/clock"})
    assert MemberProposal.objects.get().manifest["command"] == "uvx"

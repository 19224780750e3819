from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from django.utils.html import escape

from mcp_runtime.control import bundles, proposals, secrets
from roster.admin.members.filling import AGAIN
from roster.models import Bundle, MemberProposal, Secret
from tests.support.admin import allow, html, messages_of
from tests.support.bundles import bundle, manifest
from tests.support.bundles import server as server_of
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
    assert "discarded" in " ".join(messages_of(page.post(PAGE, {"discard": "notes"}, follow=True)))
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
def test_a_refused_source_is_explained_and_goes_back_only_to_who_pasted_it(
    page: Client, source: str, words: str
) -> None:
    answer = page.post(PAGE, {"source": source, "name": "mine"})

    text = html(answer)
    assert words in text
    assert 'value="mine"' in text
    assert escape(source) in text
    assert "no-store" in answer["Cache-Control"]
    assert not messages_of(answer)  # they could be kept for the next page
    assert CANARY not in html(page.get(PAGE))


def test_the_servers_that_are_refused_stay_in_the_box_beside_those_that_are_proposed(page: Client) -> None:
    servers = {"good": {"command": "npx", "args": ["-y", "thing"]}, "bad": {"command": "docker", "args": ["run", "x"]}}
    source = json.dumps({"mcpServers": servers})

    text = html(page.post(PAGE, {"source": source}))

    assert MemberProposal.objects.get().name == "good"
    assert "Approve good" in text
    assert "containers" in text
    assert escape(source) in text


def test_the_name_of_a_refused_template_stays_in_its_field(page: Client) -> None:
    text = html(page.post(PAGE, {"template": "1", "template-name": "../x"}))

    assert "must be 1 to 64 letters" in unescape(text).casefold()
    assert 'value="../x"' in text


def test_a_folder_that_stands_in_the_way_is_named(page: Client) -> None:
    (row,) = proposals.propose("npx -y thing", None)[1]
    proposals.approve("thing", row.digest, None)
    MemberProposal.objects.update(nodes={"main": "the folder x exists already; rename or remove it"})
    assert "On node main: the folder x exists already" in html(page.get(PAGE))


def test_an_approved_member_without_a_folder_can_be_discarded(page: Client) -> None:
    (row,) = proposals.propose("serve", None, name="notes")[1]
    proposals.approve("notes", row.digest, None)
    assert "Discard notes" in page.get(PAGE).content.decode()
    page.post(PAGE, {"discard": "notes"})
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


def faults_at(text: str) -> dict[str, str]:
    """The fault of each field, by the id of the field."""
    return dict(re.findall(r'<ul class="errorlist" id="([\w-]+)_error"><li>(.*?)</li>', text))


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
    assert faults_at(text) == {"way-2-value-folder": "Needs a value.", "way-2-value-WEATHER_API_KEY": AGAIN}
    assert "&lt;b&gt;Oss" in text
    assert CANARY not in text
    assert MemberProposal.objects.count() == Secret.objects.count() == 0


def test_a_server_that_needs_no_values_is_proposed_at_once(page: Client, server: Registry) -> None:
    page.post(PAGE, {"source": "com.example/clock"})
    assert MemberProposal.objects.get().manifest["command"] == "uvx"


# Bundles and the template -----------------------------------------------------------------------------------------

KEYED = manifest(
    server=server_of(args=["${user_config.folder}"], env={"API_KEY": "${user_config.key}"}),
    user_config={"folder": {"required": True, "title": "Where"}, "key": {"sensitive": True}},
)


def upload(page: Client, content: bytes, **fields: str) -> Any:
    file = SimpleUploadedFile("echo.mcpb", content)
    return page.post(PAGE, {"upload": "Upload", "upload-file": file, **fields}, follow=True)


def test_an_uploaded_bundle_is_proposed_with_what_it_claims(page: Client) -> None:
    content = bundle(files={"<b>.js": b""})
    text = html(upload(page, content))
    for part in (
        hashlib.sha256(content).hexdigest(),
        "&lt;b&gt;.js",
        "Anna",
        "Its 2 files",
        "https://anna.example.com",
    ):
        assert part in text
    row = MemberProposal.objects.get()
    page.post(PAGE, {"name": row.name, "approve": row.digest})
    assert MemberProposal.objects.exclude(approved_at=None).count() == 1


def test_a_bundle_waits_on_the_server_while_its_values_are_filled_in(page: Client) -> None:
    text = html(upload(page, bundle(KEYED)))
    assert 'for="way-1-value-folder" class="required">Where:</label>' in text
    held = Bundle.objects.get()
    assert f'name="held" value="{held.pk}"' in text
    assert len(text) < 50_000
    filled = {"held": held.pk, "way": 1, "name": "mine", "value-folder": "", "value-key": CANARY}
    text = html(page.post(PAGE, filled))
    assert faults_at(text) == {"way-1-value-folder": "Needs a value.", "way-1-value-key": AGAIN}
    assert 'value="mine"' in text
    assert CANARY not in text
    answer = page.post(PAGE, {**filled, "value-folder": "/srv"}, follow=True)
    assert "Proposed, and not approved yet" in " ".join(messages_of(answer))
    row = MemberProposal.objects.get()
    assert (row.name, row.bundle, row.manifest["args"]) == ("mine", held, ["/srv"])
    assert Secret.objects.get().name == "mine-key"


def test_the_form_of_a_bundle_has_titles_help_and_every_fault_at_its_field(page: Client) -> None:
    options = {
        "size": {"type": "number", "title": "Size", "description": "In metres.", "min": 1, "max": 2_000_000},
        "speed": {"type": "number", "title": "Size", "required": True},
        "loud": {"type": "boolean", "title": "<b>Loud"},
        "bare": {"type": "string"},
    }
    upload(page, bundle(manifest(user_config=options)))
    filled = {"held": Bundle.objects.get().pk, "way": 1, "name": "\u202e", "value-bare": "kept <i>"}
    text = html(page.post(PAGE, {**filled, "value-size": "0.5", "value-loud": "maybe", "value-speed": ""}))
    for label in ("Size (size):", "Size (speed):", "&lt;b&gt;Loud:", "bare:"):
        assert f"{label}</label>" in text
    assert "In metres. A number, at least 1 and at most 2000000." in text
    assert faults_at(text) == {
        "way-1-value-size": "Must be at least 1.",
        "way-1-value-speed": "Needs a value.",
        "way-1-value-loud": "Must be one of: true, false.",
    }
    assert 'value="kept &lt;i&gt;"' in text
    text = html(page.post(PAGE, {**filled, "value-size": "2000001", "value-speed": "fast"}))
    assert faults_at(text) == {
        "way-1-value-size": "Must be at most 2000000.",
        "way-1-value-speed": "Must be a number.",
    }
    text = html(page.post(PAGE, {**filled, "value-speed": "3"}))
    assert list(faults_at(text)) == ["way-1-name"]
    assert MemberProposal.objects.count() == 0


def test_a_bundle_whose_name_is_taken_can_get_another_one_without_a_second_upload(page: Client) -> None:
    upload(page, bundle())
    text = html(upload(page, bundle()))
    assert "is proposed already" in text
    held = Bundle.objects.get(proposal=None)
    page.post(PAGE, {"held": held.pk, "way": 1, "name": "second"})
    assert set(MemberProposal.objects.values_list("name", flat=True)) == {"echo", "second"}


def test_nobody_proposes_the_bundle_of_another_person(page: Client) -> None:
    held = bundles.hold(io.BytesIO(bundle()), User.objects.create_user("bob"))
    answer = page.post(PAGE, {"held": held.pk, "way": 1}, follow=True)
    assert "upload it again" in " ".join(messages_of(answer))
    assert MemberProposal.objects.count() == 0


@pytest.mark.parametrize(("content", "words"), [(b"x", "is not a zip"), (b"", "empty"), (None, "required")])
def test_an_unusable_file_is_explained_and_named(page: Client, content: bytes | None, words: str) -> None:
    answer = page.post(PAGE, {"upload": "Upload"}, follow=True) if content is None else upload(page, content)

    text = html(answer)
    assert words in text
    assert ("Choose echo.mcpb again" in text) == (content is not None)
    assert Bundle.objects.count() == 0


def test_a_new_member_begins_with_the_template(page: Client) -> None:
    answer = page.post(PAGE, {"template": "1", "template-name": "greeter"}, follow=True)
    assert "greeter" in " ".join(messages_of(answer))
    assert "From the template" in html(answer)
    assert MemberProposal.objects.get().name == "greeter"

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from roster.models import Bundle, GuildMember, MemberProposal, Secret
from tests.support.api import client_of
from tests.support.bundles import bundle, manifest, server

pytestmark = pytest.mark.django_db

CANARY = "canary-4711-abc"
SOURCE = json.dumps(
    {
        "mcpServers": {
            "notes": {"command": "serve", "args": ["a b"], "env": {"API_KEY": CANARY}},
            "box": {"command": "docker", "args": ["run"]},
        }
    }
)


@pytest.fixture(autouse=True)
def key_path(settings: Any, tmp_path: Path) -> None:
    settings.GUILD_HALL_SECRETS_KEY_FILE = tmp_path / "secrets-key"


@pytest.fixture
def admin(db: None) -> Client:
    return client_of(User.objects.create_superuser("root"))


def post(client: Client, address: str, **body: Any) -> tuple[int, dict[str, Any]]:
    response = client.post(address, body, content_type="application/json")
    assert CANARY not in response.content.decode()
    return response.status_code, response.json()


def test_a_source_is_proposed_approved_and_no_response_has_its_secret(admin: Client) -> None:
    status, answer = post(admin, "/api/members/", source=SOURCE)
    (proposal,) = answer["proposals"]
    assert (status, proposal["argv"], proposal["command_line"]) == (201, ["serve", "a b"], "serve 'a b'")
    assert proposal["env"] == {"API_KEY": "${secret:notes-API_KEY}"}
    assert "containers" in answer["refused"][0]
    assert admin.get("/api/proposals/").json()["results"] == [proposal]
    assert admin.get("/api/proposals/notes/").json() == proposal
    status, approved = post(admin, "/api/proposals/notes/approve/", digest=proposal["digest"])
    assert (status, approved["digest"]) == (202, proposal["digest"])
    assert MemberProposal.objects.get().approved_by == User.objects.get()
    assert admin.get("/api/proposals/").json()["results"] == []
    assert GuildMember.objects.count() == 0  # the runtime adds it


def test_an_approval_of_what_nobody_saw_is_refused(admin: Client) -> None:
    post(admin, "/api/members/", source=SOURCE)
    status, answer = post(admin, "/api/proposals/notes/approve/", digest="0" * 64)
    assert (status, answer["code"]) == (409, "refused")
    assert "another digest" in answer["detail"]
    assert post(admin, "/api/proposals/notes/approve/")[0] == 400


def test_a_discarded_proposal_is_gone_with_its_secrets(admin: Client) -> None:
    post(admin, "/api/members/", source=SOURCE)
    assert admin.delete("/api/proposals/notes/").status_code == 204
    assert Secret.objects.count() == 0
    answer = admin.get("/api/proposals/notes/")
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_proposal")


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"source": "docker run x"}, 400, "containers"),
        ({"source": SOURCE, "name": "x"}, 400, "leave the name out"),
        ({"source": ""}, 400, "blank"),
        ({}, 400, "required"),
        ({"source": "npx a", "sandbox": "off"}, 400, "unknown"),
        ({"source": " " * 300_000}, 400, "262144"),
        ({"source": "npx a\ud800"}, 400, ""),
    ],
)
def test_what_cannot_be_proposed_is_refused(admin: Client, body: dict[str, Any], status: int, word: str) -> None:
    actual, answer = post(admin, "/api/members/", **body)
    assert actual == status
    assert word in answer["detail"]
    assert MemberProposal.objects.count() == 0


def test_who_may_only_see_members_proposes_nothing(as_bob: Client) -> None:
    status, answer = post(as_bob, "/api/members/", source=SOURCE)
    assert status == 403
    assert "roster.approve_member" in answer["detail"]
    assert as_bob.get("/api/proposals/").status_code == 403
    assert as_bob.get("/api/members/").status_code == 200


# Bundles and the template -----------------------------------------------------------------------------------------

KEYED = manifest(
    server=server(args=["${user_config.folder}"], env={"API_KEY": "${user_config.key}"}),
    user_config={"folder": {"required": True}, "key": {"sensitive": True}},
)


def upload(client: Client, content: bytes, **fields: str) -> tuple[int, Any]:
    response = client.post("/api/members/", {"bundle": SimpleUploadedFile("echo.mcpb", content), **fields})
    return response.status_code, response.json()


def test_a_bundle_is_proposed_as_a_form_with_a_file(admin: Client) -> None:
    content = bundle()
    status, answer = upload(admin, content, name="mine")
    assert status == 201
    (proposal,) = answer["proposals"]
    assert (proposal["name"], proposal["bundle"]["sha256"]) == ("mine", hashlib.sha256(content).hexdigest())
    assert proposal["bundle"]["files"] == ["manifest.json", "server/index.js"]
    assert admin.get("/api/proposals/mine/").json() == proposal
    assert post(admin, "/api/proposals/mine/approve/", digest=proposal["digest"])[0] == 202


def test_a_bundle_that_needs_values_says_which(admin: Client) -> None:
    status, answer = upload(admin, bundle(KEYED))
    assert (status, answer["detail"]) == (400, "folder: needs a value")
    assert [field["key"] for field in answer["ways"][0]["fields"]] == ["folder", "key"]
    status, answer = upload(admin, bundle(KEYED), values=json.dumps({"folder": "/srv", "key": CANARY}), way="1")
    assert status == 201
    assert answer["proposals"][0]["argv"] == ["node", "/srv"]
    assert CANARY not in json.dumps(answer)


@pytest.mark.parametrize(
    ("content", "fields", "word"),
    [
        (b"no zip", {}, "is not a zip"),
        (b"", {}, "empty"),
        (bundle(), {"values": "[]"}, "JSON object"),
        (bundle(), {"values": "{"}, "JSON object"),
        (bundle(), {"values": '{"x": 1}'}, "JSON object"),
        (bundle(), {"values": '{"x": "y"}'}, "takes no value"),
        (bundle(), {"sandbox": "off"}, "unknown"),
        (bundle(), {"way": "2"}, "less than or equal to 1"),
    ],
)
def test_an_unusable_form_is_explained(admin: Client, content: bytes, fields: dict[str, str], word: str) -> None:
    status, answer = upload(admin, content, **fields)
    assert status == 400
    assert word in answer["detail"]
    assert Bundle.objects.count() == MemberProposal.objects.count() == 0


def test_a_form_without_a_file_or_with_two_is_refused(admin: Client) -> None:
    response = admin.post("/api/members/", {"name": "x"})
    assert (response.status_code, "bundle" in response.json()["detail"]) == (400, True)
    two = {"bundle": SimpleUploadedFile("a", b"x"), "other": SimpleUploadedFile("b", b"y")}
    assert admin.post("/api/members/", two).status_code == 400


def test_users_who_may_not_approve_members_upload_nothing(db: None) -> None:
    client = client_of(User.objects.create_user("bob"))
    assert upload(client, bundle())[0] == 403
    assert Bundle.objects.count() == 0


def test_a_new_member_begins_with_the_template(admin: Client) -> None:
    status, answer = post(admin, "/api/members/", template="greeter")
    assert status == 201
    assert answer["proposals"][0]["bundle"]["files"] == ["README.md", "server.py"]
    for body in ({"template": "greeter", "source": "npx a"}, {"template": "greeter", "name": "x"}, {"template": "a b"}):
        assert post(admin, "/api/members/", **body)[0] == 400
    assert post(admin, "/api/members/", template="GREETER")[0] == 409

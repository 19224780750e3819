from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import Client

from roster.models import MemberProposal, Secret
from tests.support.api import client_of
from tests.support.registry import WEATHER, Registry, serve

pytestmark = pytest.mark.django_db

CANARY = "canary-4711-abc"


@pytest.fixture
def server(settings: Any, tmp_path: Path) -> Iterator[Registry]:
    cache.clear()
    settings.GUILD_HALL_SECRETS_KEY_FILE = tmp_path / "secrets-key"
    with serve() as running:
        settings.GUILD_HALL_REGISTRY_URL = running.url
        yield running


@pytest.fixture
def admin(db: None) -> Client:
    return client_of(User.objects.create_superuser("root"))


def test_a_server_of_the_registry_is_found_and_proposed_with_its_values(server: Registry, admin: Client) -> None:
    (listed,) = admin.get("/api/registry/?search=weather").json()["servers"]
    way = listed["ways"][1]
    assert [field["key"] for field in way["fields"] if field["is_required"]] == ["folder", "WEATHER_API_KEY"]
    body = {
        "source": f"{listed['name']}@{listed['version']}",
        "way": way["number"],
        "values": {"folder": "/srv", "WEATHER_API_KEY": CANARY},
    }
    response = admin.post("/api/members/", body, content_type="application/json")
    assert response.status_code == 201
    assert CANARY not in response.content.decode()
    assert MemberProposal.objects.get().manifest["args"][-1] == "/srv"
    assert Secret.objects.get().name == "weather-WEATHER_API_KEY"


def test_the_document_of_a_server_can_be_proposed_itself(server: Registry, admin: Client) -> None:
    (listed,) = admin.get("/api/registry/?search=clock").json()["servers"]
    response = admin.post("/api/members/", {"source": listed["document"]}, content_type="application/json")
    assert response.json()["proposals"][0]["argv"] == ["uvx", "clock-server@0.3.0"]


def test_pages_and_versions_are_listed(server: Registry, admin: Client) -> None:
    server.page = 1
    first = admin.get("/api/registry/").json()
    second = admin.get("/api/registry/", {"after": first["cursor"]}).json()
    assert [page["servers"][0]["name"] for page in (first, second)] == ["com.example/clock", WEATHER["name"]]
    versions = admin.get("/api/registry/", {"versions_of": WEATHER["name"]}).json()["servers"]
    assert [each["version"] for each in versions] == ["1.2.0", "1.1.0"]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ({"versions_of": "com.example/nothing"}, 404, "unknown_server"),
        ({"serach": "x"}, 400, "invalid"),
        ({"search": "x" * 201}, 400, "invalid"),
    ],
)
def test_a_wrong_question_is_refused(
    server: Registry, admin: Client, query: dict[str, str], status: int, code: str
) -> None:
    response = admin.get("/api/registry/", query)
    assert (response.status_code, response.json()["code"]) == (status, code)


def test_a_registry_with_a_fault_is_a_bad_gateway(server: Registry, admin: Client) -> None:
    server.answers["/v0.1/servers"] = (500, b"")
    response = admin.get("/api/registry/")
    assert (response.status_code, response.json()["code"]) == (502, "registry_error")


def test_without_a_registry_the_answer_names_the_setting(admin: Client) -> None:
    response = admin.get("/api/registry/")
    assert response.status_code == 409
    assert "GUILD_HALL_REGISTRY_URL" in response.json()["detail"]


def test_who_may_not_approve_members_does_not_reach_the_registry(server: Registry) -> None:
    assert client_of(User.objects.create_user("bob")).get("/api/registry/").status_code == 403
    assert server.requests == []

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.staticfiles import finders
from django.test import Client
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.validation import validate_schema

from mcp_runtime.control.members import MEMBER_VERBS
from mcp_runtime.control.nodes import NODE_VERBS
from roster.api.base import HallView
from roster.api.document import DocumentGenerator
from roster.api.summaries import SUMMARIES
from roster.models import Call, GuildMember


@pytest.fixture
def document(as_bob: Client) -> dict[str, Any]:
    response = as_bob.get("/api/schema/?format=json")
    assert response.status_code == 200
    document: dict[str, Any] = response.json()
    return document


def test_the_document_is_valid_openapi_without_warnings(as_bob: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DocumentGenerator, "document", {})  # an earlier test may have made it
    GENERATOR_STATS.reset()
    document = as_bob.get("/api/schema/?format=json").json()
    assert document["paths"]
    validate_schema(document)
    assert not GENERATOR_STATS  # neither warnings nor errors


def test_the_document_is_made_once(as_bob: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    first = as_bob.get("/api/schema/?format=json")
    monkeypatch.setattr(DocumentGenerator, "parse", None)
    second = as_bob.get("/api/schema/?format=json")
    assert first.json() == second.json()
    assert second.headers["Content-Disposition"] == 'inline; filename="Guild Hall.json"'
    assert as_bob.get("/api/schema/?format=yaml").status_code == 200


def test_every_address_is_documented_with_its_verbs(document: dict[str, Any]) -> None:
    paths = {address: set(verbs) for address, verbs in document["paths"].items()}
    member, call, agent = "/api/members/{name}/", "/api/calls/{id}/", "/api/agents/{id}/"
    assert paths == {
        "/api/roster/": {"get"},
        "/api/members/": {"get", "post"},
        member: {"get", "patch", "delete"},
        **{f"{member}{verb}/": {"post"} for verb in MEMBER_VERBS},
        f"{member}groups/": {"get", "put"},
        f"{member}logs/": {"get"},
        f"{member}status-changes/": {"get"},
        f"{member}statistics/": {"get"},
        f"{member}contracts/": {"get"},
        f"{member}contracts/review/": {"get"},
        f"{member}contracts/approve/": {"post"},
        f"{member}tools/": {"get"},
        f"{member}tools/{{tool}}/": {"get"},
        f"{member}tools/{{tool}}/invoke/": {"post"},
        f"{member}tools/{{tool}}/enable/": {"post"},
        f"{member}tools/{{tool}}/disable/": {"post"},
        f"{member}move/": {"post"},
        **{f"{member}{noun}/": {"get"} for noun in ("prompts", "resources", "resource-templates")},
        **{f"{member}prompts/{verb}/": {"post"} for verb in ("get", "complete", "enable", "disable")},
        **{f"{member}resources/{verb}/": {"post"} for verb in ("read", "watch", "enable", "disable")},
        **{f"{member}resource-templates/{verb}/": {"post"} for verb in ("complete", "enable", "disable")},
        "/api/nodes/": {"get"},
        **{f"/api/nodes/{{node}}/{verb}/": {"post"} for verb in NODE_VERBS},
        "/api/nodes/{node}/remove/": {"post"},
        "/api/nodes/rebalance/": {"post"},
        "/api/proposals/": {"get"},
        "/api/registry/": {"get"},
        f"{member}newest-version/": {"get", "post"},
        f"{member}newest-version/edit/": {"post"},
        f"{member}relock/": {"post"},
        f"{member}own-sign-in/": {"get", "post"},
        f"{member}own-sign-out/": {"post"},
        f"{member}sign-in/": {"post"},
        f"{member}sign-out/": {"post"},
        "/api/edits/": {"get"},
        "/api/edits/{edit}/": {"get", "delete"},
        **{f"/api/edits/{{edit}}/{verb}/": {"post"} for verb in ("approve", "undo")},
        "/api/trash/": {"get"},
        "/api/trash/{number}/restore/": {"post"},
        "/api/proposals/{proposal}/": {"get", "delete"},
        "/api/proposals/{proposal}/approve/": {"post"},
        "/api/secrets/": {"get"},
        "/api/tool-sets/": {"get"},
        "/api/tool-sets/{tool_set}/": {"get", "put", "delete"},
        "/api/secrets/{secret}/": {"get", "put", "delete"},
        "/api/calls/": {"get"},
        "/api/calls/export/": {"get"},
        call: {"get"},
        f"{call}logs/": {"get"},
        f"{call}cancel/": {"post"},
        "/api/tokens/": {"get", "post"},
        "/api/tokens/{id}/": {"get"},
        "/api/tokens/{id}/revoke/": {"post"},
        "/api/audit/": {"get"},
        "/api/agent-config/": {"get", "post"},
        "/api/agents/": {"get", "post"},
        agent: {"get"},
        f"{agent}messages/": {"post"},
        f"{agent}events/": {"get"},
        f"{agent}stop/": {"post"},
    }


def test_all_statuses_are_documented(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert schemas["MemberStatus"]["enum"] == GuildMember.Status.values
    assert schemas["CallStatus"]["enum"] == Call.Status.values


def test_every_operation_needs_a_token_or_a_session(document: dict[str, Any]) -> None:
    for verbs in document["paths"].values():
        for operation in verbs.values():
            assert operation["security"] == [{"token": []}, {"cookieAuth": []}]
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"


def test_the_docs_need_no_network(bob: User) -> None:
    client = Client()
    client.force_login(bob)
    response = client.get("/api/docs/")
    assert response.status_code == 200
    page = response.content.decode()
    addresses = re.findall(r'<(?:script|link)[^>]* (?:src|href)="([^"]+)"', page)
    assert len(addresses) >= 4
    for address in addresses:
        assert address.startswith("/static/")
        assert finders.find(address.removeprefix("/static/")), address
    assert "http://" not in page
    assert "https://" not in page


def test_the_docs_load_their_document(bob: User) -> None:
    client = Client()
    client.force_login(bob)
    page = client.get("/api/docs/").content.decode()
    assert "/api/schema/" in page
    assert client.get("/api/schema/").status_code == 200


def test_the_index_has_links_to_all_parts(as_alice: Client) -> None:
    index = as_alice.get("/api/").json()
    assert set(index) == {
        "roster",
        "members",
        "nodes",
        "calls",
        "tokens",
        "agents",
        "proposals",
        "secrets",
        "tool-sets",
        "audit",
        "docs",
        "schema",
    }
    for address in index.values():
        assert as_alice.get(address).status_code == 200


def test_errors_are_documented_with_their_media_type(document: dict[str, Any]) -> None:
    responses = [
        response
        for verbs in document["paths"].values()
        for operation in verbs.values()
        for status, response in operation["responses"].items()
        if status >= "400"
    ]
    assert len(responses) > 100
    assert {media_type for response in responses for media_type in response["content"]} == {"application/problem+json"}


def test_every_operation_has_a_summary_and_a_description_for_people(document: dict[str, Any]) -> None:
    operations = [operation for verbs in document["paths"].values() for operation in verbs.values()]
    assert {operation["operationId"] for operation in operations} == set(SUMMARIES)
    assert len({operation["summary"] for operation in operations}) == len(operations)
    for operation in operations:
        assert len(operation["description"]) > 10, operation["operationId"]
        assert operation["description"] != HallView.__doc__, operation["operationId"]
        assert "control." not in operation["description"], operation["operationId"]

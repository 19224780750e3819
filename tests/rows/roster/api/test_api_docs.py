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
from roster.models import Call, GuildMember


@pytest.fixture
def document(as_bob: Client) -> dict[str, Any]:
    GENERATOR_STATS.reset()
    response = as_bob.get("/api/schema/?format=json")
    assert response.status_code == 200
    document: dict[str, Any] = response.json()
    return document


def test_the_document_is_valid_openapi_without_warnings(document: dict[str, Any]) -> None:
    validate_schema(document)
    assert not GENERATOR_STATS  # neither warnings nor errors


def test_every_address_is_documented_with_its_verbs(document: dict[str, Any]) -> None:
    paths = {address: set(verbs) for address, verbs in document["paths"].items()}
    member, call, agent = "/api/members/{name}/", "/api/calls/{id}/", "/api/agents/{id}/"
    assert paths == {
        "/api/roster/": {"get"},
        "/api/members/": {"get", "post"},
        member: {"get", "delete"},
        **{f"{member}{verb}/": {"post"} for verb in MEMBER_VERBS},
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
        "/api/nodes/": {"get"},
        **{f"/api/nodes/{{node}}/{verb}/": {"post"} for verb in NODE_VERBS},
        "/api/nodes/{node}/remove/": {"post"},
        "/api/nodes/rebalance/": {"post"},
        "/api/proposals/": {"get"},
        "/api/registry/": {"get"},
        "/api/trash/": {"get"},
        "/api/trash/{number}/restore/": {"post"},
        "/api/proposals/{proposal}/": {"get", "delete"},
        "/api/proposals/{proposal}/approve/": {"post"},
        "/api/secrets/": {"get"},
        "/api/tool-sets/": {"get"},
        "/api/tool-sets/{tool_set}/": {"get", "put", "delete"},
        "/api/secrets/{secret}/": {"get", "put", "delete"},
        "/api/calls/": {"get"},
        call: {"get"},
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
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
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

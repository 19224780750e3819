"""The catalog from its rows: what is made of them, and what stays as it was."""

from __future__ import annotations

import json

import pytest
from django.contrib.auth.models import User

from mcp_runtime.gateway import catalog_rows
from mcp_runtime.gateway.catalog import Roster
from roster.models import Agent, Tool
from tests.support.catalog import LISTS, make_extras, make_member


def test_a_schema_with_secrets_is_marked_as_secretive(db: None) -> None:
    row = make_member("a")
    for name, schema in {"open": {"type": "string"}, "secret": {"type": "string", "format": "password"}}.items():
        definition = {"name": name, "inputSchema": {"type": "object", "properties": {"key": schema}}}
        Tool.objects.create(member=row, name=name, definition=definition)
    tools = catalog_rows.load(Roster()).members["a"].tools
    assert {name: bool(tool.secretive_schema) for name, tool in tools.items()} == {"open": False, "secret": True}


@pytest.mark.django_db
def test_parameter_headers_are_read_with_the_roster_and_invalid_ones_are_ignored() -> None:
    row = make_member("a")
    for name, kind in {"right": "string", "wrong": "object"}.items():
        schema = {"type": "object", "properties": {"city": {"type": kind, "x-mcp-header": "City"}}}
        Tool.objects.create(member=row, name=name, definition={"name": name, "inputSchema": schema})
    tools = catalog_rows.load(Roster()).members["a"].tools
    headers = {name: dict(tool.parameter_headers) for name, tool in tools.items()}
    assert headers == {"right": {("city",): "Mcp-Param-City"}, "wrong": {}}


@pytest.mark.django_db
def test_a_schema_without_parameter_headers_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    Tool.objects.create(member=make_member("a"), name="t", definition={"name": "t", "inputSchema": {"type": "object"}})
    monkeypatch.setattr(catalog_rows.mcp, "parameter_headers", lambda _: pytest.fail("searched"))
    assert not catalog_rows.load(Roster()).members["a"].tools["t"].parameter_headers


@pytest.mark.django_db
def test_the_members_of_an_agent_are_those_chosen_for_it() -> None:
    agent = Agent.objects.create(name="a")
    agent.members.add(make_member("a"))
    make_member("b")
    assert catalog_rows.members_of_agent(agent.pk, None) == {"a"}
    assert catalog_rows.members_of_agent(agent.pk + 1, None) is None


@pytest.mark.django_db
def test_an_agent_is_available_only_to_its_creator() -> None:
    ada, bob = (User.objects.create_user(name) for name in ("ada", "bob"))
    agent = Agent.objects.create(name="a", created_by=ada)
    agent.members.add(make_member("a"))
    assert catalog_rows.members_of_agent(agent.pk, ada.pk) == {"a"}
    assert catalog_rows.members_of_agent(agent.pk, bob.pk) is None


@pytest.mark.django_db
def test_extras_are_made_again_only_if_their_row_has_changed() -> None:
    for name in ("a", "b"):
        make_member(name)
        make_extras(name, LISTS)
    before = catalog_rows.load(Roster())
    make_extras("a", {"prompts": LISTS["prompts"]})
    after = catalog_rows.load(before)
    assert after.extras["b"] is before.extras["b"]
    assert (len(before.extras["a"].resources), len(after.extras["a"].resources)) == (2, 0)


def test_a_tool_is_made_again_only_if_its_row_has_changed(db: None) -> None:
    make_member("a", "same", "changed", "checked")
    before = catalog_rows.load(Roster())
    Tool.objects.filter(name="changed").update(definition={"name": "changed", "description": "another"})
    Tool.objects.filter(name="checked").update(schema_error="no schema")
    tools, after = before.members["a"].tools, catalog_rows.load(before).members["a"].tools
    assert {name: after[name] is tools[name] for name in tools} == {"same": True, "changed": False, "checked": False}
    assert json.loads(after["changed"].own_json)["description"] == "another"

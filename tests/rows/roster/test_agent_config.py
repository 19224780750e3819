"""The configuration of clients, parsed as these clients do, and its cost."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from typing import Any

import pytest
from django.conf import settings
from pytest_django import DjangoAssertNumQueries

from mcp_runtime.control.tool_sets import Entry as SetEntry
from mcp_runtime.control.tool_sets import Values, create_tool_set
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import RequestRefusedError, UnknownMemberError
from mcp_runtime.rows import lease
from mcp_runtime.security.access import OPERATOR, Principal
from roster import agent_config
from roster.agent_config import Cost
from roster.client_formats import CLIENTS, Entry
from roster.models import GuildMember, PortAllocation, Tool
from tests.support.leases import own_node

ENTRIES = [
    Entry("guild-hall", "http://localhost:8100/mcp?members=a,b", "gh_x"),
    Entry("a", "http://localhost:20000/mcp"),
]
HEADERS = {"Authorization": "Bearer gh_x"}
GATEWAY, DIRECT = ENTRIES[0].url, ENTRIES[1].url


def config_of(client: str) -> Any:
    text = CLIENTS[client].write(ENTRIES)
    return tomllib.loads(text) if client == "codex" else json.loads(text)


@pytest.mark.parametrize(
    ("client", "key"), [("agent-sdk", "mcp_servers"), ("claude-code", "mcpServers"), ("vscode", "servers")]
)
def test_clients_that_need_a_type_get_one(client: str, key: str) -> None:
    assert config_of(client) == {
        key: {"guild-hall": {"type": "http", "url": GATEWAY, "headers": HEADERS}, "a": {"type": "http", "url": DIRECT}}
    }


def test_cursor_needs_only_the_url() -> None:
    assert config_of("cursor") == {
        "mcpServers": {"guild-hall": {"url": GATEWAY, "headers": HEADERS}, "a": {"url": DIRECT}}
    }


def test_codex_uses_toml_and_http_headers() -> None:
    assert config_of("codex") == {
        "mcp_servers": {"guild-hall": {"url": GATEWAY, "http_headers": HEADERS}, "a": {"url": DIRECT}}
    }


def test_the_url_of_the_gateway_can_name_members() -> None:
    port = settings.GUILD_HALL_GATEWAY_PORT
    (entry_of_all,) = agent_config.gateway_entries([], "gh_x")
    (entry_of_two,) = agent_config.gateway_entries(["a", "b"], "gh_x")
    assert entry_of_all.url == f"http://localhost:{port}/mcp"
    assert entry_of_two.url == f"http://localhost:{port}/mcp?members=a,b"


def add_member(name: str, *tools: str, **columns: Any) -> GuildMember:
    member = GuildMember.objects.create(name=name, directory=name, node=own_node(), **columns)
    for tool in tools:
        definition = {"name": tool, "inputSchema": {"type": "object"}}
        Tool.objects.create(member=member, name=tool, definition=definition, version=f"of {tool}")
    return member


@pytest.fixture
def connected_member(db: None) -> GuildMember:
    member = add_member("up", "echo", "off", status="connected")
    PortAllocation.objects.create(port=20000, member=member)
    Tool.objects.filter(name="off").update(enabled=False)
    lease.take()
    return member


def test_direct_entries_are_the_members_own_endpoints(connected_member: GuildMember) -> None:
    assert agent_config.direct_entries([connected_member], require_all=True) == [
        Entry("up", "http://localhost:20000/mcp")
    ]


def test_a_member_that_does_not_run_has_no_direct_entry(connected_member: GuildMember) -> None:
    down_member = add_member("down")
    assert [
        entry.name for entry in agent_config.direct_entries([connected_member, down_member], require_all=False)
    ] == ["up"]
    with pytest.raises(RequestRefusedError, match="'down' does not run"):
        agent_config.direct_entries([connected_member, down_member], require_all=True)


@pytest.mark.django_db
def test_without_a_runtime_no_member_has_a_direct_entry() -> None:
    member = add_member("up", status="connected")
    PortAllocation.objects.create(port=20000, member=member)
    assert agent_config.direct_entries([member], require_all=False) == []


def test_only_members_that_the_principal_may_call_are_chosen(connected_member: GuildMember) -> None:
    principal = Principal(1, "bob", invokes=True, closed_members=frozenset({"up"}))
    add_member("open")
    assert [row.name for row in agent_config.select_members(principal, [])] == ["open"]
    with pytest.raises(UnknownMemberError):
        agent_config.select_members(principal, ["up"])
    assert [row.name for row in agent_config.select_members(OPERATOR, ["up", "open", "up"])] == ["up", "open"]


def test_the_cost_counts_enabled_tools_that_the_principal_may_call(connected_member: GuildMember) -> None:
    gateway_cost = agent_config.costs(OPERATOR, [connected_member], direct=False)["up"]
    direct_cost = agent_config.costs(OPERATOR, [connected_member], direct=True)["up"]
    assert direct_cost.characters == len('{"name": "echo", "inputSchema": {"type": "object"}}')
    assert gateway_cost.characters == direct_cost.characters + len("up__")
    assert (direct_cost.tools, gateway_cost.tools) == (1, 1)
    principal = Principal(1, "bob", invokes=True, tools=frozenset({("up", "other")}))
    assert agent_config.costs(principal, [connected_member], direct=False)["up"] == Cost()


def test_a_token_has_about_four_characters() -> None:
    assert Cost(1, 401).tokens == 101
    assert Cost(1, 400) + Cost(2, 8) == Cost(3, 408)


def test_the_cost_of_a_definition_is_counted_again_only_after_a_change(
    connected_member: GuildMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large definitions delay all other requests while they are read and written."""
    before = agent_config.costs(OPERATOR, [connected_member], direct=False)["up"].characters
    with monkeypatch.context() as patch:
        patch.setattr(mcp, "offered_definition", lambda *_, **__: pytest.fail("read again"))
        assert agent_config.costs(OPERATOR, [connected_member], direct=False)["up"].characters == before
    definition = {"name": "echo", "inputSchema": {"type": "object"}, "title": "é"}
    Tool.objects.update(definition=definition, version="another")
    assert agent_config.costs(OPERATOR, [connected_member], direct=False)["up"].characters == before + len(
        ', "title": "é"'
    )


def test_in_search_mode_clients_pay_only_for_the_tools_that_search_and_pinned_ones(
    connected_member: GuildMember,
) -> None:
    for number in range(50):
        definition = {"name": f"t{number}", "description": "Do something. " * 20, "inputSchema": {"type": "object"}}
        Tool.objects.create(member=connected_member, name=f"t{number}", position=number, definition=definition)
    searching = replace(OPERATOR, searches=True)
    costs = agent_config.costs(searching, [connected_member], direct=False)
    assert costs["up"] == Cost()
    total = sum(costs.values(), Cost())
    assert total.tools == 3
    assert total.tokens <= 600
    pinning = replace(searching, pinned=frozenset({("up", "t1")}))
    assert agent_config.costs(pinning, [connected_member], direct=False)["up"].tools == 1
    assert agent_config.costs(pinning, [connected_member], direct=True)["up"].tools > 50
    create_tool_set(Values("some", entries=(SetEntry("up"),)), OPERATOR, None)
    of_set = agent_config.costs_of_set(pinning, "some")
    assert {name: cost.tools for name, cost in of_set.items()} == {agent_config.SEARCH_TOOLS: 3, "up": 1}


def test_configurations_have_the_public_address_of_the_gateway(settings: Any) -> None:
    settings.GUILD_HALL_GATEWAY_URL = "https://gateway.example.com"
    (entry,) = agent_config.gateway_entries(["a", "b"], "secret")
    assert entry.url == "https://gateway.example.com/mcp?members=a,b"
    (entry,) = agent_config.gateway_entries([], "secret", "writing")
    assert entry.url == "https://gateway.example.com/sets/writing/mcp"


def test_the_definitions_of_many_tools_are_read_in_two_queries_and_later_only_whether_a_tool_changed(
    connected_member: GuildMember, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    names = [f"many-{number}" for number in range(agent_config.MAX_IDS + 5)]
    Tool.objects.bulk_create(
        Tool(member=connected_member, name=name, definition={"name": name}, version=f"version {name}") for name in names
    )
    with django_assert_num_queries(3):
        first = agent_config.listed_tools(OPERATOR, [connected_member.name], direct=False)
    with django_assert_num_queries(1):
        second = agent_config.listed_tools(OPERATOR, [connected_member.name], direct=False)
    assert second is first
    Tool.objects.filter(name=names[0]).update(enabled=False)
    third = agent_config.listed_tools(OPERATOR, [connected_member.name], direct=False)
    assert (first.total.tools, third.total.tools) == (len(names) + 1, len(names))
    assert first.by_member == {"up": first.total}
    assert all(tool.characters > len(tool.name) for tool in first.tools)


def test_a_definition_without_a_version_is_counted_each_time(connected_member: GuildMember) -> None:
    Tool.objects.update(version="")
    before = agent_config.costs(OPERATOR, [connected_member], direct=False)["up"].characters
    Tool.objects.update(definition={"name": "echo", "description": "longer"})
    assert agent_config.costs(OPERATOR, [connected_member], direct=False)["up"].characters != before

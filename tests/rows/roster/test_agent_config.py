"""What agents' clients want written down, read back as those clients would, and what it costs."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from django.conf import settings

from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import RequestRefusedError, UnknownMemberError
from mcp_runtime.rows import lease
from mcp_runtime.security.access import OPERATOR, Principal
from roster import agent_config
from roster.agent_config import FORMATS, Cost, Entry
from roster.models import GuildMember, PortAllocation, Tool

ENTRIES = [
    Entry("guild-hall", "http://localhost:8100/mcp?members=a,b", "gh_x"),
    Entry("a", "http://localhost:20000/mcp"),
]
HEADERS = {"Authorization": "Bearer gh_x"}
GATEWAY, DIRECT = ENTRIES[0].url, ENTRIES[1].url


def written(client: str) -> Any:
    text = FORMATS[client].write(ENTRIES)
    return tomllib.loads(text) if client == "codex" else json.loads(text)


@pytest.mark.parametrize(
    ("client", "key"), [("agent-sdk", "mcp_servers"), ("claude-code", "mcpServers"), ("vscode", "servers")]
)
def test_clients_that_want_a_type_get_one(client: str, key: str) -> None:
    assert written(client) == {
        key: {"guild-hall": {"type": "http", "url": GATEWAY, "headers": HEADERS}, "a": {"type": "http", "url": DIRECT}}
    }


def test_cursor_tells_the_transport_by_the_url() -> None:
    assert written("cursor") == {
        "mcpServers": {"guild-hall": {"url": GATEWAY, "headers": HEADERS}, "a": {"url": DIRECT}}
    }


def test_codex_reads_toml_and_takes_literal_headers_as_http_headers() -> None:
    assert written("codex") == {
        "mcp_servers": {"guild-hall": {"url": GATEWAY, "http_headers": HEADERS}, "a": {"url": DIRECT}}
    }


def test_the_gateways_url_is_narrowed_by_members() -> None:
    port = settings.GUILD_HALL_GATEWAY_PORT
    (everything,) = agent_config.gateway_entries([], "gh_x")
    (some,) = agent_config.gateway_entries(["a", "b"], "gh_x")
    assert everything.url == f"http://localhost:{port}/mcp"
    assert some.url == f"http://localhost:{port}/mcp?members=a,b"


def add_member(name: str, *tools: str, **columns: Any) -> GuildMember:
    member = GuildMember.objects.create(name=name, directory=name, **columns)
    for tool in tools:
        Tool.objects.create(member=member, name=tool, definition={"name": tool, "inputSchema": {"type": "object"}})
    return member


@pytest.fixture
def up(db: None) -> GuildMember:
    member = add_member("up", "echo", "off", status="connected")
    PortAllocation.objects.create(port=20000, member=member)
    Tool.objects.filter(name="off").update(enabled=False)
    lease.take()
    return member


def test_direct_entries_are_the_members_own_endpoints(up: GuildMember) -> None:
    assert agent_config.direct_entries([up], require_all=True) == [Entry("up", "http://localhost:20000/mcp")]


def test_a_member_that_does_not_run_has_no_direct_entry(up: GuildMember) -> None:
    down = add_member("down")
    assert [entry.name for entry in agent_config.direct_entries([up, down], require_all=False)] == ["up"]
    with pytest.raises(RequestRefusedError, match="'down' does not run"):
        agent_config.direct_entries([up, down], require_all=True)


@pytest.mark.django_db
def test_without_a_runtime_nobody_has_a_direct_entry() -> None:
    member = add_member("up", status="connected")
    PortAllocation.objects.create(port=20000, member=member)
    assert agent_config.direct_entries([member], require_all=False) == []


def test_only_members_that_may_be_called_are_chosen(up: GuildMember) -> None:
    who = Principal(1, "bob", invokes=True, closed_members=frozenset({"up"}))
    add_member("open")
    assert [row.name for row in agent_config.select_members(who, [])] == ["open"]
    with pytest.raises(UnknownMemberError):
        agent_config.select_members(who, ["up"])
    assert [row.name for row in agent_config.select_members(OPERATOR, ["up", "open", "up"])] == ["up", "open"]


def test_the_cost_counts_what_may_be_called_and_is_switched_on(up: GuildMember) -> None:
    through_gateway = agent_config.costs(OPERATOR, [up], direct=False)["up"]
    directly = agent_config.costs(OPERATOR, [up], direct=True)["up"]
    assert directly.characters == len('{"name": "echo", "inputSchema": {"type": "object"}}')
    assert through_gateway.characters == directly.characters + len("up__")
    assert (directly.tools, through_gateway.tools) == (1, 1)
    nothing = Principal(1, "bob", invokes=True, tools=frozenset({("up", "other")}))
    assert agent_config.costs(nothing, [up], direct=False)["up"] == Cost()


def test_a_token_is_about_four_characters() -> None:
    assert Cost(1, 401).tokens == 101
    assert Cost(1, 400) + Cost(2, 8) == Cost(3, 408)


def test_what_a_definition_costs_is_counted_once_and_again_when_it_changed(
    up: GuildMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large ones hold up all other requests while they are read and written."""
    before = agent_config.costs(OPERATOR, [up], direct=False)["up"].characters
    with monkeypatch.context() as patch:
        patch.setattr(mcp, "offered_definition", lambda *_, **__: pytest.fail("read again"))
        assert agent_config.costs(OPERATOR, [up], direct=False)["up"].characters == before
    Tool.objects.update(definition={"name": "echo", "inputSchema": {"type": "object"}, "title": "é"})
    assert agent_config.costs(OPERATOR, [up], direct=False)["up"].characters == before + len(', "title": "é"')

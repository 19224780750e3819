"""The page of a token in the admin: the configuration of each client, and the clients and the calls of the token."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from mcp_runtime.control.members import reserve_member
from mcp_runtime.control.tokens import revoke_token
from mcp_runtime.control.tool_sets import Entry, Values, create_tool_set, delete_tool_set
from mcp_runtime.rows import lease
from mcp_runtime.security.access import OPERATOR
from roster.client_formats import CLIENTS, PLACEHOLDER
from roster.models import Call, GuildMember, PortAllocation, Token, TokenClient, Tool, ToolSet
from roster.templatetags.hall import code_spans
from tests.support.leases import own_node

pytestmark = pytest.mark.django_db

EVIL = "<script>alert('x')</script>"
PARTS = ["configuration", "use"]


@pytest.fixture(autouse=True)
def runtime() -> Iterator[None]:
    """As if a runtime were live."""
    lease_id = lease.take()
    yield
    lease.release(lease_id)


@pytest.fixture
def bob() -> User:
    """A user who may call tools, and create and see their own tokens."""
    user = User.objects.create_user("bob", is_staff=True)
    codenames = ["invoke_tool", "add_token", "view_token"]
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    return user


@pytest.fixture
def page(bob: User) -> Client:
    client = Client()
    client.force_login(bob)
    return client


@pytest.fixture
def members() -> dict[str, GuildMember]:
    members = {}
    for name in ("notes", "example"):
        members[name] = GuildMember.objects.create(name=name, directory=name, status="connected", node=own_node())
        Tool.objects.create(member=members[name], name="add", definition={"name": "add", "description": "d" * 400})
    PortAllocation.objects.create(port=20000, member=members["notes"])
    return members


@pytest.fixture
def token(bob: User, members: dict[str, GuildMember]) -> Token:
    return Token.make(user=bob, name="laptop")[0]


def page_url(token: Token) -> str:
    return reverse("admin:roster_token_change", args=[token.pk])


def part_url(token: Token, part: str) -> str:
    return reverse("admin:roster_token_part", args=[token.pk, part])


def text_of(response: Any) -> str:
    assert response.status_code == 200, response
    return html.unescape(response.content.decode())


def config_of(text: str, client: str) -> str:
    """The configuration for the client."""
    return text.partition(f'id="config-{client}"')[2].partition(">")[2].partition("</pre>")[0]


# Set up a client --------------------------------------------------------------------------------------------------


def test_a_new_token_leads_to_its_page_with_the_configuration_of_each_client(
    page: Client, bob: User, members: dict[str, GuildMember]
) -> None:
    response = page.post(reverse("admin:roster_token_add"), {"user": bob.pk, "name": "x", "scope": "all"}, follow=True)
    token = Token.objects.get()
    assert response.redirect_chain[-1][0] == page_url(token)
    text = text_of(response)
    assert '<code class="token">gh_' in text
    for client, form in CLIENTS.items():
        assert html.unescape(code_spans(form.place)) in text
        assert PLACEHOLDER in config_of(text, client)
    assert '<code class="token">' not in text_of(page.get(page_url(token)))


def test_a_new_token_is_in_no_cookie(page: Client, bob: User) -> None:
    response = page.post(reverse("admin:roster_token_add"), {"user": bob.pk, "name": "x", "scope": "all"})
    assert response.status_code == 302
    assert "messages" not in response.cookies


def test_a_user_who_may_create_but_not_see_tokens_sees_the_new_one(page: Client, bob: User) -> None:
    bob.user_permissions.set(Permission.objects.filter(codename="add_token"))
    response = page.post(reverse("admin:roster_token_add"), {"user": bob.pk, "scope": "all"}, follow=True)
    assert '<code class="token">gh_' in text_of(response)


def test_the_configuration_has_one_address_for_all_members_or_names_the_chosen_ones(page: Client, token: Token) -> None:
    port = settings.GUILD_HALL_GATEWAY_PORT
    config = json.loads(config_of(text_of(page.get(part_url(token, "configuration"))), "claude-code"))
    assert config["mcpServers"]["guild-hall"]["url"] == f"http://localhost:{port}/mcp"
    text = text_of(page.get(part_url(token, "configuration"), {"members": ["notes", "nobody"]}))
    assert f"http://localhost:{port}/mcp?members=notes" in config_of(text, "codex")
    assert "1 tool" in text
    assert "2 tools" in text_of(page.get(part_url(token, "configuration")))
    for address in (page_url(token), part_url(token, "configuration")):
        assert "members=notes" in text_of(page.get(address, {"members": "notes"}))


def test_the_direct_configuration_has_the_endpoints_of_connected_members(page: Client, token: Token) -> None:
    text = text_of(page.get(part_url(token, "configuration"), {"way": "direct"}))
    servers = json.loads(config_of(text, "cursor"))["mcpServers"]
    assert servers == {"notes": {"url": "http://localhost:20000/mcp"}}
    text_of_stopped_member = text_of(
        page.get(part_url(token, "configuration"), {"way": "direct", "members": "example"})
    )
    assert "Member 'example' does not run, so it has no endpoint; start it first." in text_of_stopped_member
    assert "config-cursor" not in text_of_stopped_member


def test_only_members_in_the_scope_of_the_token_can_be_chosen(
    page: Client, bob: User, members: dict[str, GuildMember]
) -> None:
    narrow_token = Token.make(user=bob, scope=Token.Scope.MEMBERS, members=[members["notes"]])[0]
    text = text_of(page.get(page_url(narrow_token)))
    assert 'value="notes"' in text
    assert 'value="example"' not in text
    assert "1 tool" in text
    reserve_member(members["notes"], [Group.objects.create(name="others")])
    assert 'value="notes"' not in text_of(page.get(page_url(narrow_token)))


@pytest.fixture
def writing(members: dict[str, GuildMember]) -> ToolSet:
    return create_tool_set(Values("writing", entries=[Entry("notes", "add", "write")]), OPERATOR, None)


def test_a_client_can_be_set_up_for_a_tool_set(page: Client, token: Token, writing: ToolSet) -> None:
    create_tool_set(Values("sealed", groups=[Group.objects.create(name="others")]), OPERATOR, None)
    text = text_of(page.get(page_url(token), {"tool_set": "writing"}))
    assert '<option value="writing" selected>' in text
    assert "sealed" not in text
    for address in (page_url(token), part_url(token, "configuration")):
        text = text_of(page.get(address, {"tool_set": "writing", "way": "gateway"}))
        assert f"http://localhost:{settings.GUILD_HALL_GATEWAY_PORT}/sets/writing/mcp" in config_of(text, "codex")
        assert "1 tool" in text
    for query in ({"members": "notes"}, {"way": "direct"}):
        text = text_of(page.get(part_url(token, "configuration"), {"tool_set": "writing", **query}))
        assert "A configuration is for a tool set, or for members; give one of them." in text
        assert "config-codex" not in text
    for name in ("sealed", "nobody"):
        text = text_of(page.get(part_url(token, "configuration"), {"tool_set": name}))
        assert f"The hall has no tool set '{name}'." in text


def test_the_client_of_a_token_for_a_tool_set_uses_the_address_of_the_set(
    page: Client, bob: User, writing: ToolSet
) -> None:
    token = Token.make(user=bob, scope=Token.Scope.TOOLS, tool_set=writing)[0]
    for query in ({}, {"members": "notes"}, {"tool_set": "other"}, {"way": "direct"}):
        text = text_of(page.get(page_url(token), query))
        servers = json.loads(config_of(text, "claude-code"))["mcpServers"]
        assert servers["guild-hall"]["url"].endswith("/sets/writing/mcp"), query
        assert 'id="choices"' not in text
    writing.groups.set([Group.objects.create(name="others")])
    assert "The hall has no tool set 'writing'." in text_of(page.get(page_url(token)))
    delete_tool_set(writing)
    assert "This token gives access to no members." in text_of(page.get(page_url(token)))


@pytest.mark.parametrize("part", ["page", "configuration"])
def test_a_revoked_or_expired_token_has_no_configuration(page: Client, token: Token, part: str) -> None:
    address = page_url(token) if part == "page" else part_url(token, part)
    Token.objects.update(expires_at=timezone.now() - timedelta(days=1))
    assert "This token expired" in text_of(page.get(address))
    revoke_token(token)
    text = text_of(page.get(address))
    assert "This token was revoked. Make another with: guildhall create_token USER<" in text
    assert "config-cursor" not in text


def test_the_configuration_is_requested_only_once(page: Client, token: Token) -> None:
    assert page.get(part_url(token, "configuration"))["X-Live"] == "done"
    assert page.get(part_url(token, "use"))["X-Live"] == "part"


# Use --------------------------------------------------------------------------------------------------------------


def add_call(token: Token, member: GuildMember, tool: str, **columns: Any) -> None:
    values = {"timeout": 5, "source": "gateway", "token": token, "requested_by": token.user}
    Call.objects.create(member=member, tool_name=tool, **{**values, **columns})


def add_client(token: Token, name: str, version: str = "", calls: int = 0) -> None:
    now = timezone.now()
    TokenClient.objects.create(
        token=token, name=name, version=version, calls=calls, first_seen_at=now, last_seen_at=now
    )


def test_the_clients_and_the_calls_of_a_token_are_shown(
    page: Client, bob: User, token: Token, members: dict[str, GuildMember]
) -> None:
    other_token = Token.make(user=bob)[0]
    add_client(token, "claude-code", "2.1.7", calls=1234)
    add_client(other_token, "somebody-else")
    add_call(token, members["notes"], "add", status="succeeded")
    add_call(token, members["notes"], "add", status="failed")
    add_call(other_token, members["example"], "of-another")
    text = " ".join(text_of(page.get(part_url(token, "use"))).split())
    assert "<td>claude-code</td><td>2.1.7</td>" in text
    assert "<td>1,234</td>" in text
    assert "<td>add</td><td>2</td><td>1</td>" in text
    assert "somebody-else" not in text
    assert "of-another" not in text
    link = f"{reverse('admin:roster_call_changelist')}?token={token.pk}"
    assert link in text
    assert len(page.get(link).context["cl"].result_list) == 2


def test_the_list_shows_the_last_client(page: Client, token: Token) -> None:
    add_client(token, "cursor", "1.0")
    add_client(token, EVIL, "2.1")
    content = page.get(reverse("admin:roster_token_changelist")).content.decode()
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; 2.1" in content
    assert "cursor" not in content
    assert "<span>Last client</span>" in content


def test_the_part_about_use_is_sent_again_only_after_a_change(page: Client, token: Token) -> None:
    tag = page.get(part_url(token, "use"))["ETag"]
    assert page.get(part_url(token, "use"), headers={"If-None-Match": tag}).status_code == 304
    add_client(token, "cursor")
    assert page.get(part_url(token, "use"), headers={"If-None-Match": tag}).status_code == 200


def test_hostile_texts_are_escaped(page: Client, token: Token, members: dict[str, GuildMember]) -> None:
    add_client(token, EVIL, EVIL)
    add_call(token, members["notes"], EVIL)
    for address in (page_url(token), part_url(token, "use")):
        content = page.get(address).content.decode()
        assert EVIL not in content
        assert "&lt;script&gt;" in content


@pytest.mark.parametrize("part", PARTS)
def test_a_part_costs_the_same_number_of_queries_for_any_number_of_rows(page: Client, token: Token, part: str) -> None:
    def count_queries(begin: int, end: int) -> int:
        for number in range(begin, end):
            member = GuildMember.objects.create(name=f"m{number}", directory="m", status="connected")
            Tool.objects.create(member=member, name="t", definition={"name": "t"})
            add_call(token, member, "t")
            add_client(token, f"client-{number}")
        page.get(part_url(token, part))
        with CaptureQueriesContext(connection) as queries:
            text_of(page.get(part_url(token, part)))
        return len(queries)

    assert count_queries(0, 2) == count_queries(2, 12) <= 14


# Access control ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", PARTS)
def test_a_user_cannot_see_the_parts_of_tokens_of_others(page: Client, token: Token, part: str) -> None:
    other_token = Token.make(user=User.objects.create_superuser("alice"))[0]
    assert page.get(part_url(token, part)).status_code == 200
    assert page.get(part_url(other_token, part)).status_code == 403
    assert Client().get(part_url(token, part)).status_code == 302


def test_a_request_for_an_unknown_part_of_the_page_is_404(page: Client, token: Token) -> None:
    assert page.get(part_url(token, "cellar")).status_code == 404

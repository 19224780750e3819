"""A token's page in the admin: the configuration of each client, the programs that used it, and the tools called."""

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
from mcp_runtime.rows import lease
from roster.agent_config import FORMATS, PLACEHOLDER
from roster.models import Call, GuildMember, PortAllocation, Token, TokenClient, Tool

pytestmark = pytest.mark.django_db

EVIL = "<script>alert('x')</script>"
PARTS = ["configuration", "use"]


@pytest.fixture(autouse=True)
def runtime() -> Iterator[None]:
    """As if a runtime were alive."""
    lease_id = lease.take()
    yield
    lease.release(lease_id)


@pytest.fixture
def bob() -> User:
    """Makes and sees own tokens, and may call tools."""
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
    made = {}
    for name in ("notes", "example"):
        made[name] = GuildMember.objects.create(name=name, directory=name, status="connected")
        Tool.objects.create(member=made[name], name="add", definition={"name": "add", "description": "d" * 400})
    PortAllocation.objects.create(port=20000, member=made["notes"])
    return made


@pytest.fixture
def token(bob: User, members: dict[str, GuildMember]) -> Token:
    return Token.make(user=bob, name="laptop")[0]


def page_of(token: Token) -> str:
    return reverse("admin:roster_token_change", args=[token.pk])


def part_of(token: Token, part: str) -> str:
    return reverse("admin:roster_token_part", args=[token.pk, part])


def text_of(response: Any) -> str:
    assert response.status_code == 200, response
    return html.unescape(response.content.decode())


def written(text: str, client: str) -> str:
    """What is to be written down for the client."""
    return text.partition(f'id="config-{client}"')[2].partition(">")[2].partition("</pre>")[0]


# Set up a client --------------------------------------------------------------------------------------------------


def test_a_new_token_leads_to_its_page_with_what_each_client_wants(
    page: Client, bob: User, members: dict[str, GuildMember]
) -> None:
    response = page.post(reverse("admin:roster_token_add"), {"user": bob.pk, "name": "x", "scope": "all"}, follow=True)
    made = Token.objects.get()
    assert response.redirect_chain[-1][0] == page_of(made)
    text = text_of(response)
    assert '<code class="token">gh_' in text
    for client, form in FORMATS.items():
        assert form.place in text
        assert PLACEHOLDER in written(text, client)
    assert '<code class="token">' not in text_of(page.get(page_of(made)))


def test_a_new_token_travels_in_no_cookie(page: Client, bob: User) -> None:
    made = page.post(reverse("admin:roster_token_add"), {"user": bob.pk, "name": "x", "scope": "all"})
    assert made.status_code == 302
    assert "messages" not in made.cookies


def test_who_may_make_tokens_and_not_see_them_is_still_told_the_new_one(page: Client, bob: User) -> None:
    bob.user_permissions.set(Permission.objects.filter(codename="add_token"))
    response = page.post(reverse("admin:roster_token_add"), {"user": bob.pk, "scope": "all"}, follow=True)
    assert '<code class="token">gh_' in text_of(response)


def test_all_members_are_one_address_and_chosen_ones_are_named(page: Client, token: Token) -> None:
    port = settings.GUILD_HALL_GATEWAY_PORT
    whole = json.loads(written(text_of(page.get(part_of(token, "configuration"))), "claude-code"))
    assert whole["mcpServers"]["guild-hall"]["url"] == f"http://localhost:{port}/mcp"
    some = text_of(page.get(part_of(token, "configuration"), {"members": ["notes", "nobody"]}))
    assert f"http://localhost:{port}/mcp?members=notes" in written(some, "codex")
    assert "1 tool" in some
    assert "2 tools" in text_of(page.get(part_of(token, "configuration")))
    for address in (page_of(token), part_of(token, "configuration")):
        assert "members=notes" in text_of(page.get(address, {"members": "notes"}))


def test_the_direct_way_has_the_endpoints_of_members_that_run(page: Client, token: Token) -> None:
    text = text_of(page.get(part_of(token, "configuration"), {"way": "direct"}))
    servers = json.loads(written(text, "cursor"))["mcpServers"]
    assert servers == {"notes": {"url": "http://localhost:20000/mcp"}}
    refused = text_of(page.get(part_of(token, "configuration"), {"way": "direct", "members": "example"}))
    assert "Member 'example' does not run, so it has no endpoint; start it first." in refused
    assert "config-cursor" not in refused


def test_what_the_token_does_not_open_is_not_offered(page: Client, bob: User, members: dict[str, GuildMember]) -> None:
    narrow = Token.make(user=bob, scope=Token.Scope.MEMBERS, members=[members["notes"]])[0]
    text = text_of(page.get(page_of(narrow)))
    assert 'value="notes"' in text
    assert 'value="example"' not in text
    assert "1 tool" in text
    reserve_member(members["notes"], [Group.objects.create(name="others")])
    assert 'value="notes"' not in text_of(page.get(page_of(narrow)))


@pytest.mark.parametrize("part", ["page", "configuration"])
def test_a_token_that_is_over_needs_no_configuration(page: Client, token: Token, part: str) -> None:
    address = page_of(token) if part == "page" else part_of(token, part)
    Token.objects.update(expires_at=timezone.now() - timedelta(days=1))
    assert "This token expired" in text_of(page.get(address))
    revoke_token(token)
    text = text_of(page.get(address))
    assert "This token was revoked. Make another with: manage.py create_token USER<" in text
    assert "config-cursor" not in text


def test_the_configuration_is_not_asked_for_again_and_again(page: Client, token: Token) -> None:
    assert page.get(part_of(token, "configuration"))["X-Live"] == "done"
    assert page.get(part_of(token, "use"))["X-Live"] == "part"


# Use --------------------------------------------------------------------------------------------------------------


def called(token: Token, member: GuildMember, tool: str, **columns: Any) -> None:
    Call.objects.create(member=member, tool_name=tool, timeout=5, source="gateway", token=token, **columns)


def seen(token: Token, name: str, version: str = "", calls: int = 0) -> None:
    now = timezone.now()
    TokenClient.objects.create(
        token=token, name=name, version=version, calls=calls, first_seen_at=now, last_seen_at=now
    )


def test_who_came_and_what_was_called_is_told(
    page: Client, bob: User, token: Token, members: dict[str, GuildMember]
) -> None:
    other = Token.make(user=bob)[0]
    seen(token, "claude-code", "2.1.7", calls=1234)
    seen(other, "somebody-else")
    called(token, members["notes"], "add", status="succeeded")
    called(token, members["notes"], "add", status="failed")
    called(other, members["example"], "of-another")
    text = " ".join(text_of(page.get(part_of(token, "use"))).split())
    assert "<td>claude-code</td><td>2.1.7</td>" in text
    assert "<td>1234</td>" in text
    assert "<td>add</td><td>2</td><td>1</td>" in text
    assert "somebody-else" not in text
    assert "of-another" not in text
    assert "All calls with this token" not in text
    bob.user_permissions.add(Permission.objects.get(codename="view_call"))
    link = f"{reverse('admin:roster_call_changelist')}?token={token.pk}"
    assert link in text_of(page.get(part_of(token, "use")))
    assert len(page.get(link).context["cl"].result_list) == 2


def test_the_list_says_which_program_came_last(page: Client, token: Token) -> None:
    seen(token, "cursor", "1.0")
    seen(token, EVIL, "2.1")
    listed = page.get(reverse("admin:roster_token_changelist")).content.decode()
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; 2.1" in listed
    assert "cursor" not in listed
    assert "<span>Last client</span>" in listed


def test_use_is_told_anew_when_it_changed(page: Client, token: Token) -> None:
    tag = page.get(part_of(token, "use"))["ETag"]
    assert page.get(part_of(token, "use"), headers={"If-None-Match": tag}).status_code == 304
    seen(token, "cursor")
    assert page.get(part_of(token, "use"), headers={"If-None-Match": tag}).status_code == 200


def test_hostile_words_are_escaped(page: Client, token: Token, members: dict[str, GuildMember]) -> None:
    seen(token, EVIL, EVIL)
    called(token, members["notes"], EVIL)
    for address in (page_of(token), part_of(token, "use")):
        content = page.get(address).content.decode()
        assert EVIL not in content
        assert "&lt;script&gt;" in content


@pytest.mark.parametrize("part", PARTS)
def test_a_part_costs_the_same_queries_however_much_it_shows(page: Client, token: Token, part: str) -> None:
    def grow(begin: int, end: int) -> int:
        for number in range(begin, end):
            member = GuildMember.objects.create(name=f"m{number}", directory="m", status="connected")
            Tool.objects.create(member=member, name="t", definition={"name": "t"})
            called(token, member, "t")
            seen(token, f"client-{number}")
        page.get(part_of(token, part))
        with CaptureQueriesContext(connection) as captured:
            text_of(page.get(part_of(token, part)))
        return len(captured)

    assert grow(0, 2) == grow(2, 12) <= 14


# Who sees it ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", PARTS)
def test_tokens_of_others_have_no_parts(page: Client, token: Token, part: str) -> None:
    theirs = Token.make(user=User.objects.create_superuser("alice"))[0]
    assert page.get(part_of(token, part)).status_code == 200
    assert page.get(part_of(theirs, part)).status_code == 403
    assert Client().get(part_of(token, part)).status_code == 302


def test_a_part_that_there_is_not_is_not_found(page: Client, token: Token) -> None:
    assert page.get(part_of(token, "cellar")).status_code == 404

"""Access control over REST: groups and scopes limit every list and verb. Tokens are created and revoked."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.utils import timezone

from mcp_runtime.control.members import reserve_member
from mcp_runtime.security.limits import Limiter, TokenLimits
from roster.api import calls
from roster.models import Call, GuildMember, Token
from tests.support.api import add_call, add_member, add_tool, client_of

TOKENS = "/api/tokens/"
Scope = Token.Scope


@pytest.fixture(autouse=True)
def limiter(monkeypatch: pytest.MonkeyPatch) -> Limiter:
    new_limiter = Limiter()
    monkeypatch.setattr(calls, "limiter", new_limiter)
    return new_limiter


@pytest.fixture
def notes(db: None) -> GuildMember:
    member = add_member("notes")
    add_tool(member, "add")
    add_tool(member, "list")
    return member


@pytest.fixture
def reserved_member(notes: GuildMember) -> GuildMember:
    reserve_member(notes, [Group.objects.create(name="writers")])
    return notes


def post(client: Client, address: str, body: Any = None, **headers: str) -> Any:
    return client.post(address, body or {}, content_type="application/json", headers=headers)


def invoke(client: Client, member: str, tool: str) -> Any:
    body = {"arguments": {"text": "hi"}} if tool == "echo" else {}
    return post(client, f"/api/members/{member}/tools/{tool}/invoke/", body)


def roster_of(client: Client) -> dict[str, list[str]]:
    members = client.get("/api/roster/").json()["members"]
    tools_by_member = {row["name"]: [tool["name"] for tool in row["tools"]] for row in members}
    assert [row["name"] for row in client.get("/api/members/").json()["members"]] == list(tools_by_member)
    return tools_by_member


# Lists and verbs --------------------------------------------------------------------------------------------------


def test_a_token_for_some_members_sees_and_calls_only_those(
    bob: User, example: GuildMember, notes: GuildMember
) -> None:
    client = client_of(bob, scope=Scope.MEMBERS, members=[notes])
    assert roster_of(client) == {"notes": ["add", "list"]}
    assert invoke(client, "notes", "add").status_code == 202
    response = invoke(client, "example", "echo")
    assert (response.status_code, response.json()["code"]) == (403, "not_allowed")
    assert "is for these members alone: notes" in response.json()["detail"]
    assert post(client, "/api/members/notes/stop/").status_code == 202
    for address in ("", "tools/", "tools/echo/", "logs/", "status-changes/"):
        assert client.get(f"/api/members/example/{address}").status_code == 404
    assert post(client, "/api/members/example/stop/").status_code == 404
    assert post(client, "/api/members/example/tools/echo/disable/").status_code == 404
    example.refresh_from_db()
    assert example.desired_state == "running"
    assert example.tools.get().enabled


def test_a_token_for_some_tools_sees_and_calls_only_those(bob: User, example: GuildMember, notes: GuildMember) -> None:
    client = client_of(bob, scope=Scope.TOOLS, tools=[notes.tools.get(name="add")])
    assert roster_of(client) == {"notes": ["add"]}
    assert [tool["name"] for tool in client.get("/api/members/notes/tools/").json()["tools"]] == ["add"]
    assert client.get("/api/members/notes/tools/add/").status_code == 200
    assert client.get("/api/members/notes/tools/list/").status_code == 404
    assert invoke(client, "notes", "add").status_code == 202
    assert invoke(client, "notes", "list").status_code == 403
    assert post(client, "/api/members/notes/stop/").status_code == 403
    assert post(client, "/api/members/notes/tools/add/disable/").status_code == 403
    assert client.get("/api/members/notes/logs/").status_code == 403
    assert GuildMember.objects.get(name="notes").desired_state == "running"


def test_a_reserved_member_does_not_exist_for_other_users(
    bob: User, as_bob: Client, as_alice: Client, example: GuildMember, reserved_member: GuildMember
) -> None:
    add_call(reserved_member)
    assert roster_of(as_bob) == {"example": ["echo"]}
    assert as_bob.get("/api/members/notes/").status_code == 404
    assert post(as_bob, "/api/members/notes/stop/").status_code == 404
    assert as_bob.get("/api/calls/").json()["results"] == []
    response = invoke(as_bob, "notes", "add")
    assert response.status_code == 403
    assert "reserved for groups" in response.json()["detail"]
    assert set(roster_of(as_alice)) == {"example", "notes"}

    bob.groups.add(Group.objects.get(name="writers"))

    assert set(roster_of(as_bob)) == {"example", "notes"}
    assert invoke(as_bob, "notes", "add").status_code == 202


def test_a_user_who_may_not_call_sees_no_tools(as_charlie: Client, example: GuildMember) -> None:
    assert roster_of(as_charlie) == {"example": []}
    assert as_charlie.get("/api/members/example/tools/").json() == {"tools": []}
    assert as_charlie.get("/api/members/example/tools/echo/").status_code == 404


def test_a_user_who_may_only_control_sees_the_tools(charlie: User, as_charlie: Client, example: GuildMember) -> None:
    charlie.user_permissions.add(Permission.objects.get(codename="control_member"))
    assert roster_of(as_charlie) == {"example": ["echo"]}
    assert post(as_charlie, "/api/members/example/tools/echo/disable/").status_code == 200
    assert invoke(as_charlie, "example", "echo").status_code == 403


def test_a_session_of_a_browser_has_the_same_limits(
    bob: User, example: GuildMember, reserved_member: GuildMember
) -> None:
    client = Client()
    client.force_login(bob)
    assert roster_of(client) == {"example": ["echo"]}
    assert invoke(client, "notes", "add").status_code == 403


def test_a_call_has_its_token_and_keeps_the_name_of_it(bob: User, example: GuildMember) -> None:
    client = client_of(bob, name="laptop")
    response = invoke(client, "example", "echo").json()
    call = Call.objects.get()
    assert call.token == Token.objects.get()
    assert (response["token"], response["requester"]) == (call.token.pk, "bob (laptop)")
    assert call.requester == "bob (laptop)"
    Token.objects.get().delete()
    call.refresh_from_db()
    assert (call.token, call.requester, call.requested_by) == (None, "bob (laptop)", bob)


def test_a_narrow_token_sees_only_its_own_calls(bob: User, example: GuildMember) -> None:
    add_call(example, requested_by=bob)
    client = client_of(bob, scope=Scope.MEMBERS, members=[example])
    own_id = invoke(client, "example", "echo").json()["id"]
    assert [row["id"] for row in client.get("/api/calls/").json()["results"]] == [own_id]


# The token itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["token", "access_token", "api_key", "key", "Authorization", "authorization"])
def test_a_token_in_the_query_is_ignored(bob: User, example: GuildMember, name: str) -> None:
    token = Token.make(user=bob)[1]
    for value in (token, f"Bearer {token}"):
        assert Client().get("/api/roster/", {name: value}).status_code == 401
        address = f"/api/members/example/tools/echo/invoke/?{name}={value}"
        assert post(Client(), address, {"arguments": {"text": "x"}}).status_code == 401
    assert Client().get("/metrics", {name: token}).status_code == 401
    assert not Call.objects.exists()


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"revoked_at": timezone.now()}, "was revoked"),
        ({"expires_at": timezone.now() - timedelta(seconds=1)}, "expired at"),
    ],
)
def test_a_revoked_or_expired_token_is_401_with_the_reason(
    as_bob: Client, columns: dict[str, Any], reason: str
) -> None:
    Token.objects.update(**columns)
    response = as_bob.get("/api/roster/")
    assert (response.status_code, response.json()["code"]) == (401, "authentication_failed")
    assert reason in response.json()["detail"]


# New tokens -------------------------------------------------------------------------------------------------------


def test_a_token_is_created_and_shown_once(bob: User, notes: GuildMember) -> None:
    bob.user_permissions.add(Permission.objects.get(codename="add_token"))
    client = client_of(bob)
    body = {"name": "ci", "tools": ["notes/add"], "expires_at": "2099-01-01T00:00:00Z", "calls_per_minute": 5}
    response = post(client, TOKENS, body)
    assert response.status_code == 201
    new_token = response.json()
    assert (new_token["scope"], new_token["tools"], new_token["calls_per_minute"], new_token["state"]) == (
        "tools",
        ["notes/add"],
        5,
        "good",
    )
    row = Token.objects.get(pk=new_token["id"])
    assert (row.user, row.digest) == (bob, Token.digest_of(new_token["token"]))
    second_response = client.get(new_token["url"])
    assert "token" not in second_response.json()
    assert new_token["token"] not in second_response.content.decode()
    assert new_token["token"] not in client.get(TOKENS).content.decode()
    new_client = Client(headers={"Authorization": f"Bearer {new_token['token']}"})
    assert roster_of(new_client) == {"notes": ["add"]}


def test_creating_a_token_needs_the_permission_and_reading_does_not(as_bob: Client) -> None:
    response = post(as_bob, TOKENS)
    assert response.status_code == 403
    assert "roster.add_token" in response.json()["detail"]
    assert [row["hint"] for row in as_bob.get(TOKENS).json()["results"]] == [Token.objects.get().hint]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"member": ["notes"]}, 400),
        ({"tools": ["notes"]}, 400),
        ({"max_in_flight": 0}, 400),
        ({"calls_per_minute": -1}, 400),
        ({"name": "x" * 101}, 400),
        ({"members": ["nobody"]}, 404),
        ({"tools": ["notes/fly"]}, 404),
        ({"members": ["notes"], "tools": ["notes/add"]}, 409),
        ({"expires_at": "2001-01-01T00:00:00Z"}, 409),
    ],
)
def test_an_invalid_token_is_refused(as_alice: Client, notes: GuildMember, body: dict[str, Any], status: int) -> None:
    response = post(as_alice, TOKENS, body)
    assert response.status_code == status, response.json()
    assert response.json()["detail"]
    assert Token.objects.count() == 1


def test_a_token_cannot_create_a_wider_token(alice: User, notes: GuildMember, example: GuildMember) -> None:
    client = client_of(alice, scope=Scope.MEMBERS, members=[notes])
    assert post(client, TOKENS, {"members": ["example"]}).status_code == 403
    assert post(client, TOKENS).json()["members"] == ["notes"]


def test_a_revoked_token_is_refused_at_once_and_stays_in_the_list(alice: User, as_alice: Client) -> None:
    row, token = Token.make(user=alice, name="old")
    other_client = Client(headers={"Authorization": f"Bearer {token}"})
    assert other_client.get("/api/roster/").status_code == 200
    response = post(as_alice, f"{TOKENS}{row.pk}/revoke/")
    assert (response.status_code, response.json()["state"]) == (200, "revoked")
    assert other_client.get("/api/roster/").status_code == 401
    assert row.pk in [row_["id"] for row_ in as_alice.get(TOKENS).json()["results"]]


def test_tokens_of_others_are_404(as_alice: Client, bob: User) -> None:
    other_token = Token.make(user=bob)[0]
    assert as_alice.get(f"{TOKENS}{other_token.pk}/").status_code == 404
    assert post(as_alice, f"{TOKENS}{other_token.pk}/revoke/").status_code == 404
    other_token.refresh_from_db()
    assert other_token.revoked_at is None


def test_a_narrow_token_sees_only_itself(alice: User, notes: GuildMember) -> None:
    other_token = Token.make(user=alice)[0]
    client = client_of(alice, scope=Scope.MEMBERS, members=[notes])
    assert [row["scope"] for row in client.get(TOKENS).json()["results"]] == ["members"]
    assert post(client, f"{TOKENS}{other_token.pk}/revoke/").status_code == 404


# Limits ---------------------------------------------------------------------------------------------------------------


def test_too_many_calls_in_a_minute_are_429_with_the_time_to_wait(bob: User, example: GuildMember) -> None:
    client = client_of(bob, calls_per_minute=2)
    assert [invoke(client, "example", "echo").status_code for _ in range(3)] == [202, 202, 429]
    response = invoke(client, "example", "echo")
    assert 1 <= int(response["Retry-After"]) <= 30
    assert response.json()["code"] == "too_many_calls"
    assert "Too many calls a minute (limit 2)" in response.json()["detail"]
    assert client.get("/api/roster/").status_code == 200
    assert Call.objects.count() == 2


def test_tokens_without_their_own_limit_have_the_limit_of_the_settings(
    bob: User, example: GuildMember, settings: Any
) -> None:
    settings.GUILD_HALL_CALLS_PER_MINUTE = 1
    client, unlimited_client = client_of(bob), client_of(bob, calls_per_minute=0)
    assert [invoke(client, "example", "echo").status_code for _ in range(2)] == [202, 429]
    assert [invoke(unlimited_client, "example", "echo").status_code for _ in range(3)] == [202] * 3


@pytest.fixture
def client_with_active_call(bob: User, limiter: Limiter) -> Iterator[Client]:
    client = client_of(bob, max_in_flight=1)
    with limiter.call(Token.objects.get().pk, TokenLimits(max_in_flight=1)):
        yield client


def test_too_many_concurrent_calls_of_a_token_are_429(client_with_active_call: Client, example: GuildMember) -> None:
    response = invoke(client_with_active_call, "example", "echo")
    assert response.status_code == 429
    assert response["Retry-After"] == "1"
    assert "Too many concurrent calls (limit 1)" in response.json()["detail"]


def test_calls_that_were_accepted_are_not_concurrent(bob: User, example: GuildMember) -> None:
    client = client_of(bob, max_in_flight=1)
    assert [invoke(client, "example", "echo").status_code for _ in range(3)] == [202] * 3


# Configuration of clients -----------------------------------------------------------------------------------------

CONFIG = "/api/agent-config/"


def test_a_get_shows_the_configuration_with_a_placeholder_and_creates_no_token(
    as_bob: Client, notes: GuildMember, example: GuildMember
) -> None:
    response = as_bob.get(CONFIG, {"for": "claude-code", "members": "notes"})
    assert response.status_code == 200
    config = response.json()
    assert "PUT_A_TOKEN_HERE" in config["config"]
    assert "/mcp?members=notes" in config["config"]
    assert config["token"] is None
    assert set(config["cost_by_member"]) == {"notes"}
    assert config["cost"]["tools"] == 2
    assert config["cost"]["tokens"] > 0
    assert Token.objects.count() == 1


def test_a_post_creates_a_token_for_the_client_and_these_members(as_alice: Client, notes: GuildMember) -> None:
    response = post(as_alice, CONFIG, {"for": "codex", "members": ["notes"], "expires_at": "2099-01-01T00:00:00Z"})
    assert response.status_code == 201
    token_data = response.json()["token"]
    assert (token_data["name"], token_data["scope"], token_data["members"]) == ("codex", "members", ["notes"])
    (token,) = [word.strip('"') for word in response.json()["config"].split() if word.startswith("gh_")]
    assert Token.objects.get(pk=token_data["id"]).digest == Token.digest_of(token)


def test_a_direct_configuration_needs_no_token(as_alice: Client, notes: GuildMember) -> None:
    response = post(as_alice, CONFIG, {"for": "cursor", "members": ["notes"], "direct": True})
    assert response.status_code == 409
    assert "does not run" in response.json()["detail"]
    second_response = post(as_alice, CONFIG, {"for": "cursor", "direct": True})
    assert (second_response.status_code, second_response.json()["token"]) == (201, None)
    assert Token.objects.count() == 1


@pytest.mark.parametrize("query", [{}, {"for": "emacs"}, {"for": "cursor", "direct": "perhaps"}])
def test_an_invalid_query_is_400(as_bob: Client, query: dict[str, str]) -> None:
    assert as_bob.get(CONFIG, query).status_code == 400


def test_a_member_that_the_user_may_not_call_is_404(as_bob: Client, reserved_member: GuildMember) -> None:
    assert as_bob.get(CONFIG, {"for": "cursor", "members": "notes"}).status_code == 404


def test_creating_a_configuration_needs_the_permission_to_create_tokens(as_bob: Client, notes: GuildMember) -> None:
    assert post(as_bob, CONFIG, {"for": "cursor"}).status_code == 403


# Search mode ------------------------------------------------------------------------------------------------------


def test_a_token_in_search_mode_is_created_and_shown(as_alice: Client, example: GuildMember) -> None:
    body = {"search_mode": True, "pinned_tools": ["example/echo"]}
    made = as_alice.post(TOKENS, body, content_type="application/json")
    assert (made.status_code, made.json()["search_mode"], made.json()["pinned_tools"]) == (201, True, ["example/echo"])
    shown = as_alice.get(made.json()["url"]).json()
    assert (shown["search_mode"], shown["pinned_tools"]) == (True, ["example/echo"])
    plain = as_alice.post(TOKENS, {}, content_type="application/json").json()
    assert (plain["search_mode"], plain["pinned_tools"]) == (False, [])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"pinned_tools": ["example/echo"]}, 409),
        ({"search_mode": True, "pinned_tools": ["echo"]}, 400),
        ({"search_mode": True, "pinned_tools": ["example/echo"] * 21}, 400),
        ({"search_mode": True, "pinned_tools": ["example/none"]}, 404),
        ({"search_mode": "perhaps"}, 400),
    ],
)
def test_an_impossible_search_mode_is_refused(
    as_alice: Client, example: GuildMember, body: dict[str, Any], status: int
) -> None:
    count = Token.objects.count()
    assert as_alice.post(TOKENS, body, content_type="application/json").status_code == status
    assert Token.objects.count() == count


def test_the_configuration_of_a_client_in_search_mode_costs_three_tools(as_alice: Client, example: GuildMember) -> None:
    answer = as_alice.get(f"{CONFIG}?for=cursor&search_mode=true").json()
    assert answer["cost"]["tools"] == 3
    made = as_alice.post(CONFIG, {"for": "cursor", "search_mode": True}, content_type="application/json").json()
    assert (made["token"]["search_mode"], made["cost"]["tools"]) == (True, 3)
    assert as_alice.get(f"{CONFIG}?for=cursor&search_mode=true&direct=true").status_code == 409

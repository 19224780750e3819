"""Access tokens of clients that signed in, at the gateway: for one address, until they end or are revoked."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from mcp_runtime.control.grants import revoke_grant
from roster.models import AccessToken, Call, Grant, Token, ToolSet
from tests.conftest import eventually
from tests.support.gateway_world import World, request
from tests.support.grants import make_access_token

MEMBERS = ("notes", "other")
ADDRESSES = ("/mcp", "/mcp/", "/mcp?members=notes", "/mcp/notes", "/mcp/notes/", "/mcp/other", "/sets/writing/mcp")


@pytest.fixture
def roster(world: World) -> World:
    rows = [world.member(name).row for name in MEMBERS]
    ToolSet.objects.create(name="writing").entries.create(member=rows[0])
    return world


def status(world: World, path: str, token: str) -> int:
    return int(world.agent(path, token).send("ping").status_code)


def begins(world: World, path: str, token: str) -> bool:
    return status(world, path, token) != 401


def test_a_token_for_an_address_is_for_this_address_alone(roster: World) -> None:
    reach = {
        "/mcp": set(ADDRESSES),
        "/mcp/notes": {"/mcp/notes", "/mcp/notes/"},
        "/mcp/other": {"/mcp/other"},
        "/sets/writing/mcp": {"/sets/writing/mcp"},
        "/mcp/nobody": set(),
    }
    for resource, paths in reach.items():
        _, token = make_access_token(resource)
        assert {path for path in ADDRESSES if begins(roster, path, token)} == paths, resource
        response = roster.agent("/events", token).http.get(roster.agent("/events", token).url + "?topics=nothing")
        assert response.status_code == (400 if resource == "/mcp" else 401)


def test_its_calls_are_those_of_the_grant(roster: World) -> None:
    grant, token = make_access_token(members=["notes"])
    agent = roster.agent("/mcp", token).begin()
    assert agent.tools() == ["notes__echo"]
    agent.call("notes__echo")
    eventually(lambda: Call.objects.filter(token=grant.pk).exists())


def test_a_session_goes_on_with_the_next_access_token(roster: World) -> None:
    from mcp_runtime.control.grants import add_access_token

    grant, token = make_access_token()
    agent = roster.agent("/mcp", token).begin()
    add_access_token(grant, "gha_next", timezone.now() + timedelta(hours=1))
    agent.http.headers["Authorization"] = "Bearer gha_next"
    assert agent.tools() == ["notes__echo", "other__echo"]


def test_a_revoked_grant_is_refused_within_half_a_second(roster: World) -> None:
    grant, token = make_access_token()
    agent = roster.agent("/mcp", token).begin()
    assert agent.send("ping").status_code == 200
    revoke_grant(grant, "a test")
    eventually(lambda: agent.send("ping").status_code == 401, within=0.5)
    response = agent.send("ping")
    assert 'error="invalid_token", error_description="This sign-in was revoked' in response.headers["www-authenticate"]


def test_an_access_token_that_ends_is_refused_though_its_grant_goes_on(roster: World) -> None:
    grant, token = make_access_token(seconds=1.0)
    agent = roster.agent("/mcp", token).begin()
    eventually(lambda: agent.send("ping").status_code == 401, within=3)
    assert Token.objects.get(pk=grant.pk).state == "good"


@pytest.mark.parametrize(
    "change",
    [
        lambda grant: Token.objects.filter(pk=grant.pk).update(expires_at=timezone.now()),
        lambda grant: Token.objects.filter(pk=grant.pk).delete(),
        lambda grant: grant.token.user.delete(),
        lambda grant: type(grant.token.user).objects.filter(pk=grant.token.user_id).update(is_active=False),
    ],
    ids=["ended", "deleted", "user deleted", "user inactive"],
)
def test_a_grant_that_is_over_gives_nothing(roster: World, change: Any) -> None:
    grant, token = make_access_token()
    assert begins(roster, "/mcp", token)
    change(Grant.objects.select_related("token__user").get(pk=grant.pk))
    assert eventually(lambda: not begins(roster, "/mcp", token), within=5) is not False


@pytest.mark.parametrize("text", ["gha_unknown", "gha_", "ghr_x", "", "gha_x gha_y"])
def test_other_texts_are_no_access_tokens(roster: World, text: str) -> None:
    make_access_token()
    assert status(roster, "/mcp", text or " ") == 401


def test_the_digest_of_a_token_is_no_token(roster: World) -> None:
    grant, token = make_access_token()
    for text in (AccessToken.digest_of(token), Token.objects.get(pk=grant.pk).digest):
        assert not begins(roster, "/mcp", text)
        assert not begins(roster, "/mcp", AccessToken.PREFIX + text)


# Discovery --------------------------------------------------------------------------------------------------------


def test_a_client_without_a_token_learns_where_to_sign_in_for_each_address(roster: World) -> None:
    for path in ("/mcp", "/mcp/notes", "/mcp/nobody", "/sets/writing/mcp", "/sets/nobody/mcp", "/agents/1/mcp"):
        agent = roster.agent(path)
        response = agent.http.post(agent.url, json=request(1, "ping"), headers={"Authorization": ""})
        assert response.status_code == 401
        expected = f'resource_metadata="http://localhost:8100/.well-known/oauth-protected-resource{path}", scope="mcp"'
        assert expected in response.headers["www-authenticate"]
        metadata = roster.agent(f"/.well-known/oauth-protected-resource{path}")
        answer = metadata.http.get(metadata.url)
        assert answer.json() == {
            "resource": f"http://localhost:8100{path}",
            "authorization_servers": ["http://localhost:8000"],
            "scopes_supported": ["mcp"],
            "bearer_methods_supported": ["header"],
            "resource_name": "Guild Hall",
        }
        assert answer.headers["access-control-allow-origin"] == "*"


def test_the_metadata_is_not_what_a_header_says(roster: World) -> None:
    metadata = roster.agent("/.well-known/oauth-protected-resource/mcp")
    for headers in ({"Host": "evil.example"}, {"Host": "localhost:1@evil.example"}):
        assert metadata.http.get(metadata.url, headers=headers).status_code == 403
    forwarded = {"X-Forwarded-Host": "evil.example", "Forwarded": "host=evil.example"}
    assert "http://localhost:8100/mcp" in metadata.http.get(metadata.url, headers=forwarded).text
    origin = {"Origin": "https://inspector.example"}  # a client in a browser
    assert metadata.http.get(metadata.url, headers=origin).status_code == 200


@pytest.mark.parametrize("path", ["/x", "/mcp/a/b", "/events", '/mcp/"x"', "/mcp/..", f"/mcp/{'x' * 200}"])
def test_there_is_no_metadata_for_what_no_address_looks_like(roster: World, path: str) -> None:
    metadata = roster.agent(f"/.well-known/oauth-protected-resource{path}")
    assert metadata.http.get(metadata.url).status_code == 404


def test_without_sign_in_the_gateway_says_nothing_about_it(roster: World, settings: Any) -> None:
    _, token = make_access_token()
    settings.GUILD_HALL_SIGN_IN = 0
    agent = roster.agent("/mcp")
    response = agent.http.post(agent.url, json=request(1, "ping"), headers={"Authorization": ""})
    assert "resource_metadata" not in response.headers["www-authenticate"]
    metadata = roster.agent("/.well-known/oauth-protected-resource/mcp")
    assert metadata.http.get(metadata.url).status_code == 404
    assert not begins(roster, "/mcp", token)

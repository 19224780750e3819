"""Access tokens of an outside issuer at the gateway: who comes in, as whom, and until when."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import requests
from django.contrib.auth.models import User
from django.utils import timezone

from mcp_runtime.control.tokens import delete_token, revoke_token
from mcp_runtime.gateway import outside_tokens
from mcp_runtime.oauth import issuers
from mcp_runtime.security import outside_clients
from roster.models import AuditEntry, Call, Grant, Identity, ToolSet
from tests.conftest import eventually
from tests.support import outside_issuer
from tests.support import provider as support
from tests.support.gateway_world import World, request
from tests.support.provider import Answer, Provider


@pytest.fixture
def provider(settings: Any) -> Iterator[Provider]:
    with outside_issuer.serve(settings) as provider:
        yield provider


@pytest.fixture
def roster(world: World, provider: Provider) -> World:
    for name in ("notes", "other"):
        world.member(name)
    return world


@pytest.fixture
def jane(roster: World, provider: Provider) -> User:
    return outside_issuer.make_person(provider)


def ping(world: World, token: str, path: str = "/mcp") -> requests.Response:
    return world.agent(path, token).send("ping")


def reason(response: requests.Response) -> str:
    return str(response.json()["error"]["message"])


# Who it is --------------------------------------------------------------------------------------------------------


def test_a_client_uses_the_gateway_as_the_person_of_its_token(roster: World, provider: Provider, jane: User) -> None:
    agent = roster.agent("/mcp", provider.access_token()).begin()
    assert agent.tools() == ["notes__echo", "other__echo"]
    agent.call("notes__echo")
    eventually(lambda: Call.objects.filter(token__grant__client_id="inspector").exists())
    call = Call.objects.get()
    grant = Grant.objects.select_related("token").get()
    assert (call.requested_by, call.token_id) == (jane, grant.pk)
    assert (grant.issuer, grant.token.name, grant.token.resource) == (provider.url, "inspector", "/mcp")
    assert grant.token.is_grant
    entry = AuditEntry.objects.get(kind=AuditEntry.Kind.CLIENT_ALLOWED)
    assert entry.actor == f"jane at {provider.url}"
    assert entry.after["client_id"] == "inspector"


def test_all_tokens_of_a_client_are_one_row_and_another_client_is_another(
    roster: World, provider: Provider, jane: User
) -> None:
    for token in (provider.access_token(), provider.access_token(), provider.access_token(client_id=None, azp="other")):
        assert ping(roster, token).status_code != 401
    assert list(Grant.objects.order_by("pk").values_list("client_id", flat=True)) == ["inspector", "other"]


def test_a_person_who_never_logged_in_is_told_to(roster: World, provider: Provider) -> None:
    outside_issuer.make_person(provider, "other", subject="another")
    User.objects.create_user(provider.person["sub"])  # a local user of this name is somebody else
    response = ping(roster, provider.access_token())
    assert response.status_code == 401
    assert "Log in at http://localhost:8000 with single sign-on once" in reason(response)
    assert Grant.objects.count() == 0
    assert not Identity.objects.filter(subject=provider.person["sub"]).exists()


def test_the_same_subject_of_another_issuer_is_somebody_else(roster: World, provider: Provider, jane: User) -> None:
    Identity.objects.update(issuer="https://login.example.com")
    assert "does not know the person" in reason(ping(roster, provider.access_token()))


def test_the_claim_with_the_person_is_a_setting(roster: World, provider: Provider, jane: User, settings: Any) -> None:
    settings.GUILD_HALL_SIGN_IN_SUBJECT_CLAIM = "uid"
    assert ping(roster, provider.access_token()).status_code == 401
    assert ping(roster, provider.access_token(sub="jane@x", uid=provider.person["sub"])).status_code != 401


@pytest.mark.parametrize(
    "claims",
    [
        {"scope": None, "scp": "mcp"},  # Entra ID
        {"scope": None, "scp": ["openid", "mcp"]},  # Okta
        {"client_id": None, "appid": "inspector"},
        {"client_id": None, "cid": "inspector"},
        {"azp": "inspector"},
        {"aud": ["account", "http://localhost:8100/mcp"]},
        {"typ": "Bearer"},  # Keycloak
    ],
    ids=str,
)
def test_tokens_of_common_issuers_are_understood(
    roster: World, provider: Provider, jane: User, claims: dict[str, Any]
) -> None:
    extra = {"typ_claim": claims.pop("typ")} if "typ" in claims else {}
    row = provider.access_claims(**claims) | ({"typ": extra["typ_claim"]} if extra else {})
    response = ping(roster, provider.signed(row))  # whose header says JWT
    assert response.status_code != 401, response.text
    assert Grant.objects.get().client_id == "inspector"


# What it may do ---------------------------------------------------------------------------------------------------


def test_a_token_without_a_scope_of_the_hall_gets_403_with_the_scopes(
    roster: World, provider: Provider, jane: User
) -> None:
    for scope in (None, "", "openid profile", "MCP", "mcp2"):
        response = ping(roster, provider.access_token(scope=scope))
        assert response.status_code == 403
        challenge = response.headers["www-authenticate"]
        assert 'error="insufficient_scope"' in challenge
        assert 'scope="mcp"' in challenge
    assert Grant.objects.count() == 0


def test_scopes_give_what_the_setting_says(roster: World, provider: Provider, jane: User, settings: Any) -> None:
    ToolSet.objects.create(name="writing").entries.create(member=roster.member("third").row)
    settings.GUILD_HALL_SIGN_IN_SCOPES = [
        ("api://hall/notes", "notes"),
        ("writing", "set:writing"),
        ("gone", "nobody"),
        ("mcp", "all"),
    ]
    seen = {
        scope: roster.agent("/mcp", provider.access_token(scope=scope)).begin().tools()
        for scope in ("notes", "api://hall/notes mcp", "writing", "mcp")
    }
    everything = ["notes__echo", "other__echo", "third__echo"]
    assert seen == {
        "notes": ["notes__echo"],
        "api://hall/notes mcp": ["notes__echo"],  # the first of the setting decides
        "writing": ["third__echo"],
        "mcp": everything,
    }
    assert "'nobody', which this hall lacks" in reason(ping(roster, provider.access_token(scope="gone")))
    assert Grant.objects.count() == 3


def test_a_client_has_never_more_than_its_user(roster: World, provider: Provider) -> None:
    outside_issuer.make_person(provider, is_superuser=False)
    response = ping(roster, provider.access_token())
    assert "user 'jane' does not have" in reason(roster.agent("/mcp", provider.access_token()).send("initialize"))
    assert response.status_code != 401


def test_a_token_for_an_address_is_for_this_address_alone(
    roster: World, provider: Provider, jane: User, settings: Any
) -> None:
    token = provider.access_token(aud="http://localhost:8100/mcp/notes")
    assert ping(roster, token, "/mcp/notes").status_code != 401
    for path in ("/mcp", "/mcp/other", "/events"):
        assert ping(roster, token, path).status_code in (401, 405), path
        assert ping(roster, token, path).status_code == 401, path
    settings.GUILD_HALL_SIGN_IN_AUDIENCE = "api://hall"
    assert ping(roster, provider.access_token(aud="api://hall"), "/mcp/other").status_code != 401
    assert ping(roster, provider.access_token()).status_code == 401  # the address is no audience then


# Until when -------------------------------------------------------------------------------------------------------


def test_a_revoked_client_is_refused_within_half_a_second_and_stays_refused(
    roster: World, provider: Provider, jane: User
) -> None:
    agent = roster.agent("/mcp", provider.access_token()).begin()
    row = Grant.objects.get().token
    revoke_token(row, "a test")
    eventually(lambda: agent.send("ping").status_code == 401, within=0.5)
    for token in (provider.access_token(), provider.access_token(aud="http://localhost:8100/mcp/notes")):
        assert "This client was revoked in the hall" in reason(ping(roster, token))
    assert ping(roster, provider.access_token(client_id="other")).status_code != 401
    delete_token(row)
    eventually(lambda: ping(roster, provider.access_token()).status_code != 401)


def test_a_user_who_becomes_inactive_is_refused_within_half_a_second(
    roster: World, provider: Provider, jane: User
) -> None:
    agent = roster.agent("/mcp", provider.access_token()).begin()
    jane.is_active = False
    jane.save()
    eventually(lambda: agent.send("ping").status_code == 401, within=0.5)


def test_a_client_of_somebody_who_does_not_log_in_any_more_is_refused(
    roster: World, provider: Provider, jane: User
) -> None:
    Identity.objects.update(last_login_at=timezone.now() - timedelta(days=31))
    assert "has not used single sign-on since" in reason(ping(roster, provider.access_token()))


def test_a_token_ends_and_a_clock_that_is_set_back_does_not_revive_it(
    roster: World, provider: Provider, jane: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside_tokens, "LEEWAY", 0.0)
    token = provider.access_token(exp=int(provider.access_claims()["iat"]) + 2)
    agent = roster.agent("/mcp", token).begin()
    eventually(lambda: agent.send("ping").status_code == 401, within=4)
    real = outside_tokens.time.time
    monkeypatch.setattr(outside_tokens.time, "time", lambda: real() - 3600)
    assert "This access token expired" in reason(agent.send("ping"))


def test_the_tokens_of_the_hall_work_beside_them_and_its_own_sign_in_is_off(
    roster: World, provider: Provider, jane: User, client: Any
) -> None:
    from tests.support.grants import make_access_token

    assert roster.agent("/mcp").begin().tools() == ["notes__echo", "other__echo"]
    _, token = make_access_token()
    assert ping(roster, token).status_code == 401
    for path in ("/.well-known/oauth-authorization-server", "/oauth/authorize", "/oauth/token", "/oauth/register"):
        assert client.get(path).status_code == 404, path
        assert client.post(path).status_code in (403, 404), path


def test_rest_refuses_them_as_it_refuses_the_access_tokens_of_the_hall(
    provider: Provider, client: Any, db: Any
) -> None:
    outside_issuer.make_person(provider)
    for token in (provider.access_token(), "gha_x"):
        response = client.get("/api/members/", headers={"Authorization": f"Bearer {token}"})
        assert response.status_code == 401
        assert "An access token of a client is for the gateway" in response.content.decode()


def test_a_user_has_a_bounded_number_of_clients(
    roster: World, provider: Provider, jane: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside_clients, "MAX_CLIENTS", 2)
    codes = [ping(roster, provider.access_token(client_id=f"c{n}")).status_code == 401 for n in range(3)]
    assert codes == [False, False, True]


# Discovery --------------------------------------------------------------------------------------------------------


def test_every_address_names_the_issuer_and_its_scopes(roster: World, provider: Provider, settings: Any) -> None:
    settings.GUILD_HALL_SIGN_IN_SCOPES = [("notes", "notes"), ("mcp", "all")]
    for path in ("/mcp", "/mcp/notes", "/sets/nobody/mcp", "/agents/1/mcp"):
        agent = roster.agent(path)
        response = agent.http.post(agent.url, json=request(1, "ping"), headers={"Authorization": ""})
        metadata = f'resource_metadata="http://localhost:8100/.well-known/oauth-protected-resource{path}"'
        assert f'{metadata}, scope="notes mcp"' in response.headers["www-authenticate"]
        document = roster.agent(f"/.well-known/oauth-protected-resource{path}")
        answer = document.http.get(document.url).json()
        assert (answer["authorization_servers"], answer["scopes_supported"]) == ([provider.url], ["notes", "mcp"])
        assert answer["resource"] == f"http://localhost:8100{path}"


# Keys -------------------------------------------------------------------------------------------------------------


def test_a_new_key_is_asked_for_once_and_others_do_not_wait(
    roster: World, provider: Provider, jane: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = provider.access_token()
    assert ping(roster, first).status_code != 401
    assert provider.requests == [f"GET {support.DISCOVERY}", "GET /jwks"]
    monkeypatch.setattr(issuers, "KEYS_AGAIN_SECONDS", 0.0)
    provider.rotate("second")
    assert ping(roster, provider.access_token()).status_code != 401
    assert provider.requests.count("GET /jwks") == 2
    assert ping(roster, first).status_code != 401  # checked before its key went
    monkeypatch.setattr(issuers, "KEYS_AGAIN_SECONDS", 30.0)
    provider.rotate("third")
    for _ in range(5):
        assert "signed with a key" in reason(ping(roster, provider.access_token()))
    assert provider.requests.count("GET /jwks") == 2  # a moment ago


def test_the_address_of_the_keys_can_be_a_setting(roster: World, provider: Provider, jane: User, settings: Any) -> None:
    settings.GUILD_HALL_SIGN_IN_JWKS_URL = f"{provider.url}/jwks"
    assert ping(roster, provider.access_token()).status_code != 401
    assert provider.requests == ["GET /jwks"]


def test_without_the_issuer_a_client_is_told_to_come_again_and_tokens_of_the_hall_work(
    roster: World, provider: Provider, jane: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = provider.access_token()
    assert ping(roster, known).status_code != 401
    monkeypatch.setattr(issuers, "TIMEOUT", 1.0)
    monkeypatch.setattr(issuers, "KEYS_AGAIN_SECONDS", 0.0)
    provider.answers["/jwks"] = Answer(seconds=30)
    response = ping(roster, provider.access_token(header={"kid": "unknown"}))
    assert (response.status_code, response.headers["retry-after"]) == (503, "10")
    assert ping(roster, known).status_code not in (401, 503)
    assert ping(roster, provider.access_token()).status_code not in (401, 503)  # its key is known
    assert roster.agent("/mcp").begin().tools() == ["notes__echo", "other__echo"]

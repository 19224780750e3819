"""A real hall whose clients sign in at an outside issuer, which is a program of its own beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
import requests
from django.contrib.auth.models import User

from roster.models import Call, Grant, Token
from tests.conftest import eventually
from tests.support import outside_issuer
from tests.support import provider as support
from tests.support.agents import GatewayClient, make_token
from tests.support.hall import Hall, bring_up
from tests.support.provider import Provider


@pytest.fixture
def provider() -> Iterator[Provider]:
    with support.serve() as provider:
        yield provider
        assert provider.faults == []


@pytest.fixture
def jane(hall: Hall, provider: Provider) -> User:
    """A person of the issuer, who has logged in to the hall before."""
    hall.add("notes")
    bring_up(
        hall,
        "notes",
        GUILD_HALL_OIDC_ISSUER=provider.url,
        GUILD_HALL_OIDC_CLIENT_ID=support.CLIENT_ID,
        GUILD_HALL_OIDC_CLIENT_SECRET=support.CLIENT_SECRET,
        GUILD_HALL_OIDC_ALLOW="everybody",
        GUILD_HALL_SIGN_IN_ISSUER=provider.url,
    )
    return outside_issuer.make_person(provider)


def token(hall: Hall, provider: Provider, **claims: object) -> str:
    return provider.access_token(aud=f"http://localhost:{hall.gateway_port}/mcp", **claims)


def test_a_client_of_the_issuer_is_found_led_let_in_recorded_and_revoked(
    hall: Hall, provider: Provider, jane: User
) -> None:
    # It learns where to sign in, and not at the hall.
    refusal = GatewayClient(hall, None).send("ping")
    assert refusal.status_code == 401
    address = refusal.headers["www-authenticate"].partition('resource_metadata="')[2].partition('"')[0]
    metadata = requests.get(address, timeout=10).json()
    assert metadata["authorization_servers"] == [provider.url]
    for path in ("/.well-known/oauth-authorization-server", "/oauth/authorize"):
        assert requests.get(f"{hall.url}{path}", timeout=10).status_code == 404

    # It gets in with the token of the issuer, and works.
    agent = GatewayClient(hall, token(hall, provider)).begin()
    eventually(lambda: "notes__echo" in agent.tools())
    assert agent.text("notes__echo", text="hello") == "hello"
    eventually(lambda: Call.objects.exists())
    call = Call.objects.select_related("requested_by", "token__grant").get()
    assert (call.requested_by, call.token and call.token.grant.client_id) == (jane, "inspector")

    # Another key, which the issuer publishes before it signs with it.
    first = dict(provider.keys)
    provider.rotate("second", elliptic=True)
    eventually(lambda: GatewayClient(hall, token(hall, provider)).send("ping").status_code != 401, within=40)
    assert first.keys() != provider.keys.keys()
    assert Grant.objects.count() == 1

    # Its person finds it beside the tokens, and revokes it.
    own = {"Authorization": f"Bearer {make_token(jane)}"}
    listed = requests.get(f"{hall.url}/api/tokens/", headers=own, timeout=10).json()["results"]
    entry = next(each for each in listed if each["client"])
    assert (entry["client"]["client_id"], entry["client"]["issuer"]) == ("inspector", provider.url)
    revoked = requests.post(f"{hall.url}/api/tokens/{entry['id']}/revoke/", headers=own, timeout=10)
    assert revoked.status_code < 300, revoked.text
    eventually(lambda: agent.send("ping").status_code == 401, within=0.5)
    assert GatewayClient(hall, token(hall, provider)).send("ping").status_code == 401
    assert Token.objects.get(pk=entry["id"]).state == "revoked"


def test_the_python_sdk_signs_in_with_the_address_of_the_gateway_alone(
    hall: Hall, provider: Provider, jane: User
) -> None:
    more = {
        "registration_endpoint": f"{provider.url}/register",
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["none"],
    }
    provider.discovery = lambda document: document.update(more)
    argv = [sys.executable, "-m", "tests.support.signing_client", f"http://localhost:{hall.gateway_port}/mcp"]
    process = subprocess.Popen(argv, cwd=hall.root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        address = json.loads(process.stdout.readline())["open"]
        assert address.startswith(f"{provider.url}/authorize?")
        requests.get(address, timeout=20)  # the browser, which the issuer sends back to the program at once
        assert "redirected" in json.loads(process.stdout.readline())
        assert "notes__echo" in json.loads(process.stdout.readline())["tools"]
    finally:
        process.kill()
        process.communicate()
    grant = Grant.objects.select_related("token__user").get()
    assert (grant.client_id, grant.token.user, grant.token.resource) == ("client-1", jane, "/mcp")


def test_a_client_without_the_scope_or_for_another_server_stays_outside(
    hall: Hall, provider: Provider, jane: User
) -> None:
    statuses = [
        GatewayClient(hall, each).send("ping").status_code
        for each in (
            token(hall, provider, scope="openid"),
            provider.access_token(aud="https://other.example.com/mcp"),
            token(hall, provider, sub="somebody else"),
        )
    ]
    assert statuses == [403, 401, 401]
    assert Grant.objects.count() == 0

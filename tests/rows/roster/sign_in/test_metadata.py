"""What clients read before they sign in, also those in a browser. It never depends on headers."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tests.support.sign_in import REDIRECT

pytestmark = pytest.mark.django_db

METADATA = "/.well-known/oauth-authorization-server"
PROGRAMS = ("/oauth/token", "/oauth/register", "/oauth/revoke")


def test_the_metadata_names_only_what_the_hall_has() -> None:
    response = Client().get(METADATA)
    document = response.json()
    assert document["issuer"] == "http://localhost:8000"
    assert document["token_endpoint"] == "http://localhost:8000/oauth/token"
    assert document["grant_types_supported"] == ["authorization_code", "refresh_token"]
    assert document["code_challenge_methods_supported"] == ["S256"]
    assert document["token_endpoint_auth_methods_supported"] == ["none"]
    assert response["Access-Control-Allow-Origin"] == "*"


def test_addresses_come_from_the_settings_alone(settings: Any) -> None:
    headers = {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https", "Forwarded": "host=evil.example"}
    assert "evil" not in Client().get(METADATA, headers=headers).content.decode()
    assert Client().get(METADATA, headers={"Host": "evil.example"}).status_code == 403
    settings.GUILD_HALL_WEB_URL = "https://example.com/hall"
    settings.GUILD_HALL_GATEWAY_URL = "https://gateway.example.com"
    document = Client().get(f"{METADATA}/hall").json()
    assert document["issuer"] == "https://example.com/hall"
    assert document["authorization_endpoint"] == "https://example.com/hall/oauth/authorize"
    assert Client().get(f"{METADATA}/other").status_code == 404


@pytest.mark.parametrize("path", [METADATA, *PROGRAMS])
def test_programs_in_a_browser_may_ask_from_any_site(path: str) -> None:
    origin = {"Origin": "https://inspector.example", "Sec-Fetch-Site": "cross-site"}
    response = Client().options(path, headers=origin)
    assert (response.status_code, response["Access-Control-Allow-Origin"]) == (204, "*")
    assert "Access-Control-Allow-Credentials" not in response
    assert Client().post(path, headers=origin).status_code in (400, 401, 405)


def test_a_program_of_another_site_registers_without_a_csrf_token() -> None:
    client = Client(enforce_csrf_checks=True)
    body = {"redirect_uris": [REDIRECT]}
    headers = {"Origin": "https://inspector.example"}
    response = client.post("/oauth/register", body, content_type="application/json", headers=headers)
    assert response.status_code == 201
    assert response.json()["token_endpoint_auth_method"] == "none"
    assert "client_secret" not in response.json()
    assert response["Cache-Control"] == "no-store"


@pytest.mark.parametrize("values", [{"GUILD_HALL_SIGN_IN": 0}, {"GUILD_HALL_WEB_URL": "http://hall.example.com"}])
def test_without_sign_in_there_is_nothing(settings: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(settings, name, value)
    client = Client()
    for path in (METADATA, "/oauth/authorize"):
        assert client.get(path).status_code == 404
    for path in PROGRAMS:
        assert client.post(path).status_code == 404


def test_the_screens_of_the_library_are_not_here() -> None:
    for path in (
        "/oauth/applications/",
        "/o/applications/",
        "/oauth/introspect/",
        "/oauth/device/",
        "/oauth/userinfo/",
    ):
        assert Client().get(path).status_code == 404

from __future__ import annotations

import re
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from roster.models import GuildMember, Token

ADDRESSES = [
    "/",
    "/admin/",
    "/admin/login/",
    "/admin/roster/guildmember/",
    "/api/roster/",
    "/api/schema/",
    "/api/nowhere/",
    "/static/admin/css/base.css",
    "/static/nothing.css",
    "/healthz",
    "/readyz",
    "/metrics",
    "/nowhere",
]
HOST = "localhost:8000"
FOREIGN_HOSTS = [
    *("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.nip.io"),
    *("localhost:0", "localhost:65536", "localhost:99999999"),
]

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _static_root() -> None:
    # WhiteNoise warns about a missing folder, and here a warning is an error.
    settings.STATIC_ROOT.mkdir(exist_ok=True)


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
@pytest.mark.parametrize("address", ADDRESSES)
def test_a_foreign_host_is_403_everywhere(address: str, host: str) -> None:
    """A page that rebinds its own name to 127.0.0.1 sends that name (REQ-MCP-HTTP-31)."""
    assert Client().get(address, headers={"Host": host}).status_code == 403


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "https://evil.example:8000",
        "http://localhost:8001",
        "http://localhost:8000.evil.example",
        "http://evil.example/localhost:8000",
        "http://localhost:8000@evil.example",
        "http://localhost:8000/",
        "file://localhost:8000",
        "null",
        "",
        "http://[",
    ],
)
def test_a_foreign_origin_is_403(origin: str) -> None:
    for address in ADDRESSES:
        assert Client().get(address, headers={"Host": HOST, "Origin": origin}).status_code == 403, address


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_halls_own_origin_and_no_origin_are_accepted(address: str) -> None:
    for headers in ({"Host": HOST}, {"Host": HOST, "Origin": f"http://{HOST}"}):
        assert Client().get(address, headers=headers).status_code not in (400, 403)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "[::1]:8000"])
def test_the_names_of_this_machine_are_accepted(host: str) -> None:
    assert Client().get("/healthz", headers={"Host": host, "Origin": f"http://{host}"}).status_code == 200


def test_a_trusted_origin_may_differ_from_the_host(settings: Any) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://hall.example.com"]
    headers = {"Host": HOST, "Origin": "https://hall.example.com"}
    assert Client().get("/healthz", headers=headers).status_code == 200


def test_a_foreign_page_changes_nothing_even_with_a_session() -> None:
    member = GuildMember.objects.create(name="example", directory="example")
    client = Client()
    client.force_login(User.objects.create_superuser("alice"))
    for headers, http_status in [
        ({"Host": HOST, "Origin": "http://evil.example"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
    ]:
        assert client.post("/api/members/example/stop/", headers=headers).status_code == http_status
    member.refresh_from_db()
    assert member.desired_state == GuildMember.DesiredState.RUNNING


def test_the_origin_middleware_is_the_first() -> None:
    """Other middleware responds to requests for static files. Only a middleware before it protects them."""
    assert settings.MIDDLEWARE[0] == "roster.middleware.OriginMiddleware"


@pytest.mark.parametrize("mode", ["no-cors", "cors", None])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("address", ADDRESSES)
def test_a_request_of_another_site_without_an_origin_is_403(address: str, site: str, mode: str | None) -> None:
    headers = {"Host": HOST, "Sec-Fetch-Site": site, **({"Sec-Fetch-Mode": mode} if mode else {})}
    assert Client().get(address, headers=headers).status_code == 403


@pytest.mark.parametrize(
    ("site", "mode"),
    [("cross-site", "navigate"), ("same-site", "navigate"), ("same-origin", "cors"), ("none", "navigate")],
)
def test_links_from_other_sites_and_requests_of_our_own_pages_are_accepted(site: str, mode: str) -> None:
    headers = {"Host": HOST, "Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
    assert Client().get("/healthz", headers=headers).status_code == 200


def test_a_trusted_origin_is_accepted_although_it_is_another_site(settings: Any) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://hall.example.com"]
    headers = {"Host": HOST, "Origin": "https://hall.example.com", "Sec-Fetch-Site": "cross-site"}
    assert Client().get("/healthz", headers=headers).status_code == 200


POLICY = {
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "media-src 'self' data:",
    "connect-src 'self'",
    "font-src 'self'",
    "form-action 'self'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
}


@pytest.mark.parametrize("address", [*ADDRESSES, "/api/docs/", "/admin/nowhere/"])
@pytest.mark.parametrize("is_logged_in", [True, False])
def test_every_response_has_the_content_security_policy(address: str, is_logged_in: bool) -> None:
    client = Client()
    if is_logged_in:
        client.force_login(User.objects.create_superuser("alice"))
    response = client.get(address, headers={"Host": HOST})
    assert set(response.headers["Content-Security-Policy"].split("; ")) == POLICY


@pytest.mark.parametrize(
    "address",
    [
        "/admin/login/",
        "/admin/",
        "/admin/lists/",
        "/admin/roster/call/",  # with a filter by date, and actions
        "/admin/roster/token/add/",
        "/admin/auth/user/",
        "/admin/auth/user/add/",
        "/admin/auth/group/add/",  # with a filtered choice of many
        "/admin/password_change/",
        "/api/docs/",
    ],
)
def test_no_page_needs_more_than_the_policy_allows(address: str) -> None:
    client = Client()
    if "login" not in address:
        client.force_login(User.objects.create_superuser("alice"))
    page = client.get(address).content.decode()
    assert "<html" in page
    assert not re.findall(r"<script(?![^>]*\bsrc=)[^>]*>|<style|\sstyle=|\son\w+=|javascript:", page)


def test_pages_are_compressed_and_rest_is_not(client: Client) -> None:
    client.force_login(User.objects.create_superuser("ada"))
    headers = {"Accept-Encoding": "gzip", "Host": HOST}
    page = client.get("/admin/roster/guildmember/", headers=headers)
    assert page.headers["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in page.headers["Vary"]
    assert client.get("/api/schema/", headers=headers).headers.get("Content-Encoding") is None
    assert client.get("/admin/roster/guildmember/").headers.get("Content-Encoding") is None


# The owner of a request -------------------------------------------------------------------------------------------


def test_the_server_learns_the_owner_of_a_request_with_credentials() -> None:
    owners: list[tuple[int, int | None]] = []
    user, environ = User.objects.create_superuser("anna"), {"guildhall.owner": lambda *ids: owners.append(ids)}
    token, text = Token.make(user=user)
    for token_text in (text, f"   {text}"):
        Client().get("/api/roster/", headers={"Authorization": f"Bearer {token_text}"}, **environ)
    assert owners == [(user.pk, token.pk)] * 2
    owners.clear()
    Client().get("/api/roster/", headers={"Authorization": "Bearer gh_wrong"}, **environ)
    Client().get("/healthz", **environ)
    browser = Client()
    browser.force_login(user)
    browser.get("/healthz", **environ)  # this page does not read the user
    assert owners == []
    browser.get("/admin/", **environ)
    assert owners == [(user.pk, None)]

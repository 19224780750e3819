"""Clients that publish their description: fetched for a person alone, from outside the network alone."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from oauth2_provider import cimd
from oauth2_provider.models import Application

from mcp_runtime.client import exchanges, outside
from roster.models import ClientRegistration
from roster.sign_in import published
from tests.support.certificates import Authority
from tests.support.sign_in import SigningIn

pytestmark = pytest.mark.django_db

ID = "https://client.example/oauth/client.json"
DOCUMENT = {
    "client_id": ID,
    "client_name": "Published",
    "redirect_uris": ["http://127.0.0.1/callback", "http://evil.example/callback"],
    "token_endpoint_auth_method": "none",
}


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that the hall fetches. Each returns DOCUMENT."""
    addresses: list[str] = []

    def read(client_id: str) -> tuple[dict[str, Any], int]:
        addresses.append(client_id)
        return dict(DOCUMENT), 300

    monkeypatch.setattr(published, "read", read)
    return addresses


@pytest.fixture(autouse=True)
def no_backoff() -> None:
    from django.core.cache import cache

    cache.clear()


def test_its_host_is_shown_and_any_port_of_this_computer_may_be_sent_back_to(
    client_of_boss: SigningIn, fetched: list[str]
) -> None:
    client_of_boss.client_id = ID
    page = client_of_boss.ask()
    assert "Its description is published by <strong>client.example</strong>" in page.content.decode()
    assert client_of_boss.sign_in()["access_token"]
    assert fetched == [ID]  # the second request finds it in the rows
    assert "evil.example" not in Application.objects.get(client_id=ID).redirect_uris


def test_a_person_learns_that_the_hall_cannot_reach_the_description(
    client_of_boss: SigningIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read(client_id: str) -> tuple[dict[str, Any], int]:
        raise cimd.CIMDError("no such host")

    monkeypatch.setattr(published, "read", read)
    client_of_boss.client_id = ID
    text = client_of_boss.ask().content.decode()
    assert ID in text
    assert "GUILD_HALL_SIGN_IN_PUBLISHED=0" in text
    assert "add it again" not in text
    assert f"the description '{ID}' of a client cannot be used: no such host" in caplog.text


def test_without_internet_clients_are_told_to_register_and_nothing_is_fetched(
    client_of_boss: SigningIn, fetched: list[str], settings: Any
) -> None:
    settings.OAUTH2_PROVIDER = {**settings.OAUTH2_PROVIDER, "CIMD_ENABLED": False}
    document = client_of_boss.program.get("/.well-known/oauth-authorization-server").json()
    assert document["client_id_metadata_document_supported"] is False
    assert "registration_endpoint" in document
    client_of_boss.client_id = ID
    assert client_of_boss.ask().status_code == 400
    assert fetched == []


def test_nobody_without_a_login_makes_the_hall_fetch(client_of_boss: SigningIn, fetched: list[str]) -> None:
    stranger = SigningIn()
    stranger.client_id = ID
    assert stranger.ask().status_code == 302
    assert stranger.exchange("x").status_code in (400, 401)
    assert stranger.refresh("ghr_x").status_code in (400, 401)
    stranger.program.post("/oauth/revoke", {"token": "x", "client_id": ID})
    assert fetched == []
    assert not Application.objects.filter(client_id=ID).exists()


def test_fetches_count_as_registrations(client_of_boss: SigningIn, fetched: list[str]) -> None:
    ClientRegistration.objects.bulk_create(ClientRegistration(address="127.0.0.1") for _ in range(10))
    client_of_boss.client_id = ID
    assert client_of_boss.ask().status_code == 400
    assert fetched == []


def test_an_address_that_looks_like_another_one_is_not_fetched(
    client_of_boss: SigningIn, fetched: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    client_of_boss.client_id = "https://clíent.example/oauth/client.json"
    assert client_of_boss.ask().status_code == 400
    assert "could look like it" in caplog.text
    assert fetched == []


ADDRESSES = (
    "http://client.example/a.json",
    "https://client.example",
    "https://user@client.example/a.json",
    "https://client.example/../a.json",
    "https://127.0.0.1/a.json",
    "https://localhost/a.json",
    "https://2130706433/a.json",
    "https://0x7f.1/a.json",
    "https://0.0.0.0/a.json",
    "https://169.254.169.254/latest/meta-data/",
    "https://10.0.0.1/a.json",
    "https://[::1]/a.json",
    "https://[::ffff:127.0.0.1]/a.json",
    "https://[64:ff9b::7f00:1]/a.json",
    "https://[fd00::1]/a.json",
    "https://inside.example/a.json",
    "https://half.example/a.json",
)


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_inside_the_network_is_never_connected_to(
    client_of_boss: SigningIn, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    real = socket.getaddrinfo
    names = {"inside.example": ["10.1.2.3"], "half.example": ["8.8.8.8", "127.0.0.1"]}

    def look_up(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if host in names:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in names[host]]
        if host == "client.example":
            raise socket.gaierror("no such name")
        return real(host, port, *args, **kwargs)

    connected: list[str] = []

    def connect(self: Any, address: Any) -> Any:
        connected.append(address[0])
        raise ConnectionRefusedError("nobody is there")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(exchanges._DeadlineSocket, "connect", connect, raising=False)
    client_of_boss.client_id = address
    assert client_of_boss.ask().status_code == 400
    assert not Application.objects.filter(client_id=address).exists()
    assert set(connected) <= {"8.8.8.8"}


@pytest.mark.parametrize(
    "changes",
    [
        {"client_id": "https://other.example/a.json"},
        {"client_secret": "x"},
        {"token_endpoint_auth_method": "client_secret_basic"},
        {"redirect_uris": []},
        {"redirect_uris": ["http://evil.example/"]},
        {"redirect_uris": "x"},
        {"grant_types": ["password"]},
    ],
)
def test_a_description_of_another_client_is_refused(
    client_of_boss: SigningIn, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(published, "read", lambda client_id: ({**DOCUMENT, **changes}, 300))
    client_of_boss.client_id = ID
    assert client_of_boss.ask().status_code == 400
    assert not Application.objects.filter(client_id=ID).exists()


@contextmanager
def dripping(context: ssl.SSLContext) -> Iterator[int]:
    """The port of a server that sends its answer byte by byte, and never ends."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with suppress(OSError), context.wrap_socket(connection, server_side=True) as tls:
            tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4000\r\n\r\n")
            while True:
                tls.sendall(b" ")
                time.sleep(0.02)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.close()


def test_descriptions_that_come_byte_by_byte_hold_no_place_of_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    monkeypatch.setattr(published, "SECONDS", 0.5)
    monkeypatch.setattr(outside.Guard, "fault", lambda *_: "")  # the server is on this machine
    monkeypatch.setattr(outside.Guard, "require_address", lambda *_: None)
    with dripping(authority.context("DNS:localhost")) as port, ThreadPoolExecutor(4) as pool:

        def fetch(number: int) -> None:
            # Not "too many descriptions are fetched now". More than three do not wait for one host.
            with pytest.raises(cimd.CIMDError, match=r"within [0-9.]+ s|other requests|took too long"):
                published.BoundedFetcher().fetch(f"https://localhost:{port}/{number}.json")

        list(pool.map(fetch, range(4)))
        fetch(5)

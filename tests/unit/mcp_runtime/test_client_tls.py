"""JsonRpcClient over TLS, and headers that contain secrets."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import certifi
import pytest

from mcp_runtime.client import exchanges
from mcp_runtime.client.client import JsonRpcClient
from mcp_runtime.client.exchanges import Exchange
from mcp_runtime.protocol.errors import (
    ClientError,
    ConnectError,
    HttpStatusError,
    ProtocolError,
    RemoteError,
    RequestCancelledError,
    RequestTimeoutError,
)
from mcp_runtime.secrets.references import Resolved
from tests.conftest import eventually
from tests.support.certificates import Authority
from tests.support.machine import Stopwatch
from tests.support.scripted_server import (
    SECRET,
    Behaviour,
    Peers,
    TlsServer,
    connections_to,
    in_thread,
    takes,
    takes_no_time,
    text,
)

HEADERS = Resolved({"Authorization": f"Bearer {SECRET}", "X-Team": "blue"}, (SECRET,))


class MuteServer:
    """Accepts connections and sends the bytes of `drop`, but never a TLS handshake."""

    def __init__(self, drop: bytes = b"") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.url = f"https://127.0.0.1:{self.port}/mcp"
        self.data = b""
        self.closing = threading.Event()
        self._drop = drop
        self._thread = threading.Thread(target=self._serve, name="server-mute")
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            sock, _ = self._listener.accept()
            with sock:
                self.data += sock.recv(65_536)
                for byte in self._drop:
                    if self.closing.wait(0.02):
                        return
                    sock.sendall(bytes([byte]))
                while part := sock.recv(65_536):
                    self.data += part

    def close(self) -> None:
        self.closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        assert not self._thread.is_alive()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def context(authority: Authority) -> ssl.SSLContext:
    return authority.context()


@pytest.fixture
def trusted(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))


@pytest.fixture
def peers() -> Iterator[Peers]:
    peers = Peers()
    yield peers
    for resource in reversed(peers.opened):
        resource.close()


ConnectTls = Callable[..., tuple[TlsServer, JsonRpcClient]]


@pytest.fixture
def connect_tls(peers: Peers, context: ssl.SSLContext, trusted: None) -> ConnectTls:
    """A server behind TLS whose tool calls get a behaviour, and a client that trusts it."""

    def make(behaviour: Behaviour | None = None, **options: Any) -> tuple[TlsServer, JsonRpcClient]:
        server = TlsServer({"tools/call": behaviour} if behaviour else {}, context)
        peers.opened.append(server)
        return server, peers.client(server.url, **options)

    return make


# One connection ---------------------------------------------------------------------------------------------------


def test_handshake_list_and_calls_work_over_one_tls_connection(connect_tls: ConnectTls) -> None:
    server, client = connect_tls()
    assert client.initialize().server_info == {"name": "wire"}
    assert [tool["name"] for tool in client.list_tools().tools] == ["echo"]
    for number in range(3):
        assert client.invoke_tool("echo", {"n": number}) == text(json.dumps({"n": number}))
    assert {request.connection for request in server.requests} == {1}


def test_a_large_response_is_complete_and_one_too_large_is_refused(connect_tls: ConnectTls) -> None:
    response_text = "x" * 900_000
    _, client = connect_tls(lambda r: r.result(text(response_text)), max_bytes=1_000_000)
    assert client.invoke_tool("echo", {}) == text(response_text)
    _, client = connect_tls(lambda r: r.result(text(response_text)), max_bytes=100_000)
    with pytest.raises(ProtocolError, match="larger than"):
        client.invoke_tool("echo", {})


def test_a_large_request_is_sent_completely(connect_tls: ConnectTls) -> None:
    _, client = connect_tls()
    arguments = {"text": "x" * 1_000_000}
    assert client.invoke_tool("echo", arguments) == text(json.dumps(arguments))


# Certificates -----------------------------------------------------------------------------------------------------


def test_a_certificate_of_another_host_ends_the_connection(peers: Peers, trusted: None, authority: Authority) -> None:
    server = TlsServer({}, authority.context("DNS:mcp.example.com"))
    peers.opened.append(server)
    with pytest.raises(ConnectError, match="its certificate is not trusted: IP address mismatch"):
        peers.client(server.url, headers=HEADERS).initialize()
    assert server.requests == []


def test_a_certificate_of_an_unknown_authority_is_not_trusted(
    peers: Peers, context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    # The hall ignores variables with which other tools skip the check or trust more certificates.
    for name in ("PYTHONHTTPSVERIFY", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.setenv(name, "0" if name == "PYTHONHTTPSVERIFY" else "/dev/null")
    server = TlsServer({}, context)
    peers.opened.append(server)
    with pytest.raises(ConnectError, match="its certificate is not trusted"):
        peers.client(server.url, headers=HEADERS).initialize()
    assert server.requests == []


def test_SSL_CERT_FILE_replaces_the_certificates_of_system_and_certifi(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    trusted_certificates = {str(certificate) for certificate in exchanges.tls_context().get_ca_certs()}
    certifi_certificates = ssl.create_default_context(cafile=certifi.where()).get_ca_certs()
    assert trusted_certificates >= {str(certificate) for certificate in certifi_certificates}
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    assert len(exchanges.tls_context().get_ca_certs()) == 1


def test_http_instead_of_tls_is_a_connect_error(peers: Peers, trusted: None) -> None:
    server = MuteServer(b"HTTP/1.1 400 Bad\r\n\r\n")
    peers.opened.append(server)
    with pytest.raises(ConnectError, match="TLS failed: wrong version number"):
        peers.client(server.url, headers=HEADERS).initialize()
    assert SECRET.encode() not in server.data


# Deadlines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop", [b"", b"\x16\x03\x03\x40\x00" + b"\x02\x00\x3f\xfc" + b"\0" * 500])
def test_an_endless_tls_handshake_ends_at_the_deadline(peers: Peers, trusted: None, drop: bytes) -> None:
    server = MuteServer(drop)
    peers.opened.append(server)
    client = peers.client(server.url)
    with takes(0.5), pytest.raises(RequestTimeoutError):
        client.initialize(0.5)
    assert connections_to(server.port) == []


def test_a_tls_handshake_can_be_aborted(peers: Peers, trusted: None) -> None:
    server = MuteServer()
    peers.opened.append(server)
    client, exchange = peers.client(server.url), Exchange()
    thread, outcomes = in_thread(lambda: client.initialize(30, exchange))
    eventually(lambda: server.data)
    with takes_no_time():
        exchange.abort()
        thread.join(10)
    assert isinstance(outcomes[0], RequestCancelledError)
    assert connections_to(server.port) == []


@pytest.mark.parametrize(
    "behaviour",
    [
        lambda r: r.hang(),
        lambda r: (r.send(b"HTTP/1.1 200 OK\r\n"), r.dribble(b"X-A: b\r\n")),
        lambda r: (r.stream(), r.dribble(b": still here\n\n")),
        lambda r: (r.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"), r.send(b"\r\n"), r.dribble(b" ")),
    ],
    ids=["says nothing", "dribbles headers", "dribbles events", "dribbles a body"],
)
def test_a_slow_server_cannot_extend_the_deadline_over_tls(connect_tls: ConnectTls, behaviour: Behaviour) -> None:
    server, client = connect_tls(behaviour)
    with takes(0.5), pytest.raises(RequestTimeoutError):
        client.invoke_tool("echo", {}, 0.5)
    assert connections_to(server.port) == []


def test_a_slow_reader_cannot_extend_the_deadline_of_a_large_request(
    peers: Peers, context: ssl.SSLContext, trusted: None
) -> None:
    class SlowServer(TlsServer):
        def _serve(self, sock: socket.socket, number: int) -> None:
            with contextlib.suppress(OSError), self.context.wrap_socket(sock, server_side=True) as tls_socket:
                self._sockets.append(tls_socket)
                while not self.closing.wait(0.05):
                    tls_socket.recv(65_536)

    server = SlowServer({}, context)
    peers.opened.append(server)
    client = peers.client(server.url)
    with takes(0.5), pytest.raises(RequestTimeoutError):
        client.invoke_tool("echo", {"text": "x" * 30_000_000}, 0.5)


def test_a_running_call_can_be_aborted(connect_tls: ConnectTls) -> None:
    server, client = connect_tls(lambda r: r.hang())
    exchange = Exchange()
    thread, outcomes = in_thread(lambda: client.invoke_tool("echo", {}, 30, exchange))
    eventually(lambda: server.requests)
    with takes_no_time():
        exchange.abort()
        thread.join(10)
    assert isinstance(outcomes[0], RequestCancelledError)


def test_an_aborted_connection_never_sends_in_clear(connect_tls: ConnectTls) -> None:
    _, client = connect_tls()
    client.invoke_tool("echo", {})
    exchange = Exchange()
    with pytest.MonkeyPatch.context() as patch:
        sockets: list[Any] = []
        patch.setattr(exchange, "attach", lambda sock: (sockets.append(sock), Exchange.attach(exchange, sock)))
        client.invoke_tool("echo", {}, 5, exchange)
    (sock,) = sockets
    sock.shutdown(socket.SHUT_RDWR)
    assert sock._sslobj is not None  # without it `send` would fall back to the bare socket
    with pytest.raises(OSError):
        sock.send(b"secret")


def test_a_connection_that_is_reset_is_a_connect_error(connect_tls: ConnectTls) -> None:
    for behaviour in (lambda r: r.reset(), lambda r: r.hang_up()):
        _, client = connect_tls(behaviour)
        with pytest.raises(ConnectError):
            client.invoke_tool("echo", {})


# Finding the host -------------------------------------------------------------------------------------------------


def test_an_unknown_host_name_is_a_connect_error(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_unknown_host(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", raise_unknown_host)
    with pytest.raises(ConnectError, match="its host name cannot be looked up: Name or service not known"):
        peers.client("http://nowhere.invalid/mcp").initialize()


def test_an_invalid_host_name_is_a_connect_error(peers: Peers) -> None:
    with pytest.raises(ConnectError, match="its host name cannot be looked up"):
        peers.client(f"http://{'x' * 64}.invalid/mcp").initialize()


def test_a_look_up_that_takes_too_long_ends_at_the_deadline(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def look_up_slowly(*_: Any, **__: Any) -> Any:
        released.wait(20)
        raise socket.gaierror("too late")

    monkeypatch.setattr(socket, "getaddrinfo", look_up_slowly)
    try:
        with takes(0.4), pytest.raises(ConnectError, match=r"no connection within 0\.4 s"):
            peers.client("http://slow.invalid/mcp").initialize(0.4)
    finally:
        released.set()


def test_an_unreachable_address_leaves_time_for_the_next_one(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    server, _ = peers()
    full_listener = socket.socket()
    full_listener.bind(("127.0.0.1", 0))
    full_listener.listen(0)
    filling_sockets = [socket.socket() for _ in range(8)]
    for filling_socket in filling_sockets:
        filling_socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            filling_socket.connect(full_listener.getsockname())
    addresses = [full_listener.getsockname(), ("127.0.0.1", server.port)]
    results = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: results)
    try:
        watch = Stopwatch()
        assert peers.client("http://two.invalid/mcp").initialize(2.0).server_info == {"name": "wire"}
        assert watch.seconds < 1.9
    finally:
        for sock in (full_listener, *filling_sockets):
            sock.close()


# Headers ----------------------------------------------------------------------------------------------------------


def test_the_members_headers_are_sent_and_never_replace_the_halls_headers(peers: Peers) -> None:
    server, _ = peers()
    client = peers.client(server.url, headers=Resolved({**HEADERS.values, "Accept": "text/plain"}))
    client.initialize()
    client.list_tools()
    for request in server.requests:
        assert request.headers["Authorization"] == f"Bearer {SECRET}"
        assert request.headers["X-Team"] == "blue"
        assert request.headers["Accept"] == "application/json, text/event-stream"


def test_no_redirect_is_followed(peers: Peers) -> None:
    target, _ = peers()
    for status in (301, 302, 303, 307, 308):
        client = peers({"tools/call": lambda r, status=status: r.http(status, Location=target.url)})[1]
        with pytest.raises(HttpStatusError, match=f"{status}, a redirect, which the hall does not follow"):
            client.invoke_tool("echo", {})
    assert target.requests == []


def test_no_proxy_and_no_password_file_of_the_environment_is_used(
    peers: Peers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login anna password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1/")
    server, client = peers()
    client.initialize()
    assert all("Authorization" not in request.headers for request in server.requests)


@pytest.mark.parametrize(
    "behaviour",
    [
        lambda r: r.http(401, f"the token {SECRET} is no good".encode(), "text/plain"),
        lambda r: r.http(200, f"<p>{r.headers['Authorization']}</p>".encode(), "text/html"),
        lambda r: r.error(-32000, f"bad {SECRET}", data={"headers": [{SECRET: r.headers["Authorization"]}]}),
        lambda r: r.error(-32000, f"bad {SECRET}", 403),
        lambda r: r.json({"jsonrpc": "2.0", "id": SECRET, "result": {}}),
    ],
)
def test_a_secret_in_an_error_of_the_server_is_masked(peers: Peers, behaviour: Behaviour) -> None:
    with pytest.raises(ClientError) as raised:
        peers.client_with(behaviour, headers=HEADERS).invoke_tool("echo", {})
    error = raised.value
    assert "***" in str(error)
    assert SECRET not in repr(error) + str(error) + repr(vars(error))
    if isinstance(error, RemoteError) and error.data:
        assert error.data == {"headers": [{"***": "Bearer ***"}]}

"""JsonRpcClient over TLS, and what it sends and says of headers that hold secrets."""

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

from mcp_runtime.client import transport
from mcp_runtime.client.client import JsonRpcClient
from mcp_runtime.client.remote import Headers
from mcp_runtime.client.transport import Exchange
from mcp_runtime.protocol.errors import (
    ClientError,
    ConnectError,
    HttpStatusError,
    ProtocolError,
    RemoteError,
    RequestCancelledError,
    RequestTimeoutError,
)
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

HEADERS = Headers({"Authorization": f"Bearer {SECRET}", "X-Team": "blue"}, (SECRET,))


class MuteServer:
    """Accepts connections and says what it is told to, never a TLS handshake."""

    def __init__(self, drop: bytes = b"") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.url = f"https://127.0.0.1:{self.port}/mcp"
        self.heard = b""
        self.closing = threading.Event()
        self._drop = drop
        self._thread = threading.Thread(target=self._serve, name="server-mute")
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            wire, _ = self._listener.accept()
            with wire:
                self.heard += wire.recv(65_536)
                for byte in self._drop:
                    if self.closing.wait(0.02):
                        return
                    wire.sendall(bytes([byte]))
                while part := wire.recv(65_536):
                    self.heard += part

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
    for thing in reversed(peers.opened):
        thing.close()


Calling = Callable[..., tuple[TlsServer, JsonRpcClient]]


@pytest.fixture
def calling(peers: Peers, context: ssl.SSLContext, trusted: None) -> Calling:
    """A server behind TLS whose tool calls get a behaviour, and a client that trusts it."""

    def make(behaviour: Behaviour | None = None, **options: Any) -> tuple[TlsServer, JsonRpcClient]:
        server = TlsServer({"tools/call": behaviour} if behaviour else {}, context)
        peers.opened.append(server)
        return server, peers.client(server.url, **options)

    return make


# It works, and over one connection --------------------------------------------------------------------------------


def test_a_conversation_over_tls_is_one_like_any_other(calling: Calling) -> None:
    server, caller = calling()
    assert caller.initialize().server_info == {"name": "wire"}
    assert [tool["name"] for tool in caller.list_tools().tools] == ["echo"]
    for number in range(3):
        assert caller.invoke_tool("echo", {"n": number}) == text(json.dumps({"n": number}))
    assert {request.connection for request in server.requests} == {1}


def test_a_large_answer_comes_whole_and_one_too_large_is_refused(calling: Calling) -> None:
    said = "x" * 900_000
    _, caller = calling(lambda r: r.result(text(said)), max_bytes=1_000_000)
    assert caller.invoke_tool("echo", {}) == text(said)
    _, caller = calling(lambda r: r.result(text(said)), max_bytes=100_000)
    with pytest.raises(ProtocolError, match="larger than"):
        caller.invoke_tool("echo", {})


def test_a_large_request_goes_out_whole(calling: Calling) -> None:
    _, caller = calling()
    arguments = {"text": "x" * 1_000_000}
    assert caller.invoke_tool("echo", arguments) == text(json.dumps(arguments))


# Certificates -----------------------------------------------------------------------------------------------------


def test_a_certificate_of_another_host_ends_the_connection(peers: Peers, trusted: None, authority: Authority) -> None:
    server = TlsServer({}, authority.context("DNS:mcp.example.com"))
    peers.opened.append(server)
    with pytest.raises(ConnectError, match="its certificate is not trusted: IP address mismatch"):
        peers.client(server.url, headers=HEADERS).initialize()
    assert server.requests == []


def test_a_certificate_that_nobody_known_signed_is_not_trusted(
    peers: Peers, context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    # What other tools take for "do not verify", or for further trust, is nothing to the hall.
    for name in ("PYTHONHTTPSVERIFY", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.setenv(name, "0" if name == "PYTHONHTTPSVERIFY" else "/dev/null")
    server = TlsServer({}, context)
    peers.opened.append(server)
    with pytest.raises(ConnectError, match="its certificate is not trusted"):
        peers.client(server.url, headers=HEADERS).initialize()
    assert server.requests == []


def test_trust_is_the_systems_and_certifis_unless_the_environment_names_another(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    known = {str(certificate) for certificate in transport.tls_context().get_ca_certs()}
    certifis = ssl.create_default_context(cafile=certifi.where()).get_ca_certs()
    assert known >= {str(certificate) for certificate in certifis}
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    assert len(transport.tls_context().get_ca_certs()) == 1


def test_a_server_that_speaks_http_where_tls_is_due_is_told_so(peers: Peers, trusted: None) -> None:
    server = MuteServer(b"HTTP/1.1 400 Bad\r\n\r\n")
    peers.opened.append(server)
    with pytest.raises(ConnectError, match="TLS failed: wrong version number"):
        peers.client(server.url, headers=HEADERS).initialize()
    assert SECRET.encode() not in server.heard


# Deadlines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop", [b"", b"\x16\x03\x03\x40\x00" + b"\x02\x00\x3f\xfc" + b"\0" * 500])
def test_a_tls_handshake_that_never_ends_ends_at_the_deadline(peers: Peers, trusted: None, drop: bytes) -> None:
    server = MuteServer(drop)
    peers.opened.append(server)
    caller = peers.client(server.url)
    with takes(0.5), pytest.raises(RequestTimeoutError):
        caller.initialize(0.5)
    assert connections_to(server.port) == []


def test_a_tls_handshake_can_be_aborted(peers: Peers, trusted: None) -> None:
    server = MuteServer()
    peers.opened.append(server)
    caller, exchange = peers.client(server.url), Exchange()
    thread, ends = in_thread(lambda: caller.initialize(30, exchange))
    eventually(lambda: server.heard)
    with takes_no_time():
        exchange.abort()
        thread.join(10)
    assert isinstance(ends[0], RequestCancelledError)
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
def test_a_call_ends_at_its_deadline_whatever_the_server_does(calling: Calling, behaviour: Behaviour) -> None:
    server, caller = calling(behaviour)
    with takes(0.5), pytest.raises(RequestTimeoutError):
        caller.invoke_tool("echo", {}, 0.5)
    assert connections_to(server.port) == []


def test_a_server_that_reads_slowly_cannot_stretch_a_large_request(
    peers: Peers, context: ssl.SSLContext, trusted: None
) -> None:
    class Slow(TlsServer):
        def _serve(self, wire: socket.socket, number: int) -> None:
            with contextlib.suppress(OSError), self.context.wrap_socket(wire, server_side=True) as secured:
                self._sockets.append(secured)
                while not self.closing.wait(0.05):
                    secured.recv(65_536)

    server = Slow({}, context)
    peers.opened.append(server)
    caller = peers.client(server.url)
    with takes(0.5), pytest.raises(RequestTimeoutError):
        caller.invoke_tool("echo", {"text": "x" * 30_000_000}, 0.5)


def test_a_running_call_can_be_aborted(calling: Calling) -> None:
    server, caller = calling(lambda r: r.hang())
    exchange = Exchange()
    thread, ends = in_thread(lambda: caller.invoke_tool("echo", {}, 30, exchange))
    eventually(lambda: server.requests)
    with takes_no_time():
        exchange.abort()
        thread.join(10)
    assert isinstance(ends[0], RequestCancelledError)


def test_an_aborted_connection_never_sends_in_clear(calling: Calling) -> None:
    _, caller = calling()
    caller.invoke_tool("echo", {})
    exchange = Exchange()
    with pytest.MonkeyPatch.context() as patch:
        seen: list[Any] = []
        patch.setattr(exchange, "attach", lambda sock: (seen.append(sock), Exchange.attach(exchange, sock)))
        caller.invoke_tool("echo", {}, 5, exchange)
    (sock,) = seen
    sock.shutdown(socket.SHUT_RDWR)
    assert sock._sslobj is not None  # without it `send` would fall back to the bare socket
    with pytest.raises(OSError):
        sock.send(b"secret")


def test_a_connection_that_is_reset_is_a_failed_connection(calling: Calling) -> None:
    for behaviour in (lambda r: r.reset(), lambda r: r.hang_up()):
        _, caller = calling(behaviour)
        with pytest.raises(ConnectError):
            caller.invoke_tool("echo", {})


# Finding the host -------------------------------------------------------------------------------------------------


def test_a_name_that_nobody_knows_is_a_failed_connection(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConnectError, match="its host name cannot be looked up: Name or service not known"):
        peers.client("http://nowhere.invalid/mcp").initialize()


def test_a_name_that_can_be_none_is_a_failed_connection(peers: Peers) -> None:
    with pytest.raises(ConnectError, match="its host name cannot be looked up"):
        peers.client(f"http://{'x' * 64}.invalid/mcp").initialize()


def test_a_look_up_that_takes_too_long_ends_at_the_deadline(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def slow(*_: Any, **__: Any) -> Any:
        released.wait(20)
        raise socket.gaierror("too late")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    try:
        with takes(0.4), pytest.raises(ConnectError, match=r"no connection within 0\.4 s"):
            peers.client("http://slow.invalid/mcp").initialize(0.4)
    finally:
        released.set()


def test_an_address_that_does_not_answer_leaves_time_for_the_next(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = peers()
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    fillers = [socket.socket() for _ in range(8)]
    for filler in fillers:
        filler.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            filler.connect(full.getsockname())
    places = [full.getsockname(), ("127.0.0.1", server.port)]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    try:
        watch = Stopwatch()
        assert peers.client("http://two.invalid/mcp").initialize(2.0).server_info == {"name": "wire"}
        assert watch.seconds < 1.9
    finally:
        for sock in (full, *fillers):
            sock.close()


# Headers ----------------------------------------------------------------------------------------------------------


def test_the_members_headers_go_with_every_request_and_never_replace_the_halls(peers: Peers) -> None:
    server, _ = peers()
    caller = peers.client(server.url, headers=Headers({**HEADERS.values, "Accept": "text/plain"}))
    caller.initialize()
    caller.list_tools()
    for request in server.requests:
        assert request.headers["Authorization"] == f"Bearer {SECRET}"
        assert request.headers["X-Team"] == "blue"
        assert request.headers["Accept"] == "application/json, text/event-stream"


def test_no_redirect_is_followed_wherever_it_leads(peers: Peers) -> None:
    elsewhere, _ = peers()
    for status in (301, 302, 303, 307, 308):
        caller = peers({"tools/call": lambda r, status=status: r.http(status, Location=elsewhere.url)})[1]
        with pytest.raises(HttpStatusError, match=f"{status}, a redirect, which the hall does not follow"):
            caller.invoke_tool("echo", {})
    assert elsewhere.requests == []


def test_no_proxy_and_no_password_file_of_the_environment_is_used(
    peers: Peers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login anna password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1/")
    server, caller = peers()
    caller.initialize()
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
def test_what_a_server_says_of_a_secret_in_an_error_is_masked(peers: Peers, behaviour: Behaviour) -> None:
    with pytest.raises(ClientError) as caught:
        peers.client_with(behaviour, headers=HEADERS).invoke_tool("echo", {})
    error = caught.value
    assert "***" in str(error)
    assert SECRET not in repr(error) + str(error) + repr(vars(error))
    if isinstance(error, RemoteError) and error.data:
        assert error.data == {"headers": [{"***": "Bearer ***"}]}

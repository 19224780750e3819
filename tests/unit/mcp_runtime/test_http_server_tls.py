"""The HTTP server with TLS, which other nodes use."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from mcp_runtime.client import exchanges
from mcp_runtime.http1 import server
from mcp_runtime.http1.client import Address, Connections
from mcp_runtime.http1.server import HttpExchange, HttpServer
from mcp_runtime.protocol.errors import ConnectError
from tests.support.certificates import Authority


async def refuse(exchange: HttpExchange) -> None:
    """Reply before the body has come."""
    exchange.reply(421, b"no")


def run(folder: Path, scenario: Callable[[Address, Connections], Awaitable[None]]) -> None:
    """Run the scenario with a server, and clients that trust it. There must be no errors of the event loop."""
    authority, faults = Authority(folder), []

    async def run_with_server() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        listener = socket.create_server(("127.0.0.1", 0))
        http_server, connections = HttpServer(refuse), Connections(exchanges.tls_context(authority.file))
        await http_server.start([listener], authority.context())
        try:
            await scenario(Address.of(f"https://127.0.0.1:{listener.getsockname()[1]}"), connections)
        finally:
            connections.close()
            await http_server.stop(1)

    uvloop.run(run_with_server())
    assert faults == []


@pytest.mark.parametrize(("headers", "status"), [({"X-Long": "x" * 70_000}, 431), ({"Connection": "close"}, 421)])
def test_a_reply_before_the_end_of_the_request_arrives(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    async def scenario(address: Address, connections: Connections) -> None:
        response = await connections.request(address, "POST", {**headers, "Content-Length": "1000"}, None)
        assert response.status == status
        response.close()

    run(tmp_path, scenario)


def test_a_connection_without_a_handshake_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)

    async def scenario(address: Address, _: Connections) -> None:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()

    run(tmp_path, scenario)


# Certificates of the machine --------------------------------------------------------------------------------------


def test_the_first_connection_loads_the_certificates_of_the_machine_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, load = 0, exchanges.tls_context

    def counted() -> ssl.SSLContext:
        nonlocal loads
        loads += 1
        return load()

    async def scenario(address: Address, _: Connections) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        monkeypatch.setattr(exchanges, "tls_context", counted)
        own_connections = Connections()
        assert loads == 0
        for _number in range(2):  # the server closes the connection after each of its refusals
            response = await own_connections.request(address, "POST", {"Connection": "close"}, b"")
            assert response.status == 421
            response.close()
        own_connections.close()
        assert loads == 1

    run(tmp_path, scenario)


def test_a_server_whose_certificate_the_machine_does_not_trust_gets_no_request(tmp_path: Path) -> None:
    async def scenario(address: Address, _: Connections) -> None:
        own_connections = Connections()
        with pytest.raises(ConnectError):
            await own_connections.request(address, "POST", {}, b"secret")
        own_connections.close()

    run(tmp_path, scenario)

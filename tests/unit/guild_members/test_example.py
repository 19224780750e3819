"""The shipped example, as a real process over real HTTP."""

from __future__ import annotations

import ast
import runpy
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mcp_runtime.client.client import JsonRpcClient
from tests.conftest import ROOT, eventually
from tests.support.member_process import RunningMember, free_port, running, spawn

EXAMPLE = ROOT / "guild-members" / "example"
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


@pytest.fixture(scope="module")
def example() -> Iterator[RunningMember]:
    with running(EXAMPLE) as member:
        yield member


# MCP --------------------------------------------------------------------------------------------------------------


def test_the_halls_client_can_initialize_list_and_call(example: RunningMember) -> None:
    client = JsonRpcClient(example.url)
    handshake = client.initialize()
    assert (handshake.protocol_version, handshake.server_info["name"]) == ("2025-06-18", "example")
    assert [tool["name"] for tool in client.list_tools().tools] == ["echo", "reverse", "read_motto", "fail", "slow"]
    assert client.invoke_tool("echo", {"text": "hello"})["content"] == [{"type": "text", "text": "hello"}]


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("1999-01-01", "2025-06-18"),
        (None, "2025-06-18"),
    ],
)
def test_initialize_selects_the_requested_version_if_it_is_supported(
    example: RunningMember, requested: str | None, expected: str
) -> None:
    params = {"capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    result = example.ask("initialize", params if requested is None else {**params, "protocolVersion": requested})[
        "result"
    ]
    assert result["protocolVersion"] == expected
    assert result["capabilities"] == {"tools": {}}


def test_a_notification_is_accepted_without_a_body(example: RunningMember) -> None:
    response = example.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert (response.status_code, response.content) == (202, b"")


def test_the_result_of_ping_is_empty(example: RunningMember) -> None:
    assert example.ask("ping")["result"] == {}


def test_every_tool_is_described(example: RunningMember) -> None:
    for tool in example.ask("tools/list")["result"]["tools"]:
        assert tool["title"]
        assert tool["description"].endswith(".")
        assert tool["inputSchema"]["type"] == "object"
        assert all(part["description"] for part in tool["inputSchema"]["properties"].values())
        assert tool["annotations"]["readOnlyHint"] is True


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, -32700),
        (b"\xff", 400, -32700),
        (b"[" * 100_000, 400, -32700),
        (b"[]", 400, -32600),
        (b'{"id": 1, "method": "ping"}', 400, -32600),
        (b'{"jsonrpc": "2.0", "id": 1}', 400, -32600),
        (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', 400, -32600),
        (b'{"jsonrpc": "2.0", "id": true, "method": "ping"}', 400, -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}', 200, -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/chat"}', 200, -32601),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "nobody"}}', 200, -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": ["echo"]}}', 200, -32602),
        (b'{"jsonrpc":"2.0", "id":1, "method":"tools/call", "params":{"name":"echo", "arguments":5}}', 200, -32602),
    ],
)  # fmt: skip
def test_a_wrong_request_gets_a_json_rpc_error(example: RunningMember, body: bytes, status: int, code: int) -> None:
    response = example.post(body)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert example.ask("ping")["result"] == {}


# Tools ------------------------------------------------------------------------------------------------------------


def test_echo_and_reverse_give_back_any_text(example: RunningMember) -> None:
    text = "na\N{LATIN SMALL LETTER I WITH DIAERESIS}ve \N{CASTLE}\n\0end"
    assert example.call("echo", {"text": text}) == (text, False)
    assert example.call("reverse", {"text": text}) == (text[::-1], False)


def test_read_motto_reads_the_file_in_the_members_folder(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(EXAMPLE, folder)
    (folder / "motto.txt").write_text("Read from where I was started.\n")
    with running(folder) as member:
        assert member.call("read_motto") == ("Read from where I was started.", False)
        (folder / "motto.txt").unlink()
        assert member.call("read_motto") == ("motto.txt cannot be read: No such file or directory", True)


def test_fail_gives_a_tool_error(example: RunningMember) -> None:
    assert example.call("fail", {"message": "out of ink"}) == ("out of ink", True)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "the argument 'text' is missing"),
        ({"text": 5}, "the argument 'text' must be a string"),
        ({"text": "x", "loud": True}, "there is no argument 'loud'"),
    ],
)
def test_wrong_arguments_are_a_tool_error_with_the_reason(
    example: RunningMember, arguments: dict[str, object], reason: str
) -> None:
    assert example.call("echo", arguments) == (reason, True)


def test_other_calls_run_while_slow_waits(example: RunningMember) -> None:
    results: list[tuple[str, bool]] = []
    with RunningCall(example, "s1", 0.5, results):
        assert RunningMember(example.process, example.port).call("echo", {"text": "meanwhile"}) == ("meanwhile", False)
        assert results == []
    assert results == [("took 0.5 seconds", False)]


@pytest.mark.parametrize("seconds", [-1, 1e9, True, "1"])
def test_slow_refuses_invalid_times(example: RunningMember, seconds: object) -> None:
    assert example.call("slow", {"seconds": seconds})[1] is True


def test_a_cancelled_call_ends_at_once(example: RunningMember) -> None:
    results: list[tuple[str, bool]] = []
    with RunningCall(example, "c1", 60, results):
        eventually(lambda: cancel(example, "c1") and results, what="the cancelled call ends")
    ((text, is_error),) = results
    assert text.startswith("cancelled after ")
    assert is_error


def test_an_ambiguous_cancellation_ends_no_call() -> None:
    calls = runpy.run_path(str(EXAMPLE / "server.py"))["RunningCalls"]()
    first_call, second_call = calls.begin(1), calls.begin(1)
    calls.cancel(1)
    assert not first_call.is_set()
    assert not second_call.is_set()
    calls.end(1, second_call)
    calls.cancel(1)
    assert first_call.is_set()


class RunningCall:
    """A call of `slow` in its own thread, from another client."""

    def __init__(self, member: RunningMember, request_id: str, seconds: float, results: list[tuple[str, bool]]) -> None:
        client = RunningMember(member.process, member.port)
        arguments = {"seconds": seconds}
        self.thread = threading.Thread(
            target=lambda: results.append(client.call("slow", arguments, request_id=request_id))
        )

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.thread.join(timeout=20)
        assert not self.thread.is_alive()


def cancel(member: RunningMember, request_id: str) -> bool:
    params = {"requestId": request_id, "reason": "changed my mind"}
    return bool(member.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}))


# HTTP -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}"])
def test_local_host_names_with_the_port_are_served(example: RunningMember, host: str) -> None:
    assert example.post(PING, Host=host.format(port=example.port)).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example:{port}", "127.0.0.1", "localhost:1", "127.0.0.1.evil.example:{port}", ""]
)
def test_a_foreign_host_is_refused(example: RunningMember, host: str) -> None:
    assert example.post(PING, Host=host.format(port=example.port)).status_code == 403


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 200),
        ("http://127.0.0.1", 200),
        ("https://evil.example", 403),
        ("http://localhost.evil.example", 403),
        ("http://localhost:80@evil.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_only_pages_of_this_machine_are_served(example: RunningMember, origin: str, status: int) -> None:
    assert example.post(PING, Origin=origin).status_code == status


def test_other_methods_get_405_with_the_allowed_method(example: RunningMember) -> None:
    for method in ("GET", "DELETE", "PUT", "OPTIONS"):
        response = example.session.request(method, example.url, timeout=10)
        assert (response.status_code, response.headers["Allow"]) == (405, "POST")


def test_other_paths_get_404(example: RunningMember) -> None:
    assert example.post(PING, path="/").status_code == 404
    assert example.post(PING, path="/mcp/more").status_code == 404


def test_a_body_that_a_web_form_could_send_is_refused(example: RunningMember) -> None:
    assert example.post(PING, Content_Type="text/plain").status_code == 415


def test_an_unknown_protocol_version_is_refused(example: RunningMember) -> None:
    assert example.post(PING, MCP_Protocol_Version="2025-11-25").status_code == 200
    assert example.post(PING, MCP_Protocol_Version="2030-01-01").status_code == 400


HEAD = "POST /mcp HTTP/1.1\nHost: 127.0.0.1:{port}\nContent-Type: application/json\n"


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (HEAD + "Content-Length: 1000001\n\n", 413),
        (HEAD + "Content-Length: " + "9" * 5000 + "\n\n", 413),
        (HEAD + "Content-Length: -1\n\n", 411),
        (HEAD + "\n", 411),
        (HEAD + "Transfer-Encoding: chunked\n\n", 411),
        (HEAD + "X: " + "x" * 20_000 + "\n\n", 431),
        (HEAD + "".join(f"X-{number}: x\n" for number in range(200)) + "\n", 431),
        (HEAD + "nonsense\n\n", 400),
        ("hello\n\n", 400),
        ("POST /mcp SMTP/1.1\n\n", 400),
    ],
)
def test_an_oversized_or_invalid_request_is_refused_before_its_body_is_read(
    example: RunningMember, request_text: str, status: int
) -> None:
    response_status, text = example.raw(request_text.format(port=example.port))
    assert response_status == status
    assert "Connection: close" in text


def test_expect_100_continue_is_confirmed(example: RunningMember) -> None:
    head = HEAD.format(port=example.port) + "Content-Length: 2\nExpect: 100-continue\n\n"
    assert example.raw(head)[0] == 100


def test_a_client_that_disconnects_early_does_not_affect_other_clients(example: RunningMember) -> None:
    for request in (b"", b"POST", HEAD.format(port=example.port).encode() + b"Content-Length: 50\r\n\r\n{"):
        with socket.create_connection(("127.0.0.1", example.port), timeout=10) as connection:
            connection.sendall(request)
    assert example.ask("ping")["result"] == {}


def test_a_connection_serves_many_requests(example: RunningMember) -> None:
    body = '{"jsonrpc":"2.0","id":1,"method":"ping"}'
    request = (HEAD.format(port=example.port) + f"Content-Length: {len(body)}\n\n").replace("\n", "\r\n") + body
    with socket.create_connection(("127.0.0.1", example.port), timeout=10) as connection:
        for _ in range(3):
            connection.sendall(request.encode())
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200 OK\r\n")


# Process ----------------------------------------------------------------------------------------------------------


def test_the_member_listens_only_on_the_loopback(example: RunningMember) -> None:
    sockets = psutil.Process(example.process.pid).net_connections("inet")
    addresses = {connection.laddr for connection in sockets if connection.status == psutil.CONN_LISTEN}
    assert addresses == {("127.0.0.1", example.port)}


def test_a_taken_port_ends_the_member_with_code_2_and_a_message(tmp_path: Path) -> None:
    stderr = tmp_path / "stderr"
    with socket.create_server(("127.0.0.1", 0)) as listener, stderr.open("wb") as file:
        port = listener.getsockname()[1]
        process = spawn(EXAMPLE, port, stderr=file)
        assert process.wait(timeout=10) == 2
    assert stderr.read_text().startswith(f"cannot listen on 127.0.0.1:{port}: Address already in use")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_member_ends_at_once_after_a_signal(number: signal.Signals) -> None:
    with running(EXAMPLE) as member:
        member.ask("ping")  # leaves a connection open
        member.process.send_signal(number)
        eventually(lambda: member.process.poll() is not None, within=2, what="the member ends")
        assert member.process.returncode == 0


def test_a_wrong_command_line_has_another_exit_code_than_a_taken_port(tmp_path: Path) -> None:
    (tmp_path / "guild-member.json").write_text(
        '{"name": "x", "version": "1", "transport": "http", "command": "python3", "args": ["server.py", "--prot", "1"]}'
    )
    shutil.copy(EXAMPLE / "server.py", tmp_path)
    assert spawn(tmp_path, free_port()).wait(timeout=10) == 1


@pytest.mark.parametrize("path", ["guild-members/example", "guild-members/notes", "roster/member_template"])
def test_shipped_servers_run_on_python_3_9(path: str) -> None:
    source = (ROOT / path / "server.py").read_text()
    ast.parse(source, feature_version=(3, 9))
    assert "from __future__ import annotations" in source

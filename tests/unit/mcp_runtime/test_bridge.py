"""The bridge as a real process in front of a real stdio server, called over raw HTTP."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from mcp_runtime.bridge import command as bridge
from mcp_runtime.bridge import sessions
from mcp_runtime.bridge.http_messages import LAST_HANDSHAKE_VERSION
from mcp_runtime.protocol import mcp
from tests.conftest import ROOT, eventually
from tests.support.member_process import free_port

SERVER = ROOT / "tests" / "support" / "servers" / "stdio_server.py"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"sampling": {}, "roots": {}},
    "clientInfo": {"name": "t"},
}
ACCEPT_BOTH = {"Accept": "application/json, text/event-stream"}

if os.environ.get("COVERAGE_PROCESS_CONFIG"):
    bridge.ISOLATED.clear()  # without the installed packages it could not be measured

Event = dict[str, Any]


class RunningBridge:
    """A bridge in its own folder. Its server is its only child process."""

    def __init__(self, folder: Path, port: int, argv: list[str], *, max_bytes: int) -> None:
        self.folder = folder
        self.port = port
        self.errors = folder / "stderr.log"
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                bridge.command_line(port, argv, max_bytes),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )

    def stderr(self) -> str:
        return self.errors.read_text(errors="replace")

    def is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def server(self) -> psutil.Process:
        """The process of the server, after its exec."""
        children: list[psutil.Process] = []

        def has_server() -> bool:
            with contextlib.suppress(psutil.Error):
                children[:] = psutil.Process(self.process.pid).children()
                return bool(children) and children[0].cmdline() != psutil.Process(self.process.pid).cmdline()
            return False

        eventually(has_server, what="the bridge's child is the server")
        return children[0]

    # Requests

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def post(self, message: Any, connection: http.client.HTTPConnection | None = None, **headers: str) -> Response:
        open_connection = connection or self.connect()
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        all_headers = {"Content-Type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
        open_connection.request("POST", "/mcp", body, all_headers)
        response = Response(open_connection.getresponse())
        if connection is None:
            open_connection.close()
        return response

    def ask(self, method: str, params: Any = None, request_id: Any = 1, **headers: str) -> Response:
        message = {"jsonrpc": "2.0", "id": request_id, "method": method}
        return self.post(message if params is None else {**message, "params": params}, **headers)

    def initialize(self, **headers: str) -> Response:
        return self.ask("initialize", INITIALIZE, **headers)

    def call(self, tool: str, request_id: Any = 1, meta: Any = None, **arguments: Any) -> Response:
        params = {"name": tool, "arguments": arguments} | ({"_meta": meta} if meta else {})
        return self.ask("tools/call", params, request_id, **ACCEPT_BOTH)

    def notify(self, method: str, params: Any = None, **headers: str) -> Response:
        return self.post({"jsonrpc": "2.0", "method": method, "params": params or {}}, **headers)

    def received(self) -> list[Any]:
        """Everything that the server has read."""
        messages: list[Any] = json.loads(self.call("received").text)
        return messages

    def raw(self, request: str) -> bytes:
        """Send `request` byte for byte and return all bytes until the bridge closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(request.replace("\n", "\r\n").encode())
            return b"".join(iter(lambda: connection.recv(65_536), b""))


class Response:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def kind(self) -> str:
        return str(self.headers.get_content_type())

    @property
    def message(self) -> Any:
        assert self.kind == "application/json"
        return json.loads(self.body)

    @property
    def events(self) -> list[Event]:
        assert self.kind == "text/event-stream"
        return [json.loads(data) for data in mcp.EventStream().feed(self.body)]

    @property
    def text(self) -> str:
        return str(self.message["result"]["content"][0]["text"])

    @property
    def error(self) -> tuple[int, str]:
        return self.message["error"]["code"], self.message["error"]["message"]


MakeBridge = Callable[..., RunningBridge]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeBridge]:
    bridges: list[RunningBridge] = []

    def make(
        *modes: str, argv: list[str] | None = None, is_ready: bool = True, max_bytes: int = 1_000_000
    ) -> RunningBridge:
        shutil.copy(SERVER, tmp_path / "server.py")
        command = [sys.executable, "server.py", *modes] if argv is None else argv
        while True:
            bridges.append(running_bridge := RunningBridge(tmp_path, free_port(), command, max_bytes=max_bytes))
            if not is_ready:
                return running_bridge
            eventually(
                lambda: running_bridge.is_listening() or running_bridge.process.poll() is not None,
                what="the bridge listens",
            )
            if bridge.PORT_TAKEN not in running_bridge.stderr():
                return running_bridge

    yield make
    for running_bridge in bridges:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running_bridge.process.pid, signal.SIGKILL)
        running_bridge.process.wait()


@pytest.fixture
def ready_bridge(make: MakeBridge) -> RunningBridge:
    """A bridge after the handshake."""
    running_bridge = make()
    assert running_bridge.initialize().status == 200
    return running_bridge


# Requests and responses -------------------------------------------------------------------------------------------


def test_a_request_gets_the_servers_response(ready_bridge: RunningBridge) -> None:
    response = ready_bridge.ask("tools/list", {}, "seven")
    assert (response.status, response.kind) == (200, "application/json")
    assert response.message["id"] == "seven"
    assert "echo" in [tool["name"] for tool in response.message["result"]["tools"]]


@pytest.mark.parametrize("request_id", [0, 7, -3, 2**60, "7", "", "é\n"])
def test_a_client_gets_its_own_id_back_with_the_same_type(ready_bridge: RunningBridge, request_id: Any) -> None:
    response = ready_bridge.call("echo", request_id, text="hi").message
    assert (response["id"], type(response["id"])) == (request_id, type(request_id))


def test_clients_that_use_the_same_id_get_their_own_responses(ready_bridge: RunningBridge) -> None:
    texts = [f"text {number}" for number in range(100)]
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        responses = list(pool.map(lambda text: ready_bridge.call("echo", 1, text=text).text, texts))
    assert responses == texts


def test_a_slow_call_does_not_delay_other_calls(ready_bridge: RunningBridge) -> None:
    with contextlib.closing(ready_bridge.connect()) as connection:
        params = {"name": "sleep", "arguments": {}}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        connection.request("POST", "/mcp", body, {"Content-Type": "application/json"})
        assert ready_bridge.call("echo", 1, text="quick").text == "quick"


def test_an_error_of_the_server_is_passed_on(ready_bridge: RunningBridge) -> None:
    response = ready_bridge.ask("no/such", {}, 5)
    assert response.status == 200
    assert response.message == {"jsonrpc": "2.0", "id": 5, "error": {"code": -32601, "message": "no no/such"}}


def test_one_connection_serves_many_requests(ready_bridge: RunningBridge) -> None:
    with contextlib.closing(ready_bridge.connect()) as connection:
        for number in range(20):
            message = {"jsonrpc": "2.0", "id": number, "method": "tools/list"}
            assert ready_bridge.post(message, connection).message["id"] == number
        assert ready_bridge.notify("notifications/whatever").status == 202


def test_pipelined_requests_all_get_responses(ready_bridge: RunningBridge) -> None:
    def request(number: int, is_last: bool = False) -> str:
        body = json.dumps({"jsonrpc": "2.0", "id": number, "method": "initialize", "params": {}})
        head = f"POST /mcp HTTP/1.1\nHost: localhost:{ready_bridge.port}\nContent-Type: application/json\n"
        return f"{head}{'Connection: close' if is_last else 'X: y'}\nContent-Length: {len(body)}\n\n{body}"

    output = ready_bridge.raw("".join(request(number, number == 1999) for number in range(2000)))
    assert output.count(b"HTTP/1.1 200 OK") == 2000


def test_escaped_characters_are_relayed_unchanged(ready_bridge: RunningBridge) -> None:
    assert ready_bridge.call("nul").text == "a\0b\ud800c é"
    assert ready_bridge.call("echo", text="☃ \U0001f600").text == "☃ \U0001f600"


def test_a_notification_is_accepted_without_a_body_and_passed_on(ready_bridge: RunningBridge) -> None:
    response = ready_bridge.notify("notifications/of_tomorrow", {"x": 1})
    assert (response.status, response.body) == (202, b"")
    assert ready_bridge.received()[-2]["method"] == "notifications/of_tomorrow"


def test_a_large_body_and_a_large_response_are_relayed(make: MakeBridge) -> None:
    running_bridge = make(max_bytes=4_000_000)
    running_bridge.initialize()
    text = "y" * 3_900_000
    assert running_bridge.call("echo", text=text).text == text


def test_a_client_that_disconnects_cancels_no_call(ready_bridge: RunningBridge) -> None:
    with contextlib.closing(ready_bridge.connect()) as connection:
        params = {"name": "wait", "arguments": {"name": "left"}}
        body = json.dumps({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params})
        connection.request("POST", "/mcp", body, {"Content-Type": "application/json"})
        eventually(lambda: (ready_bridge.folder / "waiting-left").exists())
    methods = [message.get("method") for message in ready_bridge.received()]
    assert "notifications/cancelled" not in methods
    assert ready_bridge.call("echo", text="still here").text == "still here"
    ready_bridge.notify("notifications/cancelled", {"requestId": 9})  # the client sends its cancellation afterwards
    eventually((ready_bridge.folder / "cancelled-left").exists)


# The handshake ----------------------------------------------------------------------------------------------------


def test_the_server_is_initialized_once_and_every_client_gets_the_same_result(make: MakeBridge) -> None:
    running_bridge = make()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: running_bridge.initialize().message["result"], range(8)))
    for _ in range(2):
        assert running_bridge.notify("notifications/initialized").status == 202
    results.append(running_bridge.initialize().message["result"])
    assert all(result == results[0] for result in results)
    assert results[0]["serverInfo"]["name"] == "stdio test"
    methods = [message["method"] for message in running_bridge.received()]
    assert methods.count("initialize") == 1
    assert methods.count("notifications/initialized") == 1
    assert methods[:2] == ["initialize", "notifications/initialized"]


def test_only_relayed_capabilities_are_declared(ready_bridge: RunningBridge) -> None:
    params = ready_bridge.received()[0]["params"]
    assert params == {**INITIALIZE, "capabilities": {}}


def test_a_refused_handshake_is_reported_and_may_be_repeated(make: MakeBridge) -> None:
    running_bridge = make("refuse-initialize")
    for _ in range(2):
        assert running_bridge.initialize().error == (-32602, "not you")


TWO_HANDSHAKE_RESPONSES = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if request.get("method") == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "first", "version": "1"}}
        for number, name in ((request["id"], "first"), (0, "second")):
            invalid_result = {**result, "capabilities": 5, "serverInfo": {"name": name, "version": "1"}}
            print(json.dumps({"jsonrpc": "2.0", "id": number, "result": invalid_result}), flush=True)
    elif "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": {}}), flush=True)
"""


def test_a_second_response_to_the_handshake_and_invalid_capabilities_change_nothing(make: MakeBridge) -> None:
    running_bridge = make(argv=[sys.executable, "-c", TWO_HANDSHAKE_RESPONSES])
    client = Client(running_bridge)
    assert running_bridge.ask("ping").status == 200  # after both responses
    assert running_bridge.initialize().message["result"]["serverInfo"]["name"] == "first"
    assert client.ask("logging/setLevel", {"level": "debug"}).status == 200
    assert running_bridge.ask("tools/list").message["result"] == {}


def test_a_client_that_disconnects_during_the_handshake_does_not_end_it(make: MakeBridge) -> None:
    running_bridge = make("wait-for=go")
    with contextlib.closing(running_bridge.connect()) as connection:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE})
        connection.request("POST", "/mcp", body, {"Content-Type": "application/json"})
    (running_bridge.folder / "go").touch()
    assert running_bridge.initialize().message["result"]["protocolVersion"] == "2025-06-18"


def test_a_version_without_a_handshake_is_refused_at_once(make: MakeBridge) -> None:
    assert mcp.HANDSHAKE_VERSIONS[-1] == LAST_HANDSHAKE_VERSION
    running_bridge = make("hang")
    assert running_bridge.ask("server/discover", {}, MCP_Protocol_Version="2026-07-28").status == 400


# Cancelling and progress ------------------------------------------------------------------------------------------


def start_waiting_call(
    running_bridge: RunningBridge, name: str, request_id: Any, session: str = ""
) -> threading.Thread:
    """Start a call that waits in the server until it is cancelled."""
    params = {"name": "wait", "arguments": {"name": name}}
    headers = {"Mcp_Session_Id": session} if session else {}

    def ask() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            running_bridge.ask("tools/call", params, request_id, **headers)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    eventually((running_bridge.folder / f"waiting-{name}").exists)
    return thread


def test_a_cancellation_reaches_only_the_call_with_its_id(ready_bridge: RunningBridge) -> None:
    start_waiting_call(ready_bridge, "one", 5)
    start_waiting_call(ready_bridge, "two", "5")
    ready_bridge.notify("notifications/cancelled", {"requestId": "5"})
    eventually((ready_bridge.folder / "cancelled-two").exists)
    assert not (ready_bridge.folder / "cancelled-one").exists()


def test_clients_with_sessions_do_not_cancel_each_others_calls(ready_bridge: RunningBridge) -> None:
    ann_session, bob_session = (ready_bridge.initialize().headers["Mcp-Session-Id"] for _ in range(2))
    assert ann_session != bob_session
    start_waiting_call(ready_bridge, "mine", 5, ann_session)
    start_waiting_call(ready_bridge, "yours", 5, bob_session)
    ready_bridge.notify("notifications/cancelled", {"requestId": 5}, Mcp_Session_Id=bob_session)
    eventually((ready_bridge.folder / "cancelled-yours").exists)
    assert not (ready_bridge.folder / "cancelled-mine").exists()


def test_an_ambiguous_cancellation_cancels_no_call(ready_bridge: RunningBridge) -> None:
    start_waiting_call(ready_bridge, "one", 5)
    start_waiting_call(ready_bridge, "two", 5)
    ready_bridge.notify("notifications/cancelled", {"requestId": 5})
    assert "notifications/cancelled" not in [message.get("method") for message in ready_bridge.received()]


def test_progress_is_streamed_with_the_clients_own_token(ready_bridge: RunningBridge) -> None:
    response = ready_bridge.call("progress", "p", meta={"progressToken": "mine"}, steps=3)
    *notifications, last = response.events
    assert [notification["params"] for notification in notifications] == [
        {"progressToken": "mine", "progress": n} for n in range(3)
    ]
    assert (last["id"], last["result"]["content"][0]["text"]) == ("p", "progress")


def test_after_a_stream_the_connection_serves_another_request(ready_bridge: RunningBridge) -> None:
    params = {"name": "progress", "arguments": {}, "_meta": {"progressToken": 1}}
    with contextlib.closing(ready_bridge.connect()) as connection:
        for number in range(3):
            message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
            assert ready_bridge.post(message, connection, **ACCEPT_BOTH).events[-1]["id"] == number


def test_a_client_that_accepts_no_stream_gets_only_the_response(ready_bridge: RunningBridge) -> None:
    params = {"name": "progress", "arguments": {}, "_meta": {"progressToken": 1}}
    response = ready_bridge.ask("tools/call", params, 1, Accept="application/json")
    assert response.text == "progress"


def test_progress_with_an_unknown_token_is_dropped(ready_bridge: RunningBridge) -> None:
    assert ready_bridge.call("progress").text == "progress"


# Messages that the server begins ----------------------------------------------------------------------------------


def test_the_servers_ping_is_answered(ready_bridge: RunningBridge) -> None:
    assert json.loads(ready_bridge.call("ping").text) == {"result": {}}


def test_the_servers_questions_are_declined(ready_bridge: RunningBridge) -> None:
    assert json.loads(ready_bridge.call("sample").text)["error"]["code"] == -32601


class Client:
    """One client with a session and, if it listens, its stream of events."""

    def __init__(self, running_bridge: RunningBridge) -> None:
        self.bridged = running_bridge
        self.session = running_bridge.initialize().headers["Mcp-Session-Id"]
        self.events: queue.Queue[Any] = queue.Queue()

    def listen(self) -> Client:
        connection = self.bridged.connect()
        headers = {"Accept": "text/event-stream", "Mcp-Session-Id": self.session}
        connection.request("GET", "/mcp", headers=headers)
        response = connection.getresponse()
        assert response.status == 200

        stream_ended = self.stream_ended = threading.Event()

        def read() -> None:
            with contextlib.closing(connection), response, contextlib.suppress(OSError, http.client.HTTPException):
                while line := response.readline():
                    if line.startswith(b"data: "):
                        self.events.put(json.loads(line.removeprefix(b"data: ")))
            stream_ended.set()

        threading.Thread(target=read, daemon=True).start()
        return self

    def ask(self, method: str, params: Any = None, **headers: str) -> Response:
        return self.bridged.ask(method, params or {}, Mcp_Session_Id=self.session, **{**ACCEPT_BOTH, **headers})

    def call(self, tool: str, accept: str = ACCEPT_BOTH["Accept"], **arguments: Any) -> Response:
        return self.ask("tools/call", {"name": tool, "arguments": arguments}, Accept=accept)

    def log_texts(self, response: Response) -> list[Any]:
        """The texts of the log messages in the response."""
        events = response.events if response.kind == "text/event-stream" else []
        return [event["params"]["data"]["text"] for event in events if event.get("method") == "notifications/message"]

    def read_events(self) -> list[Any]:
        """The events on the stream until now. A notification that all clients get marks the end."""
        self.bridged.call("list_changed")
        events = []
        while (message := self.events.get(timeout=10))["method"] != "notifications/tools/list_changed":
            events.append(message)
        return events

    def end(self) -> int:
        connection = self.bridged.connect()
        connection.request("DELETE", "/mcp", headers={"Mcp-Session-Id": self.session})
        status = connection.getresponse().status
        connection.close()
        return status


@pytest.fixture
def stateful_bridge(make: MakeBridge) -> RunningBridge:
    """A server that keeps a log level and subscriptions for its client."""
    return make("keeps")


def test_a_log_message_reaches_only_the_client_of_the_call(stateful_bridge: RunningBridge) -> None:
    ann, bob = Client(stateful_bridge).listen(), Client(stateful_bridge).listen()
    assert ann.log_texts(ann.call("log", text="ann's secret")) == ["ann's secret"]
    assert bob.log_texts(bob.call("log", text="bob's secret")) == ["bob's secret"]
    ann.call("log", text="as JSON", accept="application/json")
    assert [event["params"]["data"]["text"] for event in ann.read_events()] == ["as JSON"]
    assert bob.read_events() == ann.read_events()[1:] == []
    assert "secret" not in stateful_bridge.stderr()


def test_a_log_message_during_calls_of_two_clients_reaches_only_the_members_log(stateful_bridge: RunningBridge) -> None:
    ann, bob = Client(stateful_bridge).listen(), Client(stateful_bridge).listen()
    start_waiting_call(stateful_bridge, "bob", 5, bob.session)
    assert ann.log_texts(ann.call("log", text="ann's secret")) == []
    assert (ann.read_events(), bob.read_events()) == ([], [])
    eventually(lambda: "ann's secret" in stateful_bridge.stderr())


def test_a_cancelled_call_without_a_response_counts_as_running(stateful_bridge: RunningBridge) -> None:
    ann, bob = Client(stateful_bridge).listen(), Client(stateful_bridge).listen()
    start_waiting_call(stateful_bridge, "bob", 5, bob.session)
    stateful_bridge.notify("notifications/cancelled", {"requestId": 5}, Mcp_Session_Id=bob.session)
    eventually((stateful_bridge.folder / "cancelled-bob").exists)
    assert ann.log_texts(ann.call("log", text="whose?")) == []
    assert (ann.read_events(), bob.read_events()) == ([], [])


def test_two_calls_of_one_client_log_to_its_own_stream(stateful_bridge: RunningBridge) -> None:
    ann, bob = Client(stateful_bridge).listen(), Client(stateful_bridge).listen()
    start_waiting_call(stateful_bridge, "ann", 5, ann.session)
    ann.call("log", text="ann's secret")
    assert ann.events.get(timeout=10)["params"]["data"]["text"] == "ann's secret"
    assert bob.read_events() == []


def test_a_log_message_after_the_response_reaches_no_client(stateful_bridge: RunningBridge) -> None:
    ann, bob = Client(stateful_bridge).listen(), Client(stateful_bridge).listen()
    ann.call("log_later", text="ann's secret", file="first")
    ann.call("log_later", text="ann's other secret", file="second")
    (stateful_bridge.folder / "first").touch()
    eventually(lambda: "ann's secret" in stateful_bridge.stderr())
    start_waiting_call(
        stateful_bridge, "bob", 5, bob.session
    )  # the only call that runs, and it has nothing to do with the message
    (stateful_bridge.folder / "second").touch()
    eventually(lambda: "ann's other secret" in stateful_bridge.stderr())
    assert (ann.read_events(), bob.read_events()) == ([], [])


def test_an_updated_resource_is_announced_to_its_subscribers(stateful_bridge: RunningBridge) -> None:
    ann, bob, eve = (Client(stateful_bridge).listen() for _ in range(3))
    for client, uri in ((ann, "file:///a"), (bob, "file:///a/b"), (eve, "file:///ab")):
        assert client.ask("resources/subscribe", {"uri": uri}).message["result"] == {}
    eve.call("updated", uri="file:///a/b")
    uris = [[event["params"]["uri"] for event in client.read_events()] for client in (ann, bob, eve)]
    assert uris[0] == ["file:///a/b"]  # this URI is below the one in the subscription
    assert bob.read_events() == [] == eve.read_events()
    assert uris == [["file:///a/b"], ["file:///a/b"], []]


def test_the_first_client_subscribes_and_the_last_one_unsubscribes(stateful_bridge: RunningBridge) -> None:
    ann, bob = Client(stateful_bridge).listen(), Client(stateful_bridge).listen()

    def subscription_methods() -> list[str]:
        methods = [message.get("method", "") for message in stateful_bridge.received()]
        return [method.removeprefix("resources/") for method in methods if method.startswith("resources/")]

    for client in (ann, bob, ann):
        assert client.ask("resources/subscribe", {"uri": "x:1"}).message["result"] == {}
    assert subscription_methods() == ["subscribe"]
    assert ann.ask("resources/unsubscribe", {"uri": "x:1"}).message["result"] == {}
    assert subscription_methods() == ["subscribe"]
    bob.call("updated", uri="x:1")
    assert (len(bob.read_events()), ann.read_events()) == (1, [])
    assert bob.end() == 200
    eventually(lambda: subscription_methods() == ["subscribe", "unsubscribe"])
    assert ann.ask("resources/subscribe", {"uri": "x:refused"}).error == (-32602, "not this one")
    ann.call("updated", uri="x:refused")
    assert "notifications/resources/updated" not in [message["method"] for message in ann.read_events()]


def test_subscriptions_are_bounded_and_need_a_session(stateful_bridge: RunningBridge) -> None:
    ann = Client(stateful_bridge)
    longest_uri = "x:" + "y" * (sessions.MAX_URIS // 2 - 2)
    assert "result" in ann.ask("resources/subscribe", {"uri": longest_uri}).message
    assert ann.ask("resources/subscribe", {"uri": f"{longest_uri}z"}).error[0] == -32602
    assert ann.ask("resources/subscribe", {"uri": 5}).error[0] == -32602
    assert stateful_bridge.ask("resources/subscribe", {"uri": "x:1"}).error[0] == -32600
    assert stateful_bridge.ask("logging/setLevel", {"level": "debug"}).error[0] == -32600


def test_each_client_has_its_own_log_level(stateful_bridge: RunningBridge) -> None:
    ann, bob, eve = (Client(stateful_bridge) for _ in range(3))
    for client, level in ((ann, "debug"), (bob, "error")):
        assert client.ask("logging/setLevel", {"level": level}).message["result"] == {}
    assert ann.ask("logging/setLevel", {"level": "loud"}).error[0] == -32602

    def levels(client: Client) -> list[str]:
        all_levels = ("debug", "info", "error")
        return [level for level in all_levels if client.log_texts(client.call("log", text="x", level=level))]

    assert levels(ann) == ["debug", "info", "error"]
    assert levels(bob) == ["error"]
    assert levels(eve) == ["info", "error"]
    ann.end()
    server_levels = [
        message["params"]["level"]
        for message in stateful_bridge.received()
        if message.get("method") == "logging/setLevel"
    ]
    assert server_levels == ["debug", "info"]


def test_a_session_that_ended_is_404_and_its_stream_ends(stateful_bridge: RunningBridge) -> None:
    ann = Client(stateful_bridge).listen()
    stream_ended = ann.stream_ended
    assert ann.end() == 200
    assert stream_ended.wait(10)
    assert ann.end() == 404
    assert ann.ask("tools/list").status == 404
    assert stateful_bridge.notify("notifications/x", Mcp_Session_Id=ann.session).status == 404
    assert stateful_bridge.ask("tools/list", Mcp_Session_Id="nobody's").status == 404
    assert stateful_bridge.initialize(Mcp_Session_Id="nobody's").headers["Mcp-Session-Id"] != "nobody's"


def test_a_new_stream_of_a_session_ends_its_old_stream(stateful_bridge: RunningBridge) -> None:
    ann = Client(stateful_bridge).listen()
    first_stream_ended = ann.stream_ended
    ann.listen()
    assert first_stream_ended.wait(10)
    assert ann.read_events() == []
    assert not ann.stream_ended.is_set()


def test_idle_sessions_are_dropped_first_when_there_are_too_many(make: MakeBridge) -> None:
    running_bridge = make("keeps")
    listening_client, idle_client = Client(running_bridge).listen(), Client(running_bridge)
    connection = running_bridge.connect()
    for _ in range(sessions.MAX_SESSIONS - 1):
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
        last_session = running_bridge.post(message, connection).headers["Mcp-Session-Id"]
    connection.close()
    assert idle_client.ask("tools/list").status == 404
    assert listening_client.ask("tools/list").status == 200
    assert running_bridge.ask("tools/list", Mcp_Session_Id=last_session).status == 200


def test_notifications_without_a_request_are_sent_on_the_event_stream(ready_bridge: RunningBridge) -> None:
    with (
        contextlib.closing(ready_bridge.connect()) as first_connection,
        contextlib.closing(ready_bridge.connect()) as second_connection,
    ):
        streams = []
        for listener in (first_connection, second_connection):
            listener.request("GET", "/mcp", headers={"Accept": "text/event-stream"})
            streams.append(listener.getresponse())
        assert ready_bridge.call("list_changed").text == "list_changed"
        for stream in streams:
            assert (stream.status, stream.headers.get_content_type()) == (200, "text/event-stream")
            line = stream.readline()
            assert json.loads(line.removeprefix(b"data: "))["method"] == "notifications/tools/list_changed"


def test_output_that_is_not_a_message_goes_to_stderr(make: MakeBridge) -> None:
    running_bridge = make("noise")
    assert running_bridge.initialize().status == 200
    eventually(lambda: "{broken" in running_bridge.stderr())
    assert "Welcome to the server!" in running_bridge.stderr()


def run_silent(folder: Path, program: str) -> str:
    """The stderr of a bridge whose server runs this Python program and gives no answer, until both are stopped."""
    running_bridge = RunningBridge(folder, free_port(), [sys.executable, "-u", "-c", program], max_bytes=1_000)
    try:
        eventually(lambda: "ready" in running_bridge.stderr())
    finally:
        running_bridge.process.terminate()
        running_bridge.process.wait(20)
    return running_bridge.stderr()


READY = "import sys; print('ready', file=sys.stderr); sys.stdin.read()"


def test_a_server_that_writes_other_things_than_an_answer_is_explained_at_its_end(tmp_path: Path) -> None:
    errors = run_silent(tmp_path, f"print('Loading'); print('Listening on port 80'); {READY}").splitlines()
    text = "bridge: the server did not answer initialize. 2 lines on stdout were not MCP, the first is: Loading"
    assert errors[-1] == text
    assert "Listening on port 80" in errors


def test_an_answer_without_a_newline_is_explained_at_the_end(tmp_path: Path) -> None:
    errors = run_silent(tmp_path, f"print('Your key: ', end=''); {READY}").splitlines()
    assert errors[-1].endswith(". Its last line on stdout has no newline at its end: Your key:")


def test_a_silent_server_and_a_server_that_answered_are_not_explained(tmp_path: Path, make: MakeBridge) -> None:
    assert "did not answer" not in run_silent(tmp_path, READY)
    running_bridge = make("noise")
    assert running_bridge.initialize().status == 200
    running_bridge.process.terminate()
    running_bridge.process.wait(20)
    assert "did not answer" not in running_bridge.stderr()


def test_a_flood_of_invalid_output_is_shortened_in_the_log(ready_bridge: RunningBridge) -> None:
    assert ready_bridge.call("noise", lines=20_000).text == "noise"
    assert ready_bridge.stderr().count("this is no message") < 2_000


def test_the_stderr_of_the_server_is_unchanged(make: MakeBridge) -> None:
    running_bridge = make("exit=5")
    assert running_bridge.process.wait(20) == 5
    assert running_bridge.stderr() == "cannot go on like this\n"


# Messages that cannot be relayed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("id_last", [False, True])
def test_a_response_that_is_too_large_ends_its_request_with_an_error(make: MakeBridge, id_last: bool) -> None:
    running_bridge = make(max_bytes=100_000)
    running_bridge.initialize()
    code, text = running_bridge.call("big", bytes=150_000, id_last=id_last).error
    assert (code, "larger than 100,000 bytes" in text) == (-32603, True)
    assert running_bridge.call("echo", text="still here").text == "still here"


def test_a_flood_without_a_line_end_does_not_grow_the_bridge(make: MakeBridge) -> None:
    running_bridge = make(max_bytes=100_000)
    running_bridge.initialize()
    process = psutil.Process(running_bridge.process.pid)
    memory_before = process.memory_info().rss
    assert running_bridge.call("big", bytes=100_000_000).error[0] == -32603
    assert process.memory_info().rss - memory_before < 10_000_000


@pytest.mark.parametrize("tool", ["deep", "unreadable"])
def test_an_unreadable_response_ends_its_request_with_an_error(ready_bridge: RunningBridge, tool: str) -> None:
    assert ready_bridge.call(tool).error[0] == -32603


def test_deeply_nested_messages_do_not_end_the_bridge(ready_bridge: RunningBridge) -> None:
    for depth in range(300, 1100):
        nested = "[" * depth + "]" * depth
        body = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"nest","arguments":{"depth":%s,"x":%s}}}'
        assert ready_bridge.post((body % (depth, nested)).encode()).status in (200, 400, 503)
    assert ready_bridge.call("echo", text="still here").text == "still here"


def test_a_server_that_reads_nothing_does_not_fill_memory(make: MakeBridge) -> None:
    running_bridge = make("deaf")
    body = {"jsonrpc": "2.0", "method": "notifications/x", "params": {"text": "x" * 3_900_000}}
    for _ in range(8):
        assert running_bridge.post(body).status == 202
    response = running_bridge.call("echo", text="hi")
    assert (response.status, response.error[0]) == (503, -32603)
    assert psutil.Process(running_bridge.process.pid).memory_info().rss < 100_000_000


# Access and form of requests --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost.evil.example"}, 403),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Transfer-Encoding": "chunked"}, 411),
        ({"Content-Length": "4000001"}, 413),
        ({"Content-Length": "+5"}, 400),
        ({"X": "x" * 70_000}, 431),
    ],
)
def test_a_request_is_refused_by_its_headers(ready_bridge: RunningBridge, headers: dict[str, str], status: int) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE})
    all_headers = {
        "Host": f"127.0.0.1:{ready_bridge.port}",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **headers,
    }
    head = "".join(f"{name}: {value}\n" for name, value in all_headers.items())
    response = ready_bridge.raw(f"POST /mcp HTTP/1.1\n{head}\n{body}")
    assert response.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET /mcp HTTP/1.1", 405),
        ("DELETE /mcp HTTP/1.1", 405),
        ("POST / HTTP/1.1", 404),
        ("nonsense", 400),
    ],
)
def test_only_posts_to_mcp_are_served(ready_bridge: RunningBridge, line: str, status: int) -> None:
    assert ready_bridge.raw(f"{line}\nHost: localhost:{ready_bridge.port}\n\n").startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    "body",
    [
        b"no json",
        b"\xff",
        b"[" * 200_000,
        b"5",
        b"[]",
        b"{}",
        b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}',
        b'{"jsonrpc": "2.0", "id": 1, "method": 5}',
        b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}',
        b'{"jsonrpc": "2.0", "id": null, "method": "ping"}',
        b'{"jsonrpc": "2.0", "id": true, "method": "ping"}',
        b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}',
        b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]',
    ],
)
def test_a_body_that_is_not_a_message_is_400_and_not_relayed(ready_bridge: RunningBridge, body: bytes) -> None:
    assert ready_bridge.post(body).status == 400
    assert [message["method"] for message in ready_bridge.received()][2:] == ["tools/call"]


def test_a_response_without_a_question_is_accepted_and_dropped(ready_bridge: RunningBridge) -> None:
    assert ready_bridge.post({"jsonrpc": "2.0", "id": 1, "result": {}}).status == 202
    assert len(ready_bridge.received()) == 3


def test_expect_100_continue_is_confirmed(ready_bridge: RunningBridge) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()
    head = f"POST /mcp HTTP/1.1\r\nHost: localhost:{ready_bridge.port}\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", ready_bridge.port), timeout=20) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode())
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")


# Beginning and end ------------------------------------------------------------------------------------------------


def test_the_exit_code_for_a_taken_port_is_two(make: MakeBridge) -> None:
    running_bridge = make()
    second_bridge = RunningBridge(running_bridge.folder, running_bridge.port, ["true"], max_bytes=1000)
    assert second_bridge.process.wait(20) == 2
    assert f"{bridge.PORT_TAKEN} {running_bridge.port}" in running_bridge.stderr()


@pytest.mark.parametrize("code", [0, 1, 2, 77])
def test_the_bridge_ends_with_the_exit_code_of_the_server(ready_bridge: RunningBridge, code: int) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        ready_bridge.call("exit", code=code)
    assert ready_bridge.process.wait(20) == code
    assert "going down now" in ready_bridge.stderr()


def test_a_server_that_is_killed_ends_the_bridge_with_128_and_the_signal(ready_bridge: RunningBridge) -> None:
    ready_bridge.server().kill()
    assert ready_bridge.process.wait(20) == 128 + signal.SIGKILL
    assert "signal 9" in ready_bridge.stderr()


def test_the_last_response_of_a_server_is_relayed(ready_bridge: RunningBridge) -> None:
    assert ready_bridge.call("exit", answer=True).text == "a last word"


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["no-such-command-anywhere"], 127, "command not found: 'no-such-command-anywhere'"),
        (["./server.py"], 126, "'./server.py' cannot be started: Permission denied"),
    ],
)
def test_the_error_of_a_command_that_cannot_start_is_printed(
    make: MakeBridge, argv: list[str], code: int, message: str
) -> None:
    running_bridge = make(argv=argv, is_ready=False)
    assert running_bridge.process.wait(20) == code
    assert message in running_bridge.stderr()


def test_sigterm_ends_the_server_too(ready_bridge: RunningBridge) -> None:
    server = ready_bridge.server()
    ready_bridge.process.terminate()
    assert ready_bridge.process.wait(20) == 0  # a stdio server stops when its input ends
    assert not server.is_running()


def test_a_server_that_ignores_sigterm_is_killed(make: MakeBridge) -> None:
    running_bridge = make("ignore-sigterm")
    running_bridge.initialize()
    server = running_bridge.server()
    running_bridge.process.terminate()
    assert running_bridge.process.wait(20) == 128 + signal.SIGKILL
    assert not server.is_running()


def test_the_bridge_ends_a_server_that_closes_its_output(ready_bridge: RunningBridge) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        ready_bridge.call("close_stdout")
    ready_bridge.process.wait(20)


@LINUX
def test_a_server_does_not_outlive_a_bridge_that_is_killed(make: MakeBridge) -> None:
    running_bridge = make("ignore-sigterm")
    running_bridge.initialize()
    server = running_bridge.server()
    running_bridge.process.kill()
    running_bridge.process.wait(20)
    eventually(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE)


def test_the_bridge_imports_no_modules_from_the_members_folder(make: MakeBridge, tmp_path: Path) -> None:
    for name in ("json", "socket", "selectors", "ctypes"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(99)")
    running_bridge = make(argv=["sh", "-c", "exit 5"], is_ready=False)
    assert running_bridge.process.wait(20) == 5


def test_no_module_of_the_bridge_has_the_name_of_a_standard_module() -> None:
    names = {path.stem for path in (ROOT / "mcp_runtime" / "bridge").glob("*.py")}
    assert names & set(sys.stdlib_module_names) == set()


@pytest.mark.parametrize("argv", [[], ["20000"], ["20000", "--"], ["20000", "--what", "5", "--", "true"]])
def test_a_wrong_command_line_is_explained(argv: list[str]) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "mcp_runtime.bridge", *argv], cwd=ROOT, capture_output=True, timeout=20
    )
    assert process.returncode == bridge.EXIT_USAGE
    assert b"usage: bridge PORT" in process.stderr

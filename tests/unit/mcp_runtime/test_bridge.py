"""The bridge as a real process in front of a real stdio server, asked over raw HTTP."""

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
BOTH = {"Accept": "application/json, text/event-stream"}

if os.environ.get("COVERAGE_PROCESS_CONFIG"):
    bridge.ISOLATED.clear()  # without the installed packages it could not be measured

Event = dict[str, Any]


class Bridged:
    """A bridge in a folder of its own, answering; its server is its one child."""

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
        """The server's own process: past its exec."""
        found: list[psutil.Process] = []

        def is_there() -> bool:
            with contextlib.suppress(psutil.Error):
                found[:] = psutil.Process(self.process.pid).children()
                return bool(found) and found[0].cmdline() != psutil.Process(self.process.pid).cmdline()
            return False

        eventually(is_there, what="the bridge's child is the server")
        return found[0]

    # Asking

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def post(self, message: Any, connection: http.client.HTTPConnection | None = None, **headers: str) -> Answer:
        used = connection or self.connect()
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        named = {"Content-Type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
        used.request("POST", "/mcp", body, named)
        answer = Answer(used.getresponse())
        if connection is None:
            used.close()
        return answer

    def ask(self, method: str, params: Any = None, request_id: Any = 1, **headers: str) -> Answer:
        message = {"jsonrpc": "2.0", "id": request_id, "method": method}
        return self.post(message if params is None else {**message, "params": params}, **headers)

    def initialize(self, **headers: str) -> Answer:
        return self.ask("initialize", INITIALIZE, **headers)

    def call(self, tool: str, request_id: Any = 1, meta: Any = None, **arguments: Any) -> Answer:
        params = {"name": tool, "arguments": arguments} | ({"_meta": meta} if meta else {})
        return self.ask("tools/call", params, request_id, **BOTH)

    def notify(self, method: str, params: Any = None, **headers: str) -> Answer:
        return self.post({"jsonrpc": "2.0", "method": method, "params": params or {}}, **headers)

    def received(self) -> list[Any]:
        """Everything that the server has read."""
        found: list[Any] = json.loads(self.call("received").text)
        return found

    def raw(self, request: str) -> bytes:
        """`request` byte for byte; everything that comes back until the bridge closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(request.replace("\n", "\r\n").encode())
            return b"".join(iter(lambda: connection.recv(65_536), b""))


class Answer:
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


Make = Callable[..., Bridged]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Bridged] = []

    def make(*modes: str, argv: list[str] | None = None, ready: bool = True, max_bytes: int = 1_000_000) -> Bridged:
        shutil.copy(SERVER, tmp_path / "server.py")
        command = [sys.executable, "server.py", *modes] if argv is None else argv
        while True:
            made.append(found := Bridged(tmp_path, free_port(), command, max_bytes=max_bytes))
            if not ready:
                return found
            eventually(lambda: found.is_listening() or found.process.poll() is not None, what="the bridge listens")
            if bridge.PORT_TAKEN not in found.stderr():
                return found

    yield make
    for bridged in made:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(bridged.process.pid, signal.SIGKILL)
        bridged.process.wait()


@pytest.fixture
def ready(make: Make) -> Bridged:
    """One that has shaken hands."""
    bridged = make()
    assert bridged.initialize().status == 200
    return bridged


# Requests and answers ---------------------------------------------------------------------------------------------


def test_a_request_comes_back_with_the_servers_answer(ready: Bridged) -> None:
    answer = ready.ask("tools/list", {}, "seven")
    assert (answer.status, answer.kind) == (200, "application/json")
    assert answer.message["id"] == "seven"
    assert "echo" in [tool["name"] for tool in answer.message["result"]["tools"]]


@pytest.mark.parametrize("request_id", [0, 7, -3, 2**60, "7", "", "é\n"])
def test_a_caller_gets_its_own_id_back_in_its_own_type(ready: Bridged, request_id: Any) -> None:
    answered = ready.call("echo", request_id, text="hi").message
    assert (answered["id"], type(answered["id"])) == (request_id, type(request_id))


def test_many_callers_with_the_same_id_get_their_own_answers(ready: Bridged) -> None:
    texts = [f"text {number}" for number in range(100)]
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda text: ready.call("echo", 1, text=text).text, texts))
    assert answers == texts


def test_a_slow_call_delays_no_other(ready: Bridged) -> None:
    with contextlib.closing(ready.connect()) as slow:
        params = {"name": "sleep", "arguments": {}}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        slow.request("POST", "/mcp", body, {"Content-Type": "application/json"})
        assert ready.call("echo", 1, text="quick").text == "quick"


def test_an_error_of_the_server_is_passed_on(ready: Bridged) -> None:
    answer = ready.ask("no/such", {}, 5)
    assert answer.status == 200
    assert answer.message == {"jsonrpc": "2.0", "id": 5, "error": {"code": -32601, "message": "no no/such"}}


def test_one_connection_serves_many_requests(ready: Bridged) -> None:
    with contextlib.closing(ready.connect()) as connection:
        for number in range(20):
            message = {"jsonrpc": "2.0", "id": number, "method": "tools/list"}
            assert ready.post(message, connection).message["id"] == number
        assert ready.notify("notifications/whatever").status == 202


def test_requests_sent_ahead_are_answered_in_turn(ready: Bridged) -> None:
    def request(number: int, last: bool = False) -> str:
        body = json.dumps({"jsonrpc": "2.0", "id": number, "method": "initialize", "params": {}})
        head = f"POST /mcp HTTP/1.1\nHost: localhost:{ready.port}\nContent-Type: application/json\n"
        return f"{head}{'Connection: close' if last else 'X: y'}\nContent-Length: {len(body)}\n\n{body}"

    came = ready.raw("".join(request(number, number == 1999) for number in range(2000)))
    assert came.count(b"HTTP/1.1 200 OK") == 2000


def test_what_json_can_escape_comes_through(ready: Bridged) -> None:
    assert ready.call("nul").text == "a\0b\ud800c é"
    assert ready.call("echo", text="☃ \U0001f600").text == "☃ \U0001f600"


def test_a_notification_is_accepted_without_a_body_and_passed_on(ready: Bridged) -> None:
    answer = ready.notify("notifications/of_tomorrow", {"x": 1})
    assert (answer.status, answer.body) == (202, b"")
    assert ready.received()[-2]["method"] == "notifications/of_tomorrow"


def test_a_large_body_and_a_large_answer_come_through(make: Make) -> None:
    bridged = make(max_bytes=4_000_000)
    bridged.initialize()
    text = "y" * 3_900_000
    assert bridged.call("echo", text=text).text == text


def test_a_caller_that_leaves_cancels_nothing_and_harms_nobody(ready: Bridged) -> None:
    with contextlib.closing(ready.connect()) as leaving:
        params = {"name": "wait", "arguments": {"name": "left"}}
        body = json.dumps({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params})
        leaving.request("POST", "/mcp", body, {"Content-Type": "application/json"})
        eventually(lambda: (ready.folder / "waiting-left").exists())
    methods = [message.get("method") for message in ready.received()]
    assert "notifications/cancelled" not in methods
    assert ready.call("echo", text="still here").text == "still here"
    ready.notify("notifications/cancelled", {"requestId": 9})  # who gave up says so afterwards
    eventually((ready.folder / "cancelled-left").exists)


# The handshake ----------------------------------------------------------------------------------------------------


def test_the_server_is_initialized_once_and_every_caller_gets_the_same_result(make: Make) -> None:
    bridged = make()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: bridged.initialize().message["result"], range(8)))
    for _ in range(2):
        assert bridged.notify("notifications/initialized").status == 202
    answers.append(bridged.initialize().message["result"])
    assert all(answer == answers[0] for answer in answers)
    assert answers[0]["serverInfo"]["name"] == "stdio test"
    methods = [message["method"] for message in bridged.received()]
    assert methods.count("initialize") == 1
    assert methods.count("notifications/initialized") == 1
    assert methods[:2] == ["initialize", "notifications/initialized"]


def test_only_capabilities_that_are_relayed_are_declared(ready: Bridged) -> None:
    asked = ready.received()[0]["params"]
    assert asked == {**INITIALIZE, "capabilities": {}}


def test_a_refused_handshake_is_told_and_may_be_tried_again(make: Make) -> None:
    bridged = make("refuse-initialize")
    for _ in range(2):
        assert bridged.initialize().error == (-32602, "not you")


LIAR = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        said = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "first", "version": "1"}}
        for number, name in ((asked["id"], "first"), (0, "second")):
            told = {**said, "capabilities": 5, "serverInfo": {"name": name, "version": "1"}}
            print(json.dumps({"jsonrpc": "2.0", "id": number, "result": told}), flush=True)
    elif "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {}}), flush=True)
"""


def test_a_second_answer_to_the_handshake_and_capabilities_that_are_none_change_nothing(make: Make) -> None:
    bridged = make(argv=[sys.executable, "-c", LIAR])
    client = Client(bridged)
    assert bridged.ask("ping").status == 200  # behind both answers
    assert bridged.initialize().message["result"]["serverInfo"]["name"] == "first"
    assert client.ask("logging/setLevel", {"level": "debug"}).status == 200
    assert bridged.ask("tools/list").message["result"] == {}


def test_a_caller_that_leaves_during_the_handshake_does_not_spoil_it(make: Make) -> None:
    bridged = make("wait-for=go")
    with contextlib.closing(bridged.connect()) as leaving:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE})
        leaving.request("POST", "/mcp", body, {"Content-Type": "application/json"})
    (bridged.folder / "go").touch()
    assert bridged.initialize().message["result"]["protocolVersion"] == "2025-06-18"


def test_a_version_without_a_handshake_is_refused_at_once(make: Make) -> None:
    assert mcp.HANDSHAKE_VERSIONS[-1] == LAST_HANDSHAKE_VERSION
    bridged = make("hang")
    assert bridged.ask("server/discover", {}, MCP_Protocol_Version="2026-07-28").status == 400


# Cancelling and progress ------------------------------------------------------------------------------------------


def waiting(bridged: Bridged, name: str, request_id: Any, session: str = "") -> threading.Thread:
    """A call that waits in the server until it is cancelled."""
    params = {"name": "wait", "arguments": {"name": name}}
    headers = {"Mcp_Session_Id": session} if session else {}

    def ask() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            bridged.ask("tools/call", params, request_id, **headers)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    eventually((bridged.folder / f"waiting-{name}").exists)
    return thread


def test_a_cancellation_reaches_the_call_that_is_meant(ready: Bridged) -> None:
    waiting(ready, "one", 5)
    waiting(ready, "two", "5")
    ready.notify("notifications/cancelled", {"requestId": "5"})
    eventually((ready.folder / "cancelled-two").exists)
    assert not (ready.folder / "cancelled-one").exists()


def test_callers_with_sessions_do_not_cancel_each_others_calls(ready: Bridged) -> None:
    mine, yours = (ready.initialize().headers["Mcp-Session-Id"] for _ in range(2))
    assert mine != yours
    waiting(ready, "mine", 5, mine)
    waiting(ready, "yours", 5, yours)
    ready.notify("notifications/cancelled", {"requestId": 5}, Mcp_Session_Id=yours)
    eventually((ready.folder / "cancelled-yours").exists)
    assert not (ready.folder / "cancelled-mine").exists()


def test_a_cancellation_that_may_mean_two_calls_means_none(ready: Bridged) -> None:
    waiting(ready, "one", 5)
    waiting(ready, "two", 5)
    ready.notify("notifications/cancelled", {"requestId": 5})
    assert "notifications/cancelled" not in [message.get("method") for message in ready.received()]


def test_progress_comes_as_a_stream_with_the_callers_own_token(ready: Bridged) -> None:
    answer = ready.call("progress", "p", meta={"progressToken": "mine"}, steps=3)
    *notes, last = answer.events
    assert [note["params"] for note in notes] == [{"progressToken": "mine", "progress": n} for n in range(3)]
    assert (last["id"], last["result"]["content"][0]["text"]) == ("p", "progress")


def test_after_a_stream_the_connection_serves_another_request(ready: Bridged) -> None:
    params = {"name": "progress", "arguments": {}, "_meta": {"progressToken": 1}}
    with contextlib.closing(ready.connect()) as connection:
        for number in range(3):
            message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
            assert ready.post(message, connection, **BOTH).events[-1]["id"] == number


def test_a_caller_that_takes_no_stream_gets_the_answer_alone(ready: Bridged) -> None:
    params = {"name": "progress", "arguments": {}, "_meta": {"progressToken": 1}}
    answer = ready.ask("tools/call", params, 1, Accept="application/json")
    assert answer.text == "progress"


def test_progress_with_an_unknown_token_is_dropped(ready: Bridged) -> None:
    assert ready.call("progress").text == "progress"


# What the server says by itself -----------------------------------------------------------------------------------


def test_the_servers_ping_is_answered(ready: Bridged) -> None:
    assert json.loads(ready.call("ping").text) == {"result": {}}


def test_the_servers_questions_are_declined(ready: Bridged) -> None:
    assert json.loads(ready.call("sample").text)["error"]["code"] == -32601


class Client:
    """One client with a session and, if it listens, its stream of events."""

    def __init__(self, bridged: Bridged) -> None:
        self.bridged = bridged
        self.session = bridged.initialize().headers["Mcp-Session-Id"]
        self.heard: queue.Queue[Any] = queue.Queue()

    def listen(self) -> Client:
        connection = self.bridged.connect()
        headers = {"Accept": "text/event-stream", "Mcp-Session-Id": self.session}
        connection.request("GET", "/mcp", headers=headers)
        response = connection.getresponse()
        assert response.status == 200

        ended = self.ended = threading.Event()

        def read() -> None:
            with contextlib.closing(connection), response, contextlib.suppress(OSError, http.client.HTTPException):
                while line := response.readline():
                    if line.startswith(b"data: "):
                        self.heard.put(json.loads(line.removeprefix(b"data: ")))
            ended.set()

        threading.Thread(target=read, daemon=True).start()
        return self

    def ask(self, method: str, params: Any = None, **headers: str) -> Answer:
        return self.bridged.ask(method, params or {}, Mcp_Session_Id=self.session, **{**BOTH, **headers})

    def call(self, tool: str, accept: str = BOTH["Accept"], **arguments: Any) -> Answer:
        return self.ask("tools/call", {"name": tool, "arguments": arguments}, Accept=accept)

    def logged(self, answer: Answer) -> list[Any]:
        """What log messages came with the answer."""
        events = answer.events if answer.kind == "text/event-stream" else []
        return [one["params"]["data"]["text"] for one in events if one.get("method") == "notifications/message"]

    def heard_so_far(self) -> list[Any]:
        """What came on the stream until now; the end of it is marked by an event that everybody gets."""
        self.bridged.call("list_changed")
        found = []
        while (message := self.heard.get(timeout=10))["method"] != "notifications/tools/list_changed":
            found.append(message)
        return found

    def end(self) -> int:
        connection = self.bridged.connect()
        connection.request("DELETE", "/mcp", headers={"Mcp-Session-Id": self.session})
        status = connection.getresponse().status
        connection.close()
        return status


@pytest.fixture
def keeping(make: Make) -> Bridged:
    """A server that keeps a log level and subscriptions for its client."""
    return make("keeps")


def test_a_log_message_reaches_the_client_of_the_call_and_nobody_else(keeping: Bridged) -> None:
    ann, bob = Client(keeping).listen(), Client(keeping).listen()
    assert ann.logged(ann.call("log", text="ann's secret")) == ["ann's secret"]
    assert bob.logged(bob.call("log", text="bob's secret")) == ["bob's secret"]
    ann.call("log", text="as JSON", accept="application/json")
    assert [one["params"]["data"]["text"] for one in ann.heard_so_far()] == ["as JSON"]
    assert bob.heard_so_far() == ann.heard_so_far()[1:] == []
    assert "secret" not in keeping.stderr()


def test_a_log_message_while_two_clients_calls_run_reaches_the_members_log_alone(keeping: Bridged) -> None:
    ann, bob = Client(keeping).listen(), Client(keeping).listen()
    waiting(keeping, "bob", 5, bob.session)
    assert ann.logged(ann.call("log", text="ann's secret")) == []
    assert (ann.heard_so_far(), bob.heard_so_far()) == ([], [])
    eventually(lambda: "ann's secret" in keeping.stderr())


def test_a_cancelled_call_that_the_server_did_not_answer_counts_as_running(keeping: Bridged) -> None:
    ann, bob = Client(keeping).listen(), Client(keeping).listen()
    waiting(keeping, "bob", 5, bob.session)
    keeping.notify("notifications/cancelled", {"requestId": 5}, Mcp_Session_Id=bob.session)
    eventually((keeping.folder / "cancelled-bob").exists)
    assert ann.logged(ann.call("log", text="whose?")) == []
    assert (ann.heard_so_far(), bob.heard_so_far()) == ([], [])


def test_two_calls_of_one_client_log_to_its_own_stream(keeping: Bridged) -> None:
    ann, bob = Client(keeping).listen(), Client(keeping).listen()
    waiting(keeping, "ann", 5, ann.session)
    ann.call("log", text="ann's secret")
    assert ann.heard.get(timeout=10)["params"]["data"]["text"] == "ann's secret"
    assert bob.heard_so_far() == []


def test_a_server_that_logs_behind_its_answers_logs_to_nobody(keeping: Bridged) -> None:
    ann, bob = Client(keeping).listen(), Client(keeping).listen()
    ann.call("log_later", text="ann's secret", file="first")
    ann.call("log_later", text="ann's other secret", file="second")
    (keeping.folder / "first").touch()
    eventually(lambda: "ann's secret" in keeping.stderr())
    waiting(keeping, "bob", 5, bob.session)  # the only call that runs, and none of its business
    (keeping.folder / "second").touch()
    eventually(lambda: "ann's other secret" in keeping.stderr())
    assert (ann.heard_so_far(), bob.heard_so_far()) == ([], [])


def test_an_updated_resource_is_announced_to_its_subscribers(keeping: Bridged) -> None:
    ann, bob, eve = (Client(keeping).listen() for _ in range(3))
    for client, uri in ((ann, "file:///a"), (bob, "file:///a/b"), (eve, "file:///ab")):
        assert client.ask("resources/subscribe", {"uri": uri}).message["result"] == {}
    eve.call("updated", uri="file:///a/b")
    told = [[one["params"]["uri"] for one in client.heard_so_far()] for client in (ann, bob, eve)]
    assert told[0] == ["file:///a/b"]  # a part of what was subscribed to
    assert bob.heard_so_far() == [] == eve.heard_so_far()
    assert told == [["file:///a/b"], ["file:///a/b"], []]


def test_the_server_is_subscribed_to_once_and_unsubscribed_from_by_the_last(keeping: Bridged) -> None:
    ann, bob = Client(keeping).listen(), Client(keeping).listen()

    def told() -> list[str]:
        methods = [one.get("method", "") for one in keeping.received()]
        return [method.removeprefix("resources/") for method in methods if method.startswith("resources/")]

    for client in (ann, bob, ann):
        assert client.ask("resources/subscribe", {"uri": "x:1"}).message["result"] == {}
    assert told() == ["subscribe"]
    assert ann.ask("resources/unsubscribe", {"uri": "x:1"}).message["result"] == {}
    assert told() == ["subscribe"]
    bob.call("updated", uri="x:1")
    assert (len(bob.heard_so_far()), ann.heard_so_far()) == (1, [])
    assert bob.end() == 200
    eventually(lambda: told() == ["subscribe", "unsubscribe"])
    assert ann.ask("resources/subscribe", {"uri": "x:refused"}).error == (-32602, "not this one")
    ann.call("updated", uri="x:refused")
    assert "notifications/resources/updated" not in [one["method"] for one in ann.heard_so_far()]


def test_subscriptions_are_bounded_and_need_a_session(keeping: Bridged) -> None:
    ann = Client(keeping)
    long = "x:" + "y" * (sessions.MAX_URIS // 2 - 2)
    assert "result" in ann.ask("resources/subscribe", {"uri": long}).message
    assert ann.ask("resources/subscribe", {"uri": f"{long}z"}).error[0] == -32602
    assert ann.ask("resources/subscribe", {"uri": 5}).error[0] == -32602
    assert keeping.ask("resources/subscribe", {"uri": "x:1"}).error[0] == -32600
    assert keeping.ask("logging/setLevel", {"level": "debug"}).error[0] == -32600


def test_a_log_level_is_that_of_one_client(keeping: Bridged) -> None:
    ann, bob, eve = (Client(keeping) for _ in range(3))
    for client, level in ((ann, "debug"), (bob, "error")):
        assert client.ask("logging/setLevel", {"level": level}).message["result"] == {}
    assert ann.ask("logging/setLevel", {"level": "loud"}).error[0] == -32602

    def levels(client: Client) -> list[str]:
        said = ("debug", "info", "error")
        return [level for level in said if client.logged(client.call("log", text="x", level=level))]

    assert levels(ann) == ["debug", "info", "error"]
    assert levels(bob) == ["error"]
    assert levels(eve) == ["info", "error"]
    ann.end()
    told = [one["params"]["level"] for one in keeping.received() if one.get("method") == "logging/setLevel"]
    assert told == ["debug", "info"]


def test_a_session_that_is_over_is_404_and_its_stream_ends(keeping: Bridged) -> None:
    ann = Client(keeping).listen()
    first = ann.ended
    assert ann.end() == 200
    assert first.wait(10)
    assert ann.end() == 404
    assert ann.ask("tools/list").status == 404
    assert keeping.notify("notifications/x", Mcp_Session_Id=ann.session).status == 404
    assert keeping.ask("tools/list", Mcp_Session_Id="nobody's").status == 404
    assert keeping.initialize(Mcp_Session_Id="nobody's").headers["Mcp-Session-Id"] != "nobody's"


def test_a_session_has_one_stream_and_the_new_one_ends_the_old(keeping: Bridged) -> None:
    ann = Client(keeping).listen()
    old = ann.ended
    ann.listen()
    assert old.wait(10)
    assert ann.heard_so_far() == []
    assert not ann.ended.is_set()


def test_sessions_are_bounded_and_the_idle_ones_go_first(make: Make) -> None:
    bridged = make("keeps")
    first, idle = Client(bridged).listen(), Client(bridged)
    connection = bridged.connect()
    for _ in range(sessions.MAX_SESSIONS - 1):
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
        last = bridged.post(message, connection).headers["Mcp-Session-Id"]
    connection.close()
    assert idle.ask("tools/list").status == 404
    assert first.ask("tools/list").status == 200
    assert bridged.ask("tools/list", Mcp_Session_Id=last).status == 200


def test_news_that_belong_to_no_request_come_on_the_stream_of_events(ready: Bridged) -> None:
    with contextlib.closing(ready.connect()) as one, contextlib.closing(ready.connect()) as another:
        streams = []
        for listener in (one, another):
            listener.request("GET", "/mcp", headers={"Accept": "text/event-stream"})
            streams.append(listener.getresponse())
        assert ready.call("list_changed").text == "list_changed"
        for stream in streams:
            assert (stream.status, stream.headers.get_content_type()) == (200, "text/event-stream")
            line = stream.readline()
            assert json.loads(line.removeprefix(b"data: "))["method"] == "notifications/tools/list_changed"


def test_what_is_no_message_goes_to_stderr_and_harms_nobody(make: Make) -> None:
    bridged = make("noise")
    assert bridged.initialize().status == 200
    eventually(lambda: "{broken" in bridged.stderr())
    assert "Welcome to the server!" in bridged.stderr()


def test_a_flood_of_noise_is_bounded(ready: Bridged) -> None:
    assert ready.call("noise", lines=20_000).text == "noise"
    assert ready.stderr().count("this is no message") < 2_000


def test_what_the_server_writes_to_stderr_is_unchanged(make: Make) -> None:
    bridged = make("exit=5")
    assert bridged.process.wait(20) == 5
    assert bridged.stderr() == "cannot go on like this\n"


# What cannot be passed on -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("id_last", [False, True])
def test_an_answer_that_is_too_large_ends_its_request_with_an_error(make: Make, id_last: bool) -> None:
    bridged = make(max_bytes=100_000)
    bridged.initialize()
    code, text = bridged.call("big", bytes=150_000, id_last=id_last).error
    assert (code, "larger than 100,000 bytes" in text) == (-32603, True)
    assert bridged.call("echo", text="still here").text == "still here"


def test_a_flood_without_a_line_end_does_not_grow_the_bridge(make: Make) -> None:
    bridged = make(max_bytes=100_000)
    bridged.initialize()
    process = psutil.Process(bridged.process.pid)
    before = process.memory_info().rss
    assert bridged.call("big", bytes=100_000_000).error[0] == -32603
    assert process.memory_info().rss - before < 10_000_000


@pytest.mark.parametrize("tool", ["deep", "unreadable"])
def test_an_answer_that_cannot_be_read_ends_its_request_with_an_error(ready: Bridged, tool: str) -> None:
    assert ready.call(tool).error[0] == -32603


def test_nothing_nested_as_deep_as_can_just_be_read_ends_the_bridge(ready: Bridged) -> None:
    for depth in range(300, 1100):
        nested = "[" * depth + "]" * depth
        body = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"nest","arguments":{"depth":%s,"x":%s}}}'
        assert ready.post((body % (depth, nested)).encode()).status in (200, 400, 503)
    assert ready.call("echo", text="still here").text == "still here"


def test_a_server_that_reads_nothing_does_not_fill_memory(make: Make) -> None:
    bridged = make("deaf")
    body = {"jsonrpc": "2.0", "method": "notifications/x", "params": {"text": "x" * 3_900_000}}
    for _ in range(8):
        assert bridged.post(body).status == 202
    answer = bridged.call("echo", text="hi")
    assert (answer.status, answer.error[0]) == (503, -32603)
    assert psutil.Process(bridged.process.pid).memory_info().rss < 100_000_000


# Who may ask, and how ---------------------------------------------------------------------------------------------


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
def test_a_request_is_refused_by_its_headers(ready: Bridged, headers: dict[str, str], status: int) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE})
    named = {
        "Host": f"127.0.0.1:{ready.port}",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **headers,
    }
    head = "".join(f"{name}: {value}\n" for name, value in named.items())
    answer = ready.raw(f"POST /mcp HTTP/1.1\n{head}\n{body}")
    assert answer.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET /mcp HTTP/1.1", 405),
        ("DELETE /mcp HTTP/1.1", 405),
        ("POST / HTTP/1.1", 404),
        ("nonsense", 400),
    ],
)
def test_only_posts_to_mcp_are_served(ready: Bridged, line: str, status: int) -> None:
    assert ready.raw(f"{line}\nHost: localhost:{ready.port}\n\n").startswith(b"HTTP/1.1 %d " % status)


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
def test_a_body_that_is_no_message_is_400_and_not_passed_on(ready: Bridged, body: bytes) -> None:
    assert ready.post(body).status == 400
    assert [message["method"] for message in ready.received()][2:] == ["tools/call"]


def test_an_answer_to_a_question_that_nobody_was_asked_is_accepted_and_dropped(ready: Bridged) -> None:
    assert ready.post({"jsonrpc": "2.0", "id": 1, "result": {}}).status == 202
    assert len(ready.received()) == 3


def test_a_body_announced_with_expect_is_asked_for(ready: Bridged) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()
    head = f"POST /mcp HTTP/1.1\r\nHost: localhost:{ready.port}\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", ready.port), timeout=20) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode())
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")


# Beginning and end ------------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_exit_code_two(make: Make) -> None:
    bridged = make()
    second = Bridged(bridged.folder, bridged.port, ["true"], max_bytes=1000)
    assert second.process.wait(20) == 2
    assert f"{bridge.PORT_TAKEN} {bridged.port}" in bridged.stderr()


@pytest.mark.parametrize("code", [0, 1, 2, 77])
def test_the_servers_exit_code_is_the_bridges(ready: Bridged, code: int) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        ready.call("exit", code=code)
    assert ready.process.wait(20) == code
    assert "going down now" in ready.stderr()


def test_a_server_that_is_killed_ends_the_bridge_with_128_and_the_signal(ready: Bridged) -> None:
    ready.server().kill()
    assert ready.process.wait(20) == 128 + signal.SIGKILL
    assert "signal 9" in ready.stderr()


def test_a_last_answer_is_passed_on(ready: Bridged) -> None:
    assert ready.call("exit", answer=True).text == "a last word"


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["no-such-command-anywhere"], 127, "command not found: 'no-such-command-anywhere'"),
        (["./server.py"], 126, "'./server.py' cannot be started: Permission denied"),
    ],
)
def test_a_command_that_cannot_be_started_is_told(make: Make, argv: list[str], code: int, said: str) -> None:
    bridged = make(argv=argv, ready=False)
    assert bridged.process.wait(20) == code
    assert said in bridged.stderr()


def test_sigterm_ends_the_server_too(ready: Bridged) -> None:
    server = ready.server()
    ready.process.terminate()
    assert ready.process.wait(20) == 0  # its input ended, which is how a stdio server is asked
    assert not server.is_running()


def test_a_server_that_ignores_sigterm_is_killed(make: Make) -> None:
    bridged = make("ignore-sigterm")
    bridged.initialize()
    server = bridged.server()
    bridged.process.terminate()
    assert bridged.process.wait(20) == 128 + signal.SIGKILL
    assert not server.is_running()


def test_a_server_that_closes_its_output_is_ended(ready: Bridged) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        ready.call("close_stdout")
    ready.process.wait(20)


@LINUX
def test_a_server_does_not_outlive_a_bridge_that_is_killed(make: Make) -> None:
    bridged = make("ignore-sigterm")
    bridged.initialize()
    server = bridged.server()
    bridged.process.kill()
    bridged.process.wait(20)
    eventually(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE)


def test_nothing_in_the_members_folder_is_taken_for_a_module_of_the_bridge(make: Make, tmp_path: Path) -> None:
    for name in ("json", "socket", "selectors", "ctypes"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(99)")
    bridged = make(argv=["sh", "-c", "exit 5"], ready=False)
    assert bridged.process.wait(20) == 5


def test_no_module_of_the_bridge_is_taken_for_one_of_pythons() -> None:
    names = {path.stem for path in (ROOT / "mcp_runtime" / "bridge").glob("*.py")}
    assert names & set(sys.stdlib_module_names) == set()


@pytest.mark.parametrize("argv", [[], ["20000"], ["20000", "--"], ["20000", "--what", "5", "--", "true"]])
def test_a_wrong_command_line_is_explained(argv: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mcp_runtime.bridge", *argv], cwd=ROOT, capture_output=True, timeout=20
    )
    assert done.returncode == bridge.EXIT_USAGE
    assert b"usage: bridge PORT" in done.stderr

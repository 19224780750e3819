"""Attacks of hostile members on the hall and its clients, and tests that clients never get responses of others."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

from tests.attack.client import Client, Reply, call_message, connect
from tests.attack.hall import CLIENTS, Hall, eventually
from tests.attack.tally import Tally

SHAPES = [
    *("foreign", "foreign-last", "request", "own-request", "cut", "two", "deep", "doubled-id", "doubled-id-2", "case"),
    *("other-type", "no-id", "null-id", "both", "neither", "nan", "list", "bare", "utf8"),
]
SIZES = [10, 70_000, 1_000_000]
PATHS = [("/mcp", "hostile__"), ("/mcp/hostile", "")]
MAX_SECONDS = 5.0  # seconds that a call with a hostile schema may take
STREAM = (
    b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"
    b"Authorization: Bearer %b\r\nMcp-Session-Id: %b\r\n\r\n"
)


def forged_answers(hall: Hall, tally: Tally) -> None:
    """Every wrong response, in every size, as JSON and as a stream, to clients of both eras."""
    cases = list(product(SHAPES, SIZES, (False, True), (False, True), PATHS))
    random.Random(10).shuffle(cases)
    for shape, size, streamed, modern, (path, prefix) in cases[: tally.share_of(len(cases))]:
        with hall.client("attacker", path, seconds=15) as client:
            if not modern:
                client.begin()
            arguments = {"shape": shape, "bytes": size, "stream": streamed}
            request_id = random.choice([7, "7", "an id"])
            try:
                reply = client.call(f"{prefix}answer", arguments, modern=modern, request_id=request_id)
                fault = find_fault(reply, request_id)
            except (OSError, http.client.HTTPException) as error:
                fault = f"no response ({error!r})"
            kind = f"{shape}, {size:,} bytes, {'modern' if modern else 'session'}{', streamed' if streamed else ''}"
            tally.expect(not fault, f"{kind}: {fault}")
    tally.expect(hall.pid_of("neighbour"), "the neighbour is not up after forged responses")


def find_fault(reply: Reply, request_id: Any) -> str:
    """The fault of a reply. It must be exactly one response, in strict JSON, with the id of the request."""
    try:
        messages = reply.messages
    except ValueError as error:
        return f"the client got no strict JSON ({str(error)[:40]})"
    if len(messages) != 1 or not isinstance(messages[0], dict):
        return f"{len(messages)} messages instead of one response"
    message = messages[0]
    if "method" in message:
        return f"a request or notification of the member reached the client: {message['method']}"
    if message.get("id") != request_id or type(message.get("id")) is not type(request_id):
        return f"the response has the id {message.get('id')!r}"
    if ("result" in message) == ("error" in message):
        return "the response has not exactly one of result and error"
    return ""


def late_second_answers(hall: Hall, tally: Tally) -> None:
    """The member responds twice to each call. The second response arrives during the call of another token."""
    names = ["attacker", "victim"]
    for modern in (False, True):
        with contextlib.ExitStack() as stack:
            clients = {name: stack.enter_context(hall.client(name, seconds=15)) for name in names}
            for client in clients.values():
                if not modern:
                    client.begin()
            for number in range(tally.share_of(100, 10)):
                arguments = {"text": f"attacker {number}", "milliseconds": number % 5}
                clients["attacker"].call("hostile__late", arguments, modern=modern, request_id=number)
                text = f"victim {number}"
                reply = clients["victim"].call("hostile__echo", {"text": text}, modern=modern, request_id=number)
                tally.expect("attacker" not in reply.body.decode(), "one token's result reached another token's call")
                fault = find_fault(reply, number)
                tally.expect(not fault, f"the victim's call: {fault}")


def cancelled_beside_healthy(hall: Hall, tally: Tally) -> None:
    """One client disconnects during its calls. Another client's calls succeed, and the member keeps running."""
    pid, end, cancellations = hall.pid_of("shared"), threading.Event(), []

    def cancel_calls() -> None:
        message, headers = call_message("shared__anything", {}, 1, modern=True)
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        body = json.dumps(message)
        request = (
            f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {hall.tokens['attacker']}\r\n{head}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        ).encode()
        while not end.is_set():
            with contextlib.suppress(OSError), connect(hall.gateway_port) as connection:
                connection.sendall(request)
                end.wait(random.random() * 0.004)
                cancellations.append(1)
            end.wait(0.02)  # about a hundred a second, because more would be a load test

    with ThreadPoolExecutor(4) as pool, hall.client("victim") as victim:
        for _ in range(4):
            pool.submit(cancel_calls)
        try:
            for number in range(tally.share_of(3000, 200)):
                reply = victim.call("shared__echo", {"text": f"v{number}"}, modern=True)
                tally.expect(reply.text == f"v{number}", "a healthy call beside cancelled ones failed")
        finally:
            end.set()
    tally.tries += len(cancellations)
    tally.expect(hall.pid_of("shared") == pid, "the healthy member was stopped because of cancelled calls")


def stdio_broadcast(hall: Hall, tally: Tally) -> None:
    """Notifications of a stdio member about one client's call are on no other client's stream."""
    with contextlib.ExitStack() as stack:
        victim = stack.enter_context(hall.client("victim", "/mcp/pipe")).begin()
        attacker = stack.enter_context(hall.client("attacker", "/mcp/pipe")).begin()
        member_stream = stack.enter_context(listen(hall, attacker, "/mcp/pipe"))
        roster_client = stack.enter_context(hall.client("attacker")).begin()
        roster_stream = stack.enter_context(listen(hall, roster_client, "/mcp"))
        attacker.post({"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe", "params": {"uri": "secret://0"}})
        for number in range(tally.share_of(200, 20)):
            secret = f"secret-of-victim-{number}"
            tally.expect(victim.call("shout", {"text": secret}).text == "done", "the victim's own call failed")
            reply = attacker.call("echo", {"text": "mine"})
            tally.expect(b"secret-of-victim" not in reply.body, "another's notification came on a call's stream")
        time.sleep(0.5)  # there is no condition for a notification that must not come
        for stream, name in ((member_stream, "/mcp/pipe"), (roster_stream, "/mcp")):
            tally.expect(b"secret-of-victim" not in bytes(stream), f"another's notification came on GET {name}")


@contextlib.contextmanager
def listen(hall: Hall, client: Client, path: str) -> Iterator[bytearray]:
    """The bytes of the client's GET stream, as they arrive."""
    data = bytearray()
    token, session = client.headers["Authorization"].removeprefix("Bearer "), client.headers["Mcp-Session-Id"]
    with connect(hall.gateway_port) as connection:
        connection.sendall(STREAM % (path.encode(), token.encode(), session.encode()))

        def read() -> None:
            with contextlib.suppress(OSError):
                while part := connection.recv(65_536):
                    data.extend(part)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield data
        finally:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            reader.join(5)


def secrets_never_mix(hall: Hall, tally: Tally) -> None:
    """64 clients with their own tokens and secrets use the same ids, with and without sessions, at both kinds of path.

    An eighth of them call a member that responds twice to each call, the second time a few milliseconds late.
    """
    calls = tally.share_of(64_000 // CLIENTS, 20)
    # The long form makes about three hundred calls a second, because a saturated gateway delays all clients.
    pause, end = 0.4 if tally.share == 1.0 else 0.0, threading.Event()

    def work(number: int) -> None:
        modern, is_late = number % 2 == 0, number % 16 in (6, 7)
        path, prefix = ("/mcp", "shared__") if number % 4 < 2 else ("/mcp/shared", "")
        path, tool = ("/mcp", "hostile__late") if is_late else (path, f"{prefix}echo")
        with hall.client(f"client-{number}", path) as client:
            if not modern:
                client.begin()
            for turn in range(calls):
                secret = f"secret of client {number}, call {turn}."
                if turn % 50 == 49:
                    client.close()
                try:
                    reply = client.call(tool, {"text": secret}, modern=modern, request_id=turn)
                    is_right = reply.text == (f"right {secret}" if is_late else secret)
                    # A call may fail because of another call's second response, but it may not succeed with it.
                    is_refused = is_late and "error" in reply.messages[-1] and b"secret of client" not in reply.body
                    tally.expect(is_right or is_refused, describe_wrong_text(reply.body, number))
                except (OSError, http.client.HTTPException, ValueError) as error:
                    tally.expect(False, f"a client's call failed: {type(error).__name__}")
                if end.wait(pause * random.random()):
                    return

    with ThreadPoolExecutor(CLIENTS) as pool:
        try:
            list(pool.map(work, range(CLIENTS)))
        finally:
            end.set()  # so that Ctrl-C does not wait for the other calls


def describe_wrong_text(body: bytes, number: int) -> str:
    text = body.decode("utf-8", "replace")
    is_foreign = "secret of client" in text and f"secret of client {number}," not in text
    return "another client's secret arrived" if is_foreign else f"a call got a wrong response: {text[:120]}"


# Schemas, names, words ----------------------------------------------------------------------------------------------


def hostile_schemas(hall: Hall, tally: Tally) -> None:
    """Calls of tools with hostile schemas, over REST and gateway. Each response must be in time, and no 5xx."""
    deep: dict[str, Any] = {}
    for _ in range(20):
        deep = {f"p{index}": dict(deep) if index == 0 else "x" for index in range(10)}
    many = {f"key{number}": "hunter2" for number in range(20_000)}
    values: list[Any] = [many, {}, {"a": 1}, deep, {"a" * 40: "a" * 40}, {"a": [[n] for n in range(3000)]}]
    tools = [
        "doubling",
        "branching",
        "endless",
        "wide",
        "backtracking",
        "remote",
        "file",
        "unique",
        "big_number",
        "no_schema",
    ]
    cases = list(product(tools, values))
    random.Random(8).shuffle(cases)
    for tool, value in [("patterns", many), ("doubling", many), *cases][: tally.share_of(len(cases), 6)]:
        with hall.web("attacker") as web, hall.client("attacker") as client:
            start = time.monotonic()
            path = f"/api/members/lists/tools/{tool}/invoke/"
            status = web.rest("POST", path, {"arguments": value}, Prefer="wait=5").status
            tally.expect(status < 500, f"REST answered {status} for the schema {tool!r}")
            tally.expect(
                time.monotonic() - start < 5 + MAX_SECONDS,
                f"REST took over {5 + MAX_SECONDS:g} s for the schema {tool!r}",
            )
            start = time.monotonic()
            status = client.call(f"lists__{tool}", value, modern=True).status
            tally.expect(status < 500, f"the gateway answered {status} for the schema {tool!r}")
            tally.expect(
                time.monotonic() - start < MAX_SECONDS,
                f"the gateway took over {MAX_SECONDS:g} s for the schema {tool!r}",
            )
    for length in (10, 1000, 50_000):
        with hall.client("attacker").begin() as client:
            start, params = time.monotonic(), {"uri": "x://" + "a/" * length}
            client.post({"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": params})
            tally.expect(time.monotonic() - start < MAX_SECONDS, "a URI template takes long to match")


def fetches_and_redirects(hall: Hall, tally: Tally) -> None:
    """No $ref in a schema and no redirect of a member makes the hall fetch an address."""
    path, arguments = "/api/members/hostile/tools/redirect/invoke/", {"to": f"{hall.canary.address}/stolen"}
    for _ in range(tally.share_of(50, 10)):
        with hall.client("attacker") as client, hall.web("attacker") as web:
            reply = client.call("hostile__redirect", arguments, modern=True)
            tally.expect("error" in reply.messages[-1], "a redirect was taken for a response")
            web.rest("POST", path, {"arguments": arguments}, Prefer="wait=5")
            tally.expect(not hall.canary.requests, "a member's redirect was followed")
            client.call("lists__remote", {"a": 1}, modern=True)
            reply = client.call("lists__file", {"a": 1}, modern=True)
            tally.expect(b"root:" not in reply.body, "a $ref read a file")
            tally.expect(not hall.canary.requests, "a $ref was fetched")


def forged_log_lines(hall: Hall, tally: Tally) -> None:
    """Bytes of a member that are no HTTP forge no line of the operator's console and move no cursor."""
    for number in range(tally.share_of(50, 5)):
        with hall.client("attacker") as client, hall.web("attacker") as web:
            client.call("hostile__garbage", {}, modern=True)
            if number % 5 == 0:
                web.rest("POST", "/api/members/hostile/tools/garbage/invoke/", {"arguments": {}}, Prefer="wait=5")
        log = hall.log.read_bytes()
        tally.expect(b"\x1b" not in log, "an escape sequence reached the console")
        tally.expect(not any(is_forged(line) for line in log.splitlines()), "a log line is forged")
        tally.expect(eventually(lambda: hall.pid_of("hostile"), 30), "the hostile member did not come back")


def is_forged(line: bytes) -> bool:
    return line.startswith(b"12:00:00 runtime        | forged")


def hostile_words(hall: Hall, tally: Tally) -> None:
    """REST and gateway serve hostile names, titles and descriptions to everybody, as strict JSON."""
    for principal in ("attacker", "victim", "root") * tally.share_of(10):
        with hall.web(principal) as web, hall.client(principal) as client:
            for path in ("/api/members/lists/tools/", "/api/members/lists/", "/api/roster/", "/api/members/"):
                reply = web.rest("GET", path)
                tally.expect(reply.status == 200, f"GET {path} answers {reply.status} with hostile tools on the roster")
            client.begin()
            reply = client.post({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
            names = [tool["name"] for tool in reply.messages[-1]["result"]["tools"]]
            tally.expect(len(set(names)) == len(names), "two tools have the same name")
            is_good = all(name.replace("_", "a").replace("-", "a").replace(".", "a").isalnum() for name in names)
            tally.expect(
                is_good and all(name.isascii() and len(name) <= 64 for name in names), "a name that no client accepts"
            )
            tally.expect("neighbour__echo" in names, "a hostile list hides an honest member's tools")

"""Attacks of a principal with a valid token on data of other principals, and requests without a token."""

from __future__ import annotations

import json
import random
import secrets
from itertools import product
from typing import Any

from tests.attack.client import META, Client, Reply, call_message, send_bytes, strict_json
from tests.attack.hall import Hall
from tests.attack.tally import Tally

INVALID_PARAMS = -32602
REFUSAL_STATUSES = (400, 401, 403, 404, 405, 421)
PUBLIC = ("/healthz", "/readyz", "/static/", "/admin/login/")


def ids_of_others(hall: Hall, tally: Tally) -> None:
    """Sessions, event ids and calls of another principal get 404 without details."""
    for number in range(tally.share_of(60, 5)):
        secret = secrets.token_hex(8)
        with hall.client("victim").begin() as victim, hall.client("attacker").begin() as attacker:
            victim.call("neighbour__echo", {"text": secret})
            session = victim.headers["Mcp-Session-Id"]
            _use_stolen_session(tally, attacker, session, secret)
            reply = victim.call("neighbour__echo", {"text": secret})
            tally.expect(reply.text == secret, "the victim's session was ended by another principal")
        _use_stolen_call(hall, tally, secret, number)


def _use_stolen_session(tally: Tally, attacker: Client, session: str, secret: str) -> None:
    own_session = attacker.headers["Mcp-Session-Id"]
    attacker.headers["Mcp-Session-Id"] = session
    for verb in ("POST", "GET", "DELETE"):
        body = json.dumps(call_message("neighbour__echo", {"text": "x"}, 1)[0]).encode() if verb == "POST" else None
        reply = attacker.request(verb, "/mcp", body, Last_Event_ID="neighbour/1")
        tally.expect(reply.status == 404, f"{verb} in another's session answers {reply.status}")
        tally.expect(secret.encode() not in reply.body, f"{verb} in another's session returns its data")
    attacker.headers["Mcp-Session-Id"] = own_session


def _use_stolen_call(hall: Hall, tally: Tally, secret: str, number: int) -> None:
    key = f"key-{number}-{secret}"
    path = "/api/members/neighbour/tools/echo/invoke/"
    with hall.web("victim") as victim, hall.web("attacker") as attacker:
        created = victim.rest("POST", path, {"arguments": {"text": secret}}, Prefer="wait=9", Idempotency_Key=key)
        pk = json.loads(created.body)["id"]
        for verb, address in (("GET", f"/api/calls/{pk}/"), ("POST", f"/api/calls/{pk}/cancel/")):
            reply = attacker.rest(verb, address)
            tally.expect(reply.status == 404, f"{verb} of another's call answers {reply.status}")
            tally.expect(secret.encode() not in reply.body, "another's call is shown")
        tally.expect(secret.encode() not in attacker.rest("GET", "/api/calls/").body, "another's call is listed")
        repeat = attacker.rest("POST", path, {"arguments": {"text": "mine"}}, Prefer="wait=9", Idempotency_Key=key)
        tally.expect(secret.encode() not in repeat.body, "an idempotency key gives another user's result")


def request_states_of_others(hall: Hall, tally: Tally) -> None:
    """A genuine requestState is useless for other tokens, paths, members and arguments, with members of both eras."""
    for number, member in product(range(tally.share_of(40, 4)), ("modern", "shared")):
        secret, more = secrets.token_hex(8), {}
        with hall.client("victim") as victim:
            question = _call_with_answers(victim, f"{member}__ask", {"text": secret}, more)
            state = (question.messages[-1].get("result") or {}).get("requestState")
            tally.expect(isinstance(state, str) and secret not in state, f"{member} asks nothing")
            more = {"requestState": state, "inputResponses": {"question": {"action": "accept", "content": {}}}}
            other_member = "shared" if member == "modern" else "modern"
            attempts: dict[str, tuple[str, str, str, dict[str, str]]] = {
                "another user": ("attacker", "/mcp", f"{member}__ask", {"text": secret}),
                "another user's own arguments": ("attacker", "/mcp", f"{member}__ask", {"text": "mine"}),
                "another token of the user": ("victim's other", "/mcp", f"{member}__ask", {"text": secret}),
                "the same token at another path": ("victim", f"/mcp/{member}", "ask", {"text": secret}),
                "the same token at another member": ("victim", "/mcp", f"{other_member}__ask", {"text": secret}),
                "the same token with other arguments": ("victim", "/mcp", f"{member}__ask", {"text": f"{number}"}),
            }
            for description, (principal, path, tool, arguments) in attempts.items():
                with hall.client(principal, path) as client:
                    reply = _call_with_answers(client, tool, arguments, more)
                code = (reply.messages[-1].get("error") or {}).get("code")
                tally.expect(
                    code == INVALID_PARAMS, f"{description} with a state of {member} gets {reply.status}, {code}"
                )
                tally.expect(secret.encode() not in reply.body, f"{description} gets what a state of {member} is about")
            own_reply = _call_with_answers(victim, f"{member}__ask", {"text": secret}, more)
            tally.expect(own_reply.text == secret, f"the victim's own state of {member} is not valid any more")


def _call_with_answers(client: Client, tool: str, arguments: dict[str, str], more: dict[str, Any]) -> Reply:
    """One call of a client that answers questions."""
    message, headers = call_message(tool, arguments, next(client.ids), modern=True)
    message["params"] |= more
    message["params"]["_meta"][f"{META}clientCapabilities"] = {"elicitation": {}}
    return client.post(message, **headers)


def tasks_of_others(hall: Hall, tally: Tally) -> None:
    """The tasks of a member have ids that can be guessed. Other tokens and members cannot use or list them."""
    for member in ("modern", "shared") * tally.share_of(40, 4):
        secret, is_modern = secrets.token_hex(8), member == "modern"
        with hall.client("victim", f"/mcp/{member}") as victim:
            created = _request_tasks(victim, "tools/call", {"name": "begin", "arguments": {"text": secret}}, is_modern)
            result = created.messages[-1].get("result") or {}
            task_id = str((result if is_modern else result.get("task") or {}).get("taskId"))
            member_id = task_id.rpartition(".")[2]
            meta = {f"{META}related-task": {"taskId": task_id}}
            other_member = "shared" if is_modern else "modern"
            attempts = {
                "another user": ("attacker", member, {"taskId": task_id}),
                "another token of the user": ("victim's other", member, {"taskId": task_id}),
                "the same token at another member": ("victim", other_member, {"taskId": task_id}),
                "a guess": ("attacker", member, {"taskId": member_id}),
                "a guess in other letters": ("attacker", member, {"taskid": member_id}),
                "a guess with the seal of something else": ("attacker", member, {"taskId": f"{'0' * 64}.{member_id}"}),
                "a guess of what it is about": ("attacker", member, {"taskId": task_id, "_meta": meta}),
            }
            for description, (principal, path, params) in attempts.items():
                with hall.client(principal, f"/mcp/{path}") as client:
                    for method in ("tasks/get", "tasks/result", "tasks/cancel", "tasks/update", "tasks/list"):
                        reply = _request_tasks(client, method, params, path == "modern")
                        tally.expect("error" in reply.messages[-1], f"{description}: {method} of {member} is answered")
                        tally.expect(
                            secret.encode() not in reply.body, f"{description} gets a task of {member} by {method}"
                        )
            own_reply = _request_tasks(victim, "tasks/get", {"taskId": task_id}, is_modern)
            tally.expect(secret.encode() in own_reply.body, f"the victim's own task of {member} is gone")


def _request_tasks(client: Client, method: str, params: dict[str, Any], is_modern: bool) -> Reply:
    """One request of a client that supports tasks, in the era of the member."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": next(client.ids), "method": method, "params": params}
    if not is_modern:
        if "Mcp-Session-Id" not in client.headers:
            client.begin()
        message["params"] = {**params, "task": {}} if method == "tools/call" else params
        return client.post(message)
    task_or_tool = params.get("name") or params.get("taskId") or params.get("taskid")
    _, headers = call_message(str(task_or_tool), {}, 0, modern=True)
    meta = {f"{META}protocolVersion": headers["MCP_Protocol_Version"], **params.get("_meta", {})}
    meta[f"{META}clientCapabilities"] = {"extensions": {f"{META}tasks": {}}}
    message["params"] = {**params, "_meta": meta}
    return client.post(message, **{**headers, "Mcp_Method": method})


def idempotency_across_scopes(hall: Hall, tally: Tally) -> None:
    """A narrow token of the same user cannot get the call of the full token with the same idempotency key."""
    path = "/api/members/neighbour/tools/echo/invoke/"
    with hall.web("root") as root:
        created = root.rest("POST", "/api/tokens/", {"name": "narrow", "members": ["neighbour", "shared"]})
        narrow_client = Client(hall.port, json.loads(created.body)["token"])
        for _ in range(tally.share_of(40, 5)):
            key, secret = secrets.token_hex(8), secrets.token_hex(8)
            first = root.rest("POST", path, {"arguments": {"text": secret}}, Prefer="wait=9", Idempotency_Key=key)
            second = narrow_client.rest(
                "POST", path, {"arguments": {"text": secret}}, Prefer="wait=9", Idempotency_Key=key
            )
            is_same = json.loads(first.body).get("id") == json.loads(second.body).get("id")
            tally.expect(not is_same, "a narrowed token's idempotency key gives the full token's call")
        narrow_client.close()


def routes_without_a_token(hall: Hall, tally: Tally) -> None:
    """Every REST operation and admin page, and the gateway's paths, without a token and with bad ones."""
    with hall.web("root") as root:
        document = strict_json(root.rest("GET", "/api/schema/?format=json").body)
    examples = {"{name}": "neighbour", "{tool}": "echo", "{id}": "1", "{pk}": "1"}
    paths = [*document["paths"], "/metrics", "/admin/", "/admin/roster/guildmember/", "/admin/auth/user/1/change/"]
    bad_tokens = [
        "",
        "gh_",
        "gh_" + "x" * 43,
        "null",
        "undefined",
        hall.tokens["root"][:-1],
        hall.tokens["root"].upper(),
        "\u00e9",
    ]
    for path, token, verb in product(
        paths, bad_tokens[: tally.share_of(len(bad_tokens), 2)], ("GET", "POST", "PUT", "PATCH", "DELETE")
    ):
        address = path
        for name, value in examples.items():
            address = address.replace(name, value)
        with Client(hall.port, token) as client:
            _expect_refusal(tally, client.request(verb, address, b"{}"), f"{verb} {path} at the web")
    for path, token, verb in product(
        ("/mcp", "/mcp/neighbour", "/agents/1/mcp"), bad_tokens, ("GET", "POST", "DELETE")
    ):
        with Client(hall.gateway_port, token) as client:
            _expect_refusal(tally, client.request(verb, path, b"{}"), f"{verb} {path} at the gateway")


def _expect_refusal(tally: Tally, reply: Reply, description: str) -> None:
    is_redirected_to_login = reply.status == 302 and "/admin/login/" in reply.headers.get("location", "")
    tally.expect(
        reply.status in REFUSAL_STATUSES or is_redirected_to_login,
        f"{description} without a valid token gets {reply.status}",
    )


def headers_to_members(hall: Hall, tally: Tally) -> None:
    """No header of the client, and not its token, reaches a member."""
    names = ["X-Upstream-Authorization", "X-Forwarded-For", "X-Forwarded-Host", "Cookie", "Proxy-Authorization"]
    names += ["X-Api-Key", "Forwarded", "Via", "Referer", "Mcp-Param-Secret", "X-Original-URL", "traceparent"]
    for number, modern in product(range(tally.share_of(30, 3)), (False, True)):
        canary = f"stolen{number}"
        with hall.client("attacker") as client:
            if not modern:
                client.begin()
            message, headers = call_message("hostile__headers", {}, 1, modern=modern)
            headers |= {name.replace("-", "_"): canary for name in names}
            text = client.post(message, **headers).text
            tally.expect(text, "the member was not called")
            tally.expect(canary not in text, "a header of the client reaches the member")
            tally.expect(hall.tokens["attacker"] not in text, "the client's token reaches the member")


def ambiguous_json(hall: Hall, tally: Tally) -> None:
    """Only validated JSON is sent on: no duplicate keys, keys in another case, NaN, 1e999, depth, or invalid UTF-8."""
    own, deep = '"jsonrpc":"2.0","id":1', "[" * 10_000 + "]" * 10_000
    bodies = [
        '{{OWN},"method":"tools/list","method":"tools/call","params":{"name":"{T}headers","arguments":{}}}',
        '{{OWN},"method":"tools/call","params":{"name":"{T}headers","name":"{T}headers","arguments":{}}}',
        '{{OWN},"method":"tools/call","params":{"name":"{T}headers","arguments":{}},"params":{"name":"{T}headers"}}',
        '{{OWN},"method":"tools/call","params":{"name":"{T}headers","arguments":{"a":1,"a":2}}}',
        '{{OWN},"Method":"tools/list","method":"tools/call","params":{"Name":"x","name":"{T}headers","arguments":{}}}',
        '{{OWN},"id":2,"method":"tools/call","params":{"name":"{T}headers","arguments":{}}}',
        '{{OWN},"method":"tools/call","params":{"name":"{T}headers","arguments":{"a":NaN}}}',
        '{{OWN},"method":"tools/call","params":{"name":"{T}headers","arguments":{"a":1e999}}}',
        '{{OWN},"method":"tools/call","params":{"name":"{T}headers","arguments":{"a":"\xff"}}}',
        '{{OWN},"method":"tools/call","params":{"name":"{T}headers","arguments":{"a":"\\ud800\\u0000"}}}',
        '\xef\xbb\xbf{{OWN},"method":"tools/call","params":{"name":"{T}headers","arguments":{}}}',
        '{{OWN},"method":"tools/call","params":{"name":"{T}headers","arguments":{}}}//c',
        '{{OWN},"method":"tools/call","params":{"name":"{T}headers","arguments":{DEEP}}}',
        '{{OWN},"method":"tools/call","params":{"arguments":{}}}',
        '{{OWN},"method":"tools/call","params":{"name":5,"arguments":{}}}',
        '{{OWN},"method":"tools/call","params":{"name":["{T}headers"],"arguments":{}}}',
    ]  # fmt: skip
    for _ in range(tally.share_of(5)):
        for body, (path, prefix) in product(bodies, (("/mcp", "hostile__"), ("/mcp/hostile", ""))):
            with hall.client("attacker", path).begin() as client:
                request = body.replace("{OWN}", own).replace("{DEEP}", deep).replace("{T}", prefix)
                reply = client.post(request.encode("latin-1"))
                tally.expect(reply.status < 500, f"a 5xx for {body[30:110]}")
                received_body = json.loads(reply.text)["body"] if reply.text.startswith("{") else ""
                tally.expect(not received_body or _is_plain(received_body), f"sent on unchanged: {body[30:110]}")
                tally.expect(reply.text != "done", f"a tool that nobody named was called: {body[30:110]}")


def _is_plain(body: str) -> bool:
    """Whether all JSON readers read the same message."""
    try:
        message: Any = strict_json(body.encode())
    except ValueError:
        return False
    params = message.get("params", {})
    has_name = isinstance(params.get("name"), str) and params["name"] not in ("None", "5")
    return has_name and not any(key != key.lower() for key in message) and "Name" not in params


def lying_headers(hall: Hall, tally: Tally) -> None:
    """Access control uses the body. Requests whose headers differ from the body are refused, and nothing runs."""
    header_sets: list[dict[str, str]] = [{"Mcp_Name": "shared__echo"}, {"Mcp_Method": "tools/list"}, {"Mcp_Name": ""}]
    header_sets += [{"MCP_Protocol_Version": "2025-06-18"}, {"MCP_Protocol_Version": "9999-01-01"}]
    for _, header_set in product(range(tally.share_of(20, 2)), header_sets):
        mark = secrets.token_hex(8)
        message, headers = call_message("neighbour__mark", {"text": mark}, 1, modern=True)
        with hall.client("attacker") as client:
            reply = client.post(message, **{**headers, **header_set})
            tally.expect(reply.status >= 400, f"a lying header is accepted: {header_set}")
        tally.expect(mark not in hall.marks(), f"a call with a lying header ran: {header_set}")


def rebinding(hall: Hall, tally: Tally) -> None:
    """Hosts and origins of other sites, at gateway, web, bridge and shipped members."""
    rows = {row["name"]: row for row in hall.roster(hall.tokens["root"])}
    ports = {"gateway": hall.gateway_port, "web": hall.port}
    ports |= {name: int(rows[name]["port"]) for name in ("pipe", "example", "notes")}
    for server, port in ports.items():
        path = "/api/roster/" if server == "web" else "/mcp"
        hosts = [b"evil.example", b"127.0.0.1.evil.example", b"localhost.evil", b"localhost:99999999", b"[::1", b""]
        hosts += [b"localhost@evil.example", b"evil.example:%d" % port, b"127.0.0.1:%d, evil" % port, b"a b"]
        right_host = b"127.0.0.1:%d" % port
        origins = [
            b"http://evil.example",
            b"null",
            b"http://localhost:%d.evil" % port,
            b"http://localhost.evil:%d" % port,
        ]
        origins += [
            b"http://127.0.0.1:%d@evil.example" % port,
            b"file://",
            b"http://127.0.0.1.evil.example",
            b"https://[::1",
        ]
        origins += [
            b"http://localhost:%d/../evil" % port,
            b"http://evil.example:%d" % port,
            b"http://127.0.0.1:99999999",
        ]
        cases = [(host, b"") for host in hosts] + [(right_host, b"\r\nOrigin: " + origin) for origin in origins]
        for host, origin in cases:
            status = _ping(hall, port, path, host, origin)
            case = (origin.removeprefix(b"\r\n") or b"Host: " + host).replace(str(port).encode(), b"N").decode()
            tally.expect(400 <= status < 500, f"{server}: {case} answers {status}")
        tally.expect(_ping(hall, port, path, right_host, b"") in (200, 405), f"{server}: the right host is refused")


def _ping(hall: Hall, port: int, path: str, host: bytes, origin: bytes) -> int:
    """The status, or 444 if the connection was closed without a response."""
    verb = b"GET" if path.startswith("/api") else b"POST"
    body = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{}}}'
    head = b"%b %b HTTP/1.1\r\nHost: %b%b\r\nAuthorization: Bearer %b\r\nContent-Type: application/json\r\n"
    head += b"Accept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n"
    token = hall.tokens["attacker"].encode()
    data = head % (verb, path.encode(), host, origin, token, len(body) if verb == b"POST" else 0)
    response = send_bytes(port, data + (body if verb == b"POST" else b""), seconds=1.0, quiet=0.1)
    return int(response[9:12]) if response[:7] == b"HTTP/1." else 444


def paths_outside(hall: Hall, tally: Tally) -> None:
    """Paths that lead outside of the served folders return no file of the hall or of the machine."""
    climbs = [
        "../",
        "..%2f",
        "%2e%2e/",
        "%252e%252e/",
        "..\\",
        "..%5c",
        "..;/",
        "....//",
        "/",
        "%00/",
        ".%00./",
        "%c0%ae%c0%ae/",
    ]
    targets = ["secret-key", "guildhall.sqlite3", "local-token", "etc/passwd", "manage.py"]
    roots = ["/static/", "/static/admin/", "/api/members/", "/api/members/neighbour/logs/", "/", "/mcp/"]
    cases = list(product(roots, climbs, range(1, 4), targets))
    random.Random(7).shuffle(cases)
    key = (hall.data / "secret-key").read_bytes().strip()
    for root, climb, depth, target in cases[: tally.share_of(len(cases), 60)]:
        request = f"GET {root}{climb * depth}{target} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer "
        port = hall.gateway_port if root == "/mcp/" else hall.port
        response = send_bytes(
            port, (request + hall.tokens["attacker"] + "\r\nConnection: close\r\n\r\n").encode(), quiet=0.1
        )
        is_leaked = (
            key in response
            or b"SQLite format 3" in response
            or b"root:x:" in response
            or b"execute_from_command" in response
        )
        tally.expect(not is_leaked, f"a path leads outside: {root}{climb}")
        tally.expect(response[9:10] != b"5", f"a path that climbs is a 5xx: {root}{climb}")


def near_names(hall: Hall, tally: Tally) -> None:
    """Members and tools whose joined names could be equal. Each listed name calls the tool of its own member."""
    with hall.client("attacker").begin() as client:
        tools = client.post({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).messages[-1]["result"]["tools"]
        twin_tools = [tool for tool in tools if tool.get("description", "").startswith("of twin")]
        tally.expect(
            len(twin_tools) == 4 and len({tool["name"] for tool in twin_tools}) == 4, "twins' names are not all there"
        )
        for _ in range(tally.share_of(20, 2)):
            for tool in twin_tools:
                owner = client.call(tool["name"], {}).text
                tally.expect(owner == tool["description"], f"{tool['name']} reached another member's tool")


def environment_of_members(hall: Hall, tally: Tally) -> None:
    """A member gets its arguments unchanged, without a shell, and no secrets of the hall."""
    key = (hall.data / "secret-key").read_text().strip()
    with hall.client("attacker") as client:
        for _ in range(tally.share_of(20, 2)):
            process = json.loads(client.call("hostile__environment", {}, modern=True).text)
            names = {name for name in process["environment"] if name.startswith("GUILD_HALL_")}
            tally.expect(names <= {"GUILD_HALL_MEMBER"}, f"the hall's settings reach a member: {sorted(names)[:3]}")
            tally.expect(not {"DATABASE_URL", "REDIS_URL"} & process["environment"].keys(), "addresses reach a member")
            tally.expect(key not in json.dumps(process), "the secret key reaches a member")
            tally.expect(set(hall.shell_words) <= set(process["argv"]), "arguments were changed")
    tally.expect(not list(hall.folder.rglob("pwned*")), "an argument was run by a shell")

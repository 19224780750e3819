"""The agents' endpoint over plain HTTP: paths, statuses, eras, who may come in, and what is written down of it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psutil
import pytest
import requests
from django.contrib.auth.models import User
from django.utils import timezone

from roster.models import Token
from tests.conftest import eventually
from tests.support.agents import MODERN, GatewayClient, make_token, on_the_roster
from tests.support.hall import Hall, member, wait_for_status
from tests.support.machine import Stopwatch

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}},
}
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


@pytest.fixture(scope="module")
def one(shared_hall: Hall) -> Hall:
    shared_hall.add("one", "record", tool_timeouts={"sleep": 5})
    shared_hall.start()
    on_the_roster(shared_hall, "one")
    return shared_hall


def error_of(response: requests.Response) -> tuple[int, int, str]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["message"]


# Paths ------------------------------------------------------------------------------------------------------------


def test_the_roster_is_one_server_and_each_member_is_another(hall: Hall) -> None:
    for name in ("one", "two", "three"):
        hall.add(name, "tools=alpha,beta")
    hall.start()
    on_the_roster(hall, "one", "two", "three")
    token = make_token()
    everything = ["one__alpha", "one__beta", "three__alpha", "three__beta", "two__alpha", "two__beta"]
    assert GatewayClient(hall, token).begin().tools() == everything
    assert GatewayClient(hall, token, "/mcp/").begin().tools() == everything
    assert GatewayClient(hall, token, "/mcp?members=two,one").begin().tools() == everything[:2] + everything[4:]
    alone = GatewayClient(hall, token, "/mcp/two").begin()
    assert alone.tools() == ["alpha", "beta"]
    assert alone.text("beta") == "beta"
    assert GatewayClient(hall, token, "/mcp?members=two").begin().call("one__alpha")["error"]["code"] == -32602
    assert GatewayClient(hall, token, "/mcp/two/").begin().tools() == ["alpha", "beta"]

    for path, status in [
        ("/mcp/nobody", 404),
        ("/mcp?members=one,nobody", 404),
        ("/mcp?token=gh_x", 400),
        ("/mcp?members=one&token=gh_x", 400),
        ("/mcp/one?token=gh_x", 400),
        ("/mcp/one?members=two", 400),
        ("/mcp?&", 200),
        ("/mcp?" + "&".join(f"a{number}=1" for number in range(50)), 400),
    ]:
        response = GatewayClient(hall, token, path).post(INITIALIZE)
        assert response.status_code == status, (path, response.text)
        assert status == 200 or response.json()["error"]["message"]
    for path in ("/", "/mcp/one/two", "/MCP", "/mcpx", "/sse", "/mcp//"):
        response = GatewayClient(hall, token, path).post(INITIALIZE)
        assert (response.status_code, response.history) == (404, [])
        assert "/mcp" in response.text


# Statuses ---------------------------------------------------------------------------------------------------------


def test_who_comes_without_a_good_token_is_told_what_to_do(one: Hall) -> None:
    missing = GatewayClient(one, None).post(INITIALIZE)
    status, _, text = error_of(missing)
    assert (status, missing.headers["www-authenticate"]) == (401, 'Bearer realm="Guild Hall"')
    assert "create_token" in text
    wrong = GatewayClient(one, "gh_wrong").post(INITIALIZE)
    assert wrong.status_code == 401
    assert 'error="invalid_token", error_description="This token is not known' in wrong.headers["www-authenticate"]
    row, token = Token.make(user=User.objects.create_superuser("late"), expires_at=timezone.now())
    assert "expired" in error_of(GatewayClient(one, token).post(INITIALIZE))[2]
    row.expires_at = timezone.now() + timedelta(seconds=1.0)
    row.save()
    soon_over = GatewayClient(one, token).begin()
    eventually(lambda: soon_over.send("ping").status_code == 401, within=2)
    # Claude's CLI and Codex show what a JSON-RPC error says, and of a 401 nothing.
    for deaf in ("claude-code/2.1.329 (sdk-py)", "codex-mcp-client/0.169.0"):
        answer = GatewayClient(one, None).post({**PING, "id": "x"}, User_Agent=deaf)
        assert (answer.status_code, answer.json()["id"], "create_token" in answer.text) == (200, "x", True)
    for path in ("/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server", "/register"):
        nothing = GatewayClient(one, None, path).http.get(GatewayClient(one, None, path).url)
        assert (nothing.status_code, nothing.headers["content-type"]) == (404, "text/plain; charset=utf-8")
        assert "no OAuth" in nothing.text
        assert "unknown, revoked or expired" in nothing.text  # what a client shows of a token that died


def test_pages_of_other_sites_are_refused(one: Hall) -> None:
    agent = GatewayClient(one, make_token())
    host = f"127.0.0.1:{one.gateway_port}"
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://evil.example:{one.gateway_port}"},
        {"Host": "evil.example"},
        {"Host": f"evil.example:{one.gateway_port}", "Origin": f"http://evil.example:{one.gateway_port}"},
        {"Sec_Fetch_Site": "cross-site"},
    ):
        assert agent.post(INITIALIZE, **headers).status_code == 403, headers
    assert agent.post(INITIALIZE, Origin=f"http://{host}").status_code == 200
    assert agent.post(INITIALIZE, Host=f"localhost:{one.gateway_port}").status_code == 200


def test_sessions_are_their_tokens_own_and_end_when_they_are_ended(one: Hall) -> None:
    token = make_token()
    agent, other = GatewayClient(one, token).begin(), GatewayClient(one, make_token())
    session_id = str(agent.http.headers["Mcp-Session-Id"])
    assert session_id.isascii()
    assert agent.send("ping").json()["result"] == {}
    assert other.post(PING, Mcp_Session_Id=session_id).status_code == 404
    assert GatewayClient(one, token, "/mcp/one").post(PING, Mcp_Session_Id=session_id).status_code == 404
    assert other.post(PING, Mcp_Session_Id="made-up").status_code == 404
    assert other.post(PING, Mcp_Session_Id=session_id[:-3] + "AAA").status_code == 404
    assert other.post(PING).status_code == 400
    assert other.http.get(other.url).status_code == 405
    assert other.http.delete(other.url).status_code == 405
    assert other.http.get(other.url, headers={"Mcp-Session-Id": session_id}).status_code == 404
    assert other.http.delete(other.url, headers={"Mcp-Session-Id": session_id}).status_code == 404
    put = agent.http.put(agent.url)
    assert (put.status_code, put.headers["allow"]) == (405, "GET, POST, DELETE")
    assert agent.send("ping").status_code == 200
    assert agent.post(PING, MCP_Protocol_Version="1999-01-01").status_code == 400
    with agent.listen() as heard:
        assert agent.http.delete(agent.url).status_code == 204
        eventually(heard.ended.is_set, within=2)
    assert agent.send("ping").status_code == 404
    assert agent.http.get(agent.url).status_code == 404


def test_messages_are_taken_by_the_rules_of_json_rpc(one: Hall) -> None:
    agent = GatewayClient(one, make_token()).begin()
    for body, status, code in [
        (b"this is not JSON", 400, -32700),
        (b"", 400, -32700),
        (b"\xff\xfe", 400, -32700),
        (b"[" * 100_000, 400, -32700),
        (b'"text"', 400, -32600),
        (b'{"id": 1, "method": "ping"}', 400, -32600),
        (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', 400, -32600),
        (b'{"jsonrpc": "2.0", "id": [1], "method": "ping"}', 400, -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}', 400, -32600),
        (b'{"jsonrpc": "2.0", "id": 1}', 400, -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "nowhere"}', 200, -32601),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "nobody__x"}}', 200, -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": {"a": 1}}}', 200, -32602),
        (b"[]", 400, -32600),
        (json.dumps([PING]).encode(), 400, -32600),
        (b'{"x": "' + b"y" * 5_000_000 + b'"}', 413, -32600),
    ]:
        response = agent.post(body)
        assert error_of(response)[:2] == (status, code), (body[:80], response.status_code, response.text)
    assert agent.post(PING, Content_Type="text/plain").status_code == 415
    assert agent.post(PING, Content_Type=None).status_code == 415
    assert agent.post(PING, Content_Type="application/json; charset=utf-8").status_code == 200
    for notification in ("notifications/initialized", "notifications/nowhere", "notifications/cancelled"):
        response = agent.notify(notification, requestId={"a": 1})
        assert (response.status_code, response.content) == (202, b"")
    stray = agent.post({"jsonrpc": "2.0", "id": "nobody-asked", "result": {}})
    assert (stray.status_code, stray.content) == (202, b"")


def test_batches_are_of_the_one_version_that_has_them(one: Hall) -> None:
    agent = GatewayClient(one, make_token()).begin("2025-03-26")
    call = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "one__echo", "arguments": {"text": "x"}}}
    answers = agent.post([{**call, "id": 1}, {"jsonrpc": "2.0", "method": "ping"}, {**PING, "id": "two"}, 7]).json()
    first, second, third = answers
    assert (first["id"], first["result"]["content"][0]["text"]) == (1, "x")
    assert second == {"jsonrpc": "2.0", "id": "two", "result": {}}
    assert (third["id"], third["error"]["code"]) == (None, -32600)
    silent = agent.post([{"jsonrpc": "2.0", "method": "notifications/initialized"}])
    assert (silent.status_code, silent.content) == (202, b"")
    assert agent.post([{**PING, "id": number} for number in range(101)]).status_code == 400
    assert agent.post([INITIALIZE]).json()[0]["error"]["code"] == -32600


def test_tokens_have_limits_that_answers_and_notices_do_not_count_for(one: Hall) -> None:
    hasty = GatewayClient(one, make_token(calls_per_minute=5))
    statuses = [hasty.post(INITIALIZE) for _ in range(6)]
    assert [response.status_code for response in statuses] == [200] * 5 + [429]
    assert 1 <= int(statuses[-1].headers["retry-after"]) <= 12

    token = make_token(max_in_flight=1)
    agent = GatewayClient(one, token).begin()
    call = {"jsonrpc": "2.0", "id": "slow", "method": "tools/call", "params": {"name": "one__sleep", "arguments": {}}}
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(agent.post, call)
        eventually(lambda: GatewayClient(one, token).post(INITIALIZE).status_code == 429)
        refused = agent.send("ping")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        # Else a caller at its limit could neither cancel what is under way, nor answer what that waits for.
        assert agent.notify("notifications/cancelled", requestId="slow").status_code == 202
        assert slow.result(3).status_code == 200
    assert agent.send("ping").status_code == 200
    message, headers = agent.modern_message("subscriptions/listen", notifications={"toolsListChanged": True})
    with GatewayClient(one, token).stream(message, **headers) as heard:
        heard.next()
        assert agent.send("ping").status_code == 200  # a stream that is listened to is no call


# Eras -------------------------------------------------------------------------------------------------------------


def test_both_eras_are_served_at_one_path(one: Hall) -> None:
    agent = GatewayClient(one, make_token())
    discovered = agent.modern("server/discover")
    result = discovered.json()["result"]
    assert (discovered.status_code, result["supportedVersions"][0], result["resultType"]) == (200, MODERN, "complete")
    assert (result["ttlMs"], result["cacheScope"]) == (0, "private")
    assert "mcp-session-id" not in discovered.headers
    eventually(lambda: agent.modern("tools/list").json()["result"]["tools"])  # after the row says so, within a moment
    listed = agent.modern("tools/list").json()["result"]
    assert (listed["resultType"], listed["tools"][0]["name"]) == ("complete", "one__echo")
    called = agent.modern("tools/call", name="one__echo", arguments={"text": "modern"}).json()["result"]
    assert (called["resultType"], called["content"][0]["text"]) == ("complete", "modern")
    for version in ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"):
        legacy = GatewayClient(one, make_token()).begin(version)
        assert legacy.http.headers["MCP-Protocol-Version"] == version
        answer = legacy.call("one__echo", text=version)["result"]
        assert answer == {"content": [{"type": "text", "text": version}]}
        assert set(legacy.ask("tools/list")["result"]) == {"tools"}
    for offered in ("2099-01-01", MODERN, None):
        params = {**INITIALIZE["params"], "protocolVersion": offered}  # type: ignore[dict-item]
        answered = agent.post({**INITIALIZE, "params": params}).json()["result"]
        assert answered["protocolVersion"] == "2025-11-25"

    def refused(status: int, code: int, message: Any = None, **headers: str | None) -> dict[str, Any]:
        good, named = agent.modern_message("tools/call", name="one__echo", arguments={"text": "x"})
        response = agent.post(message or good, **{**named, **headers})
        assert error_of(response)[:2] == (status, code), response.text
        return dict(response.json()["error"])

    refused(400, -32020, Mcp_Name="one__sleep")
    refused(400, -32020, Mcp_Method="tools/list")
    refused(400, -32020, Mcp_Method=None)
    refused(400, -32020, MCP_Protocol_Version=None)
    assert agent.modern("ping").status_code == agent.modern("initialize").status_code == 404
    assert error_of(agent.modern("nowhere"))[:2] == (404, -32601)
    bare = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    refused(400, -32602, bare, Mcp_Method="tools/list")
    told = refused(400, -32022, bare, MCP_Protocol_Version="2030-01-01")
    assert (told["data"]["requested"], MODERN in told["data"]["supported"]) == ("2030-01-01", True)


# Lists ------------------------------------------------------------------------------------------------------------


def test_lists_come_at_once_whatever_members_do(hall: Hall) -> None:
    for name in ("alive", "gone", "hung"):
        hall.add(name, "tools=alpha,sleep", max_concurrency=2, timeout=20)
    hall.add("starting", "hang-initialize", start_timeout=30)
    hall.start()
    on_the_roster(hall, "alive", "gone", "hung")
    wait_for_status(hall, "starting", "starting")
    token = make_token()
    agent = GatewayClient(hall, token).begin()
    before = agent.tools()
    assert before == [f"{name}__{tool}" for name in ("alive", "gone", "hung") for tool in ("alpha", "sleep")]
    hall.manage("member", "stop", "gone")
    wait_for_status(hall, "gone", "disconnected")
    hung = psutil.Process(member("hung").pid)
    hung.suspend()
    with ThreadPoolExecutor(8) as threads:
        try:
            waiting = [threads.submit(GatewayClient(hall, token).begin().call, "hung__alpha") for _ in range(8)]
            took = []
            for _ in range(30):
                watch = Stopwatch()
                assert agent.tools() == before
                assert agent.text("alive__alpha") == "alpha"
                took.append(watch.seconds)
            assert max(took) < 0.5, sorted(took)[-5:]
            for name, seconds in [("gone", 0.5), ("hung", 7)]:  # what a member says on its own path is asked of itself
                watch = Stopwatch()
                assert GatewayClient(hall, token, f"/mcp/{name}").begin().tools() == ["alpha", "sleep"]
                assert watch.seconds < seconds
            assert not any(one.done() for one in waiting)
        finally:
            hung.resume()
        assert [one.result()["result"]["content"][0]["text"] for one in waiting] == ["alpha"] * 8
    assert agent.tools() == before

"""The gateway over plain HTTP: its paths, statuses, eras, limits and access control."""

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
from tests.support.agents import MODERN, GatewayClient, make_token, wait_for_roster
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
def running_hall(shared_hall: Hall) -> Hall:
    shared_hall.add("one", "record", tool_timeouts={"sleep": 5})
    shared_hall.start()
    wait_for_roster(shared_hall, "one")
    return shared_hall


def error_of(response: requests.Response) -> tuple[int, int, str]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["message"]


# Paths ------------------------------------------------------------------------------------------------------------


def test_the_roster_is_one_server_and_each_member_is_another(hall: Hall) -> None:
    for name in ("one", "two", "three"):
        hall.add(name, "tools=alpha,beta")
    hall.start()
    wait_for_roster(hall, "one", "two", "three")
    token = make_token()
    all_tools = ["one__alpha", "one__beta", "three__alpha", "three__beta", "two__alpha", "two__beta"]
    assert GatewayClient(hall, token).begin().tools() == all_tools
    assert GatewayClient(hall, token, "/mcp/").begin().tools() == all_tools
    assert GatewayClient(hall, token, "/mcp?members=two,one").begin().tools() == all_tools[:2] + all_tools[4:]
    member_client = GatewayClient(hall, token, "/mcp/two").begin()
    assert member_client.tools() == ["alpha", "beta"]
    assert member_client.text("beta") == "beta"
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


def test_a_request_without_a_valid_token_is_refused_with_instructions(running_hall: Hall) -> None:
    no_token = GatewayClient(running_hall, None).post(INITIALIZE)
    status, _, text = error_of(no_token)
    assert status == 401
    assert no_token.headers["www-authenticate"].startswith('Bearer realm="Guild Hall", resource_metadata="http')
    assert "create_token" in text
    metadata = GatewayClient(running_hall, None, "/.well-known/oauth-protected-resource/mcp")
    assert metadata.http.get(metadata.url).json()["authorization_servers"] == [
        f"http://localhost:{running_hall.web_port}"
    ]
    wrong_token = GatewayClient(running_hall, "gh_wrong").post(INITIALIZE)
    assert wrong_token.status_code == 401
    assert (
        'error="invalid_token", error_description="This token is not known' in wrong_token.headers["www-authenticate"]
    )
    row, token = Token.make(user=User.objects.create_superuser("late"), expires_at=timezone.now())
    assert "expired" in error_of(GatewayClient(running_hall, token).post(INITIALIZE))[2]
    row.expires_at = timezone.now() + timedelta(seconds=1.0)
    row.save()
    agent = GatewayClient(running_hall, token).begin()
    eventually(lambda: agent.send("ping").status_code == 401, within=2)
    # Claude's CLI and Codex show the text of a JSON-RPC error, but not the text of a 401.
    for user_agent in ("claude-code/2.1.329 (sdk-py)", "codex-mcp-client/0.169.0"):
        response = GatewayClient(running_hall, "gh_wrong").post({**PING, "id": "x"}, User_Agent=user_agent)
        assert (response.status_code, response.json()["id"], "create_token" in response.text) == (200, "x", True)
    for path in ("/.well-known/oauth-authorization-server", "/register"):
        response = GatewayClient(running_hall, None, path).http.get(GatewayClient(running_hall, None, path).url)
        assert (response.status_code, response.headers["content-type"]) == (404, "text/plain; charset=utf-8")
        assert "no OAuth" in response.text
        assert "unknown, revoked or expired" in response.text  # a client shows this text for a revoked token


def test_pages_of_other_sites_are_refused(running_hall: Hall) -> None:
    agent = GatewayClient(running_hall, make_token())
    host = f"127.0.0.1:{running_hall.gateway_port}"
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://evil.example:{running_hall.gateway_port}"},
        {"Host": "evil.example"},
        {
            "Host": f"evil.example:{running_hall.gateway_port}",
            "Origin": f"http://evil.example:{running_hall.gateway_port}",
        },
        {"Sec_Fetch_Site": "cross-site"},
    ):
        assert agent.post(INITIALIZE, **headers).status_code == 403, headers
    assert agent.post(INITIALIZE, Origin=f"http://{host}").status_code == 200
    assert agent.post(INITIALIZE, Host=f"localhost:{running_hall.gateway_port}").status_code == 200


def test_a_session_accepts_only_its_own_token_and_ends_on_delete(running_hall: Hall) -> None:
    token = make_token()
    agent, other = GatewayClient(running_hall, token).begin(), GatewayClient(running_hall, make_token())
    session_id = str(agent.http.headers["Mcp-Session-Id"])
    assert session_id.isascii()
    assert agent.send("ping").json()["result"] == {}
    assert other.post(PING, Mcp_Session_Id=session_id).status_code == 404
    assert GatewayClient(running_hall, token, "/mcp/one").post(PING, Mcp_Session_Id=session_id).status_code == 404
    assert other.post(PING, Mcp_Session_Id="made-up").status_code == 404
    assert other.post(PING, Mcp_Session_Id=session_id[:-3] + "AAA").status_code == 404
    assert other.post(PING).status_code == 400
    assert other.http.get(other.url).status_code == 405
    assert other.http.delete(other.url).status_code == 405
    assert other.http.get(other.url, headers={"Mcp-Session-Id": session_id}).status_code == 404
    assert other.http.delete(other.url, headers={"Mcp-Session-Id": session_id}).status_code == 404
    response = agent.http.put(agent.url)
    assert (response.status_code, response.headers["allow"]) == (405, "GET, POST, DELETE")
    assert agent.send("ping").status_code == 200
    assert agent.post(PING, MCP_Protocol_Version="1999-01-01").status_code == 400
    with agent.listen() as stream:
        assert agent.http.delete(agent.url).status_code == 204
        eventually(stream.ended.is_set, within=2)
    assert agent.send("ping").status_code == 404
    assert agent.http.get(agent.url).status_code == 404


def test_messages_are_checked_by_the_rules_of_json_rpc(running_hall: Hall) -> None:
    agent = GatewayClient(running_hall, make_token()).begin()
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
    response = agent.post({"jsonrpc": "2.0", "id": "nobody-asked", "result": {}})
    assert (response.status_code, response.content) == (202, b"")


def test_batches_work_only_in_the_version_that_has_them(running_hall: Hall) -> None:
    agent = GatewayClient(running_hall, make_token()).begin("2025-03-26")
    call = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "one__echo", "arguments": {"text": "x"}}}
    responses = agent.post([{**call, "id": 1}, {"jsonrpc": "2.0", "method": "ping"}, {**PING, "id": "two"}, 7]).json()
    first, second, third = responses
    assert (first["id"], first["result"]["content"][0]["text"]) == (1, "x")
    assert second == {"jsonrpc": "2.0", "id": "two", "result": {}}
    assert (third["id"], third["error"]["code"]) == (None, -32600)
    response = agent.post([{"jsonrpc": "2.0", "method": "notifications/initialized"}])
    assert (response.status_code, response.content) == (202, b"")
    assert agent.post([{**PING, "id": number} for number in range(101)]).status_code == 400
    assert agent.post([INITIALIZE]).json()[0]["error"]["code"] == -32600


def test_limits_of_a_token_do_not_count_responses_and_notifications(running_hall: Hall) -> None:
    limited_client = GatewayClient(running_hall, make_token(calls_per_minute=5))
    responses = [limited_client.post(INITIALIZE) for _ in range(6)]
    assert [response.status_code for response in responses] == [200] * 5 + [429]
    assert 1 <= int(responses[-1].headers["retry-after"]) <= 12

    token = make_token(max_in_flight=1)
    agent = GatewayClient(running_hall, token).begin()
    call = {"jsonrpc": "2.0", "id": "slow", "method": "tools/call", "params": {"name": "one__sleep", "arguments": {}}}
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(agent.post, call)
        eventually(lambda: GatewayClient(running_hall, token).post(INITIALIZE).status_code == 429)
        refusal = agent.send("ping")
        assert (refusal.status_code, refusal.headers["retry-after"]) == (429, "1")
        # Otherwise a client at its limit could neither cancel a running call nor answer its question.
        assert agent.notify("notifications/cancelled", requestId="slow").status_code == 202
        assert future.result(3).status_code == 200
    assert agent.send("ping").status_code == 200
    message, headers = agent.modern_message("subscriptions/listen", notifications={"toolsListChanged": True})
    with GatewayClient(running_hall, token).stream(message, **headers) as stream:
        stream.next()
        assert agent.send("ping").status_code == 200  # an open stream does not count as a call


# Eras -------------------------------------------------------------------------------------------------------------


def test_both_eras_are_served_at_one_path(running_hall: Hall) -> None:
    agent = GatewayClient(running_hall, make_token())
    response = agent.modern("server/discover")
    result = response.json()["result"]
    assert (response.status_code, result["supportedVersions"][0], result["resultType"]) == (200, MODERN, "complete")
    assert (result["ttlMs"], result["cacheScope"]) == (0, "private")
    assert "mcp-session-id" not in response.headers
    eventually(
        lambda: agent.modern("tools/list").json()["result"]["tools"]
    )  # the gateway lists the tools a moment after the row has them
    list_result = agent.modern("tools/list").json()["result"]
    assert (list_result["resultType"], list_result["tools"][0]["name"]) == ("complete", "one__echo")
    call_result = agent.modern("tools/call", name="one__echo", arguments={"text": "modern"}).json()["result"]
    assert (call_result["resultType"], call_result["content"][0]["text"]) == ("complete", "modern")
    for version in ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"):
        legacy = GatewayClient(running_hall, make_token()).begin(version)
        assert legacy.http.headers["MCP-Protocol-Version"] == version
        legacy_result = legacy.call("one__echo", text=version)["result"]
        assert legacy_result == {"content": [{"type": "text", "text": version}]}
        assert set(legacy.ask("tools/list")["result"]) == {"tools"}
    for requested_version in ("2099-01-01", MODERN, None):
        params = {**INITIALIZE["params"], "protocolVersion": requested_version}  # type: ignore[dict-item]
        initialize_result = agent.post({**INITIALIZE, "params": params}).json()["result"]
        assert initialize_result["protocolVersion"] == "2025-11-25"

    def check_refusal(status: int, code: int, message: Any = None, **headers: str | None) -> dict[str, Any]:
        default_message, default_headers = agent.modern_message("tools/call", name="one__echo", arguments={"text": "x"})
        response = agent.post(message or default_message, **{**default_headers, **headers})
        assert error_of(response)[:2] == (status, code), response.text
        return dict(response.json()["error"])

    check_refusal(400, -32020, Mcp_Name="one__sleep")
    check_refusal(400, -32020, Mcp_Method="tools/list")
    check_refusal(400, -32020, Mcp_Method=None)
    check_refusal(400, -32020, MCP_Protocol_Version=None)
    assert agent.modern("ping").status_code == agent.modern("initialize").status_code == 404
    assert error_of(agent.modern("nowhere"))[:2] == (404, -32601)
    bare = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    check_refusal(400, -32602, bare, Mcp_Method="tools/list")
    error = check_refusal(400, -32022, bare, MCP_Protocol_Version="2030-01-01")
    assert (error["data"]["requested"], MODERN in error["data"]["supported"]) == ("2030-01-01", True)


# Lists ------------------------------------------------------------------------------------------------------------


def test_tool_lists_stay_fast_while_members_hang_start_or_stop(hall: Hall) -> None:
    for name in ("alive", "gone", "hung"):
        hall.add(name, "tools=alpha,sleep", max_concurrency=2, timeout=20)
    hall.add("starting", "hang-initialize", start_timeout=30)
    hall.start()
    wait_for_roster(hall, "alive", "gone", "hung")
    wait_for_status(hall, "starting", "starting")
    token = make_token()
    agent = GatewayClient(hall, token).begin()
    all_tools = agent.tools()
    assert all_tools == [f"{name}__{tool}" for name in ("alive", "gone", "hung") for tool in ("alpha", "sleep")]
    hall.manage("member", "stop", "gone")
    wait_for_status(hall, "gone", "disconnected")
    hung = psutil.Process(member("hung").pid)
    hung.suspend()
    with ThreadPoolExecutor(8) as threads:
        try:
            futures = [threads.submit(GatewayClient(hall, token).begin().call, "hung__alpha") for _ in range(8)]
            durations = []
            for _ in range(30):
                watch = Stopwatch()
                assert agent.tools() == all_tools
                assert agent.text("alive__alpha") == "alpha"
                durations.append(watch.seconds)
            assert max(durations) < 0.5, sorted(durations)[-5:]
            for name, seconds in [("gone", 0.5), ("hung", 7)]:  # at the path of a member, the member answers itself
                watch = Stopwatch()
                assert GatewayClient(hall, token, f"/mcp/{name}").begin().tools() == ["alpha", "sleep"]
                assert watch.seconds < seconds
            assert not any(future.done() for future in futures)
        finally:
            hung.resume()
        assert [future.result()["result"]["content"][0]["text"] for future in futures] == ["alpha"] * 8
    assert agent.tools() == all_tools

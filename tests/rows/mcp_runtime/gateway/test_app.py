"""HTTP: paths, methods, eras, sessions, batches and limits. Which requests are refused, and with which status."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.utils import timezone

from mcp_runtime.control.members import set_tool_enabled
from mcp_runtime.gateway import app, intake, legacy, replies
from mcp_runtime.security import principals
from mcp_runtime.security.access import Principal
from roster.models import Agent, Call, Hall, Token, Tool
from tests.conftest import eventually
from tests.support.agents import META, MODERN, GatewayClient, make_token
from tests.support.gateway_world import World, event, in_background, notification, request, result, text
from tests.support.machine import Stopwatch, take_alone
from tests.support.scripted_server import Request as MemberRequest


def anonymous_client(world: World, path: str = "/mcp") -> GatewayClient:
    world.agent()
    return GatewayClient(world, None, path)  # type: ignore[arg-type]


def send_bare(client: GatewayClient, verb: str = "GET", **headers: str) -> Any:
    header_values = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.http.request(verb, client.url, headers=header_values, timeout=10)


def test_a_refused_client_gets_the_reason(world: World) -> None:
    client = anonymous_client(world)
    response = client.send("ping")
    challenge = (
        'Bearer realm="Guild Hall", '
        'resource_metadata="http://localhost:8100/.well-known/oauth-protected-resource/mcp", scope="mcp"'
    )
    assert (response.status_code, response.headers["www-authenticate"]) == (401, challenge)
    response = client.post(request(1, "ping"), Authorization="Bearer gh_wrong")
    assert 'error="invalid_token", error_description="This token is not known.' in response.headers["www-authenticate"]
    for user_agent in ("claude-code/2.0", "codex-mcp-client/0.169.0"):
        response = client.post(request(7, "ping"), User_Agent=user_agent, Authorization="Bearer gh_wrong")
        assert (response.status_code, response.json()["id"], response.json()["error"]["code"]) == (
            200,
            7,
            replies.UNAUTHORIZED,
        )
    assert client.post(b"{", User_Agent="claude-code/2.0", Authorization="Bearer gh_wrong").status_code == 401
    long_message = request(7, "ping", filler="x" * app.MAX_UNAUTHENTICATED_BYTES)
    response = client.post(long_message, User_Agent="claude-code/2.0", Authorization="Bearer gh_wrong")
    assert response.status_code == 401
    for headers in ({}, {"Authorization": "Bearer gha_wrong"}):  # a client that can sign in does it after a 401
        assert client.post(request(7, "ping"), User_Agent="claude-code/2.0", **headers).status_code == 401
    assert client.post(request(1, "ping"), Origin="http://evil.example").status_code == 403


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("/", 404, "Nothing is here"),
        ("/.well-known/oauth-authorization-server", 404, "no OAuth"),
        ("/register", 404, "no OAuth"),
        ("/mcp/nobody", 404, "member 'nobody' not found"),
        ("/mcp?members=notes,nobody", 404, "member 'nobody' not found"),
        ("/mcp?token=gh_x", 400, "unknown query parameter 'token'"),
        ("/mcp/notes?members=notes", 400, "unknown query parameter 'members'"),
        ("/mcp?" + "&".join(f"a{number}=1" for number in range(11)), 400, "the query cannot be read"),
        ("/agents/7/mcp", 404, "there is no agent '7'"),
        ("/agents/x/mcp", 404, "there is no agent 'x'"),
    ],
)
def test_the_error_for_an_invalid_path_contains_the_reason(world: World, path: str, status: int, reason: str) -> None:
    world.member()
    response = world.agent(path).send("ping")
    assert response.status_code == status
    assert reason in response.text


def test_the_path_selects_the_members(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MAX_AGENTS", 1)
    rows = [world.member(name).row for name in ("a", "b", "c")]
    assert world.agent("/mcp?members=c,a,").begin().tools() == ["a__echo", "c__echo"]
    assert world.agent("/mcp/").begin().tools() == ["a__echo", "b__echo", "c__echo"]
    for name, row in zip("ab", rows, strict=False):
        agent = Agent.objects.create(name=name)
        agent.members.add(row)
        assert world.agent(f"/agents/{agent.pk}/mcp").begin().tools() == [f"{name}__echo"]
    response = world.agent("/mcp?members=a").begin().call("b__echo")
    assert response["error"]["code"] == -32602


def test_http_methods_content_types_and_bodies_are_validated(world: World) -> None:
    client = world.agent().begin()
    assert send_bare(client, "PUT").headers["allow"] == "GET, POST, DELETE"
    assert client.post(request(1, "ping"), Content_Type="text/plain").status_code == 415
    error = client.post(b"{").json()["error"]
    assert error["code"] == -32700
    assert error["message"].startswith("Parse error: the body is not JSON")  # the body is the client's
    statuses = {
        400: [7, {"jsonrpc": "1.0"}, {"jsonrpc": "2.0", "id": 1}, {**request(1, "ping"), "params": []}]
        + [{**request(message_id, "ping")} for message_id in (None, True, {})]
        + [[request(1, "ping")]],
        202: [notification("notifications/initialized"), result("nobody-asked"), result(5)],
        200: [request(1.5, "ping"), request("x", "ping")],
    }
    for status, messages in statuses.items():
        for message in messages:
            assert client.post(message).status_code == status, message
    assert client.post(request(1, "ping"), MCP_Protocol_Version=MODERN).status_code == 400


def test_a_session_begins_with_initialize_and_ends_with_delete(world: World) -> None:
    client = world.agent()
    assert client.send("ping").status_code == 400  # before initialize
    assert client.post(request(1, "ping"), Mcp_Session_Id="made-up").status_code == 404
    assert client.post({"jsonrpc": "2.0", "method": "initialize", "params": {}}).status_code == 400
    assert client.post({"jsonrpc": "2.0", "id": 1, "method": "initialize"}).status_code == 400
    handshake = client.send("initialize", protocolVersion="1999-01-01", capabilities=[]).json()["result"]
    assert handshake["protocolVersion"] == "2025-11-25"
    assert send_bare(client).status_code == send_bare(client, "DELETE").status_code == 405
    assert send_bare(client, Mcp_Session_Id="made-up").status_code == 404
    client.begin()
    assert client.ask("initialize", protocolVersion="2025-06-18", capabilities={})["error"]["code"] == -32600
    assert send_bare(client, "DELETE").status_code == 204
    assert client.send("ping").status_code == 404


def test_the_responses_of_a_batch_have_the_order_of_its_requests(world: World) -> None:
    world.member()
    client = world.agent().begin("2025-03-26")
    call = request("c", "tools/call", name="notes__echo", arguments={"a": 1})
    responses = client.post([7, call, notification("notifications/initialized"), result("x"), request(2, "odd")]).json()
    assert [response["id"] for response in responses] == [None, "c", 2]
    assert responses[0]["error"]["code"] == -32600
    assert responses[1]["result"] == text('{"a": 1}')
    assert responses[2]["error"]["code"] == -32601
    empty_response = client.post([notification("notifications/initialized")])
    assert (empty_response.status_code, empty_response.content) == (202, b"")
    for length in (0, legacy.MAX_BATCH + 1):
        assert client.post([request(1, "ping")] * length).status_code == 400


def test_a_call_of_a_batch_can_be_cancelled_alone(world: World) -> None:
    def call(incoming: MemberRequest) -> None:
        if incoming.message["params"]["arguments"]["is_slow"]:
            incoming.hang()
        incoming.result(text("quick"))

    member = world.member(behaviours={"tools/call": call})
    client = world.agent().begin("2025-03-26")
    batch_client = GatewayClient(world, None)  # type: ignore[arg-type]
    batch_client.http.headers.update(client.http.headers)
    batch = [
        request(name, "tools/call", name="notes__echo", arguments={"is_slow": name == "slow"})
        for name in ("slow", "quick")
    ]
    with in_background(lambda: batch_client.post(batch).json()) as responses:
        eventually(lambda: len(member.messages("tools/call")) == 2)
        assert client.notify("notifications/cancelled", requestId="slow", reason="enough").status_code == 202
    slow, quick = responses[0]
    assert (slow["id"], slow["error"]["data"]["kind"]) == ("slow", "cancelled")
    assert (quick["id"], quick["result"]) == ("quick", text("quick"))
    (cancellation,) = member.messages("notifications/cancelled")
    slow_id = next(
        message["id"] for message in member.messages("tools/call") if message["params"]["arguments"]["is_slow"]
    )
    assert cancellation["params"] == {"requestId": slow_id, "reason": "enough"}
    assert sorted(row.status for row in world.calls(2)) == ["cancelled", "succeeded"]


def test_a_client_above_the_limit_of_its_token_gets_429(world: World) -> None:
    user = User.objects.create_superuser("ann")
    client = world.agent(token=Token.make(user=user, calls_per_minute=3, max_in_flight=1)[1]).begin()
    assert client.send("ping").status_code == 200  # the third message: initialize, initialized, ping
    response = client.send("ping")
    assert response.status_code == 429
    assert 1 <= int(response.headers["retry-after"]) <= 20
    assert (response.json()["id"], response.json()["error"]["code"]) == (3, -32600)


def test_modern_requests_are_validated_and_modern_notifications_are_accepted(world: World) -> None:
    client = world.agent()
    discovery = client.modern("server/discover").json()["result"]
    assert discovery["supportedVersions"][0] == MODERN
    assert discovery["resultType"] == "complete"
    assert client.modern("ping").status_code == 404  # a method that only sessions have
    message, headers = client.modern_message("tools/list")
    assert client.post({**message, "jsonrpc": "1.0"}, **headers).status_code == 400
    assert client.post({**message, "params": []}, MCP_Protocol_Version=MODERN).status_code == 400
    del message["id"]
    assert client.post(message, **headers).status_code == 202
    response = client.post(request(4, "tools/list"), MCP_Protocol_Version="2031-01-01")
    assert (response.status_code, response.json()["id"], response.json()["error"]["code"]) == (400, 4, -32022)
    assert client.modern("subscriptions/listen").json()["error"]["code"] == -32602
    tools = client.modern("tools/list").json()["result"]
    assert tools == {"tools": [], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def test_a_call_that_is_cancelled_ends_even_if_the_member_does_not_respond(world: World) -> None:
    member = world.member(behaviours={"tools/call": lambda incoming: incoming.hang()})
    client = world.agent().begin()
    calling_client = GatewayClient(world, None)  # type: ignore[arg-type]
    calling_client.http.headers.update(client.http.headers)
    call = request(9, "tools/call", name="notes__echo", arguments={})
    with in_background(lambda: calling_client.post(call).json()["error"]) as errors:
        eventually(lambda: member.messages("tools/call"))
        for request_id in ([], "unknown"):
            assert client.notify("notifications/cancelled", requestId=request_id).status_code == 202
        assert client.notify("notifications/cancelled", requestId=9, reason="enough").status_code == 202
    assert errors[0]["message"] == "tool 'echo' of member 'notes': it was cancelled"
    assert errors[0]["data"] == {"kind": "cancelled", "member": "notes"}
    (cancellation,) = member.messages("notifications/cancelled")
    assert cancellation["params"] == {"requestId": member.messages("tools/call")[0]["id"], "reason": "enough"}
    assert [row.status for row in world.calls()] == ["cancelled"]


def test_a_timeout_has_the_same_error_in_both_eras(world: World) -> None:
    world.member(behaviours={"tools/call": lambda incoming: incoming.hang()}, timeout=1.0)
    session_message = world.agent().begin().ask("tools/call", name="notes__echo", arguments={})
    modern_response = world.agent().modern("tools/call", name="notes__echo", arguments={})
    for error in (session_message["error"], modern_response.json()["error"]):
        assert error["message"] == "tool 'echo' of member 'notes': no complete answer within 1 s; it may have run"
        assert error["data"] == {"kind": "timeout", "member": "notes"}


def test_a_timeout_during_a_stream_ends_the_stream_with_an_error(world: World) -> None:
    def call(incoming: MemberRequest) -> None:
        incoming.stream(event(notification("notifications/progress", progressToken=1, progress=1)))
        incoming.hang()

    world.member(behaviours={"tools/call": call}, timeout=1.0)
    client = world.agent().begin()
    with client.stream(request(9, "tools/call", name="notes__echo", arguments={})) as stream:
        assert stream.next()["method"] == "notifications/progress"
        assert "no complete answer" in stream.next()["error"]["message"]
        assert stream.ended.wait(5)


def test_a_stream_without_a_response_fails_the_call_of_a_client_without_streams(world: World) -> None:
    def end(incoming: MemberRequest) -> None:
        incoming.stream(event(None, "1"))
        incoming.hang_up()

    world.member(behaviours={"tools/call": end})
    client = world.agent().begin()
    call = request(9, "tools/call", name="notes__echo", arguments={})
    error = client.post(call, Accept="application/json").json()["error"]
    assert error["message"] == "tool 'echo' of member 'notes': the stream ended without the answer"


def test_a_resume_after_an_unknown_event_opens_a_new_stream(world: World) -> None:
    member = world.member()
    client = world.agent().begin()
    client.call("notes__echo")
    for event_id in ("notes/1", "nobody/1"):  # a member without streams, and an unknown member
        client.http.headers["Last-Event-ID"] = event_id
        with client.listen() as stream:
            assert not stream.ended.is_set()
    event_ids = [request.headers.get("Last-Event-ID") for request in member.requests]
    assert [event_id for event_id in event_ids if event_id is not None] == ["1"]


def test_custom_notifications_of_clients_pass_only_at_a_members_own_path(world: World) -> None:
    member, member_client = world.member(), world.agent("/mcp/notes").begin()
    member_client.call("echo")
    assert member_client.notify("notifications/roots/list_changed").status_code == 202
    assert member_client.notify("notifications/custom", a=1).status_code == 202
    assert member.messages("notifications/custom")[0]["params"] == {"a": 1}
    assert member.messages("notifications/roots/list_changed")
    roster_client = world.agent().begin()
    roster_client.call("notes__echo")
    roster_client.notify("notifications/custom")
    assert len(member.messages("notifications/custom")) == 1


def test_an_internal_error_gets_status_500_and_is_logged(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = world.agent().begin()
    monkeypatch.setattr(intake, "decode_message", lambda body: 1 / 0)
    response = client.send("ping")
    assert (response.status_code, json.loads(response.content)["error"]["code"]) == (500, -32603)
    assert "the gateway failed to serve POST '/mcp'" in caplog.text


def test_a_token_without_permissions_sees_no_members(world: World) -> None:
    world.member()
    token = make_token(User.objects.create_user("nobody"))
    client = world.agent(token=token)
    assert client.modern("tools/list").json()["result"]["tools"] == []
    assert world.agent("/mcp/notes", token=token).send("x").status_code == 404


def test_a_client_without_permissions_gets_no_session_and_no_stream(world: World) -> None:
    member = world.member()
    tool = Tool.objects.get(member=member.row)
    empty_scope = {"scope": Token.Scope.TOOLS, "tools": []}
    for token, reason in (
        (make_token(User.objects.create_user("nobody")), "permission roster.invoke_tool"),
        (make_token(**empty_scope), "have all left the hall"),
    ):
        client = world.agent(token=token)
        response = client.send("initialize", protocolVersion="2025-06-18", capabilities={})
        assert (response.status_code, response.json()["error"]["code"]) == (403, replies.FORBIDDEN)
        assert reason in response.json()["error"]["message"]
        message, headers = client.modern_message("subscriptions/listen", notifications={})
        assert client.post(message, **headers).status_code == 403
        cli_response = client.post(request(7, "initialize", capabilities={}), User_Agent="claude-code/2.0")
        assert (cli_response.status_code, cli_response.json()["id"], cli_response.json()["error"]["code"]) == (
            200,
            7,
            replies.FORBIDDEN,
        )
    tool_token = make_token(scope=Token.Scope.TOOLS, tools=[tool])
    assert world.agent(token=tool_token).begin().tools() == ["notes__echo"]


def test_a_session_gets_no_stream_after_its_user_lost_all_permissions(world: World) -> None:
    Hall.objects.create()
    user = User.objects.create_superuser("ann")
    world.member()
    client = world.agent(token=make_token(user)).begin()
    User.objects.filter(pk=user.pk).update(is_superuser=False)
    Hall.note_access_change()
    eventually(lambda: client.tools() == [])
    assert send_bare(client).status_code == 403


SILENT_CHANGES: dict[str, Callable[[], Any]] = {
    "the user is disabled": lambda: User.objects.update(is_active=False),
    "the token is revoked": lambda: Token.objects.update(revoked_at=timezone.now()),
    "the token expires": lambda: Token.objects.update(expires_at=timezone.now() - timedelta(hours=1)),
    "the permission is taken away": lambda: User.user_permissions.through.objects.all().delete(),
}


@pytest.mark.alone
@pytest.mark.services
@pytest.mark.parametrize("change", SILENT_CHANGES.values(), ids=SILENT_CHANGES.keys())
def test_a_user_loses_access_within_two_seconds_of_a_change_without_a_signal(
    world: World, change: Callable[[], Any]
) -> None:
    """QuerySet.update and plain SQL send no signal. The gateway compares its principals in memory with the rows."""
    Hall.objects.create()
    user = User.objects.create_user("ada")
    user.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    world.member()
    client = world.agent(token=make_token(user)).begin()
    for is_on in (False, True):  # a change that the gateway has not noticed yet would make it read the rows
        set_tool_enabled(Tool.objects.get(), is_on)
        eventually(lambda listed=["notes__echo"] if is_on else []: client.tools() == listed)  # type: ignore[misc]
    with client.listen() as stream:
        take_alone()
        change()
        watch = Stopwatch()
        # If the user only lost the permission, the token is still valid and the list is empty.
        eventually(lambda: client.send("tools/list").json().get("result", {}).get("tools") in (None, []))
        assert watch.seconds < 2
        assert client.send("tools/call", name="notes__echo", arguments={}).json().get("result") is None
        if client.send("ping").status_code == 401:
            assert stream.ended.wait(5)


def test_unchanged_principals_stay_in_memory_while_other_rows_change(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison does not cause another lookup."""
    Hall.objects.create()
    member = world.member()
    client = world.agent().begin()
    comparisons: list[bool] = []
    are_outdated = principals.are_outdated

    def compare(cached_principals: Collection[Principal]) -> bool:
        comparisons.append(are_outdated(cached_principals))
        return comparisons[-1]

    monkeypatch.setattr(principals, "are_outdated", compare)
    eventually(lambda: comparisons)
    assert client.send("ping").status_code == 200
    monkeypatch.setattr(principals, "principal_of_token", lambda text: pytest.fail("looked up again"))
    for number in (2, 3):
        Call.objects.create(member=member.row, tool_name="echo", timeout=1, source="rest")
        eventually(lambda number=number: len(comparisons) >= number)  # type: ignore[misc]
        assert client.send("ping").status_code == 200
    assert set(comparisons) == {False}


def test_ids_and_capabilities_have_a_maximum_length(world: World) -> None:
    world.member()
    client = world.agent().begin()
    assert client.post(request("x" * 1_000, "ping")).status_code == 200
    response = client.post(request("x" * 1_001, "ping"))
    message = "Invalid Request: an id can have at most 1,000 characters"
    assert (response.status_code, response.json()["error"]["message"]) == (400, message)
    meta = {f"{META}clientCapabilities": {"experimental": {"a": "x" * 20_000}}}
    response = world.agent().modern("tools/list", meta=meta)
    assert (response.status_code, response.json()["error"]["message"]) == (
        400,
        "Invalid params: capabilities can have at most 16,384 bytes",
    )

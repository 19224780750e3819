"""HTTP: paths, verbs, eras, sessions, batches, limits; what is refused, and with which status."""

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
from tests.support.scripted_server import Request as Asked


def anonymous(world: World, path: str = "/mcp") -> GatewayClient:
    world.agent()
    return GatewayClient(world, None, path)  # type: ignore[arg-type]


def get(agent: GatewayClient, verb: str = "GET", **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return agent.http.request(verb, agent.url, headers=named, timeout=10)


def test_a_refused_client_gets_the_reason(world: World) -> None:
    agent = anonymous(world)
    missing = agent.send("ping")
    assert (missing.status_code, missing.headers["www-authenticate"]) == (401, 'Bearer realm="Guild Hall"')
    wrong = agent.post(request(1, "ping"), Authorization="Bearer gh_wrong")
    assert 'error="invalid_token", error_description="This token is not known.' in wrong.headers["www-authenticate"]
    for deaf in ("claude-code/2.0", "codex-mcp-client/0.169.0"):
        told = agent.post(request(7, "ping"), User_Agent=deaf)
        assert (told.status_code, told.json()["id"], told.json()["error"]["code"]) == (200, 7, replies.UNAUTHORIZED)
    assert agent.post(b"{", User_Agent="claude-code/2.0").status_code == 401
    long = request(7, "ping", filler="x" * app.MAX_UNAUTHENTICATED_BYTES)
    assert agent.post(long, User_Agent="claude-code/2.0").status_code == 401
    assert agent.post(request(1, "ping"), Origin="http://evil.example").status_code == 403


@pytest.mark.parametrize(
    ("path", "status", "said"),
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
def test_paths_that_lead_nowhere_say_so(world: World, path: str, status: int, said: str) -> None:
    world.member()
    response = world.agent(path).send("ping")
    assert response.status_code == status
    assert said in response.text


def test_paths_choose_members(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MAX_AGENTS", 1)
    rows = [world.member(name).row for name in ("a", "b", "c")]
    assert world.agent("/mcp?members=c,a,").begin().tools() == ["a__echo", "c__echo"]
    assert world.agent("/mcp/").begin().tools() == ["a__echo", "b__echo", "c__echo"]
    for name, row in zip("ab", rows, strict=False):
        agent = Agent.objects.create(name=name)
        agent.members.add(row)
        assert world.agent(f"/agents/{agent.pk}/mcp").begin().tools() == [f"{name}__echo"]
    outside = world.agent("/mcp?members=a").begin().call("b__echo")
    assert outside["error"]["code"] == -32602


def test_verbs_types_and_bodies_are_taken_by_the_rules(world: World) -> None:
    agent = world.agent().begin()
    assert get(agent, "PUT").headers["allow"] == "GET, POST, DELETE"
    assert agent.post(request(1, "ping"), Content_Type="text/plain").status_code == 415
    unreadable = agent.post(b"{").json()["error"]
    assert unreadable["code"] == -32700
    assert unreadable["message"].startswith("Parse error: the body is not JSON")  # theirs, not a member's answer
    statuses = {
        400: [7, {"jsonrpc": "1.0"}, {"jsonrpc": "2.0", "id": 1}, {**request(1, "ping"), "params": []}]
        + [{**request(odd, "ping")} for odd in (None, True, {})]
        + [[request(1, "ping")]],
        202: [notification("notifications/initialized"), result("nobody-asked"), result(5)],
        200: [request(1.5, "ping"), request("x", "ping")],
    }
    for status, messages in statuses.items():
        for message in messages:
            assert agent.post(message).status_code == status, message
    assert agent.post(request(1, "ping"), MCP_Protocol_Version=MODERN).status_code == 400


def test_sessions_begin_end_and_are_asked_for(world: World) -> None:
    agent = world.agent()
    assert agent.send("ping").status_code == 400  # before initialize
    assert agent.post(request(1, "ping"), Mcp_Session_Id="made-up").status_code == 404
    assert agent.post({"jsonrpc": "2.0", "method": "initialize", "params": {}}).status_code == 400
    assert agent.post({"jsonrpc": "2.0", "id": 1, "method": "initialize"}).status_code == 400
    told = agent.send("initialize", protocolVersion="1999-01-01", capabilities=[]).json()["result"]
    assert told["protocolVersion"] == "2025-11-25"
    assert get(agent).status_code == get(agent, "DELETE").status_code == 405
    assert get(agent, Mcp_Session_Id="made-up").status_code == 404
    agent.begin()
    assert agent.ask("initialize", protocolVersion="2025-06-18", capabilities={})["error"]["code"] == -32600
    assert get(agent, "DELETE").status_code == 204
    assert agent.send("ping").status_code == 404


def test_batches_are_answered_in_their_order(world: World) -> None:
    world.member()
    agent = world.agent().begin("2025-03-26")
    call = request("c", "tools/call", name="notes__echo", arguments={"a": 1})
    told = agent.post([7, call, notification("notifications/initialized"), result("x"), request(2, "odd")]).json()
    assert [one["id"] for one in told] == [None, "c", 2]
    assert told[0]["error"]["code"] == -32600
    assert told[1]["result"] == text('{"a": 1}')
    assert told[2]["error"]["code"] == -32601
    only_notices = agent.post([notification("notifications/initialized")])
    assert (only_notices.status_code, only_notices.content) == (202, b"")
    for length in (0, legacy.MAX_BATCH + 1):
        assert agent.post([request(1, "ping")] * length).status_code == 400


def test_a_call_of_a_batch_can_be_cancelled_alone(world: World) -> None:
    def call(asked: Asked) -> None:
        if asked.message["params"]["arguments"]["is_slow"]:
            asked.hang()
        asked.result(text("quick"))

    member = world.member(behaviours={"tools/call": call})
    agent = world.agent().begin("2025-03-26")
    other = GatewayClient(world, None)  # type: ignore[arg-type]
    other.http.headers.update(agent.http.headers)
    batch = [
        request(name, "tools/call", name="notes__echo", arguments={"is_slow": name == "slow"})
        for name in ("slow", "quick")
    ]
    with in_background(lambda: other.post(batch).json()) as ended:
        eventually(lambda: len(member.messages("tools/call")) == 2)
        assert agent.notify("notifications/cancelled", requestId="slow", reason="enough").status_code == 202
    slow, quick = ended[0]
    assert (slow["id"], slow["error"]["data"]["kind"]) == ("slow", "cancelled")
    assert (quick["id"], quick["result"]) == ("quick", text("quick"))
    (told,) = member.messages("notifications/cancelled")
    slow_id = next(one["id"] for one in member.messages("tools/call") if one["params"]["arguments"]["is_slow"])
    assert told["params"] == {"requestId": slow_id, "reason": "enough"}
    assert sorted(row.status for row in world.calls(2)) == ["cancelled", "succeeded"]


def test_limits_of_a_token_count_its_calls_alone(world: World) -> None:
    user = User.objects.create_superuser("ann")
    agent = world.agent(token=Token.make(user=user, calls_per_minute=3, max_in_flight=1)[1]).begin()
    assert agent.send("ping").status_code == 200  # the third message: initialize, initialized, ping
    refused = agent.send("ping")
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 20
    assert (refused.json()["id"], refused.json()["error"]["code"]) == (3, -32600)


def test_modern_requests_are_validated_and_notices_taken(world: World) -> None:
    agent = world.agent()
    told = agent.modern("server/discover").json()["result"]
    assert told["supportedVersions"][0] == MODERN
    assert told["resultType"] == "complete"
    assert agent.modern("ping").status_code == 404  # what only sessions have
    message, headers = agent.modern_message("tools/list")
    assert agent.post({**message, "jsonrpc": "1.0"}, **headers).status_code == 400
    assert agent.post({**message, "params": []}, MCP_Protocol_Version=MODERN).status_code == 400
    del message["id"]
    assert agent.post(message, **headers).status_code == 202
    old = agent.post(request(4, "tools/list"), MCP_Protocol_Version="2031-01-01")
    assert (old.status_code, old.json()["id"], old.json()["error"]["code"]) == (400, 4, -32022)
    assert agent.modern("subscriptions/listen").json()["error"]["code"] == -32602
    listed = agent.modern("tools/list").json()["result"]
    assert listed == {"tools": [], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def test_a_call_that_is_cancelled_ends_with_the_members_last_word_or_soon_without(world: World) -> None:
    member = world.member(behaviours={"tools/call": lambda asked: asked.hang()})
    agent = world.agent().begin()
    other = GatewayClient(world, None)  # type: ignore[arg-type]
    other.http.headers.update(agent.http.headers)
    call = request(9, "tools/call", name="notes__echo", arguments={})
    with in_background(lambda: other.post(call).json()["error"]) as ended:
        eventually(lambda: member.messages("tools/call"))
        for odd in ([], "unknown"):
            assert agent.notify("notifications/cancelled", requestId=odd).status_code == 202
        assert agent.notify("notifications/cancelled", requestId=9, reason="enough").status_code == 202
    assert ended[0]["message"] == "tool 'echo' of member 'notes': it was cancelled"
    assert ended[0]["data"] == {"kind": "cancelled", "member": "notes"}
    (told,) = member.messages("notifications/cancelled")
    assert told["params"] == {"requestId": member.messages("tools/call")[0]["id"], "reason": "enough"}
    assert [row.status for row in world.calls()] == ["cancelled"]


def test_a_call_that_takes_too_long_ends_in_the_era_it_came_in(world: World) -> None:
    world.member(behaviours={"tools/call": lambda asked: asked.hang()}, timeout=1.0)
    old = world.agent().begin().ask("tools/call", name="notes__echo", arguments={})
    new = world.agent().modern("tools/call", name="notes__echo", arguments={})
    for told in (old["error"], new.json()["error"]):
        assert told["message"] == "tool 'echo' of member 'notes': no complete answer within 1 s; it may have run"
        assert told["data"] == {"kind": "timeout", "member": "notes"}


def test_a_call_that_takes_too_long_on_its_stream_ends_there(world: World) -> None:
    def call(asked: Asked) -> None:
        asked.stream(event(notification("notifications/progress", progressToken=1, progress=1)))
        asked.hang()

    world.member(behaviours={"tools/call": call}, timeout=1.0)
    agent = world.agent().begin()
    with agent.stream(request(9, "tools/call", name="notes__echo", arguments={})) as heard:
        assert heard.next()["method"] == "notifications/progress"
        assert "no complete answer" in heard.next()["error"]["message"]
        assert heard.ended.wait(5)


def test_a_stream_without_the_answer_fails_for_who_takes_none(world: World) -> None:
    def end(asked: Asked) -> None:
        asked.stream(event(None, "1"))
        asked.hang_up()

    world.member(behaviours={"tools/call": end})
    agent = world.agent().begin()
    call = request(9, "tools/call", name="notes__echo", arguments={})
    error = agent.post(call, Accept="application/json").json()["error"]
    assert error["message"] == "tool 'echo' of member 'notes': the stream ended without the answer"


def test_a_rest_that_nobody_has_is_a_fresh_stream(world: World) -> None:
    member = world.member()
    agent = world.agent().begin()
    agent.call("notes__echo")
    for last in ("notes/1", "nobody/1"):  # this member has no streams; that one is none
        agent.http.headers["Last-Event-ID"] = last
        with agent.listen() as heard:
            assert not heard.ended.is_set()
    assert [one.headers["Last-Event-ID"] for one in member.requests if "Last-Event-ID" in one.headers] == ["1"]


def test_notices_pass_to_the_members_they_mean_something_to(world: World) -> None:
    member, modern = world.member(), world.agent("/mcp/notes").begin()
    modern.call("echo")
    assert modern.notify("notifications/roots/list_changed").status_code == 202
    assert modern.notify("notifications/custom", a=1).status_code == 202
    assert member.messages("notifications/custom")[0]["params"] == {"a": 1}
    assert member.messages("notifications/roots/list_changed")
    at_roster = world.agent().begin()
    at_roster.call("notes__echo")
    at_roster.notify("notifications/custom")
    assert len(member.messages("notifications/custom")) == 1


def test_a_fault_of_our_own_is_a_500_and_in_the_log(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    agent = world.agent().begin()
    monkeypatch.setattr(intake, "decode_message", lambda body: 1 / 0)
    response = agent.send("ping")
    assert (response.status_code, json.loads(response.content)["error"]["code"]) == (500, -32603)
    assert "the gateway failed to serve POST '/mcp'" in caplog.text


def test_a_token_for_nothing_sees_nothing(world: World) -> None:
    world.member()
    token = make_token(User.objects.create_user("nobody"))
    agent = world.agent(token=token)
    assert agent.modern("tools/list").json()["result"]["tools"] == []
    assert world.agent("/mcp/notes", token=token).send("x").status_code == 404


def test_who_may_use_nothing_is_given_no_session_and_no_stream(world: World) -> None:
    member = world.member()
    tool = Tool.objects.get(member=member.row)
    left = {"scope": Token.Scope.TOOLS, "tools": []}
    for token, why in (
        (make_token(User.objects.create_user("nobody")), "permission roster.invoke_tool"),
        (make_token(**left), "have all left the hall"),
    ):
        agent = world.agent(token=token)
        refused = agent.send("initialize", protocolVersion="2025-06-18", capabilities={})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, replies.FORBIDDEN)
        assert why in refused.json()["error"]["message"]
        message, headers = agent.modern_message("subscriptions/listen", notifications={})
        assert agent.post(message, **headers).status_code == 403
        cli = agent.post(request(7, "initialize", capabilities={}), User_Agent="claude-code/2.0")
        assert (cli.status_code, cli.json()["id"], cli.json()["error"]["code"]) == (200, 7, replies.FORBIDDEN)
    one = make_token(scope=Token.Scope.TOOLS, tools=[tool])
    assert world.agent(token=one).begin().tools() == ["notes__echo"]


def test_a_session_whose_user_may_use_nothing_any_more_is_given_no_stream(world: World) -> None:
    Hall.objects.create()
    user = User.objects.create_superuser("ann")
    world.member()
    agent = world.agent(token=make_token(user)).begin()
    User.objects.filter(pk=user.pk).update(is_superuser=False)
    Hall.note_access_change()
    eventually(lambda: agent.tools() == [])
    assert get(agent).status_code == 403


SILENT_CHANGES: dict[str, Callable[[], Any]] = {
    "the user is disabled": lambda: User.objects.update(is_active=False),
    "the token is revoked": lambda: Token.objects.update(revoked_at=timezone.now()),
    "the token expires": lambda: Token.objects.update(expires_at=timezone.now() - timedelta(hours=1)),
    "the permission is taken away": lambda: User.user_permissions.through.objects.all().delete(),
}


@pytest.mark.alone
@pytest.mark.services
@pytest.mark.parametrize("change", SILENT_CHANGES.values(), ids=SILENT_CHANGES.keys())
def test_a_user_who_was_disabled_without_a_signal_is_shut_out_within_two_seconds(
    world: World, change: Callable[[], Any]
) -> None:
    """QuerySet.update and plain SQL tell nobody: the gateway compares what it has in memory with the rows."""
    Hall.objects.create()
    user = User.objects.create_user("ada")
    user.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    world.member()
    agent = world.agent(token=make_token(user)).begin()
    for is_on in (False, True):  # what the gateway has not noticed yet would make it look at the rows
        set_tool_enabled(Tool.objects.get(), is_on)
        eventually(lambda listed=["notes__echo"] if is_on else []: agent.tools() == listed)  # type: ignore[misc]
    with agent.listen() as heard:
        take_alone()
        change()
        watch = Stopwatch()
        # Of a user who may do nothing any more, the token is good and the list empty.
        eventually(lambda: agent.send("tools/list").json().get("result", {}).get("tools") in (None, []))
        assert watch.seconds < 2
        assert agent.send("tools/call", name="notes__echo", arguments={}).json().get("result") is None
        if agent.send("ping").status_code == 401:
            assert heard.ended.wait(5)


def test_principals_that_nobody_changed_stay_in_memory_while_others_write(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison is no reason to look anybody up again."""
    Hall.objects.create()
    member = world.member()
    agent = world.agent().begin()
    compared: list[bool] = []
    are_outdated = principals.are_outdated

    def compare(kept: Collection[Principal]) -> bool:
        compared.append(are_outdated(kept))
        return compared[-1]

    monkeypatch.setattr(principals, "are_outdated", compare)
    eventually(lambda: compared)
    assert agent.send("ping").status_code == 200
    monkeypatch.setattr(principals, "principal_of_token", lambda text: pytest.fail("looked up again"))
    for number in (2, 3):
        Call.objects.create(member=member.row, tool_name="echo", timeout=1, source="rest")
        eventually(lambda number=number: len(compared) >= number)  # type: ignore[misc]
        assert agent.send("ping").status_code == 200
    assert set(compared) == {False}


def test_what_is_kept_longer_than_its_message_has_bounds_of_its_own(world: World) -> None:
    world.member()
    agent = world.agent().begin()
    assert agent.post(request("x" * 1_000, "ping")).status_code == 200
    refused = agent.post(request("x" * 1_001, "ping"))
    text = "Invalid Request: an id can have at most 1,000 characters"
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, text)
    large = {f"{META}clientCapabilities": {"experimental": {"a": "x" * 20_000}}}
    refused = world.agent().modern("tools/list", meta=large)
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        400,
        "Invalid params: capabilities can have at most 16,384 bytes",
    )

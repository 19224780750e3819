"""One request to one member, and all messages that come back, for every kind of member and both eras of clients."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from django.contrib.auth.models import User

from mcp_runtime.gateway import envelope
from mcp_runtime.gateway.upstream import answer_streams, modern, questions
from mcp_runtime.security import limits
from roster.models import Tool
from tests.conftest import eventually
from tests.support.agents import META, GatewayClient, make_token, messages_of
from tests.support.gateway_world import (
    ALL,
    MODERN,
    Member,
    World,
    event,
    in_background,
    notification,
    reply_to,
    request,
    result,
    text,
    with_session,
)
from tests.support.scripted_server import Request as MemberRequest


def text_of(response: Any) -> str:
    return str(messages_of(response)[-1]["result"]["content"][0]["text"])


def error_of(response: Any) -> tuple[int, str]:
    error = messages_of(response)[-1]["error"]
    return error["code"], error["message"]


def modern_call(client: GatewayClient, tool: str = "notes__echo", **more: Any) -> Any:
    return client.modern("tools/call", name=tool, **{"arguments": {}, **more})


def stream_and_respond(*events: bytes) -> Any:
    """A stream of these events, then the response."""

    def behave(incoming: MemberRequest) -> None:
        incoming.stream(*events, event(result(incoming.id, **text("done"))))
        incoming.hang_up()

    return behave


# Members with sessions, clients with sessions ---------------------------------------------------------------------


def json_id(incoming: MemberRequest) -> bytes:
    """The id of a request, as it stands in the response."""
    return json.dumps(incoming.id).encode()


def test_a_result_passes_unchanged_with_the_clients_own_id(world: World) -> None:
    result = b'{"content":[] ,"x":1.50,"_meta":{"a":"\\u00e9"}}'
    template = b'{ "jsonrpc":"2.0","result":%b , "x": 1, "id":%b}'
    world.member(behaviours={"tools/call": lambda incoming: incoming.http(200, template % (result, json_id(incoming)))})
    client = world.agent().begin()
    response = client.send("tools/call", name="notes__echo", arguments={})
    assert response.content == b'{"jsonrpc":"2.0","id":2,"result":%b}' % result


@pytest.mark.parametrize("path", ["/mcp", "/mcp/notes"])
@pytest.mark.parametrize("behaviours", [{}, MODERN], ids=["sessions", "modern"])
def test_only_the_record_of_a_call_replaces_characters_that_no_database_can_store(
    world: World, path: str, behaviours: dict[str, Any]
) -> None:
    arguments = {"text": "a\0b", "k\0": "\ud800", "literal": "\\u0000"}
    content = {"text": "a\0b", "k\0": "\ud800"}

    def answer(incoming: MemberRequest) -> None:
        incoming.result({"resultType": "complete", "content": [], "structuredContent": content})

    member = world.member(behaviours={**behaviours, "tools/call": answer})
    name = "notes__echo" if path == "/mcp" else "echo"
    session_client, modern_client = world.agent(path).begin(), world.agent(path)
    for response in (
        session_client.send("tools/call", name=name, arguments=arguments),
        modern_client.modern("tools/call", name=name, arguments=arguments),
    ):
        assert messages_of(response)[-1]["result"]["structuredContent"] == {"text": "a\0b", "k\0": "\ufffd"}
    assert [message["params"]["arguments"] for message in member.messages("tools/call")] == [arguments, arguments]
    for row in world.calls(2):
        assert row.arguments == {"text": "a\ufffdb", "k\ufffd": "\ufffd", "literal": "\\u0000"}
        assert row.result is not None
        assert row.result["structuredContent"] == {"text": "a\ufffdb", "k\ufffd": "\ufffd"}


def test_a_request_with_an_unusual_id_gets_its_response(world: World) -> None:
    world.member()
    client = world.agent().begin()
    for message_id in ("a\0b", "\ud800", ""):
        response = client.post(request(message_id, "tools/call", name="notes__echo", arguments={})).json()
        assert (response["id"], response["result"]) == (message_id, text("{}"))


def test_messages_before_the_response_have_event_ids_for_a_resume(world: World) -> None:
    progress = notification("notifications/progress", progressToken=1, progress=0.5)
    world.member(behaviours={"tools/call": stream_and_respond(event(progress, "7"))})
    response = world.agent().begin().send("tools/call", name="notes__echo", arguments={})
    first, last, rest = response.content.split(b"\n\n")
    assert first.splitlines() == [b"id: notes/7", b"data: " + json.dumps(progress).encode()]
    assert last.startswith(b"id: notes/7\ndata: ")
    assert text_of(response) == "done"
    assert rest == b""


def test_a_response_to_another_request_on_a_stream_fails_the_call_and_is_dropped(world: World) -> None:
    world.member(behaviours={"tools/call": stream_and_respond(event(result(999, **text("stray"))))})
    response = world.agent().begin().send("tools/call", name="notes__echo", arguments={})
    (message,) = messages_of(response)
    assert (message["id"], message["error"]["data"]) == (2, {"member": "notes", "kind": "transport"})
    assert "the call may have run" in message["error"]["message"]


def test_a_stream_that_ends_early_is_resumed_by_its_client(world: World) -> None:
    def begin(incoming: MemberRequest) -> None:
        incoming.stream(event(None, "41", retry=50))
        incoming.hang_up()

    def resume(incoming: MemberRequest) -> None:
        (call,) = member.messages("tools/call")
        incoming.stream(event(result(call["id"], **text("from " + incoming.headers["Last-Event-ID"])), "42"))
        incoming.hang_up()

    member = world.member(behaviours={"tools/call": begin, "GET": resume})
    client = world.agent().begin()
    response = client.send("tools/call", name="notes__echo", arguments={})
    assert response.content == b"id: notes/41\nretry: 50\ndata:\n\n"
    rest = client.http.get(client.url, headers={"Last-Event-ID": "notes/41"}, timeout=10)
    assert b"id: notes/42\n" in rest.content
    assert text_of(rest) == "from 41"
    assert len(member.messages("tools/call")) == 1


@pytest.mark.parametrize("method", ["tools/call", "tools/list"])
def test_a_response_that_its_client_requests_again_is_the_same(world: World, method: str) -> None:
    """The response still has the seal of a task, and still lacks the disabled tools."""
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("echo", "off")]
    responses: list[bytes] = []

    def answer(incoming: MemberRequest) -> None:
        values = {"task": {"taskId": "t1", "status": "working"}} if method == "tools/call" else {"tools": tools}
        responses.append(event(result(incoming.id, **values), "e2"))
        incoming.stream(event(None, "e1", 10), responses[-1])
        incoming.hang_up()

    def resume(incoming: MemberRequest) -> None:
        if not incoming.headers.get("Last-Event-ID"):
            incoming.http(405)
            return
        incoming.stream(responses[-1])
        incoming.hang_up()

    world.member("notes", {method: answer, "GET": resume}, tools=tools)
    Tool.objects.filter(name="off").update(enabled=False)
    client = world.agent("/mcp/notes").begin("2025-11-25")
    first = messages_of(client.send(method, **({"name": "echo", "task": {}} if method == "tools/call" else {})))[-1]
    with client.http.get(client.url, headers={"Last-Event-ID": "notes/e1"}, timeout=10, stream=True) as response:
        lines = response.iter_lines()
        data = next(line for line in lines if line.startswith(b"data:") and b"{" in line)
    assert json.loads(data.partition(b":")[2]) == first
    assert b'"t1"' not in data
    assert b'"off"' not in data


@pytest.mark.parametrize("size", [100, answer_streams.MAX_RESUMABLE_REQUEST])
def test_the_response_to_a_large_request_cannot_be_resumed(world: World, size: int) -> None:
    responses: list[bytes] = []

    def answer(incoming: MemberRequest) -> None:
        responses.append(event(result(incoming.id, contents=[]), "e2"))
        incoming.stream(event(None, "e1", 10), responses[-1])
        incoming.hang_up()

    def resume(incoming: MemberRequest) -> None:
        incoming.stream(event(notification("notifications/message", level="info", data="x")), *responses)
        incoming.hang_up()

    world.member("notes", {"resources/read": answer, "GET": resume})
    client = world.agent("/mcp/notes").begin()
    assert messages_of(client.send("resources/read", uri="x" * size))[-1]["result"] == {"contents": []}
    with client.http.get(client.url, headers={"Last-Event-ID": "notes/e1"}, timeout=10) as response:
        methods = [message.get("method", "response") for message in messages_of(response)]
    assert methods == ["notifications/message", "response"][: 1 if size == answer_streams.MAX_RESUMABLE_REQUEST else 2]


def test_the_gateway_resumes_a_stream_that_ends_early_for_a_modern_client(world: World) -> None:
    def begin(incoming: MemberRequest) -> None:
        incoming.stream(event(notification("notifications/progress", progressToken=1, progress=1), "1", retry=1))
        incoming.hang_up()

    def resume(incoming: MemberRequest) -> None:
        if "Last-Event-ID" not in incoming.headers:
            incoming.http(405)
            return
        if incoming.headers["Last-Event-ID"] == "1":
            incoming.stream(event(None, "2"))
        else:
            call_id = incoming.server.behaviours["id of the call"]
            incoming.stream(event(result(call_id, **text("at last"))))
        incoming.hang_up()

    def call(incoming: MemberRequest) -> None:
        incoming.server.behaviours["id of the call"] = incoming.id
        begin(incoming)

    world.member(behaviours={"tools/call": call, "GET": resume})
    response = modern_call(world.agent())
    assert text_of(response) == "at last"
    assert messages_of(response)[0]["method"] == "notifications/progress"


def test_the_error_names_the_member_if_a_stream_ends_without_the_response(world: World) -> None:
    def end(incoming: MemberRequest) -> None:
        incoming.stream(event(notification("notifications/message", level="info", data=1)))
        incoming.hang_up()

    world.member(behaviours={"tools/call": end})
    session_response = world.agent().begin().send("tools/call", name="notes__echo", arguments={})
    for response in (session_response, modern_call(world.agent())):
        error = messages_of(response)[-1]["error"]
        assert error["code"] == -32603
        assert error["message"] == "tool 'echo' of member 'notes': the event stream ended without the answer"
        assert error["data"] == {"member": "notes", "kind": "protocol"}
    assert [call.error_kind for call in world.calls(2)] == ["protocol", "protocol"]


def test_the_gateway_stops_resuming_a_stream_that_always_ends_early(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_streams, "RESUMES", 3)

    def end(incoming: MemberRequest) -> None:
        incoming.stream(event(None, "1", retry=1))
        incoming.hang_up()

    member = world.member(behaviours={"tools/call": end, "GET": end})
    assert "ended without the answer, 3 times" in error_of(modern_call(world.agent()))[1]
    assert len([request for request in member.requests if "Last-Event-ID" in request.headers]) == 3


def test_a_call_runs_once_in_a_new_session_after_the_member_lost_its_session(world: World) -> None:
    def call(incoming: MemberRequest) -> None:
        if incoming.headers.get("Mcp-Session-Id") == "s2":
            incoming.http(404)
        else:
            incoming.result(text(incoming.headers["Mcp-Session-Id"]))

    member = world.member(behaviours={"tools/call": call, "ping": call})
    client = world.agent().begin()
    assert client.text("notes__echo") == "s3"
    assert client.text("notes__echo") == "s3"
    assert len(member.messages("initialize")) == 3  # the hall's session, the lost session and the new session


def test_a_call_fails_if_the_member_loses_every_session(world: World) -> None:
    def refuse(incoming: MemberRequest) -> None:
        incoming.http(404, b"gone", kind="text/plain")

    member = world.member(behaviours={"tools/call": refuse, "ping": refuse})
    code, message = error_of(world.agent().begin().send("tools/call", name="notes__echo", arguments={}))
    assert (code, message) == (-32603, "tool 'echo' of member 'notes': answered with HTTP status 404: 'gone'")
    assert len(member.messages("tools/call")) == 2


def test_a_late_response_to_an_earlier_call_does_not_repeat_the_next_call(world: World) -> None:
    """The late response has status 404, as for an ended session. The member has begun the next call when it comes."""
    connections: list[int] = []

    def call(incoming: MemberRequest) -> None:
        connections.append(incoming.connection)
        if len(connections) == 2:
            incoming.http(404)
        incoming.result(text("done"))

    member = world.member(behaviours={"tools/call": call})
    client = world.agent().begin()
    assert client.text("notes__echo") == "done"
    response = client.send("tools/call", name="notes__echo", arguments={})
    assert len(connections) == 2
    assert connections[0] == connections[1]
    assert "answered with HTTP status 404" in error_of(response)[1]
    assert world.calls(2)[1].error_kind == "transport"
    # The call may have begun, and nobody waits for its response.
    eventually(lambda: member.messages("notifications/cancelled"))
    request_id = member.messages("notifications/cancelled")[0]["params"]["requestId"]
    assert request_id == member.messages("tools/call")[1]["id"]
    assert client.text("notes__echo") == "done"


@pytest.mark.parametrize("is_first", [True, False])
def test_an_error_with_status_404_is_the_response_if_its_id_matches(world: World, is_first: bool) -> None:
    def call(incoming: MemberRequest) -> None:
        if incoming.message["params"]["arguments"]:
            incoming.error(-32601, "no such thing", status=404, data={"x": 1})
        else:
            incoming.result(text("done"))
            if is_first:
                incoming.hang_up()  # the next call uses a new connection

    member = world.member(behaviours={"tools/call": call, "ping": lambda incoming: incoming.result({})})
    client = world.agent().begin()
    assert client.text("notes__echo") == "done"
    if is_first:
        eventually(lambda: connections_to(member) <= 1, what="the gateway noticed that its connection is closed")
    error = client.call("notes__echo", x=1)["error"]
    assert error == {"code": -32601, "message": "no such thing", "data": {"x": 1}}
    assert error_of(modern_call(world.agent(), arguments={"x": 1}))[1] == "no such thing"
    assert len(member.messages("tools/call")) == 3


def test_a_session_not_found_error_with_the_requests_id_begins_a_new_session(world: World) -> None:
    def call(incoming: MemberRequest) -> None:
        if incoming.headers.get("Mcp-Session-Id") == "s2":
            incoming.error(-32001, "Session not found", status=404)
        else:
            incoming.result(text(incoming.headers["Mcp-Session-Id"]))

    world.member(behaviours={"tools/call": call, "ping": call})
    assert world.agent().begin().text("notes__echo") == "s3"


def test_two_concurrent_calls_with_the_same_id_get_their_own_responses(world: World) -> None:
    barrier = threading.Barrier(2, timeout=10)

    def call(incoming: MemberRequest) -> None:
        barrier.wait()
        incoming.result(incoming.message["params"])

    member = world.member(behaviours={"tools/call": call})
    client = world.agent().begin()
    assert client.ask("ping")["result"] == {}

    def call_as_five(which: str) -> Any:
        second_client = GatewayClient(world, None)
        second_client.http.headers.update(client.http.headers)
        return second_client.post(request(5, "tools/call", name="notes__echo", arguments={"which": which})).json()

    with in_background(lambda: call_as_five("a")) as first, in_background(lambda: call_as_five("b")) as second:
        pass
    responses = [first[0], second[0]]
    assert [response["id"] for response in responses] == [5, 5]
    assert [response["result"]["arguments"]["which"] for response in responses] == ["a", "b"]
    assert len({message["id"] for message in member.messages("tools/call")}) == 2


# Questions of members with sessions -------------------------------------------------------------------------------


def ask_questions(question: dict[str, Any], *more_questions: dict[str, Any]) -> Any:
    """A tool that asks these questions, and returns the replies as text."""

    def behave(incoming: MemberRequest) -> None:
        incoming.stream(event(question))
        replies = [reply_to(incoming, question["id"])]
        for next_question in more_questions:
            incoming.send(event(next_question))
            replies.append(reply_to(incoming, next_question["id"]))
        incoming.send(event(result(incoming.id, **text(json.dumps(replies)))))
        incoming.hang_up()

    return behave


ELICITATION = request("q1", "elicitation/create", message="Sure?", requestedSchema={"type": "object"})


def test_a_question_has_the_gateways_id_and_its_response_has_the_members_id(world: World) -> None:
    world.member(behaviours={"tools/call": ask_questions(ELICITATION)})
    client = world.agent().begin(elicitation={})
    with client.stream(request(9, "tools/call", name="notes__echo", arguments={})) as stream:
        question = stream.until("elicitation/create")
        assert question["id"] != "q1"
        assert question["params"] == ELICITATION["params"]
        assert client.post(result(question["id"], action="accept")).status_code == 202
        replies = json.loads(stream.until("")["result"]["content"][0]["text"])
    assert replies == [{"jsonrpc": "2.0", "id": "q1", "result": {"action": "accept"}}]
    # No question waits for a second reply.
    assert client.post(result(question["id"], action="decline")).status_code == 202


def test_the_gateway_declines_questions_that_the_client_cannot_answer(world: World) -> None:
    sampling = request("q2", "sampling/createMessage", messages=[])
    ping = {"jsonrpc": "2.0", "id": "q3", "method": "ping"}
    world.member(behaviours={"tools/call": ask_questions(ELICITATION, sampling, ping)})
    client = world.agent()
    for response in (client.begin().send("tools/call", name="notes__echo", arguments={}), modern_call(world.agent())):
        replies = json.loads(text_of(response))
        assert [reply.get("error", {}).get("code") for reply in replies] == [-32601, -32601, None]
        assert replies[2]["result"] == {}


def test_a_client_that_accepts_no_stream_gets_no_questions(world: World) -> None:
    world.member(behaviours={"tools/call": ask_questions(ELICITATION)}, timeout=5)
    client = world.agent().begin("2025-03-26", elicitation={})
    call = request(9, "tools/call", name="notes__echo", arguments={})
    response = client.post(call, Accept="application/json")
    assert json.loads(text_of(response))[0]["error"]["code"] == -32601
    batch_response = client.post([call])
    assert json.loads(text_of(batch_response))[0]["error"]["code"] == -32601


def test_a_modern_client_answers_with_its_second_request(world: World) -> None:
    member = world.member(behaviours={"tools/call": ask_questions(ELICITATION)})
    client = world.agent()
    meta = {f"{META}clientCapabilities": {"elicitation": {}}}
    first = modern_call(client, meta=meta).json()["result"]
    assert first["resultType"] == "input_required"
    assert first["inputRequests"] == {"question": {"method": "elicitation/create", "params": ELICITATION["params"]}}
    state = first["requestState"]
    # Without a reply the question comes again. Another state is unknown, and so are invalid replies.
    assert modern_call(client, meta=meta, requestState=state).json()["result"] == first
    assert error_of(modern_call(client, meta=meta, requestState="other"))[0] == -32602
    assert error_of(modern_call(client, meta=meta, requestState=["x"]))[0] == -32602
    assert error_of(modern_call(client, meta=meta, requestState=state, inputResponses=[]))[0] == -32602
    assert error_of(modern_call(client, meta=meta, requestState=state, inputResponses={"question": 1}))[0] == -32602
    replies = {"question": {"action": "accept"}}
    last = modern_call(client, meta=meta, requestState=state, inputResponses=replies)
    assert json.loads(text_of(last)) == [{"jsonrpc": "2.0", "id": "q1", "result": {"action": "accept"}}]
    assert error_of(modern_call(client, meta=meta, requestState=state, inputResponses=replies))[0] == -32602
    assert len(member.messages("tools/call")) == 1


def ask_with_state(incoming: MemberRequest) -> None:
    """A modern tool that asks, and returns the secret to every request that has its state."""
    params = incoming.message["params"]
    if "requestState" in params:
        incoming.result({"resultType": "complete", **text(f"{params['requestState']}: the secret")})
    else:
        input_requests = {"question": {"method": "elicitation/create", "params": {"message": "Sure?"}}}
        values = {
            "resultType": "input_required",
            "inputRequests": input_requests,
            "requestState": "state of the member",
        }
        if params["arguments"].get("streams"):
            incoming.stream(event(result(incoming.id, **values)))
            incoming.hang_up()
        else:
            incoming.result(values)


def ask_on_stream(incoming: MemberRequest) -> None:
    """A tool of a member with sessions, which asks on the stream of its response."""
    incoming.stream(event(ELICITATION))
    if "result" in reply_to(incoming, "q1"):
        incoming.stream(event(result(incoming.id, **text("the secret"))))
    incoming.hang_up()


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("kind", ["modern", "with sessions"])
def test_a_request_state_works_only_for_its_client_and_its_request(world: World, kind: str, streams: bool) -> None:
    """For a member all clients are one client, the hall. So the gateway must check which client sends a state."""
    behaviours = {**MODERN, "tools/call": ask_with_state} if kind == "modern" else {"tools/call": ask_on_stream}
    echo = {"inputSchema": {"type": "object"}}
    member = world.member("notes", behaviours, tools=[{"name": "echo", **echo}, {"name": "other", **echo}])
    other_member = world.member("elsewhere", behaviours)
    user = User.objects.create_superuser("olga")
    token, meta = make_token(user), {f"{META}clientCapabilities": {"elicitation": {}}}
    owner, arguments = world.agent(token=token), {"streams": streams}
    first = messages_of(modern_call(owner, arguments=arguments, meta=meta))[-1]["result"]
    assert first["resultType"] == "input_required"
    params = {"requestState": first["requestState"], "inputResponses": {"question": {"action": "accept"}}, "meta": meta}
    responses = {
        "another user": modern_call(world.agent(), arguments=arguments, **params),
        "another token of the user": modern_call(world.agent(token=make_token(user)), arguments=arguments, **params),
        "other arguments": modern_call(owner, arguments={**arguments, "x": 1}, **params),
        "another tool": modern_call(owner, "notes__other", arguments=arguments, **params),
        "another member": modern_call(owner, "elsewhere__echo", arguments=arguments, **params),
        "another path": modern_call(world.agent("/mcp/notes", token), "echo", arguments=arguments, **params),
        "a path with fewer members": modern_call(
            world.agent("/mcp?members=notes", token), arguments=arguments, **params
        ),
        "another state": modern_call(owner, arguments=arguments, **{**params, "requestState": "state of the member"}),
        "a lone surrogate": modern_call(owner, arguments=arguments, **{**params, "requestState": "\ud800.state"}),
        "no string": modern_call(owner, arguments=arguments, **{**params, "requestState": ["x"]}),
    }
    session = world.agent().begin(elicitation={})
    responses["a session"] = session.send("tools/call", name="notes__echo", arguments=arguments, **params)
    for case, response in responses.items():
        assert messages_of(response)[-1].get("error", {}).get("code") == -32602, (case, response.text)
        assert "secret" not in response.text, case
    assert (len(member.messages("tools/call")), other_member.messages("tools/call")) == (1, [])
    assert "the secret" in text_of(modern_call(owner, arguments=arguments, **params))
    if kind == "modern":
        assert member.messages("tools/call")[1]["params"]["requestState"] == "state of the member"


@pytest.mark.parametrize(
    "key", ["requeststate", "RequestState", "request_state", "reque\u017ftState", "inputresponses", "input_responses"]
)
def test_a_request_state_under_a_misspelled_key_is_refused(world: World, key: str) -> None:
    member = world.member("notes", MODERN)
    name = "inputResponses" if key.startswith("in") else "requestState"
    error = (-32602, f"the key {name} must be spelled exactly so and occur once")
    for path, tool in (("/mcp", "notes__echo"), ("/mcp/notes", "echo")):
        client, session = world.agent(path), world.agent(path).begin(elicitation={})
        call_params = {"name": tool, "arguments": {}, key: "state of the member"}
        assert error_of(client.modern("tools/call", **call_params)) == error
        assert error_of(session.send("tools/call", **call_params)) == error
    for method, params in (("prompts/get", {"name": "x"}), ("resources/read", {"uri": "x:"})):
        assert error_of(client.modern(method, **params, **{key: "state of the member"})) == error
        assert member.messages(method) == []
    assert member.messages("tools/call") == []


@pytest.mark.parametrize("params", [{"requestState": "state of the member"}, {"inputResponses": {}}])
def test_a_session_cannot_send_a_request_state_to_a_member_of_both_eras(world: World, params: dict[str, Any]) -> None:
    member = world.member("notes", {"server/discover": MODERN["server/discover"], "tools/call": ask_with_state})
    meta = {f"{META}clientCapabilities": {"elicitation": {}}}
    first = modern_call(world.agent(), meta=meta).json()["result"]
    assert first["requestState"].endswith(".state of the member")
    session = world.agent(token=make_token(User.objects.create_superuser("olga"))).begin(elicitation={})
    response = session.send("tools/call", name="notes__echo", arguments={}, **params)
    assert error_of(response) == (
        -32602,
        f"{min(params)} does not exist in sessions: a session gets questions on a stream",
    )
    assert len(member.messages("tools/call")) == 1


@pytest.mark.parametrize("kind", ["modern", "with sessions"])
def test_large_arguments_are_hashed_in_a_thread_and_not_in_the_event_loop(
    world: World, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash is the same if the keys of the maps come in another order."""
    threads: list[str] = []

    def recording_sha256(data: bytes = b"") -> Any:
        if len(data) > envelope.MAX_SMALL:
            threads.append(threading.current_thread().name)
        return sha256(data)

    sha256 = hashlib.sha256
    behaviours = {**MODERN, "tools/call": ask_with_state} if kind == "modern" else {"tools/call": ask_on_stream}
    world.member("notes", behaviours)
    client, meta = world.agent(), {f"{META}clientCapabilities": {"elicitation": {}}}
    arguments = {"text": "x" * envelope.MAX_SMALL, "half": "\ud800", "map": {"a": 1, "b": {"c": 2, "d": 3}}}
    for changes in ({}, {"half": "whole"}):
        monkeypatch.setattr(hashlib, "sha256", recording_sha256)
        first = messages_of(modern_call(client, arguments=arguments | changes, meta=meta))[-1]["result"]
        reordered = {
            "map": {"b": {"d": 3, "c": 2}, "a": 1},
            **{key: arguments[key] for key in ("half", "text")},
            **changes,
        }
        replies = {"question": {"action": "accept"}}
        state = first["requestState"]
        response = modern_call(client, arguments=reordered, requestState=state, inputResponses=replies, meta=meta)
        monkeypatch.undo()
        assert "the secret" in text_of(response)
    assert len(threads) >= 4
    assert {name.rpartition("_")[0] for name in threads} == {"gateway-reader"}


def test_a_request_state_and_a_task_id_have_a_maximum_length(world: World) -> None:
    states = ["x" * (envelope.MAX_SMALL - 2), "x" * envelope.MAX_SMALL]
    input_requests = {"question": {"method": "elicitation/create", "params": {"message": "Sure?"}}}

    def call(incoming: MemberRequest) -> None:
        if "requestState" in incoming.message["params"]:
            incoming.result({"resultType": "complete", **text("done")})
        else:
            incoming.result(
                {"resultType": "input_required", "inputRequests": input_requests, "requestState": states.pop(0)}
            )

    member = world.member("notes", {**MODERN, "tools/call": call})
    client, meta = world.agent(), {f"{META}clientCapabilities": {"elicitation": {}}}
    state = modern_call(client, meta=meta).json()["result"]["requestState"]
    assert text_of(modern_call(client, meta=meta, requestState=state)) == "done"
    too_long = (-32602, "a requestState or taskId may have 65,601 characters")
    assert error_of(modern_call(client, meta=meta, requestState="x" * 65_602)) == too_long
    member_client = world.agent("/mcp/notes")
    assert error_of(member_client.modern("tasks/get", taskId="x" * 65_602)) == too_long
    assert "a requestState of more than 65,536 bytes" in error_of(modern_call(client, meta=meta))[1]
    assert len(member.messages("tools/call")) == 3


def test_a_suspended_stream_closes_if_the_client_disconnects_in_the_second_round(world: World) -> None:
    end_of_stream = threading.Event()

    def call(incoming: MemberRequest) -> None:
        incoming.stream(event(ELICITATION))
        try:
            incoming.hang()
        finally:
            end_of_stream.set()

    member = world.member(behaviours={"tools/call": call, "reply": lambda incoming: incoming.hang()})
    client = world.agent()
    meta = {f"{META}clientCapabilities": {"elicitation": {}}}
    state = modern_call(client, meta=meta).json()["result"]["requestState"]
    replies = {"question": {"action": "accept"}}
    options = {"name": "notes__echo", "arguments": {}, "requestState": state, "inputResponses": replies, "meta": meta}
    message, headers = client.modern_message("tools/call", **options)
    connection = client.send_only(message, **headers)
    eventually(lambda: member.messages("reply"))
    assert not end_of_stream.is_set()
    connection.close()
    assert end_of_stream.wait(5)
    eventually(lambda: member.messages("notifications/cancelled"))


def test_a_question_that_nobody_answers_in_time_ends_the_call_at_the_member(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_runtime.gateway.upstream.suspended.QUESTION_SECONDS", 0.1)
    member = world.member(behaviours={"tools/call": ask_questions(ELICITATION)})
    meta = {f"{META}clientCapabilities": {"elicitation": {}}}
    assert modern_call(world.agent(), meta=meta).json()["result"]["resultType"] == "input_required"
    (cancellation,) = eventually(lambda: member.messages("notifications/cancelled"))  # type: ignore[misc]
    assert cancellation["params"] == {
        "requestId": member.messages("tools/call")[0]["id"],
        "reason": "the client did not answer",
    }


def test_a_call_fails_if_too_many_streams_are_suspended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_runtime.gateway.upstream.suspended.SUSPENDED_STREAM_BYTES", 17_000_000)
    member = world.member(behaviours={"tools/call": ask_questions(ELICITATION)})
    meta = {f"{META}clientCapabilities": {"elicitation": {}}}
    assert "too many suspended streams already wait" in error_of(modern_call(world.agent(), meta=meta))[1]
    eventually(lambda: member.messages("notifications/cancelled"))


def test_suspended_questions_of_one_user_have_a_limit_and_leave_room_for_others(
    world: World, monkeypatch: pytest.MonkeyPatch, django_user_model: type[User]
) -> None:
    monkeypatch.setattr("mcp_runtime.gateway.upstream.suspended.SUSPENDED_STREAM_BYTES", 0)
    budget = limits.ByteBudget(of_token=250_000, of_user=450_000, in_all=1_000_000)
    monkeypatch.setattr(limits, "bytes_of_suspended", lambda: budget)
    question = request("q1", "elicitation/create", message="x" * 100_000, requestedSchema={"type": "object"})
    world.member(behaviours={"tools/call": ask_questions(question)})
    meta = {f"{META}clientCapabilities": {"elicitation": {}}}
    user, other_user = (django_user_model.objects.create_superuser(name) for name in ("one", "other"))
    clients = [world.agent(token=make_token(user)) for _ in range(3)]
    states = [modern_call(client, meta=meta).json()["result"]["requestState"] for client in clients[:2]]
    for client in (clients[0], clients[2]):
        assert "too many suspended streams already wait" in error_of(modern_call(client, meta=meta))[1]
    assert modern_call(world.agent(token=make_token(other_user)), meta=meta).json()["result"]["requestState"]
    replies = {"question": {"action": "accept"}}
    assert text_of(modern_call(clients[0], meta=meta, requestState=states[0], inputResponses=replies))
    assert modern_call(clients[2], meta=meta).json()["result"]["requestState"]


def test_a_member_with_too_many_questions_gets_an_error_and_another_member_does_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "MAX_QUESTIONS", 2)

    def ask_three(incoming: MemberRequest) -> None:
        incoming.stream(*[event({**ELICITATION, "id": f"q{number}"}) for number in range(3)])
        replies = [reply_to(incoming, f"q{number}") for number in (2, 0, 1)]
        incoming.send(event(result(incoming.id, **text(json.dumps(replies)))))
        incoming.hang_up()

    world.member("greedy", {"tools/call": ask_three})
    world.member("modest", {"tools/call": ask_questions(ELICITATION)})
    client = world.agent().begin(elicitation={})
    call = request("c1", "tools/call", name="greedy__echo", arguments={})
    other_call = request("c2", "tools/call", name="modest__echo", arguments={})
    with client.stream(call) as greedy_stream, client.stream(other_call) as modest_stream:
        open_questions = [greedy_stream.until("elicitation/create") for _ in range(2)]
        open_questions.append(modest_stream.until("elicitation/create"))
        for number, question in enumerate(open_questions):
            assert client.post(result(question["id"], action=f"a{number}")).status_code == 202
        refusal, *replies = json.loads(greedy_stream.until("")["result"]["content"][0]["text"])
        assert refusal["error"]["message"] == "2 questions wait for an answer already"
        assert [reply["result"]["action"] for reply in replies] == ["a0", "a1"]
        (reply,) = json.loads(modest_stream.until("")["result"]["content"][0]["text"])
        assert reply["result"]["action"] == "a2"


def test_questions_outside_calls_time_out_and_make_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "MAX_QUESTIONS", 1)
    monkeypatch.setattr(questions, "QUESTION_SECONDS", -1.0)
    replies: list[Any] = []

    def ask(incoming: MemberRequest) -> None:
        incoming.stream(event({**ELICITATION, "id": "q0"}), event({**ELICITATION, "id": "q1"}))
        replies.append(reply_to(incoming, "q0"))
        incoming.hang()

    world.member(behaviours={"GET": ask})
    client = world.agent("/mcp/notes").begin(elicitation={})
    with client.listen() as stream:
        stream.until("elicitation/create")
        question = stream.until("elicitation/create")
        eventually(lambda: replies)
        assert replies[0]["error"]["message"] == "nobody answered"
        assert client.post(result(question["id"], action="accept")).status_code == 202


# Modern clients of members with sessions --------------------------------------------------------------------------


def test_a_modern_client_gets_progress_and_logs_of_the_level_that_it_requested(world: World) -> None:
    events = [
        event(notification("notifications/progress", progressToken=1, progress=1)),
        event(notification("notifications/message", level="debug", data="d")),
        event(notification("notifications/message", level="error", data="e")),
        event(notification("notifications/tools/list_changed")),
    ]
    world.member(behaviours={"tools/call": stream_and_respond(*events)})
    messages = messages_of(modern_call(world.agent(), meta={f"{META}logLevel": "warning"}))
    assert [message.get("params", {}).get("data") for message in messages] == [None, "e", None]
    assert [message.get("method") for message in messages] == ["notifications/progress", "notifications/message", None]
    assert [message.get("method") for message in messages_of(modern_call(world.agent()))] == [
        "notifications/progress",
        None,
    ]


def test_an_error_of_a_member_gets_the_code_and_status_of_the_clients_era(world: World) -> None:
    error = {"code": -32601, "message": "no"}

    def read(incoming: MemberRequest) -> None:
        if incoming.message["params"]["uri"] == "u:stream":
            incoming.stream(event({"jsonrpc": "2.0", "id": incoming.id, "error": error}))
            incoming.hang_up()
        incoming.error(-32002, "not there")

    world.member(behaviours={"resources/read": read})
    client = world.agent("/mcp/notes")
    response = client.modern("resources/read", uri="u:1")
    assert response.status_code == 200
    assert response.json()["error"] == {"code": -32602, "message": "not there", "data": {"uri": "u:1"}}
    assert client.modern("resources/read", uri="u:stream").status_code == 404
    message, headers = client.modern_message("resources/read", uri="u:stream")
    assert client.post(message, **headers, Accept="application/json").status_code == 404


# Modern members ---------------------------------------------------------------------------------------------------


def ask_in_rounds(*input_requests: dict[str, Any]) -> Any:
    """A modern tool that asks once for each of `input_requests`, and then returns the last replies as text."""

    def behave(incoming: MemberRequest) -> None:
        params = incoming.message["params"]
        round_number = int(params.get("requestState", "0"))
        if round_number < len(input_requests):
            values = {
                "resultType": "input_required",
                "inputRequests": input_requests[round_number],
                "requestState": str(round_number + 1),
            }
            incoming.result(values)
        else:
            incoming.result({"resultType": "complete", **text(json.dumps(params.get("inputResponses")))})

    return behave


def test_a_modern_member_asks_a_client_with_a_session_on_a_stream(world: World) -> None:
    input_requests = {"a": {"method": "elicitation/create", "params": {"message": "a?"}}, "b": {"method": "roots/list"}}
    member = world.member(behaviours={**MODERN, "tools/call": ask_in_rounds(input_requests, {})})
    client = world.agent().begin(elicitation={}, roots={})
    with client.stream(request(9, "tools/call", name="notes__echo", arguments={"x": 1})) as stream:
        question = stream.until("elicitation/create")
        assert question["params"] == {"message": "a?"}
        client.post(result(question["id"], action="accept"))
        client.post(result(stream.until("roots/list")["id"], roots=[]))
        response = stream.until("")
    assert response["id"] == 9
    assert "resultType" not in response["result"]
    calls = [message["params"] for message in member.messages("tools/call")]
    assert [(call.get("requestState"), call.get("inputResponses")) for call in calls] == [
        (None, None),
        ("1", {"a": {"action": "accept"}, "b": {"roots": []}}),
        ("2", None),
    ]
    assert calls[0]["_meta"][f"{META}clientCapabilities"] == {"elicitation": {}, "roots": {}}
    assert [call["arguments"] for call in calls] == [{"x": 1}] * 3


def test_a_refused_question_of_a_modern_member_fails_the_call(world: World) -> None:
    input_requests = {"a": {"method": "elicitation/create", "params": {}}}
    world.member(behaviours={**MODERN, "tools/call": ask_in_rounds(input_requests)})
    client = world.agent().begin(elicitation={})
    with client.stream(request(9, "tools/call", name="notes__echo", arguments={})) as stream:
        question = stream.until("elicitation/create")
        client.post({"jsonrpc": "2.0", "id": question["id"], "error": {"code": -1, "message": "not now"}})
        message = stream.until("")["error"]["message"]
    assert message.endswith("asked for input (elicitation/create) and got none: not now")


def test_a_call_fails_if_a_modern_member_asks_too_many_times(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modern, "MAX_ROUNDS", 3)
    member = world.member(behaviours={**MODERN, "tools/call": ask_in_rounds(*[{}] * 20)})
    response = world.agent().begin().send("tools/call", name="notes__echo", arguments={})
    assert error_of(response)[1].endswith("asked for input 3 times for one call")
    assert len(member.messages("tools/call")) == 4


def test_a_question_of_a_modern_member_fails_the_call_of_a_client_without_streams(world: World) -> None:
    world.member(behaviours={**MODERN, "tools/call": ask_in_rounds({"a": {"method": "roots/list"}})}, timeout=5)
    client = world.agent().begin(roots={})
    call = request(9, "tools/call", name="notes__echo", arguments={})
    assert "asked for input" in error_of(client.post(call, Accept="application/json"))[1]


def test_streams_of_modern_members_reach_clients_of_both_eras(world: World) -> None:
    progress = notification("notifications/progress", progressToken=1, progress=1)

    def call(incoming: MemberRequest) -> None:
        incoming.stream(
            event(progress),
            event(request("never", "roots/list")),  # a modern member cannot ask on a stream
            event(result(incoming.id, resultType="complete", **text("done"))),
        )
        incoming.hang_up()

    world.member(behaviours={**MODERN, "tools/call": call})
    session_messages = messages_of(world.agent().begin().send("tools/call", name="notes__echo", arguments={}))
    modern_messages = messages_of(modern_call(world.agent()))
    assert [session_messages[0], modern_messages[0]] == [progress, progress]
    assert [len(session_messages), len(modern_messages)] == [2, 2]
    assert session_messages[1]["result"] == text("done")
    assert modern_messages[1]["result"] == {"resultType": "complete", **text("done")}


def test_an_early_end_of_a_modern_members_stream_fails_the_call(world: World) -> None:
    def call(incoming: MemberRequest) -> None:
        incoming.stream(event(notification("notifications/progress", progressToken=1, progress=1)))
        incoming.hang_up()

    world.member(behaviours={**MODERN, "tools/call": call})
    assert "ended without the answer" in error_of(modern_call(world.agent()))[1]


def test_methods_that_only_sessions_have_do_not_reach_a_modern_member(world: World) -> None:
    member = world.member(behaviours=MODERN, capabilities={"tools": {}, "resources": {"subscribe": True}})
    client = world.agent("/mcp/notes").begin()
    assert client.ask("resources/subscribe", uri="u:1")["result"] == {}
    assert member.messages("resources/subscribe") == []


def test_the_gateway_repeats_arguments_in_headers_for_clients_with_sessions(world: World) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "City"}}}
    tools = [{"name": "echo", "inputSchema": schema}]
    member = world.member(behaviours=MODERN, tools=tools)
    world.agent().begin().call("notes__echo", city="Köln")
    tool_call = next(
        request for request in member.requests if request.body and request.message["method"] == "tools/call"
    )
    assert tool_call.headers["Mcp-Param-City"] == "=?base64?S8O2bG4=?="
    # A modern client sends the headers itself, and the member validates them.
    client = world.agent()
    message, headers = client.modern_message("tools/call", name="notes__echo", arguments={"city": "Rome"})
    client.post(message, **headers, Mcp_Param_City="Paris")
    assert member.requests[-1].headers["mcp-param-city"] == "Paris"


def test_the_gateway_validates_headers_for_a_member_with_sessions(world: World) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "City"}}}
    member = world.member(tools=[{"name": "echo", "inputSchema": schema}])
    client = world.agent()
    message, headers = client.modern_message("tools/call", name="notes__echo", arguments={"city": "Rome"})
    response = client.post(message, **headers, Mcp_Param_City="Paris")
    assert (response.status_code, response.json()["error"]["code"]) == (400, -32020)
    assert member.messages("tools/call") == []
    assert client.post(message, **headers, Mcp_Param_City="Rome").status_code == 200


# Invalid responses ------------------------------------------------------------------------------------------------

INVALID_RESPONSES: dict[str, tuple[Any, str]] = {
    "plain text": (
        lambda incoming: incoming.http(200, b"hi", kind="text/plain"),
        "answered with text/plain instead of JSON: 'hi'",
    ),
    "not JSON": (lambda incoming: incoming.http(200, b"{nope"), "the answer is not JSON"),
    "a response to another request": (
        lambda incoming: incoming.json(result("x")),
        "answered another request than this one; the call may have run",
    ),
    "an array": (lambda incoming: incoming.json([1]), "not a JSON-RPC 2.0 response to this request"),
    "no body": (lambda incoming: incoming.http(202), "answered with HTTP status 202"),
    "status 500": (
        lambda incoming: incoming.http(500, b"oops", kind="text/plain"),
        "answered with HTTP status 500: 'oops'",
    ),
    "a redirect": (lambda incoming: incoming.http(307, Location="http://x.example/"), "307, a redirect"),
    "not HTTP": (lambda incoming: incoming.send(b"SSH-2.0-x\r\n\r\n"), "did not respond with HTTP"),
    "a reset": (lambda incoming: incoming.reset(), "closed before the response was complete"),
    "half a response": (
        lambda incoming: (
            incoming.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"),
            incoming.hang_up(),
        ),
        "closed before the response was complete",
    ),
    "too large": (lambda incoming: incoming.http(200, b" " * 200_001), "larger than 200,000 bytes"),
    "too large on a stream": (
        lambda incoming: (incoming.stream(event(notification("n", x="y" * 1000)) * 250), incoming.hang_up()),
        "larger than 200,000 bytes",
    ),
    "an event without an end": (
        lambda incoming: (incoming.stream(b"data: " + b"y" * 201_000), incoming.hang_up()),
        "larger than 200,000 bytes",
    ),
}


@pytest.mark.parametrize("era", ["with sessions", "modern"])
def test_an_invalid_response_fails_the_call_with_an_error_that_names_the_member(world: World, era: str) -> None:
    errors: dict[str, Any] = {}
    member = world.member(behaviours=MODERN if era == "modern" else {})
    client = world.agent().begin()
    for case, (behave, _) in INVALID_RESPONSES.items():
        member.behaviours["tools/call"] = behave
        errors[case] = client.ask("tools/call", name="notes__echo", arguments={})["error"]
        world.live[member.row.pk] = member.live
    for case, (_, expected) in INVALID_RESPONSES.items():
        assert expected in errors[case]["message"], case
        assert errors[case]["message"].startswith("tool 'echo' of member 'notes': "), case
        assert errors[case]["data"]["member"] == "notes", case


@pytest.mark.parametrize("era", ["with sessions", "modern"])
def test_a_response_inside_an_array_reaches_the_client(world: World, era: str) -> None:
    def call(incoming: MemberRequest) -> None:
        incoming.json([notification("n"), result(incoming.id, **text("in an array"))])

    world.member(behaviours={**(MODERN if era == "modern" else {}), "tools/call": call})
    assert world.agent().begin().text("notes__echo") == "in an array"
    assert text_of(modern_call(world.agent())) == "in an array"
    assert [call.status for call in world.calls(2)] == ["succeeded", "succeeded"]


def test_an_error_without_an_id_is_the_response(world: World) -> None:
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "what?"}}
    world.member(behaviours={"tools/call": lambda incoming: incoming.json(body, 400)})
    response = world.agent().begin().ask("tools/call", name="notes__echo", arguments={})
    assert response["id"] == 2
    assert response["error"] == {"code": -32600, "message": "what?"}


def test_a_large_result_passes_word_for_word(world: World) -> None:
    body = b'{"jsonrpc":"2.0","id":%b,"result":{"content":[], "x":"' + b"y" * 100_000 + b'"}}'
    world.member(behaviours={"tools/call": lambda incoming: incoming.http(200, body % json_id(incoming))})
    response = world.agent().begin().send("tools/call", name="notes__echo", arguments={})
    assert response.content == body % b"2"
    world.member("other", {**MODERN, "tools/call": lambda incoming: incoming.http(200, body % json_id(incoming))})
    eventually(lambda: "other__echo" in world.agent().begin().tools())
    assert modern_call(world.agent(), "other__echo").content == body % b"1"


def test_a_large_response_to_another_request_fails_the_call(world: World) -> None:
    body = b'{"jsonrpc":"2.0","id":"x","result":{"x":"' + b"y" * 100_000 + b'"}}'
    world.member(behaviours={"tools/call": lambda incoming: incoming.http(200, body)})
    message = error_of(world.agent().begin().send("tools/call", name="notes__echo", arguments={}))[1]
    assert "answered another request" in message


FILLING = '"' + "y" * 100_000 + '"'
FORGERIES = {
    "wrong id at the top, right id inside": '{"jsonrpc":"2.0","id":"x","result":{"id":%s,"x":FILLING}}',
    "right id in a string": '{"jsonrpc":"2.0","id":"x","result":{"x":FILLING,"t":"\\"id\\":%s,"}}',
    "a question": '{"jsonrpc":"2.0","id":%s,"method":"sampling/createMessage","params":{"x":FILLING}}',
    "a notification": '{"jsonrpc":"2.0","method":"notifications/message","params":{"id":%s,"x":FILLING}}',
    "not JSON": '{"jsonrpc":"2.0","id":%s,"result":{"x":FILLING}} and more',
    "not UTF-8": '{"jsonrpc":"2.0","id":%s,"result":{"x":FILLING,"y":"\xff"}}',
    "two ids": '{"jsonrpc":"2.0","id":%s,"result":{"x":FILLING},"id":"x"}',
    "two results": '{"jsonrpc":"2.0","id":%s,"result":{"x":FILLING},"result":{}}',
    "nested too deep": '{"jsonrpc":"2.0","id":%s,"result":{"x":FILLING,"y":' + "[" * 40_000 + "]" * 40_000 + "}}",
}


@pytest.mark.parametrize("era", ["with sessions", "modern"])
@pytest.mark.parametrize("forgery", FORGERIES)
def test_large_responses_are_validated_like_small_ones(world: World, forgery: str, era: str) -> None:
    def call(incoming: MemberRequest) -> None:
        body = FORGERIES[forgery].replace("FILLING", FILLING) % json_id(incoming).decode()
        incoming.http(200, body.encode("latin-1"))

    member = world.member(behaviours={**(MODERN if era == "modern" else {}), "tools/call": call})
    for response in (
        world.agent().begin().send("tools/call", name="notes__echo", arguments={}),
        modern_call(world.agent()),
    ):
        (message,) = messages_of(response)
        assert message["error"]["data"]["member"] == "notes"
        assert "y" * 1000 not in response.text
    assert world.failures == []
    assert member.live.relayed_calls == 0


def repeat_first_response(*, repeat: Callable[[MemberRequest], None]) -> Any:
    """A tool that responds to its first call again when the second call comes on the same connection."""
    first_call: list[MemberRequest] = []

    def behave(incoming: MemberRequest) -> None:
        if not first_call:
            first_call.append(incoming)
            incoming.result(text("for the first"))
            return
        if incoming.connection == first_call[0].connection:
            repeat(first_call[0])
        incoming.result(text("for the second"))

    return behave


def repeat_result(first_call: MemberRequest) -> None:
    first_call.result(text("for the first, again"))


def repeat_on_stream(first_call: MemberRequest) -> None:
    log = notification("notifications/message", level="info", data="of the first")
    body = event(log) + event(result(first_call.id, **text("for the first, again")))
    first_call.http(200, body, kind="text/event-stream")


@pytest.mark.parametrize("repeat", [repeat_result, repeat_on_stream])
def test_a_repeated_response_reaches_no_other_token(world: World, repeat: Any) -> None:
    world.member(behaviours={"tools/call": repeat_first_response(repeat=repeat)})
    first, second = (world.agent(token=make_token(User.objects.create_superuser(name))).begin() for name in ("a", "b"))
    assert first.text("notes__echo") == "for the first"
    assert second.text("notes__echo") == "for the second"
    assert world.failures == []


def test_a_repeated_response_fails_the_tokens_next_call_but_not_the_member(world: World) -> None:
    world.member(behaviours={"tools/call": repeat_first_response(repeat=repeat_result)})
    client = world.agent().begin()
    assert client.text("notes__echo") == "for the first"
    error = client.ask("tools/call", name="notes__echo", arguments={})["error"]
    assert error["data"] == {"member": "notes", "kind": "transport"}
    assert error["message"].endswith("answered another request than this one; the call may have run")
    assert client.text("notes__echo") == "for the second"
    assert [call.error_kind for call in world.calls(3)] == ["", "transport", ""]
    assert world.failures == []


def test_all_requests_to_a_member_have_different_ids(world: World) -> None:
    member = world.member()
    for _ in range(2):
        client = world.agent().begin()
        for _ in range(2):
            second_client = GatewayClient(world, None)  # type: ignore[arg-type]
            second_client.http.headers.update(client.http.headers)
            assert second_client.post(request(5, "tools/call", name="notes__echo", arguments={})).json()["id"] == 5
        assert modern_call(world.agent()).status_code == 200
    ids = [message["id"] for message in member.messages("tools/call")]
    assert len(set(ids)) == len(ids) == 6
    assert 5 not in ids


def test_a_failed_handshake_fails_the_call_and_is_tried_again_with_the_next_call(world: World) -> None:
    member = world.member()
    client = world.agent().begin()
    behaviours = {
        "answered with HTTP status 500": lambda incoming: incoming.http(500),
        "with protocol version '1999'": lambda incoming: incoming.result({"protocolVersion": "1999"}),
        "the event stream ended without the answer": lambda incoming: (incoming.stream(), incoming.hang_up()),
        "no complete answer within 0.2 s": lambda incoming: incoming.hang(),
        "no complete answer within 0.2": lambda incoming: (incoming.stream(), incoming.hang()),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mcp_runtime.gateway.upstream.sessions.INITIALIZE_TIMEOUT", 0.2)
        for expected, behave in behaviours.items():
            member.behaviours["initialize"] = behave
            error = client.ask("tools/call", name="notes__echo", arguments={})["error"]
            assert expected in error["message"]
            assert error["data"]["member"] == "notes"
    member.behaviours["initialize"] = with_session
    assert client.text("notes__echo") == "{}"
    assert [call.status for call in world.calls(6)] == ["failed"] * 5 + ["succeeded"]
    # One connection is for the next call, and one is that of the hall's own client.
    eventually(lambda: connections_to(member) <= 2, what="no response is left open")


def connections_to(member: Member) -> int:
    """The number of connections of this process, which contains the gateway, to a member."""
    port = urlsplit(member.server.url).port
    connections = psutil.Process().net_connections("tcp")
    return sum(
        1
        for connection in connections
        if connection.raddr and connection.raddr.port == port and connection.status == "ESTABLISHED"
    )


class CountingDecoder:
    """A decoder that counts the large values which it builds in the gateway's event loop."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self.large = 0

    def decode(self, data: Any) -> Any:
        if threading.current_thread().name == "gateway" and memoryview(data).nbytes > envelope.MAX_SMALL:
            self.large += 1
        return self._decoder.decode(data)


@pytest.fixture
def decoders(monkeypatch: pytest.MonkeyPatch) -> list[CountingDecoder]:
    counters = [CountingDecoder(envelope.OBJECTS), CountingDecoder(envelope.LISTS)]
    monkeypatch.setattr(envelope, "OBJECTS", counters[0])
    monkeypatch.setattr(envelope, "LISTS", counters[1])
    return counters


@pytest.mark.parametrize("is_stream", [False, True], ids=["as JSON", "on a stream"])
@pytest.mark.parametrize("era_behaviours", [{}, MODERN], ids=["sessions", "modern"])
def test_the_event_loop_decodes_no_large_response(
    world: World, decoders: list[CountingDecoder], era_behaviours: dict[str, Any], is_stream: bool
) -> None:
    filling = "y" * (envelope.MAX_SMALL + 1)
    values = {"content": [], "structuredContent": [], "x": filling, "_meta": {f"{META}x": 1, "x": filling}}
    log = notification("notifications/message", level="error", data=filling, _meta={})

    def call(incoming: MemberRequest) -> None:
        if is_stream:
            incoming.stream(event(log), event(result(incoming.id, **values)))
            incoming.hang_up()
        incoming.result(values)

    def fail(incoming: MemberRequest) -> None:
        incoming.error(-32002 if not era_behaviours else -32602, "no such thing", data={"uri": "x:1", "x": filling})

    def list_prompts(incoming: MemberRequest) -> None:
        incoming.result({"prompts": [{"name": "a", "icons": [{"src": filling}]}]})

    behaviours = {**era_behaviours, "tools/call": call, "resources/read": fail, "prompts/list": list_prompts}
    roster_client = world.agent()
    world.member(behaviours=behaviours, capabilities=ALL)
    roster_client.begin()
    (session_message,) = messages_of(roster_client.send("tools/call", name="notes__echo", arguments={}))[-1:]
    (modern_message,) = messages_of(modern_call(world.agent(), meta={f"{META}logLevel": "error"}))[-1:]
    assert session_message["result"]["x"] == modern_message["result"]["x"] == filling
    assert era_behaviours or modern_message["result"]["resultType"] == "complete"
    assert ("structuredContent" in session_message["result"]) is not bool(era_behaviours)
    for member_client in (world.agent("/mcp/notes").begin(), world.agent("/mcp/notes")):
        send = (
            member_client.send
            if member_client is not None and "Mcp-Session-Id" in member_client.http.headers
            else member_client.modern
        )
        assert messages_of(send("resources/read", uri="x:1"))[-1]["error"]["message"] == "no such thing"
    eventually(lambda: world.agent().begin().ask("prompts/list")["result"]["prompts"])
    assert [decoder.large for decoder in decoders] == [0, 0]


def test_a_result_with_too_many_keys_fails_a_call_from_the_other_era(world: World) -> None:
    values = {f"k{number}": "y" * 40 for number in range(2_000)}
    world.member(behaviours={"tools/call": lambda incoming: incoming.result({"content": [], **values})})
    assert len(world.agent().begin().call("notes__echo")["result"]) == 2_001
    assert "more than 1,000 keys" in error_of(modern_call(world.agent()))[1]
    assert [call.status for call in world.calls(2)] == ["succeeded", "failed"]

"""One request to one member, and everything that comes back: of every kind of member, for both eras of clients."""

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
from tests.support.scripted_server import Request as Asked


def said(response: Any) -> str:
    return str(messages_of(response)[-1]["result"]["content"][0]["text"])


def failure(response: Any) -> tuple[int, str]:
    error = messages_of(response)[-1]["error"]
    return error["code"], error["message"]


def modern_call(agent: GatewayClient, tool: str = "notes__echo", **more: Any) -> Any:
    return agent.modern("tools/call", name=tool, **{"arguments": {}, **more})


def streaming(*events: bytes) -> Any:
    """A stream of these events, then the answer."""

    def behave(asked: Asked) -> None:
        asked.stream(*events, event(result(asked.id, **text("done"))))
        asked.hang_up()

    return behave


# Members with sessions, clients with sessions ---------------------------------------------------------------------


def as_json(asked: Asked) -> bytes:
    """The id of a request, as it stands in its answer."""
    return json.dumps(asked.id).encode()


def test_a_result_passes_word_for_word_under_the_id_of_its_client(world: World) -> None:
    result = b'{"content":[] ,"x":1.50,"_meta":{"a":"\\u00e9"}}'
    odd = b'{ "jsonrpc":"2.0","result":%b , "x": 1, "id":%b}'
    world.member(behaviours={"tools/call": lambda asked: asked.http(200, odd % (result, as_json(asked)))})
    agent = world.agent().begin()
    response = agent.send("tools/call", name="notes__echo", arguments={})
    assert response.content == b'{"jsonrpc":"2.0","id":2,"result":%b}' % result


@pytest.mark.parametrize("path", ["/mcp", "/mcp/notes"])
@pytest.mark.parametrize("more", [{}, MODERN], ids=["sessions", "modern"])
def test_text_that_no_database_takes_passes_both_ways_and_is_replaced_in_the_record_alone(
    world: World, path: str, more: dict[str, Any]
) -> None:
    odd = {"text": "a\0b", "k\0": "\ud800", "literal": "\\u0000"}
    told = {"text": "a\0b", "k\0": "\ud800"}

    def answer(asked: Asked) -> None:
        asked.result({"resultType": "complete", "content": [], "structuredContent": told})

    member = world.member(behaviours={**more, "tools/call": answer})
    name = "notes__echo" if path == "/mcp" else "echo"
    old, new = world.agent(path).begin(), world.agent(path)
    for response in (
        old.send("tools/call", name=name, arguments=odd),
        new.modern("tools/call", name=name, arguments=odd),
    ):
        assert messages_of(response)[-1]["result"]["structuredContent"] == {"text": "a\0b", "k\0": "\ufffd"}
    assert [message["params"]["arguments"] for message in member.messages("tools/call")] == [odd, odd]
    for row in world.calls(2):
        assert row.arguments == {"text": "a\ufffdb", "k\ufffd": "\ufffd", "literal": "\\u0000"}
        assert row.result is not None
        assert row.result["structuredContent"] == {"text": "a\ufffdb", "k\ufffd": "\ufffd"}


def test_a_request_under_an_odd_id_gets_its_answer(world: World) -> None:
    world.member()
    agent = world.agent().begin()
    for odd in ("a\0b", "\ud800", ""):
        told = agent.post(request(odd, "tools/call", name="notes__echo", arguments={})).json()
        assert (told["id"], told["result"]) == (odd, text("{}"))


def test_what_comes_before_the_answer_passes_with_ids_to_go_on_from(world: World) -> None:
    progress = notification("notifications/progress", progressToken=1, progress=0.5)
    world.member(behaviours={"tools/call": streaming(event(progress, "7"))})
    response = world.agent().begin().send("tools/call", name="notes__echo", arguments={})
    first, last, rest = response.content.split(b"\n\n")
    assert first.splitlines() == [b"id: notes/7", b"data: " + json.dumps(progress).encode()]
    assert last.startswith(b"id: notes/7\ndata: ")
    assert said(response) == "done"
    assert rest == b""


def test_an_answer_to_another_request_on_a_stream_fails_the_call_and_is_not_passed(world: World) -> None:
    world.member(behaviours={"tools/call": streaming(event(result(999, **text("stray"))))})
    response = world.agent().begin().send("tools/call", name="notes__echo", arguments={})
    (message,) = messages_of(response)
    assert (message["id"], message["error"]["data"]) == (2, {"member": "notes", "kind": "transport"})
    assert "the call may have run" in message["error"]["message"]


def test_a_stream_that_ends_early_is_resumed_by_its_caller(world: World) -> None:
    def begin(asked: Asked) -> None:
        asked.stream(event(None, "41", retry=50))
        asked.hang_up()

    def go_on(asked: Asked) -> None:
        (call,) = member.messages("tools/call")
        asked.stream(event(result(call["id"], **text("from " + asked.headers["Last-Event-ID"])), "42"))
        asked.hang_up()

    member = world.member(behaviours={"tools/call": begin, "GET": go_on})
    agent = world.agent().begin()
    response = agent.send("tools/call", name="notes__echo", arguments={})
    assert response.content == b"id: notes/41\nretry: 50\ndata:\n\n"
    rest = agent.http.get(agent.url, headers={"Last-Event-ID": "notes/41"}, timeout=10)
    assert b"id: notes/42\n" in rest.content
    assert said(rest) == "from 41"
    assert len(member.messages("tools/call")) == 1


@pytest.mark.parametrize("method", ["tools/call", "tools/list"])
def test_an_answer_that_its_caller_asks_for_once_more_is_the_same(world: World, method: str) -> None:
    """With the seal of a task in it, and without the tools that are disabled."""
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("echo", "off")]
    answers: list[bytes] = []

    def answering(asked: Asked) -> None:
        own = {"task": {"taskId": "t1", "status": "working"}} if method == "tools/call" else {"tools": tools}
        answers.append(event(result(asked.id, **own), "e2"))
        asked.stream(event(None, "e1", 10), answers[-1])
        asked.hang_up()

    def again(asked: Asked) -> None:
        if not asked.headers.get("Last-Event-ID"):
            asked.http(405)
            return
        asked.stream(answers[-1])
        asked.hang_up()

    world.member("notes", {method: answering, "GET": again}, tools=tools)
    Tool.objects.filter(name="off").update(enabled=False)
    agent = world.agent("/mcp/notes").begin("2025-11-25")
    first = messages_of(agent.send(method, **({"name": "echo", "task": {}} if method == "tools/call" else {})))[-1]
    with agent.http.get(agent.url, headers={"Last-Event-ID": "notes/e1"}, timeout=10, stream=True) as response:
        lines = response.iter_lines()
        data = next(line for line in lines if line.startswith(b"data:") and b"{" in line)
    assert json.loads(data.partition(b":")[2]) == first
    assert b'"t1"' not in data
    assert b'"off"' not in data


@pytest.mark.parametrize("size", [100, answer_streams.MAX_RESUMABLE_REQUEST])
def test_a_session_keeps_no_large_request_for_an_answer_that_may_be_asked_for_once_more(
    world: World, size: int
) -> None:
    answers: list[bytes] = []

    def answering(asked: Asked) -> None:
        answers.append(event(result(asked.id, contents=[]), "e2"))
        asked.stream(event(None, "e1", 10), answers[-1])
        asked.hang_up()

    def again(asked: Asked) -> None:
        asked.stream(event(notification("notifications/message", level="info", data="x")), *answers)
        asked.hang_up()

    world.member("notes", {"resources/read": answering, "GET": again})
    agent = world.agent("/mcp/notes").begin()
    assert messages_of(agent.send("resources/read", uri="x" * size))[-1]["result"] == {"contents": []}
    with agent.http.get(agent.url, headers={"Last-Event-ID": "notes/e1"}, timeout=10) as response:
        told = [one.get("method", "the answer") for one in messages_of(response)]
    assert told == ["notifications/message", "the answer"][: 1 if size == answer_streams.MAX_RESUMABLE_REQUEST else 2]


def test_a_stream_that_ends_early_is_gone_on_with_for_a_modern_caller(world: World) -> None:
    def begin(asked: Asked) -> None:
        asked.stream(event(notification("notifications/progress", progressToken=1, progress=1), "1", retry=1))
        asked.hang_up()

    def go_on(asked: Asked) -> None:
        if "Last-Event-ID" not in asked.headers:
            asked.http(405)
            return
        if asked.headers["Last-Event-ID"] == "1":
            asked.stream(event(None, "2"))
        else:
            begun = asked.server.behaviours["asked"]
            asked.stream(event(result(begun, **text("at last"))))
        asked.hang_up()

    def call(asked: Asked) -> None:
        asked.server.behaviours["asked"] = asked.id
        begin(asked)

    world.member(behaviours={"tools/call": call, "GET": go_on})
    response = modern_call(world.agent())
    assert said(response) == "at last"
    assert messages_of(response)[0]["method"] == "notifications/progress"


def test_a_stream_that_ends_without_the_answer_fails_the_call_by_name(world: World) -> None:
    def end(asked: Asked) -> None:
        asked.stream(event(notification("notifications/message", level="info", data=1)))
        asked.hang_up()

    world.member(behaviours={"tools/call": end})
    old = world.agent().begin().send("tools/call", name="notes__echo", arguments={})
    for response in (old, modern_call(world.agent())):
        error = messages_of(response)[-1]["error"]
        assert error["code"] == -32603
        assert error["message"] == "tool 'echo' of member 'notes': the event stream ended without the answer"
        assert error["data"] == {"member": "notes", "kind": "protocol"}
    assert [call.error_kind for call in world.calls(2)] == ["protocol", "protocol"]


def test_a_member_that_ends_early_again_and_again_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_streams, "RESUMES", 3)

    def end(asked: Asked) -> None:
        asked.stream(event(None, "1", retry=1))
        asked.hang_up()

    member = world.member(behaviours={"tools/call": end, "GET": end})
    assert "ended without the answer, 3 times" in failure(modern_call(world.agent()))[1]
    assert len([one for one in member.requests if "Last-Event-ID" in one.headers]) == 3


def test_after_the_member_forgot_a_session_a_new_one_begins_and_the_call_runs_once(world: World) -> None:
    def call(asked: Asked) -> None:
        if asked.headers.get("Mcp-Session-Id") == "s2":
            asked.http(404)
        else:
            asked.result(text(asked.headers["Mcp-Session-Id"]))

    member = world.member(behaviours={"tools/call": call, "ping": call})
    agent = world.agent().begin()
    assert agent.text("notes__echo") == "s3"
    assert agent.text("notes__echo") == "s3"
    assert len(member.messages("initialize")) == 3  # the hall's own, the forgotten one, the new one


def test_a_member_that_forgets_every_session_fails_the_call(world: World) -> None:
    def gone(asked: Asked) -> None:
        asked.http(404, b"gone", kind="text/plain")

    member = world.member(behaviours={"tools/call": gone, "ping": gone})
    code, message = failure(world.agent().begin().send("tools/call", name="notes__echo", arguments={}))
    assert (code, message) == (-32603, "tool 'echo' of member 'notes': answered with HTTP status 404: 'gone'")
    assert len(member.messages("tools/call")) == 2


def test_a_late_answer_to_an_earlier_call_has_no_call_made_twice(world: World) -> None:
    """It says 404, as of a session that is over, and the member has begun with the next call when it comes."""
    ran: list[int] = []

    def call(asked: Asked) -> None:
        ran.append(asked.connection)
        if len(ran) == 2:
            asked.http(404)
        asked.result(text("done"))

    member = world.member(behaviours={"tools/call": call})
    agent = world.agent().begin()
    assert agent.text("notes__echo") == "done"
    response = agent.send("tools/call", name="notes__echo", arguments={})
    assert len(ran) == 2
    assert ran[0] == ran[1]
    assert "answered with HTTP status 404" in failure(response)[1]
    assert world.calls(2)[1].error_kind == "transport"
    # It may have begun, and nobody waits for it.
    eventually(lambda: member.messages("notifications/cancelled"))
    told = member.messages("notifications/cancelled")[0]["params"]["requestId"]
    assert told == member.messages("tools/call")[1]["id"]
    assert agent.text("notes__echo") == "done"


@pytest.mark.parametrize("is_first", [True, False])
def test_an_error_under_404_is_the_answer_where_it_is_to_this_request(world: World, is_first: bool) -> None:
    def call(asked: Asked) -> None:
        if asked.message["params"]["arguments"]:
            asked.error(-32601, "no such thing", status=404, data={"x": 1})
        else:
            asked.result(text("done"))
            if is_first:
                asked.hang_up()  # the next one comes on a connection of its own

    member = world.member(behaviours={"tools/call": call, "ping": lambda asked: asked.result({})})
    agent = world.agent().begin()
    assert agent.text("notes__echo") == "done"
    if is_first:
        eventually(lambda: connections_to(member) <= 1, what="the gateway heard that its connection is closed")
    error = agent.call("notes__echo", x=1)["error"]
    assert error == {"code": -32601, "message": "no such thing", "data": {"x": 1}}
    assert failure(modern_call(world.agent(), arguments={"x": 1}))[1] == "no such thing"
    assert len(member.messages("tools/call")) == 3


def test_a_new_session_begins_also_if_the_member_reports_the_forgotten_one_by_its_id(world: World) -> None:
    def call(asked: Asked) -> None:
        if asked.headers.get("Mcp-Session-Id") == "s2":
            asked.error(-32001, "Session not found", status=404)
        else:
            asked.result(text(asked.headers["Mcp-Session-Id"]))

    world.member(behaviours={"tools/call": call, "ping": call})
    assert world.agent().begin().text("notes__echo") == "s3"


def test_one_id_used_twice_at_a_time_gets_each_its_own_answer(world: World) -> None:
    both = threading.Barrier(2, timeout=10)

    def call(asked: Asked) -> None:
        both.wait()
        asked.result(asked.message["params"])

    member = world.member(behaviours={"tools/call": call})
    agent = world.agent().begin()
    assert agent.ask("ping")["result"] == {}

    def call_as_five(which: str) -> Any:
        other = GatewayClient(world, None)
        other.http.headers.update(agent.http.headers)
        return other.post(request(5, "tools/call", name="notes__echo", arguments={"which": which})).json()

    with in_background(lambda: call_as_five("a")) as first, in_background(lambda: call_as_five("b")) as second:
        pass
    told = [first[0], second[0]]
    assert [one["id"] for one in told] == [5, 5]
    assert [one["result"]["arguments"]["which"] for one in told] == ["a", "b"]
    assert len({message["id"] for message in member.messages("tools/call")}) == 2


# Questions of members with sessions -------------------------------------------------------------------------------


def asking(question: dict[str, Any], *more: dict[str, Any]) -> Any:
    """A tool that asks, and says what it was told."""

    def behave(asked: Asked) -> None:
        asked.stream(event(question))
        told = [reply_to(asked, question["id"])]
        for another in more:
            asked.send(event(another))
            told.append(reply_to(asked, another["id"]))
        asked.send(event(result(asked.id, **text(json.dumps(told)))))
        asked.hang_up()

    return behave


ELICIT = request("q1", "elicitation/create", message="Sure?", requestedSchema={"type": "object"})


def test_a_question_comes_under_an_id_of_ours_and_its_answer_goes_back_under_the_members(world: World) -> None:
    world.member(behaviours={"tools/call": asking(ELICIT)})
    agent = world.agent().begin(elicitation={})
    with agent.stream(request(9, "tools/call", name="notes__echo", arguments={})) as heard:
        question = heard.until("elicitation/create")
        assert question["id"] != "q1"
        assert question["params"] == ELICIT["params"]
        assert agent.post(result(question["id"], action="accept")).status_code == 202
        told = json.loads(heard.until("")["result"]["content"][0]["text"])
    assert told == [{"jsonrpc": "2.0", "id": "q1", "result": {"action": "accept"}}]
    # The same answer once more is nobody's.
    assert agent.post(result(question["id"], action="decline")).status_code == 202


def test_questions_that_the_caller_cannot_answer_are_declined_for_it(world: World) -> None:
    sampling = request("q2", "sampling/createMessage", messages=[])
    ping = {"jsonrpc": "2.0", "id": "q3", "method": "ping"}
    world.member(behaviours={"tools/call": asking(ELICIT, sampling, ping)})
    agent = world.agent()
    for response in (agent.begin().send("tools/call", name="notes__echo", arguments={}), modern_call(world.agent())):
        told = json.loads(said(response))
        assert [one.get("error", {}).get("code") for one in told] == [-32601, -32601, None]
        assert told[2]["result"] == {}


def test_a_caller_who_takes_no_stream_is_asked_nothing(world: World) -> None:
    world.member(behaviours={"tools/call": asking(ELICIT)}, timeout=5)
    agent = world.agent().begin("2025-03-26", elicitation={})
    call = request(9, "tools/call", name="notes__echo", arguments={})
    whole = agent.post(call, Accept="application/json")
    assert json.loads(said(whole))[0]["error"]["code"] == -32601
    batch = agent.post([call])
    assert json.loads(said(batch))[0]["error"]["code"] == -32601


def test_a_modern_caller_answers_with_its_second_request(world: World) -> None:
    member = world.member(behaviours={"tools/call": asking(ELICIT)})
    agent = world.agent()
    can = {f"{META}clientCapabilities": {"elicitation": {}}}
    first = modern_call(agent, meta=can).json()["result"]
    assert first["resultType"] == "input_required"
    assert first["inputRequests"] == {"question": {"method": "elicitation/create", "params": ELICIT["params"]}}
    state = first["requestState"]
    # Nothing told: it is asked again. Something else, or another client: it is unknown.
    assert modern_call(agent, meta=can, requestState=state).json()["result"] == first
    assert failure(modern_call(agent, meta=can, requestState="other"))[0] == -32602
    assert failure(modern_call(agent, meta=can, requestState=["x"]))[0] == -32602
    assert failure(modern_call(agent, meta=can, requestState=state, inputResponses=[]))[0] == -32602
    assert failure(modern_call(agent, meta=can, requestState=state, inputResponses={"question": 1}))[0] == -32602
    answers = {"question": {"action": "accept"}}
    last = modern_call(agent, meta=can, requestState=state, inputResponses=answers)
    assert json.loads(said(last)) == [{"jsonrpc": "2.0", "id": "q1", "result": {"action": "accept"}}]
    assert failure(modern_call(agent, meta=can, requestState=state, inputResponses=answers))[0] == -32602
    assert len(member.messages("tools/call")) == 1


def with_table(asked: Asked) -> None:
    """A modern tool that keeps what it was called with by a state, and gives it to whoever brings that."""
    params = asked.message["params"]
    if "requestState" in params:
        asked.result({"resultType": "complete", **text(f"{params['requestState']}: the secret")})
    else:
        asks = {"question": {"method": "elicitation/create", "params": {"message": "Sure?"}}}
        told = {"resultType": "input_required", "inputRequests": asks, "requestState": "state of the member"}
        if params["arguments"].get("streams"):
            asked.stream(event(result(asked.id, **told)))
            asked.hang_up()
        else:
            asked.result(told)


def answer_and_secret(asked: Asked) -> None:
    """A tool of a member with sessions, which asks on the stream of its answer."""
    asked.stream(event(ELICIT))
    if "result" in reply_to(asked, "q1"):
        asked.stream(event(result(asked.id, **text("the secret"))))
    asked.hang_up()


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("kind", ["modern", "with sessions"])
def test_a_request_state_is_good_for_whom_it_was_told_and_for_that_request_alone(
    world: World, kind: str, streams: bool
) -> None:
    """A member takes all clients for one, the hall: that it tells them apart by what they bring is the gateway's."""
    behaviours = {**MODERN, "tools/call": with_table} if kind == "modern" else {"tools/call": answer_and_secret}
    echo = {"inputSchema": {"type": "object"}}
    member = world.member("notes", behaviours, tools=[{"name": "echo", **echo}, {"name": "other", **echo}])
    elsewhere = world.member("elsewhere", behaviours)
    user = User.objects.create_superuser("olga")
    token, can = make_token(user), {f"{META}clientCapabilities": {"elicitation": {}}}
    owner, arguments = world.agent(token=token), {"streams": streams}
    first = messages_of(modern_call(owner, arguments=arguments, meta=can))[-1]["result"]
    assert first["resultType"] == "input_required"
    more = {"requestState": first["requestState"], "inputResponses": {"question": {"action": "accept"}}, "meta": can}
    thieves = {
        "another user": modern_call(world.agent(), arguments=arguments, **more),
        "another token of the user": modern_call(world.agent(token=make_token(user)), arguments=arguments, **more),
        "other arguments": modern_call(owner, arguments={**arguments, "x": 1}, **more),
        "another tool": modern_call(owner, "notes__other", arguments=arguments, **more),
        "another member": modern_call(owner, "elsewhere__echo", arguments=arguments, **more),
        "another path": modern_call(world.agent("/mcp/notes", token), "echo", arguments=arguments, **more),
        "a narrower path": modern_call(world.agent("/mcp?members=notes", token), arguments=arguments, **more),
        "another state": modern_call(owner, arguments=arguments, **{**more, "requestState": "state of the member"}),
        "half a character": modern_call(owner, arguments=arguments, **{**more, "requestState": "\ud800.state"}),
        "no text": modern_call(owner, arguments=arguments, **{**more, "requestState": ["x"]}),
    }
    session = world.agent().begin(elicitation={})
    thieves["a session"] = session.send("tools/call", name="notes__echo", arguments=arguments, **more)
    for who, response in thieves.items():
        assert messages_of(response)[-1].get("error", {}).get("code") == -32602, (who, response.text)
        assert "secret" not in response.text, who
    assert (len(member.messages("tools/call")), elsewhere.messages("tools/call")) == (1, [])
    assert "the secret" in said(modern_call(owner, arguments=arguments, **more))
    if kind == "modern":
        assert member.messages("tools/call")[1]["params"]["requestState"] == "state of the member"


@pytest.mark.parametrize(
    "key", ["requeststate", "RequestState", "request_state", "reque\u017ftState", "inputresponses", "input_responses"]
)
def test_no_state_passes_under_a_key_that_lenient_members_read_all_the_same(world: World, key: str) -> None:
    member = world.member("notes", MODERN)
    name = "inputResponses" if key.startswith("in") else "requestState"
    told = (-32602, f"the key {name} must be spelled exactly so and occur once")
    for path, tool in (("/mcp", "notes__echo"), ("/mcp/notes", "echo")):
        agent, session = world.agent(path), world.agent(path).begin(elicitation={})
        more = {"name": tool, "arguments": {}, key: "state of the member"}
        assert failure(agent.modern("tools/call", **more)) == told
        assert failure(session.send("tools/call", **more)) == told
    for method, named in (("prompts/get", {"name": "x"}), ("resources/read", {"uri": "x:"})):
        assert failure(agent.modern(method, **named, **{key: "state of the member"})) == told
        assert member.messages(method) == []
    assert member.messages("tools/call") == []


@pytest.mark.parametrize("more", [{"requestState": "state of the member"}, {"inputResponses": {}}])
def test_a_session_brings_no_state_also_to_a_member_that_speaks_both_eras(world: World, more: dict[str, Any]) -> None:
    member = world.member("notes", {"server/discover": MODERN["server/discover"], "tools/call": with_table})
    can = {f"{META}clientCapabilities": {"elicitation": {}}}
    first = modern_call(world.agent(), meta=can).json()["result"]
    assert first["requestState"].endswith(".state of the member")
    session = world.agent(token=make_token(User.objects.create_superuser("olga"))).begin(elicitation={})
    response = session.send("tools/call", name="notes__echo", arguments={}, **more)
    assert failure(response) == (
        -32602,
        f"{min(more)} does not exist in sessions: a session gets questions on a stream",
    )
    assert len(member.messages("tools/call")) == 1


@pytest.mark.parametrize("kind", ["modern", "with sessions"])
def test_the_loop_reads_no_large_arguments_to_know_a_request_again(
    world: World, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And knows it also where its maps come in another order."""
    threads: list[str] = []

    def digested(data: bytes = b"") -> Any:
        if len(data) > envelope.MAX_SMALL:
            threads.append(threading.current_thread().name)
        return sha256(data)

    sha256 = hashlib.sha256
    behaviours = {**MODERN, "tools/call": with_table} if kind == "modern" else {"tools/call": answer_and_secret}
    world.member("notes", behaviours)
    agent, can = world.agent(), {f"{META}clientCapabilities": {"elicitation": {}}}
    arguments = {"text": "x" * envelope.MAX_SMALL, "half": "\ud800", "map": {"a": 1, "b": {"c": 2, "d": 3}}}
    for more in ({}, {"half": "whole"}):
        monkeypatch.setattr(hashlib, "sha256", digested)
        first = messages_of(modern_call(agent, arguments=arguments | more, meta=can))[-1]["result"]
        again = {"map": {"b": {"d": 3, "c": 2}, "a": 1}, **{key: arguments[key] for key in ("half", "text")}, **more}
        answers = {"question": {"action": "accept"}}
        state = first["requestState"]
        last = modern_call(agent, arguments=again, requestState=state, inputResponses=answers, meta=can)
        monkeypatch.undo()
        assert "the secret" in said(last)
    assert len(threads) >= 4
    assert {name.rpartition("_")[0] for name in threads} == {"gateway-reader"}


def test_a_state_and_the_id_of_a_task_have_a_bound(world: World) -> None:
    own = ["x" * (envelope.MAX_SMALL - 2), "x" * envelope.MAX_SMALL]
    asks = {"question": {"method": "elicitation/create", "params": {"message": "Sure?"}}}

    def call(asked: Asked) -> None:
        if "requestState" in asked.message["params"]:
            asked.result({"resultType": "complete", **text("done")})
        else:
            asked.result({"resultType": "input_required", "inputRequests": asks, "requestState": own.pop(0)})

    member = world.member("notes", {**MODERN, "tools/call": call})
    agent, can = world.agent(), {f"{META}clientCapabilities": {"elicitation": {}}}
    state = modern_call(agent, meta=can).json()["result"]["requestState"]
    assert said(modern_call(agent, meta=can, requestState=state)) == "done"
    too_long = (-32602, "a requestState or taskId may have 65,601 characters")
    assert failure(modern_call(agent, meta=can, requestState="x" * 65_602)) == too_long
    at_member = world.agent("/mcp/notes")
    assert failure(at_member.modern("tasks/get", taskId="x" * 65_602)) == too_long
    assert "a requestState of more than 65,536 bytes" in failure(modern_call(agent, meta=can))[1]
    assert len(member.messages("tools/call")) == 3


def test_a_held_stream_is_let_go_when_its_caller_goes_away_in_the_second_round(world: World) -> None:
    let_go = threading.Event()

    def call(asked: Asked) -> None:
        asked.stream(event(ELICIT))
        try:
            asked.hang()
        finally:
            let_go.set()

    member = world.member(behaviours={"tools/call": call, "reply": lambda asked: asked.hang()})
    agent = world.agent()
    can = {f"{META}clientCapabilities": {"elicitation": {}}}
    state = modern_call(agent, meta=can).json()["result"]["requestState"]
    answers = {"question": {"action": "accept"}}
    options = {"name": "notes__echo", "arguments": {}, "requestState": state, "inputResponses": answers, "meta": can}
    message, headers = agent.modern_message("tools/call", **options)
    connection = agent.send_only(message, **headers)
    eventually(lambda: member.messages("reply"))
    assert not let_go.is_set()
    connection.close()
    assert let_go.wait(5)
    eventually(lambda: member.messages("notifications/cancelled"))


def test_a_question_that_nobody_answers_in_time_ends_the_call_at_the_member(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_runtime.gateway.upstream.suspended.QUESTION_SECONDS", 0.1)
    member = world.member(behaviours={"tools/call": asking(ELICIT)})
    can = {f"{META}clientCapabilities": {"elicitation": {}}}
    assert modern_call(world.agent(), meta=can).json()["result"]["resultType"] == "input_required"
    (told,) = eventually(lambda: member.messages("notifications/cancelled"))  # type: ignore[misc]
    assert told["params"] == {
        "requestId": member.messages("tools/call")[0]["id"],
        "reason": "the client did not answer",
    }


def test_more_held_streams_than_there_is_room_for_fail(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_runtime.gateway.upstream.suspended.SUSPENDED_STREAM_BYTES", 17_000_000)
    member = world.member(behaviours={"tools/call": asking(ELICIT)})
    can = {f"{META}clientCapabilities": {"elicitation": {}}}
    assert "too many suspended streams already wait" in failure(modern_call(world.agent(), meta=can))[1]
    eventually(lambda: member.messages("notifications/cancelled"))


def test_held_questions_of_one_user_have_a_bound_in_bytes_and_leave_others_theirs(
    world: World, monkeypatch: pytest.MonkeyPatch, django_user_model: type[User]
) -> None:
    monkeypatch.setattr("mcp_runtime.gateway.upstream.suspended.SUSPENDED_STREAM_BYTES", 0)
    budget = limits.ByteBudget(of_token=250_000, of_user=450_000, in_all=1_000_000)
    monkeypatch.setattr(limits, "bytes_of_suspended", lambda: budget)
    large = request("q1", "elicitation/create", message="x" * 100_000, requestedSchema={"type": "object"})
    world.member(behaviours={"tools/call": asking(large)})
    can = {f"{META}clientCapabilities": {"elicitation": {}}}
    one, other = (django_user_model.objects.create_superuser(name) for name in ("one", "other"))
    agents = [world.agent(token=make_token(one)) for _ in range(3)]
    states = [modern_call(agent, meta=can).json()["result"]["requestState"] for agent in agents[:2]]
    for full in (agents[0], agents[2]):
        assert "too many suspended streams already wait" in failure(modern_call(full, meta=can))[1]
    assert modern_call(world.agent(token=make_token(other)), meta=can).json()["result"]["requestState"]
    answers = {"question": {"action": "accept"}}
    assert said(modern_call(agents[0], meta=can, requestState=states[0], inputResponses=answers))
    assert modern_call(agents[2], meta=can).json()["result"]["requestState"]


def test_a_member_with_too_many_open_questions_gets_an_error_and_takes_no_slot_of_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "MAX_QUESTIONS", 2)

    def ask_three(asked: Asked) -> None:
        asked.stream(*[event({**ELICIT, "id": f"q{number}"}) for number in range(3)])
        told = [reply_to(asked, f"q{number}") for number in (2, 0, 1)]
        asked.send(event(result(asked.id, **text(json.dumps(told)))))
        asked.hang_up()

    world.member("greedy", {"tools/call": ask_three})
    world.member("modest", {"tools/call": asking(ELICIT)})
    agent = world.agent().begin(elicitation={})
    call = request("c1", "tools/call", name="greedy__echo", arguments={})
    other = request("c2", "tools/call", name="modest__echo", arguments={})
    with agent.stream(call) as heard, agent.stream(other) as modest:
        open_questions = [heard.until("elicitation/create") for _ in range(2)]
        open_questions.append(modest.until("elicitation/create"))
        for number, question in enumerate(open_questions):
            assert agent.post(result(question["id"], action=f"a{number}")).status_code == 202
        declined, *answered = json.loads(heard.until("")["result"]["content"][0]["text"])
        assert declined["error"]["message"] == "2 questions wait for an answer already"
        assert [one["result"]["action"] for one in answered] == ["a0", "a1"]
        (told,) = json.loads(modest.until("")["result"]["content"][0]["text"])
        assert told["result"]["action"] == "a2"


def test_questions_of_no_call_that_nobody_answers_make_room_in_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "MAX_QUESTIONS", 1)
    monkeypatch.setattr(questions, "QUESTION_SECONDS", -1.0)
    answers: list[Any] = []

    def say(asked: Asked) -> None:
        asked.stream(event({**ELICIT, "id": "q0"}), event({**ELICIT, "id": "q1"}))
        answers.append(reply_to(asked, "q0"))
        asked.hang()

    world.member(behaviours={"GET": say})
    agent = world.agent("/mcp/notes").begin(elicitation={})
    with agent.listen() as heard:
        heard.until("elicitation/create")
        question = heard.until("elicitation/create")
        eventually(lambda: answers)
        assert answers[0]["error"]["message"] == "nobody answered"
        assert agent.post(result(question["id"], action="accept")).status_code == 202


# Modern clients of members with sessions --------------------------------------------------------------------------


def test_a_modern_caller_hears_of_progress_and_of_the_log_level_it_asked_for(world: World) -> None:
    events = [
        event(notification("notifications/progress", progressToken=1, progress=1)),
        event(notification("notifications/message", level="debug", data="d")),
        event(notification("notifications/message", level="error", data="e")),
        event(notification("notifications/tools/list_changed")),
    ]
    world.member(behaviours={"tools/call": streaming(*events)})
    told = messages_of(modern_call(world.agent(), meta={f"{META}logLevel": "warning"}))
    assert [message.get("params", {}).get("data") for message in told] == [None, "e", None]
    assert [message.get("method") for message in told] == ["notifications/progress", "notifications/message", None]
    assert [message.get("method") for message in messages_of(modern_call(world.agent()))] == [
        "notifications/progress",
        None,
    ]


def test_an_error_of_a_member_is_restated_with_the_status_of_its_era(world: World) -> None:
    unknown = {"code": -32601, "message": "no"}

    def read(asked: Asked) -> None:
        if asked.message["params"]["uri"] == "u:stream":
            asked.stream(event({"jsonrpc": "2.0", "id": asked.id, "error": unknown}))
            asked.hang_up()
        asked.error(-32002, "not there")

    world.member(behaviours={"resources/read": read})
    agent = world.agent("/mcp/notes")
    missing = agent.modern("resources/read", uri="u:1")
    assert missing.status_code == 200
    assert missing.json()["error"] == {"code": -32602, "message": "not there", "data": {"uri": "u:1"}}
    assert agent.modern("resources/read", uri="u:stream").status_code == 404
    message, headers = agent.modern_message("resources/read", uri="u:stream")
    assert agent.post(message, **headers, Accept="application/json").status_code == 404


# Modern members ---------------------------------------------------------------------------------------------------


def rounds(*asked_for: dict[str, Any]) -> Any:
    """A modern tool that asks for input, once for each of `asked_for`, and then says what it was told."""

    def behave(asked: Asked) -> None:
        params = asked.message["params"]
        done = int(params.get("requestState", "0"))
        if done < len(asked_for):
            told = {"resultType": "input_required", "inputRequests": asked_for[done], "requestState": str(done + 1)}
            asked.result(told)
        else:
            asked.result({"resultType": "complete", **text(json.dumps(params.get("inputResponses")))})

    return behave


def test_a_modern_member_asks_a_caller_with_a_session_on_its_stream(world: World) -> None:
    first = {"a": {"method": "elicitation/create", "params": {"message": "a?"}}, "b": {"method": "roots/list"}}
    member = world.member(behaviours={**MODERN, "tools/call": rounds(first, {})})
    agent = world.agent().begin(elicitation={}, roots={})
    with agent.stream(request(9, "tools/call", name="notes__echo", arguments={"x": 1})) as heard:
        question = heard.until("elicitation/create")
        assert question["params"] == {"message": "a?"}
        agent.post(result(question["id"], action="accept"))
        agent.post(result(heard.until("roots/list")["id"], roots=[]))
        last = heard.until("")
    assert last["id"] == 9
    assert "resultType" not in last["result"]
    told = [message["params"] for message in member.messages("tools/call")]
    assert [(one.get("requestState"), one.get("inputResponses")) for one in told] == [
        (None, None),
        ("1", {"a": {"action": "accept"}, "b": {"roots": []}}),
        ("2", None),
    ]
    assert told[0]["_meta"][f"{META}clientCapabilities"] == {"elicitation": {}, "roots": {}}
    assert [one["arguments"] for one in told] == [{"x": 1}] * 3


def test_a_refused_question_of_a_modern_member_fails_the_call(world: World) -> None:
    ask = {"a": {"method": "elicitation/create", "params": {}}}
    world.member(behaviours={**MODERN, "tools/call": rounds(ask)})
    agent = world.agent().begin(elicitation={})
    with agent.stream(request(9, "tools/call", name="notes__echo", arguments={})) as heard:
        question = heard.until("elicitation/create")
        agent.post({"jsonrpc": "2.0", "id": question["id"], "error": {"code": -1, "message": "not now"}})
        message = heard.until("")["error"]["message"]
    assert message.endswith("asked for input (elicitation/create) and got none: not now")


def test_a_modern_member_that_never_has_enough_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modern, "MAX_ROUNDS", 3)
    member = world.member(behaviours={**MODERN, "tools/call": rounds(*[{}] * 20)})
    response = world.agent().begin().send("tools/call", name="notes__echo", arguments={})
    assert failure(response)[1].endswith("asked for input 3 times for one call")
    assert len(member.messages("tools/call")) == 4


def test_a_modern_member_that_asks_whoever_takes_no_stream_fails_the_call(world: World) -> None:
    world.member(behaviours={**MODERN, "tools/call": rounds({"a": {"method": "roots/list"}})}, timeout=5)
    agent = world.agent().begin(roots={})
    call = request(9, "tools/call", name="notes__echo", arguments={})
    assert "asked for input" in failure(agent.post(call, Accept="application/json"))[1]


def test_streams_of_modern_members_pass_for_both_eras(world: World) -> None:
    progress = notification("notifications/progress", progressToken=1, progress=1)

    def call(asked: Asked) -> None:
        asked.stream(
            event(progress),
            event(request("never", "roots/list")),  # it asks nothing on a stream
            event(result(asked.id, resultType="complete", **text("done"))),
        )
        asked.hang_up()

    world.member(behaviours={**MODERN, "tools/call": call})
    old = messages_of(world.agent().begin().send("tools/call", name="notes__echo", arguments={}))
    new = messages_of(modern_call(world.agent()))
    assert [old[0], new[0]] == [progress, progress]
    assert [len(old), len(new)] == [2, 2]
    assert old[1]["result"] == text("done")
    assert new[1]["result"] == {"resultType": "complete", **text("done")}


def test_a_stream_of_a_modern_member_that_ends_fails_the_call(world: World) -> None:
    def call(asked: Asked) -> None:
        asked.stream(event(notification("notifications/progress", progressToken=1, progress=1)))
        asked.hang_up()

    world.member(behaviours={**MODERN, "tools/call": call})
    assert "ended without the answer" in failure(modern_call(world.agent()))[1]


def test_what_only_sessions_have_a_modern_member_is_not_asked(world: World) -> None:
    member = world.member(behaviours=MODERN, capabilities={"tools": {}, "resources": {"subscribe": True}})
    agent = world.agent("/mcp/notes").begin()
    assert agent.ask("resources/subscribe", uri="u:1")["result"] == {}
    assert member.messages("resources/subscribe") == []


def test_arguments_that_headers_repeat_are_repeated_for_who_cannot(world: World) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "City"}}}
    tools = [{"name": "echo", "inputSchema": schema}]
    member = world.member(behaviours=MODERN, tools=tools)
    world.agent().begin().call("notes__echo", city="Köln")
    asked = next(one for one in member.requests if one.body and one.message["method"] == "tools/call")
    assert asked.headers["Mcp-Param-City"] == "=?base64?S8O2bG4=?="
    # A modern client says them itself, and the member validates.
    agent = world.agent()
    message, headers = agent.modern_message("tools/call", name="notes__echo", arguments={"city": "Rome"})
    agent.post(message, **headers, Mcp_Param_City="Paris")
    assert member.requests[-1].headers["mcp-param-city"] == "Paris"


def test_a_member_with_sessions_has_the_callers_headers_validated_for_it(world: World) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "City"}}}
    member = world.member(tools=[{"name": "echo", "inputSchema": schema}])
    agent = world.agent()
    message, headers = agent.modern_message("tools/call", name="notes__echo", arguments={"city": "Rome"})
    refused = agent.post(message, **headers, Mcp_Param_City="Paris")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, -32020)
    assert member.messages("tools/call") == []
    assert agent.post(message, **headers, Mcp_Param_City="Rome").status_code == 200


# What is no answer ------------------------------------------------------------------------------------------------

NO_ANSWERS: dict[str, tuple[Any, str]] = {
    "text": (lambda asked: asked.http(200, b"hi", kind="text/plain"), "answered with text/plain instead of JSON: 'hi'"),
    "no JSON": (lambda asked: asked.http(200, b"{nope"), "the answer is not JSON"),
    "another's": (
        lambda asked: asked.json(result("x")),
        "answered another request than this one; the call may have run",
    ),
    "an array": (lambda asked: asked.json([1]), "not a JSON-RPC 2.0 response to this request"),
    "nothing": (lambda asked: asked.http(202), "answered with HTTP status 202"),
    "a failure": (lambda asked: asked.http(500, b"oops", kind="text/plain"), "answered with HTTP status 500: 'oops'"),
    "a redirect": (lambda asked: asked.http(307, Location="http://x.example/"), "307, a redirect"),
    "no HTTP": (lambda asked: asked.send(b"SSH-2.0-x\r\n\r\n"), "did not respond with HTTP"),
    "a reset": (lambda asked: asked.reset(), "closed before the response was complete"),
    "half of it": (
        lambda asked: (
            asked.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"),
            asked.hang_up(),
        ),
        "closed before the response was complete",
    ),
    "too much": (lambda asked: asked.http(200, b" " * 200_001), "larger than 200,000 bytes"),
    "too much on a stream": (
        lambda asked: (asked.stream(event(notification("n", x="y" * 1000)) * 250), asked.hang_up()),
        "larger than 200,000 bytes",
    ),
    "an event without an end": (
        lambda asked: (asked.stream(b"data: " + b"y" * 201_000), asked.hang_up()),
        "larger than 200,000 bytes",
    ),
}


@pytest.mark.parametrize("era", ["with sessions", "modern"])
def test_whatever_is_no_answer_fails_the_call_by_the_members_name(world: World, era: str) -> None:
    told: dict[str, Any] = {}
    member = world.member(behaviours=MODERN if era == "modern" else {})
    agent = world.agent().begin()
    for name, (behave, _) in NO_ANSWERS.items():
        member.behaviours["tools/call"] = behave
        told[name] = agent.ask("tools/call", name="notes__echo", arguments={})["error"]
        world.live[member.row.pk] = member.live
    for name, (_, expected) in NO_ANSWERS.items():
        assert expected in told[name]["message"], name
        assert told[name]["message"].startswith("tool 'echo' of member 'notes': "), name
        assert told[name]["data"]["member"] == "notes", name


@pytest.mark.parametrize("era", ["with sessions", "modern"])
def test_an_answer_inside_an_array_is_taken_out_of_it(world: World, era: str) -> None:
    def call(asked: Asked) -> None:
        asked.json([notification("n"), result(asked.id, **text("in an array"))])

    world.member(behaviours={**(MODERN if era == "modern" else {}), "tools/call": call})
    assert world.agent().begin().text("notes__echo") == "in an array"
    assert said(modern_call(world.agent())) == "in an array"
    assert [call.status for call in world.calls(2)] == ["succeeded", "succeeded"]


def test_an_error_without_an_id_is_the_answer(world: World) -> None:
    told = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "what?"}}
    world.member(behaviours={"tools/call": lambda asked: asked.json(told, 400)})
    answer = world.agent().begin().ask("tools/call", name="notes__echo", arguments={})
    assert answer["id"] == 2
    assert answer["error"] == {"code": -32600, "message": "what?"}


def test_a_large_result_passes_word_for_word(world: World) -> None:
    body = b'{"jsonrpc":"2.0","id":%b,"result":{"content":[], "x":"' + b"y" * 100_000 + b'"}}'
    world.member(behaviours={"tools/call": lambda asked: asked.http(200, body % as_json(asked))})
    response = world.agent().begin().send("tools/call", name="notes__echo", arguments={})
    assert response.content == body % b"2"
    world.member("other", {**MODERN, "tools/call": lambda asked: asked.http(200, body % as_json(asked))})
    eventually(lambda: "other__echo" in world.agent().begin().tools())
    assert modern_call(world.agent(), "other__echo").content == body % b"1"


def test_a_large_answer_to_something_else_fails_the_call(world: World) -> None:
    body = b'{"jsonrpc":"2.0","id":"x","result":{"x":"' + b"y" * 100_000 + b'"}}'
    world.member(behaviours={"tools/call": lambda asked: asked.http(200, body)})
    message = failure(world.agent().begin().send("tools/call", name="notes__echo", arguments={}))[1]
    assert "answered another request" in message


FILLING = '"' + "y" * 100_000 + '"'
FORGERIES = {
    "another's id at the top, the right one inside": '{"jsonrpc":"2.0","id":"x","result":{"id":%s,"x":FILLING}}',
    "the right id in a text": '{"jsonrpc":"2.0","id":"x","result":{"x":FILLING,"t":"\\"id\\":%s,"}}',
    "a question": '{"jsonrpc":"2.0","id":%s,"method":"sampling/createMessage","params":{"x":FILLING}}',
    "a notification": '{"jsonrpc":"2.0","method":"notifications/message","params":{"id":%s,"x":FILLING}}',
    "no JSON": '{"jsonrpc":"2.0","id":%s,"result":{"x":FILLING}} and more',
    "no UTF-8": '{"jsonrpc":"2.0","id":%s,"result":{"x":FILLING,"y":"\xff"}}',
    "two ids": '{"jsonrpc":"2.0","id":%s,"result":{"x":FILLING},"id":"x"}',
    "two results": '{"jsonrpc":"2.0","id":%s,"result":{"x":FILLING},"result":{}}',
    "too deep": '{"jsonrpc":"2.0","id":%s,"result":{"x":FILLING,"y":' + "[" * 40_000 + "]" * 40_000 + "}}",
}


@pytest.mark.parametrize("era", ["with sessions", "modern"])
@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_large_answer_is_read_like_a_small_one(world: World, forgery: str, era: str) -> None:
    def call(asked: Asked) -> None:
        whole = FORGERIES[forgery].replace("FILLING", FILLING) % as_json(asked).decode()
        asked.http(200, whole.encode("latin-1"))

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


def answering_late(*, again: Callable[[Asked], None]) -> Any:
    """A tool that answers, and to its first call once more, after the second one came on the same connection."""
    first: list[Asked] = []

    def behave(asked: Asked) -> None:
        if not first:
            first.append(asked)
            asked.result(text("for the first"))
            return
        if asked.connection == first[0].connection:
            again(first[0])
        asked.result(text("for the second"))

    return behave


def a_second_result(first: Asked) -> None:
    first.result(text("for the first, again"))


def a_second_stream(first: Asked) -> None:
    said = notification("notifications/message", level="info", data="of the first")
    body = event(said) + event(result(first.id, **text("for the first, again")))
    first.http(200, body, kind="text/event-stream")


@pytest.mark.parametrize("again", [a_second_result, a_second_stream])
def test_an_answer_that_comes_twice_reaches_no_other_token(world: World, again: Any) -> None:
    world.member(behaviours={"tools/call": answering_late(again=again)})
    first, second = (world.agent(token=make_token(User.objects.create_superuser(name))).begin() for name in ("a", "b"))
    assert first.text("notes__echo") == "for the first"
    assert second.text("notes__echo") == "for the second"
    assert world.failures == []


def test_an_answer_that_comes_twice_fails_the_next_call_of_its_token_and_not_the_member(world: World) -> None:
    world.member(behaviours={"tools/call": answering_late(again=a_second_result)})
    agent = world.agent().begin()
    assert agent.text("notes__echo") == "for the first"
    error = agent.ask("tools/call", name="notes__echo", arguments={})["error"]
    assert error["data"] == {"member": "notes", "kind": "transport"}
    assert error["message"].endswith("answered another request than this one; the call may have run")
    assert agent.text("notes__echo") == "for the second"
    assert [call.error_kind for call in world.calls(3)] == ["", "transport", ""]
    assert world.failures == []


def test_no_id_goes_to_a_member_twice(world: World) -> None:
    member = world.member()
    for _ in range(2):
        agent = world.agent().begin()
        for _ in range(2):
            other = GatewayClient(world, None)  # type: ignore[arg-type]
            other.http.headers.update(agent.http.headers)
            assert other.post(request(5, "tools/call", name="notes__echo", arguments={})).json()["id"] == 5
        assert modern_call(world.agent()).status_code == 200
    ids = [message["id"] for message in member.messages("tools/call")]
    assert len(set(ids)) == len(ids) == 6
    assert 5 not in ids


def test_a_member_that_refuses_the_session_fails_the_call_and_is_asked_again_with_the_next(world: World) -> None:
    member = world.member()
    agent = world.agent().begin()
    began = {
        "answered with HTTP status 500": lambda asked: asked.http(500),
        "with protocol version '1999'": lambda asked: asked.result({"protocolVersion": "1999"}),
        "the event stream ended without the answer": lambda asked: (asked.stream(), asked.hang_up()),
        "no complete answer within 0.2 s": lambda asked: asked.hang(),
        "no complete answer within 0.2": lambda asked: (asked.stream(), asked.hang()),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mcp_runtime.gateway.upstream.sessions.INITIALIZE_TIMEOUT", 0.2)
        for expected, behave in began.items():
            member.behaviours["initialize"] = behave
            error = agent.ask("tools/call", name="notes__echo", arguments={})["error"]
            assert expected in error["message"]
            assert error["data"]["member"] == "notes"
    member.behaviours["initialize"] = with_session
    assert agent.text("notes__echo") == "{}"
    assert [call.status for call in world.calls(6)] == ["failed"] * 5 + ["succeeded"]
    # One is kept for the next call, and one is the hall's own client's.
    eventually(lambda: connections_to(member) <= 2, what="no answer is left open")


def connections_to(member: Member) -> int:
    """Of this process, which the gateway is a part of."""
    port = urlsplit(member.server.url).port
    there = psutil.Process().net_connections("tcp")
    return sum(1 for one in there if one.raddr and one.raddr.port == port and one.status == "ESTABLISHED")


class OnLoop:
    """A decoder that counts the large values which the gateway's loop has it build."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self.large = 0

    def decode(self, data: Any) -> Any:
        if threading.current_thread().name == "gateway" and memoryview(data).nbytes > envelope.MAX_SMALL:
            self.large += 1
        return self._decoder.decode(data)


@pytest.fixture
def decoders(monkeypatch: pytest.MonkeyPatch) -> list[OnLoop]:
    made = [OnLoop(envelope._OBJECT), OnLoop(envelope._LIST)]
    monkeypatch.setattr(envelope, "_OBJECT", made[0])
    monkeypatch.setattr(envelope, "_LIST", made[1])
    return made


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "on a stream"])
@pytest.mark.parametrize("more", [{}, MODERN], ids=["sessions", "modern"])
def test_the_loop_looks_into_no_large_answer(
    world: World, decoders: list[OnLoop], more: dict[str, Any], is_stream: bool
) -> None:
    filling = "y" * (envelope.MAX_SMALL + 1)
    large = {"content": [], "structuredContent": [], "x": filling, "_meta": {f"{META}x": 1, "x": filling}}
    logged = notification("notifications/message", level="error", data=filling, _meta={})

    def call(asked: Asked) -> None:
        if is_stream:
            asked.stream(event(logged), event(result(asked.id, **large)))
            asked.hang_up()
        asked.result(large)

    def fail(asked: Asked) -> None:
        asked.error(-32002 if not more else -32602, "no such thing", data={"uri": "x:1", "x": filling})

    def listed(asked: Asked) -> None:
        asked.result({"prompts": [{"name": "a", "icons": [{"src": filling}]}]})

    behaviours = {**more, "tools/call": call, "resources/read": fail, "prompts/list": listed}
    client = world.agent()
    world.member(behaviours=behaviours, capabilities=ALL)
    client.begin()
    (of_session,) = messages_of(client.send("tools/call", name="notes__echo", arguments={}))[-1:]
    (modern,) = messages_of(modern_call(world.agent(), meta={f"{META}logLevel": "error"}))[-1:]
    assert of_session["result"]["x"] == modern["result"]["x"] == filling
    assert more or modern["result"]["resultType"] == "complete"
    assert ("structuredContent" in of_session["result"]) is not bool(more)
    for agent in (world.agent("/mcp/notes").begin(), world.agent("/mcp/notes")):
        send = agent.send if agent is not None and "Mcp-Session-Id" in agent.http.headers else agent.modern
        assert messages_of(send("resources/read", uri="x:1"))[-1]["error"]["message"] == "no such thing"
    eventually(lambda: world.agent().begin().ask("prompts/list")["result"]["prompts"])
    assert [decoder.large for decoder in decoders] == [0, 0]


def test_a_result_of_thousands_of_keys_fails_the_call_where_it_is_to_be_restated(world: World) -> None:
    many = {f"k{number}": "y" * 40 for number in range(2_000)}
    world.member(behaviours={"tools/call": lambda asked: asked.result({"content": [], **many})})
    assert len(world.agent().begin().call("notes__echo")["result"]) == 2_001
    assert "more than 1,000 keys" in failure(modern_call(world.agent()))[1]
    assert [call.status for call in world.calls(2)] == ["succeeded", "failed"]

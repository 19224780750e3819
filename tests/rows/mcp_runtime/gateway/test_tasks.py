"""Tasks of members that take all clients for one: each is for the token that made it, whoever knows its id."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from django.contrib.auth.models import User

from roster.models import GuildMember, Token, Tool
from tests.support.agents import META, GatewayClient, make_token, messages_of
from tests.support.gateway_world import (
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

RELATED = f"{META}related-task"
EXTENSION = {"extensions": {f"{META}tasks": {}}}
CAPABILITIES = {"tools": {}, "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}
WITH_TASK = {f"{META}clientCapabilities": EXTENSION}
SECRET = "the secret"


def task(**more: Any) -> dict[str, Any]:
    return {"taskId": "t1", "status": "working", "createdAt": "2026-01-01T00:00:00Z", "ttl": None, **more}


def made(asked: Asked) -> None:
    is_modern = "task" not in asked.message["params"]
    asked.result({"resultType": "task", **task(ttlMs=None)} if is_modern else {"task": task()})


def finished(asked: Asked) -> None:
    asked.result({**text(SECRET), "_meta": {RELATED: {"taskId": "t1"}, "x": 1}})


TASKS = {
    "tools/call": made,
    "tasks/get": lambda asked: asked.result(task(result=text(SECRET))),
    "tasks/cancel": lambda asked: asked.result(task(status="cancelled")),
    "tasks/list": lambda asked: asked.result({"tasks": [task()]}),
    "tasks/result": finished,
    "tasks/update": lambda asked: asked.result({"resultType": "complete"}),
}
ASKED_FOR = ("tasks/get", "tasks/cancel", "tasks/result", "tasks/update", "tasks/later")


def in_session(world: World, token: str | None = None, path: str = "/mcp/notes", **capabilities: Any) -> GatewayClient:
    return world.agent(path, token).begin("2025-11-25", **capabilities)


def begun(agent: GatewayClient) -> str:
    """The id of a new task, as its client is told."""
    return str(agent.ask("tools/call", name="echo", arguments={}, task={"ttl": 60_000})["result"]["task"]["taskId"])


def modern(agent: GatewayClient, method: str, **params: Any) -> dict[str, Any]:
    return messages_of(agent.modern(method, meta=WITH_TASK, **params))[-1]


def begun_modern(agent: GatewayClient) -> str:
    told = modern(agent, "tools/call", name="echo", arguments={})["result"]
    assert told["resultType"] == "task"
    return str(told["taskId"])


def heard_of_tasks(member: Member) -> list[Any]:
    return [message for method in (*ASKED_FOR, "tasks/list") for message in member.messages(method)]


def test_a_task_is_for_the_token_that_made_it_in_all_of_its_sessions(world: World) -> None:
    member = world.member(behaviours=TASKS)
    task_id = begun(in_session(world))
    own = in_session(world)
    assert own.ask("tasks/get", taskId=task_id)["result"] == task(taskId=task_id, result=text(SECRET))
    assert own.ask("tasks/cancel", taskId=task_id)["result"] == task(taskId=task_id, status="cancelled")
    told = own.ask("tasks/result", taskId=task_id)["result"]
    assert told == {**text(SECRET), "_meta": {RELATED: {"taskId": task_id}, "x": 1}}
    world.replace_gateway()
    assert "result" in in_session(world).ask("tasks/get", taskId=task_id)
    assert [message["params"] for message in heard_of_tasks(member)] == [{"taskId": "t1"}] * 4


def test_a_task_of_2026_07_28_is_for_the_token_that_made_it(world: World) -> None:
    member = world.member(behaviours={**TASKS, **MODERN})
    agent = world.agent("/mcp/notes")
    task_id = begun_modern(agent)
    assert modern(agent, "tasks/get", taskId=task_id)["result"]["taskId"] == task_id
    assert "result" in modern(agent, "tasks/update", taskId=task_id, inputResponses={})
    message, headers = agent.modern_message("tasks/cancel", taskId=task_id)
    assert agent.post(message, **headers, Mcp_Name="t1").json()["error"]["code"] == -32020
    assert agent.post(message, **headers, Mcp_Name=task_id).status_code == 200
    assert [one["params"]["taskId"] for one in heard_of_tasks(member)] == ["t1"] * 3
    (asked,) = [one for one in member.requests if one.body and one.message.get("method") == "tasks/cancel"]
    assert asked.headers["mcp-name"] == "t1"


@pytest.mark.parametrize("era", ["sessions", "modern"])
def test_nobody_reads_answers_or_cancels_the_task_of_another(world: World, era: str) -> None:
    member = world.member(behaviours=TASKS if era == "sessions" else {**TASKS, **MODERN})
    world.member("elsewhere", behaviours=TASKS)
    user = User.objects.create_superuser("owner")
    token, other = make_token(user), make_token(user)
    task_id = begun(in_session(world, token)) if era == "sessions" else begun_modern(world.agent("/mcp/notes", token))
    thieves = {
        "another user": (None, "/mcp/notes", task_id),
        "another token of the user": (other, "/mcp/notes", task_id),
        "another member": (token, "/mcp/elsewhere", task_id),
        "a guess": (None, "/mcp/notes", "t1"),
        "the owner's guess": (token, "/mcp/notes", "t1"),
        "half a character": (None, "/mcp/notes", "\ud800.t1"),
        "no text": (None, "/mcp/notes", ["t1"]),
        "nothing": (None, "/mcp/notes", None),
    }
    for who, (thief, path, told) in thieves.items():
        with_session = in_session(world, thief, path)
        for method in ASKED_FOR:
            for response in (
                with_session.send(method, taskId=told),
                world.agent(path, thief).modern(method, taskId=told),
            ):
                assert messages_of(response)[-1]["error"]["code"] == -32602, (who, method, response.text)
    assert heard_of_tasks(member) == []


@pytest.mark.parametrize("more", [{"taskid": "t1"}, {"task_id": "t1"}, {"TaskID": "t1"}, {"ta\u017fkId": "t1"}])
def test_a_task_is_named_once_however_members_take_names(world: World, more: dict[str, str]) -> None:
    member = world.member(behaviours=TASKS)
    agent = in_session(world)
    error = agent.ask("tasks/get", taskId=begun(agent), **more)["error"]
    assert error == {"code": -32602, "message": "tasks/get: taskId must be a string and occur once"}
    assert agent.ask("tasks/get", **more)["error"] == error
    assert heard_of_tasks(member) == []


@pytest.mark.parametrize("method", ["Tasks/get", "TASKS/LIST", "tasks/List", "tas\u212as/get", "tools/Call"])
def test_a_method_in_other_letters_is_refused_for_members_that_take_any_case(world: World, method: str) -> None:
    lenient = {method: lambda asked: asked.result({"leaked": SECRET})}
    member = world.member(behaviours={**TASKS, **lenient})
    agent = in_session(world)
    own = begun(agent)
    error = agent.ask(method, taskId=own, name="echo")["error"]
    assert error["code"] == -32601
    assert member.messages(method) == []


def test_a_token_for_single_tools_may_read_the_task_that_it_made(world: World) -> None:
    member = world.member(behaviours=TASKS)
    token = make_token(scope=Token.Scope.TOOLS, tools=[Tool.objects.get(name="echo")])
    agent = in_session(world, token)
    task_id = begun(agent)
    assert agent.ask("tasks/get", taskId=task_id)["result"]["result"] == text(SECRET)
    error = agent.ask("tasks/get", taskId=begun(in_session(world)))["error"]
    assert error["code"] == -32602
    assert [message["params"] for message in heard_of_tasks(member)] == [{"taskId": "t1"}]


def test_tasks_are_not_listed_and_nobody_is_told_that_they_are(world: World) -> None:
    member = world.member(behaviours=TASKS, capabilities=CAPABILITIES)
    agent = in_session(world)
    begun(agent)
    for error in (agent.ask("tasks/list")["error"], world.agent("/mcp/notes").modern("tasks/list").json()["error"]):
        assert error["code"] == -32601
        assert error["message"].startswith("tasks/list is not available")
    assert heard_of_tasks(member) == []
    params = {"protocolVersion": "2025-11-25", "capabilities": {}}
    told = world.agent("/mcp/notes").send("initialize", **params).json()["result"]["capabilities"]
    assert told["tasks"] == {"cancel": {}, "requests": {"tools": {"call": {}}}}
    told = world.agent("/mcp/notes").modern("server/discover").json()["result"]["capabilities"]
    assert "list" not in told["tasks"]
    assert GuildMember.objects.get().capabilities == CAPABILITIES


def test_a_request_may_be_about_a_task_of_its_caller_alone(world: World) -> None:
    """Servers send what they say during such a request to whoever reads the task."""
    member = world.member(behaviours={**TASKS, "prompts/get": lambda asked: asked.result({"messages": []})})
    owner, thief = in_session(world), in_session(world, make_token())
    task_id = begun(owner)
    for method in ("tools/call", "prompts/get", "tasks/get"):
        params = {"name": "echo"} if method != "tasks/get" else {"taskId": begun(thief)}
        for told in ("t1", task_id):
            meta = {RELATED: {"taskId": told}, "x": 1}
            assert thief.ask(method, **params, _meta=meta)["error"]["code"] == -32602, (method, told)
    assert member.messages("prompts/get") == heard_of_tasks(member) == []
    owner.ask("prompts/get", name="x", _meta={RELATED: {"taskId": task_id, "taskid": "t2"}, "x": 1})
    assert member.messages("prompts/get")[0]["params"]["_meta"] == {RELATED: {"taskId": "t1"}, "x": 1}
    world.agent().begin().ask("tools/call", name="notes__echo", _meta={RELATED: {"taskId": "t1"}})
    assert RELATED not in member.messages("tools/call")[-1]["params"].get("_meta", {})


# How lenient members read that a request is about a task: keys in any case, or with underscores where others have none.
OTHERWISE = [{key: {RELATED: {"taskId": "t1"}}} for key in ("_Meta", "_META", "_me_ta", "meta", "Meta")]
OTHERWISE += [{"_meta": {RELATED.replace("related", related): {"taskId": "t1"}}} for related in ("Related", "RELATED")]


@pytest.mark.parametrize("more", OTHERWISE)
def test_nothing_is_about_a_task_in_a_spelling_that_lenient_members_read(world: World, more: dict[str, Any]) -> None:
    member = world.member(behaviours={"prompts/get": lambda asked: asked.result({"messages": []})})
    written = f"the key {RELATED if '_meta' in more else '_meta'} must be spelled exactly so and occur once"
    for path, tool in (("/mcp", "notes__echo"), ("/mcp/notes", "echo")):
        agent = in_session(world, path=path)
        for method, params in (("tools/call", {"name": tool, "arguments": {}}), ("prompts/get", {"name": "x"})):
            error = agent.ask(method, **params, **more)["error"]
            assert error == {"code": -32602, "message": written}, (path, method)
    refused = agent.notify("notifications/progress", progressToken=1, progress=1, **more)
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, f"Invalid params: {written}")
    for method in ("tools/call", "prompts/get", "notifications/progress"):
        assert member.messages(method) == []


def test_a_method_of_a_members_own_may_have_a_parameter_named_meta(world: World) -> None:
    member = world.member(behaviours={"notes/tag": lambda asked: asked.result({})})
    agent = in_session(world)
    assert agent.ask("notes/tag", meta={"colour": "red"})["result"] == {}
    assert member.messages("notes/tag")[0]["params"] == {"meta": {"colour": "red"}}
    assert agent.ask("notes/tag", _Meta={RELATED: {"taskId": "t1"}})["error"]["code"] == -32602


@pytest.mark.parametrize("more", OTHERWISE)
def test_no_answer_is_about_a_task_in_a_spelling_that_lenient_members_read(world: World, more: dict[str, Any]) -> None:
    def asking(asked: Asked) -> None:
        asked.stream(event(request("q", "elicitation/create", message="?")))
        answer = {key: value for key, value in reply_to(asked, "q").items() if key != "id"}
        asked.send(event(result(asked.id, **text(json.dumps(answer)))))
        asked.hang_up()

    world.member(behaviours={"tools/call": asking})
    agent, answer = in_session(world, elicitation={}), {"action": "accept"}
    with agent.stream(request(7, "tools/call", name="echo")) as stream:
        reply = {"jsonrpc": "2.0", "id": stream.until("elicitation/create")["id"]}
        assert agent.post({**reply, "result": answer | more}).status_code == 400
        assert agent.post({**reply, "result": answer, "Result": answer | more}).status_code == 202
        passed = stream.until("")["result"]["content"][0]["text"]
    assert json.loads(passed) == {"jsonrpc": "2.0", "result": answer}


@pytest.mark.parametrize("kind", ["modern", "with sessions"])
def test_no_answer_of_a_second_request_is_about_a_task(world: World, kind: str) -> None:
    def asking(asked: Asked) -> None:
        asked.stream(event(request("q", "elicitation/create", message="?")))
        asked.send(event(result(asked.id, **text(json.dumps(reply_to(asked, "q")["result"])))))
        asked.hang_up()

    def in_rounds(asked: Asked) -> None:
        if "inputResponses" in (params := asked.message["params"]):
            asked.result(text(json.dumps(params["inputResponses"]["question"])))
        else:
            asks = {"question": {"method": "elicitation/create", "params": {"message": "?"}}}
            asked.result({"resultType": "input_required", "inputRequests": asks, "requestState": "own"})

    world.member(behaviours={"tools/call": asking} if kind == "with sessions" else {**MODERN, "tools/call": in_rounds})
    agent, call = (
        world.agent("/mcp/notes"),
        {"name": "echo", "meta": {f"{META}clientCapabilities": {"elicitation": {}}}},
    )
    state = messages_of(agent.modern("tools/call", **call))[-1]["result"]["requestState"]
    exact = {"_meta": {RELATED: {"taskId": "t1"}}}
    for more in (*OTHERWISE, exact):
        answers = {"question": {"action": "accept"} | more}
        told = messages_of(agent.modern("tools/call", **call, requestState=state, inputResponses=answers))[-1]
        if more is not exact:
            assert told["error"]["code"] == -32602, more
    assert json.loads(told["result"]["content"][0]["text"]) == {"action": "accept", "_meta": {}}


def test_questions_for_a_task_name_it_as_its_caller_knows_it_and_answers_as_the_member_does(world: World) -> None:
    def asking(asked: Asked) -> None:
        meta = {"_meta": {RELATED: {"taskId": "t1"}}}
        asked.stream(event(notification("notifications/progress", progressToken=1, progress=1, **meta)))
        asked.send(event(request(f"question {asked.id}", "elicitation/create", message="?", **meta)))
        answer = reply_to(asked, f"question {asked.id}")["result"]
        asked.send(event(result(asked.id, **text(json.dumps(answer)), **meta)))
        asked.hang_up()

    world.member(behaviours={**TASKS, "tasks/result": asking})
    agent = in_session(world, elicitation={})
    task_id = begun(agent)
    for told, passed in ((task_id, {RELATED: {"taskId": "t1"}}), ("t1", {})):
        with agent.stream(request(7, "tasks/result", taskId=task_id)) as stream:
            progress = stream.until("notifications/progress")
            question = stream.until("elicitation/create")
            answer = {"action": "accept", "_meta": {RELATED: {"taskId": told}}}
            agent.post({"jsonrpc": "2.0", "id": question["id"], "result": answer})
            end = stream.until("")["result"]
        for meta in (progress["params"]["_meta"], question["params"]["_meta"], end["_meta"]):
            assert meta == {RELATED: {"taskId": task_id}}
        assert json.loads(end["content"][0]["text"]) == {"action": "accept", "_meta": passed}


def test_questions_for_a_task_may_come_on_the_stream_of_the_session(world: World) -> None:
    waits = threading.Event()

    def asking(asked: Asked) -> None:
        assert waits.wait(10)
        for own in ("t1", "t2"):
            question = event(request(own, "elicitation/create", _meta={RELATED: {"taskId": own}}))
            asked.stream(question) if own == "t1" else asked.send(question)
        asked.hang()

    def answering(asked: Asked) -> None:
        waits.set()
        asked.result(text(json.dumps([reply_to(asked, own)["result"] for own in ("t1", "t2")])))

    world.member(behaviours={**TASKS, "initialize": with_session, "GET": asking, "tasks/result": answering})
    agent, other = in_session(world, elicitation={}), world.agent("/mcp/notes")
    task_id = begun(agent)
    other.http.headers.update(agent.http.headers)
    with agent.listen() as stream, in_background(lambda: other.ask("tasks/result", taskId=task_id)) as ended:
        for told in (task_id, "t2"):
            question = stream.until("elicitation/create")
            assert question["params"] == {"_meta": {RELATED: {"taskId": told}}}
            agent.post({"jsonrpc": "2.0", "id": question["id"], "result": question["params"]})
    assert json.loads(ended[0]["result"]["content"][0]["text"]) == [
        {"_meta": {RELATED: {"taskId": "t1"}}},
        {"_meta": {}},
    ]


def test_what_members_say_of_tasks_unasked_reaches_nobody(world: World) -> None:
    status = notification("notifications/tasks/status", **task())
    after = notification("notifications/message", level="info", data="after")

    def telling(asked: Asked) -> None:
        asked.stream(event(status), event(after))
        asked.hang()

    def calling(asked: Asked) -> None:
        asked.stream(event(status), event(after), event(result(asked.id, **text("done"))))
        asked.hang_up()

    member = world.member(behaviours={"initialize": with_session, "GET": telling, "tools/call": calling})
    agent = in_session(world)
    with agent.listen() as stream:
        assert stream.until("notifications/message")["params"]["data"] == "after"
        assert [one for one in stream.all_messages if one["method"] == "notifications/tasks/status"] == []
    told = messages_of(agent.send("tools/call", name="echo"))
    assert [one.get("method") for one in told] == ["notifications/message", None]
    member.behaviours |= MODERN
    told = messages_of(world.agent("/mcp/notes").modern("tools/call", name="echo"))
    assert "notifications/tasks/status" not in [one.get("method") for one in told]


def test_callers_tell_a_member_nothing_of_tasks(world: World) -> None:
    member = world.member()
    agent = in_session(world)
    agent.call("echo")
    agent.notify("notifications/tasks/status", **task())
    agent.notify("notifications/progress", progressToken=1, progress=1, _meta={RELATED: {"taskId": "t1"}})
    assert member.messages("notifications/progress")[0]["params"] == {"progressToken": 1, "progress": 1, "_meta": {}}
    assert member.messages("notifications/tasks/status") == []


def test_results_that_only_look_like_tasks_pass_as_they_are(world: World) -> None:
    own = {**text("x"), "taskId": "t1", "structuredContent": {"taskId": "t1"}}
    member = world.member(behaviours={"tools/call": lambda asked: asked.result(own)})
    agent = in_session(world)
    assert agent.call("echo")["result"] == own
    assert agent.ask("tools/call", name="echo", task={})["result"] == own
    member.behaviours |= {**MODERN, "tools/call": lambda asked: asked.result({**own, "task": {"taskId": "t2"}})}
    assert modern(world.agent("/mcp/notes"), "tools/call", name="echo")["result"]["task"] == {"taskId": "t2"}


def test_a_session_is_given_no_task_of_2026_07_28(world: World) -> None:
    member = world.member(behaviours=MODERN)
    for path, tool in (("/mcp", "notes__echo"), ("/mcp/notes", "echo")):
        world.agent(path).begin("2025-11-25", **EXTENSION, sampling={}).call(tool)
        told = member.messages("tools/call")[-1]["params"]["_meta"][f"{META}clientCapabilities"]
        assert told == {"extensions": {}, "sampling": {}}

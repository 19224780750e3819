"""Tasks of members. A member sees all clients as one, so the gateway limits a task to the token that made it."""

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
from tests.support.scripted_server import Request as MemberRequest

RELATED = f"{META}related-task"
EXTENSION = {"extensions": {f"{META}tasks": {}}}
CAPABILITIES = {"tools": {}, "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}
WITH_TASK = {f"{META}clientCapabilities": EXTENSION}
SECRET = "the secret"


def task(**more: Any) -> dict[str, Any]:
    return {"taskId": "t1", "status": "working", "createdAt": "2026-01-01T00:00:00Z", "ttl": None, **more}


def create_task(incoming: MemberRequest) -> None:
    is_modern = "task" not in incoming.message["params"]
    incoming.result({"resultType": "task", **task(ttlMs=None)} if is_modern else {"task": task()})


def return_result(incoming: MemberRequest) -> None:
    incoming.result({**text(SECRET), "_meta": {RELATED: {"taskId": "t1"}, "x": 1}})


TASKS = {
    "tools/call": create_task,
    "tasks/get": lambda incoming: incoming.result(task(result=text(SECRET))),
    "tasks/cancel": lambda incoming: incoming.result(task(status="cancelled")),
    "tasks/list": lambda incoming: incoming.result({"tasks": [task()]}),
    "tasks/result": return_result,
    "tasks/update": lambda incoming: incoming.result({"resultType": "complete"}),
}
TASK_METHODS = ("tasks/get", "tasks/cancel", "tasks/result", "tasks/update", "tasks/later")


def session_client(
    world: World, token: str | None = None, path: str = "/mcp/notes", **capabilities: Any
) -> GatewayClient:
    return world.agent(path, token).begin("2025-11-25", **capabilities)


def begin_task(client: GatewayClient) -> str:
    """The id of a new task, as its client gets it."""
    return str(client.ask("tools/call", name="echo", arguments={}, task={"ttl": 60_000})["result"]["task"]["taskId"])


def send_modern(client: GatewayClient, method: str, **params: Any) -> dict[str, Any]:
    return messages_of(client.modern(method, meta=WITH_TASK, **params))[-1]


def begin_modern_task(client: GatewayClient) -> str:
    task_result = send_modern(client, "tools/call", name="echo", arguments={})["result"]
    assert task_result["resultType"] == "task"
    return str(task_result["taskId"])


def task_messages(member: Member) -> list[Any]:
    return [message for method in (*TASK_METHODS, "tasks/list") for message in member.messages(method)]


def test_a_task_is_available_in_all_sessions_of_the_token_that_made_it(world: World) -> None:
    member = world.member(behaviours=TASKS)
    task_id = begin_task(session_client(world))
    second_client = session_client(world)
    assert second_client.ask("tasks/get", taskId=task_id)["result"] == task(taskId=task_id, result=text(SECRET))
    assert second_client.ask("tasks/cancel", taskId=task_id)["result"] == task(taskId=task_id, status="cancelled")
    task_result = second_client.ask("tasks/result", taskId=task_id)["result"]
    assert task_result == {**text(SECRET), "_meta": {RELATED: {"taskId": task_id}, "x": 1}}
    world.replace_gateway()
    assert "result" in session_client(world).ask("tasks/get", taskId=task_id)
    assert [message["params"] for message in task_messages(member)] == [{"taskId": "t1"}] * 4


def test_a_modern_task_is_available_to_the_token_that_made_it(world: World) -> None:
    member = world.member(behaviours={**TASKS, **MODERN})
    client = world.agent("/mcp/notes")
    task_id = begin_modern_task(client)
    assert send_modern(client, "tasks/get", taskId=task_id)["result"]["taskId"] == task_id
    assert "result" in send_modern(client, "tasks/update", taskId=task_id, inputResponses={})
    message, headers = client.modern_message("tasks/cancel", taskId=task_id)
    assert client.post(message, **headers, Mcp_Name="t1").json()["error"]["code"] == -32020
    assert client.post(message, **headers, Mcp_Name=task_id).status_code == 200
    assert [message["params"]["taskId"] for message in task_messages(member)] == ["t1"] * 3
    (cancel_request,) = [
        request for request in member.requests if request.body and request.message.get("method") == "tasks/cancel"
    ]
    assert cancel_request.headers["mcp-name"] == "t1"


@pytest.mark.parametrize("era", ["sessions", "modern"])
def test_a_client_cannot_use_the_task_of_another_client(world: World, era: str) -> None:
    member = world.member(behaviours=TASKS if era == "sessions" else {**TASKS, **MODERN})
    world.member("elsewhere", behaviours=TASKS)
    user = User.objects.create_superuser("owner")
    token, second_token = make_token(user), make_token(user)
    task_id = (
        begin_task(session_client(world, token))
        if era == "sessions"
        else begin_modern_task(world.agent("/mcp/notes", token))
    )
    attempts = {
        "another user": (None, "/mcp/notes", task_id),
        "another token of the user": (second_token, "/mcp/notes", task_id),
        "another member": (token, "/mcp/elsewhere", task_id),
        "a guess": (None, "/mcp/notes", "t1"),
        "the owner's guess": (token, "/mcp/notes", "t1"),
        "a lone surrogate": (None, "/mcp/notes", "\ud800.t1"),
        "no string": (None, "/mcp/notes", ["t1"]),
        "no id": (None, "/mcp/notes", None),
    }
    for case, (other_token, path, other_id) in attempts.items():
        session = session_client(world, other_token, path)
        for method in TASK_METHODS:
            for response in (
                session.send(method, taskId=other_id),
                world.agent(path, other_token).modern(method, taskId=other_id),
            ):
                assert messages_of(response)[-1]["error"]["code"] == -32602, (case, method, response.text)
    assert task_messages(member) == []


@pytest.mark.parametrize("extra_params", [{"taskid": "t1"}, {"task_id": "t1"}, {"TaskID": "t1"}, {"ta\u017fkId": "t1"}])
def test_a_second_spelling_of_the_task_id_is_refused(world: World, extra_params: dict[str, str]) -> None:
    member = world.member(behaviours=TASKS)
    client = session_client(world)
    error = client.ask("tasks/get", taskId=begin_task(client), **extra_params)["error"]
    assert error == {"code": -32602, "message": "tasks/get: taskId must be a string and occur once"}
    assert client.ask("tasks/get", **extra_params)["error"] == error
    assert task_messages(member) == []


@pytest.mark.parametrize("method", ["Tasks/get", "TASKS/LIST", "tasks/List", "tas\u212as/get", "tools/Call"])
def test_a_method_name_in_another_case_is_refused(world: World, method: str) -> None:
    lenient_behaviours = {method: lambda incoming: incoming.result({"leaked": SECRET})}
    member = world.member(behaviours={**TASKS, **lenient_behaviours})
    client = session_client(world)
    task_id = begin_task(client)
    error = client.ask(method, taskId=task_id, name="echo")["error"]
    assert error["code"] == -32601
    assert member.messages(method) == []


def test_a_token_for_single_tools_may_read_the_task_that_it_made(world: World) -> None:
    member = world.member(behaviours=TASKS)
    token = make_token(scope=Token.Scope.TOOLS, tools=[Tool.objects.get(name="echo")])
    client = session_client(world, token)
    task_id = begin_task(client)
    assert client.ask("tasks/get", taskId=task_id)["result"]["result"] == text(SECRET)
    error = client.ask("tasks/get", taskId=begin_task(session_client(world)))["error"]
    assert error["code"] == -32602
    assert [message["params"] for message in task_messages(member)] == [{"taskId": "t1"}]


def test_tasks_list_is_not_available_and_not_in_the_capabilities(world: World) -> None:
    member = world.member(behaviours=TASKS, capabilities=CAPABILITIES)
    client = session_client(world)
    begin_task(client)
    for error in (client.ask("tasks/list")["error"], world.agent("/mcp/notes").modern("tasks/list").json()["error"]):
        assert error["code"] == -32601
        assert error["message"].startswith("tasks/list is not available")
    assert task_messages(member) == []
    params = {"protocolVersion": "2025-11-25", "capabilities": {}}
    capabilities = world.agent("/mcp/notes").send("initialize", **params).json()["result"]["capabilities"]
    assert capabilities["tasks"] == {"cancel": {}, "requests": {"tools": {"call": {}}}}
    capabilities = world.agent("/mcp/notes").modern("server/discover").json()["result"]["capabilities"]
    assert "list" not in capabilities["tasks"]
    assert GuildMember.objects.get().capabilities == CAPABILITIES


def test_a_request_can_be_related_only_to_a_task_of_its_own_client(world: World) -> None:
    """A server sends its messages during such a request to the client that reads the task."""
    member = world.member(behaviours={**TASKS, "prompts/get": lambda incoming: incoming.result({"messages": []})})
    owner, other_client = session_client(world), session_client(world, make_token())
    task_id = begin_task(owner)
    for method in ("tools/call", "prompts/get", "tasks/get"):
        params = {"name": "echo"} if method != "tasks/get" else {"taskId": begin_task(other_client)}
        for related_id in ("t1", task_id):
            meta = {RELATED: {"taskId": related_id}, "x": 1}
            assert other_client.ask(method, **params, _meta=meta)["error"]["code"] == -32602, (method, related_id)
    assert member.messages("prompts/get") == task_messages(member) == []
    owner.ask("prompts/get", name="x", _meta={RELATED: {"taskId": task_id, "taskid": "t2"}, "x": 1})
    assert member.messages("prompts/get")[0]["params"]["_meta"] == {RELATED: {"taskId": "t1"}, "x": 1}
    world.agent().begin().ask("tools/call", name="notes__echo", _meta={RELATED: {"taskId": "t1"}})
    assert RELATED not in member.messages("tools/call")[-1]["params"].get("_meta", {})


# Spellings of a related task that lenient members accept: keys in any case, or with other underscores.
MISSPELLINGS = [{key: {RELATED: {"taskId": "t1"}}} for key in ("_Meta", "_META", "_me_ta", "meta", "Meta")]
MISSPELLINGS += [
    {"_meta": {RELATED.replace("related", related): {"taskId": "t1"}}} for related in ("Related", "RELATED")
]


@pytest.mark.parametrize("extra_params", MISSPELLINGS)
def test_a_request_with_a_misspelled_related_task_is_refused(world: World, extra_params: dict[str, Any]) -> None:
    member = world.member(behaviours={"prompts/get": lambda incoming: incoming.result({"messages": []})})
    reason = f"the key {RELATED if '_meta' in extra_params else '_meta'} must be spelled exactly so and occur once"
    for path, tool in (("/mcp", "notes__echo"), ("/mcp/notes", "echo")):
        client = session_client(world, path=path)
        for method, params in (("tools/call", {"name": tool, "arguments": {}}), ("prompts/get", {"name": "x"})):
            error = client.ask(method, **params, **extra_params)["error"]
            assert error == {"code": -32602, "message": reason}, (path, method)
    response = client.notify("notifications/progress", progressToken=1, progress=1, **extra_params)
    assert (response.status_code, response.json()["error"]["message"]) == (400, f"Invalid params: {reason}")
    for method in ("tools/call", "prompts/get", "notifications/progress"):
        assert member.messages(method) == []


def test_a_members_own_method_may_have_a_parameter_named_meta(world: World) -> None:
    member = world.member(behaviours={"notes/tag": lambda incoming: incoming.result({})})
    client = session_client(world)
    assert client.ask("notes/tag", meta={"colour": "red"})["result"] == {}
    assert member.messages("notes/tag")[0]["params"] == {"meta": {"colour": "red"}}
    assert client.ask("notes/tag", _Meta={RELATED: {"taskId": "t1"}})["error"]["code"] == -32602


@pytest.mark.parametrize("extra_values", MISSPELLINGS)
def test_a_reply_with_a_misspelled_related_task_is_refused(world: World, extra_values: dict[str, Any]) -> None:
    def ask(incoming: MemberRequest) -> None:
        incoming.stream(event(request("q", "elicitation/create", message="?")))
        values = {key: value for key, value in reply_to(incoming, "q").items() if key != "id"}
        incoming.send(event(result(incoming.id, **text(json.dumps(values)))))
        incoming.hang_up()

    world.member(behaviours={"tools/call": ask})
    client, values = session_client(world, elicitation={}), {"action": "accept"}
    with client.stream(request(7, "tools/call", name="echo")) as stream:
        reply = {"jsonrpc": "2.0", "id": stream.until("elicitation/create")["id"]}
        assert client.post({**reply, "result": values | extra_values}).status_code == 400
        assert client.post({**reply, "result": values, "Result": values | extra_values}).status_code == 202
        reply_text = stream.until("")["result"]["content"][0]["text"]
    assert json.loads(reply_text) == {"jsonrpc": "2.0", "result": values}


@pytest.mark.parametrize("kind", ["modern", "with sessions"])
def test_replies_in_a_second_request_cannot_be_related_to_a_task(world: World, kind: str) -> None:
    def ask(incoming: MemberRequest) -> None:
        incoming.stream(event(request("q", "elicitation/create", message="?")))
        incoming.send(event(result(incoming.id, **text(json.dumps(reply_to(incoming, "q")["result"])))))
        incoming.hang_up()

    def ask_in_rounds(incoming: MemberRequest) -> None:
        if "inputResponses" in (params := incoming.message["params"]):
            incoming.result(text(json.dumps(params["inputResponses"]["question"])))
        else:
            input_requests = {"question": {"method": "elicitation/create", "params": {"message": "?"}}}
            incoming.result({"resultType": "input_required", "inputRequests": input_requests, "requestState": "own"})

    world.member(behaviours={"tools/call": ask} if kind == "with sessions" else {**MODERN, "tools/call": ask_in_rounds})
    client, call = (
        world.agent("/mcp/notes"),
        {"name": "echo", "meta": {f"{META}clientCapabilities": {"elicitation": {}}}},
    )
    state = messages_of(client.modern("tools/call", **call))[-1]["result"]["requestState"]
    exact = {"_meta": {RELATED: {"taskId": "t1"}}}
    for extra_values in (*MISSPELLINGS, exact):
        replies = {"question": {"action": "accept"} | extra_values}
        response = messages_of(client.modern("tools/call", **call, requestState=state, inputResponses=replies))[-1]
        if extra_values is not exact:
            assert response["error"]["code"] == -32602, extra_values
    assert json.loads(response["result"]["content"][0]["text"]) == {"action": "accept", "_meta": {}}


def test_questions_have_the_clients_task_id_and_their_replies_have_the_members_id(world: World) -> None:
    def ask(incoming: MemberRequest) -> None:
        meta = {"_meta": {RELATED: {"taskId": "t1"}}}
        incoming.stream(event(notification("notifications/progress", progressToken=1, progress=1, **meta)))
        incoming.send(event(request(f"question {incoming.id}", "elicitation/create", message="?", **meta)))
        reply = reply_to(incoming, f"question {incoming.id}")["result"]
        incoming.send(event(result(incoming.id, **text(json.dumps(reply)), **meta)))
        incoming.hang_up()

    world.member(behaviours={**TASKS, "tasks/result": ask})
    client = session_client(world, elicitation={})
    task_id = begin_task(client)
    for reply_task_id, member_meta in ((task_id, {RELATED: {"taskId": "t1"}}), ("t1", {})):
        with client.stream(request(7, "tasks/result", taskId=task_id)) as stream:
            progress = stream.until("notifications/progress")
            question = stream.until("elicitation/create")
            reply = {"action": "accept", "_meta": {RELATED: {"taskId": reply_task_id}}}
            client.post({"jsonrpc": "2.0", "id": question["id"], "result": reply})
            task_result = stream.until("")["result"]
        for meta in (progress["params"]["_meta"], question["params"]["_meta"], task_result["_meta"]):
            assert meta == {RELATED: {"taskId": task_id}}
        assert json.loads(task_result["content"][0]["text"]) == {"action": "accept", "_meta": member_meta}


def test_questions_for_a_task_may_come_on_the_stream_of_the_session(world: World) -> None:
    may_ask = threading.Event()

    def ask(incoming: MemberRequest) -> None:
        assert may_ask.wait(10)
        for member_task_id in ("t1", "t2"):
            question = event(request(member_task_id, "elicitation/create", _meta={RELATED: {"taskId": member_task_id}}))
            incoming.stream(question) if member_task_id == "t1" else incoming.send(question)
        incoming.hang()

    def return_replies(incoming: MemberRequest) -> None:
        may_ask.set()
        incoming.result(
            text(json.dumps([reply_to(incoming, member_task_id)["result"] for member_task_id in ("t1", "t2")]))
        )

    world.member(behaviours={**TASKS, "initialize": with_session, "GET": ask, "tasks/result": return_replies})
    client, second_client = session_client(world, elicitation={}), world.agent("/mcp/notes")
    task_id = begin_task(client)
    second_client.http.headers.update(client.http.headers)
    with (
        client.listen() as stream,
        in_background(lambda: second_client.ask("tasks/result", taskId=task_id)) as responses,
    ):
        for client_task_id in (task_id, "t2"):
            question = stream.until("elicitation/create")
            assert question["params"] == {"_meta": {RELATED: {"taskId": client_task_id}}}
            client.post({"jsonrpc": "2.0", "id": question["id"], "result": question["params"]})
    assert json.loads(responses[0]["result"]["content"][0]["text"]) == [
        {"_meta": {RELATED: {"taskId": "t1"}}},
        {"_meta": {}},
    ]


def test_status_notifications_about_tasks_reach_no_client(world: World) -> None:
    status = notification("notifications/tasks/status", **task())
    log = notification("notifications/message", level="info", data="after")

    def listen(incoming: MemberRequest) -> None:
        incoming.stream(event(status), event(log))
        incoming.hang()

    def call(incoming: MemberRequest) -> None:
        incoming.stream(event(status), event(log), event(result(incoming.id, **text("done"))))
        incoming.hang_up()

    member = world.member(behaviours={"initialize": with_session, "GET": listen, "tools/call": call})
    client = session_client(world)
    with client.listen() as stream:
        assert stream.until("notifications/message")["params"]["data"] == "after"
        assert [message for message in stream.all_messages if message["method"] == "notifications/tasks/status"] == []
    messages = messages_of(client.send("tools/call", name="echo"))
    assert [message.get("method") for message in messages] == ["notifications/message", None]
    member.behaviours |= MODERN
    messages = messages_of(world.agent("/mcp/notes").modern("tools/call", name="echo"))
    assert "notifications/tasks/status" not in [message.get("method") for message in messages]


def test_notifications_of_clients_about_tasks_do_not_reach_a_member(world: World) -> None:
    member = world.member()
    client = session_client(world)
    client.call("echo")
    client.notify("notifications/tasks/status", **task())
    client.notify("notifications/progress", progressToken=1, progress=1, _meta={RELATED: {"taskId": "t1"}})
    assert member.messages("notifications/progress")[0]["params"] == {"progressToken": 1, "progress": 1, "_meta": {}}
    assert member.messages("notifications/tasks/status") == []


def test_results_that_only_look_like_tasks_pass_unchanged(world: World) -> None:
    values = {**text("x"), "taskId": "t1", "structuredContent": {"taskId": "t1"}}
    member = world.member(behaviours={"tools/call": lambda incoming: incoming.result(values)})
    client = session_client(world)
    assert client.call("echo")["result"] == values
    assert client.ask("tools/call", name="echo", task={})["result"] == values
    member.behaviours |= {
        **MODERN,
        "tools/call": lambda incoming: incoming.result({**values, "task": {"taskId": "t2"}}),
    }
    assert send_modern(world.agent("/mcp/notes"), "tools/call", name="echo")["result"]["task"] == {"taskId": "t2"}


def test_a_session_does_not_announce_modern_tasks_to_a_member(world: World) -> None:
    member = world.member(behaviours=MODERN)
    for path, tool in (("/mcp", "notes__echo"), ("/mcp/notes", "echo")):
        world.agent(path).begin("2025-11-25", **EXTENSION, sampling={}).call(tool)
        capabilities = member.messages("tools/call")[-1]["params"]["_meta"][f"{META}clientCapabilities"]
        assert capabilities == {"extensions": {}, "sampling": {}}

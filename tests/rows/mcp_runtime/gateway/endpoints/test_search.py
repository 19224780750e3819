"""Clients that search for tools: what they find, and that a call of a found tool is a call like any other."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User

from mcp_runtime.control.members import set_tool_enabled
from mcp_runtime.control.tool_sets import Entry, Values, change_tool_set, create_tool_set
from mcp_runtime.gateway.endpoints import search
from mcp_runtime.security.access import OPERATOR
from roster.models import Call, Contract, ContractVersion, GuildMember, Hall, Token, Tool
from tests.conftest import eventually
from tests.support.agents import META, GatewayClient, make_token, messages_of
from tests.support.gateway_world import (
    MODERN,
    World,
    event,
    in_background,
    notification,
    reply_to,
    request,
    result,
    text,
)
from tests.support.scripted_server import Request as MemberRequest

PATH = "/mcp?mode=search"
THREE = ["find_tools", "call_read", "call_write"]
READS = {"readOnlyHint": True}


def tool(name: str, description: str = "", **fields: Any) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": {"type": "object"}, **fields}


NOTES = [
    tool("add", "Write a note into the notebook."),
    tool("list", "List all notes.", annotations=READS),
    tool("purge", "Delete all notes.", annotations=READS | {"destructiveHint": True}),
]


def find(client: GatewayClient, query: str, **more: Any) -> list[str]:
    return [hit["name"] for hit in hits(client, query, **more)]


def hits(client: GatewayClient, query: str, **more: Any) -> list[dict[str, Any]]:
    return list(json.loads(client.text("find_tools", query=query, **more))["tools"])


def mistake(response: dict[str, Any]) -> str:
    """The text of a result that says what is wrong."""
    assert response["result"]["isError"] is True, response
    return str(response["result"]["content"][0]["text"])


def user(name: str, *groups: Group) -> User:
    row = User.objects.create_user(name)
    row.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    row.groups.set(groups)
    return row


# The list ---------------------------------------------------------------------------------------------------------


def test_the_list_has_three_tools_and_a_description_that_names_the_servers(world: World) -> None:
    world.member("notes", tools=NOTES)
    world.member("mail")
    client = world.agent(PATH).begin()
    listed = client.ask("tools/list")["result"]["tools"]
    assert [each["name"] for each in listed] == THREE
    assert "of these servers: mail, notes." in listed[0]["description"]
    assert [each["annotations"].get("readOnlyHint") for each in listed] == [True, True, False]
    assert world.agent().begin().tools() == ["mail__echo", "notes__add", "notes__list", "notes__purge"]


def test_the_list_stays_below_600_tokens_at_any_size_of_the_roster(world: World) -> None:
    row = GuildMember.objects.create(name="many", directory="many", status="connected")
    for number in range(200):
        GuildMember.objects.create(name=f"server-{number:03}", directory=f"s{number}", status="connected")
    members = [row, *GuildMember.objects.exclude(pk=row.pk)]
    definition = tool("t", "A tool with a long description. " * 50)
    rows = [
        Tool(member=members[number % 201], name=f"t{number}", position=number, definition=definition)
        for number in range(2_000)
    ]
    Tool.objects.bulk_create(rows)
    client = world.agent(PATH).begin()
    response = client.send("tools/list")
    assert len(response.json()["result"]["tools"]) == 3
    assert "more." in response.json()["result"]["tools"][0]["description"]
    assert len(response.content) / 4 <= 600
    assert len(world.agent().begin().tools()) == 2_000


def test_the_instructions_say_how_to_search(world: World) -> None:
    world.member("notes")
    params = {"protocolVersion": "2025-06-18", "capabilities": {}}
    assert "find_tools" in world.agent(PATH).send("initialize", **params).json()["result"]["instructions"]
    assert "find_tools" in world.agent(PATH).modern("server/discover").json()["result"]["instructions"]
    assert "find_tools" not in world.agent().modern("server/discover").json()["result"]["instructions"]


@pytest.mark.parametrize(
    "path", ["/mcp?mode=other", "/mcp?mode=", "/mcp?mode=search&mode=search", "/mcp/notes?mode=search"]
)
def test_another_mode_is_refused(world: World, path: str) -> None:
    world.member("notes")
    response = world.agent(path).modern("tools/list")
    assert response.status_code == 400


def test_a_session_of_one_mode_is_not_one_of_the_other(world: World) -> None:
    world.member("notes")
    session, other = world.agent(PATH).begin(), world.agent()
    other.http.headers["Mcp-Session-Id"] = session.http.headers["Mcp-Session-Id"]
    assert other.send("tools/list").status_code == 404


def test_without_the_mode_the_three_names_are_those_of_no_tool(world: World) -> None:
    world.member("notes")
    response = world.agent().begin().call("find_tools", query="note")
    assert "unknown tool 'find_tools'" in response["error"]["message"]


# What is found ----------------------------------------------------------------------------------------------------


def test_a_tool_is_found_by_what_it_does_with_all_that_a_call_needs(world: World) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    world.member("notes", tools=[{**NOTES[0], "inputSchema": schema}, *NOTES[1:]])
    client = world.agent(PATH).begin()
    assert hits(client, "write something into my notebook")[0] == {
        "name": "notes__add",
        "description": "Write a note into the notebook.",
        "call": "call_write",
        "inputSchema": schema,
    }
    assert {hit["name"]: hit["call"] for hit in hits(client, "all notes")} == {
        "notes__add": "call_write",
        "notes__list": "call_read",
        "notes__purge": "call_write",  # it says that it reads, and that it destroys
    }


def test_modern_clients_search_and_call_too(world: World) -> None:
    world.member("notes", tools=NOTES)
    client = world.agent(PATH)
    found = client.modern("tools/call", name="find_tools", arguments={"query": "list"}).json()["result"]
    assert found["resultType"] == "complete"
    assert json.loads(found["content"][0]["text"])["tools"][0]["name"] == "notes__list"
    called = client.modern("tools/call", name="call_read", arguments={"name": "notes__list", "arguments": {"a": 1}})
    assert called.json()["result"]["content"][0]["text"] == '{"a": 1}'


def test_words_that_are_in_no_tool_find_nothing_and_the_result_says_what_to_do(world: World) -> None:
    world.member("notes", tools=NOTES)
    found = json.loads(world.agent(PATH).begin().text("find_tools", query="quantum"))
    assert found == {"tools": [], "hint": search.HINT}


def test_the_limit_bounds_the_hits(world: World) -> None:
    world.member("many", tools=[tool(f"echo_{number}", "Say something.") for number in range(30)])
    client = world.agent(PATH).begin()
    assert len(find(client, "say something")) == 5
    assert len(find(client, "say something", limit=20)) == 20
    assert len(find(client, "say something", limit=1)) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "query must be a text"),
        ({"query": " "}, "query must be a text"),
        ({"query": 5}, "query must be a text"),
        ({"query": "x", "limit": 0}, "limit must be a whole number"),
        ({"query": "x", "limit": 21}, "limit must be a whole number"),
        ({"query": "x", "limit": True}, "limit must be a whole number"),
        ({"query": "x", "limit": "5"}, "limit must be a whole number"),
        ({"query": "x", "members": "a"}, "unknown argument 'members': it takes query and limit"),
    ],
)
def test_mistakes_in_a_search_are_results_that_a_model_can_read(
    world: World, arguments: dict[str, Any], words: str
) -> None:
    world.member("notes")
    assert words in mistake(world.agent(PATH).begin().call("find_tools", **arguments))


def test_the_result_has_a_bounded_size(world: World) -> None:
    large = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(400)}}
    medium = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(150)}}
    huge = {"type": "object", "properties": {"p": {"type": "string", "description": "x" * 100_000}}}
    tools = [tool(f"large_{number}", "Say it. " * 500, inputSchema=large) for number in range(10)]
    tools += [tool(f"medium_{number}", "Say it. " * 500, inputSchema=medium) for number in range(10)]
    world.member("big", tools=[*tools, tool("huge", "Shout.", inputSchema=huge)])
    client = world.agent(PATH).begin()
    found = client.text("find_tools", query="say it", limit=20)
    assert len(found) < search.MAX_SCHEMAS + 20 * (search.MAX_DESCRIPTION + 300)
    by_name = {hit["name"]: hit for hit in json.loads(found)["tools"]}
    assert len(by_name) == 20
    assert by_name["big__large_0"]["description"].endswith("…")
    assert "with the exact name" in by_name["big__large_0"]["inputSchemaLeftOut"]
    assert by_name["big__medium_0"]["inputSchema"] == medium
    assert "inputSchemaLeftOut" in by_name["big__medium_9"]  # the result is full
    (only,) = hits(client, " big__large_0 ")
    assert only["inputSchema"] == large
    (only,) = hits(client, "big__huge")
    assert only["inputSchemaLeftOut"] == f"it has {len(json.dumps(huge, separators=(',', ':'))):,} bytes"


def test_hostile_texts_in_definitions_and_queries_do_no_harm(world: World) -> None:
    tools = [tool("bad", 'x"}]} \u0000 \ud83d\ude00 </script>\n\r\u2028'), {**tool("odd"), "title": ["x"]}]
    world.member("notes", tools=tools)
    client = world.agent(PATH).begin()
    assert find(client, "bad script")[0] == "notes__bad"
    for query in ("\\ud800", "'\"}{", "a" * 100_000, "é" * 1000, "x " * 50_000):
        assert "result" in client.call("find_tools", query=query)


# What is not found ------------------------------------------------------------------------------------------------


def test_nobody_finds_what_it_may_not_use(world: World) -> None:
    Hall.objects.create()
    staff = Group.objects.create(name="staff")
    world.member("notes", tools=NOTES)
    world.member("secret", tools=[tool("secret_note", "Write a secret note into the notebook.")]).row.groups.add(staff)
    insider, outsider = make_token(user("ada", staff)), make_token(user("bob"))
    clients = {name: world.agent(PATH, token).begin() for name, token in (("ada", insider), ("bob", outsider))}
    query = "secret note notebook"
    assert find(clients["ada"], query)[0] == "secret__secret_note"
    assert set(find(clients["bob"], query)) == {"notes__add", "notes__purge", "notes__list"}
    assert find(clients["ada"], query)[0] == "secret__secret_note"  # the view of another is not used for it
    assert hits(clients["bob"], "secret__secret_note") == hits(clients["bob"], "secret note")
    list_of_bob = clients["bob"].send("tools/list").text
    assert "secret" not in list_of_bob
    assert "of these servers: notes." in list_of_bob
    assert "may not call" in mistake(clients["bob"].call("call_write", name="secret__secret_note"))


def test_a_token_for_some_tools_finds_only_them(world: World) -> None:
    world.member("notes", tools=NOTES)
    row = Tool.objects.get(name="list")
    client = world.agent(PATH, make_token(scope=Token.Scope.TOOLS, tools=[row])).begin()
    assert find(client, "note notebook delete all write") == ["notes__list"]


def test_disabled_held_and_task_only_tools_are_not_found(world: World) -> None:
    Hall.objects.create()
    only_task = tool("slow", "Write a very long note.", execution={"taskSupport": "required"})
    world.member("notes", tools=[*NOTES, only_task, tool("held", "Write a held note.")])
    client = world.agent(PATH).begin()
    assert set(find(client, "note", limit=20)) == {"notes__add", "notes__list", "notes__purge", "notes__held"}
    held_row = Tool.objects.get(name="held")
    Contract.objects.create(
        member=held_row.member, kind="tool", name="held", version="b", is_held=True, reason="changed"
    )
    Tool.objects.filter(name="held").update(is_held=True)
    set_tool_enabled(Tool.objects.get(name="add"), False)
    world.gateway.member_changed(held_row.member_id)
    eventually(lambda: set(find(client, "note", limit=20)) == {"notes__list", "notes__purge"})
    assert "notes__add" not in find(client, "notes__add", limit=20)
    assert "is held, because changed" in mistake(client.call("call_write", name="notes__held"))
    assert "unknown tool 'notes__add'" in mistake(client.call("call_write", name="notes__add"))
    assert "find tools with find_tools" in mistake(client.call("call_read", name="notes__add"))
    assert "runs only as a task" in mistake(client.call("call_write", name="notes__slow"))
    assert Call.objects.count() == 0


def test_a_disabled_member_is_not_found(world: World) -> None:
    Hall.objects.create()
    member = world.member("notes", tools=NOTES)
    client = world.agent(PATH).begin()
    assert find(client, "note")
    GuildMember.objects.filter(pk=member.row.pk).update(enabled=False)
    world.gateway.member_changed(member.row.pk)
    eventually(lambda: not find(client, "note"))


def test_a_new_tool_and_a_new_description_are_found_after_a_change(world: World) -> None:
    member = world.member("notes", tools=NOTES)
    client = world.agent(PATH).begin()
    assert find(client, "forecast") == []
    Tool.objects.filter(name="list").update(definition=tool("list", "Forecast the notes of tomorrow."))
    Tool.objects.create(member=member.row, name="new", position=9, definition=tool("new", "Forecast the weather."))
    world.gateway.member_changed(member.row.pk)
    eventually(lambda: sorted(find(client, "forecast")) == ["notes__list", "notes__new"])


# Selections -------------------------------------------------------------------------------------------------------


def test_a_selection_of_members_finds_only_theirs(world: World) -> None:
    for name in ("notes", "diary"):
        world.member(name, tools=NOTES)
    client = world.agent("/mcp?members=diary&mode=search").begin()
    assert client.tools() == THREE
    assert {name.partition("__")[0] for name in find(client, "note", limit=20)} == {"diary"}
    assert "of these servers: diary." in client.ask("tools/list")["result"]["tools"][0]["description"]
    assert "unknown tool" in mistake(client.call("call_write", name="notes__add"))
    assert client.text("call_write", name="diary__add", arguments={"x": 1}) == '{"x": 1}'


def test_a_tool_set_is_searched_by_its_own_names_and_descriptions(world: World) -> None:
    Hall.objects.create()
    world.member("notes", tools=NOTES)
    entries = (Entry("notes", "add", "remember", "Keep a thought for later."), Entry("notes", "list"))
    row = create_tool_set(Values("writing", entries=entries), OPERATOR, None)
    client = world.agent("/sets/writing/mcp?mode=search").begin()
    assert client.tools() == THREE
    assert "servers" not in client.ask("tools/list")["result"]["tools"][0]["description"]
    assert hits(client, "keep a thought")[0]["name"] == "remember"
    assert hits(client, "keep a thought")[0]["description"] == "Keep a thought for later."
    assert find(client, "notebook") == []  # the word of the old description
    assert find(client, "purge") == []
    assert client.text("call_write", name="remember", arguments={"x": 1}) == '{"x": 1}'
    assert "unknown tool 'notes__add'" in mistake(client.call("call_write", name="notes__add"))
    assert world.calls()[-1].tool_name == "add"
    change_tool_set(
        row, Values("writing", entries=(Entry("notes", "purge", "find_tools", "Forget everything."),)), OPERATOR
    )
    eventually(lambda: find(client, "forget") == ["find_tools"])  # also a tool with one of the three names
    assert client.tools() == THREE
    assert client.text("call_write", name="find_tools", arguments={"y": 2}) == '{"y": 2}'


# Calls of found tools ---------------------------------------------------------------------------------------------


def test_a_call_of_a_found_tool_is_recorded_as_the_tool_of_its_member(world: World) -> None:
    member = world.member("notes", tools=NOTES)
    client = world.agent(PATH).begin()
    assert client.text("call_write", name="notes__add", arguments={"text": "hi"}) == '{"text": "hi"}'
    assert client.text("call_read", name="notes__list") == "{}"
    first, second = world.calls(2)
    assert (first.member.name, first.tool_name, first.arguments, first.status) == (
        "notes",
        "add",
        {"text": "hi"},
        "succeeded",
    )
    assert (second.tool_name, second.source) == ("list", "gateway")
    assert [each["params"]["name"] for each in member.messages("tools/call")] == ["add", "list"]


@pytest.mark.parametrize("name", ["notes__add", "notes__purge"])
def test_call_read_refuses_what_may_change_something(world: World, name: str) -> None:
    member = world.member("notes", tools=NOTES)
    response = world.agent(PATH).begin().call("call_read", name=name)
    assert "Use call_write" in mistake(response)
    assert member.messages("tools/call") == []


@pytest.mark.parametrize(("agreed", "is_read"), [(READS, True), ({}, False), (None, False)])
def test_call_read_believes_the_agreed_version_of_a_contract(
    world: World, agreed: dict[str, Any] | None, is_read: bool
) -> None:
    """The listed version says that the tool only reads. It is not held, as for a moment after a list."""
    member = world.member("notes", tools=NOTES)
    Tool.objects.filter(name="list").update(version="b")
    contract = Contract.objects.create(
        member=member.row, kind="tool", name="list", version="b", approved_version="a" if agreed is not None else ""
    )
    if agreed is not None:
        definition = json.dumps(tool("list", annotations=agreed))
        ContractVersion.objects.create(contract=contract, version="a", definition=definition)
    response = world.agent(PATH).begin().call("call_read", name="notes__list")
    assert response["result"].get("isError") is (None if is_read else True)


def test_an_agreed_version_that_changes_takes_effect(world: World) -> None:
    member = world.member("notes", tools=NOTES)
    Tool.objects.filter(name="list").update(version="b")
    contract = Contract.objects.create(member=member.row, kind="tool", name="list", version="b", approved_version="a")
    ContractVersion.objects.create(contract=contract, version="a", definition=json.dumps(tool("list")))
    client = world.agent(PATH).begin()
    assert hits(client, "notes__list")[0]["call"] == "call_write"
    Contract.objects.filter(pk=contract.pk).update(approved_version="b")
    world.gateway.member_changed(member.row.pk)
    eventually(lambda: hits(client, "notes__list")[0]["call"] == "call_read")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "name must be the name of a tool from find_tools"),
        ({"name": 5}, "name must be the name"),
        ({"name": "notes__add", "arguments": "{}"}, "arguments must be an object"),
        ({"name": "notes__add", "arguments": None}, "arguments must be an object"),
        ({"name": "notes__add", "text": "hi"}, "unknown argument 'text'"),
        ({"name": "notes__add", "Arguments": {}}, "unknown argument 'Arguments'"),
        ({"name": "notes__none"}, "unknown tool 'notes__none'"),
        ({"name": "call_write"}, "unknown tool 'call_write'"),
        ({"name": "find_tools"}, "unknown tool 'find_tools'"),
        ({"name": "x" * 10_000}, "unknown tool"),
    ],
)
def test_mistakes_in_a_call_are_results_that_a_model_can_read(
    world: World, arguments: dict[str, Any], words: str
) -> None:
    member = world.member("notes", tools=NOTES)
    response = world.agent(PATH).begin().call("call_write", **arguments)
    assert words in mistake(response)
    assert len(mistake(response)) < 500
    assert member.messages("tools/call") == []


def test_a_found_tool_can_also_be_called_by_its_own_name(world: World) -> None:
    world.member("notes", tools=NOTES)
    assert world.agent(PATH).begin().text("notes__add", x=1) == '{"x": 1}'


@pytest.mark.parametrize(
    "answer",
    [
        {"content": [], "structuredContent": {"a": [1]}},
        {"content": [{"type": "text", "text": "no"}], "isError": True},
        {"content": [], "_meta": {"x": "é"}, "more": 1.5},
    ],
)
def test_the_result_of_a_found_tool_passes_unchanged(world: World, answer: dict[str, Any]) -> None:
    world.member("notes", {"tools/call": lambda incoming: incoming.result(answer)}, tools=NOTES)
    assert world.agent(PATH).begin().call("call_write", name="notes__add")["result"] == answer


def test_errors_of_a_member_stay_errors(world: World) -> None:
    world.member("notes", {"tools/call": lambda incoming: incoming.error(-32050, "no", data={"a": 1})}, tools=NOTES)
    response = world.agent(PATH).begin().call("call_write", name="notes__add")
    assert response["error"] == {"code": -32050, "message": "no", "data": {"a": 1}}
    assert world.calls()[0].error_kind == "protocol"


def test_a_found_tool_has_its_own_deadline(world: World) -> None:
    stuck = threading.Event()
    world.member("notes", {"tools/call": lambda incoming: stuck.wait(20)}, tools=NOTES, tool_timeouts={"add": 0.2})
    try:
        response = world.agent(PATH).begin().call("call_write", name="notes__add")
    finally:
        stuck.set()
    assert response["error"]["data"]["kind"] == "timeout"
    assert "tool 'add' of member 'notes'" in response["error"]["message"]
    assert world.calls()[0].error_kind == "timeout"


def test_progress_and_questions_pass_as_in_a_plain_call(world: World) -> None:
    question = request("q1", "elicitation/create", message="Sure?", requestedSchema={"type": "object"})

    def behave(incoming: MemberRequest) -> None:
        token = incoming.message["params"]["_meta"]["progressToken"]
        progress = notification("notifications/progress", progressToken=token, progress=1)
        incoming.stream(event(progress), event(question))
        reply = reply_to(incoming, "q1")
        incoming.send(event(result(incoming.id, **text(reply["result"]["action"]))))
        incoming.hang_up()

    world.member("notes", {"tools/call": behave}, tools=NOTES)
    client = world.agent(PATH).begin(elicitation={})
    arguments = {"name": "notes__add", "arguments": {}}
    call = request(9, "tools/call", name="call_write", arguments=arguments, _meta={"progressToken": "p"})
    with client.stream(call) as stream:
        assert stream.until("notifications/progress")["params"]["progressToken"] == "p"
        asked = stream.until("elicitation/create")
        assert client.post(result(asked["id"], action="accept")).status_code == 202
        assert stream.until("")["result"] == text("accept")


def test_a_question_to_a_modern_client_is_answered_with_the_same_call(world: World) -> None:
    def behave(incoming: MemberRequest) -> None:
        params = incoming.message["params"]
        if "requestState" in params:
            incoming.result({"resultType": "complete", **text(json.dumps(params["inputResponses"]))})
        else:
            questions = {"q": {"method": "elicitation/create", "params": {"message": "Sure?"}}}
            incoming.result({"resultType": "input_required", "inputRequests": questions, "requestState": "s"})

    world.member("notes", {**MODERN, "tools/call": behave}, tools=NOTES)
    client, meta = world.agent(PATH), {f"{META}clientCapabilities": {"elicitation": {}}}
    call = {"name": "call_write", "arguments": {"name": "notes__add", "arguments": {"a": 1}}, "meta": meta}
    state = client.modern("tools/call", **call).json()["result"]["requestState"]
    answers = {"q": {"action": "accept"}}
    last = client.modern("tools/call", **call, requestState=state, inputResponses=answers).json()["result"]
    assert json.loads(last["content"][0]["text"]) == answers
    other = {**call, "arguments": {"name": "notes__list", "arguments": {"a": 1}}}
    refused = messages_of(client.modern("tools/call", **other, requestState=state, inputResponses=answers))[-1]
    assert refused["error"]["code"] == -32602


def test_a_client_can_cancel_the_call_of_a_found_tool(world: World) -> None:
    member = world.member("notes", {"tools/call": lambda incoming: incoming.server.closing.wait(10)}, tools=NOTES)
    client, other = world.agent(PATH).begin(), world.agent(PATH)
    other.http.headers.update(client.http.headers)
    call = request(7, "tools/call", name="call_write", arguments={"name": "notes__add", "arguments": {}})
    with in_background(lambda: client.post(call)):
        eventually(lambda: member.messages("tools/call"))
        assert other.notify("notifications/cancelled", requestId=7).status_code == 202
    assert eventually(lambda: member.messages("notifications/cancelled"))
    assert world.calls()[0].status == "cancelled"


@pytest.mark.parametrize("behaviours", [{}, MODERN], ids=["sessions", "modern"])
@pytest.mark.parametrize("is_modern", [False, True])
def test_the_gateway_writes_headers_that_the_client_cannot_know(
    world: World, behaviours: dict[str, Any], is_modern: bool
) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "City"}}}
    member = world.member("weather", behaviours, tools=[tool("now", inputSchema=schema)])
    arguments = {"name": "weather__now", "arguments": {"city": "Bern"}}
    if is_modern:
        headers = {"Mcp_Param_City": "Basel"}  # of a client that means something else
        message, own = world.agent(PATH).modern_message("tools/call", name="call_write", arguments=arguments)
        response = world.agent(PATH).post(message, **own, **headers)
    else:
        response = world.agent(PATH).begin().send("tools/call", name="call_write", arguments=arguments)
    assert "result" in messages_of(response)[-1]
    (sent,) = [each for each in member.requests if each.body and each.message.get("method") == "tools/call"]
    headers = {name.lower(): value for name, value in sent.headers.items()}
    expected = {"mcp-param-city": "Bern", "mcp-name": "now"} if behaviours else {}
    assert {name: headers[name] for name in headers if name in ("mcp-param-city", "mcp-name")} == expected


def test_a_task_is_not_created_by_a_call_of_a_found_tool(world: World) -> None:
    member = world.member("notes", tools=NOTES)
    client = world.agent(PATH).begin()
    response = client.ask("tools/call", name="call_write", arguments={"name": "notes__add"}, task={"ttl": 60})
    assert "result" in response
    assert "task" not in member.messages("tools/call")[0]["params"]


def test_secrets_of_a_found_tool_are_masked_in_the_record(world: World) -> None:
    schema = {"type": "object", "properties": {"key": {"type": "string", "format": "password"}}}
    world.member("notes", tools=[tool("login", inputSchema=schema)])
    client = world.agent(PATH).begin()
    client.call("call_write", name="notes__login", arguments={"key": "hunter2"})
    assert "hunter2" not in json.dumps(world.calls()[0].arguments)


def test_a_search_counts_as_a_call_of_the_token(world: World) -> None:
    world.member("notes", tools=NOTES)
    client = world.agent(PATH, make_token(calls_per_minute=3)).begin()
    statuses = [client.send("tools/call", name="find_tools", arguments={"query": "note"}).status_code for _ in range(4)]
    assert statuses[-1] == 429


# Changes of the list ----------------------------------------------------------------------------------------------


def test_a_change_of_the_catalog_is_no_change_of_the_three_tools(world: World) -> None:
    member = world.member("notes", tools=NOTES)
    world.member("diary")
    searching, listing = world.agent(PATH).begin(), world.agent().begin()
    with searching.listen() as quiet, listing.listen() as loud:
        Tool.objects.create(member=member.row, name="new", position=9, definition=tool("new"))
        world.gateway.member_changed(member.row.pk)
        assert loud.until("notifications/tools/list_changed")
        assert quiet.all_messages == []
        late = world.member("late")  # the description names it
        assert quiet.until("notifications/tools/list_changed")
    assert late.row.name in searching.ask("tools/list")["result"]["tools"][0]["description"]


# The option of a token --------------------------------------------------------------------------------------------


def test_a_token_in_search_mode_searches_at_every_address_but_a_members_own(world: World) -> None:
    Hall.objects.create()
    world.member("notes", {"tools/list": lambda incoming: incoming.result({"tools": NOTES})}, tools=NOTES)
    create_tool_set(Values("writing", entries=(Entry("notes"),)), OPERATOR, None)
    token = make_token(search_mode=True)
    for path in ("/mcp", "/mcp?members=notes", "/sets/writing/mcp", PATH):
        client = world.agent(path, token).begin()
        assert client.tools() == THREE
        assert find(client, "notebook") == ["notes__add"]
        assert client.text("call_write", name="notes__add", arguments={"path": path}) == json.dumps({"path": path})
    assert world.agent("/mcp/notes", token).begin().tools() == ["add", "list", "purge"]


def test_pinned_tools_are_listed_as_themselves_beside_the_three(world: World) -> None:
    Hall.objects.create()
    member = world.member("notes", tools=NOTES)
    create_tool_set(Values("writing", entries=(Entry("notes", "add", "remember"),)), OPERATOR, None)
    token = make_token(search_mode=True, pinned_tools=["notes/purge", "notes/add", "notes/gone", "nobody/x", "odd"])
    client = world.agent("/mcp", token).begin()
    assert client.tools() == [*THREE, "notes__add", "notes__purge"]
    assert client.ask("tools/list")["result"]["tools"][3] == {**NOTES[0], "name": "notes__add"}
    assert client.text("notes__add", x=1) == '{"x": 1}'
    assert find(client, "notebook") == ["notes__add"]
    assert world.agent("/sets/writing/mcp", token).begin().tools() == [*THREE, "remember"]
    assert world.agent("/mcp?members=notes", token).begin().tools() == [*THREE, "notes__add", "notes__purge"]
    with client.listen() as stream:
        Tool.objects.filter(name="list").update(definition=tool("list", "Another text."))
        world.gateway.member_changed(member.row.pk)
        eventually(lambda: find(client, "another text"))
        assert stream.all_messages == []
        set_tool_enabled(Tool.objects.get(name="add"), False)
        world.gateway.member_changed(member.row.pk)
        assert stream.until("notifications/tools/list_changed")
    assert client.tools() == [*THREE, "notes__purge"]


def test_a_pinned_tool_that_the_user_may_not_use_is_not_listed(world: World) -> None:
    Hall.objects.create()
    world.member("notes", tools=NOTES).row.groups.add(Group.objects.create(name="staff"))
    world.member("mail")
    token = make_token(user("bob"), search_mode=True, pinned_tools=["notes/add", "mail/echo"])
    assert world.agent("/mcp", token).begin().tools() == [*THREE, "mail__echo"]


def test_a_change_of_the_option_takes_effect(world: World) -> None:
    Hall.objects.create()
    world.member("notes", tools=NOTES)
    client = world.agent("/mcp", make_token(search_mode=True)).begin()
    assert client.tools() == THREE
    with client.listen() as stream:
        Token.objects.update(search_mode=False)  # nobody does that now, but a cached principal must not outlive it
        Hall.note_access_change()
        assert stream.until("notifications/tools/list_changed")
    assert client.tools() == ["notes__add", "notes__list", "notes__purge"]

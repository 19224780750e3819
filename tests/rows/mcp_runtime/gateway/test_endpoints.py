"""Endpoints: the roster as one server, and each member as itself, from memory while the member is not live."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from mcp_runtime.contracts.canonical import version_of
from mcp_runtime.gateway.endpoints import member as member_endpoints
from roster.models import Contract, GuildMember, Token, Tool
from tests.conftest import eventually
from tests.support.agents import META, GatewayClient, make_token
from tests.support.agents import MODERN as MODERN_VERSION
from tests.support.gateway_world import ALL, MODERN, Member, World, event, in_background, request, result, text
from tests.support.machine import Stopwatch
from tests.support.scripted_server import Request as MemberRequest


def echo_params(incoming: MemberRequest) -> None:
    incoming.result({"method": incoming.message["method"], **incoming.message["params"]})


BEHAVIOURS = {
    "prompts/list": lambda incoming: incoming.result({"prompts": [{"name": "greet"}]}),
    "resources/list": lambda incoming: incoming.result({"resources": [{"uri": "x:1", "name": "x"}]}),
    "resources/templates/list": lambda incoming: incoming.result({"resourceTemplates": [{"uriTemplate": "x:{n}"}]}),
    "*": echo_params,
}


@pytest.fixture
def notes(world: World) -> Member:
    """A member with every kind of list, once the gateway has read them all."""
    world.agent()
    tools = [{"name": "echo", "inputSchema": {"type": "object"}}, {"name": "off"}]
    member = world.member("notes", BEHAVIOURS, capabilities=ALL, tools=tools)
    Tool.objects.filter(name="off").update(enabled=False)
    eventually(lambda: world.agent().begin().ask("prompts/list")["result"]["prompts"])
    return member


def initialize(client: GatewayClient) -> dict[str, Any]:
    params = {"protocolVersion": "2025-06-18", "capabilities": {}}
    values: dict[str, Any] = client.send("initialize", **params).json()["result"]
    return values


def test_the_handshake_of_the_roster_has_the_capabilities_of_all_members(world: World) -> None:
    handshake = initialize(world.agent())
    assert handshake["capabilities"] == {"tools": {"listChanged": True}}
    assert handshake["serverInfo"]["name"] == "guild-hall"
    world.member("a", capabilities={"resources": {}})
    eventually(lambda: "resources" in initialize(world.agent())["capabilities"])
    assert initialize(world.agent())["capabilities"]["resources"] == {"listChanged": True}
    world.member("b", capabilities=ALL)
    eventually(lambda: "prompts" in initialize(world.agent())["capabilities"])
    assert initialize(world.agent())["capabilities"] == {
        "tools": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
        "prompts": {"listChanged": True},
        "logging": {},
        "completions": {},
    }


def test_the_handshake_of_a_member_has_its_own_name_and_capabilities(world: World) -> None:
    world.member(capabilities={"tools": {"x": 1}, "odd": {}})
    GuildMember.objects.update(instructions="Be kind.", server_info={"title": "Notes!"})
    handshake = initialize(world.agent("/mcp/notes"))
    assert handshake["capabilities"] == {"tools": {"x": 1, "listChanged": True}, "odd": {}}
    assert handshake["serverInfo"] == {"version": "", "title": "Notes!", "name": "notes"}
    assert handshake["instructions"] == "Be kind."


HANDSHAKE_CAPABILITIES = {"tools": {"listChanged": False}, "prompts": {"listChanged": True}, "logging": {}}
DISCOVERY_CAPABILITIES = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": False},
    "resources": {"subscribe": True, "listChanged": True},
    "extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html"]}},
}


def discover(incoming: MemberRequest) -> None:
    incoming.result(
        {
            "resultType": "complete",
            "supportedVersions": [MODERN_VERSION],
            "capabilities": DISCOVERY_CAPABILITIES,
            "instructions": "In the modern way.",
            "_meta": {f"{META}serverInfo": {"name": "both", "version": "2"}},
        }
    )


def test_a_member_of_both_eras_has_the_capabilities_of_each_era(world: World) -> None:
    member = world.member(behaviours={"server/discover": discover}, capabilities=HANDSHAKE_CAPABILITIES)
    client = world.agent("/mcp/notes")
    for _ in range(2):
        discovery = client.modern("server/discover").json()["result"]
        assert discovery["capabilities"] == DISCOVERY_CAPABILITIES
        assert discovery["instructions"] == "In the modern way."
        assert discovery["_meta"] == {f"{META}serverInfo": {"name": "both", "version": "2"}}
        assert discovery["supportedVersions"][0] == MODERN_VERSION
        assert initialize(client)["capabilities"] == {**HANDSHAKE_CAPABILITIES, "tools": {"listChanged": True}}
        world.live.clear()  # the second time from memory
    assert len(member.messages("server/discover")) == 1
    member.behaviours["server/discover"] = lambda incoming: incoming.error(-32601, "Method not found", status=404)
    world.live[member.row.pk] = member.restart()
    assert client.modern("server/discover").json()["result"]["capabilities"]["logging"] == {}


@pytest.mark.parametrize("capabilities", [None, [], {"tools": {"x": "y" * 70_000}}])
def test_the_capabilities_of_the_handshake_replace_invalid_ones_of_server_discover(
    world: World, capabilities: Any
) -> None:
    discovery = {"supportedVersions": [MODERN_VERSION], "capabilities": capabilities}
    world.member(
        behaviours={"server/discover": lambda incoming: incoming.result(discovery)}, capabilities=HANDSHAKE_CAPABILITIES
    )
    discovery = world.agent("/mcp/notes").modern("server/discover").json()["result"]
    assert discovery["capabilities"]["prompts"] == {"listChanged": True}


def test_a_member_without_tools_has_no_tools_in_its_capabilities(world: World) -> None:
    world.member(capabilities={"prompts": {}})
    assert initialize(world.agent("/mcp/notes"))["capabilities"] == {"prompts": {}}


def test_methods_of_extensions_keep_the_header_mcp_name(world: World) -> None:
    member = world.member(behaviours={**MODERN, "*": echo_params})
    client = world.agent("/mcp/notes")
    message, headers = client.modern_message("jobs/get", jobId="j1")
    assert client.post(message, **headers, Mcp_Name="j1").status_code == 200
    (job_request,) = [
        request for request in member.requests if request.body and request.message["method"] == "jobs/get"
    ]
    assert job_request.headers["mcp-name"] == "j1"


def test_prompts_and_resources_reach_their_member_under_its_own_names(world: World, notes: Member) -> None:
    client = world.agent().begin()
    assert client.ask("prompts/get", name="notes__greet", arguments={"a": "1"})["result"] == {
        "method": "prompts/get",
        "name": "greet",
        "arguments": {"a": "1"},
    }
    for uri in ("guild://notes/x:1", "x:1"):
        assert client.ask("resources/read", uri=uri)["result"] == {"method": "resources/read", "uri": "x:1"}
    ref = {"type": "ref/prompt", "name": "notes__greet"}
    completion = client.ask("completion/complete", ref=ref, argument={"name": "a"})["result"]
    assert completion["ref"] == {"type": "ref/prompt", "name": "greet"}
    ref = {"type": "ref/resource", "uri": "guild://notes/x:{n}"}
    assert client.ask("completion/complete", ref=ref)["result"]["ref"]["uri"] == "x:{n}"


def test_an_unknown_name_is_refused_with_the_error_code_of_the_era(world: World, notes: Member) -> None:
    session_client, modern_client = world.agent().begin(), world.agent()
    assert session_client.ask("resources/read", uri="y:1")["error"] == {
        "code": -32002,
        "message": "no member has 'y:1'",
        "data": {"uri": "y:1"},
    }
    assert modern_client.modern("resources/read", uri="y:1").json()["error"]["code"] == -32602
    for method, params in {
        "prompts/get": {"name": "nobody__x"},
        "completion/complete": {"ref": {"type": "ref/prompt", "name": "x"}},
        "tools/call": {"name": "x"},
    }.items():
        assert session_client.ask(method, **params)["error"]["code"] == -32602, method
    for method in ("tools/list", "prompts/list"):
        assert session_client.ask(method, cursor="2")["error"]["message"] == "unknown cursor: the list has one page"
    assert session_client.ask("odd/method")["error"] == {"code": -32601, "message": "Method not found: 'odd/method'"}


MALFORMED: dict[str, tuple[str, dict[str, Any]]] = {
    "tools/call: name must be a string": ("tools/call", {"arguments": {}}),
    "prompts/get: name must be a string": ("prompts/get", {"name": 5}),
    "resources/read: uri must be a string": ("resources/read", {"uri": None}),
    "resources/subscribe: uri must be a string": ("resources/subscribe", {}),
    "resources/unsubscribe: uri must be a string": ("resources/unsubscribe", {"uri": ["x:1"]}),
    "tools/call: arguments must be an object": ("tools/call", {"name": "echo", "arguments": [1]}),
    "prompts/get: arguments must be an object": ("prompts/get", {"name": "greet", "arguments": "a"}),
    "completion/complete: ref.type must be one of ref/prompt, ref/resource": ("completion/complete", {"ref": "greet"}),
    "completion/complete: ref.name must be a string": ("completion/complete", {"ref": {"type": "ref/prompt"}}),
    "completion/complete: ref.uri must be a string": ("completion/complete", {"ref": {"type": "ref/resource"}}),
}


@pytest.mark.parametrize("path", ["/mcp", "/mcp/notes"])
def test_a_request_with_invalid_params_is_refused_and_reaches_no_member(world: World, notes: Member, path: str) -> None:
    session_client, modern_client = world.agent(path).begin(), world.agent(path)
    invalid_params = {"name": 5, "arguments": {}}
    assert session_client.ask("tools/call", **invalid_params)["error"]["message"] == "tools/call: name must be a string"
    for reason, (method, params) in MALFORMED.items():
        error = session_client.ask(method, **params)["error"]
        assert (error["code"], error["message"]) == (-32602, reason)
        if method not in ("resources/subscribe", "resources/unsubscribe"):
            message, headers = modern_client.modern_message(method)
            message["params"] |= params
            target = params.get("name", params.get("uri"))
            name_header = {"Mcp_Name": target} if isinstance(target, str) else {}
            assert modern_client.post(message, **headers, **name_header).json()["error"] == error
        assert notes.messages(method) == []


def test_arguments_may_be_left_out_or_null(world: World, notes: Member) -> None:
    client = world.agent().begin()
    assert "result" in client.ask("tools/call", name="notes__echo")
    assert "result" in client.ask("tools/call", name="notes__echo", arguments=None)


def test_the_error_names_the_prompt_or_resource_that_does_not_exist(world: World, notes: Member) -> None:
    client = world.agent().begin()
    prompt = "no member has the prompt 'greet'; see prompts/list"
    assert client.ask("prompts/get", name="greet")["error"] == {"code": -32602, "message": prompt}
    ref = {"type": "ref/prompt", "name": "greet"}
    assert client.ask("completion/complete", ref=ref)["error"] == {"code": -32602, "message": prompt}
    ref = {"type": "ref/resource", "uri": "y:{n}"}
    resource = "no member has the resource 'y:{n}'; see resources/list"
    assert client.ask("completion/complete", ref=ref)["error"] == {"code": -32602, "message": resource}


def test_a_cancellation_of_the_id_true_does_not_cancel_request_1(world: World) -> None:
    member = world.member(behaviours={"tools/call": lambda incoming: incoming.hang()}, timeout=2.0)
    client, second_client = world.agent().begin(), world.agent()
    second_client.http.headers.update(client.http.headers)
    with in_background(lambda: client.post(request(1, "tools/call", name="notes__echo")).json()["error"]) as errors:
        eventually(lambda: member.messages("tools/call"))
        assert second_client.notify("notifications/cancelled", requestId=True).status_code == 202
    assert errors[0]["data"]["kind"] == "timeout"


# Tasks ------------------------------------------------------------------------------------------------------------

TASKS = [
    {"name": "plain", "execution": {"taskSupport": "optional"}},
    {"name": "long", "execution": {"taskSupport": "required"}},
]


def test_a_tool_that_runs_only_as_a_task_is_listed_only_by_its_member(world: World) -> None:
    member = world.member(tools=TASKS, behaviours={"tools/list": lambda incoming: incoming.result({"tools": TASKS})})
    client, member_client = world.agent().begin(), world.agent("/mcp/notes").begin("2025-11-25", tasks={})
    assert client.tools() == ["notes__plain"]
    error = client.call("notes__long")["error"]
    assert error["code"] == -32602
    assert error["message"].startswith("tool 'long' of member 'notes' runs only as a task")
    assert member.messages("tools/call") == []
    assert member_client.tools() == ["plain", "long"]
    member_client.ask("tools/call", name="long", task={"ttl": 1})
    assert member.messages("tools/call")[-1]["params"] == {"name": "long", "task": {"ttl": 1}}


def test_a_call_as_a_task_is_a_plain_call_if_tasks_are_not_available(world: World) -> None:
    member = world.member(tools=TASKS, behaviours=MODERN)
    world.agent().begin().ask("tools/call", name="notes__plain", task={"ttl": 1})
    capabilities = {"extensions": {"io.modelcontextprotocol/tasks": {}, "x/y": {}}, "sampling": {}}
    meta = {f"{META}clientCapabilities": capabilities}
    world.agent().modern("tools/call", name="notes__plain", meta=meta)
    session_params, modern_params = (message["params"] for message in member.messages("tools/call"))
    assert "task" not in session_params
    assert modern_params["_meta"][f"{META}clientCapabilities"] == {"extensions": {"x/y": {}}, "sampling": {}}


def test_a_disabled_tool_cannot_be_called(world: World, notes: Member) -> None:
    for client, name in ((world.agent().begin(), "notes__off"), (world.agent("/mcp/notes").begin(), "off")):
        assert "there is none, or it is disabled" in client.call(name)["error"]["message"]
    assert notes.messages("tools/call") == []


def test_a_held_tool_is_in_no_list_and_its_call_says_why(world: World, notes: Member) -> None:
    Tool.objects.filter(name="echo").update(is_held=True)
    Contract.objects.create(member=notes.row, kind="tool", name="echo", is_held=True, reason="a text changed")
    world.gateway.member_changed(notes.row.pk)
    roster, member = world.agent().begin(), world.agent("/mcp/notes").begin()
    eventually(lambda: roster.tools() == [])
    notes.behaviours["tools/list"] = lambda incoming: incoming.result({"tools": [{"name": "echo"}, {"name": "new"}]})
    eventually(lambda: member.tools() == ["new"], what="the gateway has read both rows")
    for client, name in ((roster, "notes__echo"), (member, "echo")):
        error = client.call(name)["error"]
        assert error["message"].startswith("tool 'echo' of member 'notes' is held, because a text changed. Nobody can")
        assert error["data"] == {"member": "notes", "kind": "held"}
    assert notes.messages("tools/call") == []
    other = GuildMember.objects.create(name="other", directory="other")
    stranger = make_token(scope=Token.Scope.MEMBERS, members=[other])
    message = world.agent("/mcp", stranger).begin().call("notes__echo")["error"]["message"]
    assert "held" not in message


@pytest.mark.parametrize(("path", "name"), [("/mcp", "notes__echo"), ("/mcp/notes", "echo")])
def test_a_call_that_starts_its_member_is_refused_if_the_new_list_is_held(
    world: World, notes: Member, path: str, name: str
) -> None:
    """The roster in memory still has the tool as it was agreed."""
    client, live_member = world.agent(path).begin(), world.live.pop(notes.row.pk)
    Tool.objects.filter(name="echo").update(is_held=True)
    Contract.objects.create(member=notes.row, kind="tool", name="echo", is_held=True, reason="a text changed")
    live_member.held_tools = frozenset({"echo"})

    def start() -> None:
        world.live[notes.row.pk] = live_member

    threading.Timer(0.3, start).start()
    error = client.call(name)["error"]
    assert error["data"] == {"member": "notes", "kind": "held"}
    assert notes.messages("tools/call") == []
    Tool.objects.filter(name="echo").update(is_held=False)  # an approval, before the member lists its tools again
    Contract.objects.update(is_held=False)
    world.gateway.member_changed(notes.row.pk)
    eventually(lambda: "result" in client.call(name), what="the gateway has read the approval")
    eventually(lambda: live_member.relayed_calls == 0)


def test_the_instructions_of_a_discovery_are_not_passed_on_if_changes_are_held(world: World) -> None:
    member = world.member(
        behaviours={"server/discover": discover}, capabilities=HANDSHAKE_CAPABILITIES, contracts="hold"
    )
    GuildMember.objects.update(instructions="As agreed.")
    world.gateway.member_changed(member.row.pk)
    eventually(lambda: initialize(world.agent("/mcp/notes")).get("instructions"))
    discovery = world.agent("/mcp/notes").modern("server/discover").json()["result"]
    assert discovery["capabilities"] == DISCOVERY_CAPABILITIES
    assert discovery["instructions"] == "As agreed."


def test_a_list_of_a_member_whose_changes_are_held_has_each_key_once(world: World) -> None:
    """A client may read the first of two keys, and the hall has read the last one."""
    tools = [{"name": "echo", "description": "Good."}]
    member = world.member("notes", tools=tools, contracts="hold")
    for tool in Tool.objects.all():
        Tool.objects.filter(pk=tool.pk).update(version=version_of(tool.definition))

    def twice(incoming: MemberRequest) -> None:
        entry = '{"name": "echo", "description": "Evil.", "description": "Good."}'
        body = f'{{"jsonrpc": "2.0", "id": {json.dumps(incoming.id)}, "result": {{"tools": [{entry}]}}}}'
        incoming.http(200, body.encode())

    member.behaviours["tools/list"] = twice
    response = world.agent("/mcp/notes").begin().send("tools/list")
    assert member.messages("tools/list") != []
    assert "Good." in response.text
    assert "Evil." not in response.text


def test_a_members_own_list_has_only_tools_as_the_hall_knows_them_if_changes_are_held(world: World) -> None:
    """Otherwise a client would read a changed tool before the hall lists the tools again."""
    tools = [{"name": "echo", "description": "Old."}, {"name": "same", "inputSchema": {"type": "object"}}]
    member = world.member("notes", tools=tools, contracts="hold")
    for tool in Tool.objects.all():
        Tool.objects.filter(pk=tool.pk).update(version=version_of(tool.definition))
    client = world.agent("/mcp/notes").begin()
    changed = [{"name": "echo", "description": "New."}, dict(reversed(tools[1].items())), {"name": "unlisted"}]
    member.behaviours["tools/list"] = lambda incoming: incoming.result({"tools": changed})
    assert client.tools() == ["same"]
    assert "unknown tool 'unlisted'" in client.call("unlisted")["error"]["message"]
    assert member.messages("tools/call") == []


def test_a_members_own_list_passes_without_disabled_tools(world: World, notes: Member) -> None:
    tools = [{"name": "echo", "x": 1}, {"name": "off"}, {"name": "new"}]
    client = world.agent("/mcp/notes").begin()
    notes.behaviours["tools/list"] = lambda incoming: incoming.result({"tools": tools, "nextCursor": "2"})
    assert client.ask("tools/list")["result"] == {"tools": [tools[0], tools[2]], "nextCursor": "2"}

    def stream(incoming: MemberRequest) -> None:
        incoming.stream(event({"jsonrpc": "2.0", "method": "notifications/x"}), event(result(incoming.id, tools=tools)))
        incoming.hang_up()

    notes.behaviours["tools/list"] = stream
    assert client.tools() == ["echo", "new"]
    notes.behaviours["tools/list"] = lambda incoming: incoming.result({"tools": tools[:1]})
    assert client.tools() == ["echo"]
    notes.behaviours["tools/list"] = lambda incoming: incoming.result({"odd": 1})
    assert client.ask("tools/list")["result"] == {"odd": 1}
    assert client.ask("prompts/list")["result"] == {"prompts": [{"name": "greet"}]}
    assert client.ask("custom/method", a=1)["result"] == {"method": "custom/method", "a": 1}


def test_a_members_lists_come_from_memory_while_the_member_does_not_respond(
    world: World, notes: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_endpoints, "LIST_TIMEOUT", 0.05)
    client = world.agent("/mcp/notes").begin()
    client.call("echo")
    notes.behaviours["tools/list"] = lambda incoming: incoming.hang()
    assert client.ask("tools/list")["result"]["tools"] == [{"name": "echo", "inputSchema": {"type": "object"}}]
    world.live.clear()
    assert client.tools() == ["echo"]
    for method, kind, entry in (
        ("prompts/list", "prompts", {"name": "greet"}),
        ("resources/list", "resources", {"uri": "x:1", "name": "x"}),
        ("resources/templates/list", "resourceTemplates", {"uriTemplate": "x:{n}"}),
    ):
        assert client.ask(method)["result"] == {kind: [entry]}
    assert client.ask("tools/list", cursor="2")["error"]["code"] == -32602
    world.member("bare")
    world.live.clear()
    assert world.agent("/mcp/bare").begin().ask("prompts/list")["result"] == {"prompts": []}


def test_a_token_for_single_tools_gives_no_access_to_the_rest_of_the_member(world: World, notes: Member) -> None:
    token = make_token(scope=Token.Scope.TOOLS, tools=[Tool.objects.get(name="echo")])
    client = world.agent("/mcp/notes", token=token).begin()
    assert client.call("echo")["result"] == text("{}")
    assert client.call("new")["error"]["data"] == {"member": "notes", "kind": "forbidden"}
    assert client.ask("resources/list")["result"] == {"resources": []}
    assert "only single tools" in client.ask("resources/read", uri="x:1")["error"]["message"]
    notes.behaviours["tools/list"] = lambda incoming: incoming.result({"tools": [{"name": "echo"}, {"name": "new"}]})
    assert client.tools() == ["echo"]


def test_a_log_level_is_sent_to_current_and_later_upstream_sessions(world: World, notes: Member) -> None:
    client = world.agent().begin()
    assert client.ask("logging/setLevel", level="loud")["error"]["code"] == -32602
    other_member = world.member("other", {"*": echo_params})
    eventually(lambda: "other__echo" in client.tools())
    client.call("notes__echo")
    assert client.ask("logging/setLevel", level="warning")["result"] == {}
    assert [message["params"] for message in notes.messages("logging/setLevel")] == [{"level": "warning"}]
    assert other_member.messages("logging/setLevel") == []
    client.call("other__echo")
    assert [message["params"] for message in other_member.messages("logging/setLevel")] == [{"level": "warning"}]


def test_the_error_of_a_method_other_than_tools_call_names_the_member_too(world: World, notes: Member) -> None:
    notes.behaviours["*"] = lambda incoming: incoming.http(500, b"oops", kind="text/plain")
    error = world.agent().begin().ask("resources/read", uri="x:1")["error"]
    assert error["message"] == "resources/read of member 'notes': answered with HTTP status 500: 'oops'"
    assert error["data"] == {"member": "notes", "kind": "transport"}
    notes.behaviours["*"] = lambda incoming: incoming.error(-5, "own words", data=[1])
    error = world.agent().begin().ask("resources/read", uri="x:1")["error"]
    assert error == {"code": -5, "message": "own words", "data": [1]}


# Slots of a member ------------------------------------------------------------------------------------------------


def test_calls_of_one_token_that_hang_do_not_delay_another_token(world: World) -> None:
    may_continue = threading.Event()

    def call(incoming: MemberRequest) -> None:
        value = incoming.message["params"]["arguments"].get("say", "")
        if not value:
            may_continue.wait(20)
        incoming.result(text(value))

    member = world.member(behaviours={"tools/call": call})
    quick_client = world.agent(token=make_token()).begin()
    greedy_client = world.agent(token=make_token()).begin()
    message = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "notes__echo", "arguments": {}}}
    assert quick_client.text("notes__echo", say="first") == "first"
    connections = [greedy_client.send_only({**message, "id": number}) for number in range(64)]
    try:
        eventually(lambda: len(member.messages("tools/call")) >= 13)
        watch = Stopwatch()
        for number in range(5):
            assert quick_client.text("notes__echo", say=str(number)) == str(number)
        assert watch.seconds < 2
        assert len(member.messages("tools/call")) == 1 + 12 + 5
    finally:
        may_continue.set()
        for connection in connections:
            connection.close()

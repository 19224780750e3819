"""What is answered, and by whom: the roster as one server, each member as itself, from memory while it is away."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from mcp_runtime.gateway.endpoints import member as member_endpoints
from roster.models import GuildMember, Token, Tool
from tests.conftest import eventually
from tests.support.agents import META, GatewayClient, make_token
from tests.support.agents import MODERN as MODERN_VERSION
from tests.support.gateway_world import ALL, MODERN, Member, World, event, in_background, request, result, text
from tests.support.machine import Stopwatch
from tests.support.scripted_server import Request as Asked


def echo_params(asked: Asked) -> None:
    asked.result({"asked": asked.message["method"], **asked.message["params"]})


OFFERING = {
    "prompts/list": lambda asked: asked.result({"prompts": [{"name": "greet"}]}),
    "resources/list": lambda asked: asked.result({"resources": [{"uri": "x:1", "name": "x"}]}),
    "resources/templates/list": lambda asked: asked.result({"resourceTemplates": [{"uriTemplate": "x:{n}"}]}),
    "*": echo_params,
}


@pytest.fixture
def notes(world: World) -> Member:
    """A member that offers everything, once the gateway knows of all of it."""
    world.agent()
    tools = [{"name": "echo", "inputSchema": {"type": "object"}}, {"name": "off"}]
    member = world.member("notes", OFFERING, capabilities=ALL, tools=tools)
    Tool.objects.filter(name="off").update(enabled=False)
    eventually(lambda: world.agent().begin().ask("prompts/list")["result"]["prompts"])
    return member


def introduced(agent: GatewayClient) -> dict[str, Any]:
    params = {"protocolVersion": "2025-06-18", "capabilities": {}}
    told: dict[str, Any] = agent.send("initialize", **params).json()["result"]
    return told


def test_the_roster_is_introduced_as_all_of_its_members_together(world: World) -> None:
    told = introduced(world.agent())
    assert told["capabilities"] == {"tools": {"listChanged": True}}
    assert told["serverInfo"]["name"] == "guild-hall"
    world.member("a", capabilities={"resources": {}})
    eventually(lambda: "resources" in introduced(world.agent())["capabilities"])
    assert introduced(world.agent())["capabilities"]["resources"] == {"listChanged": True}
    world.member("b", capabilities=ALL)
    eventually(lambda: "prompts" in introduced(world.agent())["capabilities"])
    assert introduced(world.agent())["capabilities"] == {
        "tools": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
        "prompts": {"listChanged": True},
        "logging": {},
        "completions": {},
    }


def test_a_member_is_introduced_as_itself(world: World) -> None:
    world.member(capabilities={"tools": {"x": 1}, "odd": {}})
    GuildMember.objects.update(instructions="Be kind.", server_info={"title": "Notes!"})
    told = introduced(world.agent("/mcp/notes"))
    assert told["capabilities"] == {"tools": {"x": 1, "listChanged": True}, "odd": {}}
    assert told["serverInfo"] == {"version": "", "title": "Notes!", "name": "notes"}
    assert told["instructions"] == "Be kind."


HANDSHAKE = {"tools": {"listChanged": False}, "prompts": {"listChanged": True}, "logging": {}}
DISCOVERED = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": False},
    "resources": {"subscribe": True, "listChanged": True},
    "extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html"]}},
}


def discovering(asked: Asked) -> None:
    asked.result(
        {
            "resultType": "complete",
            "supportedVersions": [MODERN_VERSION],
            "capabilities": DISCOVERED,
            "instructions": "In the modern way.",
            "_meta": {f"{META}serverInfo": {"name": "both", "version": "2"}},
        }
    )


def test_a_member_that_speaks_both_eras_is_introduced_in_each_with_what_it_says_there(world: World) -> None:
    member = world.member(behaviours={"server/discover": discovering}, capabilities=HANDSHAKE)
    agent = world.agent("/mcp/notes")
    for _ in range(2):
        told = agent.modern("server/discover").json()["result"]
        assert told["capabilities"] == DISCOVERED
        assert told["instructions"] == "In the modern way."
        assert told["_meta"] == {f"{META}serverInfo": {"name": "both", "version": "2"}}
        assert told["supportedVersions"][0] == MODERN_VERSION
        assert introduced(agent)["capabilities"] == {**HANDSHAKE, "tools": {"listChanged": True}}
        world.live.clear()  # the second time from memory
    assert len(member.messages("server/discover")) == 1
    member.behaviours["server/discover"] = lambda asked: asked.error(-32601, "Method not found", status=404)
    world.live[member.row.pk] = member.restart()
    assert agent.modern("server/discover").json()["result"]["capabilities"]["logging"] == {}


@pytest.mark.parametrize("capabilities", [None, [], {"tools": {"x": "y" * 70_000}}])
def test_a_member_that_says_nothing_useful_of_itself_is_introduced_by_its_handshake(
    world: World, capabilities: Any
) -> None:
    told = {"supportedVersions": [MODERN_VERSION], "capabilities": capabilities}
    world.member(behaviours={"server/discover": lambda asked: asked.result(told)}, capabilities=HANDSHAKE)
    told = world.agent("/mcp/notes").modern("server/discover").json()["result"]
    assert told["capabilities"]["prompts"] == {"listChanged": True}


def test_a_member_without_tools_is_not_introduced_as_one_that_has_some(world: World) -> None:
    world.member(capabilities={"prompts": {}})
    assert introduced(world.agent("/mcp/notes"))["capabilities"] == {"prompts": {}}


def test_methods_of_extensions_keep_the_header_that_names_what_they_are_about(world: World) -> None:
    member = world.member(behaviours={**MODERN, "*": echo_params})
    agent = world.agent("/mcp/notes")
    message, headers = agent.modern_message("jobs/get", jobId="j1")
    assert agent.post(message, **headers, Mcp_Name="j1").status_code == 200
    (asked,) = [one for one in member.requests if one.body and one.message["method"] == "jobs/get"]
    assert asked.headers["mcp-name"] == "j1"


def test_named_things_go_to_the_member_that_has_them_under_its_own_names(world: World, notes: Member) -> None:
    agent = world.agent().begin()
    assert agent.ask("prompts/get", name="notes__greet", arguments={"a": "1"})["result"] == {
        "asked": "prompts/get",
        "name": "greet",
        "arguments": {"a": "1"},
    }
    for uri in ("guild://notes/x:1", "x:1"):
        assert agent.ask("resources/read", uri=uri)["result"] == {"asked": "resources/read", "uri": "x:1"}
    ref = {"type": "ref/prompt", "name": "notes__greet"}
    told = agent.ask("completion/complete", ref=ref, argument={"name": "a"})["result"]
    assert told["ref"] == {"type": "ref/prompt", "name": "greet"}
    ref = {"type": "ref/resource", "uri": "guild://notes/x:{n}"}
    assert agent.ask("completion/complete", ref=ref)["result"]["ref"]["uri"] == "x:{n}"


def test_what_no_member_has_is_refused_in_the_words_of_the_era(world: World, notes: Member) -> None:
    old, new = world.agent().begin(), world.agent()
    assert old.ask("resources/read", uri="y:1")["error"] == {
        "code": -32002,
        "message": "no member has 'y:1'",
        "data": {"uri": "y:1"},
    }
    assert new.modern("resources/read", uri="y:1").json()["error"]["code"] == -32602
    for method, params in {
        "prompts/get": {"name": "nobody__x"},
        "completion/complete": {"ref": {"type": "ref/prompt", "name": "x"}},
        "tools/call": {"name": "x"},
    }.items():
        assert old.ask(method, **params)["error"]["code"] == -32602, method
    for method in ("tools/list", "prompts/list"):
        assert old.ask(method, cursor="2")["error"]["message"] == "unknown cursor: the list has one page"
    assert old.ask("odd/method")["error"] == {"code": -32601, "message": "Method not found: 'odd/method'"}


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
def test_a_request_that_does_not_say_what_it_is_about_is_refused_and_reaches_no_member(
    world: World, notes: Member, path: str
) -> None:
    old, new = world.agent(path).begin(), world.agent(path)
    odd_name = {"name": 5, "arguments": {}}
    assert old.ask("tools/call", **odd_name)["error"]["message"] == "tools/call: name must be a string"
    for reason, (method, params) in MALFORMED.items():
        error = old.ask(method, **params)["error"]
        assert (error["code"], error["message"]) == (-32602, reason)
        if method not in ("resources/subscribe", "resources/unsubscribe"):
            message, headers = new.modern_message(method)
            message["params"] |= params
            named = params.get("name", params.get("uri"))
            name = {"Mcp_Name": named} if isinstance(named, str) else {}
            assert new.post(message, **headers, **name).json()["error"] == error
        assert notes.messages(method) == []


def test_arguments_may_be_left_out_or_null(world: World, notes: Member) -> None:
    agent = world.agent().begin()
    assert "result" in agent.ask("tools/call", name="notes__echo")
    assert "result" in agent.ask("tools/call", name="notes__echo", arguments=None)


def test_what_is_not_found_is_named(world: World, notes: Member) -> None:
    agent = world.agent().begin()
    prompt = "no member has the prompt 'greet'; see prompts/list"
    assert agent.ask("prompts/get", name="greet")["error"] == {"code": -32602, "message": prompt}
    ref = {"type": "ref/prompt", "name": "greet"}
    assert agent.ask("completion/complete", ref=ref)["error"] == {"code": -32602, "message": prompt}
    ref = {"type": "ref/resource", "uri": "y:{n}"}
    resource = "no member has the resource 'y:{n}'; see resources/list"
    assert agent.ask("completion/complete", ref=ref)["error"] == {"code": -32602, "message": resource}


def test_a_cancellation_of_true_does_not_cancel_request_one(world: World) -> None:
    member = world.member(behaviours={"tools/call": lambda asked: asked.hang()}, timeout=2.0)
    agent, other = world.agent().begin(), world.agent()
    other.http.headers.update(agent.http.headers)
    with in_background(lambda: agent.post(request(1, "tools/call", name="notes__echo")).json()["error"]) as ended:
        eventually(lambda: member.messages("tools/call"))
        assert other.notify("notifications/cancelled", requestId=True).status_code == 202
    assert ended[0]["data"]["kind"] == "timeout"


# Tasks ------------------------------------------------------------------------------------------------------------

TASKS = [
    {"name": "plain", "execution": {"taskSupport": "optional"}},
    {"name": "long", "execution": {"taskSupport": "required"}},
]


def test_a_tool_that_runs_only_as_a_task_is_offered_at_its_members_own_address_alone(world: World) -> None:
    member = world.member(tools=TASKS, behaviours={"tools/list": lambda asked: asked.result({"tools": TASKS})})
    agent, own = world.agent().begin(), world.agent("/mcp/notes").begin("2025-11-25", tasks={})
    assert agent.tools() == ["notes__plain"]
    refused = agent.call("notes__long")["error"]
    assert refused["code"] == -32602
    assert refused["message"].startswith("tool 'long' of member 'notes' runs only as a task")
    assert member.messages("tools/call") == []
    assert own.tools() == ["plain", "long"]
    own.ask("tools/call", name="long", task={"ttl": 1})
    assert member.messages("tools/call")[-1]["params"] == {"name": "long", "task": {"ttl": 1}}


def test_where_no_tasks_are_offered_a_call_as_a_task_is_a_plain_call(world: World) -> None:
    member = world.member(tools=TASKS, behaviours=MODERN)
    world.agent().begin().ask("tools/call", name="notes__plain", task={"ttl": 1})
    capabilities = {"extensions": {"io.modelcontextprotocol/tasks": {}, "x/y": {}}, "sampling": {}}
    meta = {f"{META}clientCapabilities": capabilities}
    world.agent().modern("tools/call", name="notes__plain", meta=meta)
    old, new = (message["params"] for message in member.messages("tools/call"))
    assert "task" not in old
    assert new["_meta"][f"{META}clientCapabilities"] == {"extensions": {"x/y": {}}, "sampling": {}}


def test_a_tool_that_is_disabled_is_not_there(world: World, notes: Member) -> None:
    for agent, name in ((world.agent().begin(), "notes__off"), (world.agent("/mcp/notes").begin(), "off")):
        assert "there is none, or it is disabled" in agent.call(name)["error"]["message"]
    assert notes.messages("tools/call") == []


def test_a_members_own_list_passes_without_what_is_disabled(world: World, notes: Member) -> None:
    tools = [{"name": "echo", "x": 1}, {"name": "off"}, {"name": "new"}]
    agent = world.agent("/mcp/notes").begin()
    notes.behaviours["tools/list"] = lambda asked: asked.result({"tools": tools, "nextCursor": "2"})
    assert agent.ask("tools/list")["result"] == {"tools": [tools[0], tools[2]], "nextCursor": "2"}

    def stream(asked: Asked) -> None:
        asked.stream(event({"jsonrpc": "2.0", "method": "notifications/x"}), event(result(asked.id, tools=tools)))
        asked.hang_up()

    notes.behaviours["tools/list"] = stream
    assert agent.tools() == ["echo", "new"]
    notes.behaviours["tools/list"] = lambda asked: asked.result({"tools": tools[:1]})
    assert agent.tools() == ["echo"]
    notes.behaviours["tools/list"] = lambda asked: asked.result({"odd": 1})
    assert agent.ask("tools/list")["result"] == {"odd": 1}
    assert agent.ask("prompts/list")["result"] == {"prompts": [{"name": "greet"}]}
    assert agent.ask("custom/method", a=1)["result"] == {"asked": "custom/method", "a": 1}


def test_a_members_lists_come_from_memory_while_it_cannot_say(
    world: World, notes: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_endpoints, "LIST_TIMEOUT", 0.05)
    agent = world.agent("/mcp/notes").begin()
    agent.call("echo")
    notes.behaviours["tools/list"] = lambda asked: asked.hang()
    assert agent.ask("tools/list")["result"]["tools"] == [{"name": "echo", "inputSchema": {"type": "object"}}]
    world.live.clear()
    assert agent.tools() == ["echo"]
    for method, kind, entry in (
        ("prompts/list", "prompts", {"name": "greet"}),
        ("resources/list", "resources", {"uri": "x:1", "name": "x"}),
        ("resources/templates/list", "resourceTemplates", {"uriTemplate": "x:{n}"}),
    ):
        assert agent.ask(method)["result"] == {kind: [entry]}
    assert agent.ask("tools/list", cursor="2")["error"]["code"] == -32602
    world.member("bare")
    world.live.clear()
    assert world.agent("/mcp/bare").begin().ask("prompts/list")["result"] == {"prompts": []}


def test_a_token_for_single_tools_opens_nothing_else_of_their_member(world: World, notes: Member) -> None:
    token = make_token(scope=Token.Scope.TOOLS, tools=[Tool.objects.get(name="echo")])
    agent = world.agent("/mcp/notes", token=token).begin()
    assert agent.call("echo")["result"] == text("{}")
    assert agent.call("new")["error"]["data"] == {"member": "notes", "kind": "forbidden"}
    assert agent.ask("resources/list")["result"] == {"resources": []}
    assert "only single tools" in agent.ask("resources/read", uri="x:1")["error"]["message"]
    notes.behaviours["tools/list"] = lambda asked: asked.result({"tools": [{"name": "echo"}, {"name": "new"}]})
    assert agent.tools() == ["echo"]


def test_a_log_level_is_sent_to_members_now_and_later(world: World, notes: Member) -> None:
    agent = world.agent().begin()
    assert agent.ask("logging/setLevel", level="loud")["error"]["code"] == -32602
    other = world.member("other", {"*": echo_params})
    eventually(lambda: "other__echo" in agent.tools())
    agent.call("notes__echo")
    assert agent.ask("logging/setLevel", level="warning")["result"] == {}
    assert [message["params"] for message in notes.messages("logging/setLevel")] == [{"level": "warning"}]
    assert other.messages("logging/setLevel") == []
    agent.call("other__echo")
    assert [message["params"] for message in other.messages("logging/setLevel")] == [{"level": "warning"}]


def test_a_failure_of_anything_else_than_a_tool_tells_its_member_too(world: World, notes: Member) -> None:
    notes.behaviours["*"] = lambda asked: asked.http(500, b"oops", kind="text/plain")
    error = world.agent().begin().ask("resources/read", uri="x:1")["error"]
    assert error["message"] == "resources/read of member 'notes': answered with HTTP status 500: 'oops'"
    assert error["data"] == {"member": "notes", "kind": "transport"}
    notes.behaviours["*"] = lambda asked: asked.error(-5, "own words", data=[1])
    error = world.agent().begin().ask("resources/read", uri="x:1")["error"]
    assert error == {"code": -5, "message": "own words", "data": [1]}


# Slots of a member ------------------------------------------------------------------------------------------------


def test_calls_of_one_token_that_hang_keep_no_other_token_waiting(world: World) -> None:
    go_on = threading.Event()

    def call(asked: Asked) -> None:
        said = asked.message["params"]["arguments"].get("say", "")
        if not said:
            go_on.wait(20)
        asked.result(text(said))

    member = world.member(behaviours={"tools/call": call})
    quick = world.agent(token=make_token()).begin()
    greedy = world.agent(token=make_token()).begin()
    message = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "notes__echo", "arguments": {}}}
    assert quick.text("notes__echo", say="first") == "first"
    sent = [greedy.send_only({**message, "id": number}) for number in range(64)]
    try:
        eventually(lambda: len(member.messages("tools/call")) >= 13)
        watch = Stopwatch()
        for number in range(5):
            assert quick.text("notes__echo", say=str(number)) == str(number)
        assert watch.seconds < 2
        assert len(member.messages("tools/call")) == 1 + 12 + 5
    finally:
        go_on.set()
        for connection in sent:
            connection.close()

"""Tool sets at the gateway: their lists, calls, prompts and resources, and who sees what."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User

from mcp_runtime.control.members import set_tool_enabled
from mcp_runtime.control.tool_sets import Entry, Values, change_tool_set, create_tool_set, delete_tool_set
from mcp_runtime.security.access import OPERATOR
from roster.models import Hall, Token, Tool, ToolSet
from tests.conftest import eventually
from tests.support.agents import GatewayClient, make_token
from tests.support.gateway_world import ALL, MODERN, Member, World

PATH = "/sets/writing/mcp"


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "description": f"{name} as the member says", "inputSchema": {"type": "object"}, **fields}


def answers(**fields: Any) -> Any:
    return lambda incoming: incoming.result(fields)


@pytest.fixture
def scripts() -> list[Member]:
    """The members of the stage."""
    return []


@pytest.fixture
def stage(world: World, scripts: list[Member]) -> World:
    """The members notes and files, with tools, prompts and resources."""
    Hall.objects.create()
    for name in ("notes", "files"):
        behaviours: dict[str, Any] = {
            "prompts/list": answers(prompts=[{"name": "p"}]),
            "prompts/get": answers(messages=[]),
            "resources/list": answers(resources=[{"uri": f"x://{name}", "name": "r"}]),
            "resources/templates/list": answers(resourceTemplates=[]),
            "resources/read": answers(contents=[]),
            "resources/subscribe": answers(),
        }
        scripts.append(world.member(name, behaviours, tools=[tool("add"), tool("find")], capabilities=ALL))
    return world


def create(*entries: Entry, **values: Any) -> ToolSet:
    return create_tool_set(Values("writing", entries=entries, **values), OPERATOR, None)


def change(row: ToolSet, *entries: Entry, **values: Any) -> None:
    change_tool_set(row, Values("writing", entries=entries, **values), OPERATOR)


def user(name: str, *groups: Group) -> User:
    row = User.objects.create_user(name)
    row.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    row.groups.set(groups)
    return row


def listed(agent: GatewayClient) -> dict[str, str]:
    return {tool["name"]: tool["description"] for tool in agent.ask("tools/list")["result"]["tools"]}


def test_a_set_lists_its_tools_with_their_new_texts_and_calls_the_real_ones(stage: World) -> None:
    create(Entry("notes", "add", "write", "Writes a note."), Entry("files", "find"))
    agent = stage.agent(PATH).begin()
    assert listed(agent) == {"write": "Writes a note.", "files__find": "find as the member says"}
    assert json.loads(agent.text("write", a=1)) == {"a": 1}
    assert json.loads(agent.text("files__find", b=2)) == {"b": 2}
    first, second = stage.calls(2)
    assert (first.member.name, first.tool_name, first.tool_set, first.status) == (
        "notes",
        "add",
        "writing",
        "succeeded",
    )
    assert (second.member.name, second.tool_name, second.tool_set) == ("files", "find", "writing")
    for name in ("notes__add", "notes__find", "add", "files__add"):
        assert agent.call(name)["error"]["code"] == -32602
    assert stage.agent().begin().text("notes__add")
    assert stage.calls(3)[2].tool_set is None


def test_the_member_gets_its_own_name_of_the_tool_also_from_a_modern_client(stage: World) -> None:
    member = stage.member("modern", MODERN, tools=[tool("own")])
    create(Entry("modern", "own", "renamed"))
    agent = stage.agent(PATH)
    eventually(lambda: agent.modern("tools/call", name="renamed", arguments={}).status_code == 200)
    assert {message["params"]["name"] for message in member.messages("tools/call")} == {"own"}
    calls = [request for request in member.requests if request.body and request.message["method"] == "tools/call"]
    assert {request.headers.get("Mcp-Name") for request in calls} == {"own"}


def test_a_whole_member_is_in_the_set_with_later_tools_prompts_and_resources(stage: World) -> None:
    create(Entry("notes"), Entry("files", "add"))
    agent = stage.agent(PATH).begin()
    assert sorted(listed(agent)) == ["files__add", "notes__add", "notes__find"]
    for row in stage.live.values():
        stage.gateway.member_changed(row.member_id)
    everything = stage.agent().begin()
    eventually(lambda: len(everything.ask("prompts/list")["result"]["prompts"]) == 2)
    eventually(lambda: len(everything.ask("resources/list")["result"]["resources"]) == 2)
    assert [prompt["name"] for prompt in agent.ask("prompts/list")["result"]["prompts"]] == ["notes__p"]
    uris = [resource["uri"] for resource in agent.ask("resources/list")["result"]["resources"]]
    assert uris == ["guild://notes/x://notes"]
    assert "result" in agent.ask("prompts/get", name="notes__p")
    assert "error" in agent.ask("prompts/get", name="files__p")
    for method in ("resources/read", "resources/subscribe"):
        assert "result" in agent.ask(method, uri="guild://notes/x://notes")
        assert "error" in agent.ask(method, uri="guild://files/x://files")
        assert "error" in agent.ask(method, uri="x://files")
    notes = Tool.objects.get(member__name="notes", name="add").member
    Tool.objects.create(member=notes, name="later", position=9, definition=tool("later"))
    stage.gateway.member_changed(notes.pk)
    eventually(lambda: "notes__later" in listed(agent))


def test_a_set_shows_each_client_only_what_it_may_call(stage: World) -> None:
    circle = Group.objects.create(name="circle")
    files, notes = (Tool.objects.get(member__name=name, name="add") for name in ("files", "notes"))
    files.member.groups.add(circle)
    create(Entry("notes", "add", "write"), Entry("files", "add", "save"), Entry("notes", "find"))
    outsider, insider = user("outsider"), user("insider", circle)
    assert sorted(listed(stage.agent(PATH, make_token(insider)).begin())) == ["notes__find", "save", "write"]
    agent = stage.agent(PATH, make_token(outsider)).begin()
    assert sorted(listed(agent)) == ["notes__find", "write"]
    refusal = agent.call("save")["error"]
    assert refusal["code"] == -32602
    assert "files" not in json.dumps(refusal)  # the member does not exist for this user
    narrow = stage.agent(PATH, make_token(outsider, scope="tools", tools=[notes])).begin()
    assert sorted(listed(narrow)) == ["write"]
    assert "error" in narrow.call("notes__find")
    set_tool_enabled(notes, False)
    eventually(lambda: listed(narrow) == {})
    assert "error" in narrow.call("write")


def test_a_reserved_set_has_no_address_for_others(stage: World) -> None:
    circle = Group.objects.create(name="circle")
    row = create(Entry("notes"), groups=[circle])
    outsider = user("outsider")
    agent = stage.agent(PATH, make_token(outsider))
    missing = stage.agent("/sets/nobody/mcp", make_token(outsider))
    responses = [each.send("initialize", protocolVersion="2025-06-18", capabilities={}) for each in (agent, missing)]
    assert [response.status_code for response in responses] == [404, 404]
    assert responses[0].text.replace("writing", "nobody") == responses[1].text
    outsider.groups.add(circle)
    eventually(lambda: agent.send("ping").status_code != 404)
    agent.begin()
    assert sorted(listed(agent)) == ["notes__add", "notes__find"]
    with agent.listen() as stream:
        outsider.groups.clear()
        assert stream.ended.wait(10)
    eventually(lambda: agent.send("tools/list").status_code == 404)
    delete_tool_set(row)
    superuser = stage.agent(PATH)
    eventually(lambda: superuser.send("ping").status_code == 404)


def test_clients_hear_of_changes_of_the_set_and_of_nothing_else(stage: World) -> None:
    row = create(Entry("notes", "add"))
    agent, other = stage.agent(PATH).begin(), stage.agent("/mcp").begin()
    with agent.listen() as stream, other.listen() as other_stream:
        change(row, Entry("notes", "add", "write"))
        stream.until("notifications/tools/list_changed")
        assert list(listed(agent)) == ["write"]
        change(row, Entry("notes", "add", "write", "Other words."))
        stream.until("notifications/tools/list_changed")
        change(row, Entry("notes", "add", "write", "Other words."), title="This changes no list")
        set_tool_enabled(Tool.objects.get(member__name="files", name="add"), False)
        other_stream.until("notifications/tools/list_changed")
        assert [message["method"] for message in other_stream.all_messages] == ["notifications/tools/list_changed"]
        assert len(stream.all_messages) == 2
        delete_tool_set(row)
        assert stream.ended.wait(10)


def test_the_introduction_has_the_words_of_the_set(stage: World) -> None:
    create(Entry("notes", "add"), title="Writing", description="Use write for notes.")
    agent = stage.agent(PATH)
    eventually(lambda: agent.send("ping").status_code != 404)
    result = agent.ask("initialize", protocolVersion="2025-06-18", capabilities={})["result"]
    assert result["instructions"] == "Use write for notes."
    assert result["serverInfo"]["title"] == "Writing"
    assert result["capabilities"] == {"tools": {"listChanged": True}, "logging": {}}
    discovery = agent.modern("server/discover").json()["result"]
    assert discovery["instructions"] == "Use write for notes."
    change(ToolSet.objects.get(), Entry("notes"))
    eventually(lambda: "resources" in agent.modern("server/discover").json()["result"]["capabilities"])
    assert "Tools of several servers" in agent.modern("server/discover").json()["result"]["instructions"]


def test_a_token_for_a_set_reaches_only_what_is_in_it(stage: World) -> None:
    row = create(Entry("notes"), Entry("files", "add", "save"))
    create_tool_set(Values("other", entries=[Entry("files")]), OPERATOR, None)
    token = make_token(user("bob"), scope=Token.Scope.TOOLS, tool_set=row)
    agent = stage.agent(PATH, token).begin()
    assert sorted(listed(agent)) == ["notes__add", "notes__find", "save"]
    everywhere = stage.agent("/mcp", token).begin()
    assert sorted(listed(everywhere)) == ["files__add", "notes__add", "notes__find"]
    assert "error" in everywhere.call("files__find")
    assert stage.agent("/sets/other/mcp", token).send("ping").status_code == 404
    assert "error" in stage.agent("/mcp/files", token).begin().call("find")
    change(row, Entry("files", "find"))
    eventually(lambda: list(listed(agent)) == ["files__find"])
    assert list(listed(everywhere)) == ["files__find"]
    assert "error" in everywhere.call("notes__add")
    delete_tool_set(row)
    eventually(lambda: agent.send("tools/list").status_code == 404)
    eventually(lambda: listed(everywhere) == {})


def test_names_that_a_set_does_not_have_reach_no_member(stage: World, scripts: list[Member]) -> None:
    create(Entry("notes", "add", "write"))
    agent = stage.agent(PATH).begin()
    for name in ("", "Write", "write ", "write\n", "notes__add", "x" * 10_000):
        response = agent.call(name)
        assert response["error"]["code"] == -32602, name
        assert len(json.dumps(response)) < 1_000
    assert [member.messages("tools/call") for member in scripts] == [[], []]

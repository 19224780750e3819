from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.core.management import CommandError, call_command
from django.test import Client

from mcp_runtime.control.members import reserve_member
from mcp_runtime.control.tool_sets import Entry, Values, create_tool_set
from mcp_runtime.security.access import OPERATOR
from roster.models import GuildMember, Token, Tool, ToolSet
from tests.support.api import client_of

pytestmark = pytest.mark.django_db
ADDRESS = "/api/tool-sets/writing/"


@pytest.fixture(autouse=True)
def members() -> None:
    for name in ("notes", "files"):
        member = GuildMember.objects.create(name=name, directory=name)
        Tool.objects.create(member=member, name="add", definition={"name": "add", "description": f"adds to {name}"})


def put(client: Client, address: str = ADDRESS, **body: Any) -> tuple[int, Any]:
    response = client.put(address, body, content_type="application/json")
    return response.status_code, response.json()


def test_a_tool_set_is_created_replaced_shown_and_deleted(as_alice: Client) -> None:
    entries = [{"member": "notes", "tool": "add", "new_name": "write", "new_description": "Writes."}]
    code, answer = put(as_alice, title="Writing", description="For writers.", entries=[*entries, {"member": "files"}])
    assert (code, answer["path"], answer["created_by"]) == (201, "/sets/writing/mcp", "alice")
    assert answer["entries"][0] == entries[0]
    assert [(tool["name"], tool["description"], tool["fault"]) for tool in answer["tools"]] == [
        ("write", "Writes.", ""),
        ("files__add", "adds to files", ""),
    ]
    assert as_alice.get("/api/tool-sets/").json()["results"][0]["name"] == "writing"
    assert put(as_alice, entries=entries)[0] == 200
    answer = as_alice.get(ADDRESS).json()
    assert (answer["title"], answer["entries"]) == ("", entries)
    assert as_alice.delete(ADDRESS).status_code == 204
    assert as_alice.get(ADDRESS).status_code == 404
    assert not ToolSet.objects.exists()


@pytest.mark.parametrize(
    ("address", "body", "status", "code"),
    [
        ("/api/tool-sets/A/", {}, 409, "refused"),
        (ADDRESS, {"titel": "x"}, 400, "invalid"),
        (ADDRESS, {"title": "x" * 101}, 400, "invalid"),
        (ADDRESS, {"groups": ["nobody"]}, 400, "invalid"),
        (ADDRESS, {"entries": [{"member": "notes", "name": "x"}]}, 400, "invalid"),
        (ADDRESS, {"entries": [{"member": "nobody"}]}, 404, "unknown_member"),
        (ADDRESS, {"entries": [{"member": "notes", "tool": "x"}]}, 404, "unknown_tool"),
        (ADDRESS, {"entries": [{"member": "notes", "tool": "add", "new_name": "a b"}]}, 409, "refused"),
        (ADDRESS, {"entries": [{"member": "notes"}, {"member": "notes"}]}, 409, "refused"),
    ],
)
def test_impossible_values_change_nothing(
    as_alice: Client, address: str, body: dict[str, Any], status: int, code: str
) -> None:
    answer = put(as_alice, address, **body)
    assert (answer[0], answer[1]["code"]) == (status, code)
    assert not ToolSet.objects.exists()


def test_others_see_only_what_exists_for_them_and_need_permissions_to_change_it() -> None:
    circle = Group.objects.create(name="circle")
    reserve_member(GuildMember.objects.get(name="files"), [circle])
    entries = [Entry("notes"), Entry("files", "add", "save")]
    create_tool_set(Values("writing", entries=entries), OPERATOR, None)
    create_tool_set(Values("closed", groups=[circle]), OPERATOR, None)
    bob = User.objects.create_user("bob")
    bob.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    client = client_of(bob)
    answer = client.get("/api/tool-sets/").json()["results"]
    assert [(row["name"], [entry["member"] for entry in row["entries"]]) for row in answer] == [("writing", ["notes"])]
    assert answer[0]["groups"] is None
    assert "save" not in client.get(ADDRESS).content.decode()
    assert client.get("/api/tool-sets/closed/").status_code == 404
    assert put(client)[0] == put(client, "/api/tool-sets/new/")[0] == client.delete(ADDRESS).status_code == 403
    assert ToolSet.objects.count() == 2


def test_the_command_shows_all_tool_sets() -> None:
    def run(*options: str) -> str:
        out = StringIO()
        call_command("tool_sets", *options, stdout=out)
        return out.getvalue()

    assert "This hall has no tool sets" in run()
    circle = Group.objects.create(name="circle")
    entries = [Entry("notes", "add", "write"), Entry("files")]
    create_tool_set(Values("writing", "Writing", groups=[circle], entries=entries), OPERATOR, None)
    assert run().splitlines()[1].split() == ["writing", "Writing", "circle", "notes/add", "as", "write,", "files"]
    values = json.loads(run("--json"))[0]
    assert (values["name"], values["groups"], values["entries"][1]["member"]) == ("writing", ["circle"], "files")


# Tokens and configurations ----------------------------------------------------------------------------------------


@pytest.fixture
def writing() -> ToolSet:
    entries = [Entry("notes", "add", "write", "Writes."), Entry("files")]
    return create_tool_set(Values("writing", entries=entries), OPERATOR, None)


def test_a_token_is_made_for_a_tool_set_and_says_so(as_alice: Client, writing: ToolSet) -> None:
    answer = as_alice.post("/api/tokens/", {"tool_set": "writing"}, content_type="application/json").json()
    assert (answer["scope"], answer["tools"], answer["tool_set"]) == ("tools", [], "writing")
    assert as_alice.get("/api/tokens/").json()["results"][0]["tool_set"] == "writing"
    headers = {"Authorization": f"Bearer {answer['token']}"}
    create_tool_set(Values("other"), OPERATOR, None)
    visible = Client().get("/api/tool-sets/", headers=headers).json()["results"]
    assert [row["name"] for row in visible] == ["writing"]
    body = {"tool_set": "nobody"}
    assert as_alice.post("/api/tokens/", body, content_type="application/json").json()["code"] == "unknown_tool_set"
    both = {"tool_set": "writing", "members": ["notes"]}
    assert as_alice.post("/api/tokens/", both, content_type="application/json").status_code == 409


def test_a_configuration_is_for_a_tool_set(as_alice: Client, writing: ToolSet) -> None:
    values = as_alice.get("/api/agent-config/?for=cursor&tool_set=writing").json()
    assert "/sets/writing/mcp" in values["config"]
    assert {name: cost["tools"] for name, cost in values["cost_by_member"].items()} == {"notes": 1, "files": 1}
    body = {"for": "cursor", "tool_set": "writing"}
    made = as_alice.post("/api/agent-config/", body, content_type="application/json").json()
    assert made["token"]["tool_set"] == "writing"
    for query in ("tool_set=writing&members=notes", "tool_set=writing&direct=true"):
        assert as_alice.get(f"/api/agent-config/?for=cursor&{query}").status_code == 409
    assert as_alice.get("/api/agent-config/?for=cursor&tool_set=nobody").status_code == 404


def test_the_configuration_of_a_token_for_a_tool_set_has_the_address_of_the_set(alice: User, writing: ToolSet) -> None:
    token = Token.make(user=alice, scope=Token.Scope.TOOLS, tool_set=writing)[1]
    client = Client(headers={"Authorization": f"Bearer {token}"})
    assert "/sets/writing/mcp" in client.get("/api/agent-config/?for=cursor").json()["config"]
    made = client.post("/api/agent-config/", {"for": "cursor"}, content_type="application/json").json()
    assert "/sets/writing/mcp" in made["config"]
    assert made["token"]["tool_set"] == "writing"
    assert "/mcp?members=notes" in client.get("/api/agent-config/?for=cursor&members=notes").json()["config"]


def test_commands_make_tokens_and_configurations_for_a_tool_set(alice: User, writing: ToolSet) -> None:
    out, errors = StringIO(), StringIO()
    call_command("agent_config", "--for", "claude-code", "--tool-set", "writing", stdout=out, stderr=errors)
    assert "/sets/writing/mcp" in out.getvalue()
    call_command("create_token", "alice", "--tool-set", "writing", stdout=out)
    assert set(alice.tokens.values_list("tool_set__name", flat=True)) == {"writing"}
    with pytest.raises(CommandError, match="no tool set 'nobody'"):
        call_command("agent_config", "--for", "codex", "--tool-set", "nobody", stdout=out, stderr=errors)

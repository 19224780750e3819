from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from django.db.models import JSONField
from django.http import HttpResponse
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from roster.models import Call, GuildMember, Tool
from tests.support.api import ECHO_SCHEMA, add_member, add_tool

TOOLS = "/api/members/example/tools/"
ODD_NAMES = [
    "files/read",
    "a.b",
    "with space",
    "größe/☃",
    "x/invoke",
    "x/enable",
    "50%",
    "what?",
    "#1",
    "a//b",
    "/root",
    "tools",
]


def names(client: Client, query: str = "") -> list[str]:
    return [tool["name"] for tool in client.get(f"{TOOLS}{query}").json()["tools"]]


def call(client: Client, address: str) -> HttpResponse:
    response: HttpResponse = client.post(address, {}, content_type="application/json")
    return response


def test_a_tool_has_its_schema_timeout_and_addresses(as_bob: Client, example: GuildMember) -> None:
    (tool,) = as_bob.get(TOOLS).json()["tools"]
    assert tool["input_schema"] == ECHO_SCHEMA
    assert tool["output_schema"] is None
    assert tool["timeout"] == 12.0
    assert tool["url"] == f"{TOOLS}echo/"
    assert tool["invoke_url"] == f"{TOOLS}echo/invoke/"


def test_a_tool_has_its_own_timeout_from_the_manifest(as_bob: Client, example: GuildMember) -> None:
    add_tool(example, "slow")
    assert as_bob.get(f"{TOOLS}slow/").json()["timeout"] == 99.0


def test_a_tool_is_shown_with_its_unchanged_definition(as_bob: Client, example: GuildMember) -> None:
    definition = {"name": "odd", "inputSchema": [], "x-own": {"a": 1}, "annotations": {"title": "Odd one"}}
    add_tool(example, "odd", definition=definition, schema_error="the input schema is not a JSON object")
    tool = as_bob.get(f"{TOOLS}odd/").json()
    assert tool["definition"] == definition
    assert (tool["title"], tool["description"], tool["input_schema"]) == ("Odd one", "", {})
    assert tool["schema_error"] == "the input schema is not a JSON object"


def test_many_tools_need_no_more_queries_than_one(
    as_bob: Client, example: GuildMember, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(5):
        add_tool(example, f"tool-{number}")
    with django_assert_num_queries(3):  # the token, the member, its tools
        as_bob.get(TOOLS)


def test_an_unknown_or_unlisted_tool_is_404(as_bob: Client, example: GuildMember) -> None:
    add_tool(example, "old", listed=False)
    for tool in ("nothing", "old"):
        assert as_bob.get(f"{TOOLS}{tool}/").json()["code"] == "unknown_tool"
        assert as_bob.post(f"{TOOLS}{tool}/disable/").status_code == 404
    assert as_bob.get("/api/members/nobody/tools/").json()["code"] == "unknown_member"


def test_a_disabled_tool_is_hidden_refused_and_can_be_enabled(as_bob: Client, example: GuildMember) -> None:
    response = as_bob.post(f"{TOOLS}echo/disable/")
    assert (response.status_code, response.json()["enabled"]) == (200, False)
    assert names(as_bob) == []
    assert names(as_bob, "?disabled=true") == ["echo"]
    response_ = as_bob.post(f"{TOOLS}echo/invoke/", {"arguments": {"text": "hi"}}, content_type="application/json")
    assert (response_.status_code, response_.json()["code"]) == (409, "tool_disabled")
    assert as_bob.post(f"{TOOLS}echo/enable/").json()["enabled"] is True
    assert names(as_bob) == ["echo"]


def test_tools_with_the_same_name_in_two_members_are_two_tools(as_bob: Client, example: GuildMember) -> None:
    add_tool(add_member("other"), "echo")
    as_bob.post("/api/members/other/tools/echo/disable/")
    assert list(Tool.objects.filter(enabled=True).values_list("member__name", flat=True)) == ["example"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_tool_with_any_name_can_be_read_called_and_disabled(as_bob: Client, example: GuildMember, name: str) -> None:
    add_tool(example, name)
    address = f"{TOOLS}{quote(name)}/"
    tool = as_bob.get(address).json()
    assert (tool["name"], tool["url"]) == (name, address)
    response = call(as_bob, tool["invoke_url"])
    assert (response.status_code, response.json()["tool"]) == (202, name)
    assert as_bob.post(f"{address}disable/").json()["name"] == name
    assert not Tool.objects.get(name=name).enabled


def test_a_slash_in_a_name_can_be_encoded(as_bob: Client, example: GuildMember) -> None:
    add_tool(example, "files/read")
    assert call(as_bob, f"{TOOLS}files%2Fread/invoke/").status_code == 202


def test_a_tool_whose_name_looks_like_an_address_is_another_tool(as_bob: Client, example: GuildMember) -> None:
    add_tool(example, "x")
    add_tool(example, "x/invoke")
    assert as_bob.get(f"{TOOLS}x/invoke/").json()["name"] == "x/invoke"
    assert call(as_bob, f"{TOOLS}x/invoke/").json()["tool"] == "x"
    assert call(as_bob, f"{TOOLS}x/invoke/invoke/").json()["tool"] == "x/invoke"
    assert list(Call.objects.order_by("id").values_list("tool_name", flat=True)) == ["x", "x/invoke"]


@pytest.mark.parametrize(
    "name", ["line\nbreak", "\n", "a\r\nb", "a/../b", "..", "%0a", "%", "\u202etxt", "x" * 255, "?#;", "\\"]
)
def test_a_tool_with_any_name_can_be_listed_and_read(as_alice: Client, example: GuildMember, name: str) -> None:
    """Old rows exist until their member lists its tools again. None of them may break the list of the others."""
    add_tool(example, name)
    list_response = as_alice.get("/api/members/example/tools/")
    assert list_response.status_code == 200
    (tool,) = [tool for tool in list_response.json()["tools"] if tool["name"] == name]
    assert as_alice.get(tool["url"]).json()["name"] == name
    call_response = as_alice.post(tool["invoke_url"], {}, content_type="application/json")
    assert (call_response.status_code, call_response.json()["tool"]) == (202, name)
    assert as_alice.get("/api/roster/").status_code == 200


def test_a_large_schema_is_passed_on_as_text(as_bob: Client, example: GuildMember) -> None:
    """To parse it and to write it again would delay all other requests."""
    schema = {"type": "object", "properties": {"größe\u2028": {"enum": ["\x01", 1e22, 10**30, None]}}}
    add_tool(example, "large", definition={"name": "large", "inputSchema": schema, "outputSchema": schema})
    texts: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JSONField, "from_db_value", _recording(JSONField.from_db_value, texts))
        tool_in_list = as_bob.get(TOOLS).json()["tools"][-1]
        tool = as_bob.get(f"{TOOLS}large/").json()
    assert not [text for text in texts if "outputSchema" in text]
    assert tool_in_list["input_schema"] == tool_in_list["output_schema"] == tool["definition"]["inputSchema"] == schema


def _recording(from_db_value: Any, texts: list[str]) -> Any:
    def read_value(self: Any, value: Any, *arguments: Any) -> Any:
        texts.append(str(value))
        return from_db_value(self, value, *arguments)

    return read_value

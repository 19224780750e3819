"""The tools of tools/list as rows."""

from __future__ import annotations

import time
from typing import Any

import pytest

from mcp_runtime.members import tools
from mcp_runtime.members.contracts import Policy
from mcp_runtime.schemas import validation
from roster.models import GuildMember, Tool

pytestmark = pytest.mark.django_db

ECHO = {"name": "echo", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}}


def write_tools(member_id: int, definitions: list[dict[str, Any]], policy: Policy = Policy.RECORD) -> None:
    listing = tools.contracts_of(member_id, definitions, policy)
    tools.write(member_id, tools.rows_of(member_id, definitions), listing)


@pytest.fixture
def anna() -> GuildMember:
    return GuildMember.objects.create(name="anna", directory="anna")


def test_tools_are_stored_unchanged_in_the_order_of_the_member(anna: GuildMember) -> None:
    definitions = [{"name": name, "inputSchema": {"type": "object"}, "x": [1, "ü"]} for name in ("b", "a/1.0")]
    write_tools(anna.pk, definitions)
    assert [tool.definition for tool in Tool.objects.order_by("position")] == definitions


def test_a_tool_that_left_the_list_stays_unlisted_and_keeps_its_enabled_flag(anna: GuildMember) -> None:
    write_tools(anna.pk, [ECHO, {"name": "other"}])
    Tool.objects.filter(name="echo").update(enabled=False)
    (pk,) = Tool.objects.filter(name="echo").values_list("pk", flat=True)
    write_tools(anna.pk, [{"name": "other"}])
    assert set(Tool.objects.values_list("name", "listed")) == {("echo", False), ("other", True)}
    write_tools(anna.pk, [{"name": "other"}, {**ECHO, "description": "new"}])
    echo = Tool.objects.get(name="echo")
    assert (echo.pk, echo.listed, echo.enabled, echo.position, echo.description) == (pk, True, False, 1, "new")


def test_an_empty_list_removes_all_tools_from_the_list(anna: GuildMember) -> None:
    write_tools(anna.pk, [ECHO])
    write_tools(anna.pk, [])
    assert not Tool.objects.filter(listed=True).exists()


def test_a_broken_schema_is_an_error_of_its_tool_until_it_is_fixed(anna: GuildMember) -> None:
    write_tools(anna.pk, [{"name": "broken", "inputSchema": {"type": "nonsense"}}, {"name": "none"}, ECHO])
    errors = dict(Tool.objects.values_list("name", "schema_error"))
    assert "broken" in errors["broken"]
    assert "not a JSON object" in errors["none"]
    assert errors["echo"] == ""
    write_tools(anna.pk, [{**ECHO, "name": "broken"}])
    assert Tool.objects.get(name="broken").schema_error == ""


def test_tools_of_other_members_are_not_changed(anna: GuildMember) -> None:
    bob = GuildMember.objects.create(name="bob", directory="bob")
    write_tools(bob.pk, [ECHO])
    write_tools(anna.pk, [])
    assert Tool.objects.get(member=bob).listed


@pytest.mark.no_cover
def test_two_thousand_tools_are_written(anna: GuildMember) -> None:
    write_tools(anna.pk, [{**ECHO, "name": f"tool-{number}"} for number in range(2000)])
    write_tools(anna.pk, [{**ECHO, "name": f"tool-{number}"} for number in range(1000)])
    assert Tool.objects.filter(listed=True).count() == 1000


def test_the_check_of_many_slow_schemas_takes_a_limited_time(
    anna: GuildMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Schemas that are not reached count as valid. They are checked when their tool is first called."""

    def check(schema: Any) -> str:
        start = time.thread_time()
        while time.thread_time() < start + 0.05:
            pass
        return "checked"

    monkeypatch.setattr(tools, "MAX_CHECK_SECONDS", 0.2)
    monkeypatch.setattr(validation, "check_schema", check)
    start = time.thread_time()
    rows = tools.rows_of(anna.pk, [{"name": str(number), "inputSchema": {"x": number}} for number in range(2000)])
    assert time.thread_time() - start < 5.0  # all of them would take 100 s
    assert rows[0].schema_error == "checked"
    assert [row.schema_error for row in rows][10:] == [""] * 1990


def test_a_schema_is_checked_only_once(anna: GuildMember, monkeypatch: pytest.MonkeyPatch) -> None:
    definitions = [{"name": "echo", "inputSchema": {"type": "object", "title": "checked once"}}]
    tools.rows_of(anna.pk, definitions)
    monkeypatch.setattr(validation, "check_schema", lambda schema: pytest.fail("again"))
    assert [row.schema_error for row in tools.rows_of(anna.pk, definitions)] == [""]


def test_a_schema_whose_check_took_too_long_is_checked_again(
    anna: GuildMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = [{"name": "echo", "inputSchema": {"type": "object", "title": "slow once"}}]
    with monkeypatch.context() as patch:
        patch.setattr(validation, "check_schema", lambda schema: validation.TOO_LONG_TO_CHECK)
        assert [row.schema_error for row in tools.rows_of(anna.pk, definitions)] == [validation.TOO_LONG_TO_CHECK]
    assert [row.schema_error for row in tools.rows_of(anna.pk, definitions)] == [""]


def test_the_memory_for_checked_schemas_is_limited(anna: GuildMember, monkeypatch: pytest.MonkeyPatch) -> None:
    schemas: list[object] = []
    check = validation.check_schema
    monkeypatch.setattr(validation, "check_schema", lambda schema: schemas.append(schema) or check(schema))
    monkeypatch.setattr(tools, "MAX_KNOWN_FAULTS", 3)
    definitions = [{"name": str(number), "inputSchema": {"title": f"bounded {number}"}} for number in range(10)]
    tools.rows_of(anna.pk, definitions)
    count = len(schemas)
    assert count == 10
    tools.rows_of(anna.pk, definitions[::-1])
    assert count + 7 <= len(schemas) < count + 10

"""Tools that run only as tasks, which the hall does not run."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from roster.models import Call, GuildMember, Tool
from tests.support.admin import call_form, html, list_of, make_call, make_tool, page_of

pytestmark = pytest.mark.django_db


def runner_of(tool: Tool) -> str:
    return reverse("admin:roster_tool_call", args=[tool.pk])


@pytest.fixture
def render(example: GuildMember) -> Tool:
    """A tool that runs only as a task."""
    definition = {"name": "render", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}
    return make_tool(example, "render", definition=definition)


def test_the_form_says_so_at_its_top_and_has_no_button_to_press(page: Client, render: Tool, settings: Any) -> None:
    settings.GUILD_HALL_GATEWAY_URL = "https://gateway.example.com"
    text = html(page.get(runner_of(render)))
    assert "The hall cannot call this tool." in text
    assert "<code>https://gateway.example.com/mcp/example</code>" in text
    assert 'id="call" disabled aria-describedby="call-obstacle"' in text


def test_a_call_without_the_button_is_refused_with_the_reason(page: Client, render: Tool) -> None:
    assert "runs only as a task" in html(call_form(page, render, "{}"))
    assert not Call.objects.exists()


def test_the_lists_of_tools_say_so_in_place_of_call(page: Client, render: Tool) -> None:
    for screen in (page_of(render.member), list_of("tool")):
        assert "only as a task</a>" in html(page.get(screen)), screen


def test_an_earlier_call_of_the_tool_is_not_repeated(page: Client, render: Tool) -> None:
    text = html(page.get(page_of(make_call(render.member, tool_name="render", status="succeeded"))))
    assert "Call again" not in text
    assert "Edit and call" not in text


@pytest.mark.parametrize("execution", [None, {"taskSupport": "optional"}, {"taskSupport": ["required"]}, "required"])
def test_other_tools_have_a_button_to_press(page: Client, example: GuildMember, execution: Any) -> None:
    definition = {"name": "echo", "inputSchema": {"type": "object"}, "execution": execution}
    text = html(page.get(runner_of(make_tool(example, definition=definition))))
    assert "The hall cannot call this tool." not in text
    assert '<button type="submit" class="runner-call" id="call">Call</button>' in text

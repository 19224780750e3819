"""Rows, addresses and readers for tests of the admin."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from roster.models import Call, GuildMember, Tool
from tests.support.leases import own_node

EVIL = "<script>alert('x')</script>"
ESCAPED = "&lt;script&gt;"
LISTS = ["guildmember", "tool", "call", "statuschange", "portallocation", "node", "token"]
ADD_TOKEN = "admin:roster_token_add"

ECHO_SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "times": {"type": "integer", "default": 1},
        "password": {"type": "string", "format": "password"},
        "loud": {"type": "boolean"},
    },
    "required": ["text"],
}


def allow(user: User, *codenames: str) -> None:
    user.user_permissions.add(*Permission.objects.filter(codename__in=codenames, content_type__app_label="roster"))


def make_member(name: str, **columns: Any) -> GuildMember:
    manifest = {"name": name, "version": "1", "command": "python3", "args": [], "env": {"API_KEY": "sk-very-secret"}}
    defaults = {"name": name, "directory": name, "manifest": manifest, "node": own_node()}
    return GuildMember.objects.create(**{**defaults, **columns})


def make_tool(member: GuildMember, name: str = "echo", **columns: Any) -> Tool:
    definition = {"name": name, "description": f"Does {name}.", "inputSchema": ECHO_SCHEMA}
    return Tool.objects.create(**{"member": member, "name": name, "definition": definition, **columns})


def make_call(member: GuildMember, **columns: Any) -> Call:
    values = {"tool_name": "echo", "timeout": 30, "source": "rest", "requester": "alice", **columns}
    return Call.objects.create(member=member, **values)


def list_of(model: str) -> str:
    return reverse(f"admin:roster_{model}_changelist")


def page_of(row: Any) -> str:
    return reverse(f"admin:roster_{row._meta.model_name}_change", args=[row.pk])


def html(response: Any) -> str:
    assert response.status_code == 200, response
    return str(response.content.decode())


def messages_of(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def act(page: Client, model: str, action: str, *rows: Any, **more: str) -> Any:
    data = {"action": action, "_selected_action": [str(row.pk) for row in rows], **more}
    return page.post(list_of(model), data, follow=True)


def call_form(page: Client, tool: Tool, arguments: str, **more: str) -> Any:
    address = reverse("admin:roster_tool_call", args=[tool.pk])
    return page.post(address, {"arguments": arguments, **more})

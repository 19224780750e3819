"""Members, tools and lists as rows, from which a catalog is loaded."""

from __future__ import annotations

import json
from typing import Any

from roster.models import GuildMember, MemberExtras, Tool

LISTS = {
    "prompts": [{"name": "greet"}],
    "resources": [{"uri": "file:///a"}, {"uri": "x:1"}],
    "resourceTemplates": [{"uriTemplate": "file:///{name}", "name": "t"}],
}


def make_extras(member: str, lists: dict[str, list[dict[str, Any]]]) -> None:
    columns = {"prompts": "prompts", "resources": "resources", "resourceTemplates": "resource_templates"}
    values = {column: lists.get(kind, []) for kind, column in columns.items()}
    row = GuildMember.objects.get(name=member)
    MemberExtras.objects.update_or_create(pk=row.pk, defaults={**values, "digest": json.dumps(values)[-64:]})


def make_member(name: str, *tools: str, **fields: Any) -> GuildMember:
    row = GuildMember.objects.create(name=name, directory=name, **fields)
    for position, tool in enumerate(tools):
        Tool.objects.create(member=row, name=tool, position=position, definition={"name": tool, "description": name})
    return row

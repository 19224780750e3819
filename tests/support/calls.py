"""The screens of calls as a browser shows them."""

from __future__ import annotations

import re
from typing import Any

from django.test import Client
from django.urls import reverse

from roster.models import Call, GuildMember

LIST = "/admin/roster/call/"


def add(member: GuildMember, **columns: Any) -> Call:
    defaults = {"tool_name": "echo", "timeout": 30, "source": "rest", "requester": "carol", "status": "succeeded"}
    return Call.objects.create(member=member, **{**defaults, **columns})


def numbered(member: GuildMember, number: int, **columns: Any) -> list[int]:
    defaults = {"tool_name": "echo", "timeout": 1, "source": "rest", "status": "succeeded", **columns}
    return [call.pk for call in Call.objects.bulk_create(Call(member=member, **defaults) for _ in range(number))]


def html(response: Any) -> str:
    assert response.status_code == 200, response
    return str(response.content.decode())


def words(response: Any) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html(response)).split())


def ids(page: Client, **query: Any) -> list[int]:
    """The ids of the calls on the first page."""
    response = page.get(LIST, query)
    assert response.status_code == 200, (response.status_code, response.headers)
    return [row.call.pk for row in response.context["rows"]]


def at(call: Call, action: str) -> str:
    return reverse(f"admin:roster_call_{action}", args=[call.pk])


def messages_of(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]

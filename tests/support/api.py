"""Rows and clients for tests of the REST API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse

from mcp_runtime.rows import lease
from mcp_runtime.security import principals
from roster.models import Call, GuildMember, Token, Tool
from tests.support.leases import own_node

METHODS = ("get", "head", "post", "put", "patch", "delete", "options")


def api_addresses() -> Iterator[str]:
    """An address for every route under /api/."""
    for entry in get_resolver().url_patterns:
        if isinstance(entry, URLResolver) and str(entry.pattern) == "api/":
            for route in entry.url_patterns:
                assert isinstance(route, URLPattern)
                if route.name != "api-nowhere":
                    yield reverse(route.name or "", kwargs={key: EXAMPLES[key] for key in route.pattern.converters})
    yield "/api/nowhere/"
    yield "/api/roster"


MANIFEST = {
    "name": "example",
    "version": "1.2",
    "command": "python",
    "args": ["server.py", "${PORT}"],
    "env": {"API_KEY": "sesame"},
    "display_name": "An example",
    "description": "Shows how.",
    "enabled": True,
    "start_timeout": 5.0,
    "timeout": 12.0,
    "tool_timeouts": {"slow": 99.0},
    "restart": "on-failure",
    "max_concurrency": 16,
}
ECHO_SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "login": {"type": "object", "properties": {"password": {"type": "string", "format": "password"}}},
    },
    "required": ["text"],
}


def client_of(user: User, **scope: Any) -> Client:
    """A client with a token that is already used, because the first use of a token needs more queries."""
    lease.hall()
    token = Token.make(user=user, **scope)[1]
    principals.principal_of_token(token)
    return Client(headers={"Authorization": f"Bearer {token}"})


def add_member(name: str = "example", **values: Any) -> GuildMember:
    manifest = {**MANIFEST, "name": name}
    defaults = {"manifest": manifest, "display_name": "An example", "version": "1.2", "directory": name}
    return GuildMember.objects.create(name=name, **{**defaults, "node": own_node(), **values})


def add_tool(member: GuildMember, name: str, schema: dict[str, Any] | None = None, **values: Any) -> Tool:
    definition = {"name": name, "description": f"Does {name}.", "inputSchema": schema or {"type": "object"}}
    return Tool.objects.create(
        member=member, name=name, position=member.tools.count(), **{"definition": definition, **values}
    )


def add_call(member: GuildMember, tool: str = "echo", **values: Any) -> Call:
    defaults = {"timeout": 30.0, "source": Call.Source.REST, "requester": "alice"}
    return Call.objects.create(member=member, tool_name=tool, **{**defaults, **values})


EXAMPLES: dict[str, Any] = {
    "name": "example",
    "proposal": "nobody",
    "number": "7",
    "edit": "7",
    "secret": "nobody",
    "tool_set": "nobody",
    "node": "main",
    "tool": "echo",
    "pk": 1,
}

"""A member with prompts and resources behind the real gateway, and the web of this process that can reach it."""

from __future__ import annotations

import contextlib
from typing import Any

from mcp_runtime.client import transport
from roster.models import Hall, MemberExtras
from tests.conftest import eventually
from tests.support.gateway_world import ALL, Member, World, event, notification
from tests.support.leases import add_node
from tests.support.scripted_server import Behaviour
from tests.support.scripted_server import Request as MemberRequest

TRIP = {
    "name": "trip",
    "title": "Plan a trip",
    "description": "Plans it.",
    "arguments": [{"name": "city", "required": True}, {"name": "season", "description": "When."}],
}
PROMPTS = [TRIP, {"name": "greet"}]
RESOURCES = [
    {"uri": "file:///a.txt", "name": "a", "mimeType": "text/plain", "size": 3},
    {"uri": "file:///b.txt", "name": "b", "title": "The second"},
]
TEMPLATES = [{"uriTemplate": "db://{table}/rows{?page}", "name": "rows"}]
UPDATED = "notifications/resources/updated"


def get_prompt(incoming: MemberRequest) -> None:
    text = str(incoming.message["params"].get("arguments"))
    incoming.result(
        {"description": "A trip", "messages": [{"role": "user", "content": {"type": "text", "text": text}}]}
    )


def read(incoming: MemberRequest) -> None:
    uri = incoming.message["params"]["uri"]
    incoming.result({"contents": [{"uri": uri, "mimeType": "text/plain", "text": f"content of {uri}"}]})


def complete(incoming: MemberRequest) -> None:
    params = incoming.message["params"]
    values = [
        params["ref"].get("name") or params["ref"]["uri"],
        params["argument"]["value"],
        str(params.get("context")),
    ]
    incoming.result({"completion": {"values": [*values, 7, "x" * 5_000], "total": 5, "hasMore": False}})


class Updates:
    """The stream of the member. `send` announces an update to those who read it."""

    def __init__(self) -> None:
        self._streams: list[MemberRequest] = []

    def open(self, incoming: MemberRequest) -> None:
        incoming.stream(b": open\n\n")
        self._streams.append(incoming)
        incoming.hang()

    def send(self, uri: str) -> None:
        eventually(lambda: self._streams)
        for stream in self._streams:
            with contextlib.suppress(OSError):  # its reader has gone
                stream.send(event(notification(UPDATED, uri=uri)))


def start_member(world: World, name: str = "notes", updates: Updates | None = None, **behaviours: Behaviour) -> Member:
    """A connected member whose lists the hall knows. Names of behaviours have `_` in place of `/`."""
    Hall.objects.get_or_create()
    listed: dict[str, Any] = {
        "prompts/list": {"prompts": PROMPTS},
        "resources/list": {"resources": RESOURCES},
        "resources/templates/list": {"resourceTemplates": TEMPLATES},
        "resources/subscribe": {},
    }
    own: dict[str, Behaviour] = {
        **{method: lambda incoming, values=values: incoming.result(values) for method, values in listed.items()},
        "prompts/get": get_prompt,
        "resources/read": read,
        "completion/complete": complete,
        **({"GET": updates.open} if updates else {}),
        **{method.replace("_", "/"): behaviour for method, behaviour in behaviours.items()},
    }
    assert world.gateway
    member = world.member(name, own, capabilities=ALL, timeout=10.0)
    eventually(lambda: MemberExtras.objects.filter(pk=member.row.pk).exists())
    return member


def connect(world: World, settings: Any) -> None:
    """Let this process find the gateway of the world, as the web of its node."""
    assert world.gateway
    settings.GUILD_HALL_GATEWAY_PORT = world.gateway_port
    add_node(settings.GUILD_HALL_NODE)
    assert transport  # loaded here, and not during a test that counts seconds

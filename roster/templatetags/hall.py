"""What every page of the admin says about the hall as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from django import template
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db.models import Model
from django.http import HttpRequest
from django.template import Context
from django.urls import reverse

from roster.admin import present
from roster.models import AgentSession, ApiToken, GuildMember, Invocation, PortAllocation, StatusChange, Tool

register = template.Library()


@dataclass(frozen=True)
class Place:
    """A place that each page leads to. `current` is the value of aria-current: `page`, `true` (within it) or empty."""

    label: str
    address: str
    current: str


# Where a label leads, whose list that is (None: it is there for everybody), and which other pages belong to it.
_PLACES: list[tuple[str, str, type[Model] | None, tuple[str, ...]]] = [
    ("Roster", "admin:index", None, ("roster/guildmember/", "roster/statuschange/")),
    ("Tools", "admin:roster_tool_changelist", Tool, ()),
    ("Calls", "admin:roster_invocation_changelist", Invocation, ()),
    ("Agents", "admin:roster_agentsession_changelist", AgentSession, ()),
    ("Tokens", "admin:roster_apitoken_changelist", ApiToken, ()),
]
_MORE: list[tuple[str, str, type[Model] | None, tuple[str, ...]]] = [
    ("Members as a list", "admin:roster_guildmember_changelist", GuildMember, ()),
    ("Status changes", "admin:roster_statuschange_changelist", StatusChange, ()),
    ("Ports", "admin:roster_portallocation_changelist", PortAllocation, ()),
    ("Users", "admin:auth_user_changelist", User, ()),
    ("Groups", "admin:auth_group_changelist", Group, ()),
    ("All lists, my actions", "admin:lists", None, ()),
    ("API", "docs", None, ()),
]


@register.simple_tag(takes_context=True)
def runtime_is_alive(context: Context) -> bool:
    return present.runtime_is_alive(context["request"])


@register.simple_tag(takes_context=True)
def places(context: Context) -> list[Place]:
    """The first row of the navigation."""
    return _open_to(context["request"], _PLACES)


@register.simple_tag(takes_context=True)
def more_places(context: Context) -> list[Place]:
    """What is wanted less often."""
    return _open_to(context["request"], _MORE)


def _open_to(request: HttpRequest, places: list[tuple[str, str, type[Model] | None, tuple[str, ...]]]) -> list[Place]:
    index = reverse("admin:index")
    found = []
    for label, name, model, pages in places:
        if model is not None and not admin.site.get_model_admin(model).has_view_or_change_permission(request):
            continue
        address = reverse(name)
        within = (*([address] if address != index else []), *(f"{index}{page}" for page in pages))
        current = "page" if request.path == address else "true" if request.path.startswith(within) else ""
        found.append(Place(label, address, current))
    return found

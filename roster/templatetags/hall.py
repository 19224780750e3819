"""The parts of every page of the admin that are about the whole hall."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django import template
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db.models import Model
from django.http import HttpRequest
from django.template import Context
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from roster.admin import present
from roster.models import (
    Agent,
    AuditEntry,
    Call,
    GuildMember,
    Invitation,
    Node,
    PortAllocation,
    StatusChange,
    Token,
    Tool,
)

register = template.Library()


# Below this number of seconds a time is shown in this unit. static/roster/times.js has the same limits.
_STEPS = [(60, 1, "s"), (3600, 60, "min"), (48 * 3600, 3600, "h"), (float("inf"), 86400, "days")]


@dataclass(frozen=True)
class Place:
    """A link of the navigation. `current` is the value of aria-current: `page`, `true` (within it) or empty."""

    label: str
    address: str
    current: str


# For each label: its URL, the model of its list (None for a page that everybody may see), and the pages below it.
_PLACES: list[tuple[str, str, type[Model] | None, tuple[str, ...]]] = [
    ("Roster", "admin:index", None, ("roster/guildmember/", "roster/statuschange/")),
    ("Tools", "admin:roster_tool_changelist", Tool, ()),
    ("Calls", "admin:roster_call_changelist", Call, ()),
    ("Agents", "admin:roster_agent_changelist", Agent, ()),
    ("Tokens", "admin:roster_token_changelist", Token, ()),
]
_MORE: list[tuple[str, str, type[Model] | None, tuple[str, ...]]] = [
    ("Member list", "admin:roster_guildmember_changelist", GuildMember, ()),
    ("Status changes", "admin:roster_statuschange_changelist", StatusChange, ()),
    ("Ports", "admin:roster_portallocation_changelist", PortAllocation, ()),
    ("Nodes", "admin:roster_node_changelist", Node, ()),
    ("Users", "admin:auth_user_changelist", User, ()),
    ("Invitations", "admin:roster_invitation_changelist", Invitation, ()),
    ("Groups", "admin:auth_group_changelist", Group, ()),
    ("Audit log", "admin:roster_auditentry_changelist", AuditEntry, ()),
    ("All tables, recent actions", "admin:lists", None, ()),
    ("API", "docs", None, ()),
]


@register.simple_tag(takes_context=True)
def runtime_is_alive(context: Context) -> bool:
    return present.runtime_is_alive(context["request"])


@register.simple_tag(takes_context=True)
def runtime_etag(context: Context) -> str:
    """The ETag of the part that says when no runtime is alive."""
    return present.runtime_etag(context["request"])


@register.simple_tag
def ago(moment: datetime) -> SafeString:
    """How long ago that was. static/roster/times.js updates it."""
    return _time(moment, (timezone.now() - moment).total_seconds(), "ago")


@register.simple_tag
def until(moment: datetime) -> SafeString:
    """How long it is until then. static/roster/times.js updates it."""
    return _time(moment, (moment - timezone.now()).total_seconds(), "until")


def _time(moment: datetime, seconds: float, direction: str) -> SafeString:
    _, unit, word = next(step for step in _STEPS if seconds < step[0])
    exact, text = f"{moment:%Y-%m-%d %H:%M:%S} UTC", f"{max(0, seconds) // unit:.0f} {word}"
    return format_html('<time datetime="{}" title="{}" data-{}>{}</time>', moment.isoformat(), exact, direction, text)


@register.simple_tag(takes_context=True)
def places(context: Context) -> list[Place]:
    """The first row of the navigation."""
    return _open_to(context["request"], _PLACES)


@register.simple_tag(takes_context=True)
def more_places(context: Context) -> list[Place]:
    """The second row of the navigation, which is needed less often."""
    return _open_to(context["request"], _MORE)


def _open_to(request: HttpRequest, places: list[tuple[str, str, type[Model] | None, tuple[str, ...]]]) -> list[Place]:
    index = reverse("admin:index")
    links = []
    for label, name, model, pages in places:
        if model is not None and not admin.site.get_model_admin(model).has_view_or_change_permission(request):
            continue
        address = reverse(name)
        within = (*([address] if address != index else []), *(f"{index}{page}" for page in pages))
        current = "page" if request.path == address else "true" if request.path.startswith(within) else ""
        links.append(Place(label, address, current))
    return links

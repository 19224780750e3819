"""The places of the navigation, which are on each page and in its search."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse

from roster.models import (
    Agent,
    AuditEntry,
    Call,
    GuildMember,
    Invitation,
    Node,
    PortAllocation,
    Secret,
    StatusChange,
    Token,
    Tool,
    ToolSet,
)


@dataclass(frozen=True)
class Place:
    """A link of the navigation. `current` is the value of aria-current: `page`, `true` (within it) or empty."""

    label: str
    address: str
    current: str


# For each label: its URL, the model of its list (None for a page that everybody may see), and the pages below it.
MAIN: list[tuple[str, str, type[Model] | None, tuple[str, ...]]] = [
    ("Roster", "admin:index", None, ("roster/guildmember/", "roster/statuschange/")),
    ("Tools", "admin:roster_tool_changelist", Tool, ()),
    ("Calls", "admin:roster_call_changelist", Call, ()),
    ("Agents", "admin:roster_agent_changelist", Agent, ()),
    ("Tokens", "admin:roster_token_changelist", Token, ()),
]
MORE: list[tuple[str, str, type[Model] | None, tuple[str, ...]]] = [
    ("Members", "admin:roster_guildmember_changelist", GuildMember, ()),
    ("Status changes", "admin:roster_statuschange_changelist", StatusChange, ()),
    ("Tool sets", "admin:roster_toolset_changelist", ToolSet, ()),
    ("Secrets", "admin:roster_secret_changelist", Secret, ()),
    ("Port allocations", "admin:roster_portallocation_changelist", PortAllocation, ()),
    ("Nodes", "admin:roster_node_changelist", Node, ()),
    ("Users", "admin:auth_user_changelist", User, ()),
    ("Invitations", "admin:roster_invitation_changelist", Invitation, ()),
    ("Groups", "admin:auth_group_changelist", Group, ()),
    ("Audit log", "admin:roster_auditentry_changelist", AuditEntry, ()),
    ("All lists", "admin:lists", None, ()),
    ("API", "docs", None, ()),
]


def places_for(request: HttpRequest, places: list[tuple[str, str, type[Model] | None, tuple[str, ...]]]) -> list[Place]:
    """The places that the user may open."""
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

"""The form of a consent: what a client may use, and until when. It never offers more than the person may use."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from mcp_runtime.control.grants import NewGrant
from mcp_runtime.control.tokens import NewToken
from mcp_runtime.control.tool_sets import visible_tool_sets
from mcp_runtime.security.access import Principal
from mcp_runtime.security.resources import WHOLE_GATEWAY
from roster.models import GuildMember, Tool
from roster.tokens import parse_tool

MAX_TOOLS = 500  # on the page. Django reads 1,000 values of a form
ENDS = {1: "after a day", 7: "after a week", 30: "after 30 days", 90: "after 90 days", 365: "after a year"}
EVERYTHING, MEMBERS, TOOLS, TOOL_SET = "all", "members", "tools", "tool_set"


class NothingHereError(Exception):
    """The person may use nothing at the address. The text does not say whether it exists."""


class ConsentForm(forms.Form):
    """What a person allows. `resource` is the path of the gateway that the client named."""

    scope = forms.ChoiceField(widget=forms.RadioSelect)
    members = forms.MultipleChoiceField(required=False)
    tools = forms.MultipleChoiceField(required=False)
    tool_set = forms.ChoiceField(required=False)
    days = forms.TypedChoiceField(coerce=int, choices=list(ENDS.items()), initial=90)

    def __init__(self, data: Any, *, principal: Principal, resource: str) -> None:
        super().__init__(data)
        self.resource = resource
        self.member, self.set_name = _names_in(resource)
        rows = GuildMember.objects.filter(removed_at=None).order_by("name").values_list("name", flat=True)
        names = [name for name in rows if principal.may_see(name) and self.member in ("", name)]
        sets = [row.name for row in visible_tool_sets(principal) if self.set_name in ("", row.name)]
        if (self.member and not names) or (self.set_name and not sets):
            raise NothingHereError(f"There is nothing at {resource} that you may use.")
        self.tools_of = _tools_of(principal, names)
        self.is_cut = sum(map(len, self.tools_of.values())) >= MAX_TOOLS
        self.fields["members"].choices = [(name, name) for name in names]  # type: ignore[attr-defined]
        self.fields["tools"].choices = [  # type: ignore[attr-defined]
            (f"{member}/{tool}", tool) for member, tools in self.tools_of.items() for tool in tools
        ]
        self.fields["tool_set"].choices = [("", "Choose a tool set")] + [(name, name) for name in sets]  # type: ignore[attr-defined]
        self.fields["scope"].choices = self._scopes(bool(sets))  # type: ignore[attr-defined]
        self.fields["scope"].initial = self.fields["scope"].choices[0][0]  # type: ignore[attr-defined]

    def _scopes(self, has_sets: bool) -> list[tuple[str, str]]:
        tools = [(TOOLS, "Only some tools")] if self.tools_of else []
        if self.set_name:
            return [(TOOL_SET, f"The tool set {self.set_name}")]
        if self.member:
            return [(MEMBERS, f"All of the member {self.member}"), *tools]
        if self.resource != WHOLE_GATEWAY:  # the members of an agent
            return [(EVERYTHING, "All that is at this address")]
        sets = [(TOOL_SET, "Only a tool set")] if has_sets else []
        members = [(MEMBERS, "Only some members")] if self.tools_of else []
        return [(EVERYTHING, "Everything that you may use"), *members, *tools, *sets]

    def clean(self) -> dict[str, Any]:
        """Require a choice for a scope that needs one. Otherwise a forgotten choice would allow everything."""
        cleaned = super().clean() or {}
        scope = cleaned.get("scope")
        if scope == MEMBERS and self.member:
            cleaned["members"] = [self.member]
        if scope == TOOL_SET and self.set_name:
            cleaned["tool_set"] = self.set_name
        if scope in (MEMBERS, TOOLS, TOOL_SET) and not cleaned.get(scope):
            words = {MEMBERS: "at least one member", TOOLS: "at least one tool", TOOL_SET: "a tool set"}
            raise ValidationError(f"Choose {words[scope]}.")
        return cleaned

    def grant(self, *, client_id: str, client_name: str, redirect_uri: str) -> NewGrant:
        """What the valid form says."""
        data, scope = self.cleaned_data, self.cleaned_data["scope"]
        token = NewToken(
            members=data["members"] if scope == MEMBERS else (),
            tools=[parse_tool(text) for text in data["tools"]] if scope == TOOLS else (),
            tool_set=data["tool_set"] if scope == TOOL_SET else "",
        )
        return NewGrant(client_id, client_name, redirect_uri, self.resource, data["days"], token)


def _names_in(resource: str) -> tuple[str, str]:
    """The member and the tool set of a path. Each is empty if the path is not of one."""
    parts = resource.strip("/").split("/")
    return (parts[1] if len(parts) == 2 else "", parts[1] if parts[0] == "sets" else "")


def _tools_of(principal: Principal, names: list[str]) -> dict[str, list[str]]:
    tools: dict[str, list[str]] = defaultdict(list)
    rows = Tool.objects.filter(listed=True, member__removed_at=None, member__name__in=names)
    pairs = rows.order_by("member__name", "position").values_list("member__name", "name")
    for member, tool in islice((pair for pair in pairs if principal.may_invoke(*pair)), MAX_TOOLS):
        tools[member].append(tool)
    return dict(tools)

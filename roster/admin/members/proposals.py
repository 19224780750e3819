"""The page on which users propose members from what other clients have, and approve them."""

from __future__ import annotations

from typing import Any, cast

from django import forms
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_post_parameters

from mcp_runtime.control import proposals, registry
from mcp_runtime.protocol.errors import RequestRefusedError
from mcp_runtime.sources.server_json import Way
from roster.admin import present
from roster.admin.members.filling import WayForm, filled_of
from roster.admin.rows import RuntimeRowAdmin
from roster.proposals import described

MAX_SOURCE = 262_144


class SourceForm(forms.Form):
    source = forms.CharField(
        max_length=MAX_SOURCE,
        strip=False,
        widget=forms.Textarea(
            attrs={"rows": 12, "class": "vLargeTextField", "spellcheck": "false", "autocomplete": "off"}
        ),
        help_text="The configuration of Claude, Cursor, Windsurf, VS Code, Codex, Zed or Gemini CLI, a server.json, a "
        "command line such as npx -y PACKAGE, or an address. Secrets in it are stored as secrets of the hall.",
    )
    name = forms.CharField(max_length=64, required=False, help_text="Only for a single server. Empty: its own name.")


class ProposalsScreen(RuntimeRowAdmin):
    """The part of the members' admin that is about proposed members."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.proposals_view)
        return [path("proposals/", view, name="roster_guildmember_proposals"), *super().get_urls()]

    @method_decorator(sensitive_post_parameters())
    def proposals_view(self, request: HttpRequest) -> HttpResponse:
        """The forms, and the proposals. A POST proposes the members of a source, or approves or discards one.

        For a server of a registry that needs values, it answers with a page that asks for them.
        """
        if not request.user.has_perm(proposals.PERMISSION):
            raise PermissionDenied
        if request.method == "POST":
            return self._act(request) or redirect("admin:roster_guildmember_proposals")
        context = {
            "title": "Add a member",
            "form": SourceForm(),
            "proposals": [described(row) for row in proposals.open_proposals()],
            "faults": proposals.folder_faults(),
            "without_folder": proposals.without_folder(),
            "may_set_secrets": request.user.has_perm("roster.add_secret"),
            "has_registry": registry.is_configured(),
            **_search(request.GET.get("registry"), request.GET.get("after", "")),
        }
        return self._render(request, "proposals.html", context)

    def _render(self, request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
        common = {**self.admin_site.each_context(request), "opts": self.opts}
        return TemplateResponse(request, f"admin/roster/guildmember/{template}", {**common, **context})

    def _act(self, request: HttpRequest) -> HttpResponse | None:
        """Do what the user wants. The result is a page that asks for more, or None.

        A refused source is not shown again, because it may contain secrets.
        """
        user, name = cast(User, request.user), request.POST.get("name", "")
        try:
            if "approve" in request.POST:
                proposals.approve(name, request.POST["approve"], user)
                self.message_user(request, f"The member {name} is approved. The hall creates its folder and starts it.")
            elif "discard" in request.POST:
                proposals.discard(name)
                self.message_user(request, f"The proposed member {name} is discarded.")
            else:
                return self._propose(request, user)
        except RequestRefusedError as refusal:
            present.report(request, "", [], [str(refusal)])
        return None

    def _propose(self, request: HttpRequest, user: User) -> HttpResponse | None:
        form = SourceForm(request.POST)
        if not form.is_valid():
            present.report(request, "", [], [str(error) for errors in form.errors.values() for error in errors])
            return None
        name = form.cleaned_data["name"]
        text, ways = proposals.look_up(form.cleaned_data["source"])
        chosen = next((way for way in ways if str(way.number) == request.POST.get("way")), None)
        if chosen is None and any(way.fields or way.refusal for way in ways):
            return self._ask(request, text, ways)
        try:
            filled = filled_of(chosen, request.POST.dict()) if chosen else None
            reading, rows = proposals.propose(text, user, name=name, filled=filled)
        except RequestRefusedError as refusal:
            if chosen is None:
                raise
            return self._ask(request, text, ways, chosen, str(refusal))
        refusals = [str(refusal) for refusal in reading.refusals]
        present.report(request, "Proposed, and not approved yet", [row.name for row in rows], refusals)
        return None

    def _ask(
        self, request: HttpRequest, text: str, ways: list[Way], chosen: Way | None = None, refusal: str = ""
    ) -> HttpResponse:
        """The page that asks for the values of a server. A server.json contains no secret, so it may come back."""
        forms = [WayForm(way, request.POST.dict() if way == chosen else None) for way in ways if not way.refusal]
        refused = [way for way in ways if way.refusal]
        context = {"title": "Add a member", "source": text, "forms": forms, "refused": refused, "refusal": refusal}
        return self._render(request, "filling.html", context)


def _search(text: str | None, cursor: str) -> dict[str, Any]:
    """What the registry has, for the page. Without a `text` nobody has asked."""
    if text is None or not registry.is_configured():
        return {}
    try:
        return {"searched": text, "found": registry.search(text, cursor)}
    except RequestRefusedError as refusal:
        return {"searched": text, "search_fault": str(refusal)}

"""The page on which users propose members from what other clients have, and approve them."""

from __future__ import annotations

from typing import cast

from django import forms
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_post_parameters

from mcp_runtime.control import proposals
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.admin import present
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
        help_text="The configuration of Claude, Cursor, Windsurf, VS Code, Codex, Zed or Gemini CLI, a command line "
        "such as npx -y PACKAGE, or an address. Secrets in it are stored as secrets of the hall.",
    )
    name = forms.CharField(max_length=64, required=False, help_text="Only for a single server. Empty: its own name.")


class ProposalsScreen(RuntimeRowAdmin):
    """The part of the members' admin that is about proposed members."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.proposals_view)
        return [path("proposals/", view, name="roster_guildmember_proposals"), *super().get_urls()]

    @method_decorator(sensitive_post_parameters("source"))
    def proposals_view(self, request: HttpRequest) -> HttpResponse:
        """The form, and the proposals. A POST proposes the members of a source, or approves or discards one."""
        if not request.user.has_perm(proposals.PERMISSION):
            raise PermissionDenied
        if request.method == "POST":
            self._act(request)
            return redirect("admin:roster_guildmember_proposals")
        context = {
            **self.admin_site.each_context(request),
            "title": "Add a member",
            "opts": self.opts,
            "form": SourceForm(),
            "proposals": [described(row) for row in proposals.open_proposals()],
            "faults": proposals.folder_faults(),
            "without_folder": proposals.without_folder(),
            "may_set_secrets": request.user.has_perm("roster.add_secret"),
        }
        return TemplateResponse(request, "admin/roster/guildmember/proposals.html", context)

    def _act(self, request: HttpRequest) -> None:
        """Do what the user wants. A refused source is not shown again, because it may contain secrets."""
        user, name = cast(User, request.user), request.POST.get("name", "")
        try:
            if "approve" in request.POST:
                proposals.approve(name, request.POST["approve"], user)
                self.message_user(request, f"The member {name} is approved. The hall creates its folder and starts it.")
            elif "discard" in request.POST:
                proposals.discard(name)
                self.message_user(request, f"The proposed member {name} is discarded.")
            else:
                self._propose(request, user)
        except RequestRefusedError as refusal:
            present.report(request, "", [], [str(refusal)])

    @staticmethod
    def _propose(request: HttpRequest, user: User) -> None:
        form = SourceForm(request.POST)
        if not form.is_valid():
            present.report(request, "", [], [str(error) for errors in form.errors.values() for error in errors])
            return
        values = form.cleaned_data
        reading, rows = proposals.propose(values["source"], user, name=values["name"])
        refusals = [str(refusal) for refusal in reading.refusals]
        present.report(request, "Proposed, and not approved yet", [row.name for row in rows], refusals)

"""The page on which users propose members from what other clients have, and approve them."""

from __future__ import annotations

from typing import Any, cast

from django import forms
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_post_parameters

from mcp_runtime.control import bundles, proposals, registry
from mcp_runtime.protocol.errors import RequestRefusedError
from mcp_runtime.sources.server_json import Way
from roster import template
from roster.admin import live, present
from roster.admin.members.arrivals import arrivals
from roster.admin.members.filling import WayForm, filled_of
from roster.admin.rows import RuntimeRowAdmin, principal_of
from roster.models import Bundle, MemberProposal
from roster.proposals import described

MAX_SOURCE = 262_144


class SourceForm(forms.Form):
    source = forms.CharField(
        max_length=MAX_SOURCE,
        label="Text",
        strip=False,
        widget=forms.Textarea(
            attrs={"rows": 12, "class": "vLargeTextField", "spellcheck": "false", "autocomplete": "off"}
        ),
        help_text="The configuration of Claude, Cursor, Windsurf, VS Code, Codex, Zed or Gemini CLI, a server.json, a "
        "command line such as npx -y PACKAGE, or an address. Secrets in it become secrets of the hall.",
    )
    name = forms.CharField(
        max_length=64,
        required=False,
        help_text="The name of the member, if the text has a single server. Empty: its own name.",
    )


class BundleForm(forms.Form):
    prefix = "upload"

    file = forms.FileField(
        widget=forms.ClearableFileInput(attrs={"accept": ".mcpb,.dxt,.zip"}),
        help_text="A server with all its files (.mcpb), of at most 50 MB. It is unpacked after the approval.",
    )


class TemplateForm(forms.Form):
    prefix = "template"

    name = forms.CharField(
        max_length=64,
        help_text="The name of the new member, of letters, digits, - and _. It has one tool, in Python, to extend.",
    )


class ProposalsScreen(RuntimeRowAdmin):
    """The part of the members' admin that is about proposed members."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("proposals/", view(self.proposals_view), name="roster_guildmember_proposals"),
            path("proposals/approved/", view(self.approved_view), name="roster_guildmember_approved"),
            *super().get_urls(),
        ]

    @method_decorator(sensitive_post_parameters())
    def proposals_view(self, request: HttpRequest) -> HttpResponseBase:
        """The forms, and the proposals. A POST proposes the members of a source, or approves or discards one.

        For a server of a registry or a bundle that needs values, it answers with a page that asks for them.
        """
        if not request.user.has_perm(proposals.PERMISSION):
            raise PermissionDenied
        if request.method == "POST":
            page = redirect("admin:roster_guildmember_proposals")
            return self._act(request) or live.form_response(request, page)
        return self._proposals_page(request)

    def _proposals_page(self, request: HttpRequest, **refused_forms: forms.Form) -> HttpResponse:
        context = {
            "title": "Add a member",
            "form": SourceForm(),
            "bundle_form": BundleForm(),
            "template_form": TemplateForm(),
            **refused_forms,
            "proposals": [described(row) for row in proposals.open_proposals()],
            "may_set_secrets": request.user.has_perm("roster.add_secret"),
            "has_registry": registry.is_configured(),
            **self._arrivals(request),
            **_search(request.GET.get("registry"), request.GET.get("after", "")),
        }
        return self._render(request, "proposals.html", context)

    def approved_view(self, request: HttpRequest) -> HttpResponse:
        """What becomes of the approved members, as a live part."""
        if not request.user.has_perm(proposals.PERMISSION):
            raise PermissionDenied
        return live.part(request, "roster/approved.html", lambda: self._arrivals(request))

    def _arrivals(self, request: HttpRequest) -> dict[str, Any]:
        closed_members = principal_of(request).closed_members
        views_members = self.has_view_permission(request)
        return {"arrivals": arrivals(self.get_queryset(request), closed_members, views_members=views_members)}

    def _render(self, request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
        common = {**self.admin_site.each_context(request), "opts": self.opts}
        return TemplateResponse(request, f"admin/roster/guildmember/{template}", {**common, **context})

    def _act(self, request: HttpRequest) -> HttpResponse | None:
        """Do what the user wants. The result is a page that asks for more or has what was refused, or None."""
        user, name = cast(User, request.user), request.POST.get("name", "")
        refused = "Not proposed"
        try:
            if "approve" in request.POST:
                refused = "Not approved"
                proposals.approve(name, request.POST["approve"], user)
                self.message_user(request, f"The member {name} is approved. The hall creates its folder and starts it.")
            elif name := request.POST.get("discard", ""):
                refused = "Not discarded"
                proposals.discard(name)
                self.message_user(request, f"The proposed member {name} is discarded.")
            elif "template" in request.POST:
                name = request.POST.get("template-name", "")
                self._tell(request, proposals.propose_template(name, template.files_of(name), user)[1])
            elif "upload" in request.POST:
                return self._upload(request, user)
            elif "held" in request.POST:
                return self._propose_held(request, user, bundles.find_waiting(request.POST["held"], user))
            else:
                return self._propose(request, user)
        except RequestRefusedError as refusal:
            if page := self._refuse(request, str(refusal)):
                return page
            present.report(request, "", [], [str(refusal)], refused)
        return None

    def _refuse(self, request: HttpRequest, reason: str = "") -> HttpResponse | None:
        """The page with what the user typed, and why it was refused. None for buttons, which have nothing to keep.

        A pasted text may contain secrets. It goes back only in this response, which no browser or proxy stores.
        """
        form: forms.Form
        if "template" in request.POST:
            key, form = "template_form", TemplateForm(request.POST)
        elif "upload" in request.POST:
            key, form = "bundle_form", BundleForm(request.POST, request.FILES)
        elif "source" in request.POST:
            key, form = "form", SourceForm(request.POST)
        else:
            return None
        first = next(iter(form.fields))
        if reason:
            form.add_error(first, f"Not proposed: {reason.removesuffix('.')}.")
        if file := request.FILES.get("upload-file"):
            form.add_error(first, f"Choose {present.one_line(str(file.name))} again, because browsers keep no files.")
        form.fields[first].widget.attrs["autofocus"] = True
        return self._proposals_page(request, **{key: form})

    def _propose(self, request: HttpRequest, user: User) -> HttpResponse | None:
        form = SourceForm(request.POST)
        if not form.is_valid():
            return self._refuse(request)
        name = form.cleaned_data["name"]
        text, ways = proposals.look_up(form.cleaned_data["source"])
        chosen = next((way for way in ways if str(way.number) == request.POST.get("way")), None)
        if chosen is None and any(way.fields or way.refusal for way in ways):
            return self._ask(request, {"source": text}, ways)
        try:
            filled = filled_of(chosen, request.POST.dict()) if chosen else None
            reading, rows = proposals.propose(text, user, name=name, filled=filled)
        except RequestRefusedError as refusal:
            if chosen is None:
                raise
            return self._ask(request, {"source": text}, ways, chosen, refusal)
        self._tell(request, rows)
        return self._refuse(request, "; ".join(map(str, reading.refusals))) if reading.refusals else None

    def _upload(self, request: HttpRequest, user: User) -> HttpResponse | None:
        form = BundleForm(request.POST, request.FILES)
        if not form.is_valid():
            return self._refuse(request)
        return self._propose_held(request, user, bundles.hold(form.cleaned_data["file"].file, user))

    def _propose_held(self, request: HttpRequest, user: User, held: Bundle) -> HttpResponse | None:
        """Propose the bundle that was uploaded, or ask for its values. Its bytes do not come back to the browser."""
        with bundles.content_of(held) as file:
            (way,) = bundles.ways(file)
        if way.fields and "way" not in request.POST:
            return self._ask(request, {"held": held.pk}, [way])
        try:
            filled = filled_of(way, request.POST.dict())
            _, rows = proposals.propose_held(held, user, name=request.POST.get("name", ""), filled=filled)
        except RequestRefusedError as refusal:
            return self._ask(request, {"held": held.pk}, [way], way, refusal)
        self._tell(request, rows)
        return None

    @staticmethod
    def _tell(request: HttpRequest, rows: list[MemberProposal]) -> None:
        present.report(request, "Proposed, and not approved yet", [row.name for row in rows], [])

    def _ask(
        self,
        request: HttpRequest,
        source: dict[str, Any],
        ways: list[Way],
        chosen: Way | None = None,
        refusal: RequestRefusedError | None = None,
    ) -> HttpResponse:
        """The page that asks for the values of a server. `source` comes back with them, and contains no secret.

        After a refusal, the form of the chosen way shows its faults, and has the values that were sent.
        """
        forms = [WayForm(way, request.POST.dict() if way == chosen else None) for way in ways if not way.refusal]
        for form in forms:
            if form.way == chosen and refusal is not None:
                form.note_refusal(refusal)
        refused = [way for way in ways if way.refusal]
        context = {"title": "Add a member", "source": source, "forms": forms, "refused": refused}
        return self._render(request, "filling.html", context)


def _search(text: str | None, cursor: str) -> dict[str, Any]:
    """What the registry has, for the page. Without a `text` nobody has asked."""
    if text is None or not registry.is_configured():
        return {}
    try:
        return {"searched": text, "found": registry.search(text, cursor)}
    except RequestRefusedError as refusal:
        return {"searched": text, "search_fault": str(refusal)}

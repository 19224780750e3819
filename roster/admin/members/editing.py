"""The pages on which users edit the manifest of a member, and approve or take back edits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from django import forms
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from mcp_runtime.control import edits, proposals, versions
from mcp_runtime.protocol.errors import InvalidEditError, RequestRefusedError, SourceError
from mcp_runtime.secrets.references import MASK
from roster.admin import live, present
from roster.admin.rows import RuntimeRowAdmin, principal_of
from roster.diagnosis import form_key
from roster.edits import described, lines_of
from roster.manifest_fields import ManifestField, fields, text_in
from roster.models import GuildMember, ManifestEdit

SHOWN_EDITS = 20  # approved ones. All proposed ones are shown
SHOWN_LINES = 200  # of one changed value
EDIT_VERBS = {"approve": "Not approved", "discard": "Not discarded", "undo": "Not taken back"}  # with a refusal
VERSION_VERBS = ("look-up", "newest")

# The sections of the form. A key that is in none of them is in the last one.
SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("What people see", ("displayName", "description", "version")),
    ("Server", ("transport", "command", "args", "env", "url", "headers", "oauth", "protocol_version")),
    ("Time and load", ("start_timeout", "timeout", "tool_timeouts", "max_concurrency")),
    ("Protection", ("sandbox", "packages", "limits")),
    ("Nodes", ("node",)),
    ("When something changes or fails", ()),
)
OF_COMMAND = ("transport", "command", "args", "env", "sandbox", "packages", "limits")
OF_URL = ("url", "headers", "oauth")


class ManifestForm(forms.Form):
    """The values of a member's manifest. Each field keeps the text with which the page began.

    So a value that somebody else changes meanwhile is not changed back. The hall validates the values, not the form.
    """

    force = forms.BooleanField(
        required=False,
        label="Replace what the file has",
        help_text="Its file has a fault, so the hall does not know its values. What you change here replaces them.",
    )

    def __init__(self, member: GuildMember, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(data, auto_id="edit-%s", label_suffix="")
        self._fields = {field.key: field for field in fields() if not _is_foreign(field, member)}
        for key, field in self._fields.items():
            self.fields[key] = _form_field(field, text_in(member.manifest, field))
        self.faulty_key = ""
        if not member.manifest_error:
            del self.fields["force"]
        elif faulty := self.fields.get(form_key(member.manifest_error_key)):
            self.faulty_key = str(faulty.label)
            faulty.help_text = f"The file has another value, which is wrong. {faulty.help_text}"

    @property
    def sections(self) -> Iterator[tuple[str, list[forms.BoundField]]]:
        named = {key for _, keys in SECTIONS for key in keys}
        for title, keys in SECTIONS:
            part = [
                self[field.key]
                for field in self._fields.values()
                if (field.path[0] in keys if keys else field.path[0] not in named)
            ]
            if part:
                yield title, part

    def patch(self) -> dict[str, Any]:
        """The changed values as a JSON Merge Patch. Values that cannot be read become errors of their fields."""
        patch: dict[str, Any] = {}
        # The value at the fault is meant also if it is that of the last valid manifest.
        for key in dict.fromkeys([*self.changed_data, *([self.faulty_key] if self.faulty_key else [])]):
            field = self._fields.get(key)
            if field is None:
                continue
            try:
                before = "" if key == self.faulty_key else _lines(self.data.get(f"initial-{key}", ""))
                value = field.patch_of(self.cleaned_data[key], before)
            except ValueError as error:
                self.add_error(key, str(error))
                continue
            holder = patch.setdefault(field.path[0], {}) if len(field.path) == 2 else patch
            holder[field.path[-1]] = value
        return patch

    def note_refusal(self, refusal: RequestRefusedError) -> None:
        """Show each fault at the field that it is about."""
        if isinstance(refusal, InvalidEditError):
            faults = [(fault.path, fault.reason) for fault in refusal.faults]
        elif isinstance(refusal, SourceError):
            faults = refusal.faults
        else:
            faults = [("", str(refusal))]
        for place, reason in faults:
            key = place.removeprefix("mcp.")
            name = next((name for name in self._fields if key == name or key.startswith(f"{name}.")), None)
            rest = key[len(name) + 1 :] if name else key
            self.add_error(name, f"{rest}: {reason}" if rest else reason)


def _is_foreign(field: ManifestField, member: GuildMember) -> bool:
    """Whether the key is for the other kind of members: with a url, or with a command."""
    if not member.manifest:
        return False
    return field.path[0] in (OF_COMMAND if member.server_url else OF_URL)


class _Text(forms.CharField):
    """A text with the line ends of a browser as those of a file."""

    def to_python(self, value: Any) -> str:
        return _lines(super().to_python(value) or "")


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _form_field(field: ManifestField, text: str) -> forms.Field:
    attributes = {"autocomplete": "off", "spellcheck": "false"}
    result: forms.Field
    if field.choices:
        empty = [] if text and not field.is_optional else [("", "default")]
        choices = [*empty, *((choice, choice) for choice in field.choices)]
        result = forms.ChoiceField(choices=choices)
    elif field.has_lines or field.is_long or "\n" in text:
        rows = min(max(text.count("\n") + 2, 3), 12)
        widget = forms.Textarea(attrs={**attributes, "rows": rows, "class": "vLargeTextField"})
        result = _Text(strip=False, widget=widget)
    else:
        result = _Text(strip=False, widget=forms.TextInput(attrs={**attributes, "class": "vTextField"}))
    result.label, result.initial, result.required = field.key, text, False
    result.help_text, result.show_hidden_initial = _help(field), True
    return result


def _help(field: ManifestField) -> str:
    if field.key in ("env", "headers"):
        example = "NAME=value" if field.key == "env" else "Name: value"
        return (
            f"{field.description} One on each line, as {example}. A value that could be a secret becomes a secret of "
            f"the hall. {MASK} leaves a value as it is."
        )
    if field.key == "tool_timeouts":
        return f"{field.description} One on each line, as tool=seconds."
    return f"{field.description} One on each line." if field.has_lines else field.description


class EditScreen(RuntimeRowAdmin):
    """The part of the members' admin that is about edits of manifests."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("<int:member_id>/edit/", view(self.edit_view), name="roster_guildmember_edit"),
            path("<int:member_id>/edits/", view(self.edits_view), name="roster_guildmember_edits"),
            path("<int:member_id>/edits/list/", view(self.edits_part_view), name="roster_guildmember_edits_part"),
            path("<int:member_id>/edits/<slug:verb>/", view(self.edit_verb_view), name="roster_guildmember_edit_verb"),
            *super().get_urls(),
        ]

    def may_edit(self, request: HttpRequest, member: GuildMember | None = None) -> bool:
        is_there = member is None or member.removed_at is None
        return is_there and request.user.has_perm(proposals.PERMISSION) and self.has_view_permission(request)

    def edit_view(self, request: HttpRequest, member_id: int) -> HttpResponse:
        """The form. A POST proposes an edit of what the user changed in it. `?key=` names the key to begin with."""
        member = self._editable(request, member_id)
        form = ManifestForm(member, request.POST if request.method == "POST" else None)
        if form.is_valid():
            patch = form.patch()
            if not patch and not form.errors:
                form.add_error(None, "Nothing is changed yet.")
            if not form.errors and self._propose_edit(request, member, form, patch):
                return redirect("admin:roster_guildmember_edits", member.pk)
        key = next((name for name in form.errors if name in form.fields), request.GET.get("key", ""))
        if key in form.fields:
            form.fields[key].widget.attrs["autofocus"] = True
        context = {
            **self.admin_site.each_context(request),
            "title": f"Edit {member.name}",
            "opts": self.opts,
            "member": member,
            "form": form,
        }
        return TemplateResponse(request, "admin/roster/guildmember/edit.html", context)

    def _propose_edit(
        self, request: HttpRequest, member: GuildMember, form: ManifestForm, patch: dict[str, Any]
    ) -> bool:
        try:
            if member.manifest_error and not form.cleaned_data.get("force"):
                form.add_error("force", "The file has a fault. Say that your values replace what it has.")
                return False
            edits.propose_edit(member, patch, cast(User, request.user))
        except RequestRefusedError as refusal:
            form.note_refusal(refusal)
            return False
        return True

    def edits_view(self, request: HttpRequest, member_id: int) -> HttpResponse:
        """The edits of the member, the newest first, with what each of them changes."""
        member = self._editable(request, member_id)
        context = {
            **self.admin_site.each_context(request),
            "title": f"Edits of {member.name}",
            "opts": self.opts,
            **self._edits(request, member),
        }
        return TemplateResponse(request, "admin/roster/guildmember/edits.html", context)

    def edits_part_view(self, request: HttpRequest, member_id: int) -> HttpResponse:
        member = self._editable(request, member_id)
        return live.part(request, "roster/member/edits.html", lambda: self._edits(request, member))

    def edit_verb_view(self, request: HttpRequest, member_id: int, verb: str) -> HttpResponseBase:
        """Approve, discard or take back an edit. Its number is in the query, because one form has all buttons."""
        member = self._editable(request, member_id)
        if request.method != "POST" or verb not in (*EDIT_VERBS, *VERSION_VERBS):
            raise Http404(f"an edit has no verb {verb!r}")
        if verb in VERSION_VERBS:
            self._act_on_version(request, member, verb)
            return live.form_response(request, redirect("admin:roster_guildmember_edits", member.pk))
        number, user = request.GET.get("edit", ""), cast(User, request.user)
        force = request.GET.get("force") == "1"
        try:
            pk = int(number) if number.isdecimal() and len(number) < 19 else 0
            edit = edits.find_edit(pk, principal_of(request))
            if edit.member_id != member.pk:
                raise Http404(f"edit {pk} is of another member")
            if verb == "approve":
                edits.approve_edit(edit, user, force=force)
                self.log_change(request, member, f"Approved edit {pk}.")
                self.message_user(request, f"Edit {pk} is approved. The runtime changes the file.")
            elif verb == "undo":
                back = edits.undo_edit(edit, user, force=force)
                self.log_change(request, member, f"Took back edit {pk} with edit {back.pk}.")
                self.message_user(request, f"Edit {back.pk} takes back edit {pk}. The runtime changes the file.")
            else:
                edits.discard_edit(edit)
                self.message_user(request, f"Edit {pk} is discarded.")
        except RequestRefusedError as refusal:
            present.report(request, "", [], [str(refusal)], EDIT_VERBS[verb])
        return live.form_response(request, redirect("admin:roster_guildmember_edits", member.pk))

    def _act_on_version(self, request: HttpRequest, member: GuildMember, verb: str) -> None:
        try:
            if verb == "look-up":
                versions.ask_for_newest(member)
            else:
                edit = versions.propose_newest(member, cast(User, request.user))
                self.message_user(request, f"Edit {edit.pk} is proposed.")
        except RequestRefusedError as refusal:
            refused = "Not looked up" if verb == "look-up" else "Not proposed"
            present.report(request, "", [], [str(refusal)], refused)

    def _edits(self, request: HttpRequest, member: GuildMember) -> dict[str, Any]:
        rows = edits.edits_of(principal_of(request)).filter(member=member)
        proposed, approved = rows.filter(approved_at=None), rows.exclude(approved_at=None)
        return {
            "member": member,
            "edits": [_shown(edit) for edit in [*proposed, *approved[:SHOWN_EDITS]]],
            "is_needed": edits.is_needed(member),
            "version": versions.version_report(member),
        }

    def _editable(self, request: HttpRequest, member_id: int) -> GuildMember:
        if not self.may_edit(request):
            raise PermissionDenied
        member: GuildMember = self.existing(request, str(member_id))
        if not self.may_edit(request, member):
            raise Http404(f"the folder of {member.name} is gone")
        return member

    def edits_of(self, request: HttpRequest, member: GuildMember) -> dict[str, Any]:
        """For the page of the member: whether the user may edit it, and how many edits wait for an approval."""
        if not self.may_edit(request, member):
            return {}
        return {"may_approve_edits": True, "edit_count": member.edits.filter(approved_at=None).count()}


def _shown(edit: ManifestEdit) -> dict[str, Any]:
    """The edit with the lines of its changes, each with a CSS class."""
    shown = described(edit)
    classes = {"+": "added", "-": "removed"}
    for change in shown["changes"]:
        lines = lines_of(change)
        change["lines"] = [(classes.get(line[:1], ""), line) for line in lines[:SHOWN_LINES]]
        change["cut"] = max(len(lines) - SHOWN_LINES, 0)
    return shown

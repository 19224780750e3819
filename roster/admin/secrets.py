"""Secrets in the admin: set a value, which is never shown again, and choose the members that may use it."""

from __future__ import annotations

from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import URLPattern, path
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from mcp_runtime.control import secrets
from mcp_runtime.protocol.errors import RequestRefusedError
from mcp_runtime.secrets.references import MAX_SECRET
from roster.admin import choosing, live, present
from roster.admin.choosing import SearchedField
from roster.admin.rows import SafeFilterAdmin, principal_of
from roster.models import GuildMember, Secret, SecretUse

FORM_FIELDS = ["name", "value", "members"]
SHOWN_FIELDS = ["name", "allowed_members", "changed", "setter"]  # for users who may only view secrets
NEW_VALUE_HELP = "It is encrypted, and the hall never shows it again."
VALUE_HELP = "Leave it empty to keep the value. Members that run get a new value when they start the next time."
MEMBERS_HELP = (
    "Only these members can use it. If the command, the arguments, the environment, the sandbox, the URL or the "
    "names of headers of a member change, the member cannot use it until you allow that again on its page."
)


def _visible_members(request: HttpRequest) -> QuerySet[GuildMember]:
    members = GuildMember.objects.filter(removed_at=None).exclude(name__in=principal_of(request).closed_members)
    return members.order_by("name")


MEMBERS = choosing.rows_offer(
    "secret-members",
    "members",
    is_open=lambda request: request.user.has_perm("roster.add_secret") or request.user.has_perm("roster.change_secret"),
    rows=_visible_members,
)


class UnshownTextarea(forms.Textarea):
    """A field for a secret. Its value is not in the page, also not when the form has faults."""

    def format_value(self, value: Any) -> str:
        return ""


class SecretForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's class cannot be subscripted at run time
    value = forms.CharField(
        max_length=MAX_SECRET,
        strip=False,
        required=False,
        widget=UnshownTextarea(
            attrs={"rows": 3, "autocomplete": "off", "spellcheck": "false", "class": "secret-value"}
        ),
    )
    members = SearchedField(GuildMember.objects.none(), offer=MEMBERS, required=False, help_text=MEMBERS_HELP)

    class Meta:
        model = Secret
        fields = ("name",)

    visible_members: QuerySet[GuildMember]  # set by SecretAdmin.get_form

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        is_new = self.instance.pk is None
        if "value" in self.fields:
            self.fields["value"].required = is_new
            self.fields["value"].help_text = NEW_VALUE_HELP if is_new else VALUE_HELP
        if "members" in self.fields:
            field: Any = self.fields["members"]
            field.queryset = self.visible_members
            if not is_new:
                field.initial = self.visible_members.filter(secret_uses__secret=self.instance)

    def clean_value(self) -> str:
        """Check it now, because only a form can tell the user why the key file cannot be used."""
        # Browsers end lines with CR LF. A line break at the end comes from pasting.
        value: str = self.cleaned_data["value"].replace("\r\n", "\n").removesuffix("\n")
        if value:
            try:
                secrets.require_usable(value)
            except RequestRefusedError as refusal:
                raise forms.ValidationError(str(refusal)) from refusal
        return value


@admin.register(Secret)
class SecretAdmin(SafeFilterAdmin):
    nothing_yet = (
        "There are no secrets yet. The hall keeps passwords and keys encrypted, and gives them only to the members "
        "that may use them."
    )
    form = SecretForm
    change_form_template = "admin/roster/secret/change_form.html"
    list_display = ["name", "allowed_members", "changed", "setter"]
    list_select_related = ["changed_by"]
    search_fields = ["name"]

    changed = present.moment_column("changed_at", "last set")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Secret]:
        rows: QuerySet[Secret] = super().get_queryset(request).prefetch_related("uses__member")
        self._closed_members = principal_of(request).closed_members
        return rows

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.old_value_view)
        return [path("<int:secret_id>/old-value/", view, name="roster_secret_old_value"), *super().get_urls()]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        if obj is not None and not self.has_change_permission(request, obj):
            return SHOWN_FIELDS
        return [] if obj is None else ["name"]  # manifests refer to it by its name

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        is_shown = obj is not None and not self.has_change_permission(request, obj)
        return SHOWN_FIELDS if is_shown else FORM_FIELDS

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change, **kwargs)
        return type(form.__name__, (form,), {"visible_members": _visible_members(request)})

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Through `control`, which encrypts the value. The row of the form gets the id, for the log and the page."""
        value, user = form.cleaned_data["value"], cast(User, request.user)
        secret = secrets.set_secret(form.cleaned_data.get("name") or obj.name, value, user) if value else obj
        obj.pk, obj.is_set_now = secret.pk, bool(value)
        names = {member.name for member in form.visible_members}
        secrets.choose_members(Secret.objects.get(pk=obj.pk), form.cleaned_data["members"], user, of=names)

    # Members that run with an old value

    def old_value_view(self, request: HttpRequest, secret_id: int) -> HttpResponse:
        """The members that a new value has not reached, as a live part."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        secret = get_object_or_404(Secret, pk=secret_id)
        return live.part(request, "roster/secret/old_value.html", lambda: _with_old_value(request, secret))

    def change_view(self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        secret = self.get_object(request, object_id)
        context = {} if secret is None else _with_old_value(request, secret)
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **context})

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: str | None = None) -> HttpResponse:
        return self._page_of_old_value(request, obj) or super().response_add(request, obj, post_url_continue)

    def response_change(self, request: HttpRequest, obj: Any) -> HttpResponse:
        return self._page_of_old_value(request, obj) or super().response_change(request, obj)

    @staticmethod
    def _page_of_old_value(request: HttpRequest, secret: Any) -> HttpResponse | None:
        """The page of the secret after it got a value, if members run with an old one. The page lists them."""
        secret.refresh_from_db(fields=["changed_at"])
        if not (secret.is_set_now and secrets.members_with_old_value(secret)):
            return None
        text = f"The secret {secret.name} has a new value. Some members run with the old one until they restart."
        messages.warning(request, text)
        return redirect("admin:roster_secret_change", secret.pk)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        secrets.delete_secret(obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for secret in queryset:
            secrets.delete_secret(secret)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        # Which members may use it is deleted with it. The names of reserved members are not for everybody.
        _, counts, _, protected = super().get_deleted_objects(objs, request)
        return [str(secret) for secret in objs], counts, set(), protected

    @admin.display(description="set by", ordering="changed_by")
    def setter(self, secret: Secret) -> str:
        return str(secret.changed_by or present.NOTHING)

    @admin.display(description="members")
    def allowed_members(self, secret: Secret) -> SafeString | str:
        uses = [use for use in secret.uses.all() if use.member.name not in self._closed_members]
        hidden = len(secret.uses.all()) - len(uses)
        lines = [_use_in_words(use) for use in sorted(uses, key=lambda use: use.member.name)]
        if hidden:
            lines.append(format_html("{} reserved for others", hidden))
        return format_html_join(", ", "{}", ((line,) for line in lines)) if lines else present.NOTHING


def _with_old_value(request: HttpRequest, secret: Secret) -> dict[str, Any]:
    """The members that run with an old value, each with whether the user may restart it, and how many are hidden."""
    principal, members = principal_of(request), secrets.members_with_old_value(secret)
    visible = [member for member in members if principal.reaches(member.name)]
    return {
        "secret": secret,
        "old_value_members": [(member, principal.may_control(member.name)) for member in visible],
        "hidden_members": len(members) - len(visible),
    }


def _use_in_words(use: SecretUse) -> SafeString:
    note = "" if secrets.is_current(use) else " (changed since then, allow it again)"
    return format_html("{}{}", use.member.name, note)

"""Invitations in the admin. Who may create users may invite, and sees and revokes all invitations."""

from __future__ import annotations

from typing import Any, cast

from django import forms
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from roster import invitations, roles
from roster.admin import present
from roster.admin.rows import SafeFilterAdmin
from roster.admin.users import ROLE_HELP
from roster.models import Invitation, Role


class InvitationForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's class cannot be subscripted at run time
    role = forms.ModelChoiceField(Role.objects.none(), to_field_name="name", empty_label=None, help_text=ROLE_HELP)

    class Meta:
        model = Invitation
        fields = ("role", "note")

    def __init__(self, *args: Any, inviter: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field: Any = self.fields["role"]
        offered = roles.roles_to_give(inviter)
        field.queryset = Role.objects.filter(pk__in=[role.pk for role in offered])
        field.initial = next((role for role in offered if role.name == roles.DEFAULT), None)


@admin.register(Invitation)
class InvitationAdmin(SafeFilterAdmin):
    nothing_yet = "Nobody is invited yet. An invitation is a link with which one person makes an account."
    list_display = ["role", "note", "inviter", "created", "expires", "status"]
    list_display_links = None
    list_select_related = ["role", "created_by", "used_by"]
    actions = ["revoke"]

    created = present.moment_column("created_at")
    expires = present.moment_column("expires_at", "valid until")

    def get_urls(self) -> list[URLPattern]:
        """The list and the form. An invitation has no page, because nothing about it can be changed."""
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name="roster_invitation_changelist"),
            path("invite/", view(self.invite_view), name="roster_invitation_invite"),
        ]

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return request.user.has_perm(invitations.PERMISSION)

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        """For the action."""
        return self.has_view_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False  # `invite_view` makes them

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """They are deleted only with their inviter, for which Django asks here too."""
        return request.user.has_perm("auth.delete_user")

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        actions: dict[str, Any] = super().get_actions(request)
        actions.pop("delete_selected", None)
        return actions

    def next_step(self, request: HttpRequest) -> SafeString | str:
        return format_html('<a href="{}">Invite a person</a>', reverse("admin:roster_invitation_invite"))

    def invite_view(self, request: HttpRequest) -> HttpResponse:
        """The form, and in the response to it the link. It is not redirected, because nothing stores the link."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        inviter, made = cast(User, request.user), None
        form = InvitationForm(request.POST if request.method == "POST" else None, inviter=inviter)
        if form.is_valid():
            data = form.cleaned_data
            try:
                made = invitations.invite(data["role"], inviter=inviter, note=data["note"])
            except invitations.InvitationError as refusal:
                form.add_error(None, str(refusal))
        if made:
            self.log_addition(request, made[0], [{"added": {}}])
        context = {
            **self.admin_site.each_context(request),
            "title": "Invite a person",
            "opts": self.opts,
            "form": form,
            "invitation": made and made[0],
            "link": made and made[1],
        }
        return TemplateResponse(request, "admin/roster/invitation/invite.html", context)

    @admin.action(description="Revoke selected invitations", permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[Invitation]) -> None:
        revoked, refusals = [], []
        for invitation in queryset:
            if invitations.revoke(invitation):
                self.log_change(request, invitation, "Revoked.")
                revoked.append(_name(invitation))
            else:
                refusals.append(f"{_name(invitation)}: it is not open any more")
        present.report(request, "Revoked", revoked, refusals)

    # Columns

    @admin.display(description="invited by", ordering="created_by__username")
    def inviter(self, invitation: Invitation) -> str:
        return invitation.created_by.get_username() if invitation.created_by else "the operator"

    @admin.display(description="state")
    def status(self, invitation: Invitation) -> SafeString | str:
        if invitation.state == "used" and invitation.used_by:
            return f"used by {invitation.used_by.get_username()}"
        return present.badge(invitation.state)


def _name(invitation: Invitation) -> str:
    return present.one_line(invitation.note, 60) or str(invitation)

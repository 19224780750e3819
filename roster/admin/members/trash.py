"""The pages on which users remove a member, and restore what is in the trash."""

from __future__ import annotations

from typing import cast

from django import forms
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from mcp_runtime.control import proposals
from mcp_runtime.control.trash import remove_member, restore_member, trashed_members
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.admin import present
from roster.admin.rows import RuntimeRowAdmin, principal_of
from roster.models import GuildMember, TrashedMember


class RemovalForm(forms.Form):
    force = forms.BooleanField(
        required=False,
        label="Even if an agent needs it",
        help_text="Otherwise the removal is refused while a message to an agent that uses the member waits or runs.",
    )


class TrashScreen(RuntimeRowAdmin):
    """The part of the members' admin that is about removed members."""

    def get_urls(self) -> list[URLPattern]:
        remove, trash = self.admin_site.admin_view(self.remove_view), self.admin_site.admin_view(self.trash_view)
        return [
            path("<int:member_id>/remove/", remove, name="roster_guildmember_remove"),
            path("trash/", trash, name="roster_guildmember_trash"),
            *super().get_urls(),
        ]

    @staticmethod
    def may_remove(request: HttpRequest, member: GuildMember | None = None) -> bool:
        is_there = member is None or member.removed_at is None
        return is_there and request.user.has_perm(proposals.PERMISSION)

    def remove_view(self, request: HttpRequest, member_id: int) -> HttpResponse:
        if not self.may_remove(request):
            raise PermissionDenied
        member = self.existing(request, str(member_id))
        form = RemovalForm(request.POST if request.method == "POST" else None)
        if form.is_valid():
            try:
                remove_member(member, cast(User, request.user), force=form.cleaned_data["force"])
            except RequestRefusedError as refusal:
                form.add_error(None, str(refusal))
            else:
                self.log_change(request, member, "Removed.")
                self.message_user(request, f"{member.name} is removed. Its folder goes to the trash.")
                return redirect("admin:roster_guildmember_trash")
        context = {
            **self.admin_site.each_context(request),
            "title": f"Remove {member.name}",
            "opts": self.opts,
            "member": member,
            "days": TrashedMember.KEEP.days,
            "form": form,
        }
        return TemplateResponse(request, "admin/roster/guildmember/remove.html", context)

    def trash_view(self, request: HttpRequest) -> HttpResponse:
        """The removed members. A POST restores one."""
        if not self.may_remove(request):
            raise PermissionDenied
        if request.method == "POST":
            number = request.POST.get("restore", "")
            try:
                row = restore_member(
                    int(number) if number.isdecimal() and len(number) < 19 else 0, principal_of(request)
                )
                self.message_user(request, f"{row.name} is restored. The hall moves its folder back and starts it.")
            except RequestRefusedError as refusal:
                present.report(request, "", [], [str(refusal)], "Not restored")
            return redirect("admin:roster_guildmember_trash")
        context = {
            **self.admin_site.each_context(request),
            "title": "Trash",
            "opts": self.opts,
            "rows": list(trashed_members(principal_of(request))),
            "days": TrashedMember.KEEP.days,
        }
        return TemplateResponse(request, "admin/roster/guildmember/trash.html", context)

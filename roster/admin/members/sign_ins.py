"""The page on which a person signs a member in at its authorization server, and the button that signs it out."""

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
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST

from mcp_runtime.control import sign_ins, ways_in
from mcp_runtime.protocol.errors import ClientIdNeededError, RequestRefusedError
from mcp_runtime.security import principals
from roster.addresses import web_address
from roster.admin import live, present
from roster.admin.rows import RuntimeRowAdmin
from roster.models import GuildMember


class ClientForm(forms.Form):
    """The hall at an authorization server that lets it not register."""

    client_id = forms.CharField(max_length=2048, label="Client id")
    client_secret = forms.CharField(
        max_length=8192,
        required=False,
        label="Client secret",
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
        help_text="Leave it empty if the authorization server gave none.",
    )


class SignInScreen(RuntimeRowAdmin):
    """The part of the members' admin that is about members behind OAuth. Who may start a member may sign it in."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("<int:member_id>/sign-in/", view(self.sign_in_view), name="roster_guildmember_sign_in"),
            path("<int:member_id>/own-sign-in/", view(self.own_sign_in_view), name="roster_guildmember_own_sign_in"),
            path("<int:member_id>/own-sign-out/", view(self.own_sign_out_view), name="roster_guildmember_own_sign_out"),
            path("<int:member_id>/sign-out/", view(self.sign_out_view), name="roster_guildmember_sign_out"),
            *super().get_urls(),
        ]

    @method_decorator(never_cache)
    @method_decorator(sensitive_post_parameters("client_secret"))
    def sign_in_view(self, request: HttpRequest, member_id: int) -> HttpResponse:
        """A POST finds the authorization server, and shows it with a link that leads there.

        A redirect would not do, because the policy of the admin lets no form lead to another site.
        """
        if not self.has_control_permission(request):
            raise PermissionDenied
        member = self.existing(request, str(member_id))
        context: dict[str, Any] = {}
        if request.method == "POST":
            context = self._begin(request, member)
        context |= {
            **self.admin_site.each_context(request),
            "title": f"Sign {member.name} in",
            "opts": self.opts,
            "member": member,
            "report": ways_in.report_of(member),
            "by_user": member.signs_in_by_user,
        }
        return TemplateResponse(request, "admin/roster/guildmember/sign_in.html", context)

    @method_decorator(never_cache)
    def own_sign_in_view(self, request: HttpRequest, member_id: int) -> HttpResponse:
        """The sign-in of the user who looks at the page, and of nobody else."""
        member = self._usable(request, member_id)
        user = cast(User, request.user)
        context = self._begin(request, member, own=True) if request.method == "POST" else {}
        context |= {
            **self.admin_site.each_context(request),
            "title": f"Sign in for yourself at {member.name}",
            "opts": self.opts,
            "member": member,
            "own": True,
            "report": ways_in.own_report_of(member, user),
            "login_fault": ways_in.login_fault(user) if ways_in.refusal(member, own=True) else "",
        }
        return TemplateResponse(request, "admin/roster/guildmember/sign_in.html", context)

    @method_decorator(require_POST)
    def own_sign_out_view(self, request: HttpRequest, member_id: int) -> HttpResponseBase:
        member = self._usable(request, member_id)
        try:
            is_revoked = sign_ins.sign_out(member, cast(User, request.user))
        except RequestRefusedError as refusal:
            present.report(request, "", [], [str(refusal)], "Not signed out")
        else:
            end = "" if is_revoked else " Its authorization server did not confirm that the tokens ended."
            self.message_user(request, f"You are signed out at {member.name}.{end}")
        return redirect("admin:roster_guildmember_own_sign_in", member.pk)

    def _usable(self, request: HttpRequest, member_id: int) -> GuildMember:
        """The member, for a user who may call it. Raises PermissionDenied."""
        member: GuildMember = self.existing(request, str(member_id))
        if not principals.principal_of_user(cast(User, request.user)).may_see(member.name):
            raise PermissionDenied
        return member

    @staticmethod
    def _begin(request: HttpRequest, member: GuildMember, *, own: bool = False) -> dict[str, Any]:
        form = ClientForm(request.POST) if "client_id" in request.POST and not own else None
        if form is not None and not form.is_valid():
            return {"form": form}
        client = form.cleaned_data if form is not None else {}
        if not request.session.session_key:
            request.session.save()
        session = str(request.session.session_key)
        try:
            user = cast(User, request.user)
            return {"begun": sign_ins.begin(member, user, web=web_address(), session=session, own=own, **client)}
        except ClientIdNeededError as need:
            return {"form": ClientForm(), "need": str(need)}
        except RequestRefusedError as refusal:
            return {"form": form, "refusal": str(refusal)}

    @method_decorator(require_POST)
    def sign_out_view(self, request: HttpRequest, member_id: int) -> HttpResponseBase:
        if not self.has_control_permission(request):
            raise PermissionDenied
        member = self.existing(request, str(member_id))
        try:
            is_revoked = sign_ins.sign_out(member)
        except RequestRefusedError as refusal:
            present.report(request, "", [], [str(refusal)], "Not signed out")
        else:
            self.log_change(request, member, "Signed out.")
            end = "" if is_revoked else " Its authorization server did not confirm that the tokens ended."
            self.message_user(request, f"{member.name} is signed out.{end}")
        return live.form_response(request, self.page_of(member))

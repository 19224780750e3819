"""The page with the secrets to which a member's manifest refers, where users allow it to use them."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from mcp_runtime.control import secrets
from mcp_runtime.protocol.errors import RequestRefusedError
from mcp_runtime.secrets.references import MASK
from roster.admin import present
from roster.admin.rows import RuntimeRowAdmin
from roster.models import GuildMember


class SecretsScreen(RuntimeRowAdmin):
    """The part of the members' admin that is about secrets."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.secrets_view)
        return [path("<int:member_id>/secrets/", view, name="roster_guildmember_secrets"), *super().get_urls()]

    def secrets_view(self, request: HttpRequest, member_id: int) -> HttpResponse:
        """What the member runs or calls, and its secrets. A POST allows it to use one of them."""
        if not (self.has_view_permission(request) and request.user.has_perm("roster.change_secret")):
            raise PermissionDenied
        member = self.existing(request, str(member_id))
        if request.method == "POST":
            self._allow(request, member)
            return redirect("admin:roster_guildmember_secrets", member.pk)
        manifest = member.manifest
        variables = {name: secrets.shown_text(name, value) for name, value in manifest.get("env", {}).items()}
        oauth = {key: value for key, value in manifest.get("oauth", {}).items() if value}  # it has only references
        context = {
            **self.admin_site.each_context(request),
            "title": f"Secrets of {member.name}",
            "opts": self.opts,
            "member": member,
            "command_line": present.json_block([manifest.get("command"), *manifest.get("args", ())]),
            "url": manifest.get("url", ""),
            "variables": present.json_block(variables),
            "masked": sorted(name for name, value in variables.items() if value == MASK),
            "sandbox": manifest.get("sandbox", "off"),
            "packages": manifest.get("packages", "fetched"),
            "headers": sorted(manifest.get("headers", {})),
            "oauth": present.json_block(oauth) if oauth else "",
            "needs": secrets.needs_of(member),
            "identity": secrets.identity_of(member),
            "may_add": request.user.has_perm("roster.add_secret"),
        }
        return TemplateResponse(request, "admin/roster/guildmember/secrets.html", context)

    def _allow(self, request: HttpRequest, member: GuildMember) -> None:
        """Allow the secret of the form. The identity in it is that of the manifest which the user has seen."""
        identity = request.POST.get("identity", "")
        try:
            secret = secrets.find_secret(request.POST.get("secret", ""))
            secrets.allow_secret(secret, member, cast(User, request.user), identity=identity)
        except RequestRefusedError as refusal:
            present.report(request, "", [], [str(refusal)], "Not allowed")
            return
        self.log_change(request, member, f"Allowed to use the secret {secret.name}.")
        self.message_user(request, f"{member.name} may use the secret {secret.name}.")

    @staticmethod
    def secrets_of(request: HttpRequest, member: GuildMember) -> dict[str, Any]:
        """Whether the member's page has a link to its secrets, and how many of them it cannot have."""
        if not request.user.has_perm("roster.change_secret") or member.removed_at is not None:
            return {}
        needs = secrets.needs_of(member)
        return {"has_secrets": bool(needs), "missing_secrets": sum(bool(need.fault) for need in needs)}

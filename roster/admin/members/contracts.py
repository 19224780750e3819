"""The page with the changes of a member that wait for an approval."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from mcp_runtime.control import contracts
from mcp_runtime.protocol.errors import RequestRefusedError
from mcp_runtime.security import access
from roster.admin import present
from roster.admin.rows import RuntimeRowAdmin
from roster.models import GuildMember

SHOWN_CHANGES = 20  # held contracts on one page. An approval makes room for others
SHOWN_LINES = 400  # of one diff


class ContractsScreen(RuntimeRowAdmin):
    """The part of the members' admin that is about held changes."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.contracts_view)
        return [path("<int:member_id>/changes/", view, name="roster_guildmember_changes"), *super().get_urls()]

    def contracts_view(self, request: HttpRequest, member_id: int) -> HttpResponse:
        """Each held change with its diff and signs of poisoning. A POST approves those that were read."""
        if not (self.has_view_permission(request) and request.user.has_perm(access.APPROVE)):
            raise PermissionDenied
        member = self.existing(request, str(member_id))
        if request.method == "POST":
            fields = (request.POST.getlist(name) for name in ("kind", "name", "version"))
            for kind, name, version in [*zip(*fields, strict=False)][:SHOWN_CHANGES] or [("", "", "")]:
                self._approve(request, member, kind, name, version)
            return redirect("admin:roster_guildmember_changes", member.pk)
        held = contracts.contracts_of(member).filter(is_held=True).select_related("member")
        reviews = [contracts.review(contract) for contract in held[:SHOWN_CHANGES]]
        context = {
            **self.admin_site.each_context(request),
            "title": f"Held changes of {member.name}",
            "opts": self.opts,
            "member": member,
            "reviews": [
                (review, contracts.history(review.contract), _diff(review.diff), _cut(review.diff))
                for review in reviews
            ],
            "poisoned_from": contracts.poisoned_from(),
            "more": max(held.count() - SHOWN_CHANGES, 0),
        }
        return TemplateResponse(request, "admin/roster/guildmember/changes.html", context)

    def _approve(self, request: HttpRequest, member: GuildMember, kind: str, name: str, version: str) -> None:
        """Approve a contract of the form. The version in it is that of the diff which the user has seen."""
        user = cast(User, request.user)
        try:
            contract = contracts.find_contract(member.name, kind, name)
            contracts.approve(contract, version, user, user.get_username())
        except RequestRefusedError as refusal:
            present.report(request, "", [], [str(refusal)], "Not approved")
            return
        self.log_change(request, member, f"Approved {contract}.")
        self.message_user(request, f"{contract} is approved.")

    @staticmethod
    def changes_of(request: HttpRequest, member: GuildMember) -> dict[str, Any]:
        """How many changes of the member wait for an approval, and whether the user may give it."""
        if member.removed_at is not None:
            return {}
        held_count = contracts.held_contracts().filter(member=member.pk).count()
        return {"held_count": held_count, "may_approve_changes": request.user.has_perm(access.APPROVE)}


def _diff(lines: list[str]) -> list[tuple[str, str]]:
    """Pairs of a CSS class and a line, without the two lines with the names of the versions."""
    classes = {"+": "added", "-": "removed", "@": "place"}
    return [(classes.get(line[:1], ""), line) for line in lines[2 : SHOWN_LINES + 2]]


def _cut(lines: list[str]) -> int:
    """The number of lines that are not shown."""
    return max(len(lines) - 2 - SHOWN_LINES, 0)

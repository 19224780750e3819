"""The button that locks the packages of a member again, on the member's page."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponseBase
from django.urls import URLPattern, path
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_POST

from mcp_runtime.control import edits
from mcp_runtime.control.packages import PackageReport, relock
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.admin import live, present
from roster.admin.members.editing import EditScreen
from roster.models import GuildMember


class PackagesScreen(EditScreen):
    """The part of the members' admin that is about locks of packages. Who may edit the member may lock them again."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.relock_view)
        return [path("<int:member_id>/relock/", view, name="roster_guildmember_relock"), *super().get_urls()]

    @method_decorator(require_POST)
    def relock_view(self, request: HttpRequest, member_id: int) -> HttpResponseBase:
        """Delete the lock. `?force=1` also while an agent uses the member."""
        member = self._editable(request, member_id)
        try:
            relock(member, force=request.GET.get("force") == "1")
        except RequestRefusedError as refusal:
            present.report(request, "", [], [str(refusal)], "Not locked again")
        else:
            self.log_change(request, member, "Lock of its packages deleted.")
            self.message_user(request, f"The lock of {member.name} is deleted. Its next start makes another one.")
        return live.form_response(request, self.page_of(member))

    def lock_of(self, request: HttpRequest, member: GuildMember, report: PackageReport | None) -> dict[str, Any]:
        """For the page of the member: whether it has the button, and whether an agent uses the member."""
        if report is None or report.made_at is None or not self.may_edit(request, member):
            return {}
        return {"may_relock": True, "is_needed": edits.is_needed(member)}

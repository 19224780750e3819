"""The page that moves a member to another node, and the owner of a member as its own page shows it."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from mcp_runtime.control.nodes import move_member
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.admin import present
from roster.admin.rows import RuntimeRowAdmin
from roster.models import GuildMember, Node


class MoveForm(forms.Form):
    node = forms.ModelChoiceField(Node.objects.none(), empty_label=None, label="New node")
    force = forms.BooleanField(
        required=False,
        label="Even if its local state stays behind",
        help_text="A member with local state keeps data in its folder on the node that owns it. A move takes none of "
        "this data along.",
    )

    def __init__(self, member: GuildMember, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices = Node.objects.exclude(pk=member.node_id) if member.node_id else Node.objects.all()
        self.fields["node"].queryset = choices.defer("folders")  # type: ignore[attr-defined]  # of ModelChoiceField


class MoveScreen(RuntimeRowAdmin):
    """The part of the members' admin that is about nodes. A hall with one node shows none of it."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.move_view)
        return [path("<int:member_id>/move/", view, name="roster_guildmember_move"), *super().get_urls()]

    def move_view(self, request: HttpRequest, member_id: int) -> HttpResponse:
        if not self.has_control_permission(request):
            raise PermissionDenied
        member = self.existing(request, str(member_id))
        form = MoveForm(member, request.POST if request.method == "POST" else None)
        if form.is_valid():
            node = form.cleaned_data["node"]
            try:
                move_member(member, node, force=form.cleaned_data["force"])
            except RequestRefusedError as refusal:
                form.add_error("node", str(refusal))
            else:
                text = f"Move to node {node.name} requested."
                self.log_change(request, member, text)
                self.message_user(request, f"{member.name}. {text}")
                return self.page_of(member)
        context = {
            **self.admin_site.each_context(request),
            "title": f"Move {member.name}",
            "opts": self.opts,
            "member": member,
            "owner": present.liveness(request).owner_of(member),
            "form": form,
        }
        return TemplateResponse(request, "admin/roster/guildmember/move.html", context)

    def may_move(self, request: HttpRequest, member: GuildMember) -> bool:
        is_movable = present.liveness(request).has_several_nodes and member.removed_at is None
        return is_movable and self.has_control_permission(request)

    @staticmethod
    def nodes_of(request: HttpRequest, member: GuildMember) -> dict[str, str]:
        """The names of the node that owns the member and of the node that it moves to, if the hall has several."""
        liveness = present.liveness(request)
        if not liveness.has_several_nodes:
            return {}
        return {"node": liveness.owner_of(member) or "none", "requested_node": liveness.requested_node_of(member)}

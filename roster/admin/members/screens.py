"""Members: their desired state, status and fault, and the buttons that change the desired state."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.actions import delete_selected
from django.contrib.auth.models import Group, User
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from mcp_runtime.control.members import MEMBER_VERBS, reserve_member, sync_roster, true_status
from mcp_runtime.control.ways_in import own_report_of
from mcp_runtime.protocol.errors import RequestRefusedError
from mcp_runtime.security import principals
from roster.admin import live, present
from roster.admin.members import page
from roster.admin.members.contracts import ContractsScreen
from roster.admin.members.extras import ExtrasScreen
from roster.admin.members.moves import MoveScreen
from roster.admin.members.packages import PackagesScreen
from roster.admin.members.proposals import ProposalsScreen
from roster.admin.members.roster import RosterScreen
from roster.admin.members.secrets import SecretsScreen
from roster.admin.members.sign_ins import SignInScreen
from roster.admin.members.trash import TrashScreen
from roster.admin.members.verbs import (
    VERBS,
    Verb,
    annotations_of,
    current_row,
    obstacle,
    tool_count,
    visible_progress,
    visible_status,
)
from roster.admin.rows import FolderFilter
from roster.models import GuildMember

if TYPE_CHECKING:
    from roster.admin.members.verbs import Member

Status = GuildMember.Status
HIDDEN_NOW = "You are in none of these groups, so the member does not exist for you any more."
NO_GROUPS = "no groups, so all users who may call tools can use it"


def _action(verb: Verb) -> Callable[..., None]:
    @admin.action(description=f"{verb.label} selected members", permissions=["control"])
    def act(member_admin: MemberAdmin, request: HttpRequest, queryset: QuerySet[GuildMember]) -> None:
        member_admin.apply(request, verb, list(queryset))

    act.__name__ = f"{verb.name}_members"
    return act


# Filters ----------------------------------------------------------------------------------------------------------


class ShownStatusFilter(admin.SimpleListFilter):
    """Filter by the shown status, not by the column, because a member whose node is not alive is not connected."""

    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(status.value, status.value) for status in Status]

    def queryset(self, request: HttpRequest, queryset: QuerySet[GuildMember]) -> QuerySet[GuildMember]:
        if not self.value():
            return queryset
        live_ids = present.liveness(request).live_ids
        rows = queryset.select_related(None).only("pk", "status", "manifest_error", "node")
        return queryset.filter(pk__in=[row.pk for row in rows if true_status(row, live_ids=live_ids) == self.value()])


class GroupsForm(forms.Form):
    groups = forms.ModelMultipleChoiceField(
        Group.objects.filter(role=None).order_by("name"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="Only users of these groups and superusers can use the member. If you choose no groups, all users "
        "who may call tools can use it.",
    )


def _names_of(member: Any) -> str:
    return ", ".join(group.name for group in member.groups.order_by("name")) or NO_GROUPS


# The screens ------------------------------------------------------------------------------------------------------


@admin.register(GuildMember)
class MemberAdmin(
    MoveScreen,
    PackagesScreen,
    ProposalsScreen,
    TrashScreen,
    SecretsScreen,
    SignInScreen,
    ContractsScreen,
    ExtrasScreen,
    RosterScreen,
):
    has_history = True
    nothing_yet = "There are no members yet."
    member_name = "name"
    list_per_page = 25
    list_display = ["name", "title", "status_word", "endpoint", "tool_count", "enabled", "desired_state", "short_error"]
    list_filter = [ShownStatusFilter, "enabled", "desired_state", FolderFilter]
    search_fields = ["name", "display_name", "description"]
    actions = [*(_action(verb) for verb in VERBS), "delete_selected"]
    change_list_template = "admin/roster/guildmember/change_list.html"
    change_form_template = "admin/roster/guildmember/change_form.html"
    fields = ["name"]  # its page has its own template for the rest

    def next_step(self, request: HttpRequest) -> SafeString | str:
        if not request.user.has_perm("roster.approve_member"):
            return ""
        return format_html('<a href="{}">Add a member</a>', reverse("admin:roster_guildmember_proposals"))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        members: QuerySet[Any] = super().get_queryset(request).select_related("port_allocation", "node")
        liveness = annotations_of(present.liveness(request))
        members = members.defer("node__folders")  # long, and no page of a member shows it
        annotated: QuerySet[Any] = members.annotate(tool_count=tool_count(), **liveness)
        return annotated

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("runtime/", view(self.runtime_view), name="roster_runtime"),
            path("sync/", view(self.sync_view), name="roster_guildmember_sync"),
            path("<int:member_id>/groups/", view(self.groups_view), name="roster_guildmember_groups"),
            path("<int:member_id>/do/<slug:verb>/", view(self.verb_view), name="roster_guildmember_verb"),
            path("<int:member_id>/parts/<slug:part>/", view(self.part_view), name="roster_guildmember_part"),
            path("<int:member_id>/log/", view(self.log_view), name="roster_guildmember_log"),
            path("<int:member_id>/log/file/", view(self.log_file_view), name="roster_guildmember_log_file"),
            *super().get_urls(),
        ]

    @staticmethod
    def runtime_view(request: HttpRequest) -> HttpResponse:
        """The part of each page that says when no runtime is alive."""
        context = {"alive": present.runtime_is_alive(request)}
        return live.part(request, "roster/runtime.html", lambda: context, tag=present.runtime_etag(request))

    # Verbs

    def apply(self, request: HttpRequest, verb: Verb, members: list[Any]) -> None:
        """Apply the verb to the members that allow it, and tell the user about all members."""
        names, refusals = [], []
        for member in members:
            if reason := obstacle(verb.name, member):
                refusals.append(f"{member.name}: {reason}")
                continue
            try:
                MEMBER_VERBS[verb.name](member)
            except RequestRefusedError as refusal:
                refusals.append(str(refusal))
            else:
                names.append(member.name)
                self.log_change(request, member, f"{verb.past_tense}.")
        present.report(request, verb.past_tense, names, refusals)

    @method_decorator(require_POST)
    def verb_view(self, request: HttpRequest, member_id: int, verb: str) -> HttpResponseBase:
        if not self.has_control_permission(request):
            raise PermissionDenied
        member = self.existing(request, str(member_id))
        member_verb = next((member_verb for member_verb in VERBS if member_verb.name == verb), None)
        if member_verb is None:
            raise Http404(f"there is no verb {verb!r}")
        self.apply(request, member_verb, [member])
        return live.form_response(request, self.page_of(member))

    @method_decorator(require_POST)
    def sync_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_control_permission(request):
            raise PermissionDenied
        self.message_user(request, f"Roster synced with the members folder: {sync_roster()}.")
        return redirect("admin:roster_guildmember_changelist")

    # Groups

    @staticmethod
    def has_reserve_permission(request: HttpRequest) -> bool:
        return request.user.has_perm("roster.change_guildmember")

    def groups_view(self, request: HttpRequest, member_id: int) -> HttpResponse:
        if not self.has_reserve_permission(request):
            raise PermissionDenied
        member = self.existing(request, str(member_id))
        form = GroupsForm(initial={"groups": member.groups.all()})
        if request.method == "POST":
            form = GroupsForm(request.POST)
            if form.is_valid():
                reserve_member(member, form.cleaned_data["groups"])
                text = f"Reserved for: {_names_of(member)}."
                self.log_change(request, member, text)
                self.message_user(request, f"{member.name}. {text}")
                if principals.principal_of_user(cast(User, request.user)).reaches(member.name):
                    return self.page_of(member)
                self.message_user(request, HIDDEN_NOW, messages.WARNING)
                return redirect("admin:roster_guildmember_changelist")
        context = {
            **self.admin_site.each_context(request),
            "title": f"Reserve {member.name} for groups",
            "opts": self.opts,
            "member": member,
            "form": form,
        }
        return TemplateResponse(request, "admin/roster/guildmember/groups.html", context)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        context = {
            "may_control": self.has_control_permission(request),
            "may_remove": self.may_remove(request),
            **(extra_context or {}),
        }
        return super().changelist_view(request, context)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        context = {**(extra_context or {}), **self._page(request, object_id)}
        return super().change_view(request, object_id, form_url, context)

    # Its page

    def _page(self, request: HttpRequest, object_id: str) -> dict[str, Any]:
        """The context of the member's page, with parts that update automatically, and the rest."""
        member = self.get_object(request, object_id)
        if member is None or not self.has_view_permission(request, member):
            return {}
        return {
            "may_reserve": self.has_reserve_permission(request),
            "may_move": self.may_move(request, member),
            "may_remove": self.may_remove(request, member),
            **self.secrets_of(request, member),
            **self._head(request, member),
            **page.tools(request, member),
            **self.tabs_of(request, member),
            **page.activity(request, member),
            **page.still(member),
            "log": page.log(member),
        }

    def _head(self, request: HttpRequest, member: Any) -> dict[str, Any]:
        may_control = self.has_control_permission(request)
        verbs = [verb for verb in VERBS if may_control and not obstacle(verb.name, member)]
        head = page.head(member, visible_status(member), visible_progress(member), verbs)
        waiting = self.changes_of(request, member) | self.edits_of(request, member)
        head["own_sign_in"] = own_report_of(member, cast(User, request.user))
        head["may_sign_in"] = may_control and member.enabled and member.removed_at is None
        return head | waiting | self.nodes_of(request, member) | self.lock_of(request, member, head["packages"])

    def part_view(self, request: HttpRequest, member_id: int, part: str) -> HttpResponse:
        """One of the parts of its page that update automatically."""
        member = self._viewable_member(request, member_id)
        match part:
            case "head":
                return live.part(request, "roster/member/head.html", lambda: self._head(request, member))
            case "tools":
                tag = page.tools_tag(request, member)
                return live.part(request, "roster/member/tools.html", lambda: page.tools(request, member), tag=tag)
            case "prompts" | "resources":
                return self.extras_part(request, member, part)
            case "activity":
                return live.part(request, "roster/member/activity.html", lambda: page.activity(request, member))
            case _:
                raise Http404(f"a member's page has no part {part!r}")

    def log_view(self, request: HttpRequest, member_id: int) -> HttpResponse:
        """The lines after the cursor `after` of the previous answer, as JSON."""
        return page.log_answer(self._viewable_member(request, member_id), request.GET.get("after", ""))

    def log_file_view(self, request: HttpRequest, member_id: int) -> HttpResponseBase:
        return page.log_file(self._viewable_member(request, member_id))

    def _viewable_member(self, request: HttpRequest, member_id: int) -> Any:
        """The member of this page."""
        member = self.existing(request, str(member_id))
        if not self.has_view_permission(request, member):
            raise PermissionDenied
        return member

    # Only a member that is gone from disk and has no process can be deleted

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        has_permission = admin.ModelAdmin.has_delete_permission(self, request, obj)
        return has_permission and (obj is None or not self._deletion_obstacle(obj))

    @staticmethod
    def _deletion_obstacle(member: Any) -> str:
        if member.removed_at is None:
            return "its folder still exists"
        return "" if visible_status(member) in (Status.DISCONNECTED, Status.ERROR) else "its process has not ended yet"

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        # Its tools, calls and changes are deleted with it, although users cannot delete them separately.
        deleted, counts, _, protected = super().get_deleted_objects(objs, request)
        return deleted, counts, set(), protected

    @admin.action(description="Delete selected members whose folder is gone", permissions=["delete"])
    def delete_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponseBase | None:
        refusals = {
            member.pk: f"{member.name}: {reason}" for member in queryset if (reason := self._deletion_obstacle(member))
        }
        present.report(request, "", [], refusals.values())
        deletable = queryset.exclude(pk__in=refusals)
        return delete_selected(self, request, deletable) if deletable.exists() else None

    # Columns

    @admin.display(description="title", ordering="display_name")
    def title(self, member: Member) -> str:
        return present.one_line(member.title, 60)

    @admin.display(description="status", ordering="status")
    def status_word(self, member: Member) -> SafeString:
        return present.badge(visible_status(member))

    @admin.display(description="error or progress")
    def short_error(self, member: Member) -> str:
        row = current_row(member)
        text = present.one_line(row.error or row.start_progress, 80)
        return present.with_times(text or present.NOTHING)

    @admin.display(description="endpoint", ordering="port_allocation__port")
    def endpoint(self, member: Member) -> str:
        return current_row(member).endpoint or present.NOTHING

    @admin.display(description="tools", ordering="tool_count")
    def tool_count(self, member: Member) -> str:
        return present.number(member.tool_count)

"""Agents: create one, watch it work, send the next message, stop it."""

from __future__ import annotations

from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Exists, Model, OuterRef, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control.agents import agent_problem, create_agent, queue_message, stop_agent, wait_note
from mcp_runtime.control.members import members_of_roster
from mcp_runtime.protocol.errors import AccessError, RequestRefusedError
from mcp_runtime.security import access
from roster.admin import choosing, live, present
from roster.admin.agents import transcripts
from roster.admin.choosing import SearchedField
from roster.admin.downloads import attachment
from roster.admin.rows import RuntimeRowAdmin, principal_of, titled
from roster.models import Agent, Call, GuildMember


def _label_of(member: GuildMember) -> str:
    return present.one_line(f"{member.name}: {member.description}" if member.description else member.name, 100)


def _callable_members(request: HttpRequest) -> QuerySet[GuildMember]:
    """Members whose tools the user may call."""
    closed_members = principal_of(request).closed_members
    return members_of_roster().filter(enabled=True).exclude(name__in=closed_members).order_by("name")


MEMBERS = choosing.rows_offer(
    "agent-members",
    "members",
    is_open=lambda request: principal_of(request).invokes,
    rows=_callable_members,
    label=_label_of,
    key="name",
)


class AgentForm(forms.Form):
    members = SearchedField(
        GuildMember.objects.none(),
        offer=MEMBERS,
        to_field_name="name",
        help_text="Whose tools the agent may use. They are started.",
    )
    prompt = forms.CharField(
        label="First message",
        required=False,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 4, "cols": 80}),
        help_text="Optional. You can send it later.",
    )
    name = forms.CharField(required=False, max_length=100, help_text="Made up when left out.")
    way = forms.ChoiceField(
        label="Connection",
        choices=[("gateway", "through the gateway"), ("direct", "directly to the members' own endpoints")],
        initial="gateway",
        widget=forms.RadioSelect,
        help_text="How the agent reaches its members.",
    )
    model = forms.CharField(required=False, max_length=100, help_text="The Agent SDK's own choice when left out.")

    def __init__(self, members: QuerySet[GuildMember], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        cast(SearchedField, self.fields["members"]).queryset = members

    def clean_prompt(self) -> str:
        """Refuse a message that would not be sent, so that the text stays in the form."""
        prompt: str = self.cleaned_data["prompt"]
        if prompt.strip() and (problem := agent_problem()):
            raise forms.ValidationError(
                f"The message cannot be sent now: {problem}. Without a message, you can create the agent."
            )
        return prompt


@admin.register(Agent)
class AgentAdmin(RuntimeRowAdmin):
    nothing_yet = "There are no agents yet. An agent answers messages with the tools of the members that you choose."
    list_display = ["name", "status_word", "of_members", "message_count", "creator", "created"]
    list_filter = [("created_at", titled("creation", admin.DateFieldListFilter))]
    search_fields = ["name", "creator"]
    fields = ["name"]  # its page has its own template for the rest
    change_form_template = "admin/roster/agent/change_form.html"
    change_list_template = "admin/roster/agent/change_list.html"

    created = present.moment_column("created_at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Agent]:
        """The user's own agents. With the permission also those of others, except of reserved members."""
        principal = principal_of(request)
        rows = Agent.objects.prefetch_related("members", "messages")
        own_agents = Q(created_by=request.user.pk)
        if not request.user.has_perm(access.VIEW_AGENTS):
            rows = rows.filter(own_agents)
        elif principal.closed_members:
            closed_members = GuildMember.objects.filter(name__in=principal.closed_members, agents=OuterRef("pk"))
            rows = rows.filter(own_agents | ~Exists(closed_members))
        return rows.annotate(message_total=Count("messages", distinct=True))

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """The creator of an agent may see it. Users who may create one see the list."""
        if isinstance(obj, Agent) and obj.created_by_id and obj.created_by_id == request.user.pk:
            return True
        return super().has_view_permission(request, obj) or (obj is None and self.has_invoke_permission(request))

    def may_speak(self, request: HttpRequest, agent: Agent) -> bool:
        """An agent has the rights of its creator, so only the creator can send messages."""
        is_own = agent.created_by_id is not None and agent.created_by_id == request.user.pk
        return self.has_invoke_permission(request) and (is_own or bool(getattr(request.user, "is_superuser", False)))

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("new/", view(self.new_view), name="roster_agent_new"),
            path("<int:agent_id>/send/", view(self.send_view), name="roster_agent_send"),
            path("<int:agent_id>/stop/", view(self.stop_view), name="roster_agent_stop"),
            path("<int:agent_id>/parts/<slug:part>/", view(self.part_view), name="roster_agent_part"),
            path("<int:agent_id>/file/<int:event_id>/<slug:file>/", view(self.file_view), name="roster_agent_file"),
            *super().get_urls(),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        context = {"may_invoke": self.has_invoke_permission(request), "agent_problem": agent_problem()}
        return super().changelist_view(request, {**context, **(extra_context or {})})

    # Its page

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        agent = self.get_object(request, object_id)
        context = extra_context or {}
        if agent is not None and self.has_view_permission(request, agent):
            context = {**context, **self._state(request, agent), **self._transcript(agent)}
        return super().change_view(request, object_id, form_url, context)

    def part_view(self, request: HttpRequest, agent_id: int, part: str) -> HttpResponse:
        """One of the parts of its page that update automatically."""
        agent: Agent = self.existing(request, str(agent_id))
        if not self.has_view_permission(request, agent):
            raise PermissionDenied
        match part:
            case "transcript":
                tag = transcripts.tag(agent)
                return live.part(request, "roster/agent/transcript.html", lambda: self._transcript(agent), tag=tag)
            case "state":
                return live.part(request, "roster/agent/state.html", lambda: self._state(request, agent))
            case _:
                return HttpResponse(f"an agent's page has no part {part!r}", status=404, content_type="text/plain")

    def file_view(self, request: HttpRequest, agent_id: int, event_id: int, file: str) -> HttpResponse:
        """A part of the transcript as a download. `file` is a name of `files.file_in`."""
        agent: Agent = self.existing(request, str(agent_id))
        if not self.has_view_permission(request, agent):
            raise PermissionDenied
        found = transcripts.file_of(agent, event_id, file)
        if found is None:
            raise Http404(f"event {event_id} of agent {agent.name!r} has no {file!r}")
        return attachment(found.body, found.name)

    @staticmethod
    def _transcript(agent: Agent) -> dict[str, Any]:
        turns, is_cut = transcripts.turns(agent)
        return {"agent": agent, "turns": turns, "is_cut": is_cut}

    def _state(self, request: HttpRequest, agent: Agent) -> dict[str, Any]:
        under_way = [message for message in agent.messages.all() if not message.is_finished]
        return {
            "agent": agent,
            "status": agent.status,
            "waiting": sum(message.status == message.Status.QUEUED for message in under_way),
            "is_stopping": any(message.cancel_requested_at for message in under_way),
            "is_active": bool(under_way),
            "may_speak": self.may_speak(request, agent),
            "wait_note": wait_note(agent),
            "agent_problem": agent_problem(),
        }

    # Make, send, stop

    def new_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_invoke_permission(request):
            raise PermissionDenied
        form = AgentForm(_callable_members(request), request.POST or None)
        if request.method == "POST" and form.is_valid() and (agent := self._make(request, form)):
            return self.page_of(agent)
        context = {
            **self.admin_site.each_context(request),
            "title": "New agent",
            "opts": self.opts,
            "form": form,
            "agent_problem": agent_problem(),
        }
        return TemplateResponse(request, "admin/roster/agent/new.html", context)

    def _make(self, request: HttpRequest, form: AgentForm) -> Agent | None:
        """The agent, with its first message queued if there is one. None after a refusal, which the form shows."""
        data = form.cleaned_data
        requester = Requester(Call.Source.ADMIN, cast(User, request.user))
        names = [member.name for member in data["members"]]
        try:
            agent = create_agent(
                names, requester=requester, name=data["name"], direct=data["way"] == "direct", model=data["model"]
            )
        except (AccessError, RequestRefusedError) as refusal:
            form.add_error(None, str(refusal))
            return None
        if data["prompt"].strip():
            self._send(request, agent, data["prompt"])
        return agent

    @staticmethod
    def _send(request: HttpRequest, agent: Agent, prompt: str) -> None:
        try:
            queue_message(agent, prompt, requester=Requester(Call.Source.ADMIN, cast(User, request.user)))
        except (AccessError, RequestRefusedError) as refusal:
            messages.error(request, f"Not sent: {refusal}.")

    @method_decorator(require_POST)
    def send_view(self, request: HttpRequest, agent_id: int) -> HttpResponseBase:
        agent = self._own_agent(request, agent_id)
        self._send(request, agent, request.POST.get("prompt", ""))
        return live.form_response(request, self.page_of(agent))

    @method_decorator(require_POST)
    def stop_view(self, request: HttpRequest, agent_id: int) -> HttpResponseBase:
        agent = self._own_agent(request, agent_id)
        try:
            stop_agent(agent)
            messages.success(request, "Asked to stop.")
        except RequestRefusedError as refusal:
            messages.warning(request, f"Left alone: {refusal}.")
        return live.form_response(request, self.page_of(agent))

    def _own_agent(self, request: HttpRequest, agent_id: int) -> Agent:
        agent: Agent = self.existing(request, str(agent_id))
        if not (self.has_view_permission(request, agent) and self.may_speak(request, agent)):
            raise PermissionDenied
        return agent

    # Columns

    def next_step(self, request: HttpRequest) -> SafeString | str:
        if not self.has_invoke_permission(request):
            return ""
        return format_html('<a href="{}">New agent</a>', reverse("admin:roster_agent_new"))

    @admin.display(description="status")
    def status_word(self, agent: Agent) -> SafeString:
        return present.badge(agent.status)

    @admin.display(description="members")
    def of_members(self, agent: Agent) -> SafeString:
        return format_html_join(", ", "{}", ((present.link(member),) for member in agent.members.all()))

    @admin.display(description="messages", ordering="message_total")
    def message_count(self, agent: Agent) -> str:
        return present.number(getattr(agent, "message_total", 0))

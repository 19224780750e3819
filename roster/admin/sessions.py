"""Agents' sessions: who talks to whom with which members, the transcript, and a place to say the next thing."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.decorators import method_decorator
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from mcp_runtime import control
from mcp_runtime.errors import RequestRefusedError
from mcp_runtime.invocations import Caller
from roster.admin import present
from roster.admin.rows import RuntimeRowAdmin
from roster.calls import texts_of
from roster.models import AgentEvent, AgentSession, Invocation

SHOWN_EVENTS = 300
Kind = AgentEvent.Kind


@admin.register(AgentSession)
class AgentSessionAdmin(RuntimeRowAdmin):
    list_display = ["name", "status_word", "of_members", "message_count", "creator", "made"]
    list_filter = ["created_at", "members"]
    search_fields = ["name", "creator"]
    fields = ["name", "status_word", "of_members", "way", "model", "creator", "made", "transcript"]
    change_form_template = "admin/roster/agentsession/change_form.html"

    made = present.moment_column("created_at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[AgentSession]:
        rows: QuerySet[AgentSession] = super().get_queryset(request).prefetch_related("members", "messages")
        return rows.annotate(message_total=Count("messages", distinct=True))

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Whoever made a session may see it."""
        if isinstance(obj, AgentSession) and obj.created_by_id and obj.created_by_id == request.user.pk:
            return True
        return super().has_view_permission(request, obj)

    def may_speak(self, request: HttpRequest, session: AgentSession) -> bool:
        """The agent has the rights of whoever made its session, so nobody else speaks in it."""
        is_own = session.created_by_id is not None and session.created_by_id == request.user.pk
        return self.has_invoke_permission(request) and (is_own or bool(getattr(request.user, "is_superuser", False)))

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("<int:session_id>/send/", view(self.send_view), name="roster_agentsession_send"),
            path("<int:session_id>/stop/", view(self.stop_view), name="roster_agentsession_stop"),
            *super().get_urls(),
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        session = self.get_object(request, object_id)
        context = {
            "is_active": session is not None and control.is_under_way(session),
            "may_speak": session is not None and self.may_speak(request, session),
        }
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **context})

    @method_decorator(require_POST)
    def send_view(self, request: HttpRequest, session_id: int) -> HttpResponse:
        session = self._spoken_in(request, session_id)
        caller = Caller(Invocation.Door.ADMIN, cast(User, request.user))
        try:
            control.queue_message(session, request.POST.get("prompt", ""), caller=caller)
        except RequestRefusedError as refusal:
            messages.error(request, f"Not sent: {refusal}.")
        return self.page_of(session)

    @method_decorator(require_POST)
    def stop_view(self, request: HttpRequest, session_id: int) -> HttpResponse:
        session = self._spoken_in(request, session_id)
        try:
            control.stop_session(session)
            messages.success(request, "Asked to stop.")
        except RequestRefusedError as refusal:
            messages.warning(request, f"Left alone: {refusal}.")
        return self.page_of(session)

    def _spoken_in(self, request: HttpRequest, session_id: int) -> AgentSession:
        session: AgentSession = self.existing(request, str(session_id))
        if not (self.has_view_permission(request, session) and self.may_speak(request, session)):
            raise PermissionDenied
        return session

    # Columns

    @admin.display(description="status")
    def status_word(self, session: AgentSession) -> SafeString:
        return present.badge(session.status)

    @admin.display(description="members")
    def of_members(self, session: AgentSession) -> SafeString:
        return format_html_join(", ", "{}", ((present.link(member),) for member in session.members.all()))

    @admin.display(description="messages", ordering="message_total")
    def message_count(self, session: AgentSession) -> int:
        return int(getattr(session, "message_total", 0))

    @admin.display(description="calls")
    def way(self, session: AgentSession) -> str:
        return "the members' own endpoints" if session.direct else "the gateway"

    @admin.display(description="transcript")
    def transcript(self, session: AgentSession) -> str:
        """The last events, each message headed by its prompt."""
        newest = control.transcript(session).reverse()[:SHOWN_EVENTS]
        said: dict[int, list[str]] = {}
        for event in reversed(newest):
            said.setdefault(event.message_id, []).append(_line(event))
        parts = []
        for message in session.messages.all():
            if message.pk in said or not message.is_finished:
                parts.append("\n".join([f"> {message.prompt}", *said.get(message.pk, [f"({message.status})"])]))
        return present.text_block("\n\n".join(parts))


def _line(event: AgentEvent) -> str:
    data = event.data
    match event.kind:
        case Kind.TOOL_CALL:
            return present.one_line(f"→ {data['server']} {data['tool']} {data['arguments']}", 500)
        case Kind.TOOL_RESULT:
            said = " ".join(texts_of(data)) or str(data["content"])
            return present.one_line(f"{'✗' if data['is_error'] else '←'} {said}", 500)
        case Kind.SERVERS:
            return "\n".join(
                f"! {server['name']} is {server['status']}: {server['error']}" for server in data["servers"]
            )
        case Kind.RESULT:
            return f"({data['status']}{': ' + data['text'] if data['error_kind'] else ''})"
        case _:
            return str(data["text"])

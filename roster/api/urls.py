"""REST under /api/. A tool's name may hold `/` and anything else: its routes take all up to the last word."""

from __future__ import annotations

from django.urls import path, re_path, register_converter
from django.urls.converters import StringConverter

from mcp_runtime import control
from roster.api import session_views, statistics, views


class ToolNameConverter(StringConverter):
    """Anything. Django's `path` takes no line break, and a list that holds one such name could not be shown at all."""

    regex = r"[\s\S]+"


register_converter(ToolNameConverter, "tool_name")

urlpatterns = [
    path("", views.IndexView.as_view(), name="api"),
    path("roster/", views.RosterView.as_view(), name="roster"),
    path("members/", views.MembersView.as_view(), name="members"),
    path("members/<str:name>/", views.MemberView.as_view(), name="member"),
    *(
        path(f"members/<str:name>/{verb}/", views.MemberVerbView.as_view(verb=verb), name=f"member-{verb}")
        for verb in control.MEMBER_VERBS
    ),
    path("members/<str:name>/logs/", views.MemberLogsView.as_view(), name="member-logs"),
    path("members/<str:name>/status-changes/", views.MemberStatusChangesView.as_view(), name="member-status-changes"),
    path("members/<str:name>/statistics/", statistics.MemberStatisticsView.as_view(), name="member-statistics"),
    path("members/<str:name>/tools/", views.ToolsView.as_view(), name="member-tools"),
    path("members/<str:name>/tools/<tool_name:tool>/invoke/", views.InvokeView.as_view(), name="tool-invoke"),
    *(
        path(
            f"members/<str:name>/tools/<tool_name:tool>/{verb}/",
            views.ToolSwitchView.as_view(verb=verb),
            name=f"tool-{verb}",
        )
        for verb in ("enable", "disable")
    ),
    path("members/<str:name>/tools/<tool_name:tool>/", views.ToolView.as_view(), name="tool"),
    path("invocations/", views.InvocationsView.as_view(), name="invocations"),
    path("invocations/<int:pk>/", views.InvocationView.as_view(), name="invocation"),
    path("invocations/<int:pk>/cancel/", views.InvocationCancelView.as_view(), name="invocation-cancel"),
    path("tokens/", views.TokensView.as_view(), name="tokens"),
    path("tokens/<int:pk>/", views.TokenView.as_view(), name="token"),
    path("tokens/<int:pk>/revoke/", views.TokenRevokeView.as_view(), name="token-revoke"),
    path("agent-config/", views.AgentConfigView.as_view(), name="agent-config"),
    path("sessions/", session_views.SessionsView.as_view(), name="sessions"),
    path("sessions/<int:pk>/", session_views.SessionView.as_view(), name="session"),
    path("sessions/<int:pk>/messages/", session_views.SessionMessagesView.as_view(), name="session-messages"),
    path("sessions/<int:pk>/events/", session_views.SessionEventsView.as_view(), name="session-events"),
    path("sessions/<int:pk>/stop/", session_views.SessionStopView.as_view(), name="session-stop"),
    path("schema/", views.SchemaView.as_view(), name="schema"),
    path("docs/", views.DocsView.as_view(), name="docs"),
    re_path("", views.NowhereView.as_view(), name="api-nowhere"),
]

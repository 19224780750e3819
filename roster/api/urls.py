"""The URLs of REST under /api/. A tool's name may contain anything, also `/`. It is all before the last word."""

from __future__ import annotations

from django.urls import path, re_path, register_converter
from django.urls.converters import StringConverter

from mcp_runtime.control.members import MEMBER_VERBS
from mcp_runtime.control.nodes import NODE_VERBS
from roster.api import (
    agent_config,
    agents,
    audit,
    call_export,
    call_log,
    calls,
    contracts,
    edits,
    extras,
    groups,
    member_history,
    members,
    meta,
    nodes,
    proposals,
    registry,
    secrets,
    sign_ins,
    statistics,
    tokens,
    tool_sets,
    tools,
    trash,
    versions,
)


class ToolNameConverter(StringConverter):
    """Any text. Django's `path` allows no line break, and then a list with one such name could not be shown at all."""

    regex = r"[\s\S]+"


register_converter(ToolNameConverter, "tool_name")

urlpatterns = [
    # Those of every call come first, because Django tries the patterns one by one.
    path("members/<str:name>/tools/<tool_name:tool>/invoke/", calls.InvokeView.as_view(), name="tool-invoke"),
    path("calls/", calls.CallsView.as_view(), name="calls"),
    path("calls/<int:pk>/", calls.CallView.as_view(), name="call"),
    path("calls/<int:pk>/logs/", call_log.CallLogView.as_view(), name="call-logs"),
    path("calls/<int:pk>/cancel/", calls.CallCancelView.as_view(), name="call-cancel"),
    path("calls/export/", call_export.CallExportView.as_view(), name="calls-export"),
    path("", meta.IndexView.as_view(), name="api"),
    path("roster/", members.RosterView.as_view(), name="roster"),
    path("members/", members.MembersView.as_view(), name="members"),
    path("members/<str:name>/", members.MemberView.as_view(), name="member"),
    *(
        path(f"members/<str:name>/{verb}/", members.MemberVerbView.as_view(verb=verb), name=f"member-{verb}")
        for verb in MEMBER_VERBS
    ),
    path("members/<str:name>/move/", nodes.MemberMoveView.as_view(), name="member-move"),
    path("members/<str:name>/groups/", groups.MemberGroupsView.as_view(), name="member-groups"),
    path("members/<str:name>/newest-version/", versions.NewestVersionView.as_view(), name="member-newest-version"),
    path(
        "members/<str:name>/newest-version/edit/",
        versions.NewestVersionEditView.as_view(),
        name="member-newest-version-edit",
    ),
    path("members/<str:name>/relock/", versions.RelockView.as_view(), name="member-relock"),
    path("members/<str:name>/sign-in/", sign_ins.SignInView.as_view(), name="member-sign-in"),
    path("members/<str:name>/own-sign-in/", sign_ins.OwnSignInView.as_view(), name="member-own-sign-in"),
    path("members/<str:name>/own-sign-out/", sign_ins.OwnSignOutView.as_view(), name="member-own-sign-out"),
    path("members/<str:name>/sign-out/", sign_ins.SignOutView.as_view(), name="member-sign-out"),
    path("members/<str:name>/logs/", member_history.MemberLogsView.as_view(), name="member-logs"),
    path(
        "members/<str:name>/status-changes/",
        member_history.MemberStatusChangesView.as_view(),
        name="member-status-changes",
    ),
    path("members/<str:name>/statistics/", statistics.MemberStatisticsView.as_view(), name="member-statistics"),
    path("members/<str:name>/contracts/", contracts.ContractsView.as_view(), name="member-contracts"),
    path("members/<str:name>/contracts/review/", contracts.ContractReviewView.as_view(), name="member-contract-review"),
    path(
        "members/<str:name>/contracts/approve/",
        contracts.ContractApprovalView.as_view(),
        name="member-contract-approve",
    ),
    path("members/<str:name>/tools/", tools.ToolsView.as_view(), name="member-tools"),
    *(
        path(
            f"members/<str:name>/tools/<tool_name:tool>/{verb}/",
            tools.ToolEnabledView.as_view(verb=verb),
            name=f"tool-{verb}",
        )
        for verb in ("enable", "disable")
    ),
    path("members/<str:name>/tools/<tool_name:tool>/", tools.ToolView.as_view(), name="tool"),
    path("members/<str:name>/prompts/", extras.PromptsView.as_view(), name="member-prompts"),
    path("members/<str:name>/prompts/get/", extras.PromptGetView.as_view(), name="prompt-get"),
    path("members/<str:name>/prompts/complete/", extras.PromptCompleteView.as_view(), name="prompt-complete"),
    path("members/<str:name>/resources/", extras.ResourcesView.as_view(), name="member-resources"),
    path("members/<str:name>/resources/read/", extras.ResourceReadView.as_view(), name="resource-read"),
    path("members/<str:name>/resources/watch/", extras.ResourceWatchView.as_view(), name="resource-watch"),
    path("members/<str:name>/resource-templates/", extras.TemplatesView.as_view(), name="member-resource-templates"),
    path(
        "members/<str:name>/resource-templates/complete/",
        extras.TemplateCompleteView.as_view(),
        name="resource-template-complete",
    ),
    *(
        path(f"members/<str:name>/{noun}s/{verb}/", view.as_view(verb=verb), name=f"{noun}-{verb}")
        for noun, view in (
            ("prompt", extras.PromptEnabledView),
            ("resource", extras.ResourceEnabledView),
            ("resource-template", extras.TemplateEnabledView),
        )
        for verb in ("enable", "disable")
    ),
    path("nodes/", nodes.NodesView.as_view(), name="nodes"),
    path("nodes/<str:node>/remove/", nodes.NodeRemoveView.as_view(), name="node-remove"),
    path("nodes/rebalance/", nodes.RebalanceView.as_view(), name="nodes-rebalance"),
    *(
        path(f"nodes/<str:node>/{verb}/", nodes.NodeVerbView.as_view(verb=verb), name=f"node-{verb}")
        for verb in NODE_VERBS
    ),
    path("edits/", edits.EditsView.as_view(), name="edits"),
    path("edits/<int:edit>/", edits.EditView.as_view(), name="edit"),
    *(
        path(f"edits/<int:edit>/{verb}/", edits.EditVerbView.as_view(verb=verb), name=f"edit-{verb}")
        for verb in ("approve", "undo")
    ),
    path("proposals/", proposals.ProposalsView.as_view(), name="proposals"),
    path("proposals/<str:proposal>/", proposals.ProposalView.as_view(), name="proposal"),
    path("proposals/<str:proposal>/approve/", proposals.ApprovalView.as_view(), name="proposal-approve"),
    path("registry/", registry.RegistryView.as_view(), name="registry"),
    path("tool-sets/", tool_sets.ToolSetsView.as_view(), name="tool-sets"),
    path("tool-sets/<str:tool_set>/", tool_sets.ToolSetView.as_view(), name="tool-set"),
    path("trash/", trash.TrashView.as_view(), name="trash"),
    path("trash/<int:number>/restore/", trash.RestoreView.as_view(), name="trash-restore"),
    path("secrets/", secrets.SecretsView.as_view(), name="secrets"),
    path("secrets/<str:secret>/", secrets.SecretView.as_view(), name="secret"),
    path("audit/", audit.AuditView.as_view(), name="audit"),
    path("tokens/", tokens.TokensView.as_view(), name="tokens"),
    path("tokens/<int:pk>/", tokens.TokenView.as_view(), name="token"),
    path("tokens/<int:pk>/revoke/", tokens.TokenRevokeView.as_view(), name="token-revoke"),
    path("agent-config/", agent_config.AgentConfigView.as_view(), name="agent-config"),
    path("agents/", agents.AgentsView.as_view(), name="agents"),
    path("agents/<int:pk>/", agents.AgentView.as_view(), name="agent"),
    path("agents/<int:pk>/messages/", agents.AgentMessagesView.as_view(), name="agent-messages"),
    path("agents/<int:pk>/events/", agents.AgentEventsView.as_view(), name="agent-events"),
    path("agents/<int:pk>/stop/", agents.AgentStopView.as_view(), name="agent-stop"),
    path("schema/", meta.schema_view, name="schema"),
    path("docs/", meta.docs_view, name="docs"),
    re_path("", meta.NowhereView.as_view(), name="api-nowhere"),
]

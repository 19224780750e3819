"""Nodes in the admin: the machines that run the hall or ran it, with actions that drain, undrain and remove them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from mcp_runtime.control import nodes
from mcp_runtime.control.nodes import NodeReport
from mcp_runtime.protocol.errors import RequestRefusedError
from roster.admin import present
from roster.admin.rows import RuntimeRowAdmin
from roster.models import Node

_REPORT = "_guild_hall_report"


def _action(name: str, description: str, past_tense: str, act: Callable[[Node], object]) -> Callable[..., None]:
    @admin.action(description=description, permissions=["control"])
    def run(node_admin: NodeAdmin, request: HttpRequest, queryset: QuerySet[Node]) -> None:
        names, refusals = [], []
        for node in list(queryset):
            try:
                act(node)
            except RequestRefusedError as refusal:
                refusals.append(str(refusal))
                continue
            node_admin.log_change(request, node, f"{past_tense}.")
            names.append(node.name)
        present.report(request, past_tense, names, refusals)

    run.__name__ = name
    return run


def _report(node: Node) -> NodeReport:
    """The report, made once for all columns of the row."""
    if not hasattr(node, _REPORT):
        setattr(node, _REPORT, nodes.report(node))
    report: NodeReport = getattr(node, _REPORT)
    return report


@admin.register(Node)
class NodeAdmin(RuntimeRowAdmin):
    has_history = True
    nothing_yet = "There are no nodes yet. A runtime that starts appears here."
    list_display = (
        *("name", "runtime", "members", "calls_per_minute", "cpu", "memory", "capacity"),
        *("label_names", "version"),
    )
    fields = (*list_display, "host", "address", "process", "sandbox")
    actions = [
        _action("drain_nodes", "Drain selected nodes", "Drain requested", nodes.drain),
        _action("undrain_nodes", "Undrain selected nodes", "Undrained", nodes.undrain),
        _action("remove_nodes", "Remove selected nodes, which are gone for ever", "Removed", nodes.remove_node),
        _action(
            "force_remove_nodes",
            "Remove selected nodes, even if local state is lost",
            "Removed",
            partial(nodes.remove_node, force=True),
        ),
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return nodes.with_counts(Node.objects.all())

    def next_step(self, request: HttpRequest) -> SafeString:
        return mark_safe("Start one with <code>guildhall runtime</code> in the folder of the hall.")

    @admin.display(description="runtime")
    def runtime(self, node: Node) -> SafeString:
        report = _report(node)
        word, status = ("alive", "connected") if report.is_alive else ("not alive", "disconnected")
        badge = format_html('<span class="status status-{}">{}</span>', status, word)
        details: list[str] = [format_html("since {}", present.when(report.since))] if report.since else []
        details += ["draining"] if report.is_draining else []
        details += ["still holds its lease: start it again or remove it"] if report.holds_lease else []
        return format_html("{} {}", badge, format_html_join(", ", "{}", ((each,) for each in details)))

    @admin.display(description="members")
    def members(self, node: Node) -> str:
        return _number(_report(node).members)

    @admin.display(description="calls a minute")
    def calls_per_minute(self, node: Node) -> str:
        return _number(_report(node).calls_per_minute)

    @admin.display(description="CPU")
    def cpu(self, node: Node) -> str:
        percent = _report(node).cpu_percent
        return present.NOTHING if percent is None else f"{percent:.1f} %"

    @admin.display(description="memory")
    def memory(self, node: Node) -> str:
        size = _report(node).memory_bytes
        return present.NOTHING if size is None else f"{size / 1e6:.0f} MB"

    @admin.display(description="labels")
    def label_names(self, node: Node) -> str:
        return ", ".join(_report(node).labels) or present.NOTHING

    @admin.display(description="URL for other nodes")
    def address(self, node: Node) -> str:
        return node.url or present.NOTHING

    @admin.display(description="process of the worker")
    def process(self, node: Node) -> str:
        return str(_report(node).pid or present.NOTHING)

    @admin.display(description="sandbox")
    def sandbox(self, node: Node) -> str:
        gaps = _report(node).sandbox_gaps
        if gaps is None:
            return present.NOTHING
        return "; ".join(f"no protection of {name}: {reason}" for name, reason in gaps.items()) or "all protections"


def _number(number: int | None) -> str:
    return present.NOTHING if number is None else present.number(number)

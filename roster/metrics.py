"""The hall's metrics in the text format of Prometheus. Imported at the first scrape, because most halls have none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from mcp_runtime.control.calls import call_counts, queue_depth
from mcp_runtime.control.members import members_of_roster, true_status
from mcp_runtime.control.nodes import live_node_ids
from mcp_runtime.security.access import Principal
from roster.models import GuildMember

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


def text_for(principal: Principal) -> bytes:
    registry = CollectorRegistry()
    registry.register(HallCollector(principal))
    return generate_latest(registry)


class HallCollector(Collector):
    """Reads the rows at every scrape. So all web processes report the same, and a restart loses nothing.

    It reports only members that the principal may see.
    """

    def __init__(self, principal: Principal) -> None:
        self._principal = principal

    def collect(self) -> Iterator[Metric]:
        live_ids = live_node_ids()
        members = members_of_roster().only("name", "status", "manifest_error", "restarts_total", "node")
        rows = [row for row in members if self._principal.reaches(row.name)]
        yield GaugeMetricFamily("guildhall_runtime_alive", "1 while a runtime holds the lease.", bool(live_ids))
        yield self._members(rows, live_ids)
        yield self._restarts(rows)
        yield self._calls()
        yield self._queue()

    def _members(self, rows: list[GuildMember], live_ids: frozenset[int]) -> Metric:
        metric = GaugeMetricFamily("guildhall_members", "Members by status.", labels=["status"])
        counts = Counter(true_status(row, live_ids=live_ids) for row in rows)
        for status in GuildMember.Status.values:
            metric.add_metric([status], counts[status])
        return metric

    def _restarts(self, rows: list[GuildMember]) -> Metric:
        help_text = "Restarts after exits that nobody asked for."
        metric = CounterMetricFamily("guildhall_member_restarts", help_text, labels=["member"])
        for row in rows:
            metric.add_metric([row.name], row.restarts_total)
        return metric

    def _calls(self) -> Metric:
        help_text = "Finished calls; the outcome is succeeded, cancelled, or the kind of error."
        metric = CounterMetricFamily("guildhall_calls", help_text, labels=["member", "outcome"])
        for (member, outcome), count in sorted(call_counts().items()):
            if self._principal.reaches(member):
                metric.add_metric([member, outcome], count)
        return metric

    def _queue(self) -> Metric:
        metric = GaugeMetricFamily("guildhall_queue_depth", "Calls that wait and calls that run.", labels=["status"])
        for status, count in queue_depth(self._principal).items():
            metric.add_metric([status], count)
        return metric

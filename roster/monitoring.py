"""What monitors ask: is the web alive, is the hall ready, what do its figures say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import redis
from django.conf import settings
from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector
from redis.backoff import NoBackoff
from redis.retry import Retry
from rest_framework.request import Request

from mcp_runtime import access, control
from mcp_runtime.access import Principal
from roster.api.permissions import principal_of
from roster.api.views import HallView
from roster.models import GuildMember

BROKER_TIMEOUT = 0.5


# Alive and ready: open to anonymous, so nothing here tells more than yes or no ----------------------------------------


def healthz(request: HttpRequest) -> HttpResponse:
    """200 while this process answers at all. No database: a restart of the web would not mend that."""
    return HttpResponse("ok\n", content_type="text/plain")


def readyz(request: HttpRequest) -> JsonResponse:
    """200 when calls are taken and run: database, broker (where there is one) and a live runtime; else 503."""
    checks = {**_database_and_runtime(), **_broker()}
    is_ready = all(checks.values())
    return JsonResponse({"ready": is_ready, **checks}, status=200 if is_ready else 503)


def _database_and_runtime() -> dict[str, bool]:
    try:
        return {"database": True, "runtime": control.live_runtime() is not None}
    except (DatabaseError, InterfaceError):
        return {"database": False, "runtime": False}


def _broker() -> dict[str, bool]:
    if not settings.REDIS_URL:
        return {}
    # Without retries: a mute broker must not hold a web thread beyond the timeouts.
    client = redis.Redis.from_url(
        settings.REDIS_URL,
        socket_connect_timeout=BROKER_TIMEOUT,
        socket_timeout=BROKER_TIMEOUT,
        retry=Retry(NoBackoff(), 0),
    )
    with suppress(redis.RedisError), client:
        return {"broker": bool(client.ping())}
    return {"broker": False}


# Figures ----------------------------------------------------------------------------------------------------------


class HallCollector(Collector):
    """Read from the rows at every scrape: all web processes tell the same, and a restart forgets nothing.

    Of the members that are there for who asks.
    """

    def __init__(self, who: Principal) -> None:
        self._who = who

    def collect(self) -> Iterator[Metric]:
        runtime_is_alive = control.live_runtime() is not None
        known = control.roster().only("name", "status", "manifest_error", "restarts_total")
        rows = [row for row in known if self._who.reaches(row.name)]
        yield GaugeMetricFamily("guildhall_runtime_alive", "1 while a runtime holds the lease.", runtime_is_alive)
        yield self._members(rows, runtime_is_alive=runtime_is_alive)
        yield self._restarts(rows)
        yield self._calls()
        yield self._queue()

    def _members(self, rows: list[GuildMember], *, runtime_is_alive: bool) -> Metric:
        metric = GaugeMetricFamily("guildhall_members", "Members by status.", labels=["status"])
        counts = Counter(control.shown_status(row, runtime_is_alive=runtime_is_alive) for row in rows)
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
        for (member, outcome), count in sorted(control.call_counts().items()):
            if self._who.reaches(member):
                metric.add_metric([member, outcome], count)
        return metric

    def _queue(self) -> Metric:
        metric = GaugeMetricFamily("guildhall_queue_depth", "Calls that wait and calls that run.", labels=["status"])
        for status, count in control.queue_depth(self._who).items():
            metric.add_metric([status], count)
        return metric


class MetricsView(HallView):
    """Prometheus text: figures of everybody's calls, for who may view such figures of members as a whole."""

    schema = None

    def get(self, request: Request) -> HttpResponse:
        access.require_all_figures(principal_of(request))
        registry = CollectorRegistry()
        registry.register(HallCollector(principal_of(request)))
        return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_PLAIN_0_0_4)


urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("metrics", MetricsView.as_view(), name="metrics"),
]

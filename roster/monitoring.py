"""What monitors ask: is the web alive, is the hall ready, what do its figures say."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, DatabaseError, InterfaceError, connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector
from rest_framework.request import Request

from mcp_runtime.control.calls import call_counts, queue_depth
from mcp_runtime.control.members import live_runtime, members_of_roster, true_status
from mcp_runtime.security import access
from mcp_runtime.security.access import Principal
from roster.api.base import HallView
from roster.api.permissions import principal_of
from roster.database import hang_up, unpooled
from roster.models import GuildMember

logger = logging.getLogger("guildhall.web")

READY_SECONDS = 0.4
LOOK_SECONDS = 2.0  # then a look at a mute database is given up, so that the next one finds it when it is back


# Alive and ready: open to anonymous, so nothing here tells more than yes or no ----------------------------------------


def healthz(request: HttpRequest) -> HttpResponse:
    """200 while this process answers at all. No database: a restart of the web would not mend that."""
    return HttpResponse("ok\n", content_type="text/plain")


def readyz(request: HttpRequest) -> JsonResponse:
    """200 when calls are taken and run: database, broker (where there is one) and a live runtime; else 503.

    Within READY_SECONDS: what has not answered by then is not there.
    """
    deadline = time.monotonic() + READY_SECONDS
    looks = [DATABASE_LOOK, BROKER_LOOK] if settings.REDIS_URL else [DATABASE_LOOK]
    under_way = [look.begin() for look in looks]
    checks = {name: is_there for each in under_way for name, is_there in each.result(deadline).items()}
    is_ready = all(checks.values())
    return JsonResponse({"ready": is_ready, **checks}, status=200 if is_ready else 503)


class Look:
    """A look at what may say nothing for long, in a thread. One at a time: who asks meanwhile shares its answer."""

    def __init__(self, look: Callable[[], dict[str, bool]], missing: dict[str, bool]) -> None:
        self._look = look
        self._missing = missing
        self._lock = threading.Lock()
        self._answer: Future[dict[str, bool]] | None = None

    def begin(self) -> Answer:
        with self._lock:
            if self._answer is None or self._answer.done():
                self._answer = Future()
                threading.Thread(target=self._run, args=(self._answer,), name="readyz", daemon=True).start()
            return Answer(self._answer, self._missing)

    def _run(self, answer: Future[dict[str, bool]]) -> None:
        try:
            answer.set_result(self._look())
        except Exception:
            logger.exception("readyz could not look")
            answer.set_result(self._missing)


@dataclass(frozen=True)
class Answer:
    """What a look found, or will find."""

    _found: Future[dict[str, bool]]
    _missing: dict[str, bool]

    def result(self, deadline: float) -> dict[str, bool]:
        """By `deadline` on the monotonic clock; that nothing is there, if it is not known by then."""
        try:
            return self._found.result(max(deadline - time.monotonic(), 0))
        except FutureTimeoutError:
            return self._missing


def _database_and_runtime() -> dict[str, bool]:
    own = connections[DEFAULT_DB_ALIAS] = unpooled(READY_SECONDS)
    end = threading.Timer(LOOK_SECONDS, hang_up, [own])
    end.start()
    try:
        return {"database": True, "runtime": live_runtime() is not None}
    except (DatabaseError, InterfaceError):
        return {"database": False, "runtime": False}
    finally:
        end.cancel()
        own.close()


def _broker() -> dict[str, bool]:
    import redis  # 6 MB that a hall without a broker does not need
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    # Without retries: a mute broker is found out within the timeouts.
    client = redis.Redis.from_url(
        settings.REDIS_URL,
        socket_connect_timeout=READY_SECONDS,
        socket_timeout=READY_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
    with suppress(redis.RedisError), client:
        return {"broker": bool(client.ping())}
    return {"broker": False}


DATABASE_LOOK = Look(_database_and_runtime, {"database": False, "runtime": False})
BROKER_LOOK = Look(_broker, {"broker": False})


# Figures ----------------------------------------------------------------------------------------------------------


class HallCollector(Collector):
    """Read from the rows at every scrape: all web processes tell the same, and a restart forgets nothing.

    Of the members that are there for who asks.
    """

    def __init__(self, who: Principal) -> None:
        self._who = who

    def collect(self) -> Iterator[Metric]:
        runtime_is_alive = live_runtime() is not None
        known = members_of_roster().only("name", "status", "manifest_error", "restarts_total")
        rows = [row for row in known if self._who.reaches(row.name)]
        yield GaugeMetricFamily("guildhall_runtime_alive", "1 while a runtime holds the lease.", runtime_is_alive)
        yield self._members(rows, runtime_is_alive=runtime_is_alive)
        yield self._restarts(rows)
        yield self._calls()
        yield self._queue()

    def _members(self, rows: list[GuildMember], *, runtime_is_alive: bool) -> Metric:
        metric = GaugeMetricFamily("guildhall_members", "Members by status.", labels=["status"])
        counts = Counter(true_status(row, runtime_is_alive=runtime_is_alive) for row in rows)
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
            if self._who.reaches(member):
                metric.add_metric([member, outcome], count)
        return metric

    def _queue(self) -> Metric:
        metric = GaugeMetricFamily("guildhall_queue_depth", "Calls that wait and calls that run.", labels=["status"])
        for status, count in queue_depth(self._who).items():
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

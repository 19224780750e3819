"""Endpoints for monitors: whether the web is alive, whether the hall is ready, and its metrics."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, DatabaseError, InterfaceError, connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from rest_framework.request import Request

from mcp_runtime.control.members import own_live_runtime
from mcp_runtime.protocol.errors import MigrationError
from mcp_runtime.rows import migrations
from mcp_runtime.rows.database import hang_up, unpooled
from mcp_runtime.security import access
from roster.api.base import HallView
from roster.api.permissions import principal_of

logger = logging.getLogger("guildhall.web")

READY_SECONDS = 0.4
LOOK_SECONDS = 2.0  # a check of a silent database ends then, so that the next check sees when it is back


# Alive and ready. Anonymous users may ask, so the answers are only yes or no --------------------------------------


def healthz(request: HttpRequest) -> HttpResponse:
    """200 while this process answers. It ignores the database, because a restart of the web would not fix that."""
    return HttpResponse("ok\n", content_type="text/plain")


def readyz(request: HttpRequest) -> JsonResponse:
    """200 if calls can run: database, broker (if there is one) and this node's runtime answer. Otherwise 503.

    It answers within READY_SECONDS. What has not answered by then counts as unavailable, and so does a database that is
    too old or too new for this version.
    """
    deadline = time.monotonic() + READY_SECONDS
    looks = [DATABASE_LOOK, BROKER_LOOK] if settings.BROKER_URL else [DATABASE_LOOK]
    answers = [look.begin() for look in looks]
    checks = {name: is_there for answer in answers for name, is_there in answer.result(deadline).items()}
    is_ready = all(checks.values())
    return JsonResponse({"ready": is_ready, **checks}, status=200 if is_ready else 503)


class Look:
    """A check in a thread, because it may take long. Only one runs at a time, and concurrent requests share it."""

    def __init__(self, look: Callable[[], dict[str, bool]], fallback: dict[str, bool]) -> None:
        self._look = look
        self._fallback = fallback
        self._lock = threading.Lock()
        self._answer: Future[dict[str, bool]] | None = None

    def begin(self) -> Answer:
        with self._lock:
            if self._answer is None or self._answer.done():
                self._answer = Future()
                threading.Thread(target=self._run, args=(self._answer,), name="readyz", daemon=True).start()
            return Answer(self._answer, self._fallback)

    def _run(self, answer: Future[dict[str, bool]]) -> None:
        try:
            answer.set_result(self._look())
        except Exception:
            logger.exception("readyz could not look")
            answer.set_result(self._fallback)


@dataclass(frozen=True)
class Answer:
    """The result of a check, now or later."""

    _future: Future[dict[str, bool]]
    _fallback: dict[str, bool]

    def result(self, deadline: float) -> dict[str, bool]:
        """The result by `deadline` on the monotonic clock. If there is none by then, the fallback."""
        try:
            return self._future.result(max(deadline - time.monotonic(), 0))
        except FutureTimeoutError:
            return self._fallback


def _database_and_runtime() -> dict[str, bool]:
    database = connections[DEFAULT_DB_ALIAS] = unpooled(READY_SECONDS)
    end = threading.Timer(LOOK_SECONDS, hang_up, [database])
    end.start()
    try:
        migrations.require_same()
        return {"database": True, "runtime": own_live_runtime() is not None}
    except MigrationError as error:
        logger.error("%s", error)
        return {"database": False, "runtime": False}
    except (DatabaseError, InterfaceError):
        return {"database": False, "runtime": False}
    finally:
        end.cancel()
        database.close()


def _broker() -> dict[str, bool]:
    return {"broker": _answers_amqp() if settings.BROKER_URL.startswith("amqp") else _answers_redis()}


def _answers_amqp() -> bool:
    from kombu import Connection

    timeouts = {"read_timeout": READY_SECONDS, "write_timeout": READY_SECONDS}
    connection = Connection(settings.BROKER_URL, connect_timeout=READY_SECONDS, transport_options=timeouts)
    with suppress(OSError, *connection.connection_errors), connection:
        connection.connect()
        return True
    return False


def _answers_redis() -> bool:
    import redis  # 6 MB that a hall without a broker does not need
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    # Without retries, the timeouts bound the check of a silent broker.
    client = redis.Redis.from_url(
        settings.BROKER_URL,
        socket_connect_timeout=READY_SECONDS,
        socket_timeout=READY_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
    with suppress(redis.RedisError), client:
        return bool(client.ping())
    return False


DATABASE_LOOK = Look(_database_and_runtime, {"database": False, "runtime": False})
BROKER_LOOK = Look(_broker, {"broker": False})


# Figures ----------------------------------------------------------------------------------------------------------


class MetricsView(HallView):
    """Metrics in the text format of Prometheus, for principals that may view figures of whole members."""

    schema = None

    def get(self, request: Request) -> HttpResponse:
        access.require_all_figures(principal_of(request))
        from roster import metrics  # its libraries take a megabyte

        return HttpResponse(metrics.text_for(principal_of(request)), content_type=metrics.CONTENT_TYPE)


urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("metrics", MetricsView.as_view(), name="metrics"),
]

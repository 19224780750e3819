"""A transcript as server-sent events, while it grows. Each stream holds a seat, for it holds a thread of the web."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.http import StreamingHttpResponse
from rest_framework.request import Request

from mcp_runtime import control
from mcp_runtime.database import give_connection_back
from roster.api import requests
from roster.api.permissions import principal_of
from roster.api.session_serializers import EventSerializer, MessageSerializer
from roster.models import AgentMessage, AgentSession

LOOK_SECONDS = 0.2
# A proxy or client that hears nothing for long hangs up.
COMMENT_SECONDS = 15.0
BATCH = 100


def stream(
    request: Request, session: AgentSession, after: int, message: AgentMessage | None = None
) -> StreamingHttpResponse | None:
    """The transcript behind the event `after`, of one message or all of them, until nothing is under way.

    None when there is no seat for this principal. Each event carries its id, for Last-Event-ID; the last one is `end`.
    """
    seat = ExitStack()
    if not seat.enter_context(requests.seat(principal_of(request).owner, request.META)):
        return None
    response = StreamingHttpResponse(
        requests.Seated(_events(session, after, message, requests.waits(request.META)), seat),
        content_type="text/event-stream",
    )
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"
    return response


def _events(
    session: AgentSession, after: int, message: AgentMessage | None, waits: Callable[[], None]
) -> Iterator[str]:
    if message is not None:
        yield _event("message", MessageSerializer(message).data)
    said_at = time.monotonic()
    while True:
        more = control.is_under_way(session, message=message)
        batch = list(control.transcript(session, after, message=message)[:BATCH])
        for row in batch:
            after, said_at = row.pk, time.monotonic()
            yield _event(row.kind, EventSerializer(row).data, row.pk)
        if len(batch) == BATCH:
            continue
        if not more:
            break
        if time.monotonic() > said_at + COMMENT_SECONDS:
            said_at = time.monotonic()
            yield ":\n\n"
        give_connection_back()
        waits()
        time.sleep(LOOK_SECONDS)
    if message is not None:
        message.refresh_from_db()
        yield _event("end", MessageSerializer(message).data)
    else:
        yield _event("end", {})


def _event(kind: str, data: Any, event_id: int | None = None) -> str:
    head = f"id: {event_id}\n" if event_id is not None else ""
    return f"{head}event: {kind}\ndata: {json.dumps(data, cls=DjangoJSONEncoder)}\n\n"

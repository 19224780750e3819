"""Requests that the server has not answered, and what can be told from them about whose a message of its is."""

from __future__ import annotations

from collections.abc import Callable

from mcp_runtime.bridge.callers import CallerRequest, Connection, Session

TYPE_CHECKING = False  # see messages
if TYPE_CHECKING:
    from typing import Any

MAX_LEFT = 1_000  # requests whose callers went away


class Pending:
    """By the ids that the server knows.

    Cancelled requests and those of callers that left are among them: it may still work on them.
    """

    def __init__(self) -> None:
        self._requests: dict[int, CallerRequest] = {}
        self._has_called = False  # the server has served a call of a tool
        self._works_unasked = False  # what it works on may be of others than those who wait

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._requests

    def add(self, request: CallerRequest) -> None:
        self._requests[request.own_id] = request

    def drop(self, request: CallerRequest) -> None:
        """The server was not asked after all."""
        del self._requests[request.own_id]

    def answered(self, request_id: Any) -> CallerRequest | None:
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._has_called = self._has_called or request.method == "tools/call"
        return request

    def with_progress(self, token: Any) -> CallerRequest | None:
        """Who asked for progress, by the token that the server was given."""
        request = self._requests.get(token) if isinstance(token, int) and token is not True else None
        return request if request is not None and request.progress_token is not None else None

    def cancel(self, session: Session | None, request_id: Any) -> CallerRequest | None:
        """The request that its caller means.

        None when it is over; or when callers without a session use the same id: better none than the wrong one.
        """
        asked = (session, type(request_id), request_id)
        running = [request for request in self._requests.values() if not request.is_cancelled]
        meant = [e for e in running if (e.session, type(e.caller_id), e.caller_id) == asked]
        if len(meant) != 1:
            return None
        meant[0].is_cancelled = True
        return meant[0]

    def bound_left(self, is_open: Callable[[Connection], bool]) -> None:
        """Requests of callers who left are kept until they are answered, and the oldest of too many are not.

        A cancellation comes when its caller has given up already.
        """
        left = [e.own_id for e in self._requests.values() if not is_open(e.connection)]
        for own_id in left[:-MAX_LEFT]:
            del self._requests[own_id]
            self._works_unasked = True

    def sessions(self) -> set[Session | None]:
        return {request.session for request in self._requests.values()}

    def of_one_client(self) -> list[CallerRequest]:
        """All that the server works on, when everything is of one client; else nothing."""
        requests = list(self._requests.values())
        clients = {request.session or request for request in requests}
        if not requests and self._has_called:
            self._works_unasked = True  # behind its answers: a call that runs says no more about whose a message is
        return [] if len(clients) != 1 or self._works_unasked else requests

"""Requests that the server has not answered. They show to which caller other messages of the server belong."""

from __future__ import annotations

from collections.abc import Callable

from mcp_runtime.bridge.callers import CallerRequest, Connection, Session

TYPE_CHECKING = False  # see messages
if TYPE_CHECKING:
    from typing import Any

MAX_ABANDONED = 1_000  # requests whose callers have disconnected


class Pending:
    """The requests, by the ids that the server got.

    They include cancelled requests and those of disconnected callers, because the server may still work on them.
    """

    def __init__(self) -> None:
        self._requests: dict[int, CallerRequest] = {}
        self._has_served_call = False  # the server has served a call of a tool
        self._has_unknown_work = False  # it may work on something for a caller that does not wait

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._requests

    def add(self, request: CallerRequest) -> None:
        self._requests[request.own_id] = request

    def drop(self, request: CallerRequest) -> None:
        """Remove a request that was not sent to the server."""
        del self._requests[request.own_id]

    def take(self, request_id: Any) -> CallerRequest | None:
        """Remove and return the request that the server has answered."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._has_served_call = self._has_served_call or request.method == "tools/call"
        return request

    def with_progress(self, token: Any) -> CallerRequest | None:
        """The request with this progress token, which the bridge gave to the server."""
        request = self._requests.get(token) if isinstance(token, int) and token is not True else None
        return request if request is not None and request.progress_token is not None else None

    def cancel(self, session: Session | None, request_id: Any) -> CallerRequest | None:
        """Mark a request as cancelled, and return it.

        None if the request has ended. Also None if several callers without a session use the same id, because it is
        better to cancel no request than the wrong one.
        """
        key = (session, type(request_id), request_id)
        running = [request for request in self._requests.values() if not request.is_cancelled]
        matches = [each for each in running if (each.session, type(each.caller_id), each.caller_id) == key]
        if len(matches) != 1:
            return None
        matches[0].is_cancelled = True
        return matches[0]

    def limit_abandoned(self, is_open: Callable[[Connection], bool]) -> None:
        """Remove the oldest requests of disconnected callers if there are too many.

        The others stay until they are answered, because a caller may disconnect before it sends a cancellation.
        """
        abandoned = [request.own_id for request in self._requests.values() if not is_open(request.connection)]
        for own_id in abandoned[:-MAX_ABANDONED]:
            del self._requests[own_id]
            self._has_unknown_work = True

    def sessions(self) -> set[Session | None]:
        return {request.session for request in self._requests.values()}

    def of_one_client(self) -> list[CallerRequest]:
        """All requests on which the server works, if all are from one client. Otherwise an empty list."""
        requests = list(self._requests.values())
        clients = {request.session or request for request in requests}
        if not requests and self._has_served_call:
            self._has_unknown_work = True  # it goes on after its answers, so a message may belong to an earlier call
        return [] if len(clients) != 1 or self._has_unknown_work else requests

"""Sessions of callers. For the server there is only one client, so the state of each caller is here."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from mcp_runtime.bridge.callers import CallerRequest, Session
from mcp_runtime.bridge.messages import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Message, error_message

TYPE_CHECKING = False  # see messages
if TYPE_CHECKING:
    from typing import Any

MAX_SESSIONS = 4_000  # more than the gateway has
MAX_URIS = 20_000  # characters of all URIs to which one session is subscribed
LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
DEFAULT_LEVEL = "info"  # of a session that has set none, whatever the others have set


class Sessions:
    """All sessions. `ask_server` sends a request of the bridge itself, and does not wait for the answer."""

    def __init__(self, ask_server: Callable[[str, Message], None]) -> None:
        self._ask_server = ask_server
        self._by_id: dict[str, Session] = {}  # in the order of their last use
        self._subscribers: dict[str, set[Session]] = {}  # by URI
        self._confirmed_uris: set[str] = set()  # URIs for which the server has confirmed the subscription
        self._is_debugging = False  # the bridge has set the server's log level to the lowest one

    def begin(self, *, busy: Collection[Session | None]) -> Session:
        session = Session(os.urandom(16).hex())
        idle = (other for other in self._by_id.values() if other.stream is None and other not in busy)
        if len(self._by_id) >= MAX_SESSIONS and (oldest := next(idle, None)):
            self.end(oldest)
        self._by_id[session.id] = session
        return session

    def find(self, session_id: str) -> Session:
        """Raises KeyError if the session is unknown or has ended."""
        return self._by_id[session_id]

    def use(self, session_id: str) -> Session | None:
        """The session of a request, or None without an id. Raises KeyError."""
        if not session_id:
            return None
        session = self._by_id.pop(session_id)
        self._by_id[session.id] = session  # move to the end: it is the last one used
        return session

    def end(self, session: Session) -> None:
        """End a session. Whoever calls this must end its stream."""
        del self._by_id[session.id]
        for uri in list(session.uris):
            if self._unsubscribe(session, uri):
                self._ask_server("resources/unsubscribe", {"uri": uri})
        self._choose_level()

    # Requests about the state of a session

    def answer(self, request: CallerRequest, method: str, params: Message, capabilities: Any) -> Message | None:
        """Answer a request. None if it must go to the server. `capabilities` are the server's capabilities."""
        if method not in ("logging/setLevel", "resources/subscribe", "resources/unsubscribe"):
            return None
        session, value = request.session, params.get("level" if method == "logging/setLevel" else "uri")
        if session is None:
            return error_message(None, INVALID_REQUEST, f"{method} needs the Mcp-Session-Id that initialize gave")
        if method == "logging/setLevel":
            return self._set_level(session, value, capabilities)
        if not isinstance(value, str):
            return error_message(None, INVALID_PARAMS, "uri must be a string")
        if method == "resources/unsubscribe":
            if self._unsubscribe(session, value) or value not in self._subscribers:
                return None
        elif value not in session.uris and sum(map(len, session.uris)) + len(value) > MAX_URIS:
            return error_message(None, INVALID_PARAMS, f"the URIs of one session may have {MAX_URIS:,} characters")
        else:
            session.uris.add(value)
            self._subscribers.setdefault(value, set()).add(session)
            if value not in self._confirmed_uris:
                request.subscribes_to = value
                return None
        return {"jsonrpc": "2.0", "result": {}}

    def _set_level(self, session: Session, level: Any, capabilities: Any) -> Message:
        if "logging" not in (capabilities or {}):
            return error_message(None, METHOD_NOT_FOUND, "the server has no log messages")
        if level not in LOG_LEVELS:
            return error_message(None, INVALID_PARAMS, f"level must be one of {', '.join(LOG_LEVELS)}")
        session.level = level
        self._choose_level()
        return {"jsonrpc": "2.0", "result": {}}

    def _choose_level(self) -> None:
        """Set the server's log level to the lowest level of all sessions. `is_for` filters for the others."""
        is_debugging = any(session.level == "debug" for session in self._by_id.values())
        if is_debugging != self._is_debugging:
            self._is_debugging = is_debugging
            self._ask_server("logging/setLevel", {"level": "debug" if is_debugging else DEFAULT_LEVEL})

    def _unsubscribe(self, session: Session, uri: str) -> bool:
        """Remove a subscription. Returns whether it was the last one to the resource."""
        subscribers = self._subscribers.get(uri, set())
        if session not in subscribers:
            return False
        session.uris.discard(uri)
        subscribers.discard(session)
        if not subscribers:
            del self._subscribers[uri]
            self._confirmed_uris.discard(uri)
        return not subscribers

    # Messages of the server

    def end_subscribing(self, request: CallerRequest, *, is_done: bool) -> None:
        """Handle the server's answer, if the request was a subscription. `is_done`: the server has accepted it."""
        uri = request.subscribes_to
        if uri is None:
            return
        if not is_done and request.session is not None:
            self._unsubscribe(request.session, uri)
        elif uri in self._subscribers:
            self._confirmed_uris.add(uri)

    def subscribers_of(self, uri: str) -> set[Session]:
        """The sessions that are subscribed to the resource, or to a resource that contains it."""
        places = [at for at, letter in enumerate(uri[:MAX_URIS]) if letter == "/"]
        candidates = [uri, *(uri[:at] for at in places), *(uri[: at + 1] for at in places)]
        return set().union(*(self._subscribers.get(candidate, ()) for candidate in candidates))


def is_for(message: Message, session: Session | None) -> bool:
    """Whether the log level of the session allows a message of the server."""
    params = message.get("params")
    level = params.get("level") if isinstance(params, dict) else None
    if message["method"] != "notifications/message" or level not in LOG_LEVELS:
        return True
    least = session.level if session and session.level else DEFAULT_LEVEL
    return LOG_LEVELS.index(level) >= LOG_LEVELS.index(least)

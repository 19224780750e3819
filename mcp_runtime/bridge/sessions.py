"""Sessions: the server takes all callers for one client, so what it keeps for its client is kept here for each."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from mcp_runtime.bridge.callers import CallerRequest, Session
from mcp_runtime.bridge.messages import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Message, error_message

TYPE_CHECKING = False  # see messages
if TYPE_CHECKING:
    from typing import Any

MAX_SESSIONS = 4_000  # more than the gateway keeps
MAX_URIS = 20_000  # characters of all the URIs that one session has subscribed to
LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
DEFAULT_LEVEL = "info"  # of a session that asked for none, whatever others asked for


class Sessions:
    """`ask_server` sends a request of the bridge itself; nobody waits for the answer."""

    def __init__(self, ask_server: Callable[[str, Message], None]) -> None:
        self._ask_server = ask_server
        self._by_id: dict[str, Session] = {}  # in the order of their last use
        self._subscribers: dict[str, set[Session]] = {}  # by URI
        self._subscribed: set[str] = set()  # URIs for which the server has said so
        self._is_debugging = False  # the server was asked for log messages of the lowest level

    def begin(self, *, busy: Collection[Session | None]) -> Session:
        session = Session(os.urandom(16).hex())
        idle = (one for one in self._by_id.values() if one.stream is None and one not in busy)
        if len(self._by_id) >= MAX_SESSIONS and (oldest := next(idle, None)):
            self.end(oldest)
        self._by_id[session.id] = session
        return session

    def find(self, session_id: str) -> Session:
        """Raises KeyError for one that is unknown, or over."""
        return self._by_id[session_id]

    def use(self, session_id: str) -> Session | None:
        """The session that a request belongs to. Raises KeyError."""
        if not session_id:
            return None
        session = self._by_id.pop(session_id)
        self._by_id[session.id] = session  # the last one used
        return session

    def end(self, session: Session) -> None:
        """Its stream is the caller's to end."""
        del self._by_id[session.id]
        for uri in list(session.uris):
            if self._unsubscribe(session, uri):
                self._ask_server("resources/unsubscribe", {"uri": uri})
        self._choose_level()

    # Requests about what is kept

    def answer(self, request: CallerRequest, method: str, params: Message, capabilities: Any) -> Message | None:
        """None when the server is to be asked; `capabilities` are the server's."""
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
            if value not in self._subscribed:
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
        """The server says as much as the most curious session wants; `is_for` keeps it from the others."""
        is_debugging = any(session.level == "debug" for session in self._by_id.values())
        if is_debugging != self._is_debugging:
            self._is_debugging = is_debugging
            self._ask_server("logging/setLevel", {"level": "debug" if is_debugging else DEFAULT_LEVEL})

    def _unsubscribe(self, session: Session, uri: str) -> bool:
        """Whether it was the last session that had subscribed to the resource."""
        subscribers = self._subscribers.get(uri, set())
        if session not in subscribers:
            return False
        session.uris.discard(uri)
        subscribers.discard(session)
        if not subscribers:
            del self._subscribers[uri]
            self._subscribed.discard(uri)
        return not subscribers

    # What the server says

    def end_subscribing(self, request: CallerRequest, *, is_done: bool) -> None:
        """The server has answered whether it will tell of the resource, if it was asked for that."""
        uri = request.subscribes_to
        if uri is None:
            return
        if not is_done and request.session is not None:
            self._unsubscribe(request.session, uri)
        elif uri in self._subscribers:
            self._subscribed.add(uri)

    def subscribers_of(self, uri: str) -> set[Session]:
        """Those who subscribed to the resource, or to one that it is a part of."""
        places = [at for at, letter in enumerate(uri[:MAX_URIS]) if letter == "/"]
        known = [uri, *(uri[:at] for at in places), *(uri[: at + 1] for at in places)]
        return set().union(*(self._subscribers.get(one, ()) for one in known))


def is_for(message: Message, session: Session | None) -> bool:
    """Whether a message of the server is one that the client has asked for."""
    params = message.get("params")
    level = params.get("level") if isinstance(params, dict) else None
    if message["method"] != "notifications/message" or level not in LOG_LEVELS:
        return True
    least = session.level if session and session.level else DEFAULT_LEVEL
    return LOG_LEVELS.index(level) >= LOG_LEVELS.index(least)

"""Sessions of clients that use a handshake version of MCP.

The id of a session contains its version, capabilities and owner, signed. So a session survives a restart of the
runtime, which many clients would take for the end of the session. The id does not contain which sessions were ended,
log levels and subscriptions. These are stored separately, by the digest of the id, because clients send them only once.
Everything else in memory can be created again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import astuple
from datetime import timedelta
from itertools import islice
from typing import Any

from django.core import signing

from mcp_runtime.gateway.messages import MAX_SESSION_STATE, ClientSession
from mcp_runtime.gateway.programs import NAMELESS, Program
from mcp_runtime.security import limits
from mcp_runtime.security.access import Principal

logger = logging.getLogger("guildhall.gateway")

MAX_ENDED_SESSIONS = 10_000
MAX_AGE = timedelta(days=7)
SALT = "guildhall.gateway.session"


class Sessions:
    """All sessions of clients. `on_drop(session)` is called for each one that is removed from memory."""

    def __init__(self, on_drop: Callable[[ClientSession], None]) -> None:
        self._sessions: OrderedDict[str, ClientSession] = OrderedDict()
        self._ended_digests: OrderedDict[str, None] = OrderedDict()  # by digest
        # Of sessions that are not in memory, by digest.
        self._extra_states: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._on_drop = on_drop

    def begin(
        self,
        principal: Principal,
        path: str,
        version: str,
        capabilities: dict[str, Any],
        program: Program = NAMELESS,
    ) -> ClientSession:
        owner = (principal.user_id, principal.token_id)
        payload = {"o": owner, "p": path, "v": version, "c": capabilities, "i": astuple(program)}
        payload["n"] = secrets.token_urlsafe(12)
        if len(json.dumps(payload)) <= MAX_SESSION_STATE:
            session_id = signing.dumps(payload, salt=SALT, compress=True)
        else:
            session_id = secrets.token_urlsafe(32)
        session = ClientSession(session_id, owner, path, version, capabilities, program)
        self._store(session)
        return session

    def find(self, session_id: str, principal: Principal, path: str) -> ClientSession | None:
        """Return the session if this client started it at this path and it has not ended."""
        session = self._sessions.get(session_id) or self._restore_from_id(session_id)
        if session is None or session.path != path or session.owner != (principal.user_id, principal.token_id):
            return None
        self._sessions.move_to_end(session_id)
        return session

    def end(self, session: ClientSession) -> None:
        if self._sessions.pop(session.id, None) is not None:
            self._drop(session)
        self._ended_digests[_digest(session.id)] = None
        while len(self._ended_digests) > MAX_ENDED_SESSIONS:
            self._ended_digests.popitem(last=False)

    def extra_states(self) -> dict[str, Any]:
        """Return what `restore` needs in the next runtime, for JSON."""
        in_memory = {
            _digest(session.id): state for session in self._sessions.values() if (state := session.extra_state())
        }
        return {"ended": list(self._ended_digests), "states": {**self._extra_states, **in_memory}}

    def restore(self, states: dict[str, Any]) -> None:
        """Restore the result of `extra_states`.

        Raise LookupError, TypeError, ValueError or AttributeError for anything else.
        """
        for digest, state in states["states"].items():
            uris = {member: [str(uri) for uri in uris] for member, uris in state.get("uris", {}).items()}
            self._extra_states[digest] = {"level": str(state.get("level", "")), "uris": uris}
        self._ended_digests.update((str(digest), None) for digest in states["ended"])

    def _restore_from_id(self, session_id: str) -> ClientSession | None:
        """Create a session from its id. It is from an earlier runtime, or was removed from memory."""
        digest = _digest(session_id)
        if digest in self._ended_digests:
            return None
        try:
            payload = signing.loads(session_id, salt=SALT, max_age=MAX_AGE)
        except signing.BadSignature:
            return None
        program = Program(*payload.get("i", ()))  # ids of earlier versions have none
        session = ClientSession(session_id, tuple(payload["o"]), payload["p"], payload["v"], payload["c"], program)
        extra_state = self._extra_states.pop(digest, {})
        session.log_level = extra_state.get("level", "")
        session.subscriptions = {member: set(uris) for member, uris in extra_state.get("uris", {}).items()}
        self._store(session)
        return session

    def _store(self, session: ClientSession) -> None:
        self._sessions[session.id] = session
        of_user = [other for other in self._sessions.values() if other.owner[0] == session.owner[0]]
        of_token = [other for other in of_user if other.owner == session.owner]
        self._remove_idle(of_token, limits.MAX_SESSIONS_OF_TOKEN, session)
        self._remove_idle(of_user, limits.MAX_SESSIONS_OF_USER, session)
        self._remove_idle(self._sessions.values(), limits.MAX_SESSIONS, session)

    def _remove_idle(self, among: Iterable[ClientSession], most: int, newest: ClientSession) -> None:
        """Remove the least recently used sessions above `most` from memory. Their ids can restore them.

        Keep sessions with an open stream or a request in progress. Other limits apply to those.
        """
        candidates = [session for session in among if session.id in self._sessions]
        idle = (
            session
            for session in candidates
            if not session.running and session.outbox is None and session is not newest
        )
        for idle_session in islice(idle, max(len(candidates) - most, 0)):
            del self._sessions[idle_session.id]
            self._drop(idle_session)
            if state := idle_session.extra_state():
                self._extra_states[_digest(idle_session.id)] = state
                while len(self._extra_states) > limits.MAX_SESSIONS:
                    self._extra_states.popitem(last=False)

    def _drop(self, session: ClientSession) -> None:
        if session.outbox is not None:
            session.outbox.close()
        self._on_drop(session)


def _digest(session_id: str) -> str:
    return hashlib.sha256(session_id.encode()).hexdigest()

"""Sessions of clients that use a handshake version of MCP.

The id of a session contains its version, capabilities and owner, signed. So a session survives a restart of the
runtime, and is valid at every node. The id does not contain which sessions were ended, log levels and subscriptions.
These are in rows, by the digest of the id, because clients send them only once. Everything else in memory can be
created again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import astuple
from datetime import timedelta
from itertools import islice
from typing import Any, TypeVar

from django.core import signing
from django.db import Error

from mcp_runtime.gateway import session_rows
from mcp_runtime.gateway.messages import ClientSession
from mcp_runtime.gateway.programs import NAMELESS, Program
from mcp_runtime.gateway.session_rows import SavedState
from mcp_runtime.rows.database import unit_of_work
from mcp_runtime.security import limits
from mcp_runtime.security.access import Principal

logger = logging.getLogger("guildhall.gateway")

T = TypeVar("T")

MAX_SESSION_ID = 4_000  # characters, because proxies limit headers. A session with more does not leave this runtime
MAX_ENDED_SESSIONS = 10_000  # in memory
MAX_AGE = timedelta(days=7)
SALT = "guildhall.gateway.session"


class Sessions:
    """All sessions of clients. `on_drop(session)` is called for each one that is removed from memory."""

    def __init__(self, on_drop: Callable[[ClientSession], None]) -> None:
        self.by_id: OrderedDict[str, ClientSession] = OrderedDict()
        self._ended_digests: OrderedDict[str, None] = OrderedDict()  # by digest
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
        session_id = signing.dumps(payload, salt=SALT, compress=True)
        if len(session_id) > MAX_SESSION_ID:
            session_id = secrets.token_urlsafe(32)
        session = ClientSession(session_id, owner, path, version, capabilities, program)
        self._store(session)
        return session

    async def find(self, session_id: str, principal: Principal, path: str) -> ClientSession | None:
        """Return the session if this client started it at this path and it has not ended."""
        session = self.by_id.get(session_id)
        if session is None and (session := self._read_id(session_id)) is not None:
            session = await self._restore(session)
        if session is None or session.path != path or session.owner != (principal.user_id, principal.token_id):
            return None
        self.by_id.move_to_end(session_id)
        return session

    async def end(self, session: ClientSession) -> None:
        digest = _digest(session.id)
        self._end(session)
        await self._attempt(lambda: session_rows.end(digest))

    def _end(self, session: ClientSession) -> None:
        if self.by_id.pop(session.id, None) is not None:
            self._drop(session)
        self._ended_digests[_digest(session.id)] = None
        while len(self._ended_digests) > MAX_ENDED_SESSIONS:
            self._ended_digests.popitem(last=False)

    async def end_those_ended_elsewhere(self) -> None:
        """End the sessions in memory that clients have ended at other nodes in the last seconds."""
        ended_digests = await self._attempt(session_rows.ended_lately) or set()
        for session in list(self.by_id.values()) if ended_digests else ():
            if _digest(session.id) in ended_digests:
                self._end(session)

    async def save(self, session: ClientSession) -> None:
        """Store what has changed since the session was loaded or saved here."""
        before, now = session.saved_state, session.state()
        changed_members = {name for name in {*before.uris, *now.uris} if before.uris.get(name) != now.uris.get(name)}
        log_level = now.log_level if now.log_level != before.log_level else None
        if log_level is None and not changed_members:
            return
        uris = {name: now.uris.get(name, frozenset()) for name in changed_members}
        digest = _digest(session.id)
        session.saved_state = now
        await self._attempt(lambda: session_rows.save(digest, log_level, uris))

    @staticmethod
    async def _attempt(work: Callable[[], T]) -> T | None:
        """Return the result of `work` on rows. Without the database, sessions continue with what is in memory."""
        try:
            return await asyncio.get_running_loop().run_in_executor(None, unit_of_work, work)
        except Error as error:
            logger.warning("the state of a session cannot be read or written (%s)", str(error).strip())
            return None

    def _read_id(self, session_id: str) -> ClientSession | None:
        """Create a session from its id. It is from an earlier runtime, or from another node, or left the memory."""
        if _digest(session_id) in self._ended_digests:
            return None
        try:
            payload = signing.loads(session_id, salt=SALT, max_age=MAX_AGE)
        except signing.BadSignature:
            return None
        program = Program(*payload.get("i", ()))  # ids of earlier versions have none
        return ClientSession(session_id, tuple(payload["o"]), payload["p"], payload["v"], payload["c"], program)

    async def _restore(self, session: ClientSession) -> ClientSession | None:
        """Return the session with its state from the row, or None if it has ended."""
        digest = _digest(session.id)
        state = await self._attempt(lambda: session_rows.load(digest)) or SavedState()
        if (restored := self.by_id.get(session.id)) is not None:
            return restored  # another request was faster
        if state.is_ended or digest in self._ended_digests:
            return None
        session.saved_state, session.log_level = state, state.log_level
        session.subscriptions = {member: set(uris) for member, uris in state.uris.items()}
        self._store(session)
        return session

    def _store(self, session: ClientSession) -> None:
        self.by_id[session.id] = session
        of_user = [other for other in self.by_id.values() if other.owner[0] == session.owner[0]]
        of_token = [other for other in of_user if other.owner == session.owner]
        self._remove_idle(of_token, limits.MAX_SESSIONS_OF_TOKEN, session)
        self._remove_idle(of_user, limits.MAX_SESSIONS_OF_USER, session)
        self._remove_idle(self.by_id.values(), limits.MAX_SESSIONS, session)

    def _remove_idle(self, among: Iterable[ClientSession], most: int, newest: ClientSession) -> None:
        """Remove the least recently used sessions above `most` from memory. Their ids can restore them.

        Keep sessions with an open stream or a request in progress. Other limits apply to those.
        """
        candidates = [session for session in among if session.id in self.by_id]
        idle = (
            session
            for session in candidates
            if not session.running and session.outbox is None and session is not newest
        )
        for idle_session in islice(idle, max(len(candidates) - most, 0)):
            del self.by_id[idle_session.id]
            self._drop(idle_session)

    def _drop(self, session: ClientSession) -> None:
        if session.outbox is not None:
            session.outbox.close()
        self._on_drop(session)


def _digest(session_id: str) -> str:
    return hashlib.sha256(session_id.encode()).hexdigest()

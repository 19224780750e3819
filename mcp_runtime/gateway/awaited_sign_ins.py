"""Tell clients that their users have signed in, after they were asked for it with an error (25-11: client/elicitation).

A user signs in in a browser, in the web of any node. So the rows say when it is done. The gateway that asked remembers
whom it asked, looks at the rows while somebody waits, and tells the client once, on the stream of its session.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from mcp_runtime.gateway.messages import ClientSession
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import OwnSignIn, PageNeededError
from mcp_runtime.rows.database import unit_of_work

COMPLETE = "notifications/elicitation/complete"
# A person has 10 minutes for a sign-in, which may begin a while after the page was opened.
SECONDS = 1_200.0
# Above these, the oldest are forgotten. Their clients get no notification, which they may not rely on anyway.
MAX_AWAITED = 1_000
MAX_OF_USER = 50


@dataclass(frozen=True, eq=False)
class _Asked:
    session: ClientSession
    awaited: OwnSignIn
    until: float  # by the monotonic clock


class AwaitedSignIns:
    """What clients were asked for and is not done yet. Use it only on the gateway's event loop, except `look`."""

    def __init__(self) -> None:
        self._asked: dict[str, _Asked] = {}  # by elicitation id, the oldest first

    def note(self, session: ClientSession, error: PageNeededError) -> None:
        """Remember that the client of the session is about to get this error."""
        now, user_id = time.monotonic(), error.awaited.user_id
        self._forget(lambda asked: asked.until <= now)
        self._make_room(MAX_OF_USER, [each for each, asked in self._asked.items() if asked.awaited.user_id == user_id])
        self._make_room(MAX_AWAITED, list(self._asked))
        self._asked[error.elicitation_id] = _Asked(session, error.awaited, now + SECONDS)

    def _make_room(self, most: int, elicitation_ids: list[str]) -> None:
        for elicitation_id in elicitation_ids[: max(len(elicitation_ids) + 1 - most, 0)]:
            del self._asked[elicitation_id]

    def forget(self, session: ClientSession) -> None:
        """Forget what its client was asked for, because the session is over, or has no stream and left the memory."""
        self._forget(lambda asked: asked.session is session)

    def _forget(self, is_over: Callable[[_Asked], bool]) -> None:
        for elicitation_id in [each for each, asked in self._asked.items() if is_over(asked)]:
            del self._asked[elicitation_id]

    def look(self) -> list[str]:
        """The ids of those that are done, for `finish`. It reads the rows, and may run in another thread."""
        now = time.monotonic()
        asked = [(elicitation_id, each) for elicitation_id, each in list(self._asked.items()) if each.until > now]
        if not asked:
            return []
        from mcp_runtime.members import own_sign_ins  # a hall without members behind OAuth does not load it

        done = unit_of_work(lambda: own_sign_ins.done({each.awaited for _, each in asked}))
        return [elicitation_id for elicitation_id, each in asked if each.awaited in done]

    def finish(self, elicitation_ids: list[str]) -> None:
        """Tell the clients that these are done. A client that has no stream now is told if it opens one in time."""
        for elicitation_id in elicitation_ids:
            asked = self._asked.get(elicitation_id)
            if asked is not None and asked.session.outbox is not None:
                del self._asked[elicitation_id]
                message = jsonrpc.notification(COMPLETE, {"elicitationId": elicitation_id})
                asked.session.outbox.put(jsonrpc.encode(message))

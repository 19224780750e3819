"""The outcomes of calls, from the threads of the pool to the rows. Each outcome is written exactly once."""

from __future__ import annotations

import collections
import logging
import threading
import uuid
from collections.abc import Callable, Collection

from django.db import Error, InterfaceError, OperationalError, connection

from mcp_runtime.calls import transitions
from mcp_runtime.calls.slots import requester_of
from mcp_runtime.calls.transitions import ErrorKind, Outcome
from mcp_runtime.rows.database import persistently, short_transaction, unit_of_work
from mcp_runtime.security.limits import in_turn
from roster.models import Call

logger = logging.getLogger("guildhall.runtime")

MAX_BATCH = 16  # outcomes written before the next look at the queue. Each takes about a millisecond
BIG_OUTCOME = 100_000  # characters

CallOutcome = tuple[Call, Outcome]


class OutcomeWriter:
    """Write the outcomes of calls. Any thread adds outcomes. Only the dispatcher's thread calls `write`.

    `after_write(call)` is called once after each.
    """

    def __init__(self, lease_id: uuid.UUID, after_write: Callable[[Call], None]) -> None:
        self._lease_id = lease_id
        self._after_write = after_write
        # Other threads append to the deque, so it cannot be sorted. `write` moves its items into the list.
        self._queue: collections.deque[CallOutcome] = collections.deque()
        self._pending: list[CallOutcome] = []
        self._abandoned_ids: set[int] = set()

    def __bool__(self) -> bool:
        """Return whether any outcome is still to be written."""
        return bool(self._queue or self._pending)

    def add(self, call: Call, outcome: Outcome) -> None:
        self._queue.append((call, outcome))

    def abandon(self, pks: Collection[int]) -> None:
        """Let these calls end as lost, unless they succeed. The runtime is stopping."""
        self._abandoned_ids.update(pks)

    def write(self) -> None:
        """Change at most MAX_BATCH calls from running to finished. Requesters take turns."""
        new_outcomes = [self._queue.popleft() for _ in range(len(self._queue))]
        self._pending = in_turn(self._pending + new_outcomes, lambda item: requester_of(item[0]))
        batch = self._pending[:MAX_BATCH]
        # A commit of PostgreSQL waits for the disk, so there is one for the batch. A commit of SQLite does not wait.
        # There a transaction would hold the lock for writing while the next statement is built.
        for items in [batch] if connection.vendor == "postgresql" else [[item] for item in batch]:
            self._write_first(items)

    def write_big(self, call: Call, outcome: Outcome, lock: threading.Lock) -> None:
        """Write one outcome now, in a thread of the pool, because megabytes take long.

        `lock` belongs to the member, so that only one of its outcomes is written at a time.
        """
        try:
            with lock:
                unit_of_work(lambda: self._write_batch([(call, outcome)]))
        except Error:
            self.add(call, outcome)  # the database is not available. `write` tries again
        else:
            self._complete(call)

    def _write_first(self, items: list[CallOutcome]) -> None:
        """Write `items`, which are the first of the pending outcomes."""
        if items:
            persistently(lambda: self._write_batch(items))
        del self._pending[: len(items)]
        for call, _ in items:
            self._complete(call)

    def _complete(self, call: Call) -> None:
        self._after_write(call)
        self._abandoned_ids.discard(call.pk)

    def _write_batch(self, items: list[CallOutcome]) -> None:
        try:
            if len(items) == 1:  # one statement needs no transaction
                self._write(*items[0])
                return
            with short_transaction():
                for call, outcome in items:
                    self._write(call, outcome)
        except (OperationalError, InterfaceError):
            raise  # the database is not available. The whole batch is written again
        except Exception:  # noqa: BLE001 - logged below, for the call that causes it
            for call, outcome in items:
                self._write_or_replace(call, outcome)

    def _write_or_replace(self, call: Call, outcome: Outcome) -> None:
        """Write the outcome. If the database refuses it, write an error instead, so that this and other calls end."""
        try:
            self._write(call, outcome)
        except (OperationalError, InterfaceError):
            raise
        except Exception as error:
            logger.exception("the result of call %d cannot be stored", call.pk)
            reason = explain(call, f"its result cannot be stored: {error}"[:500])
            self._write(call, Outcome.failed(ErrorKind.PROTOCOL, reason))

    def _write(self, call: Call, outcome: Outcome) -> None:
        if call.pk in self._abandoned_ids and outcome.status != Call.Status.SUCCEEDED:
            outcome = Outcome.failed(ErrorKind.LOST, explain(call, "the runtime was stopped during the call"))
        if not transitions.finish(call, outcome, self._lease_id):
            logger.warning("call %d has already ended; its outcome is not written", call.pk)


def explain(call: Call, reason: str) -> str:
    """Return `reason` with the names of the tool and the member."""
    return f"tool {call.tool_name!r} of member {call.member.name!r}: {reason}"

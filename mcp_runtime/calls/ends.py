"""The ends of calls, from the threads of the pool until they are written down. None is lost, none is written twice."""

from __future__ import annotations

import collections
import logging
import threading
import uuid
from collections.abc import Callable, Collection

from django.db import Error, InterfaceError, OperationalError, connection, transaction

from mcp_runtime.calls import invocations
from mcp_runtime.calls.invocations import ErrorKind, Outcome
from mcp_runtime.calls.slots import requester_of
from mcp_runtime.rows.database import persistently, unit_of_work
from mcp_runtime.security.limits import in_turn
from roster.models import Invocation

logger = logging.getLogger("guildhall.runtime")

AT_ONCE = 16  # that are written before the queue is looked at again: each takes about a millisecond
BIG_ANSWER = 100_000  # characters

End = tuple[Invocation, Outcome]


class Ends:
    """Any thread adds ends, and only the dispatcher's writes them. `after_write(invocation)` follows each, once."""

    def __init__(self, lease_id: uuid.UUID, after_write: Callable[[Invocation], None]) -> None:
        self._lease_id = lease_id
        self._after_write = after_write
        # The ends that others add, and those that this thread took: a deque that others add to cannot be searched.
        self._new_ends: collections.deque[End] = collections.deque()
        self._unwritten: list[End] = []
        self._abandoned: set[int] = set()

    def __bool__(self) -> bool:
        """Whether any is left to be written."""
        return bool(self._new_ends or self._unwritten)

    def add(self, invocation: Invocation, outcome: Outcome) -> None:
        self._new_ends.append((invocation, outcome))

    def abandon(self, pks: Collection[int]) -> None:
        """Calls that the stop of the runtime ends: unless they succeed, they end as lost."""
        self._abandoned.update(pks)

    def write(self) -> None:
        """running -> finished, for some of those that were added: in turn for each requester."""
        new_ends = [self._new_ends.popleft() for _ in range(len(self._new_ends))]
        self._unwritten = in_turn(self._unwritten + new_ends, lambda end: requester_of(end[0]))
        ends = self._unwritten[:AT_ONCE]
        # A commit of PostgreSQL's waits for the disk. One of SQLite's does not, and whoever writes waits for its lock,
        # which a transaction would hold while it puts the next statement together.
        for some in [ends] if connection.vendor == "postgresql" else [[end] for end in ends]:
            self._write_first(some)

    def write_big(self, invocation: Invocation, outcome: Outcome, turn: threading.Lock) -> None:
        """Write it now, in a thread of the pool, one after the other for a member, because megabytes take long."""
        try:
            with turn:
                unit_of_work(lambda: self._write_together([(invocation, outcome)]))
        except Error:
            self.add(invocation, outcome)  # the database is away: to be written with the others
        else:
            self._finish_end(invocation)

    def _write_first(self, ends: list[End]) -> None:
        """`ends` are the first of those that are not written."""
        if ends:
            persistently(lambda: self._write_together(ends))
        del self._unwritten[: len(ends)]
        for invocation, _ in ends:
            self._finish_end(invocation)

    def _finish_end(self, invocation: Invocation) -> None:
        self._after_write(invocation)
        self._abandoned.discard(invocation.pk)

    def _write_together(self, ends: list[End]) -> None:
        try:
            if len(ends) == 1:  # a transaction of its own anyway
                self._write(*ends[0])
                return
            with transaction.atomic():
                for invocation, outcome in ends:
                    self._write(invocation, outcome)
        except (OperationalError, InterfaceError):
            raise  # the database is away: all of it again
        except Exception:  # noqa: BLE001 - said below, by the one that is the reason
            for invocation, outcome in ends:
                self._write_whatever_it_takes(invocation, outcome)

    def _write_whatever_it_takes(self, invocation: Invocation, outcome: Outcome) -> None:
        """A result that the database will not have must not keep others from ending, nor its own call."""
        try:
            self._write(invocation, outcome)
        except (OperationalError, InterfaceError):
            raise
        except Exception as error:
            logger.exception("the result of invocation %d cannot be stored", invocation.pk)
            reason = explain(invocation, f"its answer cannot be stored: {error}"[:500])
            self._write(invocation, Outcome.failed(ErrorKind.PROTOCOL, reason))

    def _write(self, invocation: Invocation, outcome: Outcome) -> None:
        if invocation.pk in self._abandoned and outcome.status != Invocation.Status.SUCCEEDED:
            outcome = Outcome.failed(ErrorKind.LOST, explain(invocation, "the runtime was stopped while it ran"))
        if not invocations.finish(invocation, outcome, self._lease_id):
            logger.warning("invocation %d was ended by somebody else meanwhile", invocation.pk)


def explain(invocation: Invocation, reason: str) -> str:
    return f"tool {invocation.tool_name!r} of member {invocation.member.name!r}: {reason}"

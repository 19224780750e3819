"""Which queued calls may run now: slots of the hall, of each member, and of each requester in them.

No thread waits for a free slot: rows that may have none stay queued, and the next look at the queue passes over them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from mcp_runtime.calls.statements import Exclusions
from mcp_runtime.security.limits import Owner, Slots
from roster.models import Invocation

# Queued calls that wait for a slot: of a member, of a requester, or (neither None) of a requester in a member.
_Line = tuple[int | None, Owner | None]


def requester_of(invocation: Invocation) -> Owner:
    return invocation.requested_by_id, invocation.token_id


class CallSlots:
    """The slots of one hall with `concurrency` of them. One thread takes; any gives back."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._lock = threading.Lock()
        self._hall = Slots(concurrency)
        self._members: dict[int, Slots] = {}
        self._full: dict[_Line, tuple[int, int, Owner]] = {}  # whose rows wait for a slot -> one that does

    def calls_in(self, member_id: int) -> int:
        slots = self._members.get(member_id)
        return slots.held if slots else 0

    @property
    def lines(self) -> int:
        """How many there are of those whose calls wait for a slot."""
        return len(self._full)

    def try_take(self, row: Invocation) -> bool:
        """Whether the call has its slots now; else it is excluded until `look_again`."""
        request = row.member_id, int(row.member.manifest.get("max_concurrency", 16)), requester_of(row)
        if line := self._in_the_way(*request):
            self._full[line] = request
            return False
        with self._lock:
            self._hall.take(requester_of(row))
            self._members[row.member_id].take(requester_of(row))
        return True

    def give_back(self, invocation: Invocation) -> None:
        with self._lock:
            self._hall.give_back(requester_of(invocation))
            self._members[invocation.member_id].give_back(requester_of(invocation))

    def look_again(self) -> None:
        """Exclude only those that could have no slot now."""
        self._full = {line: request for line, request in self._full.items() if self._in_the_way(*request) == line}

    def exclusions(self, members: Iterable[int]) -> Exclusions:
        """Whose rows wait for a slot, and the `members` whose calls wait for something else."""
        waiting: dict[Owner, set[int | None]] = {}  # requesters -> in which members; None: in all
        full = set(members)
        for member_id, requester in self._full:
            if requester is not None:
                waiting.setdefault(requester, set()).add(member_id)
            elif member_id is not None:
                full.add(member_id)
        return Exclusions(frozenset(full), frozenset((one, _members(of_one)) for one, of_one in waiting.items()))

    def _in_the_way(self, member_id: int, count: int, requester: Owner) -> _Line | None:
        """Whose calls must wait, if this requester's call in this member must; the member has `count` slots.

        Neither members whose calls hang nor requesters may take every slot of the hall. No member gets more than half.
        The last quarter is for members in which nothing runs, half of it also for requesters of whom nothing runs, and
        the last sixteenth of all for these requesters alone. Requesters share the slots of each member, see `Slots`.
        """
        hall, member = self._hall, self._members.setdefault(member_id, Slots(0))
        member.count = min(count, max(self._concurrency // 2, 1))
        reserve, last_slots = self._concurrency // 4, max(self._concurrency // 16, int(self._concurrency > 1))
        holds = hall.held_by(requester) > 0
        if holds and hall.free <= last_slots:
            return None, requester
        if member.free <= 0 or (member.held and hall.free <= reserve // 2):
            return member_id, None
        if not member.may_take(requester) or (member.held and holds and hall.free <= reserve):
            return member_id, requester
        return None


def _members(ids: set[int | None]) -> frozenset[int] | None:
    return None if None in ids else frozenset(one for one in ids if one is not None)

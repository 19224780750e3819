"""Decide which queued calls may run now. The hall has slots, each member has slots, and requesters share them.

No thread waits for a free slot. A row without a slot stays queued, and the next look at the queue excludes it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from mcp_runtime.calls.queue_search import Exclusions
from mcp_runtime.security.limits import Owner, Slots
from roster.models import Call

# A group of queued calls that waits for a slot: the calls of a member (member, None), of a requester (None, requester),
# or of a requester in a member (member, requester).
_Group = tuple[int | None, Owner | None]


def requester_of(call: Call) -> Owner:
    return call.requested_by_id, call.token_id


class CallSlots:
    """The `concurrency` slots of one hall. Only one thread reserves slots. Any thread releases them."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._lock = threading.Lock()
        self._hall = Slots(concurrency)
        self._members: dict[int, Slots] = {}
        # The arguments of `_blocking_group` for one call of each group that waits.
        self._waiting_groups: dict[_Group, tuple[int, int, Owner]] = {}

    def calls_in(self, member_id: int) -> int:
        """Return the number of slots of this member that are in use."""
        slots = self._members.get(member_id)
        return slots.in_use if slots else 0

    @property
    def waiting_group_count(self) -> int:
        return len(self._waiting_groups)

    def try_reserve(self, row: Call) -> bool:
        """Reserve the slots of a call. If it must wait, return False, and exclude its group until `recheck`."""
        request = row.member_id, int(row.member.manifest.get("max_concurrency", 16)), requester_of(row)
        if group := self._blocking_group(*request):
            self._waiting_groups[group] = request
            return False
        with self._lock:
            self._hall.take(requester_of(row))
            self._members[row.member_id].take(requester_of(row))
        return True

    def release(self, call: Call) -> None:
        with self._lock:
            self._hall.give_back(requester_of(call))
            self._members[call.member_id].give_back(requester_of(call))

    def recheck(self) -> None:
        """Stop excluding the groups that can have a slot now."""
        self._waiting_groups = {
            group: request for group, request in self._waiting_groups.items() if self._blocking_group(*request) == group
        }

    def exclusions(self, members: Iterable[int]) -> Exclusions:
        """Return the exclusions for the groups that wait, and for all calls of `members`."""
        members_of_requester: dict[Owner, set[int | None]] = {}  # None stands for all members
        all_members = set(members)
        for member_id, requester in self._waiting_groups:
            if requester is not None:
                members_of_requester.setdefault(requester, set()).add(member_id)
            elif member_id is not None:
                all_members.add(member_id)
        requesters = ((requester, _member_ids(ids)) for requester, ids in members_of_requester.items())
        return Exclusions(frozenset(all_members), frozenset(requesters))

    def _blocking_group(self, member_id: int, count: int, requester: Owner) -> _Group | None:
        """Return the group that must wait with this requester's call in this member, or None if the call may run.

        The member has `count` slots, but at most half of the hall's. Neither members whose calls hang nor requesters
        may use all slots of the hall:

        - The last quarter is for members in which no call runs.
        - Half of this quarter is also for requesters that have no running call.
        - The last sixteenth of all slots is for such requesters only.

        Requesters share the slots of each member, see `Slots`.
        """
        hall, member = self._hall, self._members.setdefault(member_id, Slots(0))
        member.count = min(count, max(self._concurrency // 2, 1))
        reserve, last_slots = self._concurrency // 4, max(self._concurrency // 16, int(self._concurrency > 1))
        has_running_calls = hall.count_of(requester) > 0
        if has_running_calls and hall.free <= last_slots:
            return None, requester
        if member.free <= 0 or (member.in_use and hall.free <= reserve // 2):
            return member_id, None
        if not member.may_take(requester) or (member.in_use and has_running_calls and hall.free <= reserve):
            return member_id, requester
        return None


def _member_ids(ids: set[int | None]) -> frozenset[int] | None:
    return None if None in ids else frozenset(pk for pk in ids if pk is not None)

"""Find the queued calls that may run now."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mcp_runtime.calls.statements import active_calls
from mcp_runtime.rows.compiled_queries import CompiledQuery
from mcp_runtime.security.limits import Owner
from roster.models import Call

MAX_REQUESTERS = 250  # excluded by one query. SQLite limits the length of a condition
_TABLE = Call._meta.db_table


@dataclass(frozen=True)
class Exclusions:
    """The members and requesters whose queued calls a search excludes."""

    members: frozenset[int] = frozenset()
    # Each with the members whose calls are excluded. None stands for all members.
    requesters: frozenset[tuple[Owner, frozenset[int] | None]] = frozenset()

    def cover(self, other: Exclusions) -> bool:
        """Whether every call that `other` excludes is excluded here too."""
        if self == other:
            return True
        members_of_requester = dict(self.requesters)
        return other.members <= self.members and all(
            (excluded := members_of_requester.get(requester, frozenset())) is None
            or (members is not None and members <= excluded | self.members)
            for requester, members in other.requesters
        )


class QueueSearch:
    """Searches of the queue by the runtime that holds the lease. One thread calls `find`, any thread the others.

    While all slots are in use, every search has an empty result, and reads the whole queue for it. So after two,
    searches that exclude the same calls read only newer calls, and nothing until `note_new_calls`.

    `forget` is necessary when an older call may be found: its member has a new owner, or its transaction was committed
    late. So it is called at every sweep, too.
    """

    def __init__(self, lease_id: uuid.UUID) -> None:
        self._lease_id = lease_id
        self._versions = itertools.count(1)
        self._version = 0
        self._has_new_calls = True
        # The last search of the whole queue that had no result: the version, the exclusions, and the id of a call. All
        # calls with ids up to this one were searched. 0 if it is not known.
        self._last_empty = (-1, Exclusions(), 0)

    def forget(self) -> None:
        """Let the next search read the whole queue."""
        self._version = next(self._versions)

    def note_new_calls(self) -> None:
        """Let the next search read the calls that are newer than the last one."""
        self._has_new_calls = True

    def find(self, exclusions: Exclusions, limit: int) -> list[Call]:
        """Return the oldest queued calls of own members, at most `limit`, with the columns of the dispatcher."""
        version = self._version
        last_version, last_exclusions, last_id = self._last_empty
        is_repeated = version == last_version and exclusions.cover(last_exclusions)
        if is_repeated and not self._has_new_calls:
            return []
        self._has_new_calls = False
        if is_repeated and last_id:
            rows = find_queued(self._lease_id, exclusions, limit, after=last_id)
        else:
            newest_id = _newest_id() if is_repeated else 0  # read before the search, and only if it will be of use
            rows = find_queued(self._lease_id, exclusions, limit)
            if not rows:
                self._last_empty = version, exclusions, newest_id
        if rows:  # which may have no free slots, or not be claimed
            self._has_new_calls = True
        return rows


def _newest_id() -> int:
    return Call.objects.order_by("-pk").values_list("pk", flat=True).first() or 0


def find_queued(lease_id: uuid.UUID, exclusions: Exclusions, limit: int, after: int = 0) -> list[Call]:
    """Return the oldest queued calls of own members with ids above `after`, at most `limit`."""
    parts = list(_conditions(exclusions, after))
    ending = "".join(f" AND {condition}" for condition, _ in parts) + f" ORDER BY {_TABLE}.status, {_TABLE}.id"
    return _queue_query(lease_id).read(
        limit=limit, ending=ending, ending_values=[value for _, values in parts for value in values]
    )


@lru_cache(8)
def _queue_query(lease_id: uuid.UUID) -> CompiledQuery[Call]:
    return CompiledQuery(
        # Not "= 'queued'", which would make an order by id alone. If many calls were queued when PostgreSQL made its
        # statistics, it would then read the primary key from its begin, with all finished calls.
        lambda: active_calls().filter(status__lte=Call.Status.QUEUED, member__lease_id=lease_id).order_by(),
        columns=("member_id", "tool_name", "arguments", "timeout", "secret_paths", "requested_by_id", "token_id"),
        related={"member": ("name", "manifest")},
    )


def _conditions(exclusions: Exclusions, after: int) -> Iterator[tuple[str, Collection[Any]]]:
    """The conditions in SQL, each with its values. Django would generate most of them again, as they change often."""
    if after:
        yield f"{_TABLE}.id > %s", [after]
    if exclusions.members:
        yield f"NOT {_is_in('member_id', exclusions.members)}", exclusions.members
    for (user_id, token_id), members in itertools.islice(exclusions.requesters, MAX_REQUESTERS):
        names = {"requested_by_id": user_id, "token_id": token_id}
        conditions = [_equals(name, value) for name, value in names.items()]
        values: list[Any] = [value for value in names.values() if value is not None]
        if members is not None:
            conditions.append(_is_in("member_id", members))
            values += members
        yield f"NOT ({' AND '.join(conditions)})", values


def _equals(column: str, value: int | None) -> str:
    """A condition that is never NULL, so that it can be negated."""
    return f"{_TABLE}.{column} IS NULL" if value is None else f"COALESCE({_TABLE}.{column} = %s, FALSE)"


def _is_in(column: str, values: Collection[int]) -> str:
    return f"{_TABLE}.{column} IN ({', '.join(['%s'] * len(values))})"

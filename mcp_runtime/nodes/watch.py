"""Decides which other nodes are gone, and when a node itself must have ended its members.

No decision uses a wall clock, and no moment of one machine is compared with a moment of another. A node watches the
lease and the beats of the others, and measures on its own clock for how long they do not change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

GONE_SECONDS = 8.0
LONGEST_GAP = 2.0
# A node ends its members this long after it sent its last successful renewal. The others take them after GONE_SECONDS,
# counted from their first look at this renewal, which is later. The 3 s in between are for:
# - clocks that differ by 1 %: 0.13 s
# - the guard's poll: 0.25 s
# - the end of the processes after SIGKILL, and a busy machine: the other 2.6 s
FENCE_SECONDS = 5.0

# The lease of a node's runtime, None if it has none, and the number of renewals.
Pair = tuple[UUID | None, int]


def is_fenced(renewal_sent_at: float, now: float) -> bool:
    """Whether the guard must end the worker and all members now. Both moments are of the node's CLOCK_BOOTTIME.

    `renewal_sent_at` is the moment before the last successful renewal was sent. Taking the lease is the first renewal.
    """
    return now - renewal_sent_at >= FENCE_SECONDS


@dataclass(slots=True)
class _Sight:
    pair: Pair
    since: float
    is_first: bool = True  # of this node since the watch began, or since a gap


class NodeWatch:
    """What one node has seen of the other nodes."""

    def __init__(self) -> None:
        self._sights: dict[str, _Sight] = {}
        self._last_look = 0.0

    def look(self, pairs: Mapping[str, Pair], now: float, draining: Collection[str] = ()) -> set[str]:
        """Return the names of the nodes that are gone.

        `pairs` are the other nodes, as the database shows them. `now` is the caller's monotonic clock after the query
        returned. A node can renew its lease during the query, so with an earlier `now` it would count as gone too
        early. `draining` names the nodes that are being emptied. Nobody waits for such a node once it has released its
        lease.
        """
        if now - self._last_look > LONGEST_GAP:
            # The database may have been away, for the other nodes too. They get the time to renew.
            self._sights.clear()
        self._last_look = now
        self._sights = {name: self._sight(name, pair, now) for name, pair in pairs.items()}
        return {
            name
            for name, sight in self._sights.items()
            if now - sight.since >= GONE_SECONDS or (sight.pair[0] is None and name in draining)
        }

    def has_renewed(self, name: str) -> bool:
        """Whether this watch has seen a renewal of the node, so that it was alive at most GONE_SECONDS ago."""
        sight = self._sights.get(name)
        return sight is not None and not sight.is_first and sight.pair[0] is not None

    def _sight(self, name: str, pair: Pair, now: float) -> _Sight:
        sight = self._sights.get(name)
        if sight is None:
            return _Sight(pair, now)
        if pair != sight.pair and not _is_loss(sight.pair, pair):
            return _Sight(pair, now, is_first=False)
        sight.pair = pair
        return sight


def _is_loss(before: Pair, after: Pair) -> bool:
    """Whether the lease of a node was revoked, and nothing else changed.

    Another node revokes it when it sees that the node is gone. The wait then continues. It does not begin again,
    because the members would wait for GONE_SECONDS twice.
    """
    return after == (None, before[1])

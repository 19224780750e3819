"""Which nodes are gone for a node that watches them, and when a node must have ended its own members."""

from __future__ import annotations

import uuid

import pytest

from mcp_runtime.nodes.watch import FENCE_SECONDS, GONE_SECONDS, LONGEST_GAP, NodeWatch, Pair, is_fenced
from mcp_runtime.runtime import guard

LEASE, NEXT_LEASE = uuid.UUID(int=1), uuid.UUID(int=2)


def looks(watch: NodeWatch, pair: Pair, first: float, last: float, draining: tuple[str, ...] = ()) -> list[float]:
    """Look each second from `first` to `last`. Returns the moments at which the node was gone."""
    moments = [first + second for second in range(int(last - first) + 1)]
    return [moment for moment in moments if watch.look({"a": pair}, moment, draining)]


@pytest.fixture
def watch() -> NodeWatch:
    return NodeWatch()


@pytest.mark.parametrize("lease", [LEASE, None], ids=["held", "released"])
def test_a_node_is_gone_after_the_same_pair_was_seen_for_eight_seconds(
    watch: NodeWatch, lease: uuid.UUID | None
) -> None:
    assert looks(watch, (lease, 7), 100, 110) == [108, 109, 110]


def test_a_node_that_renews_is_never_gone(watch: NodeWatch) -> None:
    assert not any(watch.look({"a": (LEASE, beat)}, 100.0 + beat) for beat in range(30))


def test_a_renewal_or_a_new_lease_brings_a_gone_node_back(watch: NodeWatch) -> None:
    assert looks(watch, (LEASE, 7), 100, 108) == [108]
    assert looks(watch, (LEASE, 8), 109, 117) == [117]
    assert looks(watch, (NEXT_LEASE, 9), 118, 126) == [126]


def test_a_gone_node_stays_gone_when_its_lease_is_revoked(watch: NodeWatch) -> None:
    assert looks(watch, (LEASE, 7), 100, 108) == [108]
    assert looks(watch, (None, 7), 109, 110) == [109, 110]


def test_a_node_that_another_node_saw_gone_earlier_needs_no_second_wait(watch: NodeWatch) -> None:
    assert looks(watch, (LEASE, 7), 100, 104) == []
    assert looks(watch, (None, 7), 105, 109) == [108, 109]


def test_a_node_that_released_its_lease_with_a_beat_has_the_whole_time_to_start_again(watch: NodeWatch) -> None:
    looks(watch, (LEASE, 7), 100, 104)
    assert looks(watch, (None, 8), 105, 113) == [113]
    assert looks(watch, (NEXT_LEASE, 9), 114, 121) == []


def test_nobody_waits_for_a_draining_node_without_a_lease(watch: NodeWatch) -> None:
    assert looks(watch, (LEASE, 7), 100, 101, draining=("a",)) == []
    assert looks(watch, (None, 8), 102, 102, draining=("a",)) == [102]


def test_after_a_gap_in_the_looks_the_time_starts_again(watch: NodeWatch) -> None:
    looks(watch, (LEASE, 7), 100, 107)
    resumed_at = 107 + LONGEST_GAP + 0.1
    assert watch.look({"a": (LEASE, 7)}, resumed_at) == set()
    assert looks(watch, (LEASE, 7), resumed_at + 1, resumed_at + 8) == [resumed_at + GONE_SECONDS]


def test_the_longest_gap_is_still_no_gap(watch: NodeWatch) -> None:
    moments = [100 + LONGEST_GAP * look for look in range(5)]
    assert [watch.look({"a": (LEASE, 7)}, moment) for moment in moments][-1] == {"a"}


def test_each_node_has_its_own_time(watch: NodeWatch) -> None:
    for second in range(9):
        gone = watch.look({"a": (LEASE, 7), "b": (NEXT_LEASE, second)}, 100.0 + second)
    assert gone == {"a"}


def test_a_node_whose_row_was_deleted_is_forgotten(watch: NodeWatch) -> None:
    looks(watch, (LEASE, 7), 100, 107)
    watch.look({}, 108)
    assert watch.look({"a": (LEASE, 7)}, 109) == set()


def test_a_clock_that_starts_at_zero_or_below_makes_no_node_gone(watch: NodeWatch) -> None:
    assert looks(watch, (LEASE, 7), -3, 4) == []


def test_a_node_is_fenced_five_seconds_after_it_sent_its_last_successful_renewal() -> None:
    assert not is_fenced(100.0, 100.0 + FENCE_SECONDS - 0.01)
    assert is_fenced(100.0, 100.0 + FENCE_SECONDS)


def test_a_fenced_node_has_ended_its_members_before_another_takes_them() -> None:
    drift, guard_poll, kill = 0.01, 0.25, 2.6
    assert (FENCE_SECONDS + guard_poll) * (1 + drift) + kill < GONE_SECONDS * (1 - drift)


def test_the_guard_and_the_simulation_have_the_same_fence() -> None:
    assert guard.FENCE_SECONDS == FENCE_SECONDS

"""Promises of a hall with several nodes, in thousands of simulated runs with faults.

`Violation` names the seed. `SimulatedHall(seed).run()` repeats the run exactly.
"""

from __future__ import annotations

import os

import pytest

from mcp_runtime.nodes import watch
from tests.unit.mcp_runtime.nodes.simulated_rows import Protocol
from tests.unit.mcp_runtime.nodes.simulation import SimulatedHall, Violation

SEEDS = 10_000
# How many must keep the promises. At home fewer are enough, because only a change of the protocol can break them.
KEPT_SEEDS = SEEDS if os.environ.get("CI") == "true" else 2_000
CHUNKS = 10


def run_until_violation(protocol: Protocol) -> None:
    for seed in range(SEEDS):
        SimulatedHall(seed, protocol).run()


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_member_has_two_processes_no_call_is_sent_twice_and_all_recover(chunk: int) -> None:
    for seed in range(chunk, KEPT_SEEDS, CHUNKS):
        SimulatedHall(seed).run()


def test_a_seed_repeats_its_run() -> None:
    first, second = SimulatedHall(7), SimulatedHall(7)
    first.run()
    second.run()
    assert first.starts
    assert first.starts == second.starts


def test_jumps_of_the_wall_clock_change_nothing() -> None:
    for seed in range(50):
        steady, jumping = SimulatedHall(seed, wall_clocks_jump=False), SimulatedHall(seed)
        steady.run()
        jumping.run()
        assert jumping.starts == steady.starts, seed


# What the simulation finds, if one part of the protocol is missing -----------------------------------------------


def test_without_the_fence_a_member_has_two_processes() -> None:
    with pytest.raises(Violation, match="still runs on"):
        run_until_violation(Protocol(has_fence=False))


@pytest.mark.parametrize("seconds", [3.0, 6.0])
def test_if_nodes_are_gone_too_early_a_member_has_two_processes(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(watch, "GONE_SECONDS", seconds)
    with pytest.raises(Violation, match="still runs on"):
        run_until_violation(Protocol())


def test_if_a_claim_has_no_condition_a_member_has_two_processes() -> None:
    with pytest.raises(Violation, match="still runs on"):
        run_until_violation(Protocol(has_claim_condition=False))


def test_if_members_have_no_version_the_late_commit_of_a_transfer_gives_a_member_two_processes() -> None:
    """A node gives a member away, gets no answer, and starts it again. Then the statement commits."""
    with pytest.raises(Violation, match="still runs on"):
        run_until_violation(Protocol(has_versions=False))


def test_if_a_transfer_does_not_compare_the_lease_of_its_target_a_member_can_stay_without_a_process() -> None:
    """The target took a new lease in between. The member belongs to it, but with its old lease."""
    with pytest.raises(Violation, match="does not run"):
        run_until_violation(Protocol(has_target_condition=False))


def test_if_a_node_without_a_fence_is_revoked_a_member_has_two_processes() -> None:
    """The node was alone, and lost the database before it could learn of the node that takes its members."""
    with pytest.raises(Violation, match="still runs on"):
        run_until_violation(Protocol(has_fence_in_row=False))

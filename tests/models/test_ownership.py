"""The model of a member's owner (`ownership.pml`) in SPIN, which tries all orders of its steps."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import needs_program

MODEL = Path(__file__).parent / "ownership.pml"
# Depths of the searches, above those that they reach, and megabytes of memory.
SAFETY = (["-DSAFETY"], ["-m1000000"])
LIVENESS = (["-DNFAIR=5"], ["-m400000", "-a", "-f"])  # acceptance cycles, with weak fairness of 16 processes
MEGABYTES = 2000

# Half a minute on an idle core, and several times as long on a busy one.
pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Search:
    output: str

    @property
    def has_found_an_error(self) -> bool:
        return "errors: 1" in self.output

    @property
    def is_complete(self) -> bool:
        cut_short = ("Search not completed", "max search depth too small", "out of memory", "MEMLIM")
        return "errors: 0" in self.output and not any(text in self.output for text in cut_short)

    @property
    def unreached(self) -> list[str]:
        """The steps of the model that never happened, except the ends of its processes, which have none."""
        steps = [line for line in self.output.splitlines() if ".pml:" in line and ", state " in line]
        return [step for step in steps if "-end-" not in step]


def search(folder: Path, *switches: str) -> Search:
    spin, compiler = needs_program("spin"), needs_program("gcc")
    compiled, options = LIVENESS if "LIVENESS" in switches else SAFETY
    run(folder, spin, "-a", *(f"-D{switch}" for switch in switches), str(MODEL))
    # Every step reads and writes what all share, so a reduction of the orders would find nothing to leave out.
    run(folder, compiler, "-O2", "-w", "-DNOREDUCE", f"-DMEMLIM={MEGABYTES}", *compiled, "-o", "pan", "pan.c")
    return Search(run(folder, "./pan", "-w23", *options))


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_member_never_has_two_processes_and_no_call_is_sent_twice_or_after_its_end(tmp_path: Path) -> None:
    result = search(tmp_path, "CALLS")
    assert result.is_complete, result.output
    assert not result.unreached


def test_a_frozen_machine_gives_a_member_a_second_process_only_until_its_guard_acts(tmp_path: Path) -> None:
    result = search(tmp_path, "FREEZES")
    assert result.is_complete, result.output
    assert not result.unreached


def test_a_member_gets_an_owner_if_one_node_lives_for_ever(tmp_path: Path) -> None:
    result = search(tmp_path, "LIVENESS")
    assert result.is_complete, result.output


# What SPIN finds if one part of the protocol is wrong --------------------------------------------------------------


@pytest.mark.parametrize("switch", ["SLOW_FENCE", "ANSWER_COUNTS", "NO_VERSIONS"])
def test_with_an_error_in_the_protocol_a_member_has_two_processes(tmp_path: Path, switch: str) -> None:
    result = search(tmp_path, switch)
    assert result.has_found_an_error, result.output
    assert "assertion violated" in result.output


def test_if_a_transfer_does_not_compare_the_lease_of_its_target_a_member_can_stay_without_an_owner(
    tmp_path: Path,
) -> None:
    result = search(tmp_path, "LIVENESS", "NO_TARGET_LEASE")
    assert result.has_found_an_error, result.output
    assert "acceptance cycle" in result.output

"""`make storm`: kills a hall of twenty members under load, part by part. Exit status 0 only if every promise holds.

    python -m tests.storm                   ten minutes
    python -m tests.storm --seconds 60      for continuous integration
    python -m tests.storm --seed 7          the same faults in the same order

Members and clients each keep a ledger, and tests/storm/reckoning.py compares them. The report is in
tests/storm/report/: storm.md, storm.svg, both ledgers, and the hall's log.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import psutil

from tests.storm import figures, report, vitals
from tests.storm.hall import StormHall, hall_in_storm
from tests.storm.ledger import read_effects, read_records
from tests.storm.load import Load, settle
from tests.storm.member_faults import FAULTS as MEMBER_FAULTS
from tests.storm.part_faults import FAULTS as PART_FAULTS
from tests.storm.reckoning import ALL, LEFT_SECONDS, accepted_within, answered_since, reckon
from tests.storm.services import storm_database
from tests.storm.striking import Fault, Scene, wait_until
from tests.storm.world_faults import faults_for

REPORT = Path(__file__).parent / "report"
RATE = 40.0  # calls a second
SETTLE_SECONDS = 45.0
MAX_OTHER_LOAD = 0.15  # of the machine. With more load the recovery of the runtime is not measured
BACK_SECONDS = 40.0  # after the last fault, for every member, including those that crash by themselves
LAST_CALLS_SECONDS = 3.0  # so that recovered members get calls
KILLS_A_MINUTE, ACCEPTED_A_SECOND = 5, 5  # at least, because less is no storm. Two cores manage 20 to 30 calls
TRIES_AGAIN = 3  # for a fault that could not be fired at once
MEMBERS_ALONE_SECONDS = 20.0  # at most, in each round
LONG_SECONDS = 300.0  # a storm that lasts as long also measures the recovery of the runtime, and memory


def main() -> int:
    parser = argparse.ArgumentParser(prog="make storm")
    parser.add_argument("--seconds", type=float, default=600.0, help="of faults; the whole storm takes about 30 s more")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="by default another one each time")
    options = parser.parse_args()
    end_on_signals()
    shutil.rmtree(REPORT, ignore_errors=True)
    (REPORT / "clients").mkdir(parents=True)
    command = f'make storm ARGS="--seconds {options.seconds:g} --seed {options.seed}"'
    print(command, flush=True)
    other_load = measure_other_load()
    with (
        storm_database(os.environ.get("DATABASE_URL", "")) as database_url,
        hall_in_storm(
            REPORT / "hall.log", database_url=database_url, redis_url=os.environ.get("REDIS_URL", "")
        ) as hall,
    ):
        try:
            storm = run(hall, options.seconds, options.seed, command, other_load)
        finally:
            shutil.copytree(hall.ledgers, REPORT / "members")
    report.write(storm, REPORT)
    for figure in storm.figures:
        print(f"{figure.name:<70} {figure.value:<34} {figure.bound:<18} {'holds' if figure.holds else 'BROKEN'}")
    print(f"report: {REPORT / 'storm.md'}")
    print(storm.last_line)
    return 0 if storm.holds else 1


def end_on_signals() -> None:
    """The first signal ends this process and the hall. Later signals of a terminal do not interrupt that."""

    def end(signal_number: int, frame: FrameType | None) -> None:
        for ignored_signal in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(ignored_signal, signal.SIG_IGN)
        sys.exit(128 + signal_number)

    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, end)


def run(hall: StormHall, seconds: float, seed: int, command: str, other_load: float) -> report.Storm:
    ledger_folder, is_long = REPORT / "clients", seconds >= LONG_SECONDS
    scene, load = Scene(hall, is_long), Load(hall, ledger_folder, seed, RATE)
    world_faults, not_tried = faults_for(hall)
    if other_load > MAX_OTHER_LOAD:
        not_tried.append(f"the recovery of the runtime: other programs used {other_load:.0%} of the machine")
    general_faults = [*PART_FAULTS, *world_faults]
    vitals.make_calls(hall, ledger_folder / "before", vitals.BEFORE, hall.names)
    vitals_before = vitals.vitals(hall)
    began_at = time.monotonic()
    load.start()
    try:
        run_faults(scene, seconds, seed, general_faults)
        missing_members = find_missing_members(hall)
    finally:
        load.stop()
    storm_seconds = time.monotonic() - began_at
    vitals.make_calls(hall, ledger_folder / "after", vitals.BEFORE, hall.names)
    resource_figures = vitals.held(vitals_before, vitals.vitals(hall))
    if is_long:
        resource_figures.append(measure_memory(hall, ledger_folder))
    else:
        not_tried.append(f"memory after many calls: only in a storm of {LONG_SECONDS:g} s or more")
    records = settle(hall, read_records(ledger_folder), SETTLE_SECONDS)
    for strike in scene.strikes:
        members = hall.well() if strike.member == ALL else [strike.member]
        strike.answered_at = answered_since(records, strike, members)
    reckoning = reckon(records, read_effects(hall.ledgers), scene.strikes)
    kinds = [fault.name for fault in (*MEMBER_FAULTS, *general_faults)]
    all_figures = [
        *figures.promises(reckoning),
        *figures.remains(scene.strikes),
        *stop_and_count(hall),
        figures.none_of("times that `manage.py up` exited unexpectedly", scene.ended),
        figures.none_of("members ended by a hall on a copy of the database", scene.ended_by_copies),
        *figures.truth_of_the_roster(scene.looks, scene.untrue),
        figures.none_of(f"members that were not back {BACK_SECONDS:g} s after the storm", missing_members),
        *figures.recoveries(scene.strikes, has_bound=is_long and other_load <= MAX_OTHER_LOAD),
        *figures.every_recovery(scene.strikes),
        *resource_figures,
        *figures.happened(
            scene.strikes,
            kinds,
            int(seconds / 60 * KILLS_A_MINUTE),
            accepted_within(records, began_at, storm_seconds),
            int(storm_seconds * ACCEPTED_A_SECOND),
        ),
        figures.none_of("faults of the storm itself", load.faults + scene.faults),
    ]
    return report.Storm(command, began_at, storm_seconds, all_figures, reckoning, scene.strikes, records, not_tried)


def measure_other_load() -> float:
    """The share of the machine that other programs use now."""
    return psutil.cpu_percent(interval=3.0) / 100


def measure_memory(hall: StormHall, ledger_folder: Path) -> figures.Figure:
    vitals.make_calls(hall, ledger_folder / "warm", vitals.WARM, hall.well())
    vitals_before = vitals.vitals(hall)
    vitals.make_calls(hall, ledger_folder / "many", vitals.MANY, hall.well())
    return vitals.kept_memory(vitals_before, vitals.vitals(hall))


def find_missing_members(hall: StormHall) -> list[str]:
    """The members that were never connected since the last fault. Calls continue, and start stopped members."""
    names: set[str] = set()

    def are_all_connected() -> bool:
        names.update(hall.connected())
        return names >= set(hall.names)

    wait_until(are_all_connected, BACK_SECONDS)
    time.sleep(LAST_CALLS_SECONDS)
    return [
        f"{name}: {(hall.read(f'/api/members/{name}/') or {}).get('last_error')}" for name in set(hall.names) - names
    ]


def stop_and_count(hall: StormHall) -> list[figures.Figure]:
    stop = hall.stop_whole()
    time.sleep(LEFT_SECONDS)
    processes = [f"process {pid} of {name}" for pid, (_, name) in hall.all_processes().items()]
    return figures.stopped(processes, stop.seconds, stop.status)


def run_faults(scene: Scene, seconds: float, seed: int, general_faults: list[Fault]) -> None:
    """Rounds of faults until time is up. The first round is always complete, so every kind is fired.

    Each round begins with faults of two members at a time, to see their effect on other members. Then every general
    fault is fired, in an order that the seed decides, while faults of members continue. A fault that found nothing to
    hit, or whose thief was too late, is tried again in the first round.
    """
    deadline, rng, is_first = time.monotonic() + seconds, random.Random(seed), True
    while is_first or time.monotonic() < deadline:
        with hit_members(scene, rng), hit_members(scene, rng):
            time.sleep(min(MEMBERS_ALONE_SECONDS, seconds / 5))
        with hit_members(scene, rng):
            for fault in rng.sample(general_faults, len(general_faults)):
                if is_first or time.monotonic() < deadline:
                    scene.fire(fault, rng)
            for fault in general_faults * TRIES_AGAIN if is_first else ():
                if fault.name not in {strike.fault for strike in scene.strikes}:
                    scene.fire(fault, rng)
        is_first = False


@contextlib.contextmanager
def hit_members(scene: Scene, rng: random.Random) -> Iterator[None]:
    """Fire faults of members during the block, one after the other."""
    end, own_rng = threading.Event(), random.Random(rng.random())
    thread = threading.Thread(target=scene.keep_firing, args=(MEMBER_FAULTS, own_rng, end))
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


if __name__ == "__main__":
    sys.exit(main())

"""`make storm`: a hall of twenty members under load while all around it is killed; exit status 0 only when all holds.

    python -m tests.storm                   ten minutes
    python -m tests.storm --seconds 60      for continuous integration
    python -m tests.storm --seed 7          the same faults in the same order

Members and clients each keep a ledger; afterwards they are held against each other (tests/storm/reckoning.py). The
report is in tests/storm/report/: storm.md, storm.svg, both ledgers, and the hall's log.
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
from tests.storm.ledger import read_effects, read_told
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
MOST_OF_OTHERS = 0.15  # of the machine; beside more it does not tell how long the runtime takes
BACK_SECONDS = 40.0  # after the last fault, for every member, those that crash by themselves too
LAST_CALLS_SECONDS = 3.0  # so that who is back is called
KILLS_A_MINUTE, ACCEPTED_A_SECOND = 5, 5  # at least: else it was no storm. Two cores manage 20 to 30 calls
TRIES_AGAIN = 3  # of a fault that could not be fired at once
MEMBERS_ALONE_SECONDS = 20.0  # at most, in each round
LONG_SECONDS = 300.0  # a storm that lasts as long is measured by how long the runtime takes to be back, and by memory


def main() -> int:
    parser = argparse.ArgumentParser(prog="make storm")
    parser.add_argument("--seconds", type=float, default=600.0, help="of faults; all of it takes some 30 s more")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="by default another one each time")
    options = parser.parse_args()
    end_on_signals()
    shutil.rmtree(REPORT, ignore_errors=True)
    (REPORT / "clients").mkdir(parents=True)
    command = f'make storm ARGS="--seconds {options.seconds:g} --seed {options.seed}"'
    print(command, flush=True)
    others = work_of_others()
    with (
        storm_database(os.environ.get("DATABASE_URL", "")) as database_url,
        hall_in_storm(
            REPORT / "hall.log", database_url=database_url, redis_url=os.environ.get("REDIS_URL", "")
        ) as hall,
    ):
        try:
            storm = run(hall, options.seconds, options.seed, command, others)
        finally:
            shutil.copytree(hall.ledgers, REPORT / "members")
    report.write(storm, REPORT)
    for figure in storm.figures:
        print(f"{figure.name:<70} {figure.value:<34} {figure.bound:<18} {'holds' if figure.holds else 'BROKEN'}")
    print(f"report: {REPORT / 'storm.md'}")
    print(storm.last_line)
    return 0 if storm.holds else 1


def end_on_signals() -> None:
    """The first one ends us, and the hall with us; what a terminal sends meanwhile does not stop that."""

    def end(number: int, frame: FrameType | None) -> None:
        for one in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(one, signal.SIG_IGN)
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


def run(hall: StormHall, seconds: float, seed: int, command: str, others: float) -> report.Storm:
    books, is_long = REPORT / "clients", seconds >= LONG_SECONDS
    scene, load = Scene(hall, is_long), Load(hall, books, seed, RATE)
    of_the_world, not_tried = faults_for(hall)
    if others > MOST_OF_OTHERS:
        not_tried.append(f"how long the runtime takes to be back: other programs took {others:.0%} of the machine")
    general = [*PART_FAULTS, *of_the_world]
    vitals.calm(hall, books / "before", vitals.BEFORE, hall.names)
    before = vitals.vitals(hall)
    began_at = time.monotonic()
    load.start()
    try:
        blow(scene, seconds, seed, general)
        missing = absent(hall)
    finally:
        load.stop()
    stormed = time.monotonic() - began_at
    vitals.calm(hall, books / "after", vitals.BEFORE, hall.names)
    measured = vitals.held(before, vitals.vitals(hall))
    if is_long:
        measured.append(memory(hall, books))
    else:
        not_tried.append(f"memory after many calls: only in a storm of {LONG_SECONDS:g} s or more")
    told = settle(hall, read_told(books), SETTLE_SECONDS)
    for strike in scene.strikes:
        members = hall.well() if strike.member == ALL else [strike.member]
        strike.answered_at = answered_since(told, strike, members)
    found = reckon(told, read_effects(hall.ledgers), scene.strikes)
    kinds = [fault.name for fault in (*MEMBER_FAULTS, *general)]
    all_figures = [
        *figures.promises(found),
        *figures.remains(scene.strikes),
        *stopped(hall),
        figures.none_of("times that `manage.py up` ended by itself", scene.ended),
        figures.none_of("members ended by a hall on a copy of the database", scene.ended_by_copies),
        *figures.truth_of_the_roster(scene.looks, scene.untrue),
        figures.none_of(f"members that were not back {BACK_SECONDS:g} s after the storm", missing),
        *figures.recoveries(scene.strikes, has_bound=is_long and others <= MOST_OF_OTHERS),
        *figures.every_recovery(scene.strikes),
        *measured,
        *figures.happened(
            scene.strikes,
            kinds,
            int(seconds / 60 * KILLS_A_MINUTE),
            accepted_within(told, began_at, stormed),
            int(stormed * ACCEPTED_A_SECOND),
        ),
        figures.none_of("faults of the storm itself", load.faults + scene.faults),
    ]
    return report.Storm(command, began_at, stormed, all_figures, found, scene.strikes, told, not_tried)


def work_of_others() -> float:
    """The part of the machine that other programs take now."""
    return psutil.cpu_percent(interval=3.0) / 100


def memory(hall: StormHall, books: Path) -> figures.Figure:
    vitals.calm(hall, books / "warm", vitals.WARM, hall.well())
    warm = vitals.vitals(hall)
    vitals.calm(hall, books / "many", vitals.MANY, hall.well())
    return vitals.kept_memory(warm, vitals.vitals(hall))


def absent(hall: StormHall) -> list[str]:
    """Who was not connected at any time since the last fault. Calls go on meanwhile, and wake who sleeps."""
    seen: set[str] = set()

    def is_all() -> bool:
        seen.update(hall.connected())
        return seen >= set(hall.names)

    wait_until(is_all, BACK_SECONDS)
    time.sleep(LAST_CALLS_SECONDS)
    return [
        f"{name}: {(hall.asked(f'/api/members/{name}/') or {}).get('last_error')}" for name in set(hall.names) - seen
    ]


def stopped(hall: StormHall) -> list[figures.Figure]:
    stop = hall.stop_whole()
    time.sleep(LEFT_SECONDS)
    left = [f"process {pid} of {name}" for pid, (_, name) in hall.all_processes().items()]
    return figures.stopped(left, stop.seconds, stop.status)


def blow(scene: Scene, seconds: float, seed: int, general: list[Fault]) -> None:
    """Rounds of faults until time is up, the first one to its end: every kind is fired.

    In each round members alone are hit at first, two at the same time, so that one can see what others notice. Then
    every fault that hits everybody is fired, in an order that the seed decides, while members go on being hit. One that
    found nothing to hit, or whose thief came too late, is tried again in the first round.
    """
    deadline, chance, is_first = time.monotonic() + seconds, random.Random(seed), True
    while is_first or time.monotonic() < deadline:
        with beside(scene, chance), beside(scene, chance):
            time.sleep(min(MEMBERS_ALONE_SECONDS, seconds / 5))
        with beside(scene, chance):
            for fault in chance.sample(general, len(general)):
                if is_first or time.monotonic() < deadline:
                    scene.fire(fault, chance)
            for fault in general * TRIES_AGAIN if is_first else ():
                if fault.name not in {strike.fault for strike in scene.strikes}:
                    scene.fire(fault, chance)
        is_first = False


@contextlib.contextmanager
def beside(scene: Scene, chance: random.Random) -> Iterator[None]:
    """Members are hit, one after the other."""
    over, own = threading.Event(), random.Random(chance.random())
    thread = threading.Thread(target=scene.keep_firing, args=(MEMBER_FAULTS, own, over))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


if __name__ == "__main__":
    sys.exit(main())

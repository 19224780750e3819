"""Descriptors, threads and memory of the hall's processes, before and after the storm, and after many calls."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.storm.figures import Figure
from tests.storm.hall import CLIENTS, PARTS, StormHall
from tests.storm.ledger import Ledger
from tests.storm.load import CALL_FUNCTIONS, SOURCES, Call

PARALLEL_CLIENTS = 12  # clients at the same time
# The allowed growth after the storm, because the number of connections and threads varies.
EXTRA_SHARE, EXTRA = 0.25, 16
FILES_OF_A_THREAD = 3  # of SQLite, because each thread has its own connection
EXTRA_MEMORY = 0.05
REST_SECONDS = 3.0
BEFORE = (
    CLIENTS * 20,
    CLIENTS,
)  # calls through the gateway and over REST before the first count, so that all clients have called all members
WARM = (3_000, 600)
MANY = (10_000, 2_000)


@dataclass(frozen=True)
class Vitals:
    """The resources of one process. `megabytes`: memory that it does not share."""

    descriptors: int
    threads: int
    megabytes: float


def vitals(hall: StormHall) -> dict[str, Vitals]:
    """The vitals of each live part, at rest.

    A connection to a member stays open for a second after its last call, and how many there are depends on how many
    calls met at one member. So the numbers are the lowest of some seconds. What leaks, leaks in all of them.
    """
    lowest: dict[str, Vitals] = {}
    ends_at = time.monotonic() + REST_SECONDS
    while time.monotonic() < ends_at:
        for part, now in _vitals_now(hall).items():
            then = lowest.get(part, now)
            lowest[part] = Vitals(
                min(now.descriptors, then.descriptors),
                min(now.threads, then.threads),
                min(now.megabytes, then.megabytes),
            )
        time.sleep(REST_SECONDS / 10)
    return lowest


def _vitals_now(hall: StormHall) -> dict[str, Vitals]:
    vitals_by_part = {}
    for name in ("up", *PARTS):
        with contextlib.suppress(psutil.Error):
            if (part := hall.part(name)) is not None:
                memory = part.memory_full_info().uss / 1e6
                vitals_by_part[name] = Vitals(part.num_fds(), part.num_threads(), memory)
    return vitals_by_part


def make_calls(hall: StormHall, path: Path, calls: tuple[int, int], members: Sequence[str]) -> None:
    """Make calls through gateway and REST, to each member in turn. The ledgers have their outcomes."""
    gateway, rest = calls
    rest_clients = len(range(0, CLIENTS, len(SOURCES)))

    def work(number: int) -> None:
        source = SOURCES[number % len(SOURCES)]
        count = rest // rest_clients if source == "rest" else gateway // (CLIENTS - rest_clients)
        names, ledger = members, Ledger(path.with_name(f"{path.name}-{number}.jsonl"))
        with hall.web(str(number)) if source == "rest" else hall.agent(str(number)) as client:
            for turn in range(count):
                call = Call(f"{path.name}-{number}-{turn}", names[turn % len(names)], source)
                ledger.add(CALL_FUNCTIONS[source](client, call, threading.Event()))
        ledger.close()

    with ThreadPoolExecutor(PARALLEL_CLIENTS) as pool:
        list(pool.map(work, range(CLIENTS)))


def held(before: dict[str, Vitals], after: dict[str, Vitals]) -> list[Figure]:
    """Descriptors and threads after the storm, compared with those before."""
    no_vitals = Vitals(0, 0, 0.0)
    pairs = {part: (before.get(part, no_vitals), after.get(part, no_vitals)) for part in (*before, *after)}
    threads = {part: (first.threads, last.threads, 0) for part, (first, last) in pairs.items()}
    descriptors = {
        part: (first.descriptors, last.descriptors, FILES_OF_A_THREAD * max(last.threads - first.threads, 0))
        for part, (first, last) in pairs.items()
    }
    return [
        _held("threads before and after", threads, ""),
        _held("descriptors before and after", descriptors, f", {FILES_OF_A_THREAD} a new thread"),
    ]


def _held(name: str, counts: dict[str, tuple[int, int, int]], exception: str) -> Figure:
    """`counts`: before, after, and the allowed growth beyond the bound. A part that does not exist has zeros."""
    text = ", ".join(f"{part} {old} -> {new}" for part, (old, new, _) in counts.items())
    faults = [
        f"{part}: {old} before, {new} after"
        for part, (old, new, extra) in counts.items()
        if not (old and new) or new > old * (1 + EXTRA_SHARE) + EXTRA + extra
    ]
    return Figure(name, text, f"at most {EXTRA_SHARE:.0%} and {EXTRA} more{exception}", not faults, faults)


def kept_memory(warm: dict[str, Vitals], after: dict[str, Vitals]) -> Figure:
    """The growth of the memory of worker and web together."""
    name, bound = f"memory of worker and web after {MANY[0]:,} gateway and {MANY[1]:,} REST calls", EXTRA_MEMORY
    missing_parts = [part for part in ("worker", "web") if part not in warm or part not in after]
    if missing_parts:
        return Figure(name, f"no {' and no '.join(missing_parts)} to be measured", f"within {bound:.0%}", False)
    first, last = (vitals["worker"].megabytes + vitals["web"].megabytes for vitals in (warm, after))
    text = ", ".join(
        f"{part} {warm[part].megabytes:.0f} -> {vitals.megabytes:.0f}" for part, vitals in after.items() if part in warm
    )
    growth = last / first - 1
    return Figure(name, f"{growth:+.1%} (MB: {text})", f"within {bound:.0%}", growth <= bound)

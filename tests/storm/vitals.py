"""What the hall's processes hold: descriptors, threads and memory, before the storm, after it, and after many calls."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.storm.figures import Figure
from tests.storm.hall import CLIENTS, PARTS, StormHall
from tests.storm.ledger import Book
from tests.storm.load import SOURCES, WAYS, Call

CALLERS = 12  # clients at the same time
# What may be there in addition after the storm: connections and threads that come and go.
PART_MORE, MORE = 0.25, 16
FILES_OF_A_THREAD = 3  # SQLite's: each thread that works with the database has a connection of its own
MEMORY_MORE = 0.05
BEFORE = (CLIENTS * 20, CLIENTS)  # calls through the gateway and over REST before anything is counted: all call all
WARM = (3_000, 600)
MANY = (10_000, 2_000)


@dataclass(frozen=True)
class Vitals:
    """Of one process. `megabytes`: of its own, not shared with others."""

    descriptors: int
    threads: int
    megabytes: float


def vitals(hall: StormHall) -> dict[str, Vitals]:
    """By part; without those that do not live."""
    found = {}
    for name in ("up", *PARTS):
        with contextlib.suppress(psutil.Error):
            if (part := hall.part(name)) is not None:
                memory = part.memory_full_info().uss / 1e6
                found[name] = Vitals(part.num_fds(), part.num_threads(), memory)
    return found


def calm(hall: StormHall, book: Path, calls: tuple[int, int], members: Sequence[str]) -> None:
    """So many calls through gateway and REST, one after the other to each member; the books tell how they ended."""
    gateway, rest = calls
    of_rest = len(range(0, CLIENTS, len(SOURCES)))

    def work(number: int) -> None:
        source = SOURCES[number % len(SOURCES)]
        count = rest // of_rest if source == "rest" else gateway // (CLIENTS - of_rest)
        names, own = members, Book(book.with_name(f"{book.name}-{number}.jsonl"))
        with hall.web(str(number)) if source == "rest" else hall.agent(str(number)) as client:
            for turn in range(count):
                call = Call(f"{book.name}-{number}-{turn}", names[turn % len(names)], source)
                own.add(WAYS[source](client, call, threading.Event()))
        own.close()

    with ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(work, range(CLIENTS)))


def held(before: dict[str, Vitals], after: dict[str, Vitals]) -> list[Figure]:
    """Descriptors and threads after the storm against those before."""
    none = Vitals(0, 0, 0.0)
    pairs = {part: (before.get(part, none), after.get(part, none)) for part in (*before, *after)}
    threads = {part: (first.threads, last.threads, 0) for part, (first, last) in pairs.items()}
    descriptors = {
        part: (first.descriptors, last.descriptors, FILES_OF_A_THREAD * max(last.threads - first.threads, 0))
        for part, (first, last) in pairs.items()
    }
    return [
        _held("threads before and after", threads, ""),
        _held("descriptors before and after", descriptors, f", {FILES_OF_A_THREAD} a new thread"),
    ]


def _held(name: str, counts: dict[str, tuple[int, int, int]], but: str) -> Figure:
    """`counts`: before, after, and how many may be there in addition to the bound. A part that is gone has none."""
    said = ", ".join(f"{part} {old} -> {new}" for part, (old, new, _) in counts.items())
    faults = [
        f"{part}: {old} before, {new} after"
        for part, (old, new, spare) in counts.items()
        if not (old and new) or new > old * (1 + PART_MORE) + MORE + spare
    ]
    return Figure(name, said, f"at most {PART_MORE:.0%} and {MORE} more{but}", not faults, faults)


def kept_memory(warm: dict[str, Vitals], after: dict[str, Vitals]) -> Figure:
    """Of worker and web together."""
    name, bound = f"memory of worker and web after {MANY[0]:,} gateway and {MANY[1]:,} REST calls", MEMORY_MORE
    gone = [part for part in ("worker", "web") if part not in warm or part not in after]
    if gone:
        return Figure(name, f"no {' and no '.join(gone)} to be measured", f"within {bound:.0%}", False)
    first, last = (one["worker"].megabytes + one["web"].megabytes for one in (warm, after))
    told = ", ".join(
        f"{part} {warm[part].megabytes:.0f} -> {one.megabytes:.0f}" for part, one in after.items() if part in warm
    )
    more = last / first - 1
    return Figure(name, f"{more:+.1%} (MB: {told})", f"within {bound:.0%}", more <= bound)

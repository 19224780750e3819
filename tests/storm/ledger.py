"""What is written down while it storms: by members what took effect, by clients what they were told."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

# How a call ended for its client, beside the words of the hall (succeeded, failed, cancelled).
REFUSED = "refused"  # told that it was not taken
BROKEN = "broken"  # the connection ended before an answer
SILENT = "silent"  # accepted, or on a connection that stands, and nothing came in all the client's patience
GONE = "gone"  # accepted, and later nobody knew of it


@dataclass(frozen=True)
class Told:
    """What a client was told of one call. Times are in seconds of the machine's monotonic clock.

    `source`: rest, session or modern. `kind`: of the error, or the HTTP status of a refusal. `sent`: what an error of
    the gateway said of it. `text`: of the result, or of a refusal. `url`: where REST accepted it. `later`: what REST
    said of it in the end, where that is not what its client was told.
    """

    key: str
    member: str
    source: str
    asked_at: float
    told_at: float
    end: str
    kind: str = ""
    sent: bool | None = None
    text: str = ""
    url: str = ""
    later: str = ""

    @property
    def is_accepted(self) -> bool:
        """REST: it has an address. The gateway has no such word: a call that it answered was accepted."""
        return bool(self.url) if self.source == "rest" else self.end in ("succeeded", "failed", "cancelled")

    @property
    def seconds(self) -> float:
        return self.told_at - self.asked_at


@dataclass(frozen=True)
class Effect:
    """One line of a member's ledger."""

    key: str
    at: float
    pid: int


class Book:
    """The file of one client: a line for each call, written when it is over."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def add(self, told: Told) -> None:
        self._file.write(json.dumps(asdict(told)) + "\n")

    def close(self) -> None:
        self._file.close()


def read_told(folder: Path) -> list[Told]:
    """Of all clients, by the time at which they asked."""
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
    return sorted((Told(**json.loads(line)) for line in lines), key=lambda told: told.asked_at)


def read_effects(folder: Path) -> dict[str, list[Effect]]:
    """By key. A line that has no end is no effect: its writer was killed before the disk had it."""
    return by_key(
        line for path in sorted(folder.glob("*.ledger")) for line in path.read_text().splitlines(keepends=True)
    )


def by_key(lines: Iterable[str]) -> dict[str, list[Effect]]:
    found: dict[str, list[Effect]] = defaultdict(list)
    for line in lines:
        if line.endswith("\n"):
            key, at, pid = line.split()
            found[key].append(Effect(key, float(at), int(pid)))
    return dict(found)

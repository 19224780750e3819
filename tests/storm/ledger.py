"""The ledgers of a storm: members write the calls that took effect, and clients write the outcomes that they got."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

# The end of a call for its client, beside the statuses of the hall (succeeded, failed, cancelled).
REFUSED = "refused"  # the call was not accepted
BROKEN = "broken"  # the connection ended before a response
SILENT = "silent"  # accepted, or on an open connection, and there was no response in time
GONE = "gone"  # accepted, and later unknown to the hall


@dataclass(frozen=True)
class CallRecord:
    """The outcome of one call for its client. Times are in seconds of the machine's monotonic clock.

    `source`: rest, session or modern. `kind`: the error kind, or the HTTP status of a refusal. `sent`: this field of an
    error of the gateway. `text`: of the result or the refusal. `url`: the address of the call in REST. `later`: the
    final outcome in REST, if it differs from the outcome for the client.
    """

    key: str
    member: str
    source: str
    called_at: float
    ended_at: float
    end: str
    kind: str = ""
    sent: bool | None = None
    text: str = ""
    url: str = ""
    later: str = ""

    @property
    def is_accepted(self) -> bool:
        """Whether the call has an address in REST, or a response of the gateway."""
        return bool(self.url) if self.source == "rest" else self.end in ("succeeded", "failed", "cancelled")

    @property
    def seconds(self) -> float:
        return self.ended_at - self.called_at


@dataclass(frozen=True)
class Effect:
    """One line of a member's ledger."""

    key: str
    at: float
    pid: int


class Ledger:
    """The file of one client, with a line for each ended call."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def add(self, record: CallRecord) -> None:
        self._file.write(json.dumps(asdict(record)) + "\n")

    def close(self) -> None:
        self._file.close()


def read_records(folder: Path) -> list[CallRecord]:
    """The records of all clients, in the order of their calls."""
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
    return sorted((CallRecord(**json.loads(line)) for line in lines), key=lambda record: record.called_at)


def read_effects(folder: Path) -> dict[str, list[Effect]]:
    """The effects by key. A line without an end is no effect, because its writer was killed before the disk had it."""
    return by_key(
        line for path in sorted(folder.glob("*.ledger")) for line in path.read_text().splitlines(keepends=True)
    )


def by_key(lines: Iterable[str]) -> dict[str, list[Effect]]:
    effects: dict[str, list[Effect]] = defaultdict(list)
    for line in lines:
        if line.endswith("\n"):
            key, at, pid = line.split()
            effects[key].append(Effect(key, float(at), int(pid)))
    return dict(effects)

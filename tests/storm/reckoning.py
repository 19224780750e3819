"""Compares the outcomes for clients with the effects in members, with plain functions over both ledgers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.storm.hall import FAIL_BY_THEMSELVES, kind_of
from tests.storm.ledger import BROKEN, GONE, REFUSED, SILENT, CallRecord, Effect

LEFT_SECONDS = 2.0  # after which no killed process may be live
ALL = ""  # the member of a strike that hits all members
PATIENCE = (
    45.0  # seconds until all must be well again. Then the storm continues, and the fault excuses no more failures
)


@dataclass
class Strike:
    """One firing of a fault, in seconds of the monotonic clock. `member`: the member that it hit, or ALL.

    `over_at`: the end of the fault. `back_off`: the intended pause of the hall afterwards. `answered_at`: the first
    success of a call that began after the fault. `well_at`: when all hit members were connected again. `left`: the
    processes and ports that remained two seconds later. `detail`: what it was exactly.
    """

    fault: str
    member: str
    fired_at: float
    over_at: float = 0.0
    back_off: float = 0.0
    answered_at: float | None = None
    well_at: float | None = None
    left: list[str] = field(default_factory=list)
    detail: str = ""

    @property
    def end(self) -> float:
        """The time after which it excuses no failure, even if the hall has not recovered."""
        limit = self.over_at + self.back_off + PATIENCE
        times = [at for at in (self.answered_at, self.well_at) if at is not None] or [limit]
        return min(max(*times, self.over_at), limit)

    def covers(self, record: CallRecord) -> bool:
        is_hit = self.member in (ALL, record.member)
        return is_hit and record.called_at <= self.end and record.ended_at >= self.fired_at

    def lasts_within(self, other: Strike, seconds: float) -> bool:
        """Whether it lasted at any time between the beginning of the other strike and `seconds` later."""
        return self.fired_at <= other.fired_at + seconds and self.over_at >= other.fired_at

    @property
    def answered_after(self) -> float | None:
        """Seconds beyond the back-off."""
        return None if self.answered_at is None else max(self.answered_at - self.over_at - self.back_off, 0.0)

    @property
    def well_after(self) -> float | None:
        return None if self.well_at is None else max(self.well_at - self.over_at - self.back_off, 0.0)


@dataclass
class Reckoning:
    """Counts, and for each promise the calls that broke it, as text."""

    calls: int = 0
    accepted: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    never_ended: list[str] = field(default_factory=list)
    misreported: list[str] = field(default_factory=list)
    unprovoked: list[str] = field(default_factory=list)


def reckon(
    records: Sequence[CallRecord], effects: Mapping[str, Sequence[Effect]], strikes: Sequence[Strike]
) -> Reckoning:
    reckoning = Reckoning(calls=len(records), accepted=sum(record.is_accepted for record in records))
    reckoning.doubled = doubled(effects)
    for record in records:
        reckoning.ends[f"{record.source}: {record.end}{f' {record.kind}' if record.kind else ''}"] += 1
        has_effect = record.key in effects
        if record.end == GONE:
            reckoning.lost.append(describe(record, has_effect))
        elif record.end == SILENT and record.sent is not False:
            reckoning.never_ended.append(describe(record, has_effect))
        if reason := contradiction(record, has_effect):
            reckoning.misreported.append(f"{describe(record, has_effect)}: {reason}")
        if is_failure(record) and not any(strike.covers(record) for strike in strikes):
            reckoning.unprovoked.append(describe(record, has_effect))
    return reckoning


def doubled(effects: Mapping[str, Sequence[Effect]]) -> list[str]:
    """Calls that took effect more than once."""
    return [
        f"{key} took effect {len(group)} times, in the processes {', '.join(str(effect.pid) for effect in group)}, "
        f"{group[-1].at - group[0].at:.1f} s apart"
        for key, group in effects.items()
        if len(group) > 1
    ]


def contradiction(record: CallRecord, ran: bool) -> str:
    """Why the outcome for the client cannot be true. Empty if it can."""
    if record.end == "succeeded" and not ran:
        return "reported that it succeeded, and nothing took effect"
    if record.end == "succeeded" and record.text != record.key:
        return f"reported the result of something else: {record.text[:60]!r}"
    if ran and record.kind == "unavailable":
        return "reported that it was never sent, and it took effect"
    if ran and record.sent is False:
        return 'reported "sent": false, and it took effect'
    if ran and record.end == REFUSED:
        return "reported that it was refused, and it took effect"
    if record.end == "cancelled" or record.kind == "cancelled":
        return "reported that it was cancelled, and nobody asked for that"
    if record.later:
        return f"reported an end, and later another one: {record.later}"
    return ""


def is_failure(record: CallRecord) -> bool:
    """Whether the failure needs a fault as its reason. Members that fail by themselves need none."""
    return record.end != "succeeded" and kind_of(record.member) not in FAIL_BY_THEMSELVES


def describe(record: CallRecord, has_effect: bool) -> str:
    outcome = " ".join(filter(None, (record.end, record.kind)))
    text = f" ({record.text})" if record.text and record.end not in ("succeeded", BROKEN) else ""
    return (
        f"{record.key} of {record.member}, called at {record.called_at:.1f}, was reported {outcome!r}{text} "
        f"after {record.seconds:.1f} s; the member's ledger {'has' if has_effect else 'lacks'} it"
    )


def answered_since(records: Iterable[CallRecord], strike: Strike, members: Iterable[str]) -> float | None:
    """The first success of a call to one of these members that began after the fault was fired."""
    names = set(members)
    times = [
        record.ended_at
        for record in records
        if record.end == "succeeded" and record.member in names
        if record.called_at >= strike.fired_at and record.ended_at >= strike.over_at
    ]
    return min(times, default=None)


def accepted_within(records: Iterable[CallRecord], began_at: float, seconds: float) -> int:
    """The number of accepted calls that began in this time."""
    return sum(record.is_accepted for record in records if began_at <= record.called_at <= began_at + seconds)


def percentile(values: Sequence[float], part: float) -> float:
    """The percentile by nearest rank, or nan without values."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * part), 1) - 1] if ordered else math.nan

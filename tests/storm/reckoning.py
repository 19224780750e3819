"""What clients were told against what took effect: plain functions over both ledgers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.storm.hall import FAIL_BY_THEMSELVES, kind_of
from tests.storm.ledger import BROKEN, GONE, REFUSED, SILENT, Effect, Told

LEFT_SECONDS = 2.0  # after which nothing of what was killed lives
ALL = ""  # the member of what happens to all of them
PATIENCE = 45.0  # seconds, for all to be well again; then the storm goes on, and the fault excuses nothing more


@dataclass
class Strike:
    """A fault as it was fired, in seconds of the monotonic clock. `member`: whom it hit, ALL where everybody.

    `over_at`: when it was taken back, or had done what it does. `back_off`: what the hall waits on purpose afterwards.
    `answered_at`: of the first call that succeeded and was asked since. `well_at`: everybody who was hit was connected.
    `left`: what lived, and the ports it held, two seconds after. `told`: what else is to be known of it.
    """

    fault: str
    member: str
    fired_at: float
    over_at: float = 0.0
    back_off: float = 0.0
    answered_at: float | None = None
    well_at: float | None = None
    left: list[str] = field(default_factory=list)
    told: str = ""

    @property
    def end(self) -> float:
        """From then on nothing that fails is excused by it, be it that nothing got well."""
        last = self.over_at + self.back_off + PATIENCE
        ends = [at for at in (self.answered_at, self.well_at) if at is not None] or [last]
        return min(max(*ends, self.over_at), last)

    def covers(self, told: Told) -> bool:
        hit = self.member in (ALL, told.member)
        return hit and told.asked_at <= self.end and told.told_at >= self.fired_at

    def lasts_within(self, other: Strike, seconds: float) -> bool:
        """Whether it was going on at any time from the other's beginning until so much later."""
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
    """Counts, and for each kind of broken promise the calls that broke it, in words."""

    asked: int = 0
    accepted: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    never_ended: list[str] = field(default_factory=list)
    mistold: list[str] = field(default_factory=list)
    unprovoked: list[str] = field(default_factory=list)


def reckon(told: Sequence[Told], effects: Mapping[str, Sequence[Effect]], strikes: Sequence[Strike]) -> Reckoning:
    found = Reckoning(asked=len(told), accepted=sum(one.is_accepted for one in told))
    found.doubled = doubled(effects)
    for one in told:
        found.ends[f"{one.source}: {one.end}{f' {one.kind}' if one.kind else ''}"] += 1
        ran = one.key in effects
        if one.end == GONE:
            found.lost.append(words(one, ran))
        elif one.end == SILENT and one.sent is not False:
            found.never_ended.append(words(one, ran))
        if why := contradiction(one, ran):
            found.mistold.append(f"{words(one, ran)}: {why}")
        if is_failure(one) and not any(strike.covers(one) for strike in strikes):
            found.unprovoked.append(words(one, ran))
    return found


def doubled(effects: Mapping[str, Sequence[Effect]]) -> list[str]:
    """Calls that took effect more than once."""
    return [
        f"{key} took effect {len(every)} times, in the processes {', '.join(str(effect.pid) for effect in every)}, "
        f"{every[-1].at - every[0].at:.1f} s apart"
        for key, every in effects.items()
        if len(every) > 1
    ]


def contradiction(told: Told, ran: bool) -> str:
    """Why what was told is not what happened; empty where it may be."""
    if told.end == "succeeded" and not ran:
        return "told that it succeeded, and nothing took effect"
    if told.end == "succeeded" and told.text != told.key:
        return f"told the result of something else: {told.text[:60]!r}"
    if ran and told.kind == "unavailable":
        return "told that it was never sent, and it took effect"
    if ran and told.sent is False:
        return 'told "sent": false, and it took effect'
    if ran and told.end == REFUSED:
        return "told that it was refused, and it took effect"
    if told.end == "cancelled" or told.kind == "cancelled":
        return "told that it was cancelled, and nobody asked for that"
    if told.later:
        return f"told an end, and later another one: {told.later}"
    return ""


def is_failure(told: Told) -> bool:
    """Whether it needs an explanation: members that fail by themselves have theirs."""
    return told.end != "succeeded" and kind_of(told.member) not in FAIL_BY_THEMSELVES


def words(told: Told, ran: bool) -> str:
    what = " ".join(filter(None, (told.end, told.kind)))
    said = f" ({told.text})" if told.text and told.end not in ("succeeded", BROKEN) else ""
    return (
        f"{told.key} of {told.member}, asked at {told.asked_at:.1f}, was told {what!r}{said} "
        f"after {told.seconds:.1f} s; the member's ledger {'has' if ran else 'lacks'} it"
    )


def answered_since(told: Iterable[Told], strike: Strike, members: Iterable[str]) -> float | None:
    """When the first call to one of those members succeeded that was asked since the fault was fired."""
    wanted = set(members)
    ends = [
        one.told_at
        for one in told
        if one.end == "succeeded" and one.member in wanted
        if one.asked_at >= strike.fired_at and one.told_at >= strike.over_at
    ]
    return min(ends, default=None)


def accepted_within(told: Iterable[Told], began_at: float, seconds: float) -> int:
    """How many calls were accepted of those that were asked then."""
    return sum(one.is_accepted for one in told if began_at <= one.asked_at <= began_at + seconds)


def percentile(values: Sequence[float], part: float) -> float:
    """The nearest rank; nan of nothing."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * part), 1) - 1] if ordered else math.nan

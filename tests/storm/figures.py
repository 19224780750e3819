"""The figures of a storm, each with its bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.storm.reckoning import ALL, LEFT_SECONDS, PATIENCE, Reckoning, Strike, percentile

RECOVERY_SECONDS = 5.0  # of a killed member's calls, beyond its back-off
# Beyond what `manage.py up` waits before it starts a runtime again that did not live long.
FIRST_CALL_SECONDS = 3.0
EVERY_MEMBER_SECONDS = 4.0
ANY_SECONDS = 30.0  # from the end of any fault, beyond the back-off, until calls succeed and all who were hit are there
STOP_SECONDS = 12.0  # `manage.py up` gives its parts eight, and then none


@dataclass
class Figure:
    """`value` in words; `evidence`: what broke it, first ones first."""

    name: str
    value: str
    bound: str
    holds: bool
    evidence: list[str] = field(default_factory=list)


def none_of(name: str, found: Sequence[str]) -> Figure:
    return Figure(name, f"{len(found):,}", "0", not found, list(found))


def promises(found: Reckoning) -> list[Figure]:
    return [
        none_of("calls that were accepted and lost", found.lost),
        none_of("calls that took effect twice", found.doubled),
        none_of("calls that never ended", found.never_ended),
        none_of("calls told as another kind than they had", found.mistold),
        none_of("calls that failed for no fault of their member", found.unprovoked),
    ]


def remains(strikes: Sequence[Strike]) -> list[Figure]:
    """What was left two seconds after each kill. Without a bound where the runtime was kept from its work meanwhile."""
    general = [strike for strike in strikes if strike.member == ALL]
    left = [
        f"{strike.fault} {strike.member or strike.told} at {strike.fired_at:.1f}: {one}"
        for strike in strikes
        if strike.member == ALL or not any(other.lasts_within(strike, LEFT_SECONDS) for other in general)
        for one in strike.left
    ]
    return [
        none_of("processes left 2 s after a kill", [one for one in left if ": process" in one]),
        none_of("ports left 2 s after a kill", [one for one in left if ": port" in one]),
    ]


def recovery(name: str, waits: Sequence[float | None], bound: float, *, has_bound: bool = True) -> Figure:
    """Seconds at the 95th percentile; None: it never came back."""
    came = [wait for wait in waits if wait is not None]
    never = len(waits) - len(came)
    value = (
        f"{percentile(came, 0.5):.1f} / {percentile(came, 0.95):.1f} / {max(came, default=0.0):.1f} s of {len(waits)}"
    )
    value += f", {never} never" if never else ""
    if not has_bound:
        return Figure(f"{name} (median / p95 / longest)", value, f"p95 {bound:g} s, no bound here", True)
    holds = not waits or (not never and percentile(came, 0.95) < bound)
    return Figure(f"{name} (median / p95 / longest)", value, f"p95 < {bound:g} s", holds)


def recoveries(strikes: Sequence[Strike], *, has_bound: bool) -> list[Figure]:
    """`has_bound`: whether the runtime's own recovery has a bound, which a machine with other work does not keep."""
    member = [one.answered_after for one in alone(strikes) if one.fault == "member killed"]
    figures = [recovery("a killed member's calls, beyond its back-off", member, RECOVERY_SECONDS)]
    runtime = [one for one in strikes if one.fault in ("worker killed", "guard killed")]
    first, every = [one.answered_after for one in runtime], [one.well_after for one in runtime]
    figures.append(
        recovery("the first call after the runtime was killed", first, FIRST_CALL_SECONDS, has_bound=has_bound)
    )
    figures.append(
        recovery("every member after the runtime was killed", every, EVERY_MEMBER_SECONDS, has_bound=has_bound)
    )
    return figures


def every_recovery(strikes: Sequence[Strike]) -> list[Figure]:
    """Of faults of every kind, in every storm: that each ended, and soon enough for it to excuse what failed."""
    waits = [(max(one.well_after or 0.0, one.answered_after or 0.0), one) for one in strikes]
    slowest, of = max(waits, key=lambda pair: pair[0], default=(0.0, None))
    late = [f"{named(one)}: {wait:.1f} s" for wait, one in waits if wait >= ANY_SECONDS]
    value = f"{slowest:.1f} s ({of.fault})" if of else "-"
    never = [named(one) for one in strikes if one.well_at is None or one.answered_at is None]
    return [
        Figure("the slowest recovery of all", value, f"< {ANY_SECONDS:g} s", not late, late),
        none_of(f"faults after which all was never well again, in {PATIENCE:g} s", never),
    ]


def named(strike: Strike) -> str:
    told = f" ({strike.told})" if strike.told else ""
    return f"{strike.fault}{told} {strike.member or 'for all'} at {strike.fired_at:.1f}"


def alone(strikes: Sequence[Strike]) -> list[Strike]:
    """Of those that hit one member all during which nothing hit everybody."""
    general = [strike for strike in strikes if strike.member == ALL]
    return [
        one
        for one in strikes
        if one.member != ALL and not any(all_.fired_at <= one.end and one.fired_at <= all_.end for all_ in general)
    ]


def stopped(left: Sequence[str], seconds: float, status: int | None) -> list[Figure]:
    """`left`: two seconds later. `seconds`: that `manage.py up` took to end. `status`: None where it was not up."""
    said = "it was not up" if status is None else f"{seconds:.1f} s, exit status {status}"
    return [
        none_of("processes left 2 s after the hall was stopped", left),
        Figure("how the hall stops", said, f"< {STOP_SECONDS:g} s, 0", status == 0 and seconds < STOP_SECONDS),
    ]


def truth_of_the_roster(looks: int, untrue: Sequence[str]) -> list[Figure]:
    return [
        none_of("members that answer and are shown as disconnected", untrue),
        Figure("looks at that in the midst of a fault", f"{looks:,}", "at least 1", looks >= 1),
    ]


def happened(strikes: Sequence[Strike], wanted: Sequence[str], kills: int, accepted: int, calls: int) -> list[Figure]:
    """That the storm was one, with at least so many kills and calls: a storm without faults proves nothing."""
    fired = Counter(strike.fault for strike in strikes)
    missing = [f"{name} was never fired" for name in wanted if not fired[name]]
    killed = sum(count for name, count in fired.items() if "killed" in name)
    return [
        Figure("kinds of fault fired", f"{len(wanted) - len(missing)} of {len(wanted)}", "all", not missing, missing),
        Figure("kills", f"{killed:,}", f"at least {kills:,}", killed >= kills),
        Figure("calls accepted while it stormed", f"{accepted:,}", f"at least {calls:,}", accepted >= calls),
    ]

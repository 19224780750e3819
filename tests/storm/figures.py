"""The figures of a storm, each with its bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.storm.reckoning import ALL, LEFT_SECONDS, PATIENCE, Reckoning, Strike, percentile

RECOVERY_SECONDS = 5.0  # for calls of a killed member, beyond its back-off
# Beyond the pause of `manage.py up` before it restarts a runtime with a short life.
FIRST_CALL_SECONDS = 3.0
EVERY_MEMBER_SECONDS = 4.0
# From the end of any fault, beyond the back-off, until calls succeed and all hit members are connected.
ANY_SECONDS = 30.0
STOP_SECONDS = 12.0  # `manage.py up` waits eight seconds for its parts


@dataclass
class Figure:
    """`value`: as text. `evidence`: the cases that broke the bound, in order."""

    name: str
    value: str
    bound: str
    holds: bool
    evidence: list[str] = field(default_factory=list)


def none_of(name: str, entries: Sequence[str]) -> Figure:
    return Figure(name, f"{len(entries):,}", "0", not entries, list(entries))


def promises(reckoning: Reckoning) -> list[Figure]:
    return [
        none_of("calls that were accepted and lost", reckoning.lost),
        none_of("calls that took effect twice", reckoning.doubled),
        none_of("calls that never ended", reckoning.never_ended),
        none_of("calls reported as another kind than they had", reckoning.misreported),
        none_of("calls that failed for no fault of their member", reckoning.unprovoked),
    ]


def remains(strikes: Sequence[Strike]) -> list[Figure]:
    """What remained two seconds after each kill. Kills of a member during a general fault do not count."""
    general = [strike for strike in strikes if strike.member == ALL]
    entries = [
        f"{strike.fault} {strike.member or strike.detail} at {strike.fired_at:.1f}: {entry}"
        for strike in strikes
        if strike.member == ALL or not any(other.lasts_within(strike, LEFT_SECONDS) for other in general)
        for entry in strike.left
    ]
    return [
        none_of("processes left 2 s after a kill", [entry for entry in entries if ": process" in entry]),
        none_of("ports left 2 s after a kill", [entry for entry in entries if ": port" in entry]),
    ]


def recovery(name: str, waits: Sequence[float | None], bound: float, *, has_bound: bool = True) -> Figure:
    """A figure of durations in seconds. None means that there was no recovery."""
    durations = [wait for wait in waits if wait is not None]
    never_count = len(waits) - len(durations)
    value = (
        f"{percentile(durations, 0.5):.1f} / {percentile(durations, 0.95):.1f} / "
        f"{max(durations, default=0.0):.1f} s of {len(waits)}"
    )
    value += f", {never_count} never" if never_count else ""
    if not has_bound:
        return Figure(f"{name} (median / p95 / longest)", value, f"p95 {bound:g} s, no bound here", True)
    holds = not waits or (not never_count and percentile(durations, 0.95) < bound)
    return Figure(f"{name} (median / p95 / longest)", value, f"p95 < {bound:g} s", holds)


def recoveries(strikes: Sequence[Strike], *, has_bound: bool) -> list[Figure]:
    """`has_bound`: whether the recovery of the runtime has a bound. A machine with other load has none."""
    member_durations = [strike.answered_after for strike in alone(strikes) if strike.fault == "member killed"]
    figures = [recovery("a killed member's calls, beyond its back-off", member_durations, RECOVERY_SECONDS)]
    runtime_strikes = [strike for strike in strikes if strike.fault in ("worker killed", "guard killed")]
    first_durations, every_durations = (
        [strike.answered_after for strike in runtime_strikes],
        [strike.well_after for strike in runtime_strikes],
    )
    figures.append(
        recovery(
            "the first call after the runtime was killed", first_durations, FIRST_CALL_SECONDS, has_bound=has_bound
        )
    )
    figures.append(
        recovery(
            "every member after the runtime was killed", every_durations, EVERY_MEMBER_SECONDS, has_bound=has_bound
        )
    )
    return figures


def every_recovery(strikes: Sequence[Strike]) -> list[Figure]:
    """Every fault of every storm must end, and soon enough to excuse the failed calls."""
    waits = [(max(strike.well_after or 0.0, strike.answered_after or 0.0), strike) for strike in strikes]
    slowest, slowest_strike = max(waits, key=lambda pair: pair[0], default=(0.0, None))
    late_strikes = [f"{describe(strike)}: {wait:.1f} s" for wait, strike in waits if wait >= ANY_SECONDS]
    value = f"{slowest:.1f} s ({slowest_strike.fault})" if slowest_strike else "-"
    unfinished_strikes = [
        describe(strike) for strike in strikes if strike.well_at is None or strike.answered_at is None
    ]
    return [
        Figure("the slowest recovery of all", value, f"< {ANY_SECONDS:g} s", not late_strikes, late_strikes),
        none_of(f"faults after which all was never well again, in {PATIENCE:g} s", unfinished_strikes),
    ]


def describe(strike: Strike) -> str:
    detail = f" ({strike.detail})" if strike.detail else ""
    return f"{strike.fault}{detail} {strike.member or 'for all'} at {strike.fired_at:.1f}"


def alone(strikes: Sequence[Strike]) -> list[Strike]:
    """The strikes of one member without a general strike at the same time."""
    general = [strike for strike in strikes if strike.member == ALL]
    return [
        strike
        for strike in strikes
        if strike.member != ALL
        and not any(all_.fired_at <= strike.end and strike.fired_at <= all_.end for all_ in general)
    ]


def stopped(left: Sequence[str], seconds: float, status: int | None) -> list[Figure]:
    """`left`: processes two seconds later. `seconds`: until `manage.py up` ended. `status`: None if it was not up."""
    text = "it was not up" if status is None else f"{seconds:.1f} s, exit status {status}"
    return [
        none_of("processes left 2 s after the hall was stopped", left),
        Figure("how the hall stops", text, f"< {STOP_SECONDS:g} s, 0", status == 0 and seconds < STOP_SECONDS),
    ]


def truth_of_the_roster(looks: int, untrue: Sequence[str]) -> list[Figure]:
    return [
        none_of("members that answer and are shown as disconnected", untrue),
        Figure("looks at that in the midst of a fault", f"{looks:,}", "at least 1", looks >= 1),
    ]


def happened(strikes: Sequence[Strike], kinds: Sequence[str], kills: int, accepted: int, calls: int) -> list[Figure]:
    """There must be enough kills and calls, because a storm without faults proves nothing."""
    fired = Counter(strike.fault for strike in strikes)
    missing = [f"{name} was never fired" for name in kinds if not fired[name]]
    killed = sum(count for name, count in fired.items() if "killed" in name)
    return [
        Figure("kinds of fault fired", f"{len(kinds) - len(missing)} of {len(kinds)}", "all", not missing, missing),
        Figure("kills", f"{killed:,}", f"at least {kills:,}", killed >= kills),
        Figure("calls accepted while it stormed", f"{accepted:,}", f"at least {calls:,}", accepted >= calls),
    ]

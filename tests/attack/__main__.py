"""`make attack`: every attack on a real hall, an honest neighbour beside each; exit status 0 only when all holds.

    python -m tests.attack            everything, and the neighbour's wait against that of one at a hall beside it
    python -m tests.attack --short    a share of each, in at most 90 s; how long the neighbour waits has no bound
    python -m tests.attack NAME...    these attacks

The short form has no bound for the ratio, for machines of continuous integration have neighbours of their own. It does
check that every honest call is answered right within ten seconds, which is hundreds of times what one takes.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from tests.attack import classes
from tests.attack.attacks import ATTACKS
from tests.attack.hall import ROOT, Hall, hall_under_attack
from tests.attack.latency import Latency, beside
from tests.attack.tally import Attack, Tally

SHARE = 0.04  # of each attack, in the short form
RATIO = 1.25  # of 95th percentiles, at the attacked hall and at the other one
SECONDS = 6.0  # that an attack lasts at least in the long form, for enough figures
LONG = 40.0  # an attack of so many seconds has figures enough, and is not repeated
MEASURED = 3  # times, at most: the ratio of a neighbour's waits is as noisy as the machine


@dataclass
class Row:
    attack: Attack
    tally: Tally
    latency: Latency
    ratio: float | None
    figures: str
    seconds: float

    @property
    def holds(self) -> bool:
        return not self.tally.broken and not self.latency.failures and not self.is_felt

    @property
    def is_felt(self) -> bool:
        """Whether the neighbour waits longer than it may."""
        return self.ratio is not None and self.ratio > RATIO

    def told(self) -> str:
        ratio = "-" if self.ratio is None else f"{self.ratio:.2f}"
        counts = f"{self.tally.tries:>7,} {sum(self.tally.broken.values()):>7,}"
        waits = f"{self.latency.p95('gateway'):>8.1f} {self.latency.p95('rest'):>8.1f} {ratio:>6}"
        return f"{self.attack.name:<30} {counts} {waits} {self.seconds:>7.1f}  {'holds' if self.holds else 'BROKEN'}"

    def faults(self) -> list[str]:
        faults = [f"{count} x {what}" for what, count in self.tally.broken.most_common(12)]
        faults += [f"the neighbour's call: {failure}" for failure in self.latency.failures[:5]]
        if self.is_felt:
            faults.append(f"the neighbour's 95th percentile, against that at the other hall: {self.figures}")
        return faults


def run(hall: Hall, other: Hall | None, attack: Attack, share: float) -> Row:
    """The attack, repeated until there are enough figures; measured again where the ratio is high."""
    tally, latency, began = Tally(share), Latency(), time.monotonic()
    least: dict[str, float] = {}  # the ratio by source
    figures = ""
    for _ in range(MEASURED):
        once, baseline, seconds = attacked(hall, other, attack, tally)
        latency.add(once)
        if baseline is None:
            break
        tally.expect(not baseline.failures, f"the neighbour of the other hall: {baseline.failures[:1]}")
        ratios, figures = once.against(baseline)
        least = {source: min(ratio, least.get(source, ratio)) for source, ratio in ratios.items()}
        if max(least.values()) <= RATIO or seconds > LONG:
            break
    return Row(attack, tally, latency, max(least.values(), default=None), figures, time.monotonic() - began)


def attacked(hall: Hall, other: Hall | None, attack: Attack, tally: Tally) -> tuple[Latency, Latency | None, float]:
    """What the neighbours of both halls waited, and how many seconds it lasted."""
    began = time.monotonic()
    with beside(hall) as latency, beside(other) if other else contextlib.nullcontext() as baseline:
        while True:
            try:
                attack.run(hall, tally)
            except Exception as error:  # noqa: BLE001 - an attack that cannot go on is one that found something
                tally.expect(False, f"the attack ended with {type(error).__name__}: {error}")
            if other is None or tally.broken or time.monotonic() - began > SECONDS:
                break
    return latency, baseline, time.monotonic() - began


def tests_without_a_hall() -> tuple[bool, str]:
    """The rights of every route, and what the fuzzer kept, are tests of pytest: whether they hold, and what it says."""
    argv = [sys.executable, "-m", "pytest", "-q", "tests/unit/attack", "tests/rows/attack"]
    done = subprocess.run(argv, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print(done.stdout)
    return done.returncode == 0, done.stdout.strip().rpartition("\n")[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make attack")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of attacks; all by default")
    parser.add_argument("--short", action="store_true", help="a share of each")
    options = parser.parse_args()
    if unknown := set(options.names) - ATTACKS.keys():
        parser.error(f"no attack is called {', '.join(sorted(unknown))}")
    chosen = [attack for name, attack in ATTACKS.items() if not options.names or name in options.names]
    # So that the hall ends with us, and its members with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began, rows = time.monotonic(), []
    are_right, tests = (True, "") if options.short or options.names else tests_without_a_hall()
    print(f"{'attack':<30} {'tries':>7} {'broken':>7} {'gw p95':>8} {'REST p95':>8} {'ratio':>6} {'seconds':>7}")
    with hall_under_attack() as hall, contextlib.nullcontext() if options.short else hall_under_attack() as other:
        for attack in chosen:
            rows.append(run(hall, other, attack, SHARE if options.short else 1.0))
            print(rows[-1].told(), *rows[-1].faults(), sep="\n    ", flush=True)
    print(classes.table())
    broken = sum(not row.holds for row in rows) + (not are_right)
    tries, honest = sum(row.tally.tries for row in rows), sum(row.latency.count for row in rows)
    print(
        f"{len(rows)} attacks in {time.monotonic() - began:.0f} s: {tries:,} tries beside {honest:,} honest calls, "
        f"{sum(sum(row.tally.broken.values()) for row in rows):,} tries and {broken} attacks broken; "
        + ", ".join(f"{row.attack.name} {row.tally.tries:,}" for row in rows)
        + (f"; tests of rights and parsers: {tests}" if tests else "")
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

"""`make attack`: every attack on a real hall, beside an honest neighbour. Exit status 0 only if every promise holds.

    python -m tests.attack            all attacks, and the neighbour's latency against that at a second hall
    python -m tests.attack --short    a share of each attack, in at most 90 s, without a bound for the latency
    python -m tests.attack NAME...    these attacks

The short form has no bound for the ratio, because machines of continuous integration are shared. It does check that
every honest call succeeds within ten seconds, which is hundreds of times the usual duration.
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
from tests.attack.latency import Latency, run_neighbour
from tests.attack.tally import Attack, Tally

SHARE = 0.04  # of each attack, in the short form
RATIO = 1.25  # maximum of the 95th percentile at the attacked hall, divided by that at the other hall
MIN_SECONDS = 6.0  # an attack of the long form takes at least so long, for enough figures
LONG_SECONDS = 40.0  # a longer attack has enough figures, and is not repeated
MAX_MEASUREMENTS = 3  # because the ratio is as noisy as the machine


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
        return not self.tally.broken and not self.latency.failures and not self.is_delayed

    @property
    def is_delayed(self) -> bool:
        """Whether the neighbour waits too long."""
        return self.ratio is not None and self.ratio > RATIO

    def line(self) -> str:
        ratio = "-" if self.ratio is None else f"{self.ratio:.2f}"
        counts = f"{self.tally.tries:>7,} {sum(self.tally.broken.values()):>7,}"
        waits = f"{self.latency.p95('gateway'):>8.1f} {self.latency.p95('rest'):>8.1f} {ratio:>6}"
        return f"{self.attack.name:<30} {counts} {waits} {self.seconds:>7.1f}  {'holds' if self.holds else 'BROKEN'}"

    def faults(self) -> list[str]:
        faults = [f"{count} x {problem}" for problem, count in self.tally.broken.most_common(12)]
        faults += [f"the neighbour's call: {failure}" for failure in self.latency.failures[:5]]
        if self.is_delayed:
            faults.append(f"the neighbour's 95th percentile, against that at the other hall: {self.figures}")
        return faults


def run(hall: Hall, other: Hall | None, attack: Attack, share: float) -> Row:
    """Run the attack until there are enough figures. Measure again if the ratio is too high."""
    tally, latency, start = Tally(share), Latency(), time.monotonic()
    ratios_by_source: dict[str, float] = {}  # the smallest ratio of each source
    figures = ""
    for _ in range(MAX_MEASUREMENTS):
        measurement, baseline, seconds = measure(hall, other, attack, tally)
        latency.add(measurement)
        if baseline is None:
            break
        tally.expect(not baseline.failures, f"the neighbour of the other hall: {baseline.failures[:1]}")
        ratios, figures = measurement.against(baseline)
        ratios_by_source = {source: min(ratio, ratios_by_source.get(source, ratio)) for source, ratio in ratios.items()}
        if max(ratios_by_source.values()) <= RATIO or seconds > LONG_SECONDS:
            break
    return Row(attack, tally, latency, max(ratios_by_source.values(), default=None), figures, time.monotonic() - start)


def measure(hall: Hall, other: Hall | None, attack: Attack, tally: Tally) -> tuple[Latency, Latency | None, float]:
    """The latencies of the neighbours at both halls, and the seconds that this took."""
    start = time.monotonic()
    with run_neighbour(hall) as latency, run_neighbour(other) if other else contextlib.nullcontext() as baseline:
        while True:
            try:
                attack.run(hall, tally)
            except Exception as error:  # noqa: BLE001 - an attack that cannot continue has found a problem
                tally.expect(False, f"the attack ended with {type(error).__name__}: {error}")
            if other is None or tally.broken or time.monotonic() - start > MIN_SECONDS:
                break
    return latency, baseline, time.monotonic() - start


def run_tests_without_a_hall() -> tuple[bool, str]:
    """Run the pytest tests of rights and of the fuzzer's corpus. Returns whether they pass, and the last line."""
    argv = [sys.executable, "-m", "pytest", "-q", "tests/unit/attack", "tests/rows/attack"]
    result = subprocess.run(argv, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True)
    if result.returncode:
        print(result.stdout)
    return result.returncode == 0, result.stdout.strip().rpartition("\n")[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make attack")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of attacks; all by default")
    parser.add_argument("--short", action="store_true", help="a share of each")
    options = parser.parse_args()
    if unknown := set(options.names) - ATTACKS.keys():
        parser.error(f"no attack is called {', '.join(sorted(unknown))}")
    attacks = [attack for name, attack in ATTACKS.items() if not options.names or name in options.names]
    # So that the hall and its members end with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    start, rows = time.monotonic(), []
    tests_pass, tests = (True, "") if options.short or options.names else run_tests_without_a_hall()
    print(f"{'attack':<30} {'tries':>7} {'broken':>7} {'gw p95':>8} {'REST p95':>8} {'ratio':>6} {'seconds':>7}")
    with hall_under_attack() as hall, contextlib.nullcontext() if options.short else hall_under_attack() as other:
        for attack in attacks:
            rows.append(run(hall, other, attack, SHARE if options.short else 1.0))
            print(rows[-1].line(), *rows[-1].faults(), sep="\n    ", flush=True)
    print(classes.table())
    broken = sum(not row.holds for row in rows) + (not tests_pass)
    tries, honest = sum(row.tally.tries for row in rows), sum(row.latency.count for row in rows)
    print(
        f"{len(rows)} attacks in {time.monotonic() - start:.0f} s: {tries:,} tries beside {honest:,} honest calls, "
        f"{sum(sum(row.tally.broken.values()) for row in rows):,} tries and {broken} attacks broken; "
        + ", ".join(f"{row.attack.name} {row.tally.tries:,}" for row in rows)
        + (f"; tests of rights and parsers: {tests}" if tests else "")
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

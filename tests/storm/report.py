"""The report of a storm, in Markdown, with a picture of its course."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.storm.figures import Figure
from tests.storm.ledger import CallRecord
from tests.storm.picture import picture
from tests.storm.reckoning import Reckoning, Strike, accepted_within

EVIDENCE = 20  # lines of each figure


@dataclass
class Storm:
    """The content of a report. `command` repeats the storm. `not_tried`: kinds of faults, each with its reason."""

    command: str
    began_at: float
    seconds: float
    figures: list[Figure]
    found: Reckoning
    strikes: Sequence[Strike]
    records: Sequence[CallRecord]
    not_tried: list[str]

    @property
    def holds(self) -> bool:
        return all(figure.holds for figure in self.figures)

    @property
    def accepted(self) -> int:
        """The accepted calls during the storm, without those before and after."""
        return accepted_within(self.records, self.began_at, self.seconds)

    @property
    def last_line(self) -> str:
        broken = [figure.name for figure in self.figures if not figure.holds]
        kinds = len({strike.fault for strike in self.strikes})
        summary = f"{len(self.strikes)} faults of {kinds} kinds, {self.accepted:,} calls accepted"
        verdict = f"{len(broken)} figures BROKEN: {'; '.join(broken)}" if broken else "every figure holds"
        names = [line.partition(":")[0] for line in self.not_tried]
        not_tried = f"; not tried: {', '.join(names)}" if names else ""
        return f"storm: {self.seconds:.0f} s, {summary}; {verdict}{not_tried}"


def write(storm: Storm, folder: Path) -> None:
    (folder / "storm.svg").write_text(picture(storm.records, storm.strikes, storm.began_at, storm.seconds))
    (folder / "storm.md").write_text(markdown(storm))


def markdown(storm: Storm) -> str:
    parts = [
        f"# Storm\n\n`{storm.command}`\n\n{storm.last_line}\n\n![calls and faults over time](storm.svg)",
        "## Figures\n\n| Figure | Found | Bound | |\n|---|---|---|---|\n" + "\n".join(map(_row, storm.figures)),
        *(_evidence(figure) for figure in storm.figures if figure.evidence),
        "## Faults\n\n" + _faults(storm.strikes),
        *(["## Not tried\n\n" + "\n".join(f"- {line}" for line in storm.not_tried)] if storm.not_tried else []),
        "## How calls ended\n\n| | Calls |\n|---|---|\n"
        + "\n".join(f"| {end} | {count:,} |" for end, count in sorted(storm.found.ends.items())),
        "## Every fault\n\n| s | Fault | Member | Answered after | Well after | Back-off | Left after 2 s |\n"
        "|---|---|---|---|---|---|---|\n" + "\n".join(_strike(strike, storm.began_at) for strike in storm.strikes),
    ]
    return "\n\n".join(parts) + "\n"


def _row(figure: Figure) -> str:
    return f"| {figure.name} | {figure.value} | {figure.bound} | {'holds' if figure.holds else '**BROKEN**'} |"


def _evidence(figure: Figure) -> str:
    more = len(figure.evidence) - EVIDENCE
    lines = [*figure.evidence[:EVIDENCE], *([f"... and {more} more"] if more > 0 else [])]
    return f"### {figure.name}\n\n" + "\n".join(f"- {line}" for line in lines)


def _faults(strikes: Sequence[Strike]) -> str:
    counts = Counter(strike.fault for strike in strikes)
    return "| Fault | Times |\n|---|---|\n" + "\n".join(
        f"| {name} | {count} |" for name, count in sorted(counts.items())
    )


def _strike(strike: Strike, began_at: float) -> str:
    answered_after, well_after = (_seconds(value) for value in (strike.answered_after, strike.well_after))
    remains = ", ".join(strike.left) or "-"
    fault = f"{strike.fault} ({strike.detail})" if strike.detail else strike.fault
    return (
        f"| {strike.fired_at - began_at:.1f} | {fault} | {strike.member or 'all'} | {answered_after} | {well_after} "
        f"| {round(strike.back_off, 1):g} | {remains} |"
    )


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"

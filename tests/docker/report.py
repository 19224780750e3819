"""The checks of a trial, and those that every trial makes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.docker.stack import USER, Stack
from tests.storm.ledger import CallRecord
from tests.storm.reckoning import Strike, reckon

MIN_ACCEPTED = 300  # accepted calls at least, because otherwise nothing was tested
UNEXCUSED_CALLS = 200  # calls at least that no fault excuses, because otherwise no failure could be found
STOP_SECONDS = 10.0  # after which Docker kills
BUSY_PROGRAMS = 3.0  # running programs for each core, up to which the bounds of the faults hold


@dataclass
class Report:
    """Prints a line for each check. `faults` has those that did not hold."""

    began_at: float = field(default_factory=time.monotonic)
    faults: list[str] = field(default_factory=list)
    checks: int = 0

    def check(self, name: str, holds: bool, detail: object = "") -> None:
        self.checks += 1
        if not holds:
            self.faults.append(f"{name}: {detail}")
        seconds = time.monotonic() - self.began_at
        print(
            f"{seconds:>6.0f} s  {'holds ' if holds else 'BROKEN'}  {name}{f': {detail}' if detail != '' else ''}",
            flush=True,
        )

    def none(self, name: str, entries: list[str]) -> None:
        self.check(name, not entries, "; ".join(entries[:5]) or "0")


def load_factor() -> float:
    """How many times more programs than BUSY_PROGRAMS ran in the last minute, at least 1. Starts slow down as much."""
    return max(os.getloadavg()[0] / ((os.cpu_count() or 1) * BUSY_PROGRAMS), 1.0)


def check_rights(hall: Stack, report: Report, *services: str) -> None:
    """The compose file must remove every right."""
    for service in services:
        container = hall.container(service)
        status = dict(
            line.split(":\t") for line in hall.docker("exec", container, "cat", "/proc/1/status").splitlines()
        )
        rights = {name: status[name].split()[0] for name in ("Uid", "CapBnd", "NoNewPrivs")}
        is_bare = rights["Uid"] == str(USER) and not int(rights["CapBnd"], 16) and rights["NoNewPrivs"] == "1"
        report.check(f"{service} runs as an ordinary user without rights", is_bare, rights)


def check_ports(hall: Stack, report: Report, *services: str) -> None:
    """The compose file must publish ports to this machine only."""
    for service in services:
        addresses = hall.docker("port", hall.container(service)).splitlines()
        is_near = bool(addresses) and all("-> 127.0.0.1:" in address for address in addresses)
        report.check(f"{service} is published to this machine only", is_near, ", ".join(addresses))


def check_promises(hall: Stack, report: Report, records: Sequence[CallRecord], strikes: Sequence[Strike]) -> None:
    """Compare the outcomes for clients with the ledgers of the members, and with the rows."""
    reckoning = reckon(records, hall.effects(), strikes)
    report.check("calls accepted", reckoning.accepted >= MIN_ACCEPTED, f"{reckoning.accepted}, at least {MIN_ACCEPTED}")
    for promise in ("lost", "doubled", "never_ended", "misreported", "unprovoked"):
        report.none(f"calls {promise.replace('_', ' ')}", getattr(reckoning, promise))
    unexcused = sum(not any(strike.covers(record) for strike in strikes) for record in records)
    report.check(
        "calls that no fault excuses", unexcused >= UNEXCUSED_CALLS, f"{unexcused}, at least {UNEXCUSED_CALLS}"
    )
    unfinished = [hall.get(f"/api/calls/?status={status}")["results"] for status in ("queued", "running")]
    report.none("calls that wait or run forever", [row["url"] for rows in unfinished for row in rows])
    print("         " + ", ".join(f"{end} {count}" for end, count in reckoning.ends.most_common()))


def check_stop(hall: Stack, report: Report, volumes: int) -> None:
    seconds, codes = hall.stop()
    codes_text = ", ".join(f"{service} {code}" for service, code in codes.items())
    holds = not any(codes.values()) and seconds < STOP_SECONDS
    report.check("everything stops without a kill", holds, f"{seconds:.1f} s; {codes_text}")
    hall.compose("down")
    remains = hall.remains()
    holds = len(remains) == volumes and all(entry.startswith("volume") for entry in remains)
    report.check(f"`down` leaves the {volumes} volumes and nothing else", holds, ", ".join(remains))

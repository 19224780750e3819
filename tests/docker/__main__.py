"""`make docker`: the shipped image and compose file in real containers, on Linux; exit status 0 only when all holds.

    python -m tests.docker

A version without the newest migration is built, started and used, then updated to this one as docs/operations.md
says. Then containers are killed one after another and all at once while clients call through REST and the gateway;
members and clients each keep a ledger, and afterwards they are held against each other. In the end all of it is stopped
and removed. Last, the image by itself: `docker run`, killed and started again.

Where no Docker daemon answers, root on Linux may install Debian's (docker.io, docker-compose, debootstrap): the trial
starts one of its own, with base images made of Debian's packages in place of the official ones. Its files stay in
FOLDER for the next time.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.hall import ROOT, wait_until
from tests.docker import alone
from tests.docker.engine import docker, make_stand_ins
from tests.docker.faults import FAULTS, strike
from tests.docker.load import Load, settled
from tests.docker.stack import HEALTHY_SECONDS, USER, Stack, stack
from tests.storm.reckoning import Strike, reckon

FOLDER = Path("/var/lib/guild-hall-docker")
CALLS_BEFORE = 10  # of each source, to the old version
ACCEPTED = 300  # calls at least: else nobody called
# A fault excuses what fails until each source is answered again and so much longer: its other clients have each a
# connection and a session of their own, and notice with their next call.
NOTICED_SECONDS = 3.0
PEACE_SECONDS = 5.0  # then, until the next fault, in which nothing may fail
IN_PEACE = 200  # calls that no fault excuses, at least: else nothing could have failed without one
STOP_SECONDS = 10.0  # then Docker kills
BUSY = 3.0  # programs at work on each core, up to which the bounds of the faults are meant


@dataclass
class Report:
    """Lines for whoever runs it, as they come; `faults` decides."""

    began_at: float = field(default_factory=time.monotonic)
    faults: list[str] = field(default_factory=list)
    checks: int = 0

    def check(self, what: str, holds: bool, told: object = "") -> None:
        self.checks += 1
        if not holds:
            self.faults.append(f"{what}: {told}")
        seconds = time.monotonic() - self.began_at
        print(
            f"{seconds:>6.0f} s  {'holds ' if holds else 'BROKEN'}  {what}{f': {told}' if told != '' else ''}",
            flush=True,
        )

    def none(self, what: str, found: list[str]) -> None:
        self.check(what, not found, "; ".join(found[:5]) or "0")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make docker", description="The shipped image and compose file, tried.")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of a daemon of its own; default %(default)s")
    parser.add_argument("--from", dest="revision", help="the version that is updated; default: see docs/reliability.md")
    options = parser.parse_args()
    folder, revision = options.folder.absolute(), options.revision or without_the_newest_migration()
    # So that all of it ends with us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report = Report()
    with docker(folder) as engine:
        if engine.is_own and (made := make_stand_ins(engine, folder)):
            print(f"made of Debian's packages: {', '.join(made)}", flush=True)
        with tempfile.TemporaryDirectory(prefix="guild-hall-") as scratch, stack(engine, Path(scratch)) as hall:
            try:
                update(hall, report, revision)
                may_do_nothing(hall, report)
                storm(hall, report)
                end(hall, report)
                alone.run(hall, report)
            except SystemExit:
                print(hall.compose("logs", "--no-color", "--tail", "30")[-10_000:])
                raise
        report.none("nothing is left of the project", hall.remains())
    load = f"{os.getloadavg()[2]:.1f} processes at work on {os.cpu_count()} cores"
    seconds = time.monotonic() - report.began_at
    print(f"{report.checks} checks, {len(report.faults)} broken, in {seconds:.0f} s; lately {load}")
    return 1 if report.faults else 0


# The update -----------------------------------------------------------------------------------------------------------


def without_the_newest_migration() -> str:
    """The revision that brought the migration before it. Raises SystemExit where this clone does not have it.

    Not the newest one's parent: that may be any commit, and one that brings a migration is tried with more care.
    """
    log = ["git", "log", "-2", "--format=%H", "--diff-filter=A", "HEAD", "--", "roster/migrations/0*.py"]
    found = subprocess.run(log, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    if len(found) < 2:
        raise SystemExit("This clone has no version without the newest migration: git fetch --unshallow")
    return found[1]


def update(hall: Stack, report: Report, revision: str) -> None:
    hall.check_out(revision)
    hall.compose("build", seconds=900)
    hall.up()
    hall.make_token()
    hall.wait_well()
    answered = sum(hall.answers(source) for source in ("rest", "gateway") for _ in range(CALLS_BEFORE))
    what = f"a version without the newest migration ({revision[:12]}) is up and answers"
    report.check(what, answered == 2 * CALLS_BEFORE, f"{answered} calls")
    report.check(
        "the log of `prepare` shows the first password", "with the password" in hall.compose("logs", "prepare")
    )
    before = hall.asked("/api/calls/?page_size=200")["results"]
    applied = migrations(hall)

    hall.check_out()
    hall.compose("build", seconds=900)
    began = time.monotonic()
    hall.compose("stop", "web", "runtime")
    hall.up()
    hall.wait_well()
    seconds = time.monotonic() - began
    report.check(
        "this version is up and answers the old token", True, f"{seconds:.0f} s until every service is healthy"
    )
    kept = {row["url"]: row for row in hall.asked("/api/calls/?page_size=200")["results"]}
    changed = [row["url"] for row in before if kept.get(row["url"], {}).get("status") != row["status"]]
    report.check("calls of before are as they were", bool(before) and not changed, f"{len(before)}, {len(changed)} not")
    came = sorted(migrations(hall) - applied)
    report.check("migrations were applied", bool(came), ", ".join(came))


def migrations(hall: Stack) -> set[str]:
    said = hall.compose("exec", "-T", "web", "python", "manage.py", "showmigrations", "roster", "--plan")
    return {line.split()[-1] for line in said.splitlines() if line.startswith("[X]")}


# Under load -----------------------------------------------------------------------------------------------------------


def may_do_nothing(hall: Stack, report: Report) -> None:
    """That the compose file takes every right away, and opens nothing but to this machine."""
    for service in ("web", "runtime"):
        container = hall.container(service)
        status = dict(
            line.split(":\t") for line in hall.docker("exec", container, "cat", "/proc/1/status").splitlines()
        )
        rights = {name: status[name].split()[0] for name in ("Uid", "CapBnd", "NoNewPrivs")}
        is_bare = rights["Uid"] == str(USER) and not int(rights["CapBnd"], 16) and rights["NoNewPrivs"] == "1"
        report.check(f"{service} runs as an ordinary user without rights", is_bare, rights)
        places = hall.docker("port", container).splitlines()
        is_near = bool(places) and all("-> 127.0.0.1:" in place for place in places)
        report.check(f"{service} is published to this machine alone", is_near, ", ".join(places))


def storm(hall: Stack, report: Report) -> None:
    strikes = []
    with Load(hall) as load:
        load.wait_for_successes(time.monotonic(), 30)
        for fault in FAULTS:
            fired_at = time.monotonic()
            at, left = strike(hall, fault)
            back_at = load.wait_for_successes(at, 60)
            well_at = back_at + NOTICED_SECONDS
            strikes.append(Strike(fault.name, "", fired_at, over_at=back_at, answered_at=back_at, well_at=well_at))
            bound = fault.seconds * busyness()
            wait_until(hall.is_healthy, HEALTHY_SECONDS, f"every service is healthy after: {fault.name}")
            load.wait_for_successes(max(time.monotonic(), well_at) + PEACE_SECONDS, 30)
            report.check(
                fault.name,
                back_at - at <= bound,
                f"calls of every source are answered after {back_at - at:.1f} s of {bound:.0f}",
            )
            if fault.ends_members:
                report.none(f"{fault.name}: alive two seconds later", left)
    report.none("faults of the trial itself", load.faults)
    told = settled(hall, load.told)
    found = reckon(told, hall.effects(), strikes)
    report.check("calls accepted", found.accepted >= ACCEPTED, f"{found.accepted}, at least {ACCEPTED}")
    for what in ("lost", "doubled", "never_ended", "mistold", "unprovoked"):
        report.none(f"calls {what.replace('_', ' ')}", getattr(found, what))
    in_peace = sum(not any(strike.covers(one) for strike in strikes) for one in told)
    report.check("calls that no fault excuses", in_peace >= IN_PEACE, f"{in_peace}, at least {IN_PEACE}")
    unfinished = [hall.asked(f"/api/calls/?status={status}")["results"] for status in ("queued", "running")]
    report.none("calls that wait or run for ever", [row["url"] for rows in unfinished for row in rows])
    print("         " + ", ".join(f"{end} {count}" for end, count in found.ends.most_common()))


def busyness() -> float:
    """1, or how many times more programs than BUSY were at work in the last minute: each start takes as much longer."""
    return max(os.getloadavg()[0] / ((os.cpu_count() or 1) * BUSY), 1.0)


# The end --------------------------------------------------------------------------------------------------------------


def end(hall: Stack, report: Report) -> None:
    seconds, codes = hall.stop()
    ended = ", ".join(f"{service} {code}" for service, code in codes.items())
    holds = not any(codes.values()) and seconds < STOP_SECONDS
    report.check("everything stops by itself", holds, f"{seconds:.1f} s; {ended}")
    hall.compose("down")
    left = hall.remains()
    holds = len(left) == 2 and all(one.startswith("volume") for one in left)
    report.check("`down` leaves the two volumes and nothing else", holds, ", ".join(left))
    hall.up()
    hall.wait_answers()
    report.check("after the next `up` the old token is answered", True)
    hall.compose("down", "--volumes")
    report.none("left by `down --volumes`", hall.remains())


if __name__ == "__main__":
    sys.exit(main())

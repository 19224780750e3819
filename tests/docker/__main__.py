"""`make docker`: the shipped image and compose file in real containers, on Linux. Exit status 0 if all checks hold.

    python -m tests.docker

A version without the newest migration is built, started and used, and then updated to this one as docs/operations.md
says. Then containers are killed one by one and all at once, while clients call through REST and the gateway. Members
and clients each keep a ledger, and the trial compares them. At the end everything is stopped and removed. The last part
is the image alone: `docker run`, killed and started again.

If no Docker daemon responds, root on Linux may install Debian's (docker.io, docker-compose, debootstrap). The trial
then starts its own daemon, with base images made of Debian's packages instead of the official ones. Its files stay in
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
from tests.docker.faults import FAULTS, fire_fault
from tests.docker.load import Load, settle
from tests.docker.stack import HEALTHY_SECONDS, USER, Stack, stack
from tests.storm.reckoning import Strike, reckon

FOLDER = Path("/var/lib/guild-hall-docker")
CALLS_BEFORE = 10  # for each source, to the old version
MIN_ACCEPTED = 300  # accepted calls at least, because otherwise nothing was tested
# A fault excuses failures until each source has a success, and so much longer. The other clients of the source have
# their own connections and sessions, and notice the fault with their next call.
NOTICE_SECONDS = 3.0
QUIET_SECONDS = 5.0  # until the next fault. Nothing may fail in this time
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


def main() -> int:
    parser = argparse.ArgumentParser(prog="make docker", description="The shipped image and compose file, tried.")
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="for the files of our own daemon; default %(default)s"
    )
    parser.add_argument("--from", dest="revision", help="the version that is updated; default: see docs/reliability.md")
    options = parser.parse_args()
    folder, revision = options.folder.absolute(), options.revision or previous_migration_revision()
    # So that everything ends with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report = Report()
    with docker(folder) as engine:
        if engine.is_own and (images := make_stand_ins(engine, folder)):
            print(f"made from Debian's packages: {', '.join(images)}", flush=True)
        with tempfile.TemporaryDirectory(prefix="guild-hall-") as scratch, stack(engine, Path(scratch)) as hall:
            try:
                update(hall, report, revision)
                check_rights(hall, report)
                storm(hall, report)
                end(hall, report)
                alone.run(hall, report)
            except SystemExit:
                print(hall.compose("logs", "--no-color", "--tail", "30")[-10_000:])
                raise
        report.none("nothing remains of the project", hall.remains())
    load = f"{os.getloadavg()[2]:.1f} running processes on {os.cpu_count()} cores"
    seconds = time.monotonic() - report.began_at
    print(f"{report.checks} checks, {len(report.faults)} broken, in {seconds:.0f} s; lately {load}")
    return 1 if report.faults else 0


# The update -----------------------------------------------------------------------------------------------------------


def previous_migration_revision() -> str:
    """The revision that added the second newest migration. Raises SystemExit if this clone does not have it.

    It is not the parent of the newest one, which may be any commit. A commit with a migration is tested more carefully.
    """
    log = ["git", "log", "-2", "--format=%H", "--diff-filter=A", "HEAD", "--", "roster/migrations/0*.py"]
    revisions = subprocess.run(log, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    if len(revisions) < 2:
        raise SystemExit("This clone has no version without the newest migration: git fetch --unshallow")
    return revisions[1]


def update(hall: Stack, report: Report, revision: str) -> None:
    hall.check_out(revision)
    hall.compose("build", seconds=900)
    hall.up()
    hall.make_token()
    hall.wait_until_healthy()
    count = sum(hall.call_succeeds(source) for source in ("rest", "gateway") for _ in range(CALLS_BEFORE))
    name = f"a version without the newest migration ({revision[:12]}) is up and responds"
    report.check(name, count == 2 * CALLS_BEFORE, f"{count} calls")
    report.check(
        "the log of `prepare` shows the first password", "with the password" in hall.compose("logs", "prepare")
    )
    calls_before = hall.get("/api/calls/?page_size=200")["results"]
    migrations_before = migrations(hall)

    hall.check_out()
    hall.compose("build", seconds=900)
    start = time.monotonic()
    hall.compose("stop", "web", "runtime")
    hall.up()
    hall.wait_until_healthy()
    seconds = time.monotonic() - start
    report.check(
        "this version is up and accepts the old token", True, f"{seconds:.0f} s until every service is healthy"
    )
    calls_after = {row["url"]: row for row in hall.get("/api/calls/?page_size=200")["results"]}
    changed_urls = [
        row["url"] for row in calls_before if calls_after.get(row["url"], {}).get("status") != row["status"]
    ]
    report.check(
        "earlier calls did not change",
        bool(calls_before) and not changed_urls,
        f"{len(calls_before)}, {len(changed_urls)} not",
    )
    new_migrations = sorted(migrations(hall) - migrations_before)
    report.check("migrations were applied", bool(new_migrations), ", ".join(new_migrations))


def migrations(hall: Stack) -> set[str]:
    output = hall.compose("exec", "-T", "web", "python", "manage.py", "showmigrations", "roster", "--plan")
    return {line.split()[-1] for line in output.splitlines() if line.startswith("[X]")}


# Under load -----------------------------------------------------------------------------------------------------------


def check_rights(hall: Stack, report: Report) -> None:
    """The compose file must remove every right, and publish ports to this machine only."""
    for service in ("web", "runtime"):
        container = hall.container(service)
        status = dict(
            line.split(":\t") for line in hall.docker("exec", container, "cat", "/proc/1/status").splitlines()
        )
        rights = {name: status[name].split()[0] for name in ("Uid", "CapBnd", "NoNewPrivs")}
        is_bare = rights["Uid"] == str(USER) and not int(rights["CapBnd"], 16) and rights["NoNewPrivs"] == "1"
        report.check(f"{service} runs as an ordinary user without rights", is_bare, rights)
        addresses = hall.docker("port", container).splitlines()
        is_near = bool(addresses) and all("-> 127.0.0.1:" in address for address in addresses)
        report.check(f"{service} is published to this machine only", is_near, ", ".join(addresses))


def storm(hall: Stack, report: Report) -> None:
    strikes = []
    with Load(hall) as load:
        load.wait_for_successes(time.monotonic(), 30)
        for fault in FAULTS:
            fired_at = time.monotonic()
            struck_at, remains = fire_fault(hall, fault)
            back_at = load.wait_for_successes(struck_at, 60)
            well_at = back_at + NOTICE_SECONDS
            strikes.append(Strike(fault.name, "", fired_at, over_at=back_at, answered_at=back_at, well_at=well_at))
            bound = fault.seconds * load_factor()
            wait_until(hall.is_healthy, HEALTHY_SECONDS, f"every service is healthy after: {fault.name}")
            load.wait_for_successes(max(time.monotonic(), well_at) + QUIET_SECONDS, 30)
            report.check(
                fault.name,
                back_at - struck_at <= bound,
                f"calls of every source succeed after {back_at - struck_at:.1f} s of {bound:.0f}",
            )
            if fault.ends_members:
                report.none(f"{fault.name}: alive two seconds later", remains)
    report.none("faults of the trial itself", load.faults)
    records = settle(hall, load.records)
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


def load_factor() -> float:
    """How many times more programs than BUSY_PROGRAMS ran in the last minute, at least 1. Starts slow down as much."""
    return max(os.getloadavg()[0] / ((os.cpu_count() or 1) * BUSY_PROGRAMS), 1.0)


# The end --------------------------------------------------------------------------------------------------------------


def end(hall: Stack, report: Report) -> None:
    seconds, codes = hall.stop()
    codes_text = ", ".join(f"{service} {code}" for service, code in codes.items())
    holds = not any(codes.values()) and seconds < STOP_SECONDS
    report.check("everything stops without a kill", holds, f"{seconds:.1f} s; {codes_text}")
    hall.compose("down")
    remains = hall.remains()
    holds = len(remains) == 2 and all(entry.startswith("volume") for entry in remains)
    report.check("`down` leaves the two volumes and nothing else", holds, ", ".join(remains))
    hall.up()
    hall.wait_for_calls()
    report.check("after the next `up` the old token is accepted", True)
    hall.compose("down", "--volumes")
    report.none("left by `down --volumes`", hall.remains())


if __name__ == "__main__":
    sys.exit(main())

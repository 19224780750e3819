"""`make docker`: the shipped image and compose files in real containers, on Linux. Exit status 0 if all checks hold.

    python -m tests.docker          docker-compose.yml
    python -m tests.docker nodes    docker-compose.nodes.yml, in 5 minutes: see tests/docker/nodes.py

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
from pathlib import Path

from bench.hall import ROOT, wait_until
from tests.docker import alone, nodes
from tests.docker.engine import docker, make_stand_ins
from tests.docker.faults import FAULTS, fire_fault
from tests.docker.load import Load, settle
from tests.docker.report import Report, check_ports, check_promises, check_rights, check_stop, load_factor
from tests.docker.stack import HEALTHY_SECONDS, ONE_MACHINE, Stack, stack
from tests.storm.reckoning import Strike

FOLDER = Path("/var/lib/guild-hall-docker")
CALLS_BEFORE = 10  # for each source, to the old version
# A fault excuses failures until each source has a success, and so much longer. The other clients of the source have
# their own connections and sessions, and notice the fault with their next call.
NOTICE_SECONDS = 3.0
QUIET_SECONDS = 5.0  # until the next fault. Nothing may fail in this time


def main() -> int:
    parser = argparse.ArgumentParser(prog="make docker", description="The shipped image and compose file, tried.")
    parser.add_argument(
        "part", nargs="?", choices=("one", "nodes"), default="one",
        help="docker-compose.yml (`one`, the default), or docker-compose.nodes.yml (`nodes`)",
    )  # fmt: skip
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="for the files of our own daemon; default %(default)s"
    )
    parser.add_argument("--from", dest="revision", help="the version that is updated; default: see docs/reliability.md")
    options = parser.parse_args()
    folder, shape = options.folder.absolute(), nodes.SHAPE if options.part == "nodes" else ONE_MACHINE
    # So that everything ends with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report = Report()
    with docker(folder) as engine:
        if engine.is_own and (images := make_stand_ins(engine, folder)):
            print(f"made from Debian's packages: {', '.join(images)}", flush=True)
        with tempfile.TemporaryDirectory(prefix="guild-hall-") as scratch, stack(engine, Path(scratch), shape) as hall:
            try:
                if options.part == "nodes":
                    nodes.run(hall, report)
                else:
                    run(hall, report, options.revision or previous_migration_revision())
            except SystemExit:
                print(hall.compose("logs", "--no-color", "--tail", "30")[-10_000:])
                raise
        report.none("nothing remains of the project", hall.remains())
    load = f"{os.getloadavg()[2]:.1f} running processes on {os.cpu_count()} cores"
    seconds = time.monotonic() - report.began_at
    print(f"{report.checks} checks, {len(report.faults)} broken, in {seconds:.0f} s; lately {load}")
    return 1 if report.faults else 0


def run(hall: Stack, report: Report, revision: str) -> None:
    update(hall, report, revision)
    check_rights(hall, report, "web", "runtime")
    check_ports(hall, report, "web", "runtime")
    storm(hall, report)
    end(hall, report)
    alone.run(hall, report)


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
    check_promises(hall, report, settle(hall, load.records), strikes)


# The end --------------------------------------------------------------------------------------------------------------


def end(hall: Stack, report: Report) -> None:
    check_stop(hall, report, volumes=2)
    hall.up()
    hall.wait_for_calls()
    report.check("after the next `up` the old token is accepted", True)
    hall.compose("down", "--volumes")
    report.none("left by `down --volumes`", hall.remains())


if __name__ == "__main__":
    sys.exit(main())

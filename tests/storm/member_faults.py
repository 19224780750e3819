"""Faults that hit one member, and must not affect other members."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Collection
from datetime import datetime

import psutil

from tests.storm.hall import Processes, StormHall, kind_of
from tests.storm.reckoning import LEFT_SECONDS, PATIENCE, Strike
from tests.storm.striking import POLL_SECONDS, Fault, Scene, note_remains, send, wait_until

FREEZE_SECONDS = (1.0, 6.0)
MAX_PAUSES = 60.0  # maximal seconds of back-off that the storm waits


def on_a_member(
    hit_member: Callable[[Scene, random.Random, str, int], None], without: Collection[str] = ()
) -> Callable[[Scene, random.Random], None]:
    """Hit the first member that is connected and has no other fault. `without`: kinds of members to skip."""

    def fire(scene: Scene, rng: random.Random) -> None:
        names = [name for name in scene.hall.names if kind_of(name) not in without]
        names = rng.sample(names, len(names))
        pids = ((name, pid_of(scene.hall, name)) for name in names if name not in scene.hit)
        name, pid = next(((name, pid) for name, pid in pids if pid is not None and scene.begin(name)), ("", None))
        if pid is None:
            return
        try:
            with contextlib.suppress(psutil.NoSuchProcess):  # the member ended by itself just before
                hit_member(scene, rng, name, pid)
        finally:
            scene.hit.discard(name)

    return fire


@on_a_member
def kill_member(scene: Scene, rng: random.Random, name: str, pid: int) -> None:
    """Kill the process that the hall started. For a stdio member kill its bridge or the server behind it."""
    process = psutil.Process(pid)
    if kind_of(name) == "stdio" and rng.random() < 0.5:
        process = next(iter(process.children()), process)
    processes = scene.hall.member_processes(name)
    strike = scene.strike("member killed", name)
    if send(process, signal.SIGKILL):
        watch_member(scene, strike, processes, pid)
    else:
        scene.cancel_strike(strike)


@on_a_member
def freeze_member(scene: Scene, rng: random.Random, name: str, pid: int) -> None:
    seconds = rng.uniform(*FREEZE_SECONDS)
    process = psutil.Process(pid)
    strike = scene.strike("member frozen", name, f"{seconds:.1f} s")
    if not send(process, signal.SIGSTOP):
        scene.cancel_strike(strike)
        return
    try:
        time.sleep(seconds)
    finally:
        send(process, signal.SIGCONT)
    strike.over_at = time.monotonic()
    if wait_until(lambda: pid_of(scene.hall, name) is not None):
        strike.well_at = time.monotonic()


def watch_member(scene: Scene, strike: Strike, processes: Processes, old_pid: int) -> None:
    """Wait until the member has a new process and is connected."""
    back_off = BackOff(scene.hall, strike.member)

    def is_well() -> bool:
        row = back_off.look()
        return row.get("status") == "connected" and row.get("pid") not in (None, old_pid)

    is_soon = wait_until(is_well, LEFT_SECONDS)
    if is_soon:
        strike.well_at = time.monotonic()
    note_remains(scene, strike, processes)
    while strike.well_at is None and time.monotonic() < strike.over_at + min(back_off.seconds, MAX_PAUSES) + PATIENCE:
        if is_well():
            strike.well_at = time.monotonic()
        time.sleep(POLL_SECONDS)
    strike.back_off = back_off.seconds


class BackOff:
    """The pauses before restarts of a member, in seconds, from its row while it is in error."""

    def __init__(self, hall: StormHall, member: str) -> None:
        self._hall, self._member = hall, member
        self._pauses: dict[str, float] = {}  # by the time of the failure

    def look(self) -> dict[str, object]:
        """The row of the member. Empty while there is no response."""
        row = self._hall.read(f"/api/members/{self._member}/") or {}
        if row.get("status") == "error":
            failed_at, next_at = row["status_changed_at"], row["next_restart_at"]
            if next_at is not None:  # otherwise there is no automatic restart, which is no pause
                pause = datetime.fromisoformat(next_at) - datetime.fromisoformat(failed_at)
                self._pauses[failed_at] = max(pause.total_seconds(), 0.0)
        return row

    @property
    def seconds(self) -> float:
        return sum(self._pauses.values())


def pid_of(hall: StormHall, member: str) -> int | None:
    """The pid of a connected member."""
    row = hall.read(f"/api/members/{member}/") or {}
    return int(row["pid"]) if row.get("status") == "connected" else None


FAULTS = [Fault("member killed", kill_member), Fault("member frozen", freeze_member)]

"""Faults that hit one member, while all others are to notice nothing."""

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
from tests.storm.striking import LOOK, Fault, Scene, note_what_is_left, send, wait_until

FREEZE_SECONDS = (1.0, 6.0)
MOST_PAUSES = 60.0  # seconds of back-off that the storm waits for


def on_a_member(
    hit: Callable[[Scene, random.Random, str, int], None], without: Collection[str] = ()
) -> Callable[[Scene, random.Random], None]:
    """On the first that is connected and has no other fault at the moment, with its pid; `without`: kinds of them."""

    def fire(scene: Scene, chance: random.Random) -> None:
        names = [name for name in scene.hall.names if kind_of(name) not in without]
        names = chance.sample(names, len(names))
        found = ((name, pid_of(scene.hall, name)) for name in names if name not in scene.hit)
        name, pid = next(((name, pid) for name, pid in found if pid is not None and scene.begin(name)), ("", None))
        if pid is None:
            return
        try:
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended by itself in the moment before
                hit(scene, chance, name, pid)
        finally:
            scene.hit.discard(name)

    return fire


@on_a_member
def kill_member(scene: Scene, chance: random.Random, name: str, pid: int) -> None:
    """SIGKILL for the process that the hall started; of a stdio member for its bridge or for the server behind it."""
    process = psutil.Process(pid)
    if kind_of(name) == "stdio" and chance.random() < 0.5:
        process = next(iter(process.children()), process)
    before = scene.hall.member_processes(name)
    strike = scene.strike("member killed", name)
    if send(process, signal.SIGKILL):
        watch_member(scene, strike, before, pid)
    else:
        scene.take_back(strike)


@on_a_member
def freeze_member(scene: Scene, chance: random.Random, name: str, pid: int) -> None:
    seconds = chance.uniform(*FREEZE_SECONDS)
    process = psutil.Process(pid)
    strike = scene.strike("member frozen", name, f"{seconds:.1f} s")
    if not send(process, signal.SIGSTOP):
        scene.take_back(strike)
        return
    try:
        time.sleep(seconds)
    finally:
        send(process, signal.SIGCONT)
    strike.over_at = time.monotonic()
    if wait_until(lambda: pid_of(scene.hall, name) is not None):
        strike.well_at = time.monotonic()


def watch_member(scene: Scene, strike: Strike, before: Processes, old_pid: int) -> None:
    """Until the member has another process and is connected."""
    back_off = BackOff(scene.hall, strike.member)

    def is_well() -> bool:
        row = back_off.look()
        return row.get("status") == "connected" and row.get("pid") not in (None, old_pid)

    is_soon = wait_until(is_well, LEFT_SECONDS)
    if is_soon:
        strike.well_at = time.monotonic()
    note_what_is_left(scene, strike, before)
    while strike.well_at is None and time.monotonic() < strike.over_at + min(back_off.seconds, MOST_PAUSES) + PATIENCE:
        if is_well():
            strike.well_at = time.monotonic()
        time.sleep(LOOK)
    strike.back_off = back_off.seconds


class BackOff:
    """What the hall waits before it starts a member again, in seconds, as its row says while it is in error."""

    def __init__(self, hall: StormHall, member: str) -> None:
        self._hall, self._member = hall, member
        self._pauses: dict[str, float] = {}  # by the moment of the failure

    def look(self) -> dict[str, object]:
        """The member's row; empty while nobody answers."""
        row = self._hall.asked(f"/api/members/{self._member}/") or {}
        if row.get("status") == "error":
            failed_at, again_at = row["status_changed_at"], row["next_restart_at"]
            if again_at is not None:  # else it is not tried again automatically, which is no pause
                pause = datetime.fromisoformat(again_at) - datetime.fromisoformat(failed_at)
                self._pauses[failed_at] = max(pause.total_seconds(), 0.0)
        return row

    @property
    def seconds(self) -> float:
        return sum(self._pauses.values())


def pid_of(hall: StormHall, member: str) -> int | None:
    """While it is connected."""
    row = hall.asked(f"/api/members/{member}/") or {}
    return int(row["pid"]) if row.get("status") == "connected" else None


FAULTS = [Fault("member killed", kill_member), Fault("member frozen", freeze_member)]

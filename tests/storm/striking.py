"""Fires faults and watches their effect: processes that remain after two seconds, and the recovery of the hall."""

from __future__ import annotations

import contextlib
import http.client
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil

from tests.storm.hall import Processes, StormHall
from tests.storm.reckoning import ALL, LEFT_SECONDS, PATIENCE, Strike

POLL_SECONDS = 0.1
# The seconds of a fault in a short storm, and in a long one, in which one in LONG_ONE_IN outlives the heartbeat.
BRIEF_SECONDS, SOME_SECONDS, LONG_SECONDS, LONG_ONE_IN = (0.5, 2.5), (1.0, 5.0), (11.0, 13.0), 4


@dataclass
class Scene:
    """The surroundings of a fault. `strikes` grows during the storm. `hit`: members that have a fault now.

    `is_long`: whether there is time for faults that outlive the lease. `untrue`: wrong statuses of the roster. `looks`:
    the number of comparisons with the roster. `ended`: the times when `manage.py up` exited unexpectedly.
    """

    hall: StormHall
    is_long: bool = False
    strikes: list[Strike] = field(default_factory=list)
    hit: set[str] = field(default_factory=set)
    looks: int = 0
    untrue: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    ended_by_copies: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)  # of the storm itself
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def keep_firing(self, faults: Sequence[Fault], rng: random.Random, end: threading.Event) -> None:
        """Fire faults one after the other, each kind equally often."""
        while not end.is_set():
            for fault in rng.sample(faults, len(faults)):
                if end.wait(rng.random()):
                    return
                self.fire(fault, rng)

    def fire(self, fault: Fault, rng: random.Random) -> None:
        try:
            fault.fire(self, rng)
        except Exception as error:  # noqa: BLE001 - a fault that cannot be fired is a fault of the storm
            self.faults.append(f"{fault.name}: {type(error).__name__}: {error}")

    def strike(self, fault: str, member: str = ALL, detail: str = "") -> Strike:
        """Record a strike. Call this at the moment of the fault."""
        now = time.monotonic()
        strike = Strike(fault, member, fired_at=now, over_at=now, detail=detail)
        self.strikes.append(strike)
        return strike

    def cancel_strike(self, strike: Strike) -> None:
        """Remove a strike whose fault did not happen."""
        self.strikes.remove(strike)

    def choose_seconds(self, rng: random.Random) -> float:
        """A random duration for a fault."""
        if not self.is_long:
            return rng.uniform(*BRIEF_SECONDS)
        return rng.uniform(*(SOME_SECONDS if rng.randrange(LONG_ONE_IN) else LONG_SECONDS))

    def begin(self, member: str) -> bool:
        """Mark the member as hit. Returns whether it had no other fault."""
        with self._lock:
            is_free = member not in self.hit
            self.hit.add(member)
            return is_free

    def check_the_roster(self, strike: Strike) -> None:
        """During a fault, check that a member that responds is not shown as disconnected."""
        name = next(name for name in self.hall.well() if name not in self.hit)
        with (
            self.hall.agent("root", 3.0) as client,
            contextlib.suppress(OSError, http.client.HTTPException, ValueError),
        ):
            key = f"roster-{strike.fired_at:.3f}"
            responds = client.call(f"{name}__effect", {"key": key}, modern=True).text == key
            row = self.hall.read(f"/api/members/{name}/")
            if not responds or row is None:
                return
            self.looks += 1
            if row["status"] != "connected":
                seconds = time.monotonic() - strike.fired_at
                self.untrue.append(
                    f"{strike.fault} for {seconds:.1f} s: {name} answers, and is shown as {row['status']}"
                )


@dataclass(frozen=True)
class Fault:
    """`fire` returns when all is well again, or after PATIENCE."""

    name: str
    fire: Callable[[Scene, random.Random], None]


def send(process: psutil.Process | None, number: signal.Signals) -> bool:
    """Send a signal. Returns whether the process existed."""
    with contextlib.suppress(psutil.Error):
        if process is not None:
            process.send_signal(number)
            return True
    return False


def note_remains(scene: Scene, strike: Strike, processes_before: Processes) -> None:
    """Two seconds after the fault, note the processes of `processes_before` that are still live, and their ports."""
    time.sleep(max(strike.fired_at + LEFT_SECONDS - time.monotonic(), 0.0))
    processes_now = scene.hall.member_processes()
    processes = {
        pid: name
        for pid, (started_at, name) in processes_now.items()
        if processes_before.get(pid) == (started_at, name)
    }
    ports = scene.hall.ports_of(set(processes))
    strike.left = [f"process {pid} of {name}" for pid, name in processes.items()] + [f"port {port}" for port in ports]


def await_all(scene: Scene, strike: Strike) -> None:
    """Wait until web and gateway respond, and every member without another fault is connected."""
    hall = scene.hall
    names = set(hall.well())

    def is_well() -> bool:
        if hall.up_process is None:
            strike.detail += ", and `manage.py up` exited unexpectedly"
            scene.ended.append(f"{strike.fault} {strike.detail} at {strike.fired_at:.1f}")
            hall.start_up()
            return False
        # In this order, because a search through all processes takes CPU time from starting processes.
        return hall.connected() >= names - scene.hit and hall.part("worker") is not None

    if wait_until(is_well):
        strike.well_at = time.monotonic()


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Whether the condition became true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True

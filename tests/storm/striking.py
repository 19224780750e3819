"""How a fault is fired and watched: who lived before, who of them lives two seconds later, when all is well again."""

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

LOOK = 0.1
# That a fault lasts: in a short storm, and in a long one, where one in so many outlives the heartbeat.
BRIEF_SECONDS, SOME_SECONDS, LONG_SECONDS, LONG_ONE_IN = (0.5, 2.5), (1.0, 5.0), (11.0, 13.0), 4


@dataclass
class Scene:
    """What a fault has to do with. `strikes` grows while it storms; `hit`: members under a fault.

    `is_long`: there is time for faults that outlive the lease. `untrue`: what the roster said against what it was;
    `looks`: how often it was compared. `ended`: when `manage.py up` ended by itself.
    """

    hall: StormHall
    is_long: bool = False
    strikes: list[Strike] = field(default_factory=list)
    hit: set[str] = field(default_factory=set)
    looks: int = 0
    untrue: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    ended_by_copies: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)  # of our own
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def keep_firing(self, faults: Sequence[Fault], chance: random.Random, until: threading.Event) -> None:
        """One after the other, each kind as often as any other."""
        while not until.is_set():
            for fault in chance.sample(faults, len(faults)):
                if until.wait(chance.random()):
                    return
                self.fire(fault, chance)

    def fire(self, fault: Fault, chance: random.Random) -> None:
        try:
            fault.fire(self, chance)
        except Exception as error:  # noqa: BLE001 - one that could not be fired is a fault of the storm, and told
            self.faults.append(f"{fault.name}: {type(error).__name__}: {error}")

    def strike(self, fault: str, member: str = ALL, told: str = "") -> Strike:
        """To be called at the moment of the fault."""
        now = time.monotonic()
        one = Strike(fault, member, fired_at=now, over_at=now, told=told)
        self.strikes.append(one)
        return one

    def take_back(self, strike: Strike) -> None:
        """Nothing was done after all."""
        self.strikes.remove(strike)

    def some_seconds(self, chance: random.Random) -> float:
        """That a fault is to last."""
        if not self.is_long:
            return chance.uniform(*BRIEF_SECONDS)
        return chance.uniform(*(SOME_SECONDS if chance.randrange(LONG_ONE_IN) else LONG_SECONDS))

    def begin(self, member: str) -> bool:
        """Whether nothing else is done to it at the moment."""
        with self._lock:
            is_free = member not in self.hit
            self.hit.add(member)
            return is_free

    def check_the_roster(self, strike: Strike) -> None:
        """In the midst of a fault: who answers a call is not shown as disconnected."""
        name = next(name for name in self.hall.well() if name not in self.hit)
        with (
            self.hall.agent("root", 3.0) as client,
            contextlib.suppress(OSError, http.client.HTTPException, ValueError),
        ):
            key = f"roster-{strike.fired_at:.3f}"
            answers = client.call(f"{name}__effect", {"key": key}, modern=True).text == key
            row = self.hall.asked(f"/api/members/{name}/")
            if not answers or row is None:
                return
            self.looks += 1
            if row["status"] != "connected":
                after = time.monotonic() - strike.fired_at
                self.untrue.append(f"{strike.fault} for {after:.1f} s: {name} answers, and is shown as {row['status']}")


@dataclass(frozen=True)
class Fault:
    """`fire` returns when all is well again, or patience is over."""

    name: str
    fire: Callable[[Scene, random.Random], None]


def send(process: psutil.Process | None, number: signal.Signals) -> bool:
    """Whether there was one to get it."""
    with contextlib.suppress(psutil.Error):
        if process is not None:
            process.send_signal(number)
            return True
    return False


def note_what_is_left(scene: Scene, strike: Strike, before: Processes) -> None:
    """Two seconds after the fault: which processes of `before` live, and which ports they hold."""
    time.sleep(max(strike.fired_at + LEFT_SECONDS - time.monotonic(), 0.0))
    now = scene.hall.member_processes()
    left = {pid: name for pid, (started_at, name) in now.items() if before.get(pid) == (started_at, name)}
    ports = scene.hall.ports_of(set(left))
    strike.left = [f"process {pid} of {name}" for pid, name in left.items()] + [f"port {port}" for port in ports]


def await_all(scene: Scene, strike: Strike) -> None:
    """Until web and gateway answer and every member is connected that nothing else was done to."""
    hall = scene.hall
    wanted = set(hall.well())

    def is_well() -> bool:
        if hall.up_process is None:
            strike.told += ", and `manage.py up` ended by itself"
            scene.ended.append(f"{strike.fault} {strike.told} at {strike.fired_at:.1f}")
            hall.start_up()
            return False
        # In this order: to look for a part among all processes takes CPU from those that start.
        return hall.connected() >= wanted - scene.hit and hall.part("worker") is not None

    if wait_until(is_well):
        strike.well_at = time.monotonic()


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK)
    return True

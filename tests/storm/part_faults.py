"""Faults that hit the hall's own processes, alone and in pairs. Everybody notices; nobody is told anything untrue."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

from tests.storm.striking import Fault, Scene, await_all, note_what_is_left, send

# Of these any two may die at the same moment. Of all three at once only a container or the init system can take care.
PAIRS = [("guard", "worker"), ("up", "worker"), ("up", "guard")]


def kill(name: str) -> Callable[[Scene, random.Random], None]:
    return lambda scene, _: kill_parts(scene, (name,), f"{name} killed")


def kill_a_pair(scene: Scene, chance: random.Random) -> None:
    names = chance.choice(PAIRS)
    kill_parts(scene, names, "two parts killed", " and ".join(names))


def kill_parts(scene: Scene, names: tuple[str, ...], what: str, told: str = "") -> None:
    """SIGKILL for those parts, with nothing between. A part that is not there is no kill."""
    hall = scene.hall
    parts = [hall.part(name) for name in names]
    if None in parts:
        return
    # The web's end is no end of members.
    before = {} if names == ("web",) else hall.member_processes()
    place = hall.log.stat().st_size
    strike = scene.strike(what, told=told)
    reached = [name for name, part in zip(names, parts, strict=True) if send(part, signal.SIGKILL)]
    if not reached:
        scene.take_back(strike)
        return
    if len(reached) < len(names):
        strike.fault, strike.told = f"{reached[0]} killed", f"{told}: one was not there any more"
    if before:
        note_what_is_left(scene, strike, before)
    if "up" in names:
        hall.start_up()
        strike.over_at = time.monotonic()
    await_all(scene, strike)
    strike.back_off = hall.pauses_since(place)


def freeze(name: str) -> Callable[[Scene, random.Random], None]:
    def fire(scene: Scene, chance: random.Random) -> None:
        part, seconds = scene.hall.part(name), scene.some_seconds(chance)
        strike = scene.strike(f"{name} frozen", told=f"{seconds:.1f} s")
        if not send(part, signal.SIGSTOP):
            scene.take_back(strike)
            return
        try:
            time.sleep(seconds)
            if name in ("up", "guard"):  # without these two calls are answered
                scene.check_the_roster(strike)
        finally:
            send(part, signal.SIGCONT)
        strike.over_at = time.monotonic()
        await_all(scene, strike)

    return fire


FAULTS = [
    *(Fault(f"{name} killed", kill(name)) for name in ("worker", "guard", "up", "web")),
    *(Fault(f"{name} frozen", freeze(name)) for name in ("worker", "guard", "up", "web")),
    Fault("two parts killed", kill_a_pair),
]

"""Faults of the hall's own processes, alone and in pairs. All clients notice them, but get no wrong outcomes."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

from tests.storm.striking import Fault, Scene, await_all, note_remains, send

# Any two of these may be killed at the same moment. Only a container or the init system can handle a kill of all three.
PAIRS = [("guard", "worker"), ("up", "worker"), ("up", "guard")]


def kill(name: str) -> Callable[[Scene, random.Random], None]:
    return lambda scene, _: kill_parts(scene, (name,), f"{name} killed")


def kill_a_pair(scene: Scene, rng: random.Random) -> None:
    names = rng.choice(PAIRS)
    kill_parts(scene, names, "two parts killed", " and ".join(names))


def kill_parts(scene: Scene, names: tuple[str, ...], fault_name: str, detail: str = "") -> None:
    """Kill these parts one directly after the other. A part that does not exist does not count."""
    hall = scene.hall
    parts = [hall.part(name) for name in names]
    if None in parts:
        return
    # Members do not end with the web.
    processes = {} if names == ("web",) else hall.member_processes()
    log_size = hall.log.stat().st_size
    strike = scene.strike(fault_name, detail=detail)
    killed_names = [name for name, part in zip(names, parts, strict=True) if send(part, signal.SIGKILL)]
    if not killed_names:
        scene.cancel_strike(strike)
        return
    if len(killed_names) < len(names):
        strike.fault, strike.detail = f"{killed_names[0]} killed", f"{detail}: one was not there any more"
    if processes:
        note_remains(scene, strike, processes)
    if "up" in names:
        hall.start_up()
        strike.over_at = time.monotonic()
    await_all(scene, strike)
    strike.back_off = hall.pauses_since(log_size)


def freeze(name: str) -> Callable[[Scene, random.Random], None]:
    def fire(scene: Scene, rng: random.Random) -> None:
        part, seconds = scene.hall.part(name), scene.choose_seconds(rng)
        strike = scene.strike(f"{name} frozen", detail=f"{seconds:.1f} s")
        if not send(part, signal.SIGSTOP):
            scene.cancel_strike(strike)
            return
        try:
            time.sleep(seconds)
            if name in ("up", "guard"):  # calls work without these two parts
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

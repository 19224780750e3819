"""Faults of what the hall stands on: its database and disk, the clock, its ports, and the services it is given."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from bench.hall import ROOT, free_port, free_range
from tests.storm.hall import StormHall
from tests.storm.member_faults import on_a_member, watch_member
from tests.storm.proxy import Proxy
from tests.storm.reckoning import Strike
from tests.storm.striking import Fault, Scene, await_all, send, wait_until

JUMPS = (-3600.0, -15.0, 20.0, 7200.0)  # seconds that the wall clock is wrong by
COPY_SECONDS = 25.0  # that the hall on the copy may take to start members
RESET = struct.pack("ii", 1, 0)


@contextlib.contextmanager
def lasting(scene: Scene, strike: Strike, seconds: float) -> Iterator[None]:
    """Around what begins a fault; afterwards it has lasted so long, and the roster was checked just before."""
    yield
    time.sleep(max(strike.fired_at + seconds - time.monotonic(), 0.0))
    strike.told = ", ".join(filter(None, (strike.told, f"{seconds:.1f} s")))


# The database and its disk ----------------------------------------------------------------------------------------


def lock_the_database(scene: Scene, chance: random.Random) -> None:
    seconds = scene.some_seconds(chance)
    with contextlib.closing(scene.hall.sqlite()) as connection:
        connection.execute("PRAGMA busy_timeout = 20000")
        connection.execute("BEGIN EXCLUSIVE")
        strike = scene.strike("database locked")
        with lasting(scene, strike, seconds):
            pass
        scene.check_the_roster(strike)
        connection.execute("ROLLBACK")
    strike.over_at = time.monotonic()
    await_all(scene, strike)


def fill_the_disk(scene: Scene, chance: random.Random) -> None:
    seconds = scene.some_seconds(chance)
    strike = scene.strike("disk full")
    try:
        with lasting(scene, strike, seconds):
            scene.hall.disk.fill()
        scene.check_the_roster(strike)
    finally:
        scene.hall.disk.empty()
    strike.over_at = time.monotonic()
    await_all(scene, strike)


def copy_the_database(scene: Scene, chance: random.Random) -> None:
    """A hall of the copy is started beside this one, as for a restore drill: it may not touch a member of this one."""
    hall = scene.hall
    before = pids_by_member(hall)
    strike = scene.strike("database copied")
    with second_hall(hall) as (second, log):
        has_members = wait_until(lambda: second_connected(second) >= len(hall.names) // 2, COPY_SECONDS)
        strike.told = f"the second hall had {second_connected(second)} members connected"
        if not has_members:
            scene.faults.append(f"the hall on the copy did not start its members: {log.read_text()[-300:]}")
    strike.over_at = time.monotonic()
    # Who is hit beside this has another process for that reason; the flaky end by themselves.
    hit = {one.member for one in scene.strikes if one is not strike and one.end >= strike.fired_at}
    after = pids_by_member(hall)
    ended = [name for name in hall.well() if name in before and before[name] != after.get(name) and name not in hit]
    scene.ended_by_copies += [f"{name} at {strike.fired_at:.1f}" for name in ended]
    await_all(scene, strike)


@contextlib.contextmanager
def second_hall(hall: StormHall) -> Iterator[tuple[Path, Path]]:
    """A runtime on a copy of everything, with ports of its own: its database, and its log."""
    folder = hall.folder / f"copy-{time.monotonic_ns()}"
    (folder / "data").mkdir(parents=True, mode=0o700)
    shutil.copytree(hall.folder / "members", folder / "members")
    # Calls that were queued in the copy run there as well, which is what a copy means: they have a ledger of their own.
    for manifest in folder.glob("members/*/guild-member.json"):
        manifest.write_text(manifest.read_text().replace(str(hall.ledgers), str(folder)))
    database = folder / "data" / "guildhall.sqlite3"
    with contextlib.closing(hall.sqlite()) as source, contextlib.closing(sqlite3.connect(database)) as target:
        source.backup(target)
        # Copies are mostly restored later, when nobody's heartbeat in them is young.
        target.execute("UPDATE roster_hall SET heartbeat_at = '2020-01-01 00:00:00'")
        target.commit()
    first, last = free_range(60)
    environment = {
        **hall.environment,
        "GUILD_HALL_DATA_DIR": str(folder / "data"),
        "GUILD_HALL_MEMBERS_DIR": str(folder / "members"),
        "GUILD_HALL_GATEWAY_PORT": str(free_port()),
        "GUILD_HALL_PORT_RANGE": f"{first}-{last}",
    }
    argv, log = [sys.executable, "-m", "mcp_runtime.runtime.guard"], folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=file, stderr=file)
    try:
        yield database, log
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def pids_by_member(hall: StormHall) -> dict[str, int]:
    with contextlib.closing(hall.sqlite()) as connection:
        return dict(connection.execute("SELECT name, pid FROM roster_guildmember WHERE status = 'connected'"))


def second_connected(database: Path) -> int:
    """Its members that are connected to it: of another start than the copy tells of."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(database, timeout=1)) as connection:
        query = "SELECT pid FROM roster_guildmember WHERE status = 'connected'"
        pids = [pid for (pid,) in connection.execute(query)]
        return sum(1 for pid in pids if works_below(pid, database.parent.parent))
    return 0


def works_below(pid: int | None, folder: Path) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return pid is not None and psutil.Process(pid).cwd().startswith(str(folder))
    return False


# The clock, and ports ---------------------------------------------------------------------------------------------


def move_the_clock(scene: Scene, chance: random.Random) -> None:
    """It jumps, and some seconds later it is set right."""
    offset = chance.choice(JUMPS)
    strike = scene.strike("clock moved", told=f"by {offset:+.0f} s")
    try:
        with lasting(scene, strike, scene.some_seconds(chance)):
            scene.hall.clock.jump_to(offset)
    finally:
        scene.hall.clock.jump_to(0.0)
    strike.over_at = time.monotonic()
    await_all(scene, strike)


def steal_the_port(scene: Scene, chance: random.Random, name: str, pid: int) -> None:
    """A member is killed, and somebody else listens on its port before it is back; if not, it was killed only."""
    hall = scene.hall
    before = hall.member_processes(name)
    ports = hall.ports_of(set(before))
    if not ports:
        return
    process = psutil.Process(pid)
    strike = scene.strike("port stolen", name)
    if not send(process, signal.SIGKILL):
        scene.take_back(strike)
        return
    with thief(ports.pop(), seconds=2.0) as stolen:
        if not stolen:
            strike.fault, strike.told = "member killed", "the thief of its port came too late"
        watch_member(scene, strike, before, pid)


@contextlib.contextmanager
def thief(port: int, seconds: float) -> Iterator[bool]:
    """Listens there, and resets who comes. Whether it could."""
    deadline = time.monotonic() + seconds
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    stolen = False
    while not stolen and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            listener.listen()
            stolen = True
        time.sleep(0.001)

    def reset() -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = listener.accept()
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                one.close()

    if stolen:
        threading.Thread(target=reset, daemon=True).start()
    try:
        yield stolen
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


# Services ---------------------------------------------------------------------------------------------------------


def away(service: str, how: str) -> Fault:
    def fire(scene: Scene, chance: random.Random) -> None:
        seconds = scene.some_seconds(chance)
        proxy: Proxy = getattr(scene.hall, "database" if service == "PostgreSQL" else "redis")
        take_away: Callable[[], None] = {"killed": proxy.kill, "cut off": proxy.cut, "mute": proxy.mute}[how]
        strike = scene.strike(f"{service} {how}")
        try:
            with lasting(scene, strike, seconds):
                take_away()
        finally:
            proxy.heal()
        strike.over_at = time.monotonic()
        await_all(scene, strike)

    return Fault(f"{service} {how}", fire)


HOW = ("killed", "cut off", "mute")
CLOCK = Fault("clock moved", move_the_clock)
DISK = Fault("disk full", fill_the_disk)
PORT = Fault("port stolen", on_a_member(steal_the_port, without=("stdio",)))  # those have no port
OF_SQLITE = [Fault("database locked", lock_the_database), Fault("database copied", copy_the_database)]
OF_POSTGRESQL = [away("PostgreSQL", how) for how in HOW]
OF_REDIS = [away("Redis", how) for how in HOW]


def faults_for(hall: StormHall) -> tuple[list[Fault], list[str]]:
    """What can be tried on this machine, and for what cannot the reason."""
    found, not_tried = [PORT], []
    for fault, why_not in ((CLOCK, hall.clock.why_not), (DISK, hall.disk.why_not)):
        if why_not:
            not_tried.append(f"{fault.name}: {why_not}")
        else:
            found.append(fault)
    if hall.database is None:
        found += OF_SQLITE
        not_tried.append("PostgreSQL killed, cut off, mute: DATABASE_URL is not set")
    else:
        found += OF_POSTGRESQL
        not_tried.append("database locked, database copied: these are of SQLite, and DATABASE_URL is set")
    if hall.redis is None:
        not_tried.append("Redis killed, cut off, mute: REDIS_URL is not set")
    else:
        found += OF_REDIS
    return found, not_tried

"""Faults of the hall's surroundings: its database and disk, the clock, its ports, and its services."""

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

JUMPS = (-3600.0, -15.0, 20.0, 7200.0)  # offsets of the wall clock in seconds
COPY_SECONDS = 25.0  # for the hall on the copy to start its members
RESET = struct.pack("ii", 1, 0)


@contextlib.contextmanager
def keep_for(scene: Scene, strike: Strike, seconds: float) -> Iterator[None]:
    """The block begins a fault. Afterwards wait until the fault has lasted `seconds`."""
    yield
    time.sleep(max(strike.fired_at + seconds - time.monotonic(), 0.0))
    strike.detail = ", ".join(filter(None, (strike.detail, f"{seconds:.1f} s")))


# The database and its disk ----------------------------------------------------------------------------------------


def lock_the_database(scene: Scene, rng: random.Random) -> None:
    seconds = scene.choose_seconds(rng)
    with contextlib.closing(scene.hall.sqlite()) as connection:
        connection.execute("PRAGMA busy_timeout = 20000")
        connection.execute("BEGIN EXCLUSIVE")
        strike = scene.strike("database locked")
        with keep_for(scene, strike, seconds):
            pass
        scene.check_the_roster(strike)
        connection.execute("ROLLBACK")
    strike.over_at = time.monotonic()
    await_all(scene, strike)


def fill_the_disk(scene: Scene, rng: random.Random) -> None:
    seconds = scene.choose_seconds(rng)
    strike = scene.strike("disk full")
    try:
        with keep_for(scene, strike, seconds):
            scene.hall.disk.fill()
        scene.check_the_roster(strike)
    finally:
        scene.hall.disk.empty()
    strike.over_at = time.monotonic()
    await_all(scene, strike)


def copy_the_database(scene: Scene, rng: random.Random) -> None:
    """Start a hall on a copy, as in a restore drill. It may not end a member of this hall."""
    hall = scene.hall
    pids_before = pids_by_member(hall)
    strike = scene.strike("database copied")
    with second_hall(hall) as (second_database, log):
        has_members = wait_until(lambda: second_connected(second_database) >= len(hall.names) // 2, COPY_SECONDS)
        strike.detail = f"the second hall had {second_connected(second_database)} members connected"
        if not has_members:
            scene.faults.append(f"the hall on the copy did not start its members: {log.read_text()[-300:]}")
    strike.over_at = time.monotonic()
    # Members with another fault have a new process because of it, and flaky members end by themselves.
    hit_names = {other.member for other in scene.strikes if other is not strike and other.end >= strike.fired_at}
    pids_after = pids_by_member(hall)
    names = [
        name
        for name in hall.well()
        if name in pids_before and pids_before[name] != pids_after.get(name) and name not in hit_names
    ]
    scene.ended_by_copies += [f"{name} at {strike.fired_at:.1f}" for name in names]
    await_all(scene, strike)


@contextlib.contextmanager
def second_hall(hall: StormHall) -> Iterator[tuple[Path, Path]]:
    """A runtime on a copy of all files, with its own ports. Yields its database and its log."""
    folder = hall.folder / f"copy-{time.monotonic_ns()}"
    (folder / "data").mkdir(parents=True, mode=0o700)
    shutil.copytree(hall.folder / "members", folder / "members")
    # Queued calls of the copy run there too, which is right for a copy. They have their own ledger.
    for manifest in folder.glob("members/*/guild-member.json"):
        manifest.write_text(manifest.read_text().replace(str(hall.ledgers), str(folder)))
    database = folder / "data" / "guildhall.sqlite3"
    with contextlib.closing(hall.sqlite()) as source, contextlib.closing(sqlite3.connect(database)) as target:
        source.backup(target)
        # Copies are usually restored later, when their heartbeats are old.
        target.execute("UPDATE roster_node SET heartbeat_at = '2020-01-01 00:00:00'")
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
    """The number of members that the second hall has started and connected."""
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


def move_the_clock(scene: Scene, rng: random.Random) -> None:
    """Shift the clock, and set it right some seconds later."""
    offset = rng.choice(JUMPS)
    strike = scene.strike("clock moved", detail=f"by {offset:+.0f} s")
    try:
        with keep_for(scene, strike, scene.choose_seconds(rng)):
            scene.hall.clock.jump_to(offset)
    finally:
        scene.hall.clock.jump_to(0.0)
    strike.over_at = time.monotonic()
    await_all(scene, strike)


def steal_the_port(scene: Scene, rng: random.Random, name: str, pid: int) -> None:
    """Kill a member, and listen on its port before it restarts. If that is too late, it is only a kill."""
    hall = scene.hall
    processes = hall.member_processes(name)
    ports = hall.ports_of(set(processes))
    if not ports:
        return
    process = psutil.Process(pid)
    strike = scene.strike("port stolen", name)
    if not send(process, signal.SIGKILL):
        scene.cancel_strike(strike)
        return
    with thief(ports.pop(), seconds=2.0) as is_stolen:
        if not is_stolen:
            strike.fault, strike.detail = "member killed", "the thief of its port came too late"
        watch_member(scene, strike, processes, pid)


@contextlib.contextmanager
def thief(port: int, seconds: float) -> Iterator[bool]:
    """Listen on the port and reset all connections. Yields whether that was possible."""
    deadline = time.monotonic() + seconds
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    is_listening = False
    while not is_listening and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            listener.listen()
            is_listening = True
        time.sleep(0.001)

    def reset() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                connection.close()

    if is_listening:
        threading.Thread(target=reset, daemon=True).start()
    try:
        yield is_listening
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


# Services ---------------------------------------------------------------------------------------------------------


def service_fault(service: str, how: str) -> Fault:
    def fire(scene: Scene, rng: random.Random) -> None:
        seconds = scene.choose_seconds(rng)
        proxy: Proxy = getattr(scene.hall, "database" if service == "PostgreSQL" else "redis")
        break_service: Callable[[], None] = {"killed": proxy.kill, "cut off": proxy.cut, "mute": proxy.mute}[how]
        strike = scene.strike(f"{service} {how}")
        try:
            with keep_for(scene, strike, seconds):
                break_service()
        finally:
            proxy.heal()
        strike.over_at = time.monotonic()
        await_all(scene, strike)

    return Fault(f"{service} {how}", fire)


WAYS_TO_FAIL = ("killed", "cut off", "mute")
CLOCK = Fault("clock moved", move_the_clock)
DISK = Fault("disk full", fill_the_disk)
PORT = Fault("port stolen", on_a_member(steal_the_port, without=("stdio",)))  # stdio members have no port
OF_SQLITE = [Fault("database locked", lock_the_database), Fault("database copied", copy_the_database)]
OF_POSTGRESQL = [service_fault("PostgreSQL", how) for how in WAYS_TO_FAIL]
OF_REDIS = [service_fault("Redis", how) for how in WAYS_TO_FAIL]


def faults_for(hall: StormHall) -> tuple[list[Fault], list[str]]:
    """The faults that are possible on this machine, and the reasons for the others."""
    faults, not_tried = [PORT], []
    for fault, why_not in ((CLOCK, hall.clock.why_not), (DISK, hall.disk.why_not)):
        if why_not:
            not_tried.append(f"{fault.name}: {why_not}")
        else:
            faults.append(fault)
    if hall.database is None:
        faults += OF_SQLITE
        not_tried.append("PostgreSQL killed, cut off, mute: DATABASE_URL is not set")
    else:
        faults += OF_POSTGRESQL
        not_tried.append("database locked, database copied: these are of SQLite, and DATABASE_URL is set")
    if hall.redis is None:
        not_tried.append("Redis killed, cut off, mute: REDIS_URL is not set")
    else:
        faults += OF_REDIS
    return faults, not_tried

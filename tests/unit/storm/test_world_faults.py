"""Faults that a machine cannot try are named with the reason, and stealing a port works."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from tests.storm import world_faults
from tests.storm.striking import Scene
from tests.storm.world_faults import faults_for, thief
from tests.support.member_process import free_port


def hall(**values: Any) -> Any:
    surroundings = {
        "clock": SimpleNamespace(why_not=""),
        "disk": SimpleNamespace(why_not=""),
        "database": None,
        "redis": None,
    }
    return SimpleNamespace(**{**surroundings, **values})


def names(faults: Any) -> set[str]:
    return {fault.name for fault in faults}


def test_without_services_their_faults_are_named_as_not_tried() -> None:
    faults, not_tried = faults_for(hall())
    assert names(faults) == {"port stolen", "clock moved", "disk full", "database locked", "database copied"}
    assert [line.partition(":")[0] for line in not_tried] == [
        "PostgreSQL killed, cut off, mute",
        "Redis killed, cut off, mute",
    ]


def test_each_configured_service_is_killed_cut_off_and_muted() -> None:
    faults, not_tried = faults_for(hall(database=object(), redis=object()))
    assert names(faults) >= {
        f"{name} {change}" for name in ("PostgreSQL", "Redis") for change in ("killed", "cut off", "mute")
    }
    assert not_tried == ["database locked, database copied: these are of SQLite, and DATABASE_URL is set"]


def test_a_fault_that_the_machine_cannot_try_is_named_as_not_tried() -> None:
    faults, not_tried = faults_for(hall(disk=SimpleNamespace(why_not="only root can mount a small disk")))
    assert "disk full" not in names(faults)
    assert "disk full: only root can mount a small disk" in not_tried


def test_a_stolen_port_resets_its_connections() -> None:
    port = free_port()
    with thief(port, seconds=1.0) as is_stolen:
        assert is_stolen
        # The thief may be quicker than the connection's own end of `connect`.
        with (
            pytest.raises(ConnectionResetError),
            socket.create_connection(("127.0.0.1", port), timeout=5) as connection,
        ):
            connection.recv(1)
    with socket.create_server(("127.0.0.1", port)), thief(port, seconds=0.05) as is_stolen:
        assert not is_stolen


class FakeHall:
    """A hall whose members have processes and, except for stdio, ports. None of them really runs."""

    names = ("stdio-0", "stdio-1", "http-0")

    def read(self, path: str) -> dict[str, Any]:
        return {"status": "connected", "pid": os.getpid()}

    def member_processes(self, name: str = "") -> dict[int, tuple[float, str]]:
        return {os.getpid(): (0.0, name)}

    def ports_of(self, pids: set[int]) -> set[int]:
        return {free_port()}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("is_in_time", "fault"), [(True, "port stolen"), (False, "member killed")])
def test_only_a_port_stolen_in_time_counts_as_a_stolen_port(
    monkeypatch: pytest.MonkeyPatch, seed: int, is_in_time: bool, fault: str
) -> None:
    scene = Scene(FakeHall())  # type: ignore[arg-type]
    monkeypatch.setattr(world_faults, "send", lambda process, number: True)
    monkeypatch.setattr(world_faults, "thief", lambda port, seconds: contextlib.nullcontext(is_in_time))
    monkeypatch.setattr(world_faults, "watch_member", lambda *_: None)
    world_faults.PORT.fire(scene, random.Random(seed))
    assert [(strike.fault, strike.member) for strike in scene.strikes] == [(fault, "http-0")]

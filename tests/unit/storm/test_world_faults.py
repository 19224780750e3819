"""What a machine cannot try is named with its reason, and a stolen port is stolen."""

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
    has = {"clock": SimpleNamespace(why_not=""), "disk": SimpleNamespace(why_not=""), "database": None, "redis": None}
    return SimpleNamespace(**{**has, **values})


def names(found: Any) -> set[str]:
    return {fault.name for fault in found}


def test_on_sqlite_alone_the_services_are_named_as_not_tried() -> None:
    found, not_tried = faults_for(hall())
    assert names(found) == {"port stolen", "clock moved", "disk full", "database locked", "database copied"}
    assert [line.partition(":")[0] for line in not_tried] == [
        "PostgreSQL killed, cut off, mute",
        "Redis killed, cut off, mute",
    ]


def test_with_both_services_each_is_killed_cut_off_and_muted() -> None:
    found, not_tried = faults_for(hall(database=object(), redis=object()))
    assert names(found) >= {
        f"{name} {how}" for name in ("PostgreSQL", "Redis") for how in ("killed", "cut off", "mute")
    }
    assert not_tried == ["database locked, database copied: these are of SQLite, and DATABASE_URL is set"]


def test_what_the_machine_does_not_allow_is_no_fault_of_the_storm() -> None:
    found, not_tried = faults_for(hall(disk=SimpleNamespace(why_not="only root can mount a small disk")))
    assert "disk full" not in names(found)
    assert "disk full: only root can mount a small disk" in not_tried


def test_a_stolen_port_is_held_and_whoever_comes_is_reset() -> None:
    port = free_port()
    with thief(port, seconds=1.0) as stolen:
        assert stolen
        # The thief may be quicker than the connection's own end of `connect`.
        with pytest.raises(ConnectionResetError), socket.create_connection(("127.0.0.1", port), timeout=5) as one:
            one.recv(1)
    with socket.create_server(("127.0.0.1", port)), thief(port, seconds=0.05) as stolen:
        assert not stolen


class Standing:
    """A hall's members that have processes and, but for stdio, ports; none of them lives."""

    names = ("stdio-0", "stdio-1", "http-0")

    def asked(self, path: str) -> dict[str, Any]:
        return {"status": "connected", "pid": os.getpid()}

    def member_processes(self, name: str = "") -> dict[int, tuple[float, str]]:
        return {os.getpid(): (0.0, name)}

    def ports_of(self, pids: set[int]) -> set[int]:
        return {free_port()}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("in_time", "fault"), [(True, "port stolen"), (False, "member killed")])
def test_a_port_is_stolen_from_who_listens_and_one_that_was_not_does_not_count(
    monkeypatch: pytest.MonkeyPatch, seed: int, in_time: bool, fault: str
) -> None:
    scene = Scene(Standing())  # type: ignore[arg-type]
    monkeypatch.setattr(world_faults, "send", lambda process, number: True)
    monkeypatch.setattr(world_faults, "thief", lambda port, seconds: contextlib.nullcontext(in_time))
    monkeypatch.setattr(world_faults, "watch_member", lambda *_: None)
    world_faults.PORT.fire(scene, random.Random(seed))
    assert [(one.fault, one.member) for one in scene.strikes] == [(fault, "http-0")]

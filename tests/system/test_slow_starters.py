"""Servers that take long to start, because they are slow or because the machine is busy."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from roster.models import GuildMember, StatusChange
from tests.conftest import eventually
from tests.support.hall import Hall, status_is, wait_for_status


def edit(folder: Path, old: str, new: str) -> None:
    server = folder / "server.py"
    text = server.read_text()
    assert old in text
    server.write_text(text.replace(old, new))


def listen_after(folder: Path, seconds: float) -> None:
    edit(folder, "        server = Server(", f"        time.sleep({seconds})\n        server = Server(")


def errors(name: str) -> list[str]:
    changes = StatusChange.objects.filter(member__name=name, new="error").order_by("id")
    return list(changes.values_list("message", flat=True))


def test_the_five_seconds_of_the_handshake_begin_when_the_port_accepts(hall: Hall) -> None:
    folder = hall.add("one")
    listen_after(folder, 3)
    edit(folder, 'if "hang-initialize" in MODES:', "time.sleep(3.5)\n            if 0:")
    hall.start()
    wait_for_status(hall, "one", "connected")
    assert errors("one") == []


def test_time_in_which_a_server_waits_for_a_cpu_does_not_count(hall: Hall) -> None:
    """Each of three members needs 2.5 s of CPU time, and all share one CPU."""
    for name in ("one", "two", "three"):
        folder = hall.add(name, "burn=2.5")
        edit(folder, '    if "burn" in MODES:', '    os.sched_setaffinity(0, {0})\n    if "burn" in MODES:')
    hall.start(GUILD_HALL_START_CONCURRENCY="3")
    for name in ("one", "two", "three"):
        wait_for_status(hall, name, "connected", within=30)
        assert errors(name) == []


def test_a_late_listener_gets_an_error_with_start_timeout_and_more_time_afterwards(hall: Hall) -> None:
    listen_after(hall.add("one"), 6)
    hall.start()
    wait_for_status(hall, "one", "error")
    (message,) = errors("one")
    # It is longer than 5 s if the server waited for a CPU.
    assert re.search(
        r"member 'one' could not be started: nothing listened on its port within [\d.]+ s of its start", message
    )
    assert "start_timeout" in message
    wait_for_status(hall, "one", "connected", within=30)
    assert len(errors("one")) == 1


def test_a_member_that_failed_often_restarts_every_five_minutes_and_the_roster_says_so(hall: Hall) -> None:
    hall.add("one", "exit=1")
    hall.start()
    wait_for_status(hall, "one", "error")
    eventually(status_is("one", "error"))
    GuildMember.objects.update(restarts=5, next_restart_at="2020-01-01T00:00Z")
    row = eventually(lambda: GuildMember.objects.filter(status="error", restarts=6).first())
    assert row.next_restart_at - row.status_changed_at == pytest.approx(timedelta(minutes=5), abs=timedelta(seconds=1))
    assert "it failed 6 times in a row, and is tried every 5 minutes" in errors("one")[-1]
    assert f"next restart at {row.next_restart_at:%Y-%m-%d %H:%M:%S} UTC" in hall.manage("roster").stdout
    GuildMember.objects.update(next_restart_at="2020-01-01T00:00Z")
    eventually(lambda: GuildMember.objects.filter(status="error", restarts=7).exists())

"""A runtime that is stopped during its start ends cleanly, whatever it has started by then."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import sys
import time

import pytest
from django.db import connection

from tests.conftest import eventually
from tests.support.hall import PATIENCE, Hall
from tests.support.leases import current_lease_id
from tests.support.machine import Stopwatch


@pytest.mark.parametrize("seconds", [0, 0.1, 0.2, 0.4, 0.8])
def test_a_stop_soon_after_a_start_releases_the_lease_and_leaves_no_process(hall: Hall, seconds: float) -> None:
    hall.add("one")
    hall.add("two", "ignore-term")
    runtime = hall.start()
    time.sleep(seconds)  # each case stops the start at another moment
    start = time.monotonic()
    runtime.send_signal(signal.SIGTERM)
    assert runtime.wait(PATIENCE) == 0, hall.output()
    assert current_lease_id() is None
    assert hall.tagged_processes() == []
    assert "takes too long" not in hall.output()
    assert "Traceback" not in hall.output()
    assert time.monotonic() - start < PATIENCE


@pytest.mark.skipif("postgres" in os.environ.get("DATABASE_URL", ""), reason="SQLite alone has one file with a lock")
def test_a_stop_works_while_the_start_waits_for_a_locked_database(hall: Hall) -> None:
    hall.add("one")
    with contextlib.closing(sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        runtime = hall.popen([sys.executable, "-m", "mcp_runtime.runtime.guard"])
        eventually(lambda: "the start waits" in hall.output(), within=PATIENCE)
        watch = Stopwatch()
        runtime.send_signal(signal.SIGTERM)
        assert runtime.wait(PATIENCE) == 0, hall.output()
        assert watch.seconds < 10, "it waited for the lock, which may take 30 s"
        writer.execute("ROLLBACK")
    assert current_lease_id() is None
    assert "Traceback" not in hall.output()

"""The clock of the database, as the database tells it."""

from __future__ import annotations

import time

import pytest
from django.db import connection

from mcp_runtime.rows import clock

read = clock.read  # the fixture of all these tests replaces it


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor == "sqlite", reason="the clock of SQLite is that of the machine")
def test_the_database_says_what_time_it_is_also_in_a_long_transaction() -> None:
    first = read()
    time.sleep(0.01)
    assert (read() - first).total_seconds() >= 0.01
    assert abs(first.timestamp() - time.time()) < 5

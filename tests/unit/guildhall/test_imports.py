"""What the web has in memory: nothing that only other halls need."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

OF_OTHER_HALLS = ("psycopg", "redis", "celery", "markdown_it")


def loaded_by_the_web(database_url: str) -> list[str]:
    """Of those, what is there once all views are imported."""
    program = "import django; django.setup(); from guildhall import web; web.settle(); import sys; "
    program += f"print(*[name for name in {OF_OTHER_HALLS!r} if sys.modules.get(name)])"
    environment = {**os.environ, "DATABASE_URL": database_url, "REDIS_URL": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(("database_url", "loaded"), [("", []), ("postgres://nobody@127.0.0.1:1/hall", ["psycopg"])])
def test_a_hall_without_postgresql_and_broker_loads_no_library_for_them(database_url: str, loaded: list[str]) -> None:
    assert loaded_by_the_web(database_url) == loaded

"""The web loads no library that only other halls need."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

OPTIONAL_LIBRARIES = ("psycopg", "redis", "celery", "markdown_it", "mozilla_django_oidc", "jwt")


def libraries_of_the_web(database_url: str) -> list[str]:
    """The optional libraries that are loaded after the import of all views."""
    program = "import django; django.setup(); from guildhall import web; web.settle(); import sys; "
    program += f"print(*[name for name in {OPTIONAL_LIBRARIES!r} if sys.modules.get(name)])"
    environment = {**os.environ, "DATABASE_URL": database_url, "REDIS_URL": ""}
    process = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.split()


@pytest.mark.parametrize(("database_url", "expected"), [("", []), ("postgres://nobody@127.0.0.1:1/hall", ["psycopg"])])
def test_the_web_loads_libraries_only_for_configured_services(database_url: str, expected: list[str]) -> None:
    assert libraries_of_the_web(database_url) == expected

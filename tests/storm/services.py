"""A new database for the storm, on the PostgreSQL server of DATABASE_URL."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql


@contextlib.contextmanager
def storm_database(url: str) -> Iterator[str]:
    """The URL of a new database, which is dropped afterwards. Empty for SQLite and for an empty URL."""
    if not url.startswith(("postgres://", "postgresql://")):
        yield ""
        return
    name = f"storm_{os.getpid()}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

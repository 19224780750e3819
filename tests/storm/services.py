"""A database of the storm's own on the PostgreSQL that it is given."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql


@contextlib.contextmanager
def storm_database(url: str) -> Iterator[str]:
    """The url of a new database there, dropped afterwards; nothing for nothing, and for SQLite's."""
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

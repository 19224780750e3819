"""The index of the searchable texts of calls, in the database.

A call's end writes `Call.search_text`, and the database changes the index in the same statement: an expression index of
PostgreSQL, and in SQLite a table of FTS5 with triggers. So whatever deletes a call, also an older version of the hall,
deletes its words.
"""
# ruff: noqa: S608 - all names in the SQL are constants

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from django.db import Error, OperationalError, connection, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import Q
from django.db.models.expressions import RawSQL

from mcp_runtime.calls.search_texts import MIN_PREFIX, words_of_search
from mcp_runtime.protocol.errors import SearchError
from mcp_runtime.rows import clock
from mcp_runtime.rows.database import erase_log, statement_limit
from roster.models import Call

logger = logging.getLogger("guildhall.runtime")

SEARCH_SECONDS = 5.0
TOO_LONG = f"The search took longer than {SEARCH_SECONDS:.0f} s. Use more or longer words, or a filter."
NO_FTS5 = (
    "This SQLite was built without FTS5, so words of arguments and results cannot be searched. Use a Python whose "
    "SQLite has FTS5, or PostgreSQL."
)
MIGRATION = "0044_search_text"
SECURE_DELETE = (3, 42, 0)  # of SQLite, whose FTS5 can delete words at once
MERGED_PAGES = 200  # in one statement. Other writers wait meanwhile, about 10 ms
MAX_MERGES = 20_000
MAX_ID = 2**63 - 1
# From the time in a row to its commit. A writer may wait for SQLite's lock for the 30 s of the settings.
COMMIT_TIME = timedelta(seconds=60)

_CALLS = Call._meta.db_table
INDEX = f"{_CALLS}_text"
_ADD = f"INSERT INTO {INDEX} (rowid, search_text) VALUES (new.id, new.search_text)"
# FTS5 needs the text once more to find its words.
_REMOVE = f"INSERT INTO {INDEX} ({INDEX}, rowid, search_text) VALUES ('delete', old.id, old.search_text)"
_TRIGGERS = {
    f"{INDEX}_{name}": f"{event} ON {_CALLS} WHEN {row}.search_text IS NOT NULL BEGIN {change}; END"
    for name, event, row, change in (
        ("insert", "AFTER INSERT", "new", _ADD),
        ("delete", "BEFORE DELETE", "old", _REMOVE),
        ("update_old", "BEFORE UPDATE OF search_text", "old", _REMOVE),
        ("update", "AFTER UPDATE OF search_text", "new", _ADD),
    )
}


# Search -----------------------------------------------------------------------------------------------------------


def matching(text: str, *, above: int = 0, until: int = MAX_ID) -> Q:
    """The calls whose searchable text has all words of `text`, with ids in `above` < id <= `until`.

    The text is data: no character of it has a meaning in the query of the database.
    """
    words = words_of_search(text)
    if not words or not is_available():
        return Q(pk__in=[])
    if connection.vendor == "sqlite":
        query = " ".join(f'"{word}"{"*" if len(word) >= MIN_PREFIX else ""}' for word in words)
        sql = f"SELECT rowid FROM {INDEX} WHERE {INDEX} MATCH %s AND rowid > %s AND rowid <= %s"
    else:
        query = " & ".join(f"'{word}'{':*' if len(word) >= MIN_PREFIX else ''}" for word in words)
        # The first two conditions are those of the index.
        sql = (
            f"SELECT id FROM {_CALLS} WHERE search_text IS NOT NULL "
            "AND to_tsvector('simple', search_text) @@ to_tsquery('simple', %s) AND id > %s AND id <= %s"
        )
    return Q(pk__in=RawSQL(sql, (query, above, until)))  # noqa: S611 - constants


def require_available() -> None:
    """Raise SearchError, which says what to do, if the database cannot search texts."""
    if not is_available():
        raise SearchError(NO_FTS5)


def is_available() -> bool:
    """Whether the database has the index. Without FTS5 it has no triggers, also if it once had them."""
    return connection.vendor != "sqlite" or all(_schema_of(name) for name in (INDEX, f"{INDEX}_insert"))


@contextmanager
def search_limit() -> Iterator[None]:
    """Limit the time of the searches in this block. Raises SearchError after it."""
    try:
        with statement_limit(SEARCH_SECONDS) as has_ended:
            yield
    except OperationalError as error:
        if not has_ended():
            raise
        raise SearchError(TOO_LONG) from error


def searched_since() -> datetime | None:
    """From when on the texts of calls are searchable. None if there are no older calls."""
    applied = MigrationRecorder(connection).migration_qs.filter(app="roster", name=MIGRATION)
    since = applied.values_list("applied", flat=True).first()
    oldest = Call.objects.order_by("id").values_list("queued_at", flat=True).first()
    return since if since and oldest and oldest < since else None


# The tables of SQLite ---------------------------------------------------------------------------------------------


def prepare() -> None:
    """Create the table and the triggers of SQLite, after a migration. Without FTS5, log why there is no search."""
    if connection.vendor != "sqlite" or "search_text" not in _columns_of_calls():
        return
    try:
        with transaction.atomic():
            _prepare()
    except OperationalError as error:
        logger.warning("texts of calls cannot be indexed (%s)", error)


def _prepare() -> None:
    with connection.cursor() as cursor:
        missing = [name for name in _TRIGGERS if not _schema_of(name)]
        if not has_fts5():
            # Every change of a call would fail in the trigger.
            for name in _TRIGGERS:
                cursor.execute(f"DROP TRIGGER IF EXISTS {name}")
            logger.warning("%s", NO_FTS5)
            return
        if not missing and _is_readable():
            return
        if _schema_of(INDEX):
            cursor.execute(f"DROP TABLE {INDEX}")
        # Without an index of prefixes, SQLite does not look at the clock while it merges the words with one beginning,
        # about 0.2 s for a million calls. With it, an end of a call costs a third more, and long prefixes gain nothing.
        # The words' places are necessary for words that the tokenizer splits further. The sizes are for ranks alone.
        cursor.execute(
            f"CREATE VIRTUAL TABLE {INDEX} USING fts5("
            f"search_text, content='{_CALLS}', content_rowid='id', columnsize=0)"
        )
        if sqlite3.sqlite_version_info >= SECURE_DELETE:
            cursor.execute(f"INSERT INTO {INDEX} ({INDEX}, rank) VALUES ('secure-delete', 1)")
        for name in missing:
            cursor.execute(f"CREATE TRIGGER {name} {_TRIGGERS[name]}")
        # Calls that ended while there were no triggers. It is quick if there are none.
        cursor.execute(
            f"INSERT INTO {INDEX} (rowid, search_text) "
            f"SELECT id, search_text FROM {_CALLS} WHERE search_text IS NOT NULL"
        )


def has_fts5() -> bool:
    """Whether this SQLite was built with its full-text search."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pragma_module_list WHERE name = 'fts5'")
        return bool(cursor.fetchone()[0])


def _is_readable() -> bool:
    """Whether this SQLite reads the table. One before 3.42 does not, if a later one deleted words."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SELECT rowid FROM {INDEX} WHERE {INDEX} MATCH 'a' LIMIT 1")
    except Error:
        return False
    return True


def _schema_of(name: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT sql FROM sqlite_master WHERE name = %s", [name])
        row = cursor.fetchone()
    return str(row[0]) if row else ""


def _columns_of_calls() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(f"PRAGMA table_info({_CALLS})")
        return {row[1] for row in cursor.fetchall()}


# Erase ------------------------------------------------------------------------------------------------------------


class Eraser:
    """Erases masked secrets and deleted words from SQLite's files, where old pages stay for a while.

    FTS5 before 3.42 only marks deleted words until it merges its parts. The log (WAL) has old pages until it is written
    from its beginning again. One thread.
    """

    def __init__(self) -> None:
        self._erased_until: datetime | None = None
        self._has_deleted = False

    def note_deletions(self) -> None:
        """Calls were deleted."""
        self._has_deleted = True

    def erase(self) -> bool:
        """Erase what was masked or deleted since the last time. If the log is in use, return False. Then try again."""
        if connection.vendor != "sqlite":
            return True
        now = clock.now()
        if self._has_deleted and is_available() and sqlite3.sqlite_version_info < SECURE_DELETE:
            _merge_parts()
        if (self._has_deleted or self._have_secrets_ended()) and not erase_log():
            return False
        # Also if there was nothing to erase, so that the next time reads only the calls that ended since.
        self._erased_until, self._has_deleted = now - COMMIT_TIME, False
        return True

    def _have_secrets_ended(self) -> bool:
        """Whether a queued call with secrets has ended. They are in its row until its end."""
        ended = Call.objects.exclude(secret_paths=[]).exclude(source=Call.Source.GATEWAY)
        since = self._erased_until
        return (ended.filter(finished_at__gte=since) if since else ended.filter(finished_at__isnull=False)).exists()


def _merge_parts() -> None:
    """Merge all parts of the index into one, in short statements. The first one marks the parts for it."""
    with connection.cursor() as cursor:
        for pages in (-MERGED_PAGES, *([MERGED_PAGES] * MAX_MERGES)):
            before = _total_changes()
            cursor.execute(f"INSERT INTO {INDEX} ({INDEX}, rank) VALUES ('merge', %s)", [pages])
            if _total_changes() - before < 2 and pages > 0:
                return


def _total_changes() -> int:
    database: sqlite3.Connection = connection.connection
    return database.total_changes

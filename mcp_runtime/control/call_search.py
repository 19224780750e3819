"""Search the words of the arguments, results and errors of calls."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import datetime

from django.db.models import Q

from mcp_runtime.calls import text_index

MAX_ID = text_index.MAX_ID
INDEX = text_index.INDEX  # the beginning of the names of SQLite's tables and triggers for it


def matching(text: str, *, above: int = 0, until: int = MAX_ID) -> Q:
    """The calls that have all words of `text`, with ids in `above` < id <= `until`. Words may be beginnings of words.

    Without words in `text`, it is no call. Evaluate it within `limit`.
    """
    return text_index.matching(text, above=above, until=until)


def limit() -> AbstractContextManager[None]:
    """Limit the time of the searches in this block. Raises SearchError after it."""
    return text_index.search_limit()


def fault() -> str:
    """Why the database cannot search words, and what to do. Empty if it can."""
    return "" if text_index.is_available() else text_index.NO_FTS5


def require_available() -> None:
    """Raise SearchError if the database cannot search words."""
    text_index.require_available()


def searched_since() -> datetime | None:
    """Calls that ended earlier have no searchable words. None if there are no such calls."""
    return text_index.searched_since()


def prepare_database() -> None:
    """Create what the search needs in SQLite, after a migration."""
    text_index.prepare()

"""Rows of client sessions, in the database."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models.functions import Now

from mcp_runtime.gateway import session_rows
from mcp_runtime.gateway.session_rows import SavedState
from roster.models import ClientSession

pytestmark = pytest.mark.django_db


def test_a_session_without_a_row_has_the_default_state() -> None:
    assert session_rows.load("a") == SavedState()


def test_changes_of_several_nodes_are_merged() -> None:
    session_rows.save("a", "info", {})
    session_rows.save("a", None, {"notes": frozenset({"x:1", "x:2"})})
    session_rows.save("a", None, {"files": frozenset({"y:1"})})
    session_rows.save("a", "error", {"files": frozenset()})
    assert session_rows.load("a") == SavedState(log_level="error", uris={"notes": frozenset({"x:1", "x:2"})})


def test_an_ended_session_is_reported_for_a_few_seconds_and_keeps_nothing_else() -> None:
    session_rows.save("a", "info", {"notes": frozenset({"x:1"})})
    session_rows.end("a")
    session_rows.end("b")
    assert session_rows.ended_lately() == {"a", "b"}
    assert session_rows.load("a") == SavedState(is_ended=True)
    ClientSession.objects.filter(pk="a").update(ended_at=Now() - timedelta(minutes=1))
    assert session_rows.ended_lately() == {"b"}


def test_a_change_after_the_end_does_not_begin_the_session_again() -> None:
    session_rows.end("a")
    session_rows.save("a", "info", {})
    assert session_rows.load("a").is_ended


def test_pruning_deletes_expired_rows_and_the_oldest_of_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_rows, "MAX_ROWS", 2)
    for age, digest in enumerate("abcd"):
        session_rows.end(digest)
        ClientSession.objects.filter(pk=digest).update(changed_at=Now() - timedelta(days=3 * age))
    session_rows.prune(timedelta(days=7))
    assert set(ClientSession.objects.values_list("pk", flat=True)) == {"a", "b"}

"""The words of calls are found from their end to their deletion, and are then nowhere in the database."""

from __future__ import annotations

import io
import re
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from mcp_runtime.calls import statements, text_index, transitions
from mcp_runtime.calls.transitions import Outcome, Requester
from mcp_runtime.control import calls as control
from mcp_runtime.protocol.errors import SearchError, ToolError
from mcp_runtime.rows import clock, database, lease, ownership
from roster.models import Call, GuildMember, Tool

pytestmark = pytest.mark.django_db

SQLITE = pytest.mark.skipif(connection.vendor != "sqlite", reason="a table of SQLite")
COMMAND = Requester(Call.Source.COMMAND)
SCHEMA = {"type": "object", "properties": {"key": {"type": "string", "format": "password"}}}


@pytest.fixture
def lease_id() -> uuid.UUID:
    return lease.take(ownership.take_over_own)


@pytest.fixture
def tool(lease_id: uuid.UUID) -> Tool:
    member = GuildMember.objects.create(name="anna", directory="anna", lease_id=lease_id)
    return Tool.objects.create(member=member, name="echo", definition={"name": "echo", "inputSchema": SCHEMA})


def text_result(*texts: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text} for text in texts]}


def run(lease_id: uuid.UUID, arguments: dict[str, Any], outcome: Outcome) -> Call:
    call, _ = transitions.queue(member_name="anna", tool_name="echo", arguments=arguments, requester=COMMAND)
    assert statements.claim([call.pk], lease_id) == 1
    assert transitions.finish(call, outcome, lease_id)
    return call


def found(text: str, **ids: int) -> list[int]:
    with text_index.search_limit():
        return list(Call.objects.filter(text_index.matching(text, **ids)).order_by("id").values_list("id", flat=True))


# Search -----------------------------------------------------------------------------------------------------------


def test_a_call_is_found_by_words_of_its_arguments_result_and_error(tool: Tool, lease_id: uuid.UUID) -> None:
    call = run(lease_id, {"path": "/var/Invoice-4711.pdf"}, Outcome.succeeded(text_result("Paid by Zoë")))
    error = Outcome.of_error(ToolError("no paper left", {}), member="anna", tool="echo")
    failed_call = run(lease_id, {"n": -12.5}, error)
    for text in ("invoice", "INVOICE-4711.pdf", "/var/invo", "paid zoë", "4711 paid", "pdf  var"):
        assert found(text) == [call.pk], text
    for text in ("paper", "no left", "-12.5", "12"):
        assert found(text) == [failed_call.pk], text
    for text in ("oice", "paid paper", "path", "no pa"):
        assert found(text) == [], text


def test_a_call_is_not_found_before_its_end(tool: Tool, lease_id: uuid.UUID) -> None:
    call, _ = transitions.queue(member_name="anna", tool_name="echo", arguments={"x": "early"}, requester=COMMAND)
    assert found("early") == []
    transitions.cancel(call)
    assert found("early") == [call.pk]


def test_a_search_finds_only_calls_in_its_range(tool: Tool, lease_id: uuid.UUID) -> None:
    ids = [run(lease_id, {"x": "same"}, Outcome.succeeded({})).pk for _ in range(3)]
    assert found("same", above=ids[0]) == ids[1:]
    assert found("same", until=ids[0]) == ids[:1]


@pytest.mark.parametrize(
    "text",
    [
        *('"', "'", "a OR b", "NOT same", "same AND", "NEAR(same)", "same*", "-same", "search_text:same", "^same"),
        *(
            "same & !",
            "(same",
            "same:*",
            "\\",
            "\0",
            "%",
            "%s",
            "; DROP TABLE x",
            "\ud800",
            "…",
            "a" * 5000,
            "same " * 500,
        ),
        *("'' | 'same'", '"same" "', "same\nsame", "{search_text}: x", "rank:1", "+", "。"),
    ],
)
def test_a_search_has_no_syntax(tool: Tool, lease_id: uuid.UUID, text: str) -> None:
    call = run(lease_id, {"x": "same"}, Outcome.succeeded({}))
    assert found(text) in ([], [call.pk])
    assert found("same") == [call.pk]


def test_a_search_that_takes_too_long_is_ended_with_a_sentence(
    tool: Tool, lease_id: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_index, "SEARCH_SECONDS", 0.05)
    endless = {
        "sqlite": "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n",
        "postgresql": "SELECT pg_sleep(60)",
    }
    with pytest.raises(SearchError, match="longer than"), text_index.search_limit(), connection.cursor() as cursor:
        cursor.execute(endless[connection.vendor])
    assert found("same") == []


def test_another_error_of_a_search_is_no_error_of_time() -> None:
    from django.db import OperationalError

    with pytest.raises(OperationalError, match="broken"), text_index.search_limit():
        raise OperationalError("broken")


# Secrets ----------------------------------------------------------------------------------------------------------


def test_neither_a_secret_nor_a_result_that_may_repeat_it_is_found(tool: Tool, lease_id: uuid.UUID) -> None:
    secret_arguments = {"key": "canary", "text": "public"}
    call = run(lease_id, secret_arguments, Outcome.succeeded(text_result("the key canary")))
    error = Outcome.of_error(ToolError("bad key canary", text_result("canary")), member="anna", tool="echo")
    failed_call = run(lease_id, secret_arguments, error)
    assert found("canary") == found("key") == found("bad") == []
    assert found("public") == [call.pk, failed_call.pk]


def test_lost_and_refused_calls_have_no_secrets_either(tool: Tool, lease_id: uuid.UUID) -> None:
    arguments = {"key": "canary", "text": "public"}
    calls = [
        transitions.queue(member_name="anna", tool_name="echo", arguments=arguments, requester=COMMAND)[0]
        for _ in range(2)
    ]
    assert transitions.refuse(calls[0], Outcome.failed(Call.ErrorKind.UNAVAILABLE, "canary"), lease_id)
    assert statements.claim([calls[1].pk], lease_id) == 1
    transitions.end_calls_of_lease(lease_id, "canary")
    assert found("canary") == []
    assert found("public") == [call.pk for call in calls]


# Deletion ---------------------------------------------------------------------------------------------------------


def files() -> bytes:
    path = Path(str(connection.settings_dict["NAME"]))
    return b"".join(each.read_bytes() for each in (path, path.with_name(f"{path.name}-wal")) if each.exists())


@pytest.fixture
def quiet_files() -> None:
    database.erase_log()


@SQLITE
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("quiet_files")
def test_no_byte_of_the_database_has_a_secret_after_the_end_of_its_call(tool: Tool, lease_id: uuid.UUID) -> None:
    canaries = [f"{word}canary{word}" for word in ("plum", "fig", "kiwi")]
    for canary in canaries:
        run(lease_id, {"key": canary, "list": ["x" * 9000]}, Outcome.succeeded(text_result("done")))
        transitions.cancel(
            transitions.queue(member_name="anna", tool_name="echo", arguments={"key": canary}, requester=COMMAND)[0]
        )
    assert canaries[0].encode() in files()  # while the call ran, its row had the secret
    text_index.Eraser().erase()
    data = files()
    assert not [canary for canary in canaries if canary.encode() in data]
    assert b"done" in data


@SQLITE
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("quiet_files")
def test_no_byte_of_the_database_has_a_word_of_a_pruned_call(tool: Tool, lease_id: uuid.UUID) -> None:
    """Words are stored without the beginning that they share with the word before, so the ends are searched for."""
    words = [uuid.uuid5(uuid.NAMESPACE_OID, str(number)).hex for number in range(120)]
    for number, word in enumerate(words):
        error = Outcome.of_error(ToolError(f"error{word}", {}), member="anna", tool="echo")
        result = Outcome.succeeded(text_result(f"result{word}"))
        run(lease_id, {"text": f"argument{word}"}, error if number % 2 else result)
    database.erase_log()
    data = files()
    assert all(word[8:].encode() in data for word in words)
    call_command("prune_calls", days=30, keep=20, stdout=io.StringIO())
    data = files()
    assert not [word for word in words[:100] if word[8:].encode() in data]
    assert all(word[8:].encode() in data for word in words[100:])
    assert found(f"argument{words[0]}") == []
    assert len(found(f"argument{words[-1]}")) == 1


@pytest.fixture
def reader() -> Iterator[sqlite3.Connection]:
    """A transaction of another program, which keeps the log in use."""
    with closing(sqlite3.connect(str(connection.settings_dict["NAME"]), isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM roster_call").fetchone()
        yield reader


def prune_all() -> tuple[str, str]:
    """The output and the warning of the command."""
    out, warning = io.StringIO(), io.StringIO()
    call_command("prune_calls", days=30, keep=0, stdout=out, stderr=warning)
    return out.getvalue(), warning.getvalue()


@SQLITE
@pytest.mark.django_db(transaction=True)
def test_pruning_warns_if_the_log_stays_in_use_and_can_be_repeated(
    tool: Tool, lease_id: uuid.UUID, monkeypatch: pytest.MonkeyPatch, reader: sqlite3.Connection
) -> None:
    monkeypatch.setattr(control, "ERASE_SECONDS", 0.0)
    run(lease_id, {"text": "plumcanary"}, Outcome.succeeded({}))
    out, warning = prune_all()
    assert out == "Pruned 1 finished calls.\n"
    assert "Repeat this command" in warning
    assert b"plumcanary" in files()
    reader.execute("ROLLBACK")
    assert prune_all() == ("Pruned 0 finished calls.\n", "")
    assert b"plumcanary" not in files()


@SQLITE
@pytest.mark.django_db(transaction=True)
def test_pruning_waits_for_a_reader_of_the_log(
    tool: Tool, lease_id: uuid.UUID, monkeypatch: pytest.MonkeyPatch, reader: sqlite3.Connection
) -> None:
    attempts: list[bool] = []

    def erase_log() -> bool:
        attempts.append(database.erase_log())
        if len(attempts) == 1:
            reader.execute("ROLLBACK")
        return attempts[-1]

    monkeypatch.setattr(text_index, "erase_log", erase_log)
    run(lease_id, {"text": "plumcanary"}, Outcome.succeeded({}))
    assert prune_all() == ("Pruned 1 finished calls.\n", "")
    assert attempts == [False, True]
    assert b"plumcanary" not in files()


def test_calls_of_a_deleted_member_are_not_found(tool: Tool, lease_id: uuid.UUID) -> None:
    run(lease_id, {"x": "gone"}, Outcome.succeeded({}))
    tool.member.delete()
    assert found("gone") == []
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO roster_call_text (roster_call_text) VALUES ('integrity-check')")
            cursor.execute("SELECT count(*) FROM roster_call_text WHERE roster_call_text MATCH 'gone'")
            assert cursor.fetchone()[0] == 0


# The table of SQLite ----------------------------------------------------------------------------------------------


@SQLITE
@pytest.mark.django_db(transaction=True)
def test_words_are_found_again_after_the_table_was_made_again(tool: Tool, lease_id: uuid.UUID) -> None:
    """A migration may make a new table of calls, which has no triggers."""
    first = run(lease_id, {"x": "same"}, Outcome.succeeded({}))
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER roster_call_text_update")
    second = run(lease_id, {"x": "same"}, Outcome.succeeded({}))
    assert found("same") == [first.pk]
    text_index.prepare()
    third = run(lease_id, {"x": "same"}, Outcome.succeeded({}))
    assert found("same") == [first.pk, second.pk, third.pk]


@SQLITE
@pytest.mark.django_db(transaction=True)
def test_without_fts5_calls_end_and_a_search_says_what_is_missing(
    tool: Tool, lease_id: uuid.UUID, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        with monkeypatch.context() as patch:
            patch.setattr(text_index, "has_fts5", lambda: False)
            text_index.prepare()
            assert "FTS5" in caplog.text
            call = run(lease_id, {"x": "same"}, Outcome.succeeded({}))
            assert not text_index.is_available()
            with pytest.raises(SearchError, match="FTS5"):
                text_index.require_available()
            assert found("same") == []
    finally:
        text_index.prepare()
    assert found("same") == [call.pk]


@SQLITE
def test_the_index_changes_in_the_transaction_of_the_end(tool: Tool, lease_id: uuid.UUID) -> None:
    call, _ = transitions.queue(member_name="anna", tool_name="echo", arguments={"x": "same"}, requester=COMMAND)
    assert statements.claim([call.pk], lease_id) == 1
    with transaction.atomic():
        assert transitions.finish(call, Outcome.succeeded({}), lease_id)
        assert found("same") == [call.pk]
        transaction.set_rollback(True)
    assert found("same") == []


def test_the_hall_says_from_when_on_words_are_found(tool: Tool, lease_id: uuid.UUID) -> None:
    from django.utils import timezone

    assert text_index.searched_since() is None
    run(lease_id, {}, Outcome.succeeded({}))
    assert text_index.searched_since() is None
    Call.objects.update(queued_at=timezone.now() - timedelta(days=9999))
    assert text_index.searched_since() is not None


@SQLITE
@pytest.mark.django_db(transaction=True)
def test_a_log_that_somebody_reads_is_erased_later_and_holds_up_no_writer(tool: Tool, lease_id: uuid.UUID) -> None:
    reader = sqlite3.connect(str(connection.settings_dict["NAME"]), isolation_level=None)
    with closing(reader):
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM roster_call").fetchone()
        run(lease_id, {"key": "canary"}, Outcome.succeeded({}))
        eraser = text_index.Eraser()
        began = time.monotonic()
        eraser.erase()
        assert time.monotonic() - began < 10  # of a wait for 30 s
        assert b"canary" in files()
        reader.execute("ROLLBACK")
        eraser.erase()
    assert b"canary" not in files()


@SQLITE
def test_nothing_is_erased_within_a_transaction(tool: Tool, lease_id: uuid.UUID) -> None:
    assert not database.erase_log()


@SQLITE
def test_only_the_first_look_for_secrets_reads_all_calls(tool: Tool, lease_id: uuid.UUID) -> None:
    run(lease_id, {"text": "public"}, Outcome.succeeded({}))
    eraser = text_index.Eraser()
    eraser.erase()
    with CaptureQueriesContext(connection) as queries:
        eraser.erase()
    (query,) = queries.captured_queries
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}")
        (step,) = cursor.fetchall()
    assert re.match("SEARCH .*call_by_end", step[-1])


@SQLITE
@pytest.mark.django_db(transaction=True)
def test_a_secret_is_erased_even_if_the_end_of_its_call_waited_for_the_lock(tool: Tool, lease_id: uuid.UUID) -> None:
    eraser = text_index.Eraser()
    eraser.erase()
    run(lease_id, {"key": "canary"}, Outcome.succeeded({}))
    waited = timedelta(seconds=connection.settings_dict["OPTIONS"]["timeout"] + 5)
    Call.objects.update(finished_at=clock.now() - waited)  # as if the row were written at last
    assert b"canary" in files()
    eraser.erase()
    assert b"canary" not in files()


@pytest.mark.django_db(transaction=True)
def test_without_new_secrets_and_deletions_nothing_is_erased(
    tool: Tool, lease_id: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    erasures: list[int] = []

    def erase_log() -> bool:
        erasures.append(1)
        return True

    monkeypatch.setattr(text_index, "erase_log", erase_log)
    monkeypatch.setattr(text_index, "COMMIT_TIME", timedelta())
    eraser = text_index.Eraser()
    run(lease_id, {"text": "public"}, Outcome.succeeded({}))
    eraser.erase()
    assert erasures == []
    run(lease_id, {"key": "secret"}, Outcome.succeeded({}))
    eraser.erase()
    eraser.erase()
    assert len(erasures) == (1 if connection.vendor == "sqlite" else 0)

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import connection
from django.db.models.sql.compiler import SQLCompiler, SQLUpdateCompiler
from django.test.utils import CaptureQueriesContext

from mcp_runtime.calls import statements, transitions
from mcp_runtime.calls.statements import Exclusions, find_queued
from mcp_runtime.calls.transitions import ErrorKind, Outcome
from mcp_runtime.rows import lease
from roster.models import Call, GuildMember

pytestmark = pytest.mark.django_db


@pytest.fixture
def lease_id() -> uuid.UUID:
    return lease.take()


def member(name: str) -> GuildMember:
    return GuildMember.objects.create(name=name, directory=name, manifest={"max_concurrency": 3})


def queued(of: GuildMember, **columns: Any) -> Call:
    values = {"tool_name": "echo", "timeout": 7.5, "source": Call.Source.REST, **columns}
    return Call.objects.create(member=of, **values)


def test_a_queued_call_is_found_with_all_that_is_read_of_it_in_one_statement() -> None:
    anna = member("anna")
    made = queued(anna, arguments={"text": "ä", "n": [1, None]}, secret_paths=[["text"]])
    with CaptureQueriesContext(connection) as queries:
        [found] = find_queued(Exclusions(), 5)
        read = (found.pk, found.tool_name, found.arguments, found.timeout, found.secret_paths)
        assert read == (made.pk, "echo", {"text": "ä", "n": [1, None]}, 7.5, [["text"]])
        assert (found.member_id, found.requested_by_id, found.token_id) == (anna.pk, None, None)
        assert (found.member.name, found.member.manifest) == ("anna", {"max_concurrency": 3})
    assert len(queries) == 1


def test_the_oldest_are_found_first_without_those_that_are_passed_over() -> None:
    anna, bob = member("anna"), member("bob")
    first, second, third = queued(anna), queued(bob), queued(anna)
    assert find_queued(Exclusions(), 2) == [first, second]
    assert find_queued(Exclusions(members=frozenset({anna.pk})), 5) == [second]
    nobody = (None, None)
    assert find_queued(Exclusions(requesters=frozenset({(nobody, frozenset({bob.pk}))})), 5) == [first, third]
    assert find_queued(Exclusions(requesters=frozenset({(nobody, None)})), 5) == []


def test_a_second_call_has_none_of_its_sql_put_together_again(
    lease_id: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        [found] = find_queued(Exclusions(), 5)
        assert statements.claim([found.pk], lease_id) == 1
        assert transitions.finish(found, Outcome.succeeded({"content": []}), lease_id)

    anna = member("anna")
    queued(anna)
    run()
    second = queued(anna)

    def put_together(*_: Any, **__: Any) -> Any:
        raise AssertionError("a statement was put together")

    with monkeypatch.context() as patch:
        for compiler in (SQLCompiler, SQLUpdateCompiler):
            patch.setattr(compiler, "as_sql", put_together)
        run()
    second.refresh_from_db()
    assert (second.status, second.result, second.lease_id) == ("succeeded", {"content": []}, lease_id)
    assert second.started_at is not None
    assert second.finished_at is not None
    assert second.queued_at <= second.started_at <= second.finished_at


def test_an_end_is_written_whole_null_and_json_alike(lease_id: uuid.UUID) -> None:
    said: dict[str, Any] = {"error_message": "%s", "error_code": -1, "error_data": '{"a": "%s"}'}
    failed = Outcome(Call.Status.FAILED, error_kind=ErrorKind.PROTOCOL, **said)
    call = queued(member("anna"))
    statements.claim([call.pk], lease_id)
    assert transitions.finish(call, failed, lease_id)
    call.refresh_from_db()
    assert (call.result, call.error_code, call.error_data, call.error_message) == (None, -1, {"a": "%s"}, "%s")
    # SQL's NULL, not JSON's: what asks for calls without a result must find it.
    assert Call.objects.filter(result__isnull=True).exists()


def test_a_row_that_runs_under_no_lease_is_ended_as_lost(lease_id: uuid.UUID) -> None:
    call = queued(member("anna"), status="running", lease_id=None)
    assert transitions.end_calls_of_other_leases(lease_id, "gone") == 1
    call.refresh_from_db()
    assert (call.status, call.error_kind) == ("failed", "lost")

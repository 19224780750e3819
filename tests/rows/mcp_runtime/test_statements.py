from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db.models.sql.compiler import SQLCompiler, SQLUpdateCompiler

from mcp_runtime.calls import statements, transitions
from mcp_runtime.calls.queue_search import Exclusions, find_queued
from mcp_runtime.calls.transitions import ErrorKind, Outcome
from mcp_runtime.rows import lease
from roster.models import Call, GuildMember

pytestmark = pytest.mark.django_db

LEASE_ID = uuid.uuid4()


@pytest.fixture
def lease_id() -> uuid.UUID:
    return lease.take(lease_id=LEASE_ID)


def make_member(name: str) -> GuildMember:
    return GuildMember.objects.create(name=name, directory=name, lease_id=LEASE_ID, manifest={"max_concurrency": 3})


def add_queued_call(member: GuildMember, **columns: Any) -> Call:
    values = {"tool_name": "echo", "timeout": 7.5, "source": Call.Source.REST, **columns}
    return Call.objects.create(member=member, **values)


def test_the_sql_of_a_second_call_is_not_compiled_again(lease_id: uuid.UUID, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        [call] = find_queued(LEASE_ID, Exclusions(), 5)
        assert statements.claim([call.pk], lease_id) == 1
        assert transitions.finish(call, Outcome.succeeded({"content": []}), lease_id)

    anna = make_member("anna")
    add_queued_call(anna)
    run()
    second = add_queued_call(anna)

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("a statement was compiled")

    with monkeypatch.context() as patch:
        for compiler in (SQLCompiler, SQLUpdateCompiler):
            patch.setattr(compiler, "as_sql", fail)
        run()
    second.refresh_from_db()
    assert (second.status, second.result, second.lease_id) == ("succeeded", {"content": []}, lease_id)
    assert second.started_at is not None
    assert second.finished_at is not None
    assert second.queued_at <= second.started_at <= second.finished_at


def test_an_outcome_is_written_completely_with_null_and_json(lease_id: uuid.UUID) -> None:
    error: dict[str, Any] = {"error_message": "%s", "error_code": -1, "error_data": '{"a": "%s"}'}
    outcome = Outcome(Call.Status.FAILED, error_kind=ErrorKind.PROTOCOL, **error)
    call = add_queued_call(make_member("anna"))
    statements.claim([call.pk], lease_id)
    assert transitions.finish(call, outcome, lease_id)
    call.refresh_from_db()
    assert (call.result, call.error_code, call.error_data, call.error_message) == (None, -1, {"a": "%s"}, "%s")
    # SQL's NULL and not JSON's, because a query for calls without a result must find it.
    assert Call.objects.filter(result__isnull=True).exists()


def test_a_running_call_without_a_lease_ends_as_lost(lease_id: uuid.UUID) -> None:
    call = add_queued_call(make_member("anna"), status="running", lease_id=None)
    assert transitions.end_lost_calls(lease_id, "gone") == 1
    call.refresh_from_db()
    assert (call.status, call.error_kind) == ("failed", "lost")

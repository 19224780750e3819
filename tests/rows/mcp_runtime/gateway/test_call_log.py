"""Rows of calls: their values for each outcome, and which values are cut, masked or lost."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import InterfaceError, InternalError, OperationalError, connection, transaction

from mcp_runtime.calls import text_index
from mcp_runtime.gateway import call_log, call_rows
from mcp_runtime.gateway.call_log import CUT, FinishedCall, Recorder
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import CallFailedError, ConnectError, ErrorKind, MethodError
from mcp_runtime.schemas import secrets
from mcp_runtime.security.access import OPERATOR, Principal
from roster.models import Call, GuildMember, Token, Tool
from tests.conftest import eventually
from tests.support.machine import Stopwatch

pytestmark = pytest.mark.django_db(transaction=True)

PASSWORD = '{"type": "object", "properties": {"key": {"type": "string", "format": "password"}}}'


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """A recorder that a test starts."""
    instance = Recorder(max_bytes=200)
    yield instance
    if instance.is_alive:
        instance.stop()


@pytest.fixture
def call(recorder: Recorder) -> Callable[..., FinishedCall]:
    member = GuildMember.objects.create(name="notes", directory="notes")

    def make(**options: Any) -> FinishedCall:
        values = {"arguments": {"a": 1}, "schema": "", "principal": OPERATOR, "timeout": 5.0}
        values |= {"recorder": recorder, "member_id": member.pk, "member": "notes", "tool": "echo"}
        return FinishedCall(**values | options)

    return make


def write_rows(recorder: Recorder) -> list[Call]:
    recorder.start()
    recorder.stop()
    return list(Call.objects.order_by("id"))


def response(**result: Any) -> bytes:
    return jsonrpc.encode({"jsonrpc": "2.0", "id": 1, "result": result})


def content(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def test_each_outcome_of_a_call_has_its_status_and_error(recorder: Recorder, call: Callable[..., FinishedCall]) -> None:
    call().record_response(response(**content("hi")))
    call().record_response(response(isError=True, **content("broken")))
    call().record_response(response(isError=True))
    call().record_response(b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no","data":{"x":1}}}')
    call().record_response(b"nonsense")
    call().record_error(ConnectError("gone"))
    call().record_refusal(CallFailedError(ErrorKind.UNAVAILABLE, "away"))
    call().record_refusal(MethodError(-32020, "header"))
    call().record_abandonment(timed_out=True)
    call().record_abandonment(timed_out=False)
    rows = write_rows(recorder)
    assert [(row.status, row.error_kind, row.error_code) for row in rows] == [
        ("succeeded", "", None),
        ("failed", "tool", None),
        ("failed", "tool", None),
        ("failed", "protocol", -32602),
        ("failed", "protocol", None),
        ("failed", "transport", None),
        ("failed", "unavailable", -32603),
        ("failed", "protocol", -32020),
        ("failed", "timeout", None),
        ("cancelled", "", None),
    ]
    assert rows[0].result == content("hi")
    assert rows[1].error_message == "tool 'echo' of member 'notes': broken"
    assert rows[2].error_message.endswith("the tool reported an error")
    assert rows[3].error_data == {"x": 1}
    assert rows[8].error_message == "tool 'echo' of member 'notes': no complete answer within 5 s; it may have run"
    first = rows[0]
    assert (first.member.name, first.tool_name, first.arguments, first.source) == ("notes", "echo", {"a": 1}, "gateway")
    assert (first.requester, first.timeout) == ("operator", 5.0)
    assert first.started_at is not None
    assert first.finished_at is not None
    assert first.started_at <= first.finished_at


@pytest.mark.parametrize(
    "part",
    [
        b'"result":{"content":[{"type":"text","text":"hi"}]}',
        b'"result":{"isError":true,"content":[{"type":"text","text":"broken"}]}',
        b'"result":{"text":"\\u0000 and \\ud83d","big":1e300,"exact":12345678901234567890123}',
        '"result":{"text":"é \u2028 \U0001f600"}'.encode(),
        b'"result":{"tiny":1e-20000}',
        b'"result":{"huge":1e999}',
        b'"result":{}',
        b'"result":{"a":1},"error":{"code":1,"message":"both"}',
        b'"error":{"code":-32602,"message":"no"}',
        b'"method":"ping"',
    ],
)
def test_a_short_response_has_the_row_of_one_that_is_checked_again(
    part: bytes, recorder: Recorder, call: Callable[..., FinishedCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    finished_call = call()
    finished_call.record_response(b'{"jsonrpc":"2.0","id":1,' + part + b"}")
    columns = ("status", "error_kind", "error_message", "error_code", "result")
    quick_row = recorder.make_row(finished_call)
    monkeypatch.setattr(call_log, "raw_result_of", lambda body: None)
    slow_row = recorder.make_row(finished_call)
    assert [quick_row[column] for column in columns] == [slow_row[column] for column in columns]
    (row,) = write_rows(recorder)
    assert row.status == slow_row["status"]


def test_a_call_has_only_its_first_outcome(recorder: Recorder, call: Callable[..., FinishedCall]) -> None:
    finished_call = call()
    finished_call.record_response(response(**content("hi")))
    finished_call.record_abandonment(timed_out=True)
    finished_call.record_error(ConnectError("gone"))
    assert [row.status for row in write_rows(recorder)] == ["succeeded"]


def test_values_that_are_too_long_are_cut_and_marked_as_cut(
    recorder: Recorder, call: Callable[..., FinishedCall]
) -> None:
    call(arguments={"a": "x" * 300}).record_response(response(**content("y" * 300)))
    call().record_response(response(isError=True, **content("z" * 70_000)))
    call().record_response(response(**content("z" * 70_000)))
    call().record_response(jsonrpc.encode(jsonrpc.error_response(1, -1, "no", {"x": "y" * 300})))
    call().record_response(jsonrpc.encode(jsonrpc.error_response("a", -2, "no", {"x": "y" * 70_000})))
    cut_row, error_row, large_row, data_row, large_error_row = write_rows(recorder)
    assert cut_row.arguments[CUT]["bytes"] == 308
    assert cut_row.arguments[CUT]["beginning"].startswith('{"a":"xxx')
    assert cut_row.result["content"] == [{"type": "text", "text": "y" * 200}]
    assert cut_row.result["_meta"][CUT]["bytes"] == len(json.dumps(content("y" * 300), separators=(",", ":")))
    assert (error_row.status, error_row.error_kind, error_row.result["isError"]) == ("failed", "tool", True)
    assert (large_row.status, large_row.result["_meta"][CUT]["bytes"]) == (
        "succeeded",
        len(jsonrpc.encode(content("z" * 70_000))),
    )
    assert large_row.result["content"][0]["text"].startswith('{"content"')
    assert (data_row.error_code, data_row.error_data) == (-1, None)
    assert (large_error_row.status, large_error_row.error_code, large_error_row.result) == ("failed", -2, None)


def test_only_the_stored_part_of_large_arguments_is_encoded(
    recorder: Recorder, call: Callable[..., FinishedCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To encode all arguments, or to search them for secrets, would hold the interpreter that the event loop needs."""
    size = 4_000_000
    endless_arguments = {"a": [{"b": 1}] * 300, "nothing": object()}  # an object cannot be encoded
    call(arguments=endless_arguments, size=size).record_response(response(**content("hi")))
    call(arguments=endless_arguments, size=size, schema=PASSWORD).record_response(response(**content("hi")))
    monkeypatch.setattr(call_log.secrets, "secret_paths", lambda *_: pytest.fail("searched"))
    cut_row, secret_row = write_rows(recorder)
    assert cut_row.arguments[CUT]["bytes"] == size
    assert cut_row.arguments[CUT]["beginning"] == ('{"a":[' + '{"b":1},' * 40)[:200]
    assert secret_row.arguments == {CUT: {"bytes": size, "beginning": ""}}


def test_arguments_and_results_are_not_stored_if_the_operator_forbids_it(call: Callable[..., FinishedCall]) -> None:
    recorder = Recorder(max_bytes=0)
    call(recorder=recorder).record_response(response(**content("hi")))
    call(recorder=recorder).record_response(response(isError=True, **content("hi")))
    rows = write_rows(recorder)
    assert [(row.arguments, row.result, row.status) for row in rows] == [({}, None, "succeeded"), ({}, None, "failed")]


def found(text: str) -> list[int]:
    return list(Call.objects.filter(text_index.matching(text)).order_by("id").values_list("id", flat=True))


def test_a_call_is_found_by_words_of_what_is_stored(recorder: Recorder, call: Callable[..., FinishedCall]) -> None:
    call(arguments={"path": "plum"}).record_response(response(**content("pear")))
    call(arguments={"path": "fig"}).record_response(response(isError=True, **content("quince")))
    call(arguments={"path": "cut " * 100 + "lost"}).record_response(response(**content("cut " * 100 + "lost")))
    call(arguments={"path": "big " * 10_000 + "lost"}, size=100_000).record_response(response())
    call(arguments={}).record_response(b'{"jsonrpc": "2.0", "id": 1, "error": {"code": 7, "message": "kiwi"}}')
    ids = [row.pk for row in write_rows(recorder)]
    for text, number in (("plum pear", 0), ("fig", 1), ("quince", 1), ("cut", 2), ("big", 3), ("kiwi", 4)):
        assert found(text) == [ids[number]], text
    assert found("lost") == []


def test_nothing_is_found_if_the_operator_forbids_to_store_it(call: Callable[..., FinishedCall]) -> None:
    recorder = Recorder(max_bytes=0)
    call(recorder=recorder, arguments={"a": "plum"}).record_response(response(**content("pear")))
    call(recorder=recorder).record_response(response(isError=True, **content("pear")))
    assert [row.search_text for row in write_rows(recorder)] == [None, None]
    assert found("plum") == found("pear") == []


def test_neither_secrets_nor_results_that_may_repeat_them_are_found(
    recorder: Recorder, call: Callable[..., FinishedCall]
) -> None:
    secret = {"arguments": {"key": "canary", "room": "cellar"}, "schema": PASSWORD}
    call(**secret).record_response(response(**content("the canary sings")))
    call(**secret).record_response(response(isError=True, **content("the canary sings")))
    call(**secret, size=10_000_000).record_response(response(**content("the canary sings")))
    call(**secret | {"schema": None}, tool="unheard").record_response(response(**content("the canary sings")))
    ids = [row.pk for row in write_rows(recorder)]
    assert found("canary") == found("sings") == []
    assert found("cellar") == ids[:2]


def test_secrets_in_arguments_are_masked(recorder: Recorder, call: Callable[..., FinishedCall]) -> None:
    call(arguments={"key": "hush"}, schema=PASSWORD).record_response(response())
    call(arguments=["no object"]).record_response(response())
    masked_row, odd_row = write_rows(recorder)
    assert "hush" not in json.dumps(masked_row.arguments)
    assert masked_row.secret_paths == [["key"]]
    assert odd_row.arguments == {}


def test_secrets_of_a_tool_that_is_listed_late_or_never_are_masked(
    recorder: Recorder, call: Callable[..., FinishedCall]
) -> None:
    """The gateway reads lists a little after they are stored. Until then a call has no schema."""
    finished_call = call(arguments={"key": "hush"}, schema=None)
    finished_call.record_response(response())
    call(arguments={"key": "hush"}, schema=None, tool="unheard").record_response(response())
    call(arguments={}, schema=None, tool="unheard").record_response(response())
    call(arguments={"key": "hush"}, schema=None, tool="unheard", size=10_000_000).record_response(response())
    Tool.objects.create(
        member_id=finished_call.member_id, name="echo", definition={"inputSchema": json.loads(PASSWORD)}
    )
    late_row, unlisted_row, empty_row, large_row = write_rows(recorder)
    assert late_row.arguments == unlisted_row.arguments == {"key": secrets.MASK}
    assert (empty_row.arguments, empty_row.secret_paths) == ({}, [])
    assert large_row.arguments == {CUT: {"bytes": 10_000_000, "beginning": ""}}


def test_all_arguments_are_masked_if_the_schema_cannot_be_read(
    recorder: Recorder, call: Callable[..., FinishedCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> None:
        raise OperationalError("gone")

    monkeypatch.setattr(call_log.Tool.objects, "filter", fail)
    call(arguments={"key": "hush"}, schema=None).record_response(response())
    (masked_row,) = write_rows(recorder)
    assert masked_row.arguments == {"key": secrets.MASK}


def test_rows_of_calls_stay_without_their_token_and_user(recorder: Recorder, call: Callable[..., FinishedCall]) -> None:
    user = User.objects.create_user("ann")
    token, _ = Token.make(user=user, name="laptop")
    principal_without_token = Principal(user.pk, "ann", token_id=token.pk + 1, token_name="laptop")
    call(principal=Principal(user.pk, "ann", token_id=token.pk)).record_response(response())
    call(principal=principal_without_token).record_response(response())
    call(principal=Principal(user.pk + 1, "bob", token_id=token.pk + 1)).record_response(response())
    call(member_id=0).record_response(response())
    rows = write_rows(recorder)
    assert [(row.requester, row.requested_by_id, row.token_id) for row in rows] == [
        ("ann", user.pk, token.pk),
        ("ann (laptop)", user.pk, None),
        ("bob", None, None),
    ]
    token.refresh_from_db()
    assert token.last_used_at is not None


@pytest.mark.parametrize(("bound", "limit"), [("MAX_WAITING", 2), ("MAX_WAITING_BYTES", 2_100)])
def test_the_oldest_calls_are_lost_and_logged_if_the_database_is_too_slow(
    recorder: Recorder,
    call: Callable[..., FinishedCall],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    bound: str,
    limit: int,
) -> None:
    monkeypatch.setattr(call_log, bound, limit)
    for number in range(5):
        call(tool=f"t{number}", size=1_000).record_response(response())
    assert [row.tool_name for row in write_rows(recorder)] == ["t3", "t4"]
    assert "3 calls of the gateway were not written" in caplog.text


@pytest.mark.parametrize(("bound", "limit"), [("MAX_WAITING", 10), ("MAX_WAITING_BYTES", 10_500)])
def test_the_user_with_the_most_calls_loses_calls_first(
    recorder: Recorder, call: Callable[..., FinishedCall], monkeypatch: pytest.MonkeyPatch, bound: str, limit: int
) -> None:
    monkeypatch.setattr(call_log, bound, limit)
    ada, bob = (User.objects.create_user(name) for name in ("ada", "bob"))

    def record_calls(user: User, count: int) -> None:
        token, _ = Token.make(user=user)
        for _ in range(count):
            principal = replace(OPERATOR, user_id=user.pk, token_id=token.pk)
            call(tool=user.username, principal=principal, size=1_000).record_response(b"")

    record_calls(ada, 3)
    record_calls(bob, 8)  # by any number of tokens
    record_calls(bob, 8)
    record_calls(ada, 1)
    assert [row.tool_name for row in write_rows(recorder)] == ["ada"] * 3 + ["bob"] * 6 + ["ada"]


def test_the_token_with_the_most_calls_of_a_user_loses_calls_first(
    recorder: Recorder, call: Callable[..., FinishedCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_log, "MAX_WAITING_BYTES", 10_500)
    user = User.objects.create_user("ada")
    for name, count in {"few": 3, "many": 20}.items():
        token, _ = Token.make(user=user)
        for _ in range(count):
            principal = replace(OPERATOR, user_id=user.pk, token_id=token.pk)
            call(tool=name, principal=principal, size=1_000).record_response(b"")
    assert [row.tool_name for row in write_rows(recorder)] == ["few"] * 3 + ["many"] * 7


def make_fail(monkeypatch: pytest.MonkeyPatch, name: str, error: Exception, *, times: int, after: bool = False) -> None:
    """Let a function of `call_rows` raise this number of times, before or `after` its work, and then work."""
    work, failures = getattr(call_rows, name), [times]

    def attempt(*args: Any) -> Any:
        result = work(*args) if after and failures[0] else None
        if failures[0]:
            failures[0] -= 1
            raise error
        return result or work(*args)

    monkeypatch.setattr(call_rows, name, attempt)


@pytest.mark.parametrize("error", [OperationalError("away"), InterfaceError("away"), InternalError("away")])
def test_no_call_is_lost_if_the_database_is_unavailable_for_a_short_time(
    recorder: Recorder,
    call: Callable[..., FinishedCall],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    make_fail(monkeypatch, "insert", error, times=3)
    call(tool="first").record_response(response())
    recorder.start()
    eventually(lambda: "calls of the gateway cannot be written (away); trying again" in caplog.text)
    call(tool="second").record_response(response())
    eventually(lambda: Call.objects.count() == 2)
    assert [row.tool_name for row in Call.objects.order_by("id")] == ["first", "second"]


@pytest.mark.parametrize("name", ["insert", "insert_alone"])
def test_an_error_after_the_commit_writes_no_call_twice(
    recorder: Recorder, call: Callable[..., FinishedCall], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    make_fail(monkeypatch, name, OperationalError("the connection broke"), times=1, after=True)
    options = {"member_id": 0} if name == "insert_alone" else {}  # so that the rows are written one by one
    call(tool="a").record_response(response())
    call(tool="b", **options).record_response(response())
    call(tool="c").record_response(response())
    recorder.start()
    eventually(lambda: Call.objects.filter(tool_name="c").exists())
    recorder.stop()
    names = [row.tool_name for row in Call.objects.order_by("id")]
    assert names == (["a", "c"] if options else ["a", "b", "c"])


def test_a_call_that_the_database_cannot_store_loses_no_other_call(
    recorder: Recorder, call: Callable[..., FinishedCall], caplog: pytest.LogCaptureFixture
) -> None:
    for tool, timeout in (("a", 1.0), ("bad", object()), ("c", 1.0)):
        call(tool=tool, timeout=timeout).record_response(response())
    assert [row.tool_name for row in write_rows(recorder)] == ["a", "c"]
    assert "a call of tool 'bad' cannot be written" in caplog.text


def test_calls_that_the_database_refuses_for_long_make_room_for_other_calls(
    recorder: Recorder,
    call: Callable[..., FinishedCall],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(call_log, "GIVE_UP_SECONDS", 0.0)
    make_fail(monkeypatch, "insert", OperationalError("too deep"), times=1)
    call(tool="bad").record_response(response())
    recorder.start()
    eventually(lambda: "1 calls of the gateway could not be written (too deep)" in caplog.text)
    call(tool="good").record_response(response())
    eventually(lambda: [row.tool_name for row in Call.objects.all()] == ["good"])


def test_a_stop_does_not_wait_for_the_database_and_logs_lost_calls(
    recorder: Recorder,
    call: Callable[..., FinishedCall],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_fail(monkeypatch, "insert", OperationalError("away"), times=1_000)
    recorder.start()
    for _ in range(3):
        call().record_response(response())
    watch = Stopwatch()
    recorder.stop()
    assert watch.seconds < call_log.STOP_SECONDS + 0.5
    assert not recorder.is_alive
    assert "3 calls of the gateway were not written: the runtime is stopping" in caplog.text


def test_a_stop_has_a_time_limit_while_sqlite_is_locked(
    recorder: Recorder, call: Callable[..., FinishedCall], caplog: pytest.LogCaptureFixture
) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("only SQLite has one lock for all writers")
    call().record_response(response())
    with transaction.atomic():
        recorder.start()
        eventually(lambda: "(database is locked); trying again" in caplog.text)
        watch = Stopwatch()
        recorder.stop()
        assert watch.seconds < call_log.STOP_SECONDS + 0.5
        assert not recorder.is_alive
    assert "1 calls of the gateway were not written: the runtime is stopping" in caplog.text


def test_calls_that_end_during_a_write_are_all_written(
    recorder: Recorder, call: Callable[..., FinishedCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads switch as often as possible, as they do by chance on a busy machine."""
    monkeypatch.setattr(call_log, "WRITE_SECONDS", 0.0)
    all_calls: list[FinishedCall] = []
    monkeypatch.setattr(recorder, "row_or_none", lambda call: None)
    monkeypatch.setattr(recorder, "write_batch", lambda calls, rows: all_calls.extend(calls))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    finished_call = call()
    try:
        recorder.start()
        threads = [
            threading.Thread(target=lambda: [recorder.put(replace(finished_call)) for _ in range(4000)])
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    recorder.stop()
    assert len(all_calls) == 8000


def test_a_call_names_the_version_of_its_tool(recorder: Recorder, call: Callable[..., FinishedCall]) -> None:
    for version in ("a" * 64, ""):
        call(version=version).record_response(response(**content("hi")))
    assert [row.tool_version for row in write_rows(recorder)] == ["a" * 64, ""]

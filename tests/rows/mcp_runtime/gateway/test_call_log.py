"""Calls written down: what a row says of each end, what is cut, masked or lost."""

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
    """Starts when a test lets it."""
    made = Recorder(max_bytes=200)
    yield made
    if made._thread.is_alive():
        made.stop()


@pytest.fixture
def call(recorder: Recorder) -> Callable[..., FinishedCall]:
    member = GuildMember.objects.create(name="notes", directory="notes")

    def make(**options: Any) -> FinishedCall:
        given = {"arguments": {"a": 1}, "schema": "", "principal": OPERATOR, "timeout": 5.0}
        given |= {"recorder": recorder, "member_id": member.pk, "member": "notes", "tool": "echo"}
        return FinishedCall(**given | options)

    return make


def written(recorder: Recorder) -> list[Call]:
    recorder.start()
    recorder.stop()
    return list(Call.objects.order_by("id"))


def answer(**result: Any) -> bytes:
    return jsonrpc.encode({"jsonrpc": "2.0", "id": 1, "result": result})


def content(said: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}]}


def test_each_end_of_a_call_has_its_words(recorder: Recorder, call: Callable[..., FinishedCall]) -> None:
    call().record_response(answer(**content("hi")))
    call().record_response(answer(isError=True, **content("broken")))
    call().record_response(answer(isError=True))
    call().record_response(b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no","data":{"x":1}}}')
    call().record_response(b"nonsense")
    call().record_error(ConnectError("gone"))
    call().record_refusal(CallFailedError(ErrorKind.UNAVAILABLE, "away"))
    call().record_refusal(MethodError(-32020, "header"))
    call().record_abandonment(timed_out=True)
    call().record_abandonment(timed_out=False)
    rows = written(recorder)
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


def test_a_call_ends_once(recorder: Recorder, call: Callable[..., FinishedCall]) -> None:
    one = call()
    one.record_response(answer(**content("hi")))
    one.record_abandonment(timed_out=True)
    one.record_error(ConnectError("gone"))
    assert [row.status for row in written(recorder)] == ["succeeded"]


def test_values_that_are_too_long_are_cut_and_marked_as_cut(
    recorder: Recorder, call: Callable[..., FinishedCall]
) -> None:
    call(arguments={"a": "x" * 300}).record_response(answer(**content("y" * 300)))
    call().record_response(answer(isError=True, **content("z" * 70_000)))
    call().record_response(answer(**content("z" * 70_000)))
    call().record_response(jsonrpc.encode(jsonrpc.error_response(1, -1, "no", {"x": "y" * 300})))
    call().record_response(jsonrpc.encode(jsonrpc.error_response("a", -2, "no", {"x": "y" * 70_000})))
    cut, error, large, data, large_error = written(recorder)
    assert cut.arguments[CUT]["bytes"] == 308
    assert cut.arguments[CUT]["beginning"].startswith('{"a":"xxx')
    assert cut.result["content"] == [{"type": "text", "text": "y" * 200}]
    assert cut.result["_meta"][CUT]["bytes"] == len(json.dumps(content("y" * 300), separators=(",", ":")))
    assert (error.status, error.error_kind, error.result["isError"]) == ("failed", "tool", True)
    assert (large.status, large.result["_meta"][CUT]["bytes"]) == (
        "succeeded",
        len(jsonrpc.encode(content("z" * 70_000))),
    )
    assert large.result["content"][0]["text"].startswith('{"content"')
    assert (data.error_code, data.error_data) == (-1, None)
    assert (large_error.status, large_error.error_code, large_error.result) == ("failed", -2, None)


def test_of_large_arguments_no_more_is_encoded_than_is_kept(
    recorder: Recorder, call: Callable[..., FinishedCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To encode all of it, or to search it for secrets, holds the interpreter that the gateway's loop works with."""
    size = 4_000_000
    endless = {"a": [{"b": 1}] * 300, "nothing": object()}  # which cannot be encoded
    call(arguments=endless, size=size).record_response(answer(**content("hi")))
    call(arguments=endless, size=size, schema=PASSWORD).record_response(answer(**content("hi")))
    monkeypatch.setattr(call_log.secrets, "secret_paths", lambda *_: pytest.fail("searched"))
    cut, secret = written(recorder)
    assert cut.arguments[CUT]["bytes"] == size
    assert cut.arguments[CUT]["beginning"] == ('{"a":[' + '{"b":1},' * 40)[:200]
    assert secret.arguments == {CUT: {"bytes": size, "beginning": ""}}


def test_nothing_of_arguments_and_results_is_kept_where_the_operator_says_so(call: Callable[..., FinishedCall]) -> None:
    recorder = Recorder(max_bytes=0)
    call(recorder=recorder).record_response(answer(**content("hi")))
    call(recorder=recorder).record_response(answer(isError=True, **content("hi")))
    rows = written(recorder)
    assert [(row.arguments, row.result, row.status) for row in rows] == [({}, None, "succeeded"), ({}, None, "failed")]


def test_secrets_in_arguments_are_masked(recorder: Recorder, call: Callable[..., FinishedCall]) -> None:
    call(arguments={"key": "hush"}, schema=PASSWORD).record_response(answer())
    call(arguments=["no object"]).record_response(answer())
    masked, odd = written(recorder)
    assert "hush" not in json.dumps(masked.arguments)
    assert masked.secret_paths == [["key"]]
    assert odd.arguments == {}


def test_secrets_of_a_tool_that_was_listed_a_moment_after_its_call_or_never_are_masked(
    recorder: Recorder, call: Callable[..., FinishedCall]
) -> None:
    """The gateway reads lists a little after they are stored: such a call comes without a schema."""
    made = call(arguments={"key": "hush"}, schema=None)
    made.record_response(answer())
    call(arguments={"key": "hush"}, schema=None, tool="unheard").record_response(answer())
    call(arguments={}, schema=None, tool="unheard").record_response(answer())
    call(arguments={"key": "hush"}, schema=None, tool="unheard", size=10_000_000).record_response(answer())
    Tool.objects.create(member_id=made.member_id, name="echo", definition={"inputSchema": json.loads(PASSWORD)})
    late, unheard, empty, large = written(recorder)
    assert late.arguments == unheard.arguments == {"key": secrets.MASK}
    assert (empty.arguments, empty.secret_paths) == ({}, [])
    assert large.arguments == {CUT: {"bytes": 10_000_000, "beginning": ""}}


def test_all_arguments_are_masked_when_the_database_does_not_say_which_are_secrets(
    recorder: Recorder, call: Callable[..., FinishedCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(**_: Any) -> None:
        raise OperationalError("gone")

    monkeypatch.setattr(call_log.Tool.objects, "filter", away)
    call(arguments={"key": "hush"}, schema=None).record_response(answer())
    (masked,) = written(recorder)
    assert masked.arguments == {"key": secrets.MASK}


def test_calls_outlive_the_token_and_the_user_they_came_with(
    recorder: Recorder, call: Callable[..., FinishedCall]
) -> None:
    user = User.objects.create_user("ann")
    token, _ = Token.make(user=user, name="laptop")
    gone = Principal(user.pk, "ann", token_id=token.pk + 1, token_name="laptop")
    call(principal=Principal(user.pk, "ann", token_id=token.pk)).record_response(answer())
    call(principal=gone).record_response(answer())
    call(principal=Principal(user.pk + 1, "bob", token_id=token.pk + 1)).record_response(answer())
    call(member_id=0).record_response(answer())
    rows = written(recorder)
    assert [(row.requester, row.requested_by_id, row.token_id) for row in rows] == [
        ("ann", user.pk, token.pk),
        ("ann (laptop)", user.pk, None),
        ("bob", None, None),
    ]
    token.refresh_from_db()
    assert token.last_used_at is not None


@pytest.mark.parametrize(("bound", "most"), [("MAX_WAITING", 2), ("MAX_WAITING_BYTES", 2_100)])
def test_the_oldest_calls_are_lost_when_the_database_is_too_slow_and_that_is_said(
    recorder: Recorder,
    call: Callable[..., FinishedCall],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    bound: str,
    most: int,
) -> None:
    monkeypatch.setattr(call_log, bound, most)
    for number in range(5):
        call(tool=f"t{number}", size=1_000).record_response(answer())
    assert [row.tool_name for row in written(recorder)] == ["t3", "t4"]
    assert "3 calls of the gateway were not written" in caplog.text


@pytest.mark.parametrize(("bound", "most"), [("MAX_WAITING", 10), ("MAX_WAITING_BYTES", 10_500)])
def test_of_too_many_calls_those_of_whoever_has_most_are_lost(
    recorder: Recorder, call: Callable[..., FinishedCall], monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    monkeypatch.setattr(call_log, bound, most)
    ada, bob = (User.objects.create_user(name) for name in ("ada", "bob"))

    def end(user: User, count: int) -> None:
        token, _ = Token.make(user=user)
        for _ in range(count):
            principal = replace(OPERATOR, user_id=user.pk, token_id=token.pk)
            call(tool=user.username, principal=principal, size=1_000).record_response(b"")

    end(ada, 3)
    end(bob, 8)  # by any number of tokens
    end(bob, 8)
    end(ada, 1)
    assert [row.tool_name for row in written(recorder)] == ["ada"] * 3 + ["bob"] * 6 + ["ada"]


def test_of_one_users_too_many_calls_those_of_the_token_with_most_are_lost(
    recorder: Recorder, call: Callable[..., FinishedCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_log, "MAX_WAITING_BYTES", 10_500)
    user = User.objects.create_user("ada")
    for name, count in {"few": 3, "many": 20}.items():
        token, _ = Token.make(user=user)
        for _ in range(count):
            principal = replace(OPERATOR, user_id=user.pk, token_id=token.pk)
            call(tool=name, principal=principal, size=1_000).record_response(b"")
    assert [row.tool_name for row in written(recorder)] == ["few"] * 3 + ["many"] * 7


def failing(monkeypatch: pytest.MonkeyPatch, name: str, error: Exception, *, times: int, after: bool = False) -> None:
    """That function of `call_rows` raises so often, `after` its work if need be, and then works."""
    work, left = getattr(call_rows, name), [times]

    def attempt(*args: Any) -> Any:
        done = work(*args) if after and left[0] else None
        if left[0]:
            left[0] -= 1
            raise error
        return done or work(*args)

    monkeypatch.setattr(call_rows, name, attempt)


@pytest.mark.parametrize("error", [OperationalError("away"), InterfaceError("away"), InternalError("away")])
def test_a_database_that_is_away_for_a_while_costs_no_call(
    recorder: Recorder,
    call: Callable[..., FinishedCall],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    failing(monkeypatch, "insert", error, times=3)
    call(tool="first").record_response(answer())
    recorder.start()
    eventually(lambda: "calls of the gateway cannot be written (away); trying again" in caplog.text)
    call(tool="second").record_response(answer())
    eventually(lambda: Call.objects.count() == 2)
    assert [row.tool_name for row in Call.objects.order_by("id")] == ["first", "second"]


@pytest.mark.parametrize("name", ["insert", "insert_alone"])
def test_an_error_behind_the_commit_writes_no_call_twice(
    recorder: Recorder, call: Callable[..., FinishedCall], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    failing(monkeypatch, name, OperationalError("the connection broke"), times=1, after=True)
    gone = {"member_id": 0} if name == "insert_alone" else {}  # so that they are written one by one
    call(tool="a").record_response(answer())
    call(tool="b", **gone).record_response(answer())
    call(tool="c").record_response(answer())
    recorder.start()
    eventually(lambda: Call.objects.filter(tool_name="c").exists())
    recorder.stop()
    kept = [row.tool_name for row in Call.objects.order_by("id")]
    assert kept == (["a", "c"] if gone else ["a", "b", "c"])


def test_a_call_that_the_database_cannot_hold_costs_no_other(
    recorder: Recorder, call: Callable[..., FinishedCall], caplog: pytest.LogCaptureFixture
) -> None:
    for tool, timeout in (("a", 1.0), ("bad", object()), ("c", 1.0)):
        call(tool=tool, timeout=timeout).record_response(answer())
    assert [row.tool_name for row in written(recorder)] == ["a", "c"]
    assert "a call of tool 'bad' cannot be written" in caplog.text


def test_calls_that_the_database_refuses_for_long_make_room_for_others(
    recorder: Recorder,
    call: Callable[..., FinishedCall],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(call_log, "GIVE_UP_SECONDS", 0.0)
    failing(monkeypatch, "insert", OperationalError("too deep"), times=1)
    call(tool="bad").record_response(answer())
    recorder.start()
    eventually(lambda: "1 calls of the gateway could not be written (too deep)" in caplog.text)
    call(tool="good").record_response(answer())
    eventually(lambda: [row.tool_name for row in Call.objects.all()] == ["good"])


def test_a_stop_waits_for_no_database_and_says_what_it_lost(
    recorder: Recorder,
    call: Callable[..., FinishedCall],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing(monkeypatch, "insert", OperationalError("away"), times=1_000)
    recorder.start()
    for _ in range(3):
        call().record_response(answer())
    watch = Stopwatch()
    recorder.stop()
    assert watch.seconds < call_log.STOP_SECONDS + 0.5
    assert not recorder._thread.is_alive()
    assert "3 calls of the gateway were not written: the runtime is stopping" in caplog.text


def test_a_stop_has_its_bound_while_sqlite_is_locked(
    recorder: Recorder, call: Callable[..., FinishedCall], caplog: pytest.LogCaptureFixture
) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("SQLite has one lock for all who write")
    call().record_response(answer())
    with transaction.atomic():
        recorder.start()
        eventually(lambda: "(database is locked); trying again" in caplog.text)
        watch = Stopwatch()
        recorder.stop()
        assert watch.seconds < call_log.STOP_SECONDS + 0.5
        assert not recorder._thread.is_alive()
    assert "1 calls of the gateway were not written: the runtime is stopping" in caplog.text


def test_calls_that_end_while_others_are_written_down_are_all_there(
    recorder: Recorder, call: Callable[..., FinishedCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads change places as often as they can, as they do by chance on a busy machine."""
    monkeypatch.setattr(call_log, "WRITE_SECONDS", 0.0)
    seen: list[FinishedCall] = []
    monkeypatch.setattr(recorder, "_row_or_none", lambda call: None)
    monkeypatch.setattr(recorder, "_write_batch", lambda calls, rows: seen.extend(calls))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    one = call()
    try:
        recorder.start()
        threads = [threading.Thread(target=lambda: [recorder.put(replace(one)) for _ in range(4000)]) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    recorder.stop()
    assert len(seen) == 8000

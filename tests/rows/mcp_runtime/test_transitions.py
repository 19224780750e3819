from __future__ import annotations

import getpass
import inspect
import os
import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.utils import timezone

from mcp_runtime.calls import statements, transitions
from mcp_runtime.calls.transitions import Caller, ErrorKind, Outcome, Status
from mcp_runtime.protocol import errors
from mcp_runtime.protocol.errors import (
    ClientError,
    IdempotencyConflictError,
    InvalidArgumentsError,
    MemberDisabledError,
    NotAllowedError,
    NotCancellableError,
    RemoteError,
    RequestRefusedError,
    ToolDisabledError,
    ToolError,
    UnknownMemberError,
    UnknownToolError,
)
from mcp_runtime.rows import lease
from mcp_runtime.schemas import secrets, validation
from mcp_runtime.security import principals
from roster.models import Call, CallTotal, GuildMember, Hall, StatusChange, Token, Tool

pytestmark = pytest.mark.django_db

REST = Call.Source.REST
COMMAND = Call.Source.COMMAND
SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "login": {"type": "object", "properties": {"password": {"type": "string", "format": "password"}}},
    },
    "required": ["text"],
}


@pytest.fixture
def lease_id() -> uuid.UUID:
    return lease.take()


@pytest.fixture
def anna() -> GuildMember:
    return GuildMember.objects.create(name="anna", directory="anna", status="connected")


@pytest.fixture
def echo(anna: GuildMember) -> Tool:
    return Tool.objects.create(member=anna, name="echo", definition={"name": "echo", "inputSchema": SCHEMA})


def may_call(user: User) -> User:
    user.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    return user


@pytest.fixture
def bob() -> User:
    return may_call(User.objects.create_user("bob"))


def ask(arguments: Any = None, *, tool: str = "echo", caller: Caller | None = None, key: str | None = None) -> Any:
    return transitions.queue(
        member_name="anna",
        tool_name=tool,
        arguments={"text": "hello"} if arguments is None else arguments,
        caller=caller or Caller(COMMAND),
        idempotency_key=key,
    )


def queued(**columns: Any) -> Call:
    call: Call = ask()[0]
    Call.objects.filter(pk=call.pk).update(**columns)
    call.refresh_from_db()
    return call


def running(lease_id: uuid.UUID | None, **columns: Any) -> Call:
    return queued(status=Status.RUNNING, lease_id=lease_id, started_at=timezone.now(), **columns)


def row(call: Call) -> Call:
    return Call.objects.get(pk=call.pk)


def lose_the_lease() -> None:
    Hall.objects.update(lease_id=uuid.uuid4())


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """What each returns or raises, all begun together in threads of their own."""
    barrier = threading.Barrier(len(works))
    ends: list[Any] = [None] * len(works)

    def run(index: int, work: Callable[[], Any]) -> None:
        barrier.wait(10)
        try:
            ends[index] = work()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            ends[index] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return ends


# Queue ------------------------------------------------------------------------------------------------------------


def test_a_call_is_queued_as_a_row_that_says_who_asked_for_what_and_how(echo: Tool, bob: User) -> None:
    call, created = ask({"text": "hi"}, caller=Caller(REST, bob))
    found = row(call)
    assert created
    assert (found.status, found.member, found.tool_name) == ("queued", echo.member, "echo")
    assert found.arguments == {"text": "hi"}
    assert (found.source, found.requested_by, found.requester) == ("rest", bob, "bob")
    assert (found.started_at, found.finished_at, found.lease_id, found.result) == (None, None, None, None)
    assert found.queued_at is not None


def test_the_timeout_is_the_tools_the_members_or_thirty_seconds(echo: Tool) -> None:
    assert ask()[0].timeout == 30
    GuildMember.objects.update(manifest={"timeout": 7})
    assert ask()[0].timeout == 7
    GuildMember.objects.update(manifest={"timeout": 7, "tool_timeouts": {"echo": 0.5}})
    assert ask()[0].timeout == 0.5


def test_whoever_has_no_account_is_named_by_the_system(echo: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask()[0].requester == f"{getpass.getuser()} (system user)"
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 1_234_567)  # a container's user without a name
    assert ask()[0].requester == "system user"


def disable_member() -> None:
    GuildMember.objects.update(enabled=False)


def remove_member() -> None:
    GuildMember.objects.update(removed_at=timezone.now())


def disable_tool() -> None:
    Tool.objects.update(enabled=False)


def unlist_tool() -> None:
    Tool.objects.update(listed=False)


def forget_member() -> None:
    GuildMember.objects.all().delete()


def make_tool_a_task() -> None:
    Tool.objects.update(definition={"name": "echo", "execution": {"taskSupport": "required"}})


def break_member() -> None:
    Tool.objects.all().delete()
    GuildMember.objects.update(status="error", last_error=f"it fell over{GuildMember.TAIL_MARK}another's argument")


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (disable_member, MemberDisabledError, "member 'anna' is disabled; enable it first"),
        (remove_member, UnknownMemberError, "no member 'anna' is in the roster"),
        (forget_member, UnknownMemberError, "no member 'anna' is in the roster"),
        (disable_tool, ToolDisabledError, "tool 'echo' of member 'anna' is disabled"),
        (
            make_tool_a_task,
            RequestRefusedError,
            "tool 'echo' of member 'anna' runs only as a task: it is offered at the member's own address of the "
            "gateway alone, /mcp/<member>",
        ),
        (unlist_tool, UnknownToolError, "member 'anna' lists no tool 'echo'"),
        (break_member, UnknownToolError, "member 'anna' lists no tool 'echo': it fell over"),
    ],
)
def test_what_cannot_be_called_is_refused_with_the_reason(
    echo: Tool, change: Callable[[], None], error: type[RequestRefusedError], said: str
) -> None:
    change()
    with pytest.raises(error) as caught:
        ask()
    assert str(caught.value) == said
    assert not Call.objects.exists()


def test_a_member_that_is_disabled_and_lists_nothing_is_disabled_first(anna: GuildMember) -> None:
    disable_member()
    with pytest.raises(MemberDisabledError):
        ask()


@pytest.mark.parametrize("status", GuildMember.Status.values)
def test_a_call_is_accepted_whatever_the_member_does_now(echo: Tool, status: str) -> None:
    GuildMember.objects.update(status=status)
    assert ask()[0].status == "queued"


@pytest.mark.parametrize(
    ("arguments", "path", "reason"),
    [
        ({}, "", "'text' is a required property"),
        ({"text": 7}, "text", "7 is not of type 'string'"),
        ({"text": "a", "login": {"password": 1}}, "login.password", "1 is not of type 'string'"),
        ([], "", "must be a JSON object"),
        ("text", "", "must be a JSON object"),
        (7, "", "must be a JSON object"),
        ({"text": "a\0b"}, "", "NUL characters or lone surrogates"),
        ({"text": "a\ud800b"}, "", "NUL characters or lone surrogates"),
        ({"text": "a", "k\0": 1}, "", "NUL characters or lone surrogates"),
        ({"text": "a", "x": float("nan")}, "", "cannot be stored|too large to be stored"),
        ({"text": "a", "x": float("inf")}, "", "too large to be stored"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_place_and_reason(
    echo: Tool, arguments: Any, path: str, reason: str
) -> None:
    with pytest.raises(InvalidArgumentsError, match=reason) as caught:
        ask(arguments)
    assert caught.value.path == path
    assert str(caught.value).startswith("arguments of 'echo' of member 'anna'")
    assert not Call.objects.exists()


def test_arguments_that_nest_too_deep_are_refused(echo: Tool) -> None:
    deep: Any = []
    for _ in range(150):
        deep = [deep]
    with pytest.raises(InvalidArgumentsError, match="deep"):
        ask({"text": "a", "x": deep})


def test_a_tool_whose_schema_is_known_to_be_broken_is_called_unvalidated(echo: Tool) -> None:
    Tool.objects.update(schema_error="nonsense")
    assert ask({"whatever": 1})[1]


def test_a_schema_that_breaks_in_use_is_written_down_and_validates_no_more(
    echo: Tool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(schema: Any, arguments: Any) -> None:
        raise validation.BrokenSchemaError("the input schema cannot be applied")

    monkeypatch.setattr(validation, "validate", broken)
    assert ask({"whatever": 1})[1]
    assert Tool.objects.get().schema_error == "the input schema cannot be applied"
    assert "tool 'echo' of member 'anna'" in caplog.text


def test_a_schema_that_took_too_long_to_check_in_a_busy_moment_validates_again(echo: Tool) -> None:
    Tool.objects.update(schema_error=validation.TOO_LONG_TO_CHECK)
    assert ask({"text": "a"})[1]
    assert Tool.objects.get().schema_error == ""
    with pytest.raises(InvalidArgumentsError):
        ask({"text": 1})


def test_a_definition_is_not_read_for_a_call(echo: Tool, bob: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a megabyte holds the interpreter for longer than the rest of a call takes."""
    field = Tool._meta.get_field("definition")
    monkeypatch.setattr(field, "from_db_value", lambda *_: pytest.fail("read"))
    call, _ = transitions.queue(member_name="anna", tool_name="echo", arguments={"text": "x"}, caller=Caller(REST, bob))
    assert call.status == Status.QUEUED


@pytest.mark.parametrize("schema", ["text", '{"required": ["b"]}', 7, None, [], {}])
def test_what_is_no_schema_asks_for_nothing(echo: Tool, bob: User, schema: Any) -> None:
    fault = validation.check_schema(schema)
    Tool.objects.filter(pk=echo.pk).update(definition={"name": "echo", "inputSchema": schema}, schema_error=fault)
    call, _ = transitions.queue(member_name="anna", tool_name="echo", arguments={"a": 1}, caller=Caller(REST, bob))
    assert (call.status, call.secret_paths) == (Status.QUEUED, [])


def test_where_secrets_are_is_remembered(echo: Tool) -> None:
    call, _ = ask({"text": "a", "login": {"password": "sesame"}})
    assert row(call).secret_paths
    assert row(call).arguments["login"]["password"] == "sesame"  # the member needs it


# Idempotency ------------------------------------------------------------------------------------------------------


def test_the_same_key_gives_the_first_call_again(echo: Tool, bob: User) -> None:
    first, created = ask(caller=Caller(REST, bob), key="k")
    again, created_again = ask(caller=Caller(Call.Source.ADMIN, bob), key="k")
    assert (created, created_again) == (True, False)
    assert again == first
    assert Call.objects.count() == 1


def test_the_same_key_for_another_call_is_a_conflict_that_names_the_first(echo: Tool, bob: User) -> None:
    Tool.objects.create(member=echo.member, name="other", definition={"inputSchema": {"type": "object"}})
    first, _ = ask(caller=Caller(REST, bob), key="k")
    for changed in ({"arguments": {"text": "another"}}, {"tool": "other"}):
        with pytest.raises(IdempotencyConflictError, match=f"call {first.pk}, anna echo"):
            ask(caller=Caller(REST, bob), key="k", **changed)
    assert Call.objects.count() == 1


def test_a_key_is_its_users_own(echo: Tool, bob: User) -> None:
    alice = may_call(User.objects.create_user("alice"))
    assert ask(caller=Caller(REST, bob), key="k")[1]
    assert ask(caller=Caller(REST, alice), key="k")[1]


def with_token(user: User, **values: Any) -> Caller:
    return Caller(REST, user, principals.principal_of_token(Token.make(user=user, **values)[1]))


def test_a_key_is_its_tokens_own_whatever_the_scopes(echo: Tool, bob: User) -> None:
    """A narrowed token is not given what a wider one of the same user was, nor told of it."""
    wide, narrow = with_token(bob), with_token(bob, scope=Token.Scope.TOOLS, tools=[echo])
    callers = [wide, narrow, with_token(bob), Caller(REST, bob)]
    made = [ask(caller=caller, key="k") for caller in callers]
    assert [created for _, created in made] == [True] * 4
    assert [ask(caller=caller, key="k") for caller in callers] == [(call, False) for call, _ in made]
    with pytest.raises(IdempotencyConflictError, match=f"call {made[1][0].pk}, anna echo"):
        ask({"text": "another"}, caller=narrow, key="k")


def test_a_token_whose_rights_were_narrowed_since_is_refused_before_its_key_is_looked_up(echo: Tool, bob: User) -> None:
    row, token = Token.make(user=bob)
    first, _ = ask(caller=Caller(REST, bob, principals.principal_of_token(token)), key="k")
    row.scope = Token.Scope.MEMBERS
    row.save()
    with pytest.raises(NotAllowedError):
        ask(caller=Caller(REST, bob, principals.principal_of_token(token)), key="k")
    row.members.add(echo.member)
    assert ask(caller=Caller(REST, bob, principals.principal_of_token(token)), key="k") == (first, False)


def test_a_token_can_be_deleted_though_its_key_is_used_without_a_token_too(echo: Tool, bob: User) -> None:
    own, _ = ask(caller=Caller(REST, bob), key="k")
    with_tokens = [ask(caller=with_token(bob), key="k")[0] for _ in range(2)]
    Token.objects.all().delete()
    assert ask(caller=Caller(REST, bob), key="k") == (own, False)
    assert [(row(call).token_id, row(call).idempotency_key) for call in with_tokens] == [(None, None)] * 2
    bob.delete()
    assert Call.objects.count() == 3


def test_a_key_without_a_user_is_nobodys_and_finds_nothing_again(echo: Tool) -> None:
    assert [ask(key="k")[1] for _ in range(2)] == [True, True]


def test_a_repeat_of_a_call_that_is_over_is_the_same_though_its_secrets_are_masked(
    echo: Tool, bob: User, lease_id: uuid.UUID
) -> None:
    arguments = {"text": "a", "login": {"password": "sesame"}}
    first, _ = ask(arguments, caller=Caller(REST, bob), key="k")
    statements.claim([first.pk], lease_id)
    transitions.finish(first, Outcome.succeeded({}), lease_id)
    assert row(first).arguments["login"]["password"] == secrets.MASK
    assert ask(arguments, caller=Caller(REST, bob), key="k") == (first, False)


def test_a_repeat_gives_the_first_call_though_its_tool_may_not_be_called_any_more(echo: Tool, bob: User) -> None:
    first, _ = ask(caller=Caller(REST, bob), key="k")
    disable_tool()
    assert ask(caller=Caller(REST, bob), key="k") == (first, False)


@pytest.mark.django_db(transaction=True)
def test_of_many_with_one_key_and_two_tokens_at_once_each_token_gets_its_own(echo: Tool, bob: User) -> None:
    lease.hall()
    callers = [with_token(bob), with_token(bob)]
    ends = at_once(*[partial(ask, caller=callers[number % 2], key="k") for number in range(6)])
    assert sorted(created for _, created in ends) == [False] * 4 + [True] * 2
    assert {call.token_id for call, _ in ends} == {caller.current_principal().token_id for caller in callers}
    assert Call.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_of_many_with_one_key_at_once_one_is_made_and_all_get_it(echo: Tool, bob: User) -> None:
    ends = at_once(*[lambda: ask(caller=Caller(REST, bob), key="k")] * 6)
    made = Call.objects.get()
    assert sorted(created for _, created in ends) == [False] * 5 + [True]
    assert {call.pk for call, _ in ends} == {made.pk}


# Claim ------------------------------------------------------------------------------------------------------------


def test_a_claim_takes_queued_rows_and_says_by_whom(echo: Tool, lease_id: uuid.UUID) -> None:
    one, two, other = ask()[0], ask()[0], ask()[0]
    assert statements.claim([one.pk, two.pk], lease_id) == 2
    for call in (one, two):
        found = row(call)
        assert (found.status, found.lease_id) == ("running", lease_id)
        assert found.started_at is not None
    assert row(other).status == "queued"


@pytest.mark.parametrize("status", [status for status in Status if status != Status.QUEUED])
def test_what_is_not_queued_is_not_claimed(echo: Tool, lease_id: uuid.UUID, status: Status) -> None:
    call = queued(status=status)
    assert statements.claim([call.pk], lease_id) == 0
    assert row(call).lease_id is None


def test_without_the_lease_nothing_is_claimed(echo: Tool, lease_id: uuid.UUID) -> None:
    call = queued()
    lose_the_lease()
    assert statements.claim([call.pk], lease_id) == 0
    assert row(call).status == "queued"


@pytest.mark.django_db(transaction=True)
def test_a_row_is_claimed_once_however_many_try(echo: Tool, lease_id: uuid.UUID) -> None:
    ids = [ask()[0].pk for _ in range(5)]
    assert sum(at_once(*[lambda: statements.claim(ids, lease_id)] * 6)) == 5


@pytest.mark.django_db(transaction=True)
def test_a_call_that_is_claimed_and_cancelled_at_once_is_one_or_the_other(echo: Tool, lease_id: uuid.UUID) -> None:
    for _ in range(5):
        call = queued()
        claimed, cancelled = at_once(
            lambda pk=call.pk: statements.claim([pk], lease_id),  # type: ignore[misc]
            lambda it=call: transitions.cancel(it),  # type: ignore[misc]
        )
        found = row(call)
        if claimed:
            assert (found.status, found.cancel_requested_at is not None) == ("running", True)
        else:
            assert (found.status, found.started_at) == ("cancelled", None)
        assert not isinstance(cancelled, Exception)


# Finish -----------------------------------------------------------------------------------------------------------


def test_a_result_is_written_down(echo: Tool, lease_id: uuid.UUID) -> None:
    call = running(lease_id)
    assert transitions.finish(call, Outcome.succeeded({"content": []}), lease_id)
    found = row(call)
    assert (found.status, found.result, found.error_kind) == ("succeeded", {"content": []}, "")
    assert found.duration is not None


def test_an_end_is_final(echo: Tool, lease_id: uuid.UUID) -> None:
    call = running(lease_id)
    assert transitions.finish(call, Outcome.succeeded({}), lease_id)
    assert not transitions.finish(call, Outcome.failed(ErrorKind.TIMEOUT, "late"), lease_id)
    assert row(call).status == "succeeded"


def test_what_another_runtime_claimed_is_not_ours_to_finish(echo: Tool, lease_id: uuid.UUID) -> None:
    call = running(uuid.uuid4())
    assert not transitions.finish(call, Outcome.succeeded({}), lease_id)
    assert row(call).status == "running"


def test_without_the_lease_nothing_is_finished_or_refused(echo: Tool, lease_id: uuid.UUID) -> None:
    ran, waits = running(lease_id), queued()
    lose_the_lease()
    assert not transitions.finish(ran, Outcome.succeeded({}), lease_id)
    assert not transitions.refuse(waits, Outcome.failed(ErrorKind.UNAVAILABLE, "no"), lease_id)
    assert (row(ran).status, row(waits).status) == ("running", "queued")


def test_a_call_that_was_never_claimed_is_refused_once(echo: Tool, lease_id: uuid.UUID) -> None:
    call = queued()
    assert transitions.refuse(call, Outcome.failed(ErrorKind.UNAVAILABLE, "it is disabled"), lease_id)
    assert not transitions.refuse(call, Outcome.failed(ErrorKind.UNAVAILABLE, "again"), lease_id)
    found = row(call)
    assert (found.status, found.error_kind, found.error_message) == ("failed", "unavailable", "it is disabled")
    assert (found.started_at, found.duration) == (None, None)
    assert found.finished_at is not None


@pytest.mark.parametrize("end", ["finish", "refuse", "cancel", "lost", "own"])
def test_secrets_are_masked_however_the_call_ends(echo: Tool, lease_id: uuid.UUID, end: str) -> None:
    call, _ = ask({"text": "a", "login": {"password": "sesame"}})
    if end in ("finish", "lost", "own"):
        Call.objects.update(status="running", lease_id=uuid.uuid4() if end == "lost" else lease_id)
    match end:
        case "finish":
            transitions.finish(call, Outcome.succeeded({}), lease_id)
        case "refuse":
            transitions.refuse(call, Outcome.failed(ErrorKind.UNAVAILABLE, "no"), lease_id)
        case "cancel":
            transitions.cancel(call)
        case "lost":
            transitions.end_calls_of_other_leases(lease_id, "gone")
        case "own":
            transitions.end_calls_of_lease(lease_id, "gone")
    found = row(call)
    assert found.is_finished
    assert found.arguments == {"text": "a", "login": {"password": secrets.MASK}}


# What an error means ----------------------------------------------------------------------------------------------

MADE: dict[type[ClientError], tuple[ClientError, Status, str]] = {
    errors.ConnectError: (errors.ConnectError("refused"), Status.FAILED, "transport"),
    errors.HttpStatusError: (errors.HttpStatusError(500), Status.FAILED, "transport"),
    errors.TransportError: (errors.TransportError("broken"), Status.FAILED, "transport"),
    errors.ForeignAnswerError: (errors.ForeignAnswerError(), Status.FAILED, "transport"),
    errors.ClientError: (errors.ClientError("odd"), Status.FAILED, "transport"),
    errors.RequestTimeoutError: (errors.RequestTimeoutError(3), Status.FAILED, "timeout"),
    errors.RequestCancelledError: (errors.RequestCancelledError(), Status.CANCELLED, ""),
    errors.ProtocolError: (errors.ProtocolError("html"), Status.FAILED, "protocol"),
    errors.RemoteError: (errors.RemoteError(-32602, "no"), Status.FAILED, "protocol"),
    errors.ToolError: (errors.ToolError("no paper", {"isError": True}), Status.FAILED, "tool"),
}


def test_every_error_of_the_client_has_a_meaning() -> None:
    classes = {cls for cls in vars(errors).values() if inspect.isclass(cls) and issubclass(cls, ClientError)}
    assert set(MADE) == classes


@pytest.mark.parametrize("cls", MADE, ids=lambda cls: cls.__name__)
def test_what_an_error_means_for_the_call(cls: type[ClientError]) -> None:
    error, status, kind = MADE[cls]
    outcome = Outcome.of_error(error, member="anna", tool="echo")
    assert (outcome.status, outcome.error_kind) == (status, kind)
    may_have_run = "; it may have run" if kind == "timeout" else ""
    assert outcome.error_message == f"tool 'echo' of member 'anna': {error}{may_have_run}"


@pytest.mark.parametrize(
    "cls", [cls for cls in MADE if cls is not errors.RequestCancelledError], ids=lambda cls: cls.__name__
)
def test_a_call_that_was_never_sent_ends_as_unavailable_whatever_the_error(
    cls: type[ClientError], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = MADE[cls][0]
    monkeypatch.setattr(error, "was_sent", False)
    outcome = Outcome.of_error(error, member="anna", tool="echo")
    assert (outcome.status, outcome.error_kind) == (Status.FAILED, "unavailable")
    assert outcome.error_message == f"tool 'echo' of member 'anna': {error}; the call was not sent"


def test_every_kind_of_failure_is_said_by_somebody() -> None:
    by_the_hall = {ErrorKind.UNAVAILABLE, ErrorKind.LOST}
    assert {kind for _, _, kind in MADE.values() if kind} | by_the_hall == set(ErrorKind)


def test_a_tools_failure_keeps_its_whole_result(echo: Tool, lease_id: uuid.UUID) -> None:
    result = {"isError": True, "content": [{"type": "text", "text": "no"}], "structuredContent": {"a": 1}}
    call = running(lease_id)
    transitions.finish(call, Outcome.of_error(ToolError("no", result), member="anna", tool="echo"), lease_id)
    assert row(call).result == result


@pytest.mark.parametrize(("code", "kept"), [(-32602, -32602), (2**31 - 1, 2**31 - 1), (2**31, None), (-(2**40), None)])
def test_a_json_rpc_error_keeps_its_data_and_a_code_that_fits(
    echo: Tool, lease_id: uuid.UUID, code: int, kept: int | None
) -> None:
    call = running(lease_id)
    error = RemoteError(code, "no", {"hint": [1, None]})
    transitions.finish(call, Outcome.of_error(error, member="anna", tool="echo"), lease_id)
    found = row(call)
    assert (found.error_code, found.error_data) == (kept, {"hint": [1, None]})
    assert str(code) in found.error_message


# Lost -------------------------------------------------------------------------------------------------------------


def test_what_another_lease_claimed_ends_as_lost_and_the_rest_goes_on(echo: Tool, lease_id: uuid.UUID) -> None:
    theirs, nobodys, ours, waits = running(uuid.uuid4()), running(None), running(lease_id), queued()
    assert transitions.end_calls_of_other_leases(lease_id, "the runtime ended") == 2
    for call in (theirs, nobodys):
        found = row(call)
        assert (found.status, found.error_kind) == ("failed", "lost")
        assert found.error_message == "tool 'echo' of member 'anna': the runtime ended"
    assert (row(ours).status, row(waits).status) == ("running", "queued")


def test_a_runtime_that_lost_its_lease_does_not_end_the_calls_of_the_next_one(echo: Tool, lease_id: uuid.UUID) -> None:
    lose_the_lease()
    call = running(Hall.objects.get().lease_id)
    assert transitions.end_calls_of_other_leases(lease_id, "the runtime ended") == 0
    assert row(call).status == "running"


def test_the_last_word_of_a_stop_is_about_our_own_calls_alone(echo: Tool, lease_id: uuid.UUID) -> None:
    theirs, ours = running(uuid.uuid4()), running(lease_id)
    transitions.end_calls_of_lease(lease_id, "stopped")
    assert (row(theirs).status, row(ours).status, row(ours).error_kind) == ("running", "failed", "lost")


# Cancel -----------------------------------------------------------------------------------------------------------


def test_a_queued_call_is_cancelled_at_once(echo: Tool) -> None:
    cancelled = transitions.cancel(queued())
    assert (cancelled.status, cancelled.error_message) == ("cancelled", "cancelled before the call started")
    assert cancelled.finished_at is not None


def test_a_running_call_is_asked_to_end_once(echo: Tool, lease_id: uuid.UUID) -> None:
    call = running(lease_id)
    asked = transitions.cancel(call).cancel_requested_at
    assert asked is not None
    assert transitions.cancel(call).cancel_requested_at == asked
    assert row(call).status == "running"


@pytest.mark.parametrize("status", Call.FINISHED)
def test_what_is_over_cannot_be_cancelled(echo: Tool, status: Status) -> None:
    call = queued(status=status, finished_at=timezone.now())
    with pytest.raises(NotCancellableError, match=f"call {call.pk} has ended"):
        transitions.cancel(call)
    assert row(call).status == status


def test_a_call_that_ended_unnoticed_cannot_be_cancelled_either(echo: Tool, lease_id: uuid.UUID) -> None:
    call = running(lease_id)
    stale = row(call)
    transitions.finish(call, Outcome.succeeded({}), lease_id)
    with pytest.raises(NotCancellableError):
        transitions.cancel(stale)
    assert stale.status == "succeeded"  # the caller sees how it is


# Prune ------------------------------------------------------------------------------------------------------------


def finished(number: int, *, age: float = 0, status: str = "succeeded", kind: str = "") -> list[int]:
    moment = timezone.now() - timedelta(days=age)
    member = GuildMember.objects.get(name="anna")
    rows = [
        Call(
            member=member, tool_name="echo", timeout=1, source=REST, status=status, error_kind=kind, finished_at=moment
        )
        for _ in range(number)
    ]
    return [call.pk for call in Call.objects.bulk_create(rows)]


def left() -> list[int]:
    return list(Call.objects.order_by("id").values_list("id", flat=True))


def test_what_is_older_than_so_many_days_goes(echo: Tool) -> None:
    finished(3, age=10)
    young = finished(2, age=8)
    assert transitions.prune(days=9, keep=1000) == 3
    assert left() == young


def test_the_oldest_beyond_the_newest_so_many_go(echo: Tool) -> None:
    ids = finished(10)
    assert transitions.prune(days=30, keep=4) == 6
    assert left() == ids[-4:]


@pytest.mark.parametrize(("number", "keep"), [(0, 5), (5, 5), (4, 5)])
def test_no_more_goes_than_has_to(echo: Tool, number: int, keep: int) -> None:
    finished(number)
    assert transitions.prune(days=30, keep=keep) == 0
    assert len(left()) == number


def test_none_is_kept_when_none_is_to_be(echo: Tool) -> None:
    finished(3)
    assert transitions.prune(days=30, keep=0) == 3


def test_what_is_not_over_stays_however_old(echo: Tool, lease_id: uuid.UUID) -> None:
    long_ago = timezone.now() - timedelta(days=1000)
    kept = [queued(queued_at=long_ago).pk, running(lease_id, queued_at=long_ago).pk]
    finished(2, age=500)
    transitions.prune(days=1, keep=0)
    assert left() == kept


def test_many_go_in_batches(echo: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "PRUNE_BATCH", 10)
    finished(25, age=10)
    finished(25)
    assert transitions.prune(days=5, keep=3) == 47
    assert len(left()) == 3


def test_figures_count_on_when_their_rows_are_gone(echo: Tool) -> None:
    finished(3)
    finished(2, status="failed", kind="tool")
    finished(1, status="failed", kind="lost")
    finished(4, status="cancelled")
    expected = {("anna", "succeeded"): 3, ("anna", "tool"): 2, ("anna", "lost"): 1, ("anna", "cancelled"): 4}
    assert transitions.call_counts() == expected
    for keep in (7, 2, 0):
        transitions.prune(days=30, keep=keep)
        assert transitions.call_counts() == expected
    finished(1)
    assert transitions.call_counts()["anna", "succeeded"] == 4
    transitions.prune(days=30, keep=0)
    assert transitions.call_counts()["anna", "succeeded"] == 4
    assert CallTotal.objects.count() == 4


def test_figures_are_counted_by_member_and_leave_out_what_is_not_over(echo: Tool, lease_id: uuid.UUID) -> None:
    other = GuildMember.objects.create(name="bob", directory="bob")
    pk = finished(1)[0]
    finished(1)
    Call.objects.filter(pk=pk).update(member=other)
    queued()
    running(lease_id)
    assert transitions.call_counts() == {("anna", "succeeded"): 1, ("bob", "succeeded"): 1}


@pytest.mark.django_db(transaction=True)
def test_figures_never_fall_while_others_prune(echo: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "PRUNE_BATCH", 5)
    finished(100)
    done = threading.Event()

    def prune() -> int:
        try:
            return transitions.prune(days=30, keep=0)
        finally:
            done.set()

    def read() -> set[int]:
        seen = set()
        while not done.is_set():
            seen.add(transitions.call_counts()["anna", "succeeded"])
        return seen

    pruned, seen = at_once(prune, read)
    assert pruned == 100
    assert seen <= {100}


@pytest.mark.django_db(transaction=True)
def test_two_who_prune_at_once_count_each_call_once(echo: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "PRUNE_BATCH", 5)
    finished(60)
    assert sum(at_once(*[lambda: transitions.prune(days=30, keep=0)] * 3)) == 60
    assert transitions.call_counts() == {("anna", "succeeded"): 60}


def test_old_status_changes_go_and_young_ones_stay(anna: GuildMember) -> None:
    for age in (1, 10):
        StatusChange.objects.create(
            member=anna, old="error", new="starting", cause="x", created_at=timezone.now() - timedelta(days=age)
        )
    assert transitions.prune_status_changes(days=5) == 1
    assert StatusChange.objects.count() == 1


# Active calls -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("statuses", [[], [Status.QUEUED], [Status.RUNNING]])
def test_work_is_found_without_reading_what_is_over(echo: Tool, lease_id: uuid.UUID, statuses: list[Status]) -> None:
    finished(3)
    active = [queued(), running(lease_id)]
    rows = statements.active_calls(*statuses).order_by("id")
    assert [row.pk for row in rows] == [row.pk for row in active if not statuses or row.status in statuses]
    if connection.vendor == "sqlite":
        # With its parameters bound, as it is asked: QuerySet.explain writes them into the text.
        sql, parameters = rows.query.sql_with_params()
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)
            assert "INDEX call_active" in str(cursor.fetchall())


# Which are over ---------------------------------------------------------------------------------------------------


def test_of_many_calls_those_that_are_over_are_told(echo: Tool, lease_id: uuid.UUID) -> None:
    over = [transitions.cancel(queued()).pk, *finished(2), *finished(1, status="failed", kind="tool")]
    going_on = [queued().pk, running(lease_id).pk]
    assert transitions.ids_of_finished([*over, *going_on, 999_999]) == set(over)
    assert transitions.ids_of_finished(over[:1]) == set(over[:1])
    assert transitions.ids_of_finished([]) == set()

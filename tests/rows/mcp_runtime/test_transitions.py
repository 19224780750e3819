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

from mcp_runtime.calls import pruning, statements, transitions
from mcp_runtime.calls.transitions import ErrorKind, Outcome, Requester, Status
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
    ToolHeldError,
    UnknownMemberError,
    UnknownToolError,
)
from mcp_runtime.rows import lease
from mcp_runtime.schemas import secrets, validation
from mcp_runtime.security import principals
from roster.models import Call, CallTotal, Contract, GuildMember, StatusChange, Token, Tool
from tests.support.leases import current_lease_id, give_lease_to_another_runtime

pytestmark = pytest.mark.django_db

LEASE_ID = uuid.uuid4()
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
    return lease.take(lease_id=LEASE_ID)


@pytest.fixture
def anna() -> GuildMember:
    return GuildMember.objects.create(name="anna", directory="anna", status="connected", lease_id=LEASE_ID)


@pytest.fixture
def echo(anna: GuildMember) -> Tool:
    return Tool.objects.create(member=anna, name="echo", definition={"name": "echo", "inputSchema": SCHEMA})


def may_call(user: User) -> User:
    user.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    return user


@pytest.fixture
def bob() -> User:
    return may_call(User.objects.create_user("bob"))


def queue_call(
    arguments: Any = None, *, tool: str = "echo", requester: Requester | None = None, key: str | None = None
) -> Any:
    return transitions.queue(
        member_name="anna",
        tool_name=tool,
        arguments={"text": "hello"} if arguments is None else arguments,
        requester=requester or Requester(COMMAND),
        idempotency_key=key,
    )


def add_queued_call(**columns: Any) -> Call:
    call: Call = queue_call()[0]
    Call.objects.filter(pk=call.pk).update(**columns)
    call.refresh_from_db()
    return call


def add_running_call(lease_id: uuid.UUID | None, **columns: Any) -> Call:
    return add_queued_call(status=Status.RUNNING, lease_id=lease_id, started_at=timezone.now(), **columns)


def row_of(call: Call) -> Call:
    return Call.objects.get(pk=call.pk)


def lose_the_lease() -> None:
    give_lease_to_another_runtime()


def run_together(*functions: Callable[[], Any]) -> list[Any]:
    """The results or errors of the functions, all begun together in threads of their own."""
    barrier = threading.Barrier(len(functions))
    results: list[Any] = [None] * len(functions)

    def run(index: int, function: Callable[[], Any]) -> None:
        barrier.wait(10)
        try:
            results[index] = function()
        except Exception as error:  # noqa: BLE001 - the test checks it
            results[index] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


# Queue ------------------------------------------------------------------------------------------------------------


def test_a_queued_call_is_a_row_with_its_requester_tool_and_arguments(echo: Tool, bob: User) -> None:
    call, created = queue_call({"text": "hi"}, requester=Requester(REST, bob))
    row = row_of(call)
    assert created
    assert (row.status, row.member, row.tool_name) == ("queued", echo.member, "echo")
    assert row.arguments == {"text": "hi"}
    assert (row.source, row.requested_by, row.requester) == ("rest", bob, "bob")
    assert (row.started_at, row.finished_at, row.lease_id, row.result) == (None, None, None, None)
    assert row.queued_at is not None


def test_a_call_of_a_held_tool_is_refused_and_says_who_can_approve_it(echo: Tool) -> None:
    Tool.objects.update(is_held=True)
    Contract.objects.create(member=echo.member, kind="tool", name="echo", is_held=True, reason="a text changed")
    with pytest.raises(ToolHeldError, match=r"because a text changed.*roster\.approve_contract"):
        queue_call({"text": "hi"})
    assert not Call.objects.exists()


def test_a_queued_call_names_the_version_of_its_tool(echo: Tool) -> None:
    for version in ("a" * 64, "b" * 64):
        Tool.objects.update(version=version)
        call, _ = queue_call({"text": version})
        assert row_of(call).tool_version == version


def test_the_timeout_is_that_of_the_tool_or_the_member_or_thirty_seconds(echo: Tool) -> None:
    assert queue_call()[0].timeout == 30
    GuildMember.objects.update(manifest={"timeout": 7})
    assert queue_call()[0].timeout == 7
    GuildMember.objects.update(manifest={"timeout": 7, "tool_timeouts": {"echo": 0.5}})
    assert queue_call()[0].timeout == 0.5


def test_a_requester_without_an_account_has_the_name_of_the_system_user(
    echo: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert queue_call()[0].requester == f"{getpass.getuser()} (system user)"
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 1_234_567)  # a container's user without a name
    assert queue_call()[0].requester == "system user"


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
    ("change", "error", "text"),
    [
        (disable_member, MemberDisabledError, "member 'anna' is disabled; enable it first"),
        (remove_member, UnknownMemberError, "no member 'anna' is in the roster"),
        (forget_member, UnknownMemberError, "no member 'anna' is in the roster"),
        (disable_tool, ToolDisabledError, "tool 'echo' of member 'anna' is disabled"),
        (
            make_tool_a_task,
            RequestRefusedError,
            "tool 'echo' of member 'anna' runs only as a task, so only a client that supports tasks can call it, at "
            "the address of the member",
        ),
        (unlist_tool, UnknownToolError, "member 'anna' lists no tool 'echo'"),
        (break_member, UnknownToolError, "member 'anna' lists no tool 'echo': it fell over"),
    ],
)
def test_a_call_of_an_unavailable_tool_is_refused_with_the_reason(
    echo: Tool, change: Callable[[], None], error: type[RequestRefusedError], text: str
) -> None:
    change()
    with pytest.raises(error) as raised:
        queue_call()
    assert str(raised.value) == text
    assert not Call.objects.exists()


def test_a_member_that_is_disabled_and_lists_no_tool_is_refused_as_disabled(anna: GuildMember) -> None:
    disable_member()
    with pytest.raises(MemberDisabledError):
        queue_call()


@pytest.mark.parametrize("status", GuildMember.Status.values)
def test_a_call_is_accepted_for_every_status_of_the_member(echo: Tool, status: str) -> None:
    GuildMember.objects.update(status=status)
    assert queue_call()[0].status == "queued"


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
def test_invalid_arguments_are_refused_with_path_and_reason(echo: Tool, arguments: Any, path: str, reason: str) -> None:
    with pytest.raises(InvalidArgumentsError, match=reason) as raised:
        queue_call(arguments)
    assert raised.value.path == path
    assert str(raised.value).startswith("arguments of 'echo' of member 'anna'")
    assert not Call.objects.exists()


def test_arguments_that_nest_too_deep_are_refused(echo: Tool) -> None:
    arguments: Any = []
    for _ in range(150):
        arguments = [arguments]
    with pytest.raises(InvalidArgumentsError, match="deep"):
        queue_call({"text": "a", "x": arguments})


def test_a_tool_with_a_broken_schema_is_called_without_validation(echo: Tool) -> None:
    Tool.objects.update(schema_error="nonsense")
    assert queue_call({"whatever": 1})[1]


def test_a_schema_that_breaks_in_use_is_recorded_and_not_used_again(
    echo: Tool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_validation(schema: Any, arguments: Any) -> None:
        raise validation.BrokenSchemaError("the input schema cannot be applied")

    monkeypatch.setattr(validation, "validate", fail_validation)
    assert queue_call({"whatever": 1})[1]
    assert Tool.objects.get().schema_error == "the input schema cannot be applied"
    assert "tool 'echo' of member 'anna'" in caplog.text


def test_a_schema_whose_check_took_too_long_is_used_again(echo: Tool) -> None:
    Tool.objects.update(schema_error=validation.TOO_LONG_TO_CHECK)
    assert queue_call({"text": "a"})[1]
    assert Tool.objects.get().schema_error == ""
    with pytest.raises(InvalidArgumentsError):
        queue_call({"text": 1})


def test_a_definition_is_not_read_for_a_call(echo: Tool, bob: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """A definition of a megabyte holds the interpreter for longer than the rest of a call takes."""
    field = Tool._meta.get_field("definition")
    monkeypatch.setattr(field, "from_db_value", lambda *_: pytest.fail("read"))
    call, _ = transitions.queue(
        member_name="anna", tool_name="echo", arguments={"text": "x"}, requester=Requester(REST, bob)
    )
    assert call.status == Status.QUEUED


@pytest.mark.parametrize("schema", ["text", '{"required": ["b"]}', 7, None, [], {}])
def test_an_input_schema_that_is_no_object_validates_nothing(echo: Tool, bob: User, schema: Any) -> None:
    schema_error = validation.check_schema(schema)
    Tool.objects.filter(pk=echo.pk).update(
        definition={"name": "echo", "inputSchema": schema}, schema_error=schema_error
    )
    call, _ = transitions.queue(
        member_name="anna", tool_name="echo", arguments={"a": 1}, requester=Requester(REST, bob)
    )
    assert (call.status, call.secret_paths) == (Status.QUEUED, [])


def test_the_paths_of_secret_arguments_are_stored_in_the_call(echo: Tool) -> None:
    call, _ = queue_call({"text": "a", "login": {"password": "sesame"}})
    assert row_of(call).secret_paths
    assert row_of(call).arguments["login"]["password"] == "sesame"  # the member needs it


# Idempotency ------------------------------------------------------------------------------------------------------


def test_the_same_key_gives_the_first_call_again(echo: Tool, bob: User) -> None:
    first, created = queue_call(requester=Requester(REST, bob), key="k")
    second, created_again = queue_call(requester=Requester(Call.Source.ADMIN, bob), key="k")
    assert (created, created_again) == (True, False)
    assert second == first
    assert Call.objects.count() == 1


def test_the_same_key_for_another_call_is_a_conflict_with_the_first_call(echo: Tool, bob: User) -> None:
    Tool.objects.create(member=echo.member, name="other", definition={"inputSchema": {"type": "object"}})
    first, _ = queue_call(requester=Requester(REST, bob), key="k")
    for change in ({"arguments": {"text": "another"}}, {"tool": "other"}):
        with pytest.raises(IdempotencyConflictError, match=f"call {first.pk}, anna echo"):
            queue_call(requester=Requester(REST, bob), key="k", **change)
    assert Call.objects.count() == 1


def test_two_users_may_use_the_same_key(echo: Tool, bob: User) -> None:
    alice = may_call(User.objects.create_user("alice"))
    assert queue_call(requester=Requester(REST, bob), key="k")[1]
    assert queue_call(requester=Requester(REST, alice), key="k")[1]


def requester_with_token(user: User, **values: Any) -> Requester:
    return Requester(REST, user, principals.principal_of_token(Token.make(user=user, **values)[1]))


def test_two_tokens_of_a_user_may_use_the_same_key(echo: Tool, bob: User) -> None:
    """A token with a narrower scope does not get the call of a wider token of the same user."""
    wide_requester, narrow_requester = (
        requester_with_token(bob),
        requester_with_token(bob, scope=Token.Scope.TOOLS, tools=[echo]),
    )
    requesters = [wide_requester, narrow_requester, requester_with_token(bob), Requester(REST, bob)]
    calls = [queue_call(requester=requester, key="k") for requester in requesters]
    assert [created for _, created in calls] == [True] * 4
    assert [queue_call(requester=requester, key="k") for requester in requesters] == [
        (call, False) for call, _ in calls
    ]
    with pytest.raises(IdempotencyConflictError, match=f"call {calls[1][0].pk}, anna echo"):
        queue_call({"text": "another"}, requester=narrow_requester, key="k")


def test_a_key_of_a_token_that_lost_its_rights_is_refused(echo: Tool, bob: User) -> None:
    row, token = Token.make(user=bob)
    first, _ = queue_call(requester=Requester(REST, bob, principals.principal_of_token(token)), key="k")
    row.scope = Token.Scope.MEMBERS
    row.save()
    with pytest.raises(NotAllowedError):
        queue_call(requester=Requester(REST, bob, principals.principal_of_token(token)), key="k")
    row.members.add(echo.member)
    assert queue_call(requester=Requester(REST, bob, principals.principal_of_token(token)), key="k") == (first, False)


def test_a_token_whose_key_is_also_used_without_a_token_can_be_deleted(echo: Tool, bob: User) -> None:
    call_without_token, _ = queue_call(requester=Requester(REST, bob), key="k")
    calls_with_tokens = [queue_call(requester=requester_with_token(bob), key="k")[0] for _ in range(2)]
    Token.objects.all().delete()
    assert queue_call(requester=Requester(REST, bob), key="k") == (call_without_token, False)
    assert [(row_of(call).token_id, row_of(call).idempotency_key) for call in calls_with_tokens] == [(None, None)] * 2
    bob.delete()
    assert Call.objects.count() == 3


def test_a_key_without_a_user_is_ignored(echo: Tool) -> None:
    assert [queue_call(key="k")[1] for _ in range(2)] == [True, True]


def test_a_repeat_gives_the_first_call_after_its_secrets_are_masked(echo: Tool, bob: User, lease_id: uuid.UUID) -> None:
    arguments = {"text": "a", "login": {"password": "sesame"}}
    first, _ = queue_call(arguments, requester=Requester(REST, bob), key="k")
    statements.claim([first.pk], lease_id)
    transitions.finish(first, Outcome.succeeded({}), lease_id)
    assert row_of(first).arguments["login"]["password"] == secrets.MASK
    assert queue_call(arguments, requester=Requester(REST, bob), key="k") == (first, False)


def test_a_repeat_gives_the_first_call_after_its_tool_is_disabled(echo: Tool, bob: User) -> None:
    first, _ = queue_call(requester=Requester(REST, bob), key="k")
    disable_tool()
    assert queue_call(requester=Requester(REST, bob), key="k") == (first, False)


@pytest.mark.django_db(transaction=True)
def test_of_many_requests_with_one_key_and_two_tokens_each_token_gets_one_call(echo: Tool, bob: User) -> None:
    lease.hall()
    requesters = [requester_with_token(bob), requester_with_token(bob)]
    results = run_together(*[partial(queue_call, requester=requesters[number % 2], key="k") for number in range(6)])
    assert sorted(created for _, created in results) == [False] * 4 + [True] * 2
    assert {call.token_id for call, _ in results} == {
        requester.current_principal().token_id for requester in requesters
    }
    assert Call.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_many_requests_with_one_key_at_once_get_the_same_call(echo: Tool, bob: User) -> None:
    results = run_together(*[lambda: queue_call(requester=Requester(REST, bob), key="k")] * 6)
    first_call = Call.objects.get()
    assert sorted(created for _, created in results) == [False] * 5 + [True]
    assert {call.pk for call, _ in results} == {first_call.pk}


# Claim ------------------------------------------------------------------------------------------------------------


def test_a_claim_writes_the_lease_into_queued_rows(echo: Tool, lease_id: uuid.UUID) -> None:
    first, second, other = queue_call()[0], queue_call()[0], queue_call()[0]
    assert statements.claim([first.pk, second.pk], lease_id) == 2
    for call in (first, second):
        row = row_of(call)
        assert (row.status, row.lease_id) == ("running", lease_id)
        assert row.started_at is not None
    assert row_of(other).status == "queued"


@pytest.mark.parametrize("status", [status for status in Status if status != Status.QUEUED])
def test_only_queued_calls_are_claimed(echo: Tool, lease_id: uuid.UUID, status: Status) -> None:
    call = add_queued_call(status=status)
    assert statements.claim([call.pk], lease_id) == 0
    assert row_of(call).lease_id is None


def test_without_the_lease_no_call_is_claimed(echo: Tool, lease_id: uuid.UUID) -> None:
    call = add_queued_call()
    lose_the_lease()
    assert statements.claim([call.pk], lease_id) == 0
    assert row_of(call).status == "queued"


@pytest.mark.django_db(transaction=True)
def test_of_many_claims_at_once_only_one_gets_the_row(echo: Tool, lease_id: uuid.UUID) -> None:
    ids = [queue_call()[0].pk for _ in range(5)]
    assert sum(run_together(*[lambda: statements.claim(ids, lease_id)] * 6)) == 5


@pytest.mark.django_db(transaction=True)
def test_a_call_that_is_claimed_and_cancelled_at_once_has_one_consistent_outcome(
    echo: Tool, lease_id: uuid.UUID
) -> None:
    for _ in range(5):
        call = add_queued_call()
        claim_count, cancel_result = run_together(
            lambda pk=call.pk: statements.claim([pk], lease_id),  # type: ignore[misc]
            lambda queued_call=call: transitions.cancel(queued_call),  # type: ignore[misc]
        )
        row = row_of(call)
        if claim_count:
            assert (row.status, row.cancel_requested_at is not None) == ("running", True)
        else:
            assert (row.status, row.started_at) == ("cancelled", None)
        assert not isinstance(cancel_result, Exception)


# Finish -----------------------------------------------------------------------------------------------------------


def test_a_result_is_written_to_the_row(echo: Tool, lease_id: uuid.UUID) -> None:
    call = add_running_call(lease_id)
    assert transitions.finish(call, Outcome.succeeded({"content": []}), lease_id)
    row = row_of(call)
    assert (row.status, row.result, row.error_kind) == ("succeeded", {"content": []}, "")
    assert row.duration is not None


def test_a_final_status_does_not_change(echo: Tool, lease_id: uuid.UUID) -> None:
    call = add_running_call(lease_id)
    assert transitions.finish(call, Outcome.succeeded({}), lease_id)
    assert not transitions.finish(call, Outcome.failed(ErrorKind.TIMEOUT, "late"), lease_id)
    assert row_of(call).status == "succeeded"


def test_a_runtime_cannot_finish_a_call_of_another_runtime(echo: Tool, lease_id: uuid.UUID) -> None:
    call = add_running_call(uuid.uuid4())
    assert not transitions.finish(call, Outcome.succeeded({}), lease_id)
    assert row_of(call).status == "running"


def test_without_the_lease_no_call_is_finished_or_refused(echo: Tool, lease_id: uuid.UUID) -> None:
    running_call, queued_call = add_running_call(lease_id), add_queued_call()
    lose_the_lease()
    assert not transitions.finish(running_call, Outcome.succeeded({}), lease_id)
    assert not transitions.refuse(queued_call, Outcome.failed(ErrorKind.UNAVAILABLE, "no"), lease_id)
    assert (row_of(running_call).status, row_of(queued_call).status) == ("running", "queued")


def test_a_queued_call_can_be_refused_only_once(echo: Tool, lease_id: uuid.UUID) -> None:
    call = add_queued_call()
    assert transitions.refuse(call, Outcome.failed(ErrorKind.UNAVAILABLE, "it is disabled"), lease_id)
    assert not transitions.refuse(call, Outcome.failed(ErrorKind.UNAVAILABLE, "again"), lease_id)
    row = row_of(call)
    assert (row.status, row.error_kind, row.error_message) == ("failed", "unavailable", "it is disabled")
    assert (row.started_at, row.duration) == (None, None)
    assert row.finished_at is not None


@pytest.mark.parametrize("ending", ["finish", "refuse", "cancel", "lost", "own"])
def test_secrets_are_masked_after_every_outcome(echo: Tool, lease_id: uuid.UUID, ending: str) -> None:
    call, _ = queue_call({"text": "a", "login": {"password": "sesame"}})
    if ending in ("finish", "lost", "own"):
        Call.objects.update(status="running", lease_id=uuid.uuid4() if ending == "lost" else lease_id)
    match ending:
        case "finish":
            transitions.finish(call, Outcome.succeeded({}), lease_id)
        case "refuse":
            transitions.refuse(call, Outcome.failed(ErrorKind.UNAVAILABLE, "no"), lease_id)
        case "cancel":
            transitions.cancel(call)
        case "lost":
            transitions.end_lost_calls(lease_id, "gone")
        case "own":
            transitions.end_calls_of_lease(lease_id, "gone")
    row = row_of(call)
    assert row.is_finished
    assert row.arguments == {"text": "a", "login": {"password": secrets.MASK}}


# Outcomes of errors -----------------------------------------------------------------------------------------------

OUTCOMES: dict[type[ClientError], tuple[ClientError, Status, str]] = {
    errors.ConnectError: (errors.ConnectError("refused"), Status.FAILED, "transport"),
    errors.HttpStatusError: (errors.HttpStatusError(500), Status.FAILED, "transport"),
    errors.ChallengeError: (errors.ChallengeError(401, "", "Bearer"), Status.FAILED, "transport"),
    errors.SignInNeededError: (errors.SignInNeededError("needs a sign-in"), Status.FAILED, "unavailable"),
    errors.TransportError: (errors.TransportError("broken"), Status.FAILED, "transport"),
    errors.ForeignAnswerError: (errors.ForeignAnswerError(), Status.FAILED, "transport"),
    errors.ClientError: (errors.ClientError("odd"), Status.FAILED, "transport"),
    errors.RequestTimeoutError: (errors.RequestTimeoutError(3), Status.FAILED, "timeout"),
    errors.RequestCancelledError: (errors.RequestCancelledError(), Status.CANCELLED, ""),
    errors.ProtocolError: (errors.ProtocolError("html"), Status.FAILED, "protocol"),
    errors.RemoteError: (errors.RemoteError(-32602, "no"), Status.FAILED, "protocol"),
    errors.ToolError: (errors.ToolError("no paper", {"isError": True}), Status.FAILED, "tool"),
}


def test_every_error_of_the_client_has_an_outcome() -> None:
    classes = {cls for cls in vars(errors).values() if inspect.isclass(cls) and issubclass(cls, ClientError)}
    assert set(OUTCOMES) == classes


@pytest.mark.parametrize("cls", OUTCOMES, ids=lambda cls: cls.__name__)
def test_each_error_gives_its_outcome(cls: type[ClientError]) -> None:
    error, status, kind = OUTCOMES[cls]
    outcome = Outcome.of_error(error, member="anna", tool="echo")
    assert (outcome.status, outcome.error_kind) == (status, kind)
    suffix = {"timeout": "; it may have run", "unavailable": "; the call was not sent"}.get(kind, "")
    assert outcome.error_message == f"tool 'echo' of member 'anna': {error}{suffix}"


@pytest.mark.parametrize(
    "cls", [cls for cls in OUTCOMES if cls is not errors.RequestCancelledError], ids=lambda cls: cls.__name__
)
def test_a_call_that_was_not_sent_ends_as_unavailable_for_every_error(
    cls: type[ClientError], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OUTCOMES[cls][0]
    monkeypatch.setattr(error, "was_sent", False)
    outcome = Outcome.of_error(error, member="anna", tool="echo")
    assert (outcome.status, outcome.error_kind) == (Status.FAILED, "unavailable")
    assert outcome.error_message == f"tool 'echo' of member 'anna': {error}; the call was not sent"


def test_every_error_kind_is_used() -> None:
    kinds_of_hall = {ErrorKind.UNAVAILABLE, ErrorKind.LOST}
    assert {kind for _, _, kind in OUTCOMES.values() if kind} | kinds_of_hall == set(ErrorKind)


def test_the_failure_of_a_tool_has_the_whole_result(echo: Tool, lease_id: uuid.UUID) -> None:
    result = {"isError": True, "content": [{"type": "text", "text": "no"}], "structuredContent": {"a": 1}}
    call = add_running_call(lease_id)
    transitions.finish(call, Outcome.of_error(ToolError("no", result), member="anna", tool="echo"), lease_id)
    assert row_of(call).result == result


@pytest.mark.parametrize(
    ("code", "stored_code"), [(-32602, -32602), (2**31 - 1, 2**31 - 1), (2**31, None), (-(2**40), None)]
)
def test_a_json_rpc_error_is_stored_with_its_data_and_a_code_that_fits(
    echo: Tool, lease_id: uuid.UUID, code: int, stored_code: int | None
) -> None:
    call = add_running_call(lease_id)
    error = RemoteError(code, "no", {"hint": [1, None]})
    transitions.finish(call, Outcome.of_error(error, member="anna", tool="echo"), lease_id)
    row = row_of(call)
    assert (row.error_code, row.error_data) == (stored_code, {"hint": [1, None]})
    assert str(code) in row.error_message


# Lost -------------------------------------------------------------------------------------------------------------


def test_calls_of_other_leases_end_as_lost_and_all_others_continue(echo: Tool, lease_id: uuid.UUID) -> None:
    call_of_other_lease, call_without_lease, own_call, queued_call = (
        add_running_call(uuid.uuid4()),
        add_running_call(None),
        add_running_call(lease_id),
        add_queued_call(),
    )
    assert transitions.end_lost_calls(lease_id, "the runtime ended") == 2
    for call in (call_of_other_lease, call_without_lease):
        row = row_of(call)
        assert (row.status, row.error_kind) == ("failed", "lost")
        assert row.error_message == "tool 'echo' of member 'anna': the runtime ended"
    assert (row_of(own_call).status, row_of(queued_call).status) == ("running", "queued")


def test_a_runtime_without_the_lease_does_not_end_calls_of_the_next_runtime(echo: Tool, lease_id: uuid.UUID) -> None:
    lose_the_lease()
    call = add_running_call(current_lease_id())
    assert transitions.end_lost_calls(lease_id, "the runtime ended") == 0
    assert row_of(call).status == "running"


def test_a_stop_ends_only_the_calls_of_its_own_lease(echo: Tool, lease_id: uuid.UUID) -> None:
    call_of_other_lease, own_call = add_running_call(uuid.uuid4()), add_running_call(lease_id)
    transitions.end_calls_of_lease(lease_id, "stopped")
    assert (row_of(call_of_other_lease).status, row_of(own_call).status, row_of(own_call).error_kind) == (
        "running",
        "failed",
        "lost",
    )


# Cancel -----------------------------------------------------------------------------------------------------------


def test_a_queued_call_is_cancelled_at_once(echo: Tool) -> None:
    cancelled = transitions.cancel(add_queued_call())
    assert (cancelled.status, cancelled.error_message) == ("cancelled", "cancelled before the call started")
    assert cancelled.finished_at is not None


def test_the_cancellation_of_a_running_call_is_requested_once(echo: Tool, lease_id: uuid.UUID) -> None:
    call = add_running_call(lease_id)
    request_time = transitions.cancel(call).cancel_requested_at
    assert request_time is not None
    assert transitions.cancel(call).cancel_requested_at == request_time
    assert row_of(call).status == "running"


@pytest.mark.parametrize("status", Call.FINISHED)
def test_a_finished_call_cannot_be_cancelled(echo: Tool, status: Status) -> None:
    call = add_queued_call(status=status, finished_at=timezone.now())
    with pytest.raises(NotCancellableError, match=f"call {call.pk} has ended"):
        transitions.cancel(call)
    assert row_of(call).status == status


def test_a_call_that_finished_during_a_cancellation_is_not_cancelled(echo: Tool, lease_id: uuid.UUID) -> None:
    call = add_running_call(lease_id)
    old_row = row_of(call)
    transitions.finish(call, Outcome.succeeded({}), lease_id)
    with pytest.raises(NotCancellableError):
        transitions.cancel(old_row)
    assert old_row.status == "succeeded"  # the object has the new status


# Prune ------------------------------------------------------------------------------------------------------------


def add_finished_calls(number: int, *, age: float = 0, status: str = "succeeded", kind: str = "") -> list[int]:
    moment = timezone.now() - timedelta(days=age)
    member = GuildMember.objects.get(name="anna")
    rows = [
        Call(
            member=member, tool_name="echo", timeout=1, source=REST, status=status, error_kind=kind, finished_at=moment
        )
        for _ in range(number)
    ]
    return [call.pk for call in Call.objects.bulk_create(rows)]


def remaining_ids() -> list[int]:
    return list(Call.objects.order_by("id").values_list("id", flat=True))


def test_calls_that_are_too_old_are_deleted(echo: Tool) -> None:
    add_finished_calls(3, age=10)
    new_ids = add_finished_calls(2, age=8)
    assert pruning.prune_calls(days=9, keep=1000) == 3
    assert remaining_ids() == new_ids


def test_the_oldest_calls_beyond_the_limit_are_deleted(echo: Tool) -> None:
    ids = add_finished_calls(10)
    assert pruning.prune_calls(days=30, keep=4) == 6
    assert remaining_ids() == ids[-4:]


@pytest.mark.parametrize(("number", "keep"), [(0, 5), (5, 5), (4, 5)])
def test_no_calls_within_the_limits_are_deleted(echo: Tool, number: int, keep: int) -> None:
    add_finished_calls(number)
    assert pruning.prune_calls(days=30, keep=keep) == 0
    assert len(remaining_ids()) == number


def test_a_limit_of_zero_deletes_all_calls(echo: Tool) -> None:
    add_finished_calls(3)
    assert pruning.prune_calls(days=30, keep=0) == 3


def test_unfinished_calls_are_not_deleted(echo: Tool, lease_id: uuid.UUID) -> None:
    long_ago = timezone.now() - timedelta(days=1000)
    unfinished_ids = [add_queued_call(queued_at=long_ago).pk, add_running_call(lease_id, queued_at=long_ago).pk]
    add_finished_calls(2, age=500)
    pruning.prune_calls(days=1, keep=0)
    assert remaining_ids() == unfinished_ids


def test_many_calls_are_deleted_in_batches(echo: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "BATCH", 10)
    add_finished_calls(25, age=10)
    add_finished_calls(25)
    assert pruning.prune_calls(days=5, keep=3) == 47
    assert len(remaining_ids()) == 3


def test_totals_stay_the_same_after_rows_are_deleted(echo: Tool) -> None:
    add_finished_calls(3)
    add_finished_calls(2, status="failed", kind="tool")
    add_finished_calls(1, status="failed", kind="lost")
    add_finished_calls(4, status="cancelled")
    expected = {("anna", "succeeded"): 3, ("anna", "tool"): 2, ("anna", "lost"): 1, ("anna", "cancelled"): 4}
    assert transitions.call_counts() == expected
    for keep in (7, 2, 0):
        pruning.prune_calls(days=30, keep=keep)
        assert transitions.call_counts() == expected
    add_finished_calls(1)
    assert transitions.call_counts()["anna", "succeeded"] == 4
    pruning.prune_calls(days=30, keep=0)
    assert transitions.call_counts()["anna", "succeeded"] == 4
    assert CallTotal.objects.count() == 4


def test_totals_are_counted_by_member_and_without_unfinished_calls(echo: Tool, lease_id: uuid.UUID) -> None:
    other = GuildMember.objects.create(name="bob", directory="bob")
    pk = add_finished_calls(1)[0]
    add_finished_calls(1)
    Call.objects.filter(pk=pk).update(member=other)
    add_queued_call()
    add_running_call(lease_id)
    assert transitions.call_counts() == {("anna", "succeeded"): 1, ("bob", "succeeded"): 1}


@pytest.mark.django_db(transaction=True)
def test_totals_never_fall_during_a_prune(echo: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "BATCH", 5)
    add_finished_calls(100)
    is_done = threading.Event()

    def prune() -> int:
        try:
            return pruning.prune_calls(days=30, keep=0)
        finally:
            is_done.set()

    def read_totals() -> set[int]:
        totals = set()
        while not is_done.is_set():
            totals.add(transitions.call_counts()["anna", "succeeded"])
        return totals

    deleted_count, totals = run_together(prune, read_totals)
    assert deleted_count == 100
    assert totals <= {100}


@pytest.mark.django_db(transaction=True)
def test_prunes_at_the_same_time_count_each_call_once(echo: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "BATCH", 5)
    add_finished_calls(60)
    assert sum(run_together(*[lambda: pruning.prune_calls(days=30, keep=0)] * 3)) == 60
    assert transitions.call_counts() == {("anna", "succeeded"): 60}


def test_old_status_changes_are_deleted_and_new_ones_stay(anna: GuildMember) -> None:
    for age in (1, 10):
        StatusChange.objects.create(
            member=anna, old="error", new="starting", cause="x", created_at=timezone.now() - timedelta(days=age)
        )
    assert pruning.prune_status_changes(days=5) == 1
    assert StatusChange.objects.count() == 1


def test_an_old_failure_that_still_repeats_is_not_deleted(anna: GuildMember) -> None:
    now = timezone.now()
    for repeated_at in (now - timedelta(days=1), now - timedelta(days=6), None):
        StatusChange.objects.create(
            member=anna, old="starting", new="error", created_at=now - timedelta(days=10), repeated_at=repeated_at
        )
    assert pruning.prune_status_changes(days=5) == 2
    assert StatusChange.objects.get().repeated_at == now - timedelta(days=1)


# Active calls -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("statuses", [[], [Status.QUEUED], [Status.RUNNING]])
def test_active_calls_are_read_without_reading_finished_ones(
    echo: Tool, lease_id: uuid.UUID, statuses: list[Status]
) -> None:
    add_finished_calls(3)
    active = [add_queued_call(), add_running_call(lease_id)]
    rows = statements.active_calls(*statuses).order_by("id")
    assert [row.pk for row in rows] == [row.pk for row in active if not statuses or row.status in statuses]
    if connection.vendor == "sqlite":
        # With bound parameters, as in production. QuerySet.explain would write them into the text.
        sql, parameters = rows.query.sql_with_params()
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)
            assert "INDEX call_active" in str(cursor.fetchall())


# Finished calls ---------------------------------------------------------------------------------------------------


def test_ids_of_finished_returns_only_the_ids_of_finished_calls(echo: Tool, lease_id: uuid.UUID) -> None:
    finished_ids = [
        transitions.cancel(add_queued_call()).pk,
        *add_finished_calls(2),
        *add_finished_calls(1, status="failed", kind="tool"),
    ]
    active_ids = [add_queued_call().pk, add_running_call(lease_id).pk]
    assert transitions.ids_of_finished([*finished_ids, *active_ids, 999_999]) == set(finished_ids)
    assert transitions.ids_of_finished(finished_ids[:1]) == set(finished_ids[:1])
    assert transitions.ids_of_finished([]) == set()

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models.sql.compiler import SQLCompiler, SQLInsertCompiler
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from mcp_runtime.schemas.secrets import MASK
from mcp_runtime.security.limits import SharedSlots
from roster.api import requests
from roster.api.calls import CallErrorSerializer
from roster.models import Call, GuildMember, Token
from tests.conftest import eventually
from tests.support.api import add_member, add_tool, client_of

ECHO = "/api/members/example/tools/echo/invoke/"
OTHER_REQUESTER = (0, None)
RESULT = {"content": [{"type": "text", "text": "hi"}], "isError": False}


def invoke(client: Client, body: Any = None, address: str = ECHO, **headers: str) -> HttpResponse:
    body = {"arguments": {"text": "hi"}} if body is None else body
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    response: HttpResponse = client.post(address, body, content_type="application/json", headers=names)
    return response


def finish(call_id: int, **values: Any) -> None:
    """As the runtime does."""
    outcome = {"status": Call.Status.SUCCEEDED, "result": RESULT, **values}
    Call.objects.filter(pk=call_id).update(finished_at=timezone.now(), **outcome)


# Queue ------------------------------------------------------------------------------------------------------------


def test_a_call_is_accepted_with_the_address_of_its_status(as_bob: Client, bob: User, example: GuildMember) -> None:
    response = invoke(as_bob)
    call = Call.objects.get()
    assert response.status_code == 202
    assert response["Location"] == f"/api/calls/{call.pk}/"
    assert (call.status, call.source, call.requested_by, call.requester) == ("queued", "rest", bob, "bob")
    body = response.json()
    assert as_bob.get(response["Location"]).json() == body
    assert body == {
        "id": call.pk,
        "member": "example",
        "tool": "echo",
        "tool_version": "",
        "tool_set": None,
        "status": "queued",
        "source": "rest",
        "requester": "bob",
        "token": call.token_id,
        "queued_at": call.queued_at.isoformat().replace("+00:00", "Z"),
        "started_at": None,
        "finished_at": None,
        "cancel_requested_at": None,
        "duration": None,
        "timeout": 12.0,
        "progress": None,
        "error": None,
        "url": f"/api/calls/{call.pk}/",
        "arguments": {"text": "hi"},
        "result": None,
    }


def test_a_call_costs_three_queries(
    as_alice: Client, example: GuildMember, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    # Token and user, tool and member, insert. For a user who is no superuser, two more.
    with django_assert_num_queries(3):
        invoke(as_alice)


def test_a_call_and_a_request_for_it_compile_no_sql(
    as_bob: Client, example: GuildMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("a statement was compiled")

    as_bob.get(invoke(as_bob)["Location"])  # the first statements are compiled and then reused
    with monkeypatch.context() as patch:
        for compiler in (SQLCompiler, SQLInsertCompiler):
            patch.setattr(compiler, "as_sql", fail)
        response = invoke(as_bob)
        assert as_bob.get(response["Location"]).json() == response.json()


def test_a_call_starts_its_member(as_bob: Client, example: GuildMember) -> None:
    GuildMember.objects.update(desired_state=GuildMember.DesiredState.STOPPED)
    assert invoke(as_bob).status_code == 202
    assert GuildMember.objects.get().desired_state == GuildMember.DesiredState.RUNNING


@pytest.mark.parametrize("body", ["", "{}"])
def test_arguments_can_be_left_out(as_bob: Client, example: GuildMember, body: str) -> None:
    add_tool(example, "ping")
    response = as_bob.post("/api/members/example/tools/ping/invoke/", body, content_type="application/json")
    assert response.status_code == 202
    assert Call.objects.get().arguments == {}


def test_invalid_arguments_are_refused_with_path_and_reason(as_bob: Client, example: GuildMember) -> None:
    response = invoke(as_bob, {"arguments": {"text": 7}})
    assert response.status_code == 400
    body = response.json()
    assert (body["code"], body["path"]) == ("invalid_arguments", "text")
    assert "string" in body["reason"]
    assert not Call.objects.exists()


@pytest.mark.parametrize("arguments", [None, [], "text", 7])
def test_arguments_must_be_an_object(as_bob: Client, example: GuildMember, arguments: Any) -> None:
    response = invoke(as_bob, {"arguments": arguments})
    assert response.status_code == 400
    assert response.json()["reason"] == "must be a JSON object"


@pytest.mark.parametrize(
    "body",
    [
        *("{", "[]", '"text"', "null", "NaN", "\xff"),
        *('{"arguments": {"text": NaN}}', '{"arguments": {"n": 1e999}}', '{"arguments": {"n": ' + "9" * 5000 + "}}"),
        *("[" * 100_000, '{"arguments": ' * 5000 + "1" + "}" * 5000),
    ],
    ids=lambda body: body[:20],
)
def test_a_body_that_is_no_json_object_is_refused(as_bob: Client, example: GuildMember, body: str) -> None:
    response = as_bob.post(ECHO, body.encode("latin-1"), content_type="application/json")
    assert response.status_code == 400
    assert not Call.objects.exists()


def test_a_misspelt_key_is_refused(as_bob: Client, example: GuildMember) -> None:
    add_tool(example, "ping")
    response = invoke(as_bob, {"argument": {"text": "hi"}}, "/api/members/example/tools/ping/invoke/")
    assert response.status_code == 400
    assert "'argument'" in response.json()["detail"]
    assert not Call.objects.exists()


def test_a_form_is_refused(as_bob: Client, example: GuildMember) -> None:
    response = as_bob.post(ECHO, "text=hi", content_type="application/x-www-form-urlencoded")
    assert response.status_code == 415


def test_a_body_that_is_too_large_is_refused(as_bob: Client, example: GuildMember, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    response = invoke(as_bob, {"arguments": {"text": "x" * 1000}})
    assert response.status_code == 413
    assert response.json()["code"] == "too_large"


def test_a_call_of_an_unavailable_tool_is_refused(as_bob: Client, example: GuildMember) -> None:
    add_tool(example, "off", enabled=False)
    add_tool(add_member("disabled", enabled=False), "echo")
    for member, tool, http_status, code in [
        ("nobody", "echo", 404, "unknown_member"),
        ("example", "nothing", 404, "unknown_tool"),
        ("example", "off", 409, "tool_disabled"),
        ("disabled", "echo", 409, "member_disabled"),
    ]:
        response = invoke(as_bob, address=f"/api/members/{member}/tools/{tool}/invoke/")
        assert (response.status_code, response.json()["code"]) == (http_status, code)
    assert not Call.objects.exists()


def test_secrets_are_masked_in_the_first_response(as_bob: Client, example: GuildMember) -> None:
    arguments = {"text": "hi", "login": {"password": "sesame"}}
    response = invoke(as_bob, {"arguments": arguments})
    assert response.json()["arguments"] == {"text": "hi", "login": {"password": MASK}}
    assert Call.objects.get().arguments == arguments
    for address in (response["Location"], "/api/calls/"):
        assert "sesame" not in as_bob.get(address).content.decode()


# Idempotency ------------------------------------------------------------------------------------------------------


def test_a_repeat_with_the_same_key_returns_the_first_call(as_bob: Client, example: GuildMember) -> None:
    first = invoke(as_bob, Idempotency_Key="k1")
    second = invoke(as_bob, Idempotency_Key="k1")
    assert "Idempotent-Replayed" not in first
    assert second["Idempotent-Replayed"] == "true"
    assert (second.status_code, second.json()) == (202, first.json())
    assert Call.objects.count() == 1


def test_a_repeat_of_a_finished_call_is_200_with_its_result(as_bob: Client, example: GuildMember) -> None:
    first = invoke(as_bob, Idempotency_Key="k1").json()
    finish(first["id"])
    second = invoke(as_bob, Idempotency_Key="k1")
    assert second.status_code == 200
    assert (second.json()["id"], second.json()["result"]) == (first["id"], RESULT)
    assert "Location" not in second


def test_the_same_key_for_another_call_is_a_conflict(as_bob: Client, example: GuildMember) -> None:
    invoke(as_bob, Idempotency_Key="k1")
    response = invoke(as_bob, {"arguments": {"text": "other"}}, Idempotency_Key="k1")
    assert (response.status_code, response.json()["code"]) == (422, "idempotency_conflict")


def test_two_users_may_use_the_same_key(as_alice: Client, as_bob: Client, example: GuildMember) -> None:
    assert invoke(as_alice, Idempotency_Key="k1").json()["id"] != invoke(as_bob, Idempotency_Key="k1").json()["id"]


def test_a_narrow_token_gets_no_result_of_a_wider_token_with_the_same_key(
    bob: User, as_bob: Client, example: GuildMember
) -> None:
    first = invoke(as_bob, Idempotency_Key="k1").json()
    finish(first["id"])
    narrow_client = client_of(bob, scope=Token.Scope.TOOLS, tools=[example.tools.get(name="echo")])
    response = invoke(narrow_client, Idempotency_Key="k1")
    assert (response.status_code, response.json()["result"]) == (202, None)
    assert response.json()["id"] != first["id"]
    conflict = invoke(narrow_client, {"arguments": {"text": "other"}}, Idempotency_Key="k1")
    assert conflict.status_code == 422
    assert f"call {response.json()['id']}," in conflict.json()["detail"]


@pytest.mark.parametrize("key", ["", "k" * 256])
def test_a_key_that_cannot_be_stored_is_refused(as_bob: Client, example: GuildMember, key: str) -> None:
    assert invoke(as_bob, Idempotency_Key=key).status_code == 400
    assert not Call.objects.exists()


def test_a_key_can_be_as_long_as_the_column(as_bob: Client, example: GuildMember) -> None:
    length = Call._meta.get_field("idempotency_key").max_length
    assert length == requests.MAX_IDEMPOTENCY_KEY
    assert invoke(as_bob, Idempotency_Key="k" * length).status_code == 202


# Wait -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """No request really waits. The list has the seconds of the waits, which all end without a result."""
    timeouts: list[float] = []

    def wait_for(call_id: int, timeout: float) -> bool:
        timeouts.append(timeout)
        return False

    monkeypatch.setattr(requests, "wait_for_call", wait_for)
    return timeouts


@contextmanager
def runtime_that_finishes_the_next_call() -> Iterator[None]:
    def work() -> None:
        try:
            call = eventually(lambda: Call.objects.filter(status="queued").first())
            assert isinstance(call, Call)
            finish(call.pk, started_at=call.queued_at)
        finally:
            connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join(10)


@pytest.mark.django_db(transaction=True)
def test_a_request_that_waits_gets_the_result_if_the_call_ends_in_time(as_bob: Client, example: GuildMember) -> None:
    with runtime_that_finishes_the_next_call():
        response = invoke(as_bob, Prefer="wait=30")
    assert response.status_code == 200
    assert response["Preference-Applied"] == "wait=30"
    assert "Location" not in response
    body = response.json()
    assert (body["status"], body["result"]) == ("succeeded", RESULT)
    assert body["duration"] > 0


@pytest.mark.django_db(transaction=True)
def test_waiting_costs_one_more_query(
    as_alice: Client, example: GuildMember, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with runtime_that_finishes_the_next_call(), django_assert_num_queries(4):
        assert invoke(as_alice, Prefer="wait=30").status_code == 200


@pytest.mark.django_db(transaction=True)
def test_a_call_that_does_not_end_in_time_is_202(as_bob: Client, example: GuildMember) -> None:
    response = invoke(as_bob, Prefer="wait=1")
    assert (response.status_code, response["Preference-Applied"]) == (202, "wait=1")
    assert response["Location"] == response.json()["url"]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("wait=5", 5),
        ("Wait = 5", 5),
        ('wait="5"', 5),
        ("respond-async, wait=5", 5),
        ("wait=5; strict=yes", 5),
        ("wait=5, wait=9", 5),
        ("wait=999", 60),
        ("wait=999999999", 60),
    ],
)
def test_the_prefer_header_is_parsed_as_in_rfc_7240(
    as_bob: Client, example: GuildMember, waits: list[float], header: str, seconds: int
) -> None:
    response = invoke(as_bob, Prefer=header)
    assert waits == [seconds]
    assert response["Preference-Applied"] == f"wait={seconds}"


@pytest.mark.parametrize("header", ["wait=0", "wait=-1", "wait=soon", "wait", "wait=1.5", "waiting=5", "wait=²", ""])
def test_an_invalid_prefer_header_is_ignored(
    as_bob: Client, example: GuildMember, waits: list[float], header: str
) -> None:
    response = invoke(as_bob, Prefer=header)
    assert (response.status_code, waits) == (202, [])
    assert "Preference-Applied" not in response


def test_without_a_free_seat_a_request_does_not_wait(
    as_bob: Client, example: GuildMember, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "seats", SharedSlots(1))
    with requests.seat(OTHER_REQUESTER, {}):
        response = invoke(as_bob, Prefer="wait=60")
        assert (response.status_code, waits) == (202, [])
        assert "Preference-Applied" not in response
    invoke(as_bob, Prefer="wait=60")
    assert waits == [60]


def test_a_user_with_many_waiting_requests_leaves_a_seat_to_others(
    as_alice: Client, as_bob: Client, alice: User, example: GuildMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    responses = []
    monkeypatch.setattr(requests, "seats", SharedSlots(8))

    def wait_for(call_id: int, timeout: float) -> bool:
        """Bob sends one more request while he waits, as long as he may."""
        if Call.objects.get(pk=call_id).requested_by == alice:
            finish(call_id)
        elif not invoke(as_bob, Prefer="wait=60").has_header("Preference-Applied"):
            responses.append(invoke(as_alice, Prefer="wait=60"))
        return True

    monkeypatch.setattr(requests, "wait_for_call", wait_for)
    invoke(as_bob, Prefer="wait=60")
    assert [(response.status_code, response.json()["result"]) for response in responses] == [(200, RESULT)]


def test_half_of_the_threads_can_wait(settings: Any) -> None:
    assert requests.seats.count == settings.GUILD_HALL_WEB_THREADS // 2


def test_a_seat_is_freed_after_an_error(as_bob: Client, example: GuildMember, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(call_id: int, timeout: float) -> bool:
        raise RuntimeError("no watch")

    monkeypatch.setattr(requests, "wait_for_call", fail)
    with pytest.raises(RuntimeError):
        invoke(as_bob, Prefer="wait=60")
    assert requests.seats.in_use == 0


def test_a_repeat_of_a_finished_call_does_not_wait(as_bob: Client, example: GuildMember, waits: list[float]) -> None:
    finish(invoke(as_bob, Idempotency_Key="k1").json()["id"])
    assert invoke(as_bob, Idempotency_Key="k1", Prefer="wait=60").status_code == 200
    assert waits == []


def test_a_failed_call_is_a_200_response(as_bob: Client, example: GuildMember) -> None:
    call = invoke(as_bob).json()
    finish(
        call["id"],
        status="failed",
        result=None,
        error_kind="protocol",
        error_message="tool 'echo' of member 'example': no (JSON-RPC error -32602)",
        error_code=-32602,
        error_data={"hint": "text"},
    )
    response = as_bob.get(call["url"])
    assert response.status_code == 200
    assert list(response.json()["error"]) == list(CallErrorSerializer().fields)
    assert response.json()["error"] == {
        "kind": "protocol",
        "message": "tool 'echo' of member 'example': no (JSON-RPC error -32602)",
        "code": -32602,
        "data": {"hint": "text"},
    }


def test_results_are_returned_unchanged(as_bob: Client, example: GuildMember) -> None:
    result = {
        "content": [],
        "structuredContent": {"n": 0.1, "big": 2**70, "text": "größe ☃ \u2028"},
        "_meta": {"a/b": []},
    }
    call = invoke(as_bob).json()
    finish(call["id"], result=result)
    assert json.loads(as_bob.get(call["url"]).content)["result"] == result

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import override_script_prefix
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries
from rest_framework.serializers import Serializer

from mcp_runtime.calls import text_index
from mcp_runtime.control.tool_sets import ToolSetsOfCalls, Values, create_tool_set, delete_tool_set
from mcp_runtime.rows import database
from mcp_runtime.security.access import OPERATOR
from roster.api import requests
from roster.api.calls import CallSerializer
from roster.models import Call, GuildMember
from tests.support.api import add_call, add_member

CALLS = "/api/calls/"
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def ids(client: Client, **query: Any) -> list[int]:
    response = client.get(f"{CALLS}?{urlencode(query, doseq=True)}")
    assert response.status_code == 200, response.content
    return [call["id"] for call in response.json()["results"]]


def test_calls_are_listed_newest_first(as_bob: Client, example: GuildMember) -> None:
    calls = [add_call(example).pk for _ in range(3)]
    assert ids(as_bob) == calls[::-1]


def test_the_list_leaves_out_large_columns(as_bob: Client, example: GuildMember) -> None:
    add_call(example, status="failed", error_kind="tool", error_message="no", error_data=1, result={"isError": True})
    (call,) = as_bob.get(CALLS).json()["results"]
    assert call["error"] == {"kind": "tool", "message": "no", "code": None}
    assert not {"arguments", "result"} & set(call)
    assert {"arguments", "result"} <= set(as_bob.get(call["url"]).json())


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"status": "running", "started_at": NOON, "progress": {"progress": 1, "total": None, "message": "half"}},
        {"started_at": NOON, "finished_at": NOON + timedelta(seconds=1.5), "result": {"content": [], "isError": False}},
        {"status": "failed", "error_kind": "protocol", "error_message": "no", "error_code": -32000, "error_data": [1]},
        {"status": "cancelled", "cancel_requested_at": NOON.replace(microsecond=1), "token_id": 7},
        {"arguments": {"key": "hidden"}, "secret_paths": [["key"]]},
        {"tool_set": "writing"},
    ],
)
def test_a_call_is_represented_as_its_serializer_describes_it(example: GuildMember, fields: dict[str, Any]) -> None:
    call = add_call(example, status="queued", queued_at=NOON)
    for name, value in fields.items():
        setattr(call, name, value)
    tool_sets = ToolSetsOfCalls(OPERATOR, is_superuser=True)
    serializer = CallSerializer(context={"tool_sets": tool_sets})
    assert serializer.to_representation(call) == Serializer.to_representation(serializer, call)


def test_the_url_of_a_call_is_below_the_path_of_the_hall(as_bob: Client, example: GuildMember) -> None:
    call = add_call(example)
    for prefix in ("/", "/hall/"):
        with override_script_prefix(prefix):
            assert as_bob.get(f"{CALLS}{call.pk}/").json()["url"] == f"{prefix[:-1]}{CALLS}{call.pk}/"


def test_many_calls_need_no_more_queries_than_one(
    as_alice: Client, example: GuildMember, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for _ in range(5):
        add_call(example, status="failed", error_kind="tool")
    with django_assert_num_queries(2):
        as_alice.get(CALLS)


def test_calls_of_others_do_not_show_a_tool_set_that_does_not_exist_for_the_reader(
    as_alice: Client, as_bob: Client, bob: User, example: GuildMember
) -> None:
    closed_set = create_tool_set(Values("closed", groups=[Group.objects.create(name="writers")]), OPERATOR, None)
    create_tool_set(Values("open"), OPERATOR, None)
    for name in ("closed", "open", None):
        add_call(example, tool_set=name)
    own_call = add_call(example, tool_set="closed", requested_by=bob)

    def shown(client: Client, **query: str) -> list[str | None]:
        calls = client.get(f"{CALLS}?{urlencode(query)}").json()["results"]
        assert [client.get(call["url"]).json()["tool_set"] for call in calls] == [call["tool_set"] for call in calls]
        return [call["tool_set"] for call in calls]

    assert shown(as_alice) == ["closed", None, "open", "closed"]
    assert shown(as_bob) == ["closed", None, "open", None]
    assert shown(as_alice, tool_set="closed") == ["closed", "closed"]
    assert shown(as_bob, tool_set="open") == ["open"]
    assert ids(as_bob, tool_set="closed") == [own_call.pk]
    assert ids(as_bob, tool_set="unknown") == []
    # A deleted set may have been reserved.
    delete_tool_set(closed_set)
    assert shown(as_alice, tool_set="closed") == ["closed", "closed"]
    assert ids(as_bob, tool_set="closed") == [own_call.pk]
    assert shown(as_bob) == ["closed", None, "open", None]


def test_filters_limit_the_list(as_bob: Client, bob: User, example: GuildMember) -> None:
    add_call(example, status="succeeded", queued_at=NOON)
    other_id = add_call(
        add_member("other"),
        "files/read",
        status="failed",
        error_kind="timeout",
        source="admin",
        requested_by=bob,
        queued_at=NOON + timedelta(hours=1),
    ).pk
    assert len(ids(as_bob)) == 2
    for name, value in {
        "status": "failed",
        "member": "other",
        "tool": "files/read",
        "source": "admin",
        "error_kind": "timeout",
        "requested_by": "bob",
        "since": "2026-05-01T13:00:00Z",
    }.items():
        assert ids(as_bob, **{name: value}) == [other_id], name
    assert ids(as_bob, until="2026-05-01T13:00:00Z") == [other_id - 1]
    assert ids(as_bob, status="failed", member="example") == []
    assert ids(as_bob, status=["failed", "succeeded"]) == [other_id, other_id - 1]


@pytest.mark.parametrize(
    "query", ["status=odd", "source=window", "error_kind=odd", "since=yesterday", "stats=failed", "member=%00"]
)
def test_an_invalid_filter_is_refused(as_bob: Client, query: str) -> None:
    response = as_bob.get(f"{CALLS}?{query}")
    assert response.status_code == 400
    assert list(response.json()["faults"]) == [query.partition("=")[0]]


def test_pages_do_not_shift_when_new_calls_arrive(as_bob: Client, example: GuildMember) -> None:
    calls = [add_call(example).pk for _ in range(5)][::-1]
    first = as_bob.get(f"{CALLS}?page_size=2&member=example").json()
    add_call(example)
    second = as_bob.get(first["next"]).json()
    third = as_bob.get(second["next"]).json()
    pages = [[call["id"] for call in page["results"]] for page in (first, second, third)]
    assert pages == [calls[:2], calls[2:4], calls[4:]]
    assert third["next"] is None
    assert first["next"].startswith(f"{CALLS}?")
    assert [call["id"] for call in as_bob.get(third["previous"]).json()["results"]] == calls[2:4]


def test_the_size_of_pages_is_limited(as_bob: Client, example: GuildMember) -> None:
    Call.objects.bulk_create(Call(member=example, tool_name="echo", timeout=30, source="rest") for _ in range(210))
    assert len(ids(as_bob)) == 50
    assert len(ids(as_bob, page_size=100_000)) == 200
    assert len(ids(as_bob, page_size="many")) == 50


@pytest.mark.parametrize("cursor", ["p=abc", "p=1' OR 1=1", "p=" + "9" * 40, "p=%C2%B2", "o=x", "p=-1"])
def test_an_invalid_cursor_is_404(as_bob: Client, example: GuildMember, cursor: str) -> None:
    add_call(example)
    response = as_bob.get(f"{CALLS}?{urlencode({'cursor': b64encode(cursor.encode()).decode()})}")
    assert response.status_code == 404


def test_a_call_of_a_removed_member_stays_in_the_list(as_bob: Client, example: GuildMember) -> None:
    call = add_call(example, status="succeeded")
    GuildMember.objects.update(removed_at=timezone.now())
    assert ids(as_bob) == [call.pk]


def test_an_id_that_is_too_large_is_404(as_bob: Client) -> None:
    assert as_bob.get(f"{CALLS}{'9' * 30}/").status_code == 404
    assert as_bob.get(f"{CALLS}abc/").status_code == 404


def test_a_request_for_a_call_can_wait_for_its_end(
    as_bob: Client, example: GuildMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = add_call(example)
    monkeypatch.setattr(
        requests, "wait_for_call", lambda pk, timeout: Call.objects.filter(pk=pk).update(status="succeeded")
    )
    response = as_bob.get(f"{CALLS}{call.pk}/", headers={"Prefer": "wait=5"})
    assert (response.status_code, response.json()["status"]) == (200, "succeeded")
    assert response["Preference-Applied"] == "wait=5"


def test_an_unfinished_call_is_200(as_bob: Client, example: GuildMember) -> None:
    response = as_bob.get(f"{CALLS}{add_call(example, status='running').pk}/")
    assert response.status_code == 200
    assert "Location" not in response


# Cancel -----------------------------------------------------------------------------------------------------------


def test_a_queued_call_is_cancelled_at_once(as_bob: Client, example: GuildMember) -> None:
    call = add_call(example)
    response = as_bob.post(f"{CALLS}{call.pk}/cancel/")
    assert (response.status_code, response.json()["status"], response.json()["error"]) == (200, "cancelled", None)
    assert response.json()["member"] == "example"


def test_a_running_call_gets_a_cancellation_request(as_bob: Client, example: GuildMember) -> None:
    call = add_call(example, status="running", started_at=timezone.now())
    response = as_bob.post(f"{CALLS}{call.pk}/cancel/")
    assert (response.status_code, response.json()["status"]) == (202, "running")
    assert response.json()["cancel_requested_at"] is not None


@pytest.mark.parametrize(
    ("codenames", "status"),
    [
        (["view_call"], 403),
        (["view_call", "invoke_tool"], 403),
        (["view_call", "control_member"], 200),
    ],
)
def test_a_call_of_another_user_is_cancelled_only_by_users_who_may_control_the_member(
    charlie: User, as_charlie: Client, bob: User, example: GuildMember, codenames: list[str], status: int
) -> None:
    charlie.is_staff = True
    charlie.save()
    charlie.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    other_call, own_call = add_call(example, requested_by=bob), add_call(example, requested_by=charlie)
    assert as_charlie.get(f"{CALLS}{other_call.pk}/").status_code == 200
    assert as_charlie.post(f"{CALLS}{other_call.pk}/cancel/").status_code == status
    assert as_charlie.post(f"{CALLS}{own_call.pk}/cancel/").status_code == 200
    third_call = add_call(example, requested_by=bob)
    browser = Client()
    browser.force_login(charlie)
    response = browser.post(reverse("admin:roster_call_cancel", args=[third_call.pk]))
    assert response.status_code == (302 if status == 200 else status)
    third_call.refresh_from_db()
    assert third_call.status == ("cancelled" if status == 200 else "queued")


def test_a_finished_call_cannot_be_cancelled(as_bob: Client, example: GuildMember) -> None:
    call = add_call(example, status="succeeded")
    response = as_bob.post(f"{CALLS}{call.pk}/cancel/")
    assert (response.status_code, response.json()["code"]) == (409, "not_cancellable")
    assert as_bob.post(f"{CALLS}{call.pk + 1}/cancel/").status_code == 404


# Search -----------------------------------------------------------------------------------------------------------


def test_a_search_finds_words_of_ended_calls(as_bob: Client, example: GuildMember) -> None:
    first = add_call(example, search_text="Plum pear")
    second = add_call(example, search_text="plum")
    assert ids(as_bob, search="plu") == [second.pk, first.pk]
    assert ids(as_bob, search="PEAR plum") == [first.pk]
    assert ids(as_bob, search="plum", status="failed") == []
    assert ids(as_bob, search='"') == []
    (call,) = as_bob.get(CALLS, {"search": "pear"}).json()["results"]
    assert "search_text" not in call


def test_a_search_finds_no_calls_of_others(as_charlie: Client, example: GuildMember, alice: User) -> None:
    add_call(example, requested_by=alice, search_text="plum")
    assert ids(as_charlie, search="plum") == []


def test_a_search_that_takes_too_long_is_refused_with_a_sentence(
    as_bob: Client, example: GuildMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(50):
        add_call(example, search_text="plum")
    monkeypatch.setattr(text_index, "SEARCH_SECONDS", -1.0 if connection.vendor == "sqlite" else 0.001)
    monkeypatch.setattr(database, "PROGRESS_STEPS", 1)
    response = as_bob.get(CALLS, {"search": "plum"})
    if response.status_code == 200 and connection.vendor == "postgresql":
        return  # the server was faster than a millisecond
    assert response.status_code == 400
    assert response.json()["code"] == "search_failed"
    assert "longer than" in response.json()["detail"]


def test_a_database_that_cannot_search_words_says_so(
    as_bob: Client, example: GuildMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_index, "is_available", lambda: False)
    response = as_bob.get(CALLS, {"search": "plum"})
    assert response.status_code == 400
    assert "FTS5" in response.json()["detail"]

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from mcp_runtime.calls.queue_search import Exclusions, QueueSearch, find_queued
from roster.models import Call, GuildMember

pytestmark = pytest.mark.django_db

LEASE_ID = uuid.uuid4()


def make_member(name: str) -> GuildMember:
    return GuildMember.objects.create(name=name, directory=name, lease_id=LEASE_ID, manifest={"max_concurrency": 3})


def add_queued_call(member: GuildMember, **columns: Any) -> Call:
    values = {"tool_name": "echo", "timeout": 7.5, "source": Call.Source.REST, **columns}
    return Call.objects.create(member=member, **values)


def test_a_queued_call_is_read_with_all_its_data_in_one_statement() -> None:
    anna = make_member("anna")
    call = add_queued_call(anna, arguments={"text": "ä", "n": [1, None]}, secret_paths=[["text"]])
    with CaptureQueriesContext(connection) as queries:
        [queued_call] = find_queued(LEASE_ID, Exclusions(), 5)
        columns = (
            queued_call.pk,
            queued_call.tool_name,
            queued_call.arguments,
            queued_call.timeout,
            queued_call.secret_paths,
        )
        assert columns == (call.pk, "echo", {"text": "ä", "n": [1, None]}, 7.5, [["text"]])
        assert (queued_call.member_id, queued_call.requested_by_id, queued_call.token_id) == (anna.pk, None, None)
        assert (queued_call.member.name, queued_call.member.manifest) == ("anna", {"max_concurrency": 3})
    assert len(queries) == 1


def test_the_oldest_calls_are_read_first_without_the_excluded_ones() -> None:
    anna, bob = make_member("anna"), make_member("bob")
    first, second, third = add_queued_call(anna), add_queued_call(bob), add_queued_call(anna)
    assert find_queued(LEASE_ID, Exclusions(), 2) == [first, second]
    assert find_queued(LEASE_ID, Exclusions(members=frozenset({anna.pk})), 5) == [second]
    no_requester = (None, None)
    of_bob = Exclusions(requesters=frozenset({(no_requester, frozenset({bob.pk}))}))
    assert find_queued(LEASE_ID, of_bob, 5) == [first, third]
    assert find_queued(LEASE_ID, Exclusions(requesters=frozenset({(no_requester, None)})), 5) == []


def test_calls_of_a_requester_are_excluded_and_those_of_nobody_and_of_others_stay() -> None:
    anna, bob = make_member("anna"), make_member("bob")
    user, other = User.objects.create(username="eve"), User.objects.create(username="ida")
    of_nobody, of_eve, of_ida = (add_queued_call(anna, requested_by=who) for who in (None, user, other))
    of_eve_in_bob = add_queued_call(bob, requested_by=user)
    eve = (user.pk, None)
    assert find_queued(LEASE_ID, Exclusions(requesters=frozenset({(eve, None)})), 9) == [of_nobody, of_ida]
    in_anna = Exclusions(requesters=frozenset({(eve, frozenset({anna.pk}))}))
    assert find_queued(LEASE_ID, in_anna, 9) == [of_nobody, of_ida, of_eve_in_bob]
    assert find_queued(LEASE_ID, in_anna, 9, after=of_nobody.pk) == [of_ida, of_eve_in_bob]
    assert of_eve not in find_queued(LEASE_ID, in_anna, 9)


def test_finished_calls_are_not_read_although_most_were_queued_when_the_statistics_were_made() -> None:
    anna = make_member("anna")
    Call.objects.bulk_create(
        Call(member=anna, tool_name="echo", timeout=7.5, source=Call.Source.REST) for _ in range(3000)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE roster_call")
    ids = list(Call.objects.order_by("pk").values_list("pk", flat=True))
    Call.objects.filter(pk__lte=ids[-10]).update(status=Call.Status.SUCCEEDED)
    with CaptureQueriesContext(connection) as queries:
        assert len(find_queued(LEASE_ID, Exclusions(), 5)) == 5
    explain = "EXPLAIN" if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
    with connection.cursor() as cursor:
        cursor.execute(f"{explain} {queries[0]['sql']}")
        plan = str(cursor.fetchall())
    assert "call_active" in plan
    assert "SCAN roster_call " not in plan  # of SQLite


NOBODY = (None, None)
EVE = (7, None)


@pytest.mark.parametrize(
    ("wider", "narrower", "expected"),
    [
        (Exclusions(), Exclusions(), True),
        (Exclusions(frozenset({1, 2})), Exclusions(frozenset({1})), True),
        (Exclusions(frozenset({1})), Exclusions(frozenset({1, 2})), False),
        (Exclusions(), Exclusions(requesters=frozenset({(EVE, None)})), False),
        (
            Exclusions(requesters=frozenset({(EVE, None)})),
            Exclusions(requesters=frozenset({(EVE, frozenset({1}))})),
            True,
        ),
        (
            Exclusions(requesters=frozenset({(EVE, frozenset({1}))})),
            Exclusions(requesters=frozenset({(EVE, None)})),
            False,
        ),
        (
            Exclusions(frozenset({1}), frozenset({(EVE, frozenset({2}))})),
            Exclusions(requesters=frozenset({(EVE, frozenset({1, 2}))})),
            True,
        ),
        (
            Exclusions(requesters=frozenset({(NOBODY, None)})),
            Exclusions(requesters=frozenset({(EVE, frozenset({1}))})),
            False,
        ),
        (Exclusions(frozenset({1})), Exclusions(requesters=frozenset({(EVE, frozenset({1}))})), True),
    ],
)
def test_exclusions_cover_those_that_exclude_no_other_calls(
    wider: Exclusions, narrower: Exclusions, *, expected: bool
) -> None:
    assert wider.cover(narrower) is expected


def searched(search: QueueSearch, exclusions: Exclusions) -> tuple[list[Call], str]:
    """The result of a search, and its last statement."""
    with CaptureQueriesContext(connection) as queries:
        rows = search.find(exclusions, 5)
    return rows, queries[-1]["sql"] if queries else ""


def search_in_vain(search: QueueSearch, exclusions: Exclusions) -> None:
    """Search twice, so that the search knows what it searched."""
    for _ in range(2):
        search.note_new_calls()
        assert search.find(exclusions, 5) == []


def test_after_a_search_in_vain_the_queue_is_not_read_before_new_calls_are_noted() -> None:
    anna, bob = make_member("anna"), make_member("bob")
    first = add_queued_call(anna)
    without_anna, search = Exclusions(frozenset({anna.pk})), QueueSearch(LEASE_ID)
    assert search.find(without_anna, 5) == []
    newer = add_queued_call(bob)
    assert searched(search, without_anna) == ([], "")
    search.note_new_calls()
    assert search.find(without_anna, 5) == [newer]
    assert search.find(without_anna, 5) == [newer]  # it was not claimed
    assert search.find(Exclusions(), 5) == [first, newer]


def test_a_third_search_in_vain_reads_only_the_calls_that_came_later() -> None:
    anna, bob = make_member("anna"), make_member("bob")
    last = [add_queued_call(anna) for _ in range(3)][-1]
    without_anna, search = Exclusions(frozenset({anna.pk})), QueueSearch(LEASE_ID)
    search_in_vain(search, without_anna)
    search.note_new_calls()
    rows, sql = searched(search, without_anna)
    assert rows == []
    assert f"roster_call.id > {last.pk}" in sql
    newer = add_queued_call(bob)
    search.note_new_calls()
    rows, sql = searched(search, without_anna)
    assert rows == [newer]
    assert "roster_call.id >" in sql


def test_a_search_that_excludes_fewer_calls_reads_the_whole_queue() -> None:
    anna, bob = make_member("anna"), make_member("bob")
    older = add_queued_call(anna)
    search = QueueSearch(LEASE_ID)
    search_in_vain(search, Exclusions(frozenset({anna.pk, bob.pk})))
    assert search.find(Exclusions(frozenset({bob.pk})), 5) == [older]


def test_after_forget_an_older_call_is_found_whose_member_came_to_this_node() -> None:
    anna, bob = make_member("anna"), make_member("bob")
    bob.lease_id = None
    bob.save()
    add_queued_call(bob)
    add_queued_call(anna)
    without_anna, search = Exclusions(frozenset({anna.pk})), QueueSearch(LEASE_ID)
    search_in_vain(search, without_anna)
    GuildMember.objects.filter(pk=bob.pk).update(lease_id=LEASE_ID)
    search.note_new_calls()
    assert search.find(without_anna, 5) == []
    search.forget()
    assert [call.member for call in search.find(without_anna, 5)] == [bob]


def test_a_search_that_was_forgotten_while_it_ran_is_not_relied_on(monkeypatch: pytest.MonkeyPatch) -> None:
    anna = make_member("anna")
    add_queued_call(anna)
    without_anna, search = Exclusions(frozenset({anna.pk})), QueueSearch(LEASE_ID)
    original = find_queued

    def find_and_forget(*args: Any, **options: Any) -> list[Call]:
        rows = original(*args, **options)
        search.forget()
        return rows

    monkeypatch.setattr("mcp_runtime.calls.queue_search.find_queued", find_and_forget)
    search_in_vain(search, without_anna)
    monkeypatch.undo()
    rows, sql = searched(search, without_anna)
    assert rows == []
    assert "roster_call.id >" not in sql
    assert "SELECT" in sql

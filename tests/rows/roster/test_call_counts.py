"""The kept counts of calls are those that counting all rows again gives."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

import pytest
from django.db.models import Q
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from roster import call_counts
from roster.call_counts import CallCounts
from roster.models import Call, GuildMember
from tests.support.admin import make_call, make_member

pytestmark = pytest.mark.django_db

MOST = 100


@pytest.fixture
def member() -> GuildMember:
    return make_member("notes")


@pytest.fixture
def counts() -> CallCounts:
    return CallCounts()


@pytest.fixture
def one_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on SQLite. Other databases keep the counts of a row only after a minute."""
    monkeypatch.setattr(call_counts, "ids_ascend", lambda: True)


def read(counts: CallCounts, *, most: int = MOST, since: datetime | None = None) -> Counter[str]:
    """The calls by tool, of the last 30 days."""
    since = since or timezone.now() - timedelta(days=30)
    return Counter({tool: number for (_, tool), number in counts.read("all", Q(), since, most).items()})


def call(member: GuildMember, tool: str, days_ago: float = 0) -> Call:
    return make_call(member, tool_name=tool, queued_at=timezone.now() - timedelta(days=days_ago))


def test_new_calls_are_added_and_old_and_pruned_ones_leave(counts: CallCounts, member: GuildMember) -> None:
    assert read(counts) == {}
    call(member, "old", days_ago=40)
    first = call(member, "add", days_ago=20)
    call(member, "add")
    assert read(counts) == {"add": 2}
    call(member, "find")
    assert read(counts) == {"add": 2, "find": 1}
    Call.objects.filter(pk__lte=first.pk).delete()
    assert read(counts) == {"add": 1, "find": 1}
    assert read(counts, since=timezone.now() + timedelta(days=2)) == {}


@pytest.mark.usefixtures("one_writer")
def test_a_second_look_reads_no_row_that_was_counted(
    counts: CallCounts, member: GuildMember, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for _ in range(3):
        call(member, "add")
    read(counts)
    with django_assert_num_queries(3):  # the last id, the first id, and the names of the members
        assert read(counts) == {"add": 3}


@pytest.mark.usefixtures("one_writer")
def test_only_the_newest_calls_count_and_days_leave_whole(counts: CallCounts, member: GuildMember) -> None:
    for days_ago in (3, 2, 2, 1, 1, 1):
        call(member, f"day{days_ago}", days_ago=days_ago)

    assert read(counts, most=5) == {"day2": 2, "day1": 3}
    assert read(counts, most=4) == {"day1": 3}


def test_calls_of_a_member_that_was_deleted_do_not_count(counts: CallCounts, member: GuildMember) -> None:
    call(member, "add")
    read(counts)
    member.delete()

    assert read(counts) == {}
    call(make_member("notes"), "find")
    assert read(counts) == {"find": 1}


def test_rows_that_another_transaction_writes_late_are_counted(
    counts: CallCounts, member: GuildMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on PostgreSQL, where a row may appear after one with a higher id."""
    monkeypatch.setattr(call_counts, "ids_ascend", lambda: False)
    late = call(member, "late")
    pk = late.pk
    call(member, "add")
    late.delete()
    assert read(counts) == {"add": 1}

    Call.objects.create(pk=pk, member=member, tool_name="late", arguments={}, timeout=9)

    assert read(counts) == {"add": 1, "late": 1}
    monkeypatch.setattr(call_counts, "SETTLE_SECONDS", 0.0)
    for _ in range(3):
        assert read(counts) == {"add": 1, "late": 1}


def test_only_a_few_conditions_are_kept(counts: CallCounts, member: GuildMember) -> None:
    call(member, "add")
    since = timezone.now() - timedelta(days=30)
    for key in range(call_counts.MAX_KEPT + 3):
        assert counts.read(key, Q(), since, MOST) == {("notes", "add"): 1}

    assert len(counts.kept) == call_counts.MAX_KEPT

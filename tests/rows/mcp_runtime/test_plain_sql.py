from __future__ import annotations

import pytest
from django.db import IntegrityError, OperationalError, ProgrammingError, connection, transaction
from django.test.utils import CaptureQueriesContext

from mcp_runtime.rows import plain_sql
from roster.models import CallTotal, GuildMember

pytestmark = pytest.mark.django_db

TABLE = CallTotal._meta.db_table
COLUMNS = ("member_id", "outcome", "count")


@pytest.fixture
def anna() -> GuildMember:
    return GuildMember.objects.create(name="anna", directory="anna")


def test_an_insert_returns_the_id_of_the_new_row(anna: GuildMember) -> None:
    pk = plain_sql.insert(TABLE, COLUMNS, [anna.pk, "lost", 3])
    assert CallTotal.objects.values_list("member__name", "outcome", "count").get(pk=pk) == ("anna", "lost", 3)


def test_an_update_returns_the_number_of_changed_rows(anna: GuildMember) -> None:
    for outcome in ("lost", "tool", "timeout"):
        CallTotal.objects.create(member=anna, outcome=outcome, count=1)
    sql = f"UPDATE {TABLE} SET count = %s WHERE outcome IN (%s, %s)"
    assert plain_sql.change(sql, [7, "lost", "tool"]) == 2
    assert plain_sql.change(sql, [7, "nobody", "none"]) == 0
    query = f"SELECT outcome, count FROM {TABLE} ORDER BY outcome"
    assert plain_sql.read(query, []) == [("lost", 7), ("timeout", 1), ("tool", 7)]


@pytest.mark.usefixtures("anna")
def test_a_percent_sign_is_written_twice_as_in_django() -> None:
    sql = f"SELECT name LIKE 'an%%', %s FROM {GuildMember._meta.db_table}"
    [(is_like, text)] = plain_sql.read(sql, ["100%s"])
    assert (bool(is_like), text) == (True, "100%s")


def test_errors_are_those_of_django(anna: GuildMember) -> None:
    plain_sql.insert(TABLE, COLUMNS, [anna.pk, "lost", 3])
    with pytest.raises(IntegrityError), transaction.atomic():
        plain_sql.insert(TABLE, COLUMNS, [anna.pk, "lost", 4])
    with pytest.raises((OperationalError, ProgrammingError)), transaction.atomic():
        plain_sql.read("SELECT nothing FROM nowhere", [])


def test_a_rolled_back_insert_leaves_no_row(anna: GuildMember) -> None:
    with transaction.atomic():
        plain_sql.insert(TABLE, COLUMNS, [anna.pk, "lost", 3])
        transaction.set_rollback(True)
    assert not CallTotal.objects.exists()


def test_the_statements_are_captured_with_the_queries(anna: GuildMember) -> None:
    with CaptureQueriesContext(connection) as queries:
        plain_sql.insert(TABLE, COLUMNS, [anna.pk, "lost", 3])
        plain_sql.read(f"SELECT id FROM {TABLE}", [])
    assert len(queries) == 2

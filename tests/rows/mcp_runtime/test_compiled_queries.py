from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Value
from django.db.models.functions import Concat
from django.db.models.sql.compiler import SQLCompiler
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcp_runtime.rows.compiled_queries import CompiledQuery, Placeholder
from roster.models import Call, GuildMember, Token

pytestmark = pytest.mark.django_db


@pytest.fixture
def calls() -> list[Call]:
    anna = GuildMember.objects.create(name="anna", directory="anna", manifest={"name": "anna"})
    token = Token.objects.create(user=User.objects.create_user("bob"), name="his", hint="abcd", digest="d")
    columns = {"member": anna, "tool_name": "echo", "source": "rest"}
    all_columns = {
        "arguments": {"text": "ä\n", "many": [1, 2.5, None, True]},
        "timeout": 2.5,
        "started_at": timezone.now(),
        "finished_at": timezone.now() + timedelta(microseconds=7),
        "lease_id": uuid.uuid4(),
        "requested_by": token.user,
        "token": token,
        "error_code": -5,
        "error_data": ["%s"],
    }
    return [Call.objects.create(**{**columns, **all_columns}), Call.objects.create(**columns, timeout=30)]


def test_rows_are_read_as_django_reads_them(calls: list[Call]) -> None:
    query = CompiledQuery(
        lambda: Call.objects.filter(tool_name=Placeholder("tool")).order_by("id"), related={"member": ()}
    )
    rows, expected = query.read(tool="echo"), list(Call.objects.select_related("member").order_by("id"))
    assert rows == calls
    for row, expected_row in zip(rows, expected, strict=True):
        assert values_of(row) == values_of(expected_row)
        assert values_of(row.member) == values_of(expected_row.member)
        assert (row._state.adding, row._state.db) == (False, expected_row._state.db)


def values_of(row: Any) -> dict[str, Any]:
    return {field.attname: row.__dict__[field.attname] for field in row._meta.concrete_fields}


def test_columns_that_are_not_named_are_read_on_access(calls: list[Call]) -> None:
    query = CompiledQuery(lambda: Call.objects.order_by("id"), columns=["tool_name"], related={"member": ["manifest"]})
    with CaptureQueriesContext(connection) as queries:
        first = query.read()[0]
        assert (first.tool_name, first.member.manifest) == ("echo", {"name": "anna"})
    assert len(queries) == 1
    with CaptureQueriesContext(connection) as queries:
        assert first.timeout == 2.5
        assert first.member.name == "anna"
    assert len(queries) == 2


def test_each_execution_has_its_own_values_and_limit(calls: list[Call]) -> None:
    query = CompiledQuery(
        lambda: Call.objects.filter(timeout__gt=Placeholder("low"), timeout__lt=Placeholder("high")).order_by("id")
    )
    assert query.read(low=0, high=100) == calls
    assert query.read(low=0, high=100, limit=1) == calls[:1]
    assert query.read(low=10, high=100) == calls[1:]
    assert query.first(low=0, high=100) == calls[0]
    assert query.first(low=100, high=100) is None
    with pytest.raises(KeyError, match="high"):
        query.read(low=1)


def test_annotations_of_the_queryset_are_read(calls: list[Call]) -> None:
    query: CompiledQuery[Any] = CompiledQuery(
        lambda: Call.objects.annotate(word=Concat("tool_name", Value("!"))).order_by("id"),
        related={"member": ["name"]},
        annotations=["word"],
    )
    assert [(row.word, row.member.name) for row in query.read()] == [("echo!", "anna")] * 2


def test_the_sql_is_compiled_once(calls: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    querysets = []
    query = CompiledQuery(lambda: querysets.append(1) or Call.objects.filter(pk=Placeholder("pk")))  # type: ignore[func-returns-value]
    assert query.first(pk=calls[0].pk) == calls[0]

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("a statement was compiled")

    with monkeypatch.context() as patch:
        patch.setattr(SQLCompiler, "as_sql", fail)
        assert query.first(pk=calls[1].pk) == calls[1]
    assert querysets == [1]

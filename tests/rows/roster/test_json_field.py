"""JSON in columns."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from django.db import connection

from roster.json_field import JsonField
from roster.models import GuildMember

MANY = {f"key{number}": "value" for number in range(20_000)}


def store_and_read(value: Any) -> Any:
    row = GuildMember.objects.create(name="m", directory="m", manifest=value)
    row.refresh_from_db()
    return row.manifest


@pytest.mark.django_db
@pytest.mark.parametrize(
    "value", [{}, [], 1.5, '\U0001f600 \\ " \u2028', {"a": [1, None, True, {"b": 10**30}]}, "\x7f", [1e-7, -0.5]]
)
def test_a_stored_value_is_read_unchanged(value: Any) -> None:
    assert store_and_read(value) == value


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL does not store it")
def test_half_a_surrogate_pair_is_stored_and_read_unchanged() -> None:
    assert store_and_read("\ud83d") == "\ud83d"


@pytest.mark.django_db
def test_a_value_that_is_not_json_is_refused() -> None:
    with pytest.raises(TypeError):
        store_and_read({"a": object()})


def test_large_values_are_written_in_a_third_of_the_time_of_json() -> None:
    """No other thread of the process runs while a value is encoded."""
    field = JsonField()

    def measure_seconds(encoder: Any) -> float:
        start = time.thread_time()
        json.dumps(MANY, cls=encoder)
        return time.thread_time() - start

    assert min(measure_seconds(field.encoder) for _ in range(5)) < min(measure_seconds(None) for _ in range(5)) / 3


def test_a_migration_contains_the_field_of_django() -> None:
    assert JsonField(null=True).deconstruct()[1:] == ("django.db.models.JSONField", [], {"null": True})

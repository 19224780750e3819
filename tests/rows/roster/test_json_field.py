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


def stored(value: Any) -> Any:
    row = GuildMember.objects.create(name="m", directory="m", manifest=value)
    row.refresh_from_db()
    return row.manifest


@pytest.mark.django_db
@pytest.mark.parametrize(
    "value", [{}, [], 1.5, '\U0001f600 \\ " \u2028', {"a": [1, None, True, {"b": 10**30}]}, "\x7f", [1e-7, -0.5]]
)
def test_what_is_stored_is_read_again(value: Any) -> None:
    assert stored(value) == value


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL takes none of it")
def test_half_a_surrogate_pair_is_stored_and_read_too() -> None:
    assert stored("\ud83d") == "\ud83d"


@pytest.mark.django_db
def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError):
        stored({"a": object()})


def test_large_values_are_written_in_a_part_of_the_time_that_json_takes_at_a_stroke() -> None:
    """Meanwhile no other thread of the process runs."""
    field = JsonField()

    def seconds(encoder: Any) -> float:
        began = time.thread_time()
        json.dumps(MANY, cls=encoder)
        return time.thread_time() - began

    assert min(seconds(field.encoder) for _ in range(5)) < min(seconds(None) for _ in range(5)) / 3


def test_a_migration_knows_it_as_django_s_own() -> None:
    assert JsonField(null=True).deconstruct()[1:] == ("django.db.models.JSONField", [], {"null": True})

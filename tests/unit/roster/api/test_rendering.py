from __future__ import annotations

import enum
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy
from rest_framework.exceptions import ErrorDetail

from roster.api.base import QuickRenderer


class Level(enum.IntEnum):
    LOW = 1


class Seconds(float):
    pass


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (SafeString("<b>"), "<b>"),
        ([ErrorDetail("wrong", code="invalid")], ["wrong"]),
        (gettext_lazy("Yes"), "Yes"),
        (Level.LOW, 1),
        (Seconds(1.5), 1.5),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05Z"),
        (2**70, 2**70),
    ],
)
def test_values_of_django_are_rendered_as_plain_json(value: Any, expected: Any) -> None:
    assert json.loads(QuickRenderer().render({"value": value})) == {"value": expected}

"""The table of attack classes cannot shrink unnoticed."""

from __future__ import annotations

import pytest

from tests.attack.attacks import ATTACKS
from tests.attack.classes import CLASSES
from tests.conftest import ROOT


def test_every_one_of_the_twenty_classes_is_tried_or_has_a_reason_why_not() -> None:
    assert list(CLASSES) == list(range(1, 21))
    assert [number for number, one in CLASSES.items() if not (one.attacks or one.tests or one.reason)] == []


@pytest.mark.parametrize("number", CLASSES)
def test_what_the_table_names_is_there(number: int) -> None:
    one = CLASSES[number]
    assert [name for name in one.attacks if name not in ATTACKS] == []
    assert [path for path in one.tests if not (ROOT / path).exists()] == []


def test_the_classes_without_any_attack_are_these_three() -> None:
    assert [number for number, one in CLASSES.items() if not one.attacks] == [12, 18, 20]

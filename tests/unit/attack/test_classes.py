"""The table of attack classes cannot shrink unnoticed."""

from __future__ import annotations

import pytest

from tests.attack.attacks import ATTACKS
from tests.attack.classes import CLASSES
from tests.conftest import ROOT


def test_each_of_the_twenty_classes_is_tried_or_has_a_reason() -> None:
    assert list(CLASSES) == list(range(1, 21))
    assert [
        number
        for number, attack_class in CLASSES.items()
        if not (attack_class.attacks or attack_class.tests or attack_class.reason)
    ] == []


@pytest.mark.parametrize("number", CLASSES)
def test_the_attacks_and_tests_in_the_table_exist(number: int) -> None:
    attack_class = CLASSES[number]
    assert [name for name in attack_class.attacks if name not in ATTACKS] == []
    assert [path for path in attack_class.tests if not (ROOT / path).exists()] == []


def test_only_two_classes_have_no_attack() -> None:
    assert [number for number, attack_class in CLASSES.items() if not attack_class.attacks] == [18, 20]

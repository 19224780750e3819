"""The inputs of `make fuzz`. They reach every branch of the parsers, and some of them once broke a parser."""

from __future__ import annotations

import pytest

from tests.attack import corpus
from tests.attack.parsers import TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_every_input_of_the_fuzzer_is_parsed_without_an_error(target: str) -> None:
    inputs = corpus.load(target)
    assert len(inputs) > 20
    for data in inputs:
        try:
            TARGETS[target](data)
        except Exception as error:  # noqa: BLE001 - any error is shown with its input
            pytest.fail(f"{data!r}: {type(error).__name__}: {error}")

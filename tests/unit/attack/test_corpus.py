"""What `make fuzz` kept: inputs that reach every branch of the parsers, and those that once broke one."""

from __future__ import annotations

import pytest

from tests.attack import corpus
from tests.attack.parsers import TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_whatever_the_fuzzer_found_is_read_as_it_should_be(target: str) -> None:
    inputs = corpus.load(target)
    assert len(inputs) > 20
    for data in inputs:
        try:
            TARGETS[target](data)
        except Exception as error:  # noqa: BLE001 - whatever it is, the input belongs beside it
            pytest.fail(f"{data!r}: {type(error).__name__}: {error}")

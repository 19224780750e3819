"""Seals of requests for logs."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_runtime.security.log_seals import VALID_SECONDS, is_valid, seal

LEASE, URL, NOW = "a" * 32, "/logs/anna?lines=5", 1_000_000.0
SEAL = seal(LEASE, URL, NOW)


def test_a_seal_is_valid_for_a_while_at_its_node_and_address() -> None:
    assert is_valid(SEAL, LEASE, URL, NOW)
    assert is_valid(SEAL, LEASE, URL, NOW + VALID_SECONDS - 1)
    assert is_valid(SEAL, LEASE, URL, NOW - VALID_SECONDS + 1)


@pytest.mark.parametrize(
    ("value", "lease", "url", "moment"),
    [
        (SEAL, "b" * 32, URL, NOW),
        (SEAL, LEASE, "/logs/bob?lines=5", NOW),
        (SEAL, LEASE, URL, NOW + VALID_SECONDS + 1),
        (SEAL.replace("1000000", "1000001"), LEASE, URL, NOW),
        *((value, LEASE, URL, NOW) for value in ("", "x", "1.", "1000000.x", f"{'9' * 30}.x", "1000000.\xe9")),
    ],
    # The seal follows from the key of each worker's hall, and all workers must name the tests alike.
    ids=["node", "address", "moment", "signature", "empty", "word", "no signature", "wrong", "far", "no ASCII"],
)
def test_any_other_seal_is_refused(value: str, lease: str, url: str, moment: float) -> None:
    assert not is_valid(value, lease, url, moment)


def test_a_seal_made_with_another_secret_key_is_refused(settings: Any) -> None:
    settings.SECRET_KEY = "o" * 50
    assert not is_valid(SEAL, LEASE, URL, NOW)

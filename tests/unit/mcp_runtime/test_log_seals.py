"""Seals of requests for logs."""

from __future__ import annotations

import pytest

from mcp_runtime.security.log_seals import VALID_SECONDS, is_valid, seal

KEY, LEASE, URL, NOW = "k" * 50, "a" * 32, "/logs/anna?lines=5", 1_000_000.0
SEAL = seal(KEY, LEASE, URL, NOW)


def test_a_seal_is_valid_for_a_while_at_its_node_and_address() -> None:
    assert is_valid(SEAL, KEY, LEASE, URL, NOW)
    assert is_valid(SEAL, KEY, LEASE, URL, NOW + VALID_SECONDS - 1)
    assert is_valid(SEAL, KEY, LEASE, URL, NOW - VALID_SECONDS + 1)


@pytest.mark.parametrize(
    ("value", "key", "lease", "url", "moment"),
    [
        (SEAL, "o" * 50, LEASE, URL, NOW),
        (SEAL, KEY, "b" * 32, URL, NOW),
        (SEAL, KEY, LEASE, "/logs/bob?lines=5", NOW),
        (SEAL, KEY, LEASE, URL, NOW + VALID_SECONDS + 1),
        (SEAL.replace("1000000", "1000001"), KEY, LEASE, URL, NOW),
        *((value, KEY, LEASE, URL, NOW) for value in ("", "x", "1.", "1000000.x", f"{'9' * 30}.x", "1000000.\xe9")),
    ],
)
def test_any_other_seal_is_refused(value: str, key: str, lease: str, url: str, moment: float) -> None:
    assert not is_valid(value, key, lease, url, moment)

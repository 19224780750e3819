"""The MCP conformance suite against our client, by protocol version and scenario (docs/conformance.md)."""

from __future__ import annotations

import pytest

from tests.conformance import suite

RUNS = [(version, scenario) for version, scenarios in suite.DEMANDED.items() for scenario in scenarios]


@pytest.mark.parametrize(("version", "scenario"), RUNS)
@pytest.mark.usefixtures("require_suite")
def test_the_client_passes(version: str, scenario: str) -> None:
    outcome = suite.run(version, scenario)
    assert not outcome.problems, "\n".join(outcome.problems)
    assert str(outcome) == str(suite.DEMANDED[version][scenario])


def test_the_demanded_checks_have_the_totals_of_each_version() -> None:
    totals = {version: str(suite.total(scenarios)) for version, scenarios in suite.DEMANDED.items()}
    assert totals == {
        "2025-06-18": "3 passed",
        "2025-11-25": "240 passed",
        "2026-07-28": "398 passed, 8 skipped",
        "extensions": "59 passed",
    }

"""docs/conformance.md has the outcomes that the tests demand."""

from __future__ import annotations

from tests.conformance import server_suite, suite
from tests.conformance.__main__ import PAGE, fill_in_tables


def test_the_page_has_the_outcomes_that_the_tests_demand() -> None:
    page = PAGE.read_text()
    assert page == fill_in_tables(page, suite.DEMANDED, server_suite.DEMANDED)

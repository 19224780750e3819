"""docs/conformance.md and what the tests demand."""

from __future__ import annotations

from tests.conformance import server_suite, suite
from tests.conformance.__main__ import PAGE, written


def test_the_page_tells_what_the_tests_demand() -> None:
    page = PAGE.read_text()
    assert page == written(page, suite.DEMANDED, server_suite.DEMANDED)

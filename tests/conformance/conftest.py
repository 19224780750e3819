"""The suite is big and comes from npm. Without it its tests are skipped, or fail in CI, which installs it."""

from __future__ import annotations

import os

import pytest

from tests.conformance import suite


@pytest.fixture(scope="session")
def require_suite() -> None:
    if not suite.is_installed():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"not installed: {suite.HOW_TO_INSTALL}")

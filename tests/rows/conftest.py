from __future__ import annotations

import pytest

from mcp_runtime.security import principals
from roster.models import Hall


@pytest.fixture(autouse=True)
def long_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that a test takes is live to its end, on a machine of any speed; nobody beats for it."""
    monkeypatch.setattr(Hall, "LEASE_SECONDS", 600.0)


@pytest.fixture(autouse=True)
def long_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user may do is looked up again when it changed, and not because a test takes long: it counts queries."""
    monkeypatch.setattr(principals, "CACHE_SECONDS", 600.0)

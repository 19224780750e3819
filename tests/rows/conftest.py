from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mcp_runtime.rows import clock, lease
from mcp_runtime.security import principals
from roster.models import Node


@pytest.fixture(autouse=True)
def long_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that a test takes is live until the test ends, on a slow machine too. No heartbeat renews it."""
    monkeypatch.setattr(Node, "LEASE_SECONDS", 600.0)


@pytest.fixture(autouse=True)
def long_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot of permissions is read again only after a change, so the number of queries does not depend on time."""
    monkeypatch.setattr(principals, "CACHE_SECONDS", 600.0)


@pytest.fixture
def several_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hall counts as one with several nodes, also on SQLite, where it never has them. For screens and commands."""
    monkeypatch.setattr(lease, "is_shared", lambda nodes: True)


@pytest.fixture(autouse=True)
def clock_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database's clock is this machine's. Reading it every 15 s would change how many queries a test counts."""
    monkeypatch.setattr(clock, "_read", lambda: datetime.now(UTC))

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mcp_runtime.calls import text_index
from mcp_runtime.members import contracts
from mcp_runtime.protocol.errors import SearchError
from mcp_runtime.rows import clock, lease
from mcp_runtime.security import principals
from roster.agent_config import _kept_lists
from roster.call_counts import kept_counts
from roster.models import GuildMember, MemberExtras, Node
from tests.support.api import add_member
from tests.support.extras import PROMPTS, RESOURCES, TEMPLATES, Updates, connect, start_member
from tests.support.gateway_world import Member, World


@pytest.fixture(autouse=True)
def long_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that a test takes is live until the test ends, on a slow machine too. No heartbeat renews it."""
    monkeypatch.setattr(Node, "LEASE_SECONDS", 600.0)


@pytest.fixture(autouse=True)
def no_kept_counts() -> None:
    """The rows of another test had the same ids."""
    kept_counts.forget()
    _kept_lists.clear()


@pytest.fixture(autouse=True)
def long_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot of permissions is read again only after a change, so the number of queries does not depend on time."""
    monkeypatch.setattr(principals, "CACHE_SECONDS", 600.0)


@pytest.fixture(scope="session", autouse=True)
def compiled_patterns() -> Iterator[None]:
    """The patterns that find poisoning stay compiled. Compiling them for each list takes longer than most tests."""
    with contracts.checks:
        yield


@pytest.fixture
def several_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hall counts as one with several nodes, also on SQLite, where it never has them. For screens and commands."""
    monkeypatch.setattr(lease, "is_shared", lambda nodes: True)


@pytest.fixture(autouse=True)
def clock_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database's clock is this machine's. Reading it every 15 s would change how many queries a test counts."""
    monkeypatch.setattr(clock, "read", lambda: datetime.now(UTC))


@pytest.fixture
def too_long_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search for words in calls takes longer than its limit."""

    @contextmanager
    def limit() -> Iterator[None]:
        yield
        raise SearchError(text_index.TOO_LONG)

    monkeypatch.setattr(text_index, "search_limit", limit)


# A member with prompts and resources ------------------------------------------------------------------------------


@pytest.fixture
def world(transactional_db: None, tmp_path: Path) -> Iterator[World]:
    """The real gateway in this process, with scripted members."""
    instance = World(tmp_path)
    try:
        yield instance
    finally:
        instance.close()


@pytest.fixture
def updates() -> Updates:
    return Updates()


@pytest.fixture
def notes(world: World, settings: Any, updates: Updates) -> Member:
    """A connected member, which this process can reach as the web does."""
    connect(world, settings)
    return start_member(world, updates=updates)


@pytest.fixture
def listed(db: None) -> GuildMember:
    """A member that is known from its lists, and does not run."""
    row = add_member("notes")
    lists = {"prompts": PROMPTS, "resources": RESOURCES, "resource_templates": TEMPLATES}
    MemberExtras.objects.create(member=row, **lists)
    return row

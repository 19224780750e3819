"""The real gateway in this process, with scripted members. They are raw sockets, so that they can misbehave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway_world import World


@pytest.fixture
def world(transactional_db: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    instance = World(tmp_path)
    try:
        yield instance
    finally:
        instance.close()

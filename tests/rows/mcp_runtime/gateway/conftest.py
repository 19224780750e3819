"""The real gateway in this process, with members that are scripts: servers made of raw sockets, which may misbehave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway_world import World


@pytest.fixture
def world(transactional_db: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    try:
        yield made
    finally:
        made.close()

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lifecycle_stage import RemoteStage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[RemoteStage]:
    """Starts members that are remote servers, in this process."""
    stage = RemoteStage(tmp_path)
    yield stage
    for live_member in stage.lifecycle.live_members():
        live_member.client.close()
    for server in stage.servers:
        server.close()

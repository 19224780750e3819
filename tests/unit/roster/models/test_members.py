from __future__ import annotations

from mcp_runtime.members.manifest.declaration import Manifest
from roster.models import GuildMember


def test_a_row_without_a_key_has_the_default_of_the_declaration() -> None:
    manifest, row = Manifest(name="x", version="1"), GuildMember(manifest={})
    assert row.call_timeout == row.timeout_of("echo") == manifest.timeout
    assert row.max_concurrency == manifest.max_concurrency

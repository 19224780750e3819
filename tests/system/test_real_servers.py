"""Members on servers that nobody here wrote: each starts, lists, calls, is killed and comes back."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from roster.models import Call
from tests.conftest import eventually
from tests.support.hall import Hall, call, member, wait_for_status
from tests.support.real_servers.__init__ import NODE, SERVERS, SUITE, python


def typescript(**manifest: Any) -> dict[str, Any]:
    if not NODE.exists():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("make conformance-suite installs it")
    args = [str(SERVERS / "typescript_sdk.mjs"), *(["${PORT}"] if manifest.get("transport") != "stdio" else [])]
    return {"command": str(NODE), "args": args, "start_timeout": 30, "env": {"SDK_ROOT": str(SUITE)}, **manifest}


REAL = {
    "python-sdk": lambda: python("python_sdk.py"),
    "python-sdk-modern": lambda: python("python_sdk.py", protocol_version="2026-07-28"),
    "fastmcp": lambda: python("fast_mcp.py"),
    "typescript-sdk": lambda: typescript(),
    "python-sdk-stdio": lambda: python("python_sdk.py", transport="stdio"),
    "typescript-sdk-stdio": lambda: typescript(transport="stdio"),
}


@pytest.mark.parametrize("name", REAL)
def test_it_starts_lists_calls_is_killed_and_comes_back(hall: Hall, name: str) -> None:
    hall.add(name, **REAL[name]())
    hall.start()
    up = wait_for_status(hall, name, "connected", within=40)
    assert (up.protocol_version == "2026-07-28") is name.endswith("modern")
    assert {tool.name for tool in up.tools.all()} == {"add", "count", "fail"}
    assert [tool.schema_error for tool in up.tools.all()] == [""] * 3
    added = call(name, "add", {"a": 2, "b": 3})
    assert (added.status, added.result["content"][0]["text"]) == ("succeeded", "5")
    counted = call(name, "count", {"to": 3})
    assert counted.result["content"][0]["text"] == "done"
    failed = call(name, "fail")
    assert (failed.status, failed.error_kind) == ("failed", "tool")
    assert failed.result["isError"] is True

    os.kill(up.pid or 0, signal.SIGKILL)
    wait_for_status(hall, name, "error", "starting")
    again = wait_for_status(hall, name, "connected", within=40)
    assert again.pid != up.pid
    assert call(name, "add", {"a": 1, "b": 1}).status == "succeeded"
    hall.manage("member", "stop", name)
    wait_for_status(hall, name, "disconnected", within=3)
    eventually(lambda: not hall.tagged_processes())
    assert not Call.objects.exclude(status__in=Call.FINISHED).exists()
    assert member(name).exit_code is not None

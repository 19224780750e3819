"""Members with servers of other authors. Each lists its tools, serves calls, and restarts after a kill."""

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


MANIFESTS = {
    "python-sdk": lambda: python("python_sdk.py"),
    "python-sdk-modern": lambda: python("python_sdk.py", protocol_version="2026-07-28"),
    "fastmcp": lambda: python("fast_mcp.py"),
    "typescript-sdk": lambda: typescript(),
    "python-sdk-stdio": lambda: python("python_sdk.py", transport="stdio"),
    "typescript-sdk-stdio": lambda: typescript(transport="stdio"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_real_server_lists_tools_serves_calls_and_restarts_after_a_kill(hall: Hall, name: str) -> None:
    hall.add(name, **MANIFESTS[name]())
    hall.start()
    row = wait_for_status(hall, name, "connected", within=40)
    assert (row.protocol_version == "2026-07-28") is name.endswith("modern")
    assert {tool.name for tool in row.tools.all()} == {"add", "count", "fail"}
    assert [tool.schema_error for tool in row.tools.all()] == [""] * 3
    addition = call(name, "add", {"a": 2, "b": 3})
    assert (addition.status, addition.result["content"][0]["text"]) == ("succeeded", "5")
    count = call(name, "count", {"to": 3})
    assert count.result["content"][0]["text"] == "done"
    failure = call(name, "fail")
    assert (failure.status, failure.error_kind) == ("failed", "tool")
    assert failure.result["isError"] is True

    os.kill(row.pid or 0, signal.SIGKILL)
    wait_for_status(hall, name, "error", "starting")
    new_row = wait_for_status(hall, name, "connected", within=40)
    assert new_row.pid != row.pid
    assert call(name, "add", {"a": 1, "b": 1}).status == "succeeded"
    hall.manage("member", "stop", name)
    wait_for_status(hall, name, "disconnected", within=3)
    eventually(lambda: not hall.tagged_processes())
    assert not Call.objects.exclude(status__in=Call.FINISHED).exists()
    assert member(name).exit_code is not None

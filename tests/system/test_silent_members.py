"""A member that is frozen but stays connected. Both the queue and the gateway notice it, because calls time out."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import requests
from django.contrib.auth.models import User
from django.test import Client
from django.utils.html import strip_tags

from roster.models import GuildMember, StatusChange, Token
from tests.conftest import eventually
from tests.support.hall import Hall, call, member, queue, wait_for_status


@pytest.fixture
def token(transactional_db: None) -> str:
    return Token.make(user=User.objects.create_superuser("alice"))[1]


@contextmanager
def freeze(row: GuildMember) -> Iterator[None]:
    pid = row.pid or 0
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if member(row.name).pid == pid:
            os.kill(pid, signal.SIGCONT)


def call_through_gateway(hall: Hall, token: str, tool: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    """A call through the gateway."""
    params: dict[str, Any] = {"name": tool, "arguments": arguments or {}}
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**params, "_meta": meta}}
    headers = {
        "Authorization": f"Bearer {token}",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": tool,
    }
    response = requests.post(f"http://127.0.0.1:{hall.gateway_port}/mcp", json=message, headers=headers, timeout=20)
    return dict(response.json())


def test_a_frozen_member_has_a_warning_and_keeps_running_until_it_answers_again(hall: Hall, token: str) -> None:
    hall.add("one", timeout=1)
    hall.start()
    member_row = wait_for_status(hall, "one", "connected")
    with freeze(member_row):
        assert call("one", "echo", {"text": "hi"}).error_kind == "timeout"
        row = eventually(lambda: GuildMember.objects.exclude(no_answer_since=None).first(), within=15)
        for _ in range(3):
            call("one", "echo", {"text": "hi"})
        text = f"no answer since {row.no_answer_since:%Y-%m-%d %H:%M:%S} UTC"
        assert text in hall.manage("roster").stdout
        admin_client, api_client = Client(), Client(headers={"Authorization": f"Bearer {token}"})
        admin_client.force_login(User.objects.get())
        body = api_client.get("/api/members/one/").json()
        assert body["no_answer_since"] == row.no_answer_since.isoformat().replace("+00:00", "Z")
        assert text in " ".join(body["warnings"])
        assert text in strip_tags(admin_client.get(f"/admin/roster/guildmember/{row.pk}/change/").content.decode())
        assert text in strip_tags(admin_client.get("/admin/").content.decode())
        eventually(lambda: re.search(r"runtime +\| warning: member 'one' has given no answer since", hall.output()))
    assert call("one", "echo", {"text": "hi"}).status == "succeeded"
    eventually(lambda: member("one").no_answer_since is None)
    assert (member("one").status, member("one").pid) == ("connected", member_row.pid)


@pytest.mark.parametrize("source", ["queue", "gateway"])
def test_a_member_that_answers_no_ping_is_restarted_if_its_manifest_says_so(
    hall: Hall, token: str, source: str
) -> None:
    hall.add("one", timeout=1, unresponsive="restart")
    hall.start()
    member_row = wait_for_status(hall, "one", "connected")
    eventually(lambda: "result" in call_through_gateway(hall, token, "one__echo", {"text": "hi"}))
    os.kill(member_row.pid or 0, signal.SIGSTOP)
    for _ in range(3):
        if source == "queue":
            queue("one", "echo", {"text": "hi"})
        else:
            assert "within 1 s" in call_through_gateway(hall, token, "one__echo", {"text": "hi"})["error"]["message"]
    eventually(lambda: member("one").restarts_total == 1 and member("one").status == "connected", within=30)
    assert member("one").pid != member_row.pid
    (change,) = StatusChange.objects.filter(new="error")
    assert change.cause == "no answer"
    assert "member 'one' has given no answer since" in change.message
    assert "3 calls timed out" in change.message
    assert call("one", "echo", {"text": "hi"}).status == "succeeded"


def test_a_member_that_answers_a_ping_is_not_restarted_after_a_hung_call(hall: Hall) -> None:
    folder = hall.add("one", "record", tool_timeouts={"sleep": 0.5}, unresponsive="restart")
    hall.start()
    member_row = wait_for_status(hall, "one", "connected")
    assert call("one", "sleep").error_kind == "timeout"
    eventually(lambda: '"ping"' in (folder / "requests.jsonl").read_text())
    assert call("one", "echo", {"text": "hi"}).status == "succeeded"
    assert (member("one").pid, member("one").no_answer_since) == (member_row.pid, None)

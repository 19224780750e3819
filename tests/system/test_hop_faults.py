"""Nodes that restart, or that others cannot reach, while agents use their members at another gateway."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from roster.models import Tool
from tests.conftest import eventually
from tests.support.agents import GatewayClient, make_token
from tests.support.hall import PATIENCE
from tests.support.nodes import GUARD, Machine, on_postgresql, wait_for_fences
from tests.system.test_hop import start, tools_at

pytestmark = [pytest.mark.services, on_postgresql]


def two_machines(make_node: Callable[[str], Machine], second_url: str | None = None) -> tuple[Machine, Machine]:
    """Two nodes. The first one owns the member `one`."""
    first, second = make_node("first"), make_node("second")
    second.node_url = second_url
    start([first, second], "one")
    eventually(lambda: "one__count" in tools_at(second), within=PATIENCE, what=second.output())
    return first, second


def test_a_node_without_an_address_reaches_the_members_of_others(make_node: Callable[[str], Machine]) -> None:
    _, second = two_machines(make_node, second_url="")
    agent = GatewayClient(second, make_token()).begin()
    assert [agent.text("one__count") for _ in range(3)] == ["1", "2", "3"]


def test_calls_wait_for_a_node_that_starts_again(make_node: Callable[[str], Machine]) -> None:
    first, second = two_machines(make_node)
    wait_for_fences(first)
    agent = GatewayClient(second, make_token()).begin()
    for _ in range(3):
        assert agent.text("one__count")
        first.kill()
        first.guard = first.popen(GUARD)
        started_at, texts = time.monotonic(), []
        while time.monotonic() < started_at + 6:  # the second node notices the start meanwhile
            texts.append(agent.send("tools/call", name="one__count", arguments={}).text)
        assert not [text for text in texts if "the node ended" in text]
        assert "result" in texts[-1]


def test_a_stream_that_cannot_be_resumed_at_another_node_is_opened_anew(make_node: Callable[[str], Machine]) -> None:
    _, second = two_machines(make_node)
    agent = GatewayClient(second, make_token()).begin()
    agent.http.headers["Last-Event-ID"] = "one/7"
    with agent.listen() as stream:
        Tool.objects.filter(name="levels").update(enabled=False)
        assert stream.until("notifications/tools/list_changed", within=PATIENCE)


def test_a_node_with_a_broken_certificate_does_not_start(make_node: Callable[[str], Machine], tmp_path: Path) -> None:
    node = make_node("first")
    node.node_url = f"https://127.0.0.1:{node.node_port}"
    (tmp_path / "odd.pem").write_text("odd")
    guard = node.popen(GUARD, GUILD_HALL_NODE_CERTIFICATE=str(tmp_path / "odd.pem"))
    assert guard.wait(PATIENCE) != 0
    assert "GUILD_HALL_NODE_CERTIFICATE" in node.output()
    assert "Traceback" not in node.output()

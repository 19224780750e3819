"""Nodes that restart, or that others cannot reach, while agents use their members at another gateway."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import eventually
from tests.support.agents import GatewayClient, make_token
from tests.support.hall import PATIENCE
from tests.support.nodes import Machine, on_postgresql
from tests.system.test_hop import start, tools_at

pytestmark = [pytest.mark.services, on_postgresql]


def two_machines(make_node: Callable[[str], Machine], second_url: str | None = None) -> tuple[Machine, Machine]:
    """Two nodes. The first one owns the member `one`."""
    first, second = make_node("first"), make_node("second")
    second.node_url = second.node_url if second_url is None else second_url
    start([first, second], "one")
    eventually(lambda: "one__count" in tools_at(second), within=PATIENCE, what=second.output())
    return first, second


def test_a_node_without_an_address_reaches_the_members_of_others(make_node: Callable[[str], Machine]) -> None:
    _, second = two_machines(make_node, second_url="")
    agent = GatewayClient(second, make_token()).begin()
    assert [agent.text("one__count") for _ in range(3)] == ["1", "2", "3"]

"""Clients of other authors at the address of a tool set."""

from __future__ import annotations

import asyncio

from mcp_runtime.control.tool_sets import Entry, Values, change_tool_set, create_tool_set
from mcp_runtime.security.access import OPERATOR
from roster.models import Call, Token
from tests.conftest import eventually
from tests.support.agents import make_token, wait_for_roster
from tests.support.hall import Hall
from tests.support.real_servers.__init__ import python
from tests.support.sdk_clients import fastmcp, python_sdk


def test_clients_use_a_tool_set_as_a_server_and_follow_its_changes(hall: Hall) -> None:
    hall.add("real", **python("python_sdk.py"))
    hall.start()
    wait_for_roster(hall, "real")
    entries = [Entry("real", "add", "plus", "Adds two numbers."), Entry("real", "count")]
    row = create_tool_set(Values("numbers", "Numbers", entries=entries), OPERATOR, None)
    token = make_token(scope=Token.Scope.TOOLS, tool_set=row)
    url = f"http://127.0.0.1:{hall.gateway_port}/sets/numbers/mcp"

    async def use(renamed: str) -> None:
        for kind, mode in ((python_sdk, "auto"), (python_sdk, "legacy"), (fastmcp, "auto"), (fastmcp, "legacy")):
            async with kind(url, token, mode) as client:
                assert await client.tools() == [renamed, "real__count"]
                assert await client.text(renamed, {"a": 2, "b": 3}) == "5"
                assert await client.progress("real__count", {"to": 3}) == [1, 2, 3]

    asyncio.run(asyncio.wait_for(use("plus"), 55))
    calls = Call.objects.filter(tool_set="numbers", member__name="real", tool_name="add", status="succeeded")
    eventually(lambda: calls.count() == 4)
    change_tool_set(row, Values("numbers", entries=[Entry("real", "add", "sum"), entries[1]]), OPERATOR)
    wait_for_change = python_sdk(url, token, "legacy")

    async def is_changed() -> bool:
        async with wait_for_change as client:
            while await client.tools() != ["sum", "real__count"]:
                await asyncio.sleep(0.05)
        return True

    assert asyncio.run(asyncio.wait_for(is_changed(), 30))
    asyncio.run(asyncio.wait_for(use("sum"), 55))

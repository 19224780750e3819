"""What it costs to compare the tools of a member with their contracts, beside the list of these tools itself."""

from __future__ import annotations

import copy
import statistics
import time
from typing import Any

from bench.figures import Figure
from bench.loads import echo_server
from mcp_runtime.client.client import JsonRpcClient
from mcp_runtime.contracts.canonical import version_of
from mcp_runtime.contracts.changes import compare
from mcp_runtime.contracts.findings import findings_in

TOOLS = 1_000


def contracts(rounds: int) -> list[Figure]:
    """A list of 1,000 tools: unchanged, with another description of each tool, and when it is new."""
    listing, same, changed, checked = [], [], [], []
    with echo_server(f"tools={TOOLS}") as server:
        client = JsonRpcClient(server.url)
        client.connect()
        for _ in range(rounds):
            began = time.perf_counter()
            tools = client.list_tools().tools
            listing.append(time.perf_counter() - began)
            same.append(_seconds(lambda tools=tools: [version_of(tool) for tool in tools]))
            others = [_other(tool) for tool in tools]
            changed.append(_seconds(lambda tools=tools, others=others: _compare(tools, others)))
            checked.append(_seconds(lambda tools=tools: [findings_in(tool) for tool in tools]))
    took = statistics.median(listing)
    ratio = statistics.median(ours / theirs for ours, theirs in zip(same, listing, strict=True))
    return [
        Figure(f"tools/list of {TOOLS:,} tools, median", took * 1000, "ms"),
        Figure("  their versions, none changed", statistics.median(same) * 1000, "ms"),
        Figure("  ratio versions / tools/list", ratio, "x", 1),
        Figure("  all changed: versions and graded changes", statistics.median(changed) * 1000, "ms"),
        Figure("  all new: signs of poisoning", statistics.median(checked) * 1000, "ms"),
    ]


def _seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _other(tool: dict[str, Any]) -> dict[str, Any]:
    other = copy.deepcopy(tool)
    other["description"] += " And again."
    return other


def _compare(tools: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    for tool, other in zip(tools, others, strict=True):
        if version_of(tool) != version_of(other) and not compare("tool", tool, other):
            raise SystemExit("bench: a change was not found")

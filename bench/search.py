"""A search among 1,000 tools, beside an echo call through the same gateway."""

from __future__ import annotations

import statistics

from bench.figures import Figure
from bench.gateway import LOAD_SECONDS, through
from bench.hall import bench_hall
from bench.instructions import is_valgrind_installed, millions_for_a_call
from bench.loads import CORPUS, ECHO, Endpoint, Load, measure

TOOLS = 1_000
COUNTED = 150  # calls whose instructions are counted


def search(rounds: int) -> list[Figure]:
    """Searches with labelled queries, and echo calls, in turn: with one client, and with sixteen."""
    alone: dict[str, list[Load]] = {"search": [], "echo": []}
    together: dict[str, list[Load]] = {"search": [], "echo": []}
    with bench_hall(0) as hall:
        hall.add("echo", str(ECHO), "${PORT}")
        hall.add("many", str(ECHO), "${PORT}", f"tools={TOOLS}", f"definitions={CORPUS}")
        with through(hall, "/mcp", "echo__echo") as echo:
            endpoints = {"echo": echo, "search": _searching(echo)}
            for number in range(rounds):
                for name in sorted(endpoints, reverse=bool(number % 2)):
                    alone[name].append(measure(endpoints[name], LOAD_SECONDS / 2, number=1, lean=True))
                    together[name].append(measure(endpoints[name], LOAD_SECONDS, lean=True))
    return [
        Figure(f"search among {TOOLS:,} tools, 1 client, median", _median(alone["search"], "p50"), "ms"),
        Figure("  an echo call through the gateway", _median(alone["echo"], "p50"), "ms"),
        Figure("  ratio search / echo call", _ratio(alone, "p50"), "x", 1.0),
        Figure("  95th percentile", _median(alone["search"], "p95"), "ms"),
        Figure("16 clients: CPU of the whole hall for a search", _median(together["search"], "cpu"), "ms"),
        Figure("  for an echo call, without the member", _median(together["echo"], "cpu"), "ms"),
        Figure("  ratio search / echo call", _ratio(together, "cpu"), "x", 1.0),
        Figure("  searches a second", _median(together["search"], "per_second"), "1/s"),
        *_instructions(),
    ]


def _instructions() -> list[Figure]:
    """The same count whatever else the machine does."""
    if not is_valgrind_installed():
        return []
    ours, echo = (millions_for_a_call(part, COUNTED) for part in ("search", "gateway"))
    return [
        Figure("instructions of the gateway for a search", ours, "million"),
        Figure("  for an echo call", echo, "million"),
        Figure("  ratio search / echo call", ours / echo, "x", 1.0),
    ]


def _searching(echo: Endpoint) -> Endpoint:
    return Endpoint(f"{echo.url}?mode=search", str(CORPUS), "search", echo.token, echo.roots)


def _median(loads: list[Load], figure: str) -> float:
    return float(statistics.median(getattr(load, figure) for load in loads))


def _ratio(loads: dict[str, list[Load]], figure: str) -> float:
    """The median of the ratios of each round, because other programs slow down both of its loads."""
    pairs = zip(loads["search"], loads["echo"], strict=True)
    return statistics.median(getattr(search, figure) / getattr(echo, figure) for search, echo in pairs)

"""How far a reader has to go to follow one call (see docs/architecture-runtime.md)."""

from __future__ import annotations

from tests.support.gateway_world import World
from tests.support.trace import threads_traced

MAX_FILES, MAX_CHANGES = 26, 60


def test_a_call_passes_few_files_and_changes_between_them_seldom(world: World) -> None:
    with threads_traced("gateway") as trace:
        world.member("notes")
        client = world.agent().begin()
        for _ in range(3):  # the first calls begin sessions and open connections
            assert "result" in client.call("notes__echo", a=1)
        paths: list[list[tuple[str, list[str]]]] = []
        while len(paths) < 300 and (not paths or len(paths[-1]) - 1 > MAX_CHANGES):  # a busy machine adds steps to most
            with trace.recorded():
                assert "result" in client.call("notes__echo", a=1)
            paths.append(trace.visits)
    path = min(paths, key=len)
    report = "\n".join(f"{file}: {', '.join(functions)}" for file, functions in path)
    assert 10 < len({file for file, _ in path}) <= MAX_FILES, report
    assert len(path) - 1 <= MAX_CHANGES, report

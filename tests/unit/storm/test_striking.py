"""A fault records what else it finds, for the figures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.storm.reckoning import ALL, Strike
from tests.storm.striking import Scene, await_all


class FakeHall:
    """A hall with one member, whose `manage.py up` ended. It may respond to calls, and it has a status."""

    def __init__(self, has_responses: bool = True, status: str | None = "connected") -> None:
        self._has_responses, self._status = has_responses, status
        self.up_process: object | None = None

    def well(self) -> list[str]:
        return ["http-0"]

    @contextlib.contextmanager
    def agent(self, name: str, seconds: float) -> Iterator[Any]:
        def call(tool: str, arguments: dict[str, str], *, modern: bool) -> Any:
            return SimpleNamespace(text=arguments["key"] if self._has_responses else "")

        yield SimpleNamespace(call=call)

    def read(self, path: str) -> dict[str, Any] | None:
        return {"status": self._status} if self._status else None

    def start_up(self) -> None:
        self.up_process = object()

    def part(self, name: str) -> object:
        return object()

    def connected(self) -> set[str]:
        return {"http-0"}


@pytest.mark.parametrize(
    ("hall", "look_count", "untrue_count"),
    [
        (FakeHall(), 1, 0),
        (FakeHall(status="disconnected"), 1, 1),
        (FakeHall(has_responses=False, status="disconnected"), 0, 0),
        (FakeHall(status=None), 0, 0),
    ],
)
def test_a_look_at_the_roster_counts_only_if_member_and_roster_respond(
    hall: Any, look_count: int, untrue_count: int
) -> None:
    scene = Scene(hall)
    scene.check_the_roster(Strike("disk full", ALL, fired_at=1.0))
    assert (scene.looks, len(scene.untrue)) == (look_count, untrue_count)


def test_a_hall_that_ended_unexpectedly_is_started_again_and_reported() -> None:
    scene = Scene(FakeHall())  # type: ignore[arg-type]
    strike = scene.strike("disk full")
    await_all(scene, strike)
    assert strike.well_at is not None
    assert len(scene.ended) == 1
    assert scene.ended[0].startswith("disk full")

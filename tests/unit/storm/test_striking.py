"""What a fault finds beside itself is written down for the figures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.storm.reckoning import ALL, Strike
from tests.storm.striking import Scene, await_all


class Standing:
    """A hall of one member, whose `manage.py up` ended; `answers`, and `status`: what it says."""

    def __init__(self, answers: bool = True, status: str | None = "connected") -> None:
        self._answers, self._status = answers, status
        self.up_process: object | None = None

    def well(self) -> list[str]:
        return ["http-0"]

    @contextlib.contextmanager
    def agent(self, name: str, seconds: float) -> Iterator[Any]:
        def call(tool: str, arguments: dict[str, str], *, modern: bool) -> Any:
            return SimpleNamespace(text=arguments["key"] if self._answers else "")

        yield SimpleNamespace(call=call)

    def asked(self, path: str) -> dict[str, Any] | None:
        return {"status": self._status} if self._status else None

    def start_up(self) -> None:
        self.up_process = object()

    def part(self, name: str) -> object:
        return object()

    def connected(self) -> set[str]:
        return {"http-0"}


@pytest.mark.parametrize(
    ("hall", "looks", "untrue"),
    [
        (Standing(), 1, 0),
        (Standing(status="disconnected"), 1, 1),
        (Standing(answers=False, status="disconnected"), 0, 0),
        (Standing(status=None), 0, 0),
    ],
)
def test_a_look_at_the_roster_counts_where_member_and_roster_answered(hall: Any, looks: int, untrue: int) -> None:
    scene = Scene(hall)
    scene.check_the_roster(Strike("disk full", ALL, fired_at=1.0))
    assert (scene.looks, len(scene.untrue)) == (looks, untrue)


def test_a_hall_that_ended_by_itself_is_started_again_and_told() -> None:
    scene = Scene(Standing())  # type: ignore[arg-type]
    strike = scene.strike("disk full")
    await_all(scene, strike)
    assert strike.well_at is not None
    assert len(scene.ended) == 1
    assert scene.ended[0].startswith("disk full")

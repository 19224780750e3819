"""The back-off of the hall is read from the member's row."""

from __future__ import annotations

from typing import Any

from tests.storm.member_faults import BackOff


class FakeHall:
    """A hall with one member, which has these rows one after the other."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self._rows = list(rows)

    def read(self, path: str) -> dict[str, Any]:
        return self._rows.pop(0)


def failed_row(at: str, again_at: str | None, restarts: int) -> dict[str, Any]:
    return {"status": "error", "status_changed_at": at, "next_restart_at": again_at, "restarts": restarts}


def test_each_pause_in_the_rows_counts_once() -> None:
    first_row = failed_row("2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:01.000000Z", 1)
    slow_row = failed_row("2026-01-01T00:00:05.000000Z", "2026-01-01T00:05:05.500000Z", 9)
    rows = [first_row, first_row, {"status": "starting"}, slow_row, failed_row("2026-01-01T00:09:00Z", None, 10), {}]
    back_off = BackOff(FakeHall(*rows), "http-0")  # type: ignore[arg-type]
    for _ in range(len(rows)):
        back_off.look()
    assert back_off.seconds == 1.0 + 300.5

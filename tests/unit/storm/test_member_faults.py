"""What the hall waits on purpose is read from the member's row."""

from __future__ import annotations

from typing import Any

from tests.storm.member_faults import BackOff


class Standing:
    """A hall whose one member has such rows, one after the other."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self._rows = list(rows)

    def asked(self, path: str) -> dict[str, Any]:
        return self._rows.pop(0)


def failed(at: str, again_at: str | None, restarts: int) -> dict[str, Any]:
    return {"status": "error", "status_changed_at": at, "next_restart_at": again_at, "restarts": restarts}


def test_the_pauses_are_those_of_the_rows_each_counted_once() -> None:
    first = failed("2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:01.000000Z", 1)
    slow = failed("2026-01-01T00:00:05.000000Z", "2026-01-01T00:05:05.500000Z", 9)
    rows = [first, first, {"status": "starting"}, slow, failed("2026-01-01T00:09:00Z", None, 10), {}]
    back_off = BackOff(Standing(*rows), "http-0")  # type: ignore[arg-type]
    for _ in range(len(rows)):
        back_off.look()
    assert back_off.seconds == 1.0 + 300.5

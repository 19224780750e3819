"""Calls that time out in a row, and responses in between."""

from __future__ import annotations

import time

import pytest

from mcp_runtime.members.silence import Silence


def test_a_silence_begins_when_its_first_call_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    silence = Silence()
    silence.note_timeout(30)
    silence.note_timeout(2)
    assert silence.timeouts == 2
    assert silence.began_at == pytest.approx(now - 30)


def test_a_response_ends_a_silence() -> None:
    silence = Silence()
    silence.note_timeout(30)
    silence.note_answer()
    assert silence.timeouts == 0


def test_a_timeout_of_a_call_older_than_the_last_response_is_ignored() -> None:
    silence = Silence()
    silence.note_answer()
    silence.note_timeout(30)
    assert silence.timeouts == 0
    silence.note_timeout(0)
    assert silence.timeouts == 1

"""Calls that time out in a row, and answers in between."""

from __future__ import annotations

import time

import pytest

from mcp_runtime.members.silence import Silence


def test_it_began_when_the_first_call_was_sent_that_nobody_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    silence = Silence()
    silence.note_timeout(30)
    silence.note_timeout(2)
    assert silence.timeouts == 2
    assert silence.began_at == pytest.approx(now - 30)


def test_an_answer_ends_it() -> None:
    silence = Silence()
    silence.note_timeout(30)
    silence.note_answer()
    assert silence.timeouts == 0


def test_a_call_that_hangs_while_others_are_answered_is_no_silence() -> None:
    silence = Silence()
    silence.note_answer()
    silence.note_timeout(30)
    assert silence.timeouts == 0
    silence.note_timeout(0)
    assert silence.timeouts == 1

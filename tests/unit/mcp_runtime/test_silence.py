"""Calls that time out in a row, and answers in between."""

from __future__ import annotations

import time

import pytest

from mcp_runtime.members.silence import Silence


def test_it_began_when_the_first_call_was_sent_that_nobody_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    silence = Silence()
    silence.timed_out(30)
    silence.timed_out(2)
    assert silence.timeouts == 2
    assert silence.began == pytest.approx(now - 30)


def test_an_answer_ends_it() -> None:
    silence = Silence()
    silence.timed_out(30)
    silence.answered()
    assert silence.timeouts == 0


def test_a_call_that_hangs_while_others_are_answered_is_no_silence() -> None:
    silence = Silence()
    silence.answered()
    silence.timed_out(30)
    assert silence.timeouts == 0
    silence.timed_out(0)
    assert silence.timeouts == 1

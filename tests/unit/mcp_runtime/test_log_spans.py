"""The lines of a log between two times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mcp_runtime.members import log_spans

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def line(seconds: float, text: str) -> str:
    return f"{log_spans.stamp((NOON + timedelta(seconds=seconds)).timestamp())} {text}"


def span_of(lines: list[str], begin: float, end: float) -> log_spans.Span:
    log = "".join(f"{each}\n" for each in lines).encode()
    chunks = [log[start : start + 7] for start in range(0, len(log), 7)]
    return log_spans.span(chunks, NOON + timedelta(seconds=begin), NOON + timedelta(seconds=end))


def texts(span: log_spans.Span) -> list[str]:
    return [each.partition(",")[2][4:] for each in span.lines]


def test_a_span_has_the_lines_of_its_time_and_of_the_moment_after_it() -> None:
    log = [line(-1, "before"), line(0, "begin"), line(1.5, "grüezi"), line(2.08, "late"), line(2.2, "after")]
    span = span_of(log, 0, 2)
    assert texts(span) == ["begin", "grüezi", "late"]
    assert (span.is_cut, span.is_late) == (False, False)


def test_a_line_without_a_time_belongs_to_the_line_before() -> None:
    span = span_of(
        [line(-9, "old"), "more of old", line(1, "new"), "more of new", line(9, "next"), "more of next"], 0, 2
    )
    assert span.lines[1:] == ["more of new"]


def test_a_rotated_log_that_begins_later_than_the_span_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not span_of([line(1, "first of all")], 0, 2).is_late
    monkeypatch.setattr(log_spans, "FULL_BYTES", 60)
    assert not span_of([line(1, "first of all")], 0, 2).is_late
    rest = [line(9, "after"), line(9, "after")]
    assert span_of([line(1, "first"), *rest], 0, 2).is_late
    assert span_of([line(5, "first"), *rest], 0, 2) == log_spans.Span([], is_late=True)
    assert not span_of([line(-1, "old"), *rest], 0, 2).is_late
    assert not span_of([], 0, 2).is_late


def test_a_span_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_spans, "MAX_LINES", 3)
    span = span_of([line(0, str(number)) for number in range(5)], 0, 2)
    assert texts(span) == ["0", "1", "2"]
    assert span.is_cut
    assert not span_of([line(0, str(number)) for number in range(3)], 0, 2).is_cut


def test_a_line_without_an_end_is_split() -> None:
    span = span_of([line(0, "x" * 2 * log_spans.MAX_PENDING)], 0, 2)
    assert max(map(len, span.lines)) <= log_spans.MAX_PENDING + 7

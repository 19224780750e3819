"""When two failures have the same message, although a server writes ids and times into it."""

from __future__ import annotations

import pytest

from mcp_runtime.members import status


def same(first: str, second: str) -> bool:
    words = status.without_changing_parts
    return words(first) == words(second)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("request 0a1b2c failed", "request 9f8e7d failed", True),
        ("at 2026-01-01T10:00:00.5+01:00", "at 2026-01-02T11:30:00.7+01:00", True),
        ("HTTP status 503", "HTTP status 500", False),
        ("host is away", "port is away", False),
    ],
)
def test_words_with_digits_do_not_count(first: str, second: str, expected: bool) -> None:
    assert same(first, second) == expected


def test_the_length_of_a_message_decides_nothing_about_the_time() -> None:
    """A pattern that looks ahead from each character would take a minute here, and hold the whole runtime meanwhile."""
    message = "answered with " + "a-" * 500_000
    assert len(status.without_changing_parts(message)) <= 2_000

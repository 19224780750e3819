"""The values of a token that users type."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from roster import tokens


@pytest.mark.parametrize(("text", "hours"), [("30d", 720), ("12h", 12), ("90m", 1.5), ("2w", 336)])
def test_an_end_may_be_a_time_from_now(text: str, hours: float) -> None:
    assert abs(tokens.parse_end(text) - timezone.now() - timedelta(hours=hours)) < timedelta(seconds=5)


def test_an_end_may_be_a_date() -> None:
    assert tokens.parse_end("2030-01-31").isoformat() == "2030-01-31T00:00:00+00:00"
    assert tokens.parse_end("2030-01-31T12:00:00+02:00") == datetime.fromisoformat("2030-01-31T10:00:00+00:00")


@pytest.mark.parametrize("text", ["", "soon", "30", "d", "-1d", "2030-13-01", "99999999d"])
def test_an_invalid_end_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="30d"):
        tokens.parse_end(text)


def test_the_name_of_a_tool_may_contain_slashes() -> None:
    assert tokens.parse_tool("files/read/all") == ("files", "read/all")


@pytest.mark.parametrize("text", ["", "notes", "/add", "notes/"])
def test_a_tool_without_its_member_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="MEMBER/TOOL"):
        tokens.parse_tool(text)

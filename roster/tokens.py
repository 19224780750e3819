"""Parse what people enter for a token, its end and its tools, and for the beginning of a list."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from django.utils import timezone

UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}

_PERIOD = r"([0-9]{1,5})([mhdw])"


def parse_end(text: str) -> datetime:
    """Parse `30d`, `12h`, `90m`, `2w` from now, or a date or time such as `2030-01-31`. Raises ValueError."""
    if match := re.fullmatch(_PERIOD, text):
        return timezone.now() + int(match[1]) * UNITS[match[2]]
    return _parse_moment(text, "a time from now")


def _parse_moment(text: str, period: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither {period} such as 30d or 12h, nor a date: 2030-01-31") from None
    return moment if timezone.is_aware(moment) else timezone.make_aware(moment)


def parse_beginning(text: str) -> datetime:
    """Parse `30d`, `12h`, `90m`, `2w` ago, or a date or time such as `2030-01-31`. Raises ValueError."""
    if match := re.fullmatch(_PERIOD, text):
        return timezone.now() - int(match[1]) * UNITS[match[2]]
    return _parse_moment(text, "a time ago")


def parse_tool(text: str) -> tuple[str, str]:
    """Split `member/tool` into two names. Raises ValueError."""
    member, slash, tool = text.partition("/")
    if not (member and slash and tool):
        raise ValueError(f"{text!r} is not MEMBER/TOOL, such as notes/add_note")
    return member, tool

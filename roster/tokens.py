"""What people type of a token: when it ends, and which tools it is for."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from django.utils import timezone

UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


def parse_end(text: str) -> datetime:
    """`30d`, `12h`, `90m`, `2w` from now, or a date or time such as `2030-01-31`. Raises ValueError with a sentence."""
    if match := re.fullmatch(r"([0-9]{1,5})([mhdw])", text):
        return timezone.now() + int(match[1]) * UNITS[match[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither a time from now such as 30d or 12h, nor a date: 2030-01-31") from None
    return moment if timezone.is_aware(moment) else timezone.make_aware(moment)


def parse_tool(text: str) -> tuple[str, str]:
    """`member/tool`, as two names. Raises ValueError with a sentence."""
    member, slash, tool = text.partition("/")
    if not (member and slash and tool):
        raise ValueError(f"{text!r} is not MEMBER/TOOL, such as notes/add_note")
    return member, tool

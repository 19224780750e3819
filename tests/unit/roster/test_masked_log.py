"""The secrets of invitations are in no line of the log."""

from __future__ import annotations

import logging
from types import TracebackType

from django.conf import settings

from roster.masked_log import MaskingFormatter
from roster.models import Invitation

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


def output(text: str, *args: object, error: Exception | None = None) -> str:
    information: ExcInfo | None = (type(error), error, None) if error else None
    return MaskingFormatter().format(
        logging.LogRecord("guildhall.web", logging.ERROR, "x.py", 1, text, args, information)
    )


def test_a_secret_in_a_message_or_a_traceback_is_masked() -> None:
    secret = Invitation.new_secret()
    lines = [
        output("Internal Server Error: %s", f"/invitations/{secret}/"),
        output(f"{secret} and {secret}"),
        output("oh", error=ValueError(f"no answer for '{secret}'")),
    ]
    assert "/invitations/ghi_…/" in lines[0]
    assert "ghi_… and ghi_…" in lines[1]
    assert "no answer for 'ghi_…'" in lines[2]
    assert not [line for line in lines if secret[8:20] in line]


def test_other_lines_stay_as_they_are() -> None:
    assert output("%s is ready", "notes").endswith("error: notes is ready")


def test_the_hall_logs_with_it() -> None:
    assert settings.LOGGING["formatters"]["line"]["()"] == f"{MaskingFormatter.__module__}.MaskingFormatter"

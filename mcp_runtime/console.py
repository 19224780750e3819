"""One readable log stream: time, who speaks (a part of the hall, or a member), what is said. No Django."""

from __future__ import annotations

import logging
import time

WIDTH = 14


def line(speaker: str, text: str, moment: float | None = None) -> str:
    """`12:00:01 example        | listening on 20000`"""
    return f"{time.strftime('%H:%M:%S', time.localtime(moment))} {speaker:<{WIDTH}} | {text}"


class LineFormatter(logging.Formatter):
    """The last part of the logger's name is the speaker: `guildhall.runtime` says "runtime"."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.levelno >= logging.WARNING:
            text = f"{record.levelname.lower()}: {text}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        speaker = record.name.rsplit(".", 1)[-1]
        return "\n".join(line(speaker, part, record.created) for part in text.splitlines() or [""])

"""One readable log stream: time, who speaks (a part of the hall, or a member), what is said. No Django.

Log records quote members, clients and manifests. Whatever they say, a record is one line and moves no cursor.
"""

from __future__ import annotations

import logging
import re
import time
import traceback
from collections.abc import Iterator

WIDTH = 14
# What a terminal obeys, or what changes the order of what is shown: controls but for the tab, line and paragraph
# separators, bidirectional controls, lone surrogates.
CONTROLS = "\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROL = re.compile(f"[{CONTROLS}]")
_OF_THE_TRACEBACK_ITSELF = re.compile(
    r"[\s|+-]*(File \"|(Exception Group )?Traceback |The above exception was |During handling of the above )"
)


def line(speaker: str, text: str, moment: float | None = None) -> str:
    """`12:00:01 example        | listening on 20000`"""
    return f"{time.strftime('%H:%M:%S', time.localtime(moment))} {speaker:<{WIDTH}} | {visible(text)}"


def visible(text: str) -> str:
    """`text` with its control characters and line breaks as escapes: `\\x1b`, `\\n`, `\\u202e`."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


class LineFormatter(logging.Formatter):
    """The last part of the logger's name is the speaker: `guildhall.runtime` says "runtime"."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.levelno >= logging.WARNING:
            text = f"{record.levelname.lower()}: {text}"
        parts = [text.removesuffix("\n")]
        if record.exc_info and record.exc_info[1]:
            parts += traceback_lines(record.exc_info[1])
        speaker = record.name.rsplit(".", 1)[-1]
        return "\n".join(line(speaker, part, record.created) for part in parts)


def traceback_lines(error: BaseException) -> Iterator[str]:
    """Its traceback, line by line. An exception's own text, which may quote anybody, is one line of it."""
    for part in traceback.TracebackException.from_exception(error).format():
        is_own = _OF_THE_TRACEBACK_ITSELF.match(part)
        yield from part.strip("\n").split("\n") if is_own else [part.removesuffix("\n")]

"""What the bridge writes on stderr, beside the server: its own complaints, and lines that are no messages."""

from __future__ import annotations

import os
import time

NOISE_LINES_PER_SECOND = 20
NOISE_BYTES = 2_000


def write_stderr(line: bytes) -> None:
    try:
        os.write(2, line)
    except OSError:  # nobody reads it any more
        return


def complain(text: str) -> None:
    write_stderr(f"bridge: {text}\n".encode(errors="replace"))


class Noise:
    """What is no message goes where complaints go, so many lines a second."""

    def __init__(self) -> None:
        self._second = 0
        self._lines = 0

    def report(self, line: bytes) -> None:
        second = int(time.monotonic())
        if second != self._second:
            if self._lines > NOISE_LINES_PER_SECOND:
                complain(f"{self._lines - NOISE_LINES_PER_SECOND} more lines on stdout were no messages")
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines <= NOISE_LINES_PER_SECOND:
            write_stderr(line[:NOISE_BYTES].strip() + b"\n")

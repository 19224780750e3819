"""The bridge's output on stderr: its own errors, and lines of the server that are not messages."""

from __future__ import annotations

import os
import time

NOISE_LINES_PER_SECOND = 20
NOISE_BYTES = 2_000


def write_stderr(line: bytes) -> None:
    try:
        os.write(2, line)
    except OSError:  # the reader has closed the pipe
        return


def complain(text: str) -> None:
    write_stderr(f"bridge: {text}\n".encode(errors="replace"))


class Noise:
    """Writes lines that are not messages to stderr, at most NOISE_LINES_PER_SECOND."""

    def __init__(self) -> None:
        self._second = 0
        self._lines = 0

    def report(self, line: bytes) -> None:
        second = int(time.monotonic())
        if second != self._second:
            if self._lines > NOISE_LINES_PER_SECOND:
                complain(f"{self._lines - NOISE_LINES_PER_SECOND} more lines on stdout were not messages")
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines <= NOISE_LINES_PER_SECOND:
            write_stderr(line[:NOISE_BYTES].strip() + b"\n")

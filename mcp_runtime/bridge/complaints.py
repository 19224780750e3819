"""The bridge's output on stderr: its own errors, and lines of the server that are not messages."""

from __future__ import annotations

import os
import time

NOISE_LINES_PER_SECOND = 20
NOISE_BYTES = 2_000
QUOTED_BYTES = 200
NO_ANSWER = "the server did not answer initialize"
NOT_MCP = "not MCP"
NO_NEWLINE = "Its last line on stdout has no newline at its end"


def write_stderr(line: bytes) -> None:
    try:
        os.write(2, line)
    except OSError:  # the reader has closed the pipe
        return


def complain(text: str) -> None:
    write_stderr(f"bridge: {text}\n".encode(errors="replace"))


def _quote(line: bytes) -> str:
    return line[:QUOTED_BYTES].strip().decode("utf-8", "replace")


class Noise:
    """Writes lines that are not for a caller to stderr, at most NOISE_LINES_PER_SECOND."""

    def __init__(self) -> None:
        self._second = 0
        self._lines = 0
        self._stray_lines = 0
        self._first_stray_line = b""

    def take_stray(self, line: bytes) -> None:
        """Report a line on stdout that is not a message."""
        self._stray_lines += 1
        self._first_stray_line = self._first_stray_line or line[:QUOTED_BYTES].strip()
        self.report(line)

    def explain_silence(self, unfinished_line: bytes) -> None:
        """Say what the server wrote to stdout in place of an answer to `initialize`. Call it when it has ended."""
        if self._stray_lines:
            lines = "1 line on stdout was" if self._stray_lines == 1 else f"{self._stray_lines} lines on stdout were"
            complain(f"{NO_ANSWER}. {lines} {NOT_MCP}, the first is: {_quote(self._first_stray_line)}")
        elif unfinished_line.strip():
            complain(f"{NO_ANSWER}. {NO_NEWLINE}: {_quote(unfinished_line)}")

    def report(self, line: bytes) -> None:
        second = int(time.monotonic())
        if second != self._second:
            if self._lines > NOISE_LINES_PER_SECOND:
                complain(f"{self._lines - NOISE_LINES_PER_SECOND} more lines on stdout were not messages")
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines <= NOISE_LINES_PER_SECOND:
            write_stderr(line[:NOISE_BYTES].strip() + b"\n")

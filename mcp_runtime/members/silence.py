"""Detects that a member does not answer, from the calls of clients. It sends no requests itself."""

from __future__ import annotations

import math
import threading
import time


class Silence:
    """Counts calls of one live member that timed out in a row, without an answer since the first of them was sent.

    Callers report their results from any thread. Moments are those of `time.monotonic()`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answered_at = -math.inf
        self.timeouts = 0
        self.began_at = 0.0  # when the first of them was sent

    def note_answer(self) -> None:
        """Note an answer. An error is an answer too."""
        self._answered_at = time.monotonic()
        if self.timeouts:
            with self._lock:
                self.timeouts = 0

    def note_timeout(self, seconds: float) -> None:
        """Note the timeout of a call that was sent `seconds` ago. If another call was answered since, ignore it."""
        sent_at = time.monotonic() - seconds
        with self._lock:
            if self._answered_at > sent_at:
                return
            if not self.timeouts:
                self.began_at = sent_at
            self.timeouts += 1

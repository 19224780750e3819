"""Has a member answered lately? Known from the calls that people make: nothing is asked while nobody calls."""

from __future__ import annotations

import math
import threading
import time


class Silence:
    """Of one live member: calls that timed out in a row, with no answer since the first of them was sent.

    Told by whoever calls it, in any thread; moments are those of `time.monotonic()`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answered_at = -math.inf
        self.timeouts = 0
        self.began_at = 0.0  # when the first of them was sent

    def note_answer(self) -> None:
        """Anything came: an error is an answer too."""
        self._answered_at = time.monotonic()
        if self.timeouts:
            with self._lock:
                self.timeouts = 0

    def note_timeout(self, seconds: float) -> None:
        """A call that was sent so long ago. If another was answered meanwhile, it is that call alone that hangs."""
        sent_at = time.monotonic() - seconds
        with self._lock:
            if self._answered_at > sent_at:
                return
            if not self.timeouts:
                self.began_at = sent_at
            self.timeouts += 1

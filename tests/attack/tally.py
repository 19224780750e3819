"""What an attack tried, and what of it broke a promise."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.attack.hall import Hall


@dataclass
class Tally:
    """Of one attack. `share`: of the whole list or number of tries, so much is wanted (1.0 in the long form)."""

    share: float = 1.0
    tries: int = 0
    broken: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def expect(self, holds: object, otherwise: str) -> None:
        """One try; `otherwise` names the promise that was broken, in the same words for the same kind."""
        with self._lock:
            self.tries += 1
            if not holds:
                self.broken[otherwise[:300]] += 1

    def of(self, number: int, least: int = 1) -> int:
        return max(least, round(number * self.share))


@dataclass(frozen=True)
class Attack:
    """`principal`: who attacks. `promise`: what must hold."""

    name: str
    principal: str
    promise: str
    run: Callable[[Hall, Tally], None]

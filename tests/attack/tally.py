"""The number of tries of an attack, and the promises that it broke."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.attack.hall import Hall


@dataclass
class Tally:
    """The tally of one attack. `share`: the part of the tries that this run makes (1.0 in the long form)."""

    share: float = 1.0
    tries: int = 0
    broken: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def expect(self, holds: object, otherwise: str) -> None:
        """Count one try. `otherwise` names the broken promise, with the same text for the same kind."""
        with self._lock:
            self.tries += 1
            if not holds:
                self.broken[otherwise[:300]] += 1

    def share_of(self, number: int, minimum: int = 1) -> int:
        return max(minimum, round(number * self.share))


@dataclass(frozen=True)
class Attack:
    """`principal`: who attacks. `promise`: what must hold."""

    name: str
    principal: str
    promise: str
    run: Callable[[Hall, Tally], None]

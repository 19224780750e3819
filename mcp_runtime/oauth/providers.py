"""What identity providers of companies say about themselves, remembered in each process, so that an exchange is one
request.

All users of a provider are asked about in the few threads that all members share. So a provider that did not answer is
left alone for a moment, and its next users are told at once.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from mcp_runtime.client.outside import Guard
from mcp_runtime.oauth import discovery
from mcp_runtime.oauth.discovery import AuthorizationServer
from mcp_runtime.protocol.errors import AssertionRefusedError, OAuthError, ServerAwayError

KEEP_SECONDS = 3600.0
AWAY_SECONDS = 3.0
BUSY_SECONDS = 3.0  # for the request of another thread
MAX_PROVIDERS = 100


@dataclass(eq=False)
class _Provider:
    """What is known of one provider. `lock` is that of the thread which asks it about itself."""

    known: tuple[AuthorizationServer | None, float] = (None, -math.inf)  # and when it was read
    away: tuple[str, float] = ("", -math.inf)  # why, and until when
    lock: threading.Lock = field(default_factory=threading.Lock)
    asked_at: float = math.inf  # since when that thread asks

    def metadata(self, issuer: str, guard: Guard) -> AuthorizationServer:
        if (known := self._remembered()) is not None:
            return known
        # Measured from its beginning, so that threads which come later do not wait as long as the first ones.
        left = min(self.asked_at + BUSY_SECONDS - time.monotonic(), BUSY_SECONDS)
        if not self.lock.acquire(timeout=max(left, 0.0)):
            raise ServerAwayError(f"{issuer!r} is slow at the moment; try again in a moment")
        self.asked_at = time.monotonic()
        try:
            if (known := self._remembered()) is None:
                known = discovery.identity_provider(issuer, "", guard)
                self.known = (known, time.monotonic())
            return known
        except ServerAwayError as error:
            self.note(error)
            raise
        finally:
            self.asked_at = math.inf
            self.lock.release()

    def _remembered(self) -> AuthorizationServer | None:
        """Raises ServerAwayError if it did not answer a moment ago."""
        now, (reason, until), (known, read_at) = time.monotonic(), self.away, self.known
        if now < until:
            raise ServerAwayError(reason)
        return known if now < read_at + KEEP_SECONDS else None

    def note(self, error: OAuthError) -> None:
        """Ask it about itself again after a failure, because it may have moved."""
        self.known = (None, -math.inf)
        if isinstance(error, ServerAwayError) and time.monotonic() >= self.away[1]:
            self.away = (str(error), time.monotonic() + AWAY_SECONDS)


known_providers: OrderedDict[str, _Provider] = OrderedDict()
_lock = threading.Lock()


@contextmanager
def asked(issuer: str, guard: Guard) -> Iterator[AuthorizationServer]:
    """The provider, to which the block sends one request. It has no resource yet.

    Raises OAuthError, and ServerAwayError also if the request of another thread had no answer a moment ago.
    """
    provider = provider_of(issuer)
    server = provider.metadata(issuer, guard)
    try:
        yield server
    except AssertionRefusedError:
        raise
    except OAuthError as error:
        provider.note(error)
        raise


def forget() -> None:
    """Forget what all providers said. For tests."""
    with _lock:
        known_providers.clear()


def provider_of(issuer: str) -> _Provider:
    """What this process knows of an issuer. It forgets the ones that were used longest ago."""
    with _lock:
        provider = known_providers.setdefault(issuer, _Provider())
        known_providers.move_to_end(issuer)
        while len(known_providers) > MAX_PROVIDERS:
            known_providers.popitem(last=False)
        return provider

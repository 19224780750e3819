"""Access control. Principals are cached by token until their permissions may have changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from functools import partial

from django.db import connection

from mcp_runtime.gateway.outside_tokens import OutsideTokens
from mcp_runtime.protocol.errors import TokenError
from mcp_runtime.rows.changes import SqliteChanges
from mcp_runtime.rows.database import unit_of_work
from mcp_runtime.security import passes, principals, resources
from mcp_runtime.security.access import Principal

MAX_PRINCIPALS = 10_000
# How soon a change of permissions is noticed. On SQLite the check asks whether any process wrote to the database. Other
# databases are asked for the version of the permissions.
LOOK_SECONDS = 0.2
QUERY_SECONDS = 0.25
# The version misses some changes (QuerySet.update, plain SQL). Therefore cached principals are also compared with the
# rows: every COMPARE_SECONDS after a write, and every COMPARE_IDLE_SECONDS without one. COMPARE_PAUSE limits the
# comparisons to a twentieth of a processor.
COMPARE_SECONDS = 1.0
COMPARE_IDLE_SECONDS = 10.0
COMPARE_PAUSE = 20
MISSING = (
    "No token: send Authorization: Bearer gh_... "
    "(guildhall create_token creates one; the file local-token in the hall's data folder contains one)."
)


class Principals:
    """A cache of principals by token.

    Call `forget()` when `principals.version()` or one of `cached_principals()` has changed.
    """

    def __init__(self) -> None:
        self._cache: dict[bytes, Principal] = {}
        self._outside = OutsideTokens()
        self._age = 0

    def forget(self) -> None:
        self._cache.clear()
        self._outside.forget_principals()
        self._age += 1

    def cached_principals(self) -> list[Principal]:
        """Return all cached principals. Any thread may call this."""
        return [*self._cache.values(), *self._outside.cached_principals()]

    async def principal(self, authorization: bytes | None) -> Principal:
        """Return the principal of this Authorization header. Raise TokenError if there is none."""
        if authorization is None:
            raise TokenError(MISSING)
        principal = self._cache.get(authorization)
        if principal is None or principal.is_expired:
            principal = await self._look_up(authorization)
        return principal

    async def _look_up(self, authorization: bytes) -> Principal:
        scheme, _, token = authorization.decode("latin-1").strip().partition(" ")
        if scheme.lower() == passes.SCHEME:  # each is for one request, so it is not cached
            look_up = partial(passes.principal_of, token.strip())
            return await asyncio.get_running_loop().run_in_executor(None, unit_of_work, look_up)
        if scheme.lower() not in ("bearer", "token") or not token.strip():
            raise TokenError(MISSING)
        if resources.may_be_outside_token(token):
            return await self._outside.principal(token.strip())
        age = self._age
        look = principals.principal_of_token
        principal = await asyncio.get_running_loop().run_in_executor(
            None, lambda: unit_of_work(lambda: look(token.strip()))
        )
        if age == self._age:  # otherwise it may have been read before a change
            if len(self._cache) >= MAX_PRINCIPALS:
                self._cache.clear()
            self._cache[authorization] = principal
        return principal


class AccessWatch:
    """Notices changes of the permissions of cached principals. Only one thread at a time may use it."""

    def __init__(self, cached_principals: Callable[[], Collection[Principal]]) -> None:
        self._cached_principals = cached_principals
        is_sqlite = connection.vendor == "sqlite"
        self._changes = SqliteChanges(str(connection.settings_dict["NAME"])) if is_sqlite else None
        self.seconds = LOOK_SECONDS if is_sqlite else QUERY_SECONDS  # between two checks
        self._version: str | None = None
        self._is_read = self._is_compared = False  # since the last write
        self._compared_at = self._compare_at = 0.0

    def look(self) -> bool:
        """Return whether all principals must be read again. After an error, the next call tries again."""
        if self._changes is None or self._version is None or self._changes.look():
            self._is_read = self._is_compared = False
        if not self._is_read:
            version = unit_of_work(principals.version)
            self._is_read, is_same, self._version = True, version == self._version, version
            if not is_same:
                return True
        return self._is_due(time.monotonic()) and self._are_outdated()

    def _is_due(self, now: float) -> bool:
        # Also compare without a write: a principal may have been read before the last change and cached after it.
        return now >= (self._compared_at + COMPARE_IDLE_SECONDS if self._is_compared else self._compare_at)

    def _are_outdated(self) -> bool:
        started_at = time.thread_time()
        is_outdated = unit_of_work(lambda: principals.are_outdated(self._cached_principals()))
        pause = max(COMPARE_SECONDS, COMPARE_PAUSE * (time.thread_time() - started_at))
        self._is_compared, self._compared_at = not is_outdated, time.monotonic()
        self._compare_at = self._compared_at + pause
        return is_outdated

    def close(self) -> None:
        if self._changes is not None:
            self._changes.close()

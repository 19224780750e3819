"""Who may come in: tokens, kept in memory until anything changes that decides; Host and Origin; how much at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from django.http.request import split_domain_port, validate_host

from mcp_runtime import access
from mcp_runtime.access import Principal
from mcp_runtime.database import unit_of_work
from mcp_runtime.errors import TokenError

MAX_KEPT = 10_000
MAX_PORT, MAX_PORT_DIGITS = 65_535, 5
MISSING = (
    "No token: send Authorization: Bearer gh_... "
    "(manage.py create_token makes one; the hall's data folder has one in local-token)."
)


class Callers:
    """Principals by token. `forget()` whenever access.version() is another."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Principal] = {}
        self._age = 0

    def forget(self) -> None:
        self._kept.clear()
        self._age += 1

    async def principal(self, authorization: bytes | None) -> Principal:
        """Who sends this Authorization header. Raises TokenError."""
        if authorization is None:
            raise TokenError(MISSING)
        kept = self._kept.get(authorization)
        if kept is None or kept.is_expired:
            kept = await self._look(authorization)
        return kept

    async def _look(self, authorization: bytes) -> Principal:
        scheme, _, token = authorization.decode("latin-1").strip().partition(" ")
        if scheme.lower() not in ("bearer", "token") or not token.strip():
            raise TokenError(MISSING)
        age = self._age
        look = access.principal_of_token
        found = await asyncio.get_running_loop().run_in_executor(
            None, lambda: unit_of_work(lambda: look(token.strip()))
        )
        if age == self._age:  # else it may have been read before the change
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[authorization] = found
        return found


class Origins:
    """Which pages may ask: none but the hall's own, and those that the operator trusts (REQ-MCP-HTTP-31)."""

    def __init__(self, allowed_hosts: Collection[str], trusted_origins: Collection[str]) -> None:
        self._allowed_hosts = list(allowed_hosts)
        self._trusted = set(trusted_origins)
        self._good_hosts: set[bytes] = set()

    def fault(self, headers: Mapping[bytes, bytes]) -> str:
        """Why the request is refused with 403; empty when it is not."""
        host = headers.get(b"host", b"")
        if host not in self._good_hosts and (fault := self._host_fault(host)):
            return fault
        origin = headers.get(b"origin")
        if origin is not None and not self._is_ours(origin.decode("latin-1"), host.decode("latin-1")):
            return f"Origin {origin.decode('latin-1')[:100]!r} is not allowed here (GUILD_HALL_TRUSTED_ORIGINS)."
        if origin is None and headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
            return "A page of another site may not ask here."
        return ""

    def _host_fault(self, host: bytes) -> str:
        text = host.decode("latin-1")
        domain, port = split_domain_port(text)
        is_port = not port or (len(port) <= MAX_PORT_DIGITS and 1 <= int(port) <= MAX_PORT)
        if not domain or not is_port or not validate_host(domain, self._allowed_hosts):
            return f"Host {text[:100]!r} is not one of the hall's (GUILD_HALL_ALLOWED_HOSTS)."
        if len(self._good_hosts) < 100:
            self._good_hosts.add(host)
        return ""

    def _is_ours(self, origin: str, host: str) -> bool:
        if origin in self._trusted:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower() and not parts.path

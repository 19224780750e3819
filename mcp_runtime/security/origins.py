"""The hosts of the hall, and the pages that may send requests to it, for web and gateway (REQ-MCP-HTTP-31)."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from django.http.request import split_domain_port, validate_host

MAX_PORT, MAX_PORT_DIGITS = 65_535, 5
MAX_GOOD_HOSTS = 100
OTHER_SITES = ("cross-site", "same-site")  # for browsers, other ports of this machine are the same site


class Origins:
    """Accepts only the hall's own pages, and those that the operator trusts."""

    def __init__(self, allowed_hosts: Collection[str], trusted_origins: Collection[str]) -> None:
        self._allowed_hosts = list(allowed_hosts)
        self._trusted = set(trusted_origins)
        self._good_hosts: set[str] = set()

    def fault(self, host: str, origin: str | None, fetch_site: str | None) -> str:
        """Why the request is refused with 403. Empty if it is accepted. `fetch_site` is the header Sec-Fetch-Site.

        A request without Origin does not come from a page, or it is a link that somebody followed, or a page of another
        site loads it as an image or a script. In the last case browsers set `fetch_site`.
        """
        if host not in self._good_hosts and not self._is_good(host):
            return host_fault(host)
        if origin is not None and not self._is_ours(origin, host):
            return f"Origin {origin[:100]!r} is not allowed here (GUILD_HALL_TRUSTED_ORIGINS)."
        if origin is None and fetch_site in OTHER_SITES:
            return "A page of another site may not send requests here."
        return ""

    def _is_good(self, host: str) -> bool:
        domain, port = split_domain_port(host)
        is_port = not port or (len(port) <= MAX_PORT_DIGITS and 1 <= int(port) <= MAX_PORT)
        if not domain or not is_port or not validate_host(domain, self._allowed_hosts):
            return False
        if len(self._good_hosts) < MAX_GOOD_HOSTS:
            self._good_hosts.add(host)
        return True

    def _is_ours(self, origin: str, host: str) -> bool:
        if origin in self._trusted:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower() and not parts.path


def host_fault(host: str) -> str:
    return f"Host {host[:100]!r} is not one of the hall's (GUILD_HALL_ALLOWED_HOSTS)."

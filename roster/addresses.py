"""The addresses of the hall that it shows to people. They never come from the headers of a request."""

from __future__ import annotations

from django.conf import settings


def own_address(port: int) -> str:
    """An address of a port of this hall, for programs and browsers on its machine."""
    host = settings.GUILD_HALL_HOST
    host = "localhost" if host in ("127.0.0.1", "0.0.0.0", "::1", "::") else host  # noqa: S104 - shown, not bound
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def web_address() -> str:
    """Where people reach the web, without a slash at the end."""
    return str(settings.GUILD_HALL_WEB_URL) or own_address(settings.GUILD_HALL_PORT)

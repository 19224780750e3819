"""The addresses of the gateway as resources of OAuth (RFC 8707, RFC 9728). They come from settings, never from headers.

A resource is an address of the gateway, without a query. In rows and principals it is a path without a slash at its
end. It says nothing about whether there is such a member or tool set, so nobody learns the names of others from it.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from django.conf import settings

WHOLE_GATEWAY = "/mcp"
SCOPE = "mcp"  # the one scope of the hall. What a grant includes is in its row
METADATA = "/.well-known/oauth-protected-resource"
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_PATH = re.compile(rf"/mcp(/{_NAME})?|/(sets|agents)/{_NAME}/mcp")


def own_address(port: int) -> str:
    """An address of a port of this hall, for programs and browsers on its machine."""
    host = settings.GUILD_HALL_HOST
    host = "localhost" if host in ("127.0.0.1", "0.0.0.0", "::1", "::") else host  # noqa: S104 - shown, not bound
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def web_address() -> str:
    """Where people reach the web, without a slash at the end. Unless there is an outside issuer, it is the issuer."""
    return str(settings.GUILD_HALL_WEB_URL) or own_address(settings.GUILD_HALL_PORT)


def gateway_address() -> str:
    """Where clients reach the gateway, without a slash at the end."""
    return str(settings.GUILD_HALL_GATEWAY_URL) or own_address(settings.GUILD_HALL_GATEWAY_PORT)


def is_sign_in_on() -> bool:
    """Whether clients can sign in. Codes and tokens travel only with TLS, or inside one machine."""
    addresses = (gateway_address(),) if outside_issuer() else (web_address(), gateway_address())
    return bool(settings.GUILD_HALL_SIGN_IN) and all(map(_is_safe, addresses))


def is_own_sign_in_on() -> bool:
    """Whether they sign in at the hall itself."""
    return is_sign_in_on() and not outside_issuer()


def outside_issuer() -> str:
    """The authorization server that the operator named in place of the hall. Empty if there is none."""
    return str(settings.GUILD_HALL_SIGN_IN_ISSUER)


def authorization_server() -> str:
    """The issuer of access tokens for the gateway."""
    return outside_issuer() or web_address()


def scopes() -> list[str]:
    """The scopes for which clients ask there."""
    return [scope for scope, _ in settings.GUILD_HALL_SIGN_IN_SCOPES] if outside_issuer() else [SCOPE]


def may_be_outside_token(text: str) -> bool:
    """Whether a text can be a token of the outside issuer. Those of the hall have no dots."""
    return "." in text and bool(outside_issuer())


def _is_safe(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme == "https" or parts.netloc.rpartition(":")[0] in LOOPBACK or parts.netloc in LOOPBACK


def gateway_addresses() -> tuple[str, ...]:
    """All that clients may call the gateway. Without a setting, these are its names on its own machine too."""
    address = gateway_address()
    if settings.GUILD_HALL_GATEWAY_URL or not _is_safe(address):
        return (address,)
    others = (f"http://{host}:{settings.GUILD_HALL_GATEWAY_PORT}" for host in LOOPBACK)
    return (address, *(other for other in others if other != address))


def path_of(resource: str) -> str | None:
    """The path of a resource that is an address of this gateway. None for any other text."""
    for address in gateway_addresses():
        if resource in (address, f"{address}/"):
            return WHOLE_GATEWAY
        if resource.startswith(f"{address}/"):
            return normal_path(resource.removeprefix(address))
    return None


def normal_path(path: str) -> str | None:
    """The path without a slash at its end. None if no address of the gateway has this form."""
    path = path.removesuffix("/")
    return path if _PATH.fullmatch(path) else None


def covers(resource: str, path: str) -> bool:
    """Whether a principal with this resource may use the path. A token of a person has none, and may use each path."""
    return resource in ("", WHOLE_GATEWAY) or path.removesuffix("/") == resource


def metadata_of(path: str, host: str) -> dict[str, object]:
    """The protected-resource metadata of a normal path (RFC 9728)."""
    return {
        "resource": f"{_address_for(host)}{path}",
        "authorization_servers": [authorization_server()],
        "scopes_supported": scopes(),
        "bearer_methods_supported": ["header"],
        "resource_name": "Guild Hall",
    }


def challenge_of(path: str, host: str) -> str:
    """The parameters of WWW-Authenticate that tell a client how to sign in. Empty if it cannot."""
    normal = normal_path(path) or WHOLE_GATEWAY
    if not is_sign_in_on():
        return ""
    # Below a prefix of the address, if it has one, because a proxy sends only that to the gateway.
    return f'resource_metadata="{_address_for(host)}{METADATA}{normal}", scope="{" ".join(scopes())}"'


def _address_for(host: str) -> str:
    """The one of the gateway's addresses that the client used. The header only chooses among them."""
    for address in gateway_addresses():
        if urlsplit(address).netloc == host:
            return address
    return gateway_address()

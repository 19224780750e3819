"""A remote server: which url is allowed, and which headers it gets. The headers may contain references to secrets."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from urllib.parse import urlsplit

from mcp_runtime.secrets.references import HEADER_VALUE, HINT, KINDS, MAX_HEADER_VALUE, REFERENCE, reference_fault

MAX_URL = 2048
MAX_HEADERS = 100
MAX_NAME = 200

URL = re.compile(
    r"https?://([A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?"
    r"(/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?(\?[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*)?"
)
# Everybody who may see the roster sees the url, so it must not contain a secret.
SECRET_IN_QUERY = re.compile(r"(?i)[?&;][^=&;]*(token|secret|key|password|credential|auth|sig|signature)(=|&|;|$)")

NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110: token
# The client sets these, or the connection depends on them.
RESERVED = re.compile(
    r"(?i)host|content-length|content-type|content-encoding|accept|accept-encoding|user-agent|mcp-.*|connection"
    r"|keep-alive|proxy-connection|transfer-encoding|te|trailer|upgrade|expect"
)
SECRET_NAME = re.compile(
    r"(?i)^authorization$|^proxy-authorization$|^cookie$|auth$|token|secret|key|password|credential"
)


# The url ----------------------------------------------------------------------------------------------------------


def url_fault(url: str) -> str:
    """Why it cannot be a server's address. Empty if it can."""
    authority = re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)[0]
    if "${" in url:
        return "nothing is filled in here: there is no port to give, and a secret belongs into headers"
    if "@" in authority:
        return "must not hold a user or a password, for everybody sees it; send them in headers"
    if not URL.fullmatch(url):
        return "must be an address such as https://host/path: http or https, ASCII, no fragment"
    try:
        _ = ipaddress.ip_address(_host(url)) if "[" in authority else None
        if urlsplit(url).port == 0:
            return "port 0 is none"
    except ValueError as error:
        return f"is not an address: {error}"
    if SECRET_IN_QUERY.search(url):
        return "its query seems to hold a secret, and everybody sees it; send it in headers"
    return ""


def plain_http_fault(url: str, allowed_hosts: Collection[str]) -> str:
    """Why it may not be called without TLS. Empty if it may, or if it uses TLS."""
    host = _host(url)
    if (
        not url.startswith("http://")
        or _is_loopback(host)
        or any(_is_named(host, name.lower()) for name in allowed_hosts)
    ):
        return ""
    return (
        f"{host} is another machine, and http shows it to everybody on the way: use https, "
        f"or let GUILD_HALL_PLAIN_HTTP_HOSTS name it"
    )


def _is_named(host: str, name: str) -> bool:
    return host == name.strip("[]") or (name.startswith(".") and host.endswith(name))


def _host(url: str) -> str:
    return (urlsplit(url).hostname or "").rstrip(".")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def display_url(url: str) -> str:
    """The url without its query, which often identifies the hall."""
    return url.partition("?")[0]


# Headers ----------------------------------------------------------------------------------------------------------


def header_fault(name: str, value: str) -> str:
    """Why the header cannot be sent, or should not be in a manifest. Empty if nothing is wrong."""
    if not NAME.fullmatch(name) or len(name) > MAX_NAME:
        return "is not a name for a header"
    if RESERVED.fullmatch(name):
        return "is a header that the hall itself sends"
    if not HEADER_VALUE.fullmatch(value) or len(value) > MAX_HEADER_VALUE:
        return f"must be one line of visible ASCII, at most {MAX_HEADER_VALUE:,} characters, no space at either end"
    if "${" in REFERENCE.sub("\0", value):
        return f"only {KINDS} are filled in"
    if fault := reference_fault(value):
        return fault
    if SECRET_NAME.search(name) and not REFERENCE.search(value):
        return f"holds a secret in clear; {HINT}"
    return ""

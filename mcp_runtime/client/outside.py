"""Requests to addresses that a document or a setting names, through one guard against server-side request forgery.

Whoever writes the document could let the hall ask a service of its own machine or network. So the guard refuses such
addresses when the connection begins, so that no name can have another address between the check and the connection.
There are no redirects, cookies and proxies, and each request has one deadline and one limit of bytes.
"""

from __future__ import annotations

import ipaddress
import json
import math
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast
from urllib.parse import urlencode, urlsplit

import requests
from urllib3.util import Timeout

from mcp_runtime.client.bulkheads import Bulkheads, Turn
from mcp_runtime.client.exchanges import (
    CONNECT_TIMEOUT,
    Adapter,
    Exchange,
    enter_exchange,
    leave_exchange,
    look_up,
)
from mcp_runtime.client.remote import plain_http_fault
from mcp_runtime.client.transport import translate_errors
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import ConnectError, ProtocolError

TIMEOUT = 10.0  # seconds of one request, with the look-up of the host's name
MAX_BYTES = 256_000
MAX_URL = 2048
LOOK_UP_SECONDS = 3.0
BUSY_SECONDS = 3.0  # of the deadline, in which other requests may end
# Slow servers must not take all threads of the process.
at_once = threading.BoundedSemaphore(8)
open_requests = Bulkheads()  # and one of them not those of the others
_total = threading.local()  # the deadline of several requests of a thread


class Place(StrEnum):
    """Where an address leads."""

    PUBLIC = "public"
    PRIVATE = "private"  # in the network of the hall
    LOOPBACK = "loopback"  # on the machine of the hall
    NOWHERE = "nowhere"  # link-local, such as the metadata of a cloud, and what no server has

    @classmethod
    def of(cls, address: str) -> Place:
        ip = ipaddress.ip_address(address.partition("%")[0])
        if isinstance(ip, ipaddress.IPv6Address):
            ip = ip.ipv4_mapped or ip.sixtofour or ip
        if ip.is_loopback:
            return cls.LOOPBACK
        if ip.is_unspecified or ip.is_multicast or ip.is_link_local or ip.is_reserved:
            return cls.NOWHERE
        return cls.PUBLIC if ip.is_global else cls.PRIVATE


@dataclass(frozen=True)
class Guard:
    """The addresses that may be asked: those in `places`, and those of the host and port of `trusted_url`.

    An operator chose that url, so the hall asks it anyway.
    """

    places: Collection[Place] = (Place.PUBLIC,)
    trusted_url: str = ""
    plain_http_hosts: Collection[str] = ()

    @classmethod
    def near(cls, url: str, plain_http_hosts: Collection[str] = ()) -> Guard:
        """The guard for documents of the server at `url`: they may name what is public, and what is where it is.

        A name never makes loopback addresses allowed, because the owner of a name decides on its addresses.
        """
        host = (urlsplit(url).hostname or "").rstrip(".")
        places = {Place.PUBLIC, *_places_of(host)} - {Place.NOWHERE}
        return cls(tuple(sorted(places)), url, plain_http_hosts)

    def fault(self, url: str) -> str:
        """Why the address may not be asked, as far as its text says that. Empty if it may."""
        try:
            parts = urlsplit(url)
            is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            return "it is not an address"
        if not is_usable or len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
            return "it is not an address of http or https"
        if "@" in parts.netloc or parts.fragment or "\\" in url:
            return "it has a user, a fragment or a backslash"
        if not self._may_name(parts.hostname or "", url):
            return "it is on the machine or in the network of the hall, or nowhere"
        return plain_http_fault(url, self.plain_http_hosts)

    def _may_name(self, host: str, url: str) -> bool:
        """Whether a host that is written as an address may be asked. Browsers are led to such addresses too."""
        try:
            place = Place.LOOPBACK if host.rstrip(".") == "localhost" else Place.of(host)
        except ValueError:
            return True  # a name, whose addresses are checked when the connection begins
        return place in self.places or origin_of(url) == origin_of(self.trusted_url)

    def require_address(self, address: str, url: str) -> None:
        """Raise OSError if the connection may not lead there."""
        place = Place.of(address)
        if place not in self.places and origin_of(url) != origin_of(self.trusted_url):
            raise OSError(f"{urlsplit(url).hostname} has the address {address}, which may not be asked")


def _places_of(host: str) -> set[Place]:
    try:
        return {Place.of(host)}
    except ValueError:
        if host == "localhost":
            return {Place.LOOPBACK}
    try:
        addresses = look_up(host, 443, LOOK_UP_SECONDS)
    except OSError:  # also TimeoutError. The request itself says more
        return set()
    return {Place.of(address[4][0]) for address in addresses} - {Place.LOOPBACK}


def origin_of(url: str) -> str:
    """Scheme, host and port, as they are compared. Empty if it is no address."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.hostname}:{port}" if parts.hostname else ""


@dataclass(frozen=True)
class OutsideAnswer:
    """The status, the headers and the body of an answer. Its body may have secrets, so it is in no representation."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    def json_object(self) -> dict[str, Any] | None:
        """The body as a JSON object. None if it is something else."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


def ask(
    url: str,
    guard: Guard,
    *,
    form: Mapping[str, str] | None = None,
    document: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    secrets: Collection[str] = (),
    seconds: float = TIMEOUT,
    max_bytes: int = MAX_BYTES,
) -> OutsideAnswer:
    """Send one request: a GET, or a POST of a form or of a JSON document. Raises ClientError, with `secrets` masked.

    It takes `seconds` at most, also if too many servers are asked at the same time, and not longer than `in_total`.
    While a host does not answer, only a few requests wait for it, and the others fail at once.
    """
    if fault := guard.fault(url):
        raise ConnectError(f"{url[:200]!r} may not be asked: {fault}", is_refusal=True)
    request = _request(url, form, document, headers or {})
    deadline = min(time.monotonic() + seconds, getattr(_total, "deadline", math.inf))
    if deadline <= time.monotonic():
        raise ConnectError("the requests before this one took too long", is_refusal=True)
    with open_requests.turn(origin_of(url), deadline) as turn:
        return _send(url, request, guard, deadline, turn, secrets, max_bytes)


def _send(
    url: str,
    request: requests.PreparedRequest,
    guard: Guard,
    deadline: float,
    turn: Turn,
    secrets: Collection[str],
    max_bytes: int,
) -> OutsideAnswer:
    seconds = max(deadline - time.monotonic(), 0.0)
    if not at_once.acquire(timeout=min(BUSY_SECONDS, seconds / 2)):
        raise ConnectError("too many servers are asked at the same time; try again in a moment", is_refusal=True)
    turn.sent_at = time.monotonic()
    exchange = Exchange(require_address=lambda address: guard.require_address(address, url))
    previous = enter_exchange(exchange)
    adapter = Adapter(is_tls=url.startswith("https:"), pool_connections=1, pool_maxsize=1, max_retries=0)
    response = None
    try:
        if (left := deadline - time.monotonic()) <= 0:
            raise ConnectError("the wait for other requests took all of the time; try again soon", is_refusal=True)
        exchange.begin(None, left)
        with translate_errors(seconds, exchange, secrets):
            timeouts = Timeout(connect=min(CONNECT_TIMEOUT, left), total=left)
            response = adapter.send(request, stream=True, timeout=cast(Any, timeouts))
            exchange.expect_body(max_bytes)
            body: bytes = response.raw.read(max_bytes + 1) or b""
            if len(body) > max_bytes:
                raise ProtocolError(f"the answer is larger than {max_bytes:,} bytes")
            return OutsideAnswer(response.status_code, response.headers, body)
    finally:
        leave_exchange(previous)
        exchange.detach()
        if response is not None and not response.raw.closed:
            response.close()  # the body was not read to its end
        adapter.close()
        at_once.release()


@contextmanager
def in_total(seconds: float) -> Iterator[None]:
    """Let all requests of this thread in the block end within `seconds` from now, however many they are."""
    outer = getattr(_total, "deadline", math.inf)
    _total.deadline = min(time.monotonic() + seconds, outer)
    try:
        yield
    finally:
        _total.deadline = outer


def _request(
    url: str, form: Mapping[str, str] | None, document: Mapping[str, Any] | None, headers: Mapping[str, str]
) -> requests.PreparedRequest:
    body: str | None = None
    own = {"Accept": mcp.JSON, "Accept-Encoding": "identity", "User-Agent": f"{mcp.HALL_NAME}/{mcp.HALL_VERSION}"}
    if form is not None:
        body = urlencode(form)
        own["Content-Type"] = "application/x-www-form-urlencoded"
    elif document is not None:
        body = json.dumps(document)
        own["Content-Type"] = mcp.JSON
    return requests.Request("GET" if body is None else "POST", url, {**own, **headers}, data=body).prepare()

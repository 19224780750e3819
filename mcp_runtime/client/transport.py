"""Sends HTTP requests to one server, and translates all errors of the libraries below."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import requests
import urllib3
from requests.structures import CaseInsensitiveDict
from urllib3.exceptions import NewConnectionError
from urllib3.util import Timeout

from mcp_runtime.client import quick_json
from mcp_runtime.client.bearer import NONCE_HEADER, Bearer
from mcp_runtime.client.exchanges import (
    CLOSED_EARLY,
    CONNECT_TIMEOUT,
    Adapter,
    Exchange,
    enter_exchange,
    leave_exchange,
)
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import (
    ClientError,
    ConnectError,
    ProtocolError,
    RemoteError,
    RequestCancelledError,
    RequestTimeoutError,
    TransportError,
)
from mcp_runtime.secrets import references
from mcp_runtime.system import console

MAX_QUOTED = 300  # characters of an invalid response that an error quotes


class Transport:
    """Sends requests to one server, each with `headers`. A response may have at most `max_bytes` bytes."""

    def __init__(
        self,
        url: str,
        *,
        connections: int,
        max_bytes: int,
        headers: references.Resolved,
        ca: Path | None = None,
        bearer: Bearer | None = None,
    ) -> None:
        self.url = requests.Request("POST", url).prepare().url or url
        self.max_bytes = max_bytes
        self.headers = headers
        self.bearer = bearer or Bearer()
        self._adapter = Adapter(
            is_tls=url.startswith("https:"), ca=ca, pool_connections=1, pool_maxsize=connections, max_retries=0
        )

    @property
    def secrets(self) -> tuple[str, ...]:
        """What errors must not show."""
        return (*self.headers.secrets, *self.bearer.secrets)

    def close(self) -> None:
        self._adapter.close()

    @contextlib.contextmanager
    def send(
        self,
        method: str,
        timeout: float,
        exchange: Exchange,
        headers: Mapping[str, str],
        message: dict[str, Any] | None = None,
    ) -> Iterator[requests.Response]:
        """Send one request, and yield the response before its body is read. Raises ClientError."""
        body = None if message is None else quick_json.encode(message)
        request = self._prepare(method, {**self._headers(method, exchange), **headers}, body)
        timeouts = Timeout(connect=min(CONNECT_TIMEOUT, timeout), total=timeout)
        response = None
        previous = enter_exchange(exchange)
        try:
            with translate_errors(timeout, exchange, self.secrets):
                # requests.Session.send needs three times the CPU, and adds cookies, proxies, netrc and redirects.
                response = self._adapter.send(request, stream=True, timeout=cast(Any, timeouts))
                exchange.expect_body(self.max_bytes)
                exchange.nonce = self.bearer.note_nonce(response.headers.get(NONCE_HEADER))
                yield response
        except ClientError as error:
            error.was_sent = exchange.is_sent
            raise
        finally:
            leave_exchange(previous)
            exchange.detach()
            if response is not None and not response.raw.closed:
                response.close()  # the body was not read to its end, so the connection cannot be used again

    def read_body(self, response: requests.Response) -> bytes:
        """Read the whole body. Raises ProtocolError if it is too large."""
        body: bytes = response.raw.read(self.max_bytes + 1) or b""
        if len(body) > self.max_bytes:
            raise ProtocolError(f"the response is larger than {self.max_bytes:,} bytes")
        if response.raw.length_remaining:  # incomplete. A read with a limit raises no error for this
            raise ConnectError(CLOSED_EARLY)
        return body

    def _prepare(self, method: str, headers: Mapping[str, str], body: bytes | None) -> requests.PreparedRequest:
        # `requests.Request.prepare` parses the URL again for each request, which is a fifth of the CPU time of a call.
        request = requests.PreparedRequest()
        request.method, request.url, request.body, request.hooks = method, self.url, body, {"response": []}
        length = {} if body is None else {"Content-Length": str(len(body))}
        request.headers = CaseInsensitiveDict({**headers, **length})
        return request

    def _headers(self, method: str, exchange: Exchange) -> dict[str, str]:
        session = exchange.session
        headers = {
            **self.headers.values,
            "Accept": f"{mcp.JSON}, {mcp.EVENT_STREAM}",
            "Accept-Encoding": "identity",
            "Content-Type": mcp.JSON,
            "User-Agent": f"{mcp.HALL_NAME}/{mcp.HALL_VERSION}",
            mcp.VERSION_HEADER: session.version,
        }
        headers |= self.bearer.headers(method, self.url, exchange.nonce)
        if session.id:
            headers[mcp.SESSION_HEADER] = session.id
        return headers


def time_left(deadline: float) -> float:
    """Return the seconds until `deadline`. It is never zero, so that it can be a timeout."""
    return round(max(0.001, deadline - time.monotonic()), 3)


# Errors --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def translate_errors(timeout: float, exchange: Exchange, secrets: Collection[str]) -> Iterator[None]:
    """Convert errors of requests, urllib3 and sockets to ClientErrors. No other code handles their errors."""
    try:
        yield
    except ClientError as error:
        if exchange.is_aborted:
            raise RequestCancelledError from None
        _mask(error, secrets)
        raise
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        if exchange.is_aborted:
            raise RequestCancelledError from error
        raise _translate(error, timeout) from error


def _mask(error: ClientError, secrets: Collection[str]) -> None:
    """Mask secrets in an error.

    The hall logs, stores and shows errors. An error may contain the server's text, and this may quote the headers that
    the hall sent.
    """
    if secrets:
        error.args = tuple(_mask_value(value, secrets) for value in error.args)
        if isinstance(error, RemoteError):
            error.message = references.mask_secrets(error.message, secrets)
            error.data = _mask_value(error.data, secrets)


def _mask_value(value: Any, secrets: Collection[str]) -> Any:
    if isinstance(value, str):
        return references.mask_secrets(value, secrets)
    if isinstance(value, list):
        return [_mask_value(part, secrets) for part in value]
    if isinstance(value, dict):
        return {_mask_value(key, secrets): _mask_value(part, secrets) for key, part in value.items()}
    return value


def _translate(error: Exception, timeout: float) -> TransportError | ProtocolError:
    chain = list(_causes(error))
    if any(isinstance(e, ConnectionRefusedError) for e in chain):
        return ConnectError("connection refused", is_refusal=True)
    # This check is before the check of timeouts, because urllib3's NameResolutionError is a timeout.
    if lookup_errors := [e for e in chain if isinstance(e, socket.gaierror)]:
        return ConnectError(f"its host name cannot be looked up: {lookup_errors[0].strerror or lookup_errors[0]}")
    if any(isinstance(e, NewConnectionError) for e in chain):
        return ConnectError(f"no connection: {chain[-1]}")
    if any(isinstance(e, (requests.ConnectTimeout, urllib3.exceptions.ConnectTimeoutError)) for e in chain):
        return ConnectError(f"no connection within {min(CONNECT_TIMEOUT, timeout):g} s")
    timeouts = (requests.ReadTimeout, urllib3.exceptions.ReadTimeoutError, TimeoutError)
    if any(isinstance(e, timeouts) for e in chain):
        return RequestTimeoutError(timeout)
    for cause in chain:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ConnectError(f"its certificate is not trusted: {cause.verify_message}")
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return ConnectError(f"TLS failed: {(cause.reason or str(cause)).replace('_', ' ').lower()}")
    # urllib3 has a class IncompleteRead. The standard library raises another class of this name for a body in chunks.
    broken = (ConnectionError, ssl.SSLError, urllib3.exceptions.IncompleteRead, http.client.IncompleteRead)
    if any(isinstance(e, broken) for e in chain):
        return ConnectError(CLOSED_EARLY)
    # Libraries quote the member's bytes, which may include line breaks and escape sequences.
    return ProtocolError(f"did not respond with HTTP: {console.visible(str(chain[-1])[:MAX_QUOTED])}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and all its causes. Libraries store a cause in `args`, `reason`, `__cause__` or `__context__`."""
    visited: set[int] = set()
    queue: list[Any] = [error]
    while queue:
        current = queue.pop(0)
        if not isinstance(current, BaseException) or id(current) in visited:
            continue
        visited.add(id(current))
        yield current
        queue += [*current.args, getattr(current, "reason", None), current.__cause__, current.__context__]

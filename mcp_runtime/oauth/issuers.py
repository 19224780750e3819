"""Asks an issuer of signed tokens that the operator chose: documents about itself, and the keys with which it signs.

Each request has a total deadline and a limit of bytes, and follows no redirect. What comes out of it is remembered for
an hour, in each process.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from mcp_runtime.client.remote import plain_http_fault, url_fault
from mcp_runtime.protocol.errors import ClientError, ProviderError

T = TypeVar("T")
Keys = list[dict[str, Any]]

TIMEOUT = 10.0  # seconds of one request, look-up of the host's name included
MAX_BYTES = 262_144  # of one answer
MAX_KEYS = 100
CACHE_SECONDS = 3600.0
# A token with an unknown key causes another look at the keys, which anybody could cause. So not more often than this.
KEYS_AGAIN_SECONDS = 30.0
ERROR_SECONDS = 3.0
BUSY_SECONDS = 3.0
DISCOVERY = "/.well-known/openid-configuration"


class Remembered:
    """A value of the issuer, for CACHE_SECONDS, or an error, for ERROR_SECONDS.

    Several threads that need it wait for one request, because anybody can cause it.
    """

    def __init__(self, name: Callable[[], str]) -> None:
        """`name` says whose value it is, for people."""
        self._name = name
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        self._found: tuple[Any, Any, float] = (None, None, -math.inf)  # the key, the value, and when it was read
        self._failed: tuple[Any, str, float] = (None, "", -math.inf)

    def known(self, key: Any, *, seconds: float = CACHE_SECONDS) -> Any:
        """The value, if it was read in the last `seconds`. Otherwise None. Asks nobody, and waits for nobody."""
        own_key, value, read_at = self._found
        return value if own_key == key and time.monotonic() <= read_at + seconds else None

    def get(self, key: Any, read: Callable[[], T], *, seconds: float = CACHE_SECONDS) -> T:
        """The value, from the issuer if need be. Raises ProviderError."""
        if not self._lock.acquire(timeout=BUSY_SECONDS):
            raise ProviderError(f"{self._name()} is slow at the moment. Try again in a moment.")
        try:
            own_key, value, read_at = self._found
            if own_key == key and time.monotonic() <= read_at + seconds:
                return cast(T, value)
            return self._read(key, read)
        finally:
            self._lock.release()

    def _read(self, key: Any, read: Callable[[], T]) -> T:
        own_key, error, failed_at = self._failed
        if own_key == key and time.monotonic() <= failed_at + ERROR_SECONDS:
            raise ProviderError(error)
        try:
            value = read()
        except ProviderError as fault:
            self._failed = (key, str(fault), time.monotonic())
            raise
        self._found = (key, value, time.monotonic())
        return value


@dataclass(frozen=True)
class Issuer:
    """An issuer, as the settings have it. `url` is what the operator trusts, `name` is for people."""

    url: str
    name: str
    plain_http_hosts: Collection[str] = ()
    secrets: Collection[str] = ()  # that no error may show

    def document(self, is_it: Callable[[Any], bool], setting: str) -> dict[str, Any]:
        """The discovery document. `is_it` decides on the issuer in it, which `setting` names. Raises ProviderError."""
        document = self.ask(f"{self.url.removesuffix('/')}{DISCOVERY}", "the discovery document")
        if not is_it(document.get("issuer")):
            raise ProviderError(
                f"{self.name} says that it is another issuer than {setting}. Ask the operator of this hall."
            )
        return document

    def endpoint(self, document: Mapping[str, Any], key: str) -> str:
        """An address in a document. Raises ProviderError."""
        url = document.get(key)
        if not isinstance(url, str) or url_fault(url) or plain_http_fault(url, self.plain_http_hosts):
            raise ProviderError(f"The {key} of {self.name} is no https address. Ask the operator of this hall.")
        return url

    def keys(self, url: str) -> Keys:
        """The keys at an address, as JWKs. Raises ProviderError."""
        keys = self.ask(url, "the keys").get("keys")
        if not isinstance(keys, list):
            raise ProviderError(f"The keys of {self.name} cannot be read. Ask the operator of this hall.")
        return [key for key in keys[:MAX_KEYS] if isinstance(key, dict)]

    def ask(
        self, url: str, what: str, *, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """The JSON object that it answers with. Raises ProviderError, whose text has nothing of the answer."""
        if fault := plain_http_fault(url, self.plain_http_hosts):
            raise ProviderError(f"{self.name} may not be asked: {fault}.")
        try:
            status, body = self._send(url, form, headers or {})
        except ClientError as error:
            raise ProviderError(f"{self.name} cannot be reached: {error}. Try again later.") from error
        if status != 200:
            raise ProviderError(self._refusal(status, body, what))
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise ProviderError(f"{self.name} did not answer with JSON ({what}). Ask the operator of this hall.")
        return answer

    def _refusal(self, status: int, body: bytes, what: str) -> str:
        """The codes of RFC 6749 tell the operator what to fix. Nothing else of the answer is shown."""
        codes = {"invalid_client", "invalid_grant", "unauthorized_client", "invalid_request", "invalid_scope"}
        code = next((code for code in sorted(codes) if f'"{code}"'.encode() in body[:10_000]), "")
        where = f"{what}{f': {code}' if code else ''}"
        return f"{self.name} answered with HTTP {status} ({where}). Ask the operator of this hall."

    def _send(self, url: str, form: Mapping[str, str] | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """The status and the body. Raises ClientError.

        A discovery document cannot make the hall ask a service of its own machine, unless the issuer of the settings is
        there too. A private network is allowed, because a company may have its provider there.
        """
        from mcp_runtime.client.outside import Guard, Place, ask  # late, because most processes never need it

        guard = Guard((Place.PUBLIC, Place.PRIVATE), self.url, self.plain_http_hosts)
        answer = ask(url, guard, form=form, headers=headers, secrets=self.secrets, seconds=TIMEOUT, max_bytes=MAX_BYTES)
        return answer.status, answer.body

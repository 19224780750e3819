"""Clients that publish their description at an https address, which is their id (Client ID Metadata Documents).

The hall fetches it through its guard: https alone, from public addresses, without redirects, and the whole request has
one deadline and one limit of bytes. The fetcher of the library has a deadline for each read, so a slow server could
hold it for hours. What the description must say is checked by the library, and here.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from django.urls import reverse
from oauth2_provider import cimd
from oauth2_provider.cimd import CIMDError

from mcp_runtime.control import grants
from mcp_runtime.protocol.errors import ClientError
from roster.models import ClientRegistration
from roster.sign_in import redirects
from roster.sign_in.registration import MAX_REDIRECTS, has_room

logger = logging.getLogger(__name__)

SECONDS = 8.0  # for the look-up and the request together
MAX_BYTES = 16_384
MAX_ID = 255
FETCHES = threading.BoundedSemaphore(4)  # at the same time in this process


class OnlyAtConsent:
    """Fetch only for a person who is logged in and asked for a consent, so that nobody else makes the hall fetch."""

    def has_permission(self, request: Any, client_id: str) -> bool:
        if str(request.uri).partition("?")[0] != reverse("sign_in:authorize") or len(client_id) > MAX_ID:
            return False
        return not ClientRegistration.is_too_often(str(request.headers.get("REMOTE_ADDR", ""))) and has_room()


class BoundedFetcher:
    """Takes the place of the fetcher of the library."""

    def fetch(self, client_id: str) -> tuple[dict[str, Any], int]:
        """Return the description, and for how many seconds it is valid. Raises CIMDError, and logs why."""
        try:
            return self._fetch(client_id)
        except CIMDError as error:
            logger.warning("the description %.255r of a client cannot be used: %s", client_id, error)
            raise

    def _fetch(self, client_id: str) -> tuple[dict[str, Any], int]:
        if not client_id.isascii() or not client_id.isprintable():
            raise CIMDError("its host is shown to people, and another one could look like it")
        if not FETCHES.acquire(blocking=False):
            raise CIMDError("too many descriptions are fetched now")
        try:
            return _checked(read(client_id))
        finally:
            FETCHES.release()


def read(client_id: str) -> tuple[dict[str, Any], int]:
    """Return the JSON object at the address, and for how many seconds it is valid. Raises CIMDError."""
    cimd._validate_client_id_url(client_id)
    try:
        answer = grants.description_at(client_id, seconds=SECONDS, max_bytes=MAX_BYTES)
    except ClientError as error:
        raise CIMDError(f"it cannot be fetched: {error}") from error
    if answer.status != 200:
        raise CIMDError(f"its address answered with HTTP {answer.status}")
    kind = answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise CIMDError(f"it is not JSON, but {kind[:100]!r}")
    metadata = answer.json_object()
    if metadata is None:
        raise CIMDError("it is not a JSON object")
    return metadata, int(cimd._effective_max_age(answer.headers.get("Cache-Control")))


def _checked(fetched: tuple[dict[str, Any], int]) -> tuple[dict[str, Any], int]:
    """The same, without redirects that the hall does not accept. Raises CIMDError if none is left."""
    metadata, seconds = fetched
    uris = metadata.get("redirect_uris")
    if not isinstance(uris, list):
        raise CIMDError("redirect_uris is not a list")
    accepted = [uri for uri in uris if isinstance(uri, str) and not redirects.fault_of(uri)][:MAX_REDIRECTS]
    if not accepted:
        raise CIMDError("none of the redirect_uris is accepted")
    name = metadata.get("client_name", "")
    return {**metadata, "redirect_uris": accepted, "client_name": name if isinstance(name, str) else ""}, seconds

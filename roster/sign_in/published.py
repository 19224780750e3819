"""Clients that publish their description at an https address, which is their id (Client ID Metadata Documents).

The library fetches it: https alone, from public addresses, without redirects, at most 16 kB. This module decides when,
and ends what takes too long, also the look-up of the name.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from django.urls import reverse
from oauth2_provider.cimd import CIMDError, SafeMetadataFetcher

from roster.models import ClientRegistration
from roster.sign_in import redirects
from roster.sign_in.registration import MAX_REDIRECTS, has_room

logger = logging.getLogger(__name__)

SECONDS = 8.0  # for the look-up and the request together
MAX_ID = 255
FETCHES = threading.BoundedSemaphore(4)  # at the same time in this process, also those that nobody waits for any more


class OnlyAtConsent:
    """Fetch only for a person who is logged in and asked for a consent, so that nobody else makes the hall fetch."""

    def has_permission(self, request: Any, client_id: str) -> bool:
        if str(request.uri).partition("?")[0] != reverse("sign_in:authorize") or len(client_id) > MAX_ID:
            return False
        return not ClientRegistration.is_too_often(str(request.headers.get("REMOTE_ADDR", ""))) and has_room()


class BoundedFetcher(SafeMetadataFetcher):  # type: ignore[misc]  # the library has no types
    """The fetcher of the library, with one deadline for all it does."""

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
        outcome: list[tuple[dict[str, Any], int] | Exception] = []
        done = threading.Event()

        def work() -> None:
            try:
                outcome.append(super(BoundedFetcher, self).fetch(client_id))
            except Exception as error:  # noqa: BLE001 - told to the thread that waits
                outcome.append(error)
            finally:
                FETCHES.release()
                done.set()

        threading.Thread(target=work, name="client description", daemon=True).start()
        if not done.wait(SECONDS):
            raise CIMDError(f"the description did not come within {SECONDS:g} s")
        if isinstance(outcome[0], CIMDError):
            raise outcome[0]
        if isinstance(outcome[0], Exception):
            raise CIMDError(f"the description cannot be fetched: {outcome[0]}") from outcome[0]
        return _checked(outcome[0])


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

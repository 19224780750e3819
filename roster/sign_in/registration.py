"""Clients that introduce themselves (RFC 7591). Anybody may, so there are few, and the unused ones go after a day.

All of them are public: a secret that anybody gets protects nothing. PKCE and the exact redirect do.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone

from mcp_runtime.control.grants import MAX_UNUSED_CLIENTS
from mcp_runtime.security.resources import SCOPE
from roster.models import ClientRegistration, Grant
from roster.sign_in import redirects
from roster.sign_in.answers import error, public

if TYPE_CHECKING:
    from oauth2_provider.models import Application

MAX_REDIRECTS, MAX_NAME = 10, 100
KEEP_UNUSED = timedelta(minutes=10)  # at least
DELETED_AT_ONCE = 100
GRANTS = {"authorization_code", "refresh_token"}


class MetadataError(ValueError):
    """The client describes itself in a way that the hall does not accept. The text says why."""

    def __init__(self, text: str, code: str = "invalid_client_metadata") -> None:
        super().__init__(text)
        self.code = code


@public("POST")
def register(request: HttpRequest) -> HttpResponse:
    """Store a client, and return its id."""
    if ClientRegistration.is_too_often(str(request.META.get("REMOTE_ADDR", ""))):
        response = error(429, "temporarily_unavailable", "Too many clients were registered. Try again in a minute.")
        response.headers["Retry-After"] = "60"
        return response
    from oauth2_provider.models import Application  # here, because most halls never need it

    if not has_room():
        return _too_many()
    try:
        name, uris = read_metadata(_decoded(request.body))
    except MetadataError as fault:
        return error(400, fault.code, str(fault))
    client = Application.objects.create(
        name=name,
        redirect_uris=" ".join(uris),
        client_type=Application.CLIENT_PUBLIC,
        authorization_grant_type=Application.GRANT_AUTHORIZATION_CODE,
        registration_source=Application.RegistrationSource.DCR,
        client_secret="",
        hash_client_secret=False,
    )
    if _unused().count() > MAX_UNUSED_CLIENTS:  # others registered at the same moment, and saw the same room
        client.delete()
        return _too_many()
    answer = {
        "client_id": client.client_id,
        "client_id_issued_at": int(client.created.timestamp()),
        "client_name": name,
        "redirect_uris": uris,
        "grant_types": sorted(GRANTS),
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "scope": SCOPE,
    }
    return JsonResponse(answer, status=201)


def _too_many() -> HttpResponse:
    text = f"The hall has {MAX_UNUSED_CLIENTS} new clients that nobody allowed. Try again later."
    return error(503, "temporarily_unavailable", text)


def _unused() -> QuerySet[Application]:
    from oauth2_provider.models import Application

    unused: QuerySet[Application] = Application.objects.exclude(client_id__in=Grant.objects.values("client_id"))
    return unused


def has_room() -> bool:
    """Whether one more client may be stored. If there are too many that nobody allowed, the oldest of them go.

    A client that came a moment ago stays, because its person may be reading the consent.
    """
    from oauth2_provider.models import Application

    unused = _unused()
    if unused.count() < MAX_UNUSED_CLIENTS:
        return True
    old = unused.filter(created__lt=timezone.now() - KEEP_UNUSED).order_by("created")
    return bool(Application.objects.filter(pk__in=list(old.values_list("pk", flat=True)[:DELETED_AT_ONCE])).delete()[0])


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise MetadataError("The body is not JSON.") from None


def read_metadata(data: Any) -> tuple[str, list[str]]:
    """The name and the redirects of a client. Raises MetadataError."""
    if not isinstance(data, dict):
        raise MetadataError("The body is not a JSON object.")
    name, uris = data.get("client_name", ""), data.get("redirect_uris")
    if not isinstance(name, str):
        raise MetadataError("client_name is not a string.")
    if not isinstance(uris, list) or not 1 <= len(uris) <= MAX_REDIRECTS:
        raise MetadataError(f"redirect_uris is not a list of 1 to {MAX_REDIRECTS} addresses.", "invalid_redirect_uri")
    for uri in uris:
        if fault := redirects.fault_of(uri) if isinstance(uri, str) else "it is not a string":
            raise MetadataError(f"The redirect {str(uri)[:100]!r} is not accepted: {fault}.", "invalid_redirect_uri")
    if not set(_texts(data, "grant_types", ["authorization_code"])) <= GRANTS:
        raise MetadataError(f"grant_types: the hall has only {' and '.join(sorted(GRANTS))}.")
    if set(_texts(data, "response_types", ["code"])) != {"code"}:
        raise MetadataError("response_types: the hall has only code.")
    return clean_name(name), uris


def _texts(data: dict[str, Any], key: str, default: list[str]) -> list[str]:
    texts = data.get(key, default)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts) or len(texts) > MAX_REDIRECTS:
        raise MetadataError(f"{key} is not a list of a few strings.")
    return texts


def clean_name(name: str) -> str:
    """The name on one line, without characters that are invisible or change the direction of a text."""
    return " ".join("".join(char if char.isprintable() else " " for char in name[:1000]).split())[:MAX_NAME]

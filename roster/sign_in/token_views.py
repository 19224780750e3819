"""Access tokens for codes and refresh tokens (RFC 6749), and their revocation (RFC 7009)."""

from __future__ import annotations

import logging

from django.core.exceptions import ObjectDoesNotExist
from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse

from mcp_runtime.control import grants
from roster.models import AccessToken
from roster.sign_in.answers import error, public, repeated

logger = logging.getLogger("guildhall.web")


@public("POST")
def token(request: HttpRequest) -> HttpResponse:
    """Answer with an access token and a refresh token."""
    if refusal := _refusal(request):
        return refusal
    from oauth2_provider.views.mixins import OAuthLibMixin

    try:
        _, headers, body, status = OAuthLibMixin().create_token_response(request)
    except (IntegrityError, ObjectDoesNotExist) as fault:  # somebody deletes the user, and the code with it
        logger.warning("sign-in: the tokens of a client cannot be stored: %s", fault)
        return error(400, "invalid_grant", "The grant of this token has just ended.")
    if status != 200:
        _revoke_if_stolen(request)
    return _answer(headers, body, status)


@public("POST")
def revoke(request: HttpRequest) -> HttpResponse:
    """Revoke the grant of a token. The answer is the same for a token that is not known."""
    if refusal := _refusal(request):
        return refusal
    from oauth2_provider.views.mixins import OAuthLibMixin

    _, headers, body, status = OAuthLibMixin().create_revocation_response(request)
    return _answer(headers, body, status)


def _refusal(request: HttpRequest) -> HttpResponse | None:
    if request.META.get("QUERY_STRING"):
        return error(400, "invalid_request", "Send all parameters in the body.")
    if name := repeated(request.POST):
        return error(400, "invalid_request", f"The parameter {name[:50]!r} stands there twice.")
    if any("\0" in value for value in request.POST.values()):
        return error(400, "invalid_request", "A parameter has a character that no valid one has.")
    return None


def _revoke_if_stolen(request: HttpRequest) -> None:
    """Revoke the grant of a code or a refresh token that was used before. Two programs have it, one is a thief."""
    from oauth2_provider.models import RefreshToken

    if request.POST.get("grant_type") == "authorization_code":
        grant = grants.find_by_code(AccessToken.digest_of(request.POST.get("code", "")))
        if grant is not None and grant.redeemed_at is not None:
            grants.revoke_grant(grant, "its code was used twice")
    elif request.POST.get("grant_type") == "refresh_token":
        digest = AccessToken.digest_of(request.POST.get("refresh_token", ""))
        used = RefreshToken.objects.filter(token_checksum=digest).exclude(revoked=None).first()
        if used is not None and (grant := grants.find_by_family(used.token_family)) is not None:
            grants.revoke_grant(grant, "a refresh token was used twice")


def _answer(headers: dict[str, str], body: str | None, status: int) -> HttpResponse:
    # Some errors of the library come without a type.
    return HttpResponse(body or "", status=status, headers={"Content-Type": "application/json", **headers})

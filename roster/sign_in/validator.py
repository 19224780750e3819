"""What the OAuth library asks about codes, tokens and clients, and what the hall stores with its answers."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from django.db.models import Q
from django.utils import timezone
from oauth2_provider.models import AccessToken as LibraryToken
from oauth2_provider.models import RefreshToken
from oauth2_provider.oauth2_validators import OAuth2Validator
from oauthlib.oauth2.rfc6749 import errors

from mcp_runtime.control import grants
from mcp_runtime.security.resources import SCOPE
from roster.models import AccessToken, Grant


class HallValidator(OAuth2Validator):  # type: ignore[misc]  # the library has no types
    """The library's rules, and a grant of the hall for each code and each access token."""

    def validate_scopes(self, client_id: str, scopes: Any, client: Any, request: Any, *_: Any, **__: Any) -> bool:
        """Accept any scope, and give the only one that there is. Clients ask for scopes that they know from others."""
        request.scopes = [SCOPE]
        return True

    def _create_authorization_code(self, request: Any, code: dict[str, str], expires: datetime | None = None) -> Any:
        """Store only the SHA-256 of the code, here and at the grant that the consent has made."""
        digest = AccessToken.digest_of(code["code"])
        Grant.objects.filter(pk=request.grant_id, code_digest=None).update(code_digest=digest)
        return super()._create_authorization_code(request, {**code, "code": digest}, expires)

    def _save_bearer_token(self, token: dict[str, Any], request: Any, *args: Any, **kwargs: Any) -> None:
        """Store the tokens, and a key for the gateway. A repeated refresh gets the tokens that are stored already.

        Raises InvalidGrantError if the grant was revoked or ended.
        """
        used: Any = getattr(request, "refresh_token_instance", None)
        family = used.token_family if isinstance(used, RefreshToken) else None
        grant = grants.find_by_code(request.code) if family is None else grants.find_by_family(family)
        if grant is None or not grants.lock(grant):
            raise errors.InvalidGrantError(request=request)
        # Another request may have used it since it was read.
        if family is not None and not RefreshToken.objects.filter(pk=used.pk, revoked=None).exists():
            self._repeat(token, request)
            return
        super()._save_bearer_token(token, request, *args, **kwargs)
        stored = _stored(token)
        if family is None:
            grant = grants.redeem(grant, stored.token_family or uuid.uuid4())
            if grant is None:
                raise errors.InvalidGrantError(request=request)
            # If it joined an older grant, one refresh token that is used twice ends all of them.
            RefreshToken.objects.filter(pk=stored.pk).update(token_family=grant.family)
        live = RefreshToken.objects.filter(token_family=grant.family, revoked=None).exclude(access_token=None)
        newest = live.order_by("-pk").values_list("access_token__token_checksum", flat=True)[: grants.MAX_SIGN_INS]
        grants.add_access_token(grant, token["access_token"], stored.access_token.expires, newest=list(newest))

    def _repeat(self, token: dict[str, Any], request: Any) -> None:
        """Let the client have the tokens of the request before, which are the same texts.

        Programs of one person share their tokens, and refresh them at the same moment, or ask again when an answer was
        lost. Raises InvalidGrantError if the refresh token was used since, or the hall has another key.
        """
        self._check_and_set_request_resource(request)
        try:
            stored = _stored(token)
        except RefreshToken.DoesNotExist:
            raise errors.InvalidGrantError(request=request) from None
        token["expires_in"] = max(int((stored.access_token.expires - timezone.now()).total_seconds()), 0)

    def revoke_token(self, token: str, token_type_hint: str, request: Any, *args: Any, **kwargs: Any) -> None:
        """Revoke the whole grant. A client that gives back one of its tokens does not want the others.

        If several sign-ins share the grant, only that one of them ends to which the token belongs.
        """
        digest = AccessToken.digest_of(token)
        rows = RefreshToken.objects.filter(Q(token_checksum=digest) | Q(access_token__token_checksum=digest))
        stored = rows.first()
        grant = grants.find_by_family(stored.token_family) if stored else grants.find_by_access_token(token)
        if grant is not None and request.client is not None and grant.client_id == request.client.client_id:
            live = RefreshToken.objects.filter(token_family=grant.family, revoked=None)
            if stored is not None and stored.revoked is None and (others := live.exclude(pk=stored.pk)).exists():
                grants.end_sign_in(grant, list(others.values_list("access_token__token_checksum", flat=True)))
                LibraryToken.objects.filter(pk=stored.access_token_id).delete()
                stored.delete()  # not revoked, because it is no thief who tries it again
            else:
                grants.revoke_grant(grant, "the client gave it back")
        super().revoke_token(token, token_type_hint, request, *args, **kwargs)


def _stored(token: dict[str, Any]) -> RefreshToken:
    """The row of the refresh token, with its access token. Raises RefreshToken.DoesNotExist if it was used."""
    rows = RefreshToken.objects.select_related("access_token").exclude(access_token=None)
    return rows.get(token_checksum=AccessToken.digest_of(token["refresh_token"]), revoked=None)

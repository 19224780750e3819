"""Asks the provider of single sign-on, an OpenID Connect server, that GUILD_HALL_OIDC_ISSUER names.

Sources: OpenID Connect Core 1.0 and Discovery 1.0, RFC 6749. Each request has a total deadline and a limit of bytes,
and follows no redirect. What the provider says about itself and its keys is remembered for an hour, in each process.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

from django.conf import settings

from mcp_runtime.oauth.issuers import CACHE_SECONDS, KEYS_AGAIN_SECONDS, Issuer, Remembered
from mcp_runtime.protocol.errors import ProviderError


@dataclass(frozen=True)
class Provider:
    """What the discovery document says."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str  # empty if there is none
    algorithms: tuple[str, ...]  # of ID tokens. Empty if it does not say
    takes_secret_in_body: bool  # otherwise it takes it as HTTP Basic
    sends_issuer: bool  # with each authorization response (RFC 9207)


# Discovery and keys -----------------------------------------------------------------------------------------------


def name() -> str:
    """The name of the provider for people."""
    return str(settings.GUILD_HALL_OIDC_NAME)


_provider, _keys = Remembered(name), Remembered(name)


def _issuer() -> Issuer:
    return Issuer(
        settings.GUILD_HALL_OIDC_ISSUER,
        name(),
        settings.GUILD_HALL_PLAIN_HTTP_HOSTS,
        [settings.GUILD_HALL_OIDC_CLIENT_SECRET],
    )


def discover() -> Provider:
    """Raises ProviderError."""
    issuer = str(settings.GUILD_HALL_OIDC_ISSUER)
    return _provider.get(issuer, lambda: _read_provider(issuer))


def signing_keys(provider: Provider, *, again: bool = False) -> list[dict[str, Any]]:
    """The keys of the provider as JWKs. With `again`, those of the last few seconds. Raises ProviderError."""
    seconds = KEYS_AGAIN_SECONDS if again else CACHE_SECONDS
    return _keys.get(provider.jwks_uri, lambda: _issuer().keys(provider.jwks_uri), seconds=seconds)


def _read_provider(url: str) -> Provider:
    issuer = _issuer()
    document = issuer.document(lambda own: own in (url, f"{url}/"), "GUILD_HALL_OIDC_ISSUER")
    if "code" not in _texts(document.get("response_types_supported"), ["code"]):
        raise ProviderError(f"{name()} does not support the authorization code flow. Ask the operator of this hall.")
    methods = _texts(document.get("token_endpoint_auth_methods_supported"), ["client_secret_basic"])
    return Provider(
        issuer=document["issuer"],
        authorization_endpoint=issuer.endpoint(document, "authorization_endpoint"),
        token_endpoint=issuer.endpoint(document, "token_endpoint"),
        jwks_uri=issuer.endpoint(document, "jwks_uri"),
        userinfo_endpoint=issuer.endpoint(document, "userinfo_endpoint") if document.get("userinfo_endpoint") else "",
        algorithms=tuple(_texts(document.get("id_token_signing_alg_values_supported"), [])),
        takes_secret_in_body="client_secret_basic" not in methods and "client_secret_post" in methods,
        sends_issuer=document.get("authorization_response_iss_parameter_supported") is True,
    )


def _texts(value: Any, default: list[str]) -> list[str]:
    if not isinstance(value, list):
        return default
    return [each for each in value[:100] if isinstance(each, str)]


# A login ----------------------------------------------------------------------------------------------------------


def exchange(provider: Provider, form: Mapping[str, str]) -> dict[str, Any]:
    """The answer of the token endpoint. `form` has all fields of the request but the client's. Raises ProviderError."""
    client_id, secret = settings.GUILD_HALL_OIDC_CLIENT_ID, settings.GUILD_HALL_OIDC_CLIENT_SECRET
    headers = {}
    if provider.takes_secret_in_body:
        form = {**form, "client_id": client_id, "client_secret": secret}
    else:
        pair = f"{quote_plus(client_id)}:{quote_plus(secret)}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return _issuer().ask(provider.token_endpoint, "the token endpoint", form=form, headers=headers)


def userinfo(provider: Provider, access_token: str) -> dict[str, Any]:
    """More claims about the person. Raises ProviderError."""
    if not access_token.isascii() or not access_token.isprintable():
        raise ProviderError(f"{name()} sent an access token that cannot be used. Ask the operator of this hall.")
    headers = {"Authorization": f"Bearer {access_token}"}
    return _issuer().ask(provider.userinfo_endpoint, "the userinfo endpoint", headers=headers)


def forget() -> None:
    """Forget what the provider said about itself. For tests."""
    _provider.forget()
    _keys.forget()

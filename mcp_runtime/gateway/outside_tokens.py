"""Access tokens of an outside issuer (RFC 9068), in place of those of the hall: who uses the gateway with them.

A token is checked once. What it says is then remembered by its digest until its end, and its principal until rights may
have changed. The keys of the issuer are in memory too. Only a key that is not known makes the gateway ask the issuer.
This happens in threads of their own, so that a slow issuer delays no other token.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any

from django.conf import settings

from mcp_runtime.oauth import issuers, signed_tokens
from mcp_runtime.oauth.issuers import Issuer, Keys, Remembered
from mcp_runtime.oauth.signed_tokens import LEEWAY, SUBJECT, Expected, SignedToken
from mcp_runtime.protocol.errors import IssuerAwayError, OtherKeyError, ProviderError, SignedTokenError, TokenError
from mcp_runtime.rows.database import unit_of_work
from mcp_runtime.security import outside_clients, resources
from mcp_runtime.security.access import Principal
from mcp_runtime.security.outside_clients import OutsideToken

MAX_TOKENS = 10_000  # that are remembered
MAX_LENGTH = 16_384  # characters of a token
MAX_CLIENT_ID = 255
MAX_SECONDS = 10 * 365 * 86_400.0  # of a token's life that count
MAX_WAITING = 64  # tokens that wait until the issuer was asked
THREADS = 2  # that ask it
# Where issuers say which client has the token: RFC 9068, OpenID Connect, and two of their own.
CLIENT_CLAIMS = ("client_id", "azp", "appid", "cid")
TYPES = ("at+jwt", "jwt", "")  # many issuers do not send the first, which RFC 9068 wants
NOT_IN_ACCESS_TOKENS = ("nonce", "at_hash", "c_hash", "s_hash")  # of ID tokens
WHAT = "it"


class OutsideTokens:
    """The tokens that were checked, and their principals. For the gateway's loop alone, if nothing else is said."""

    def __init__(self) -> None:
        self._checked: dict[bytes, _Checked] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._waiting = 0
        self._age = 0

    def forget_principals(self) -> None:
        """Rights may have changed. What the tokens say has not."""
        self._age += 1
        for checked in self._checked.values():
            checked.principal = None

    def cached_principals(self) -> list[Principal]:
        """All cached principals. Any thread may call this."""
        checked = [each.principal for each in list(self._checked.values())]
        return [principal for principal in checked if principal is not None]

    async def principal(self, text: str) -> Principal:
        """The principal of the token. Raises TokenError."""
        digest = hashlib.sha256(text.encode("latin-1")).digest()
        checked = self._checked.get(digest)
        if checked is None:
            checked = _Checked(await self._check(text))
            self._remember(digest, checked)
        if checked.is_over:
            raise TokenError("This access token expired. Sign in again.")
        if checked.principal is not None and not checked.principal.is_expired:
            return checked.principal
        age = self._age
        look_up = partial(unit_of_work, partial(outside_clients.principal_of, checked.token))
        principal = await asyncio.get_running_loop().run_in_executor(None, look_up)
        if age == self._age:  # otherwise it may have been read before a change
            checked.principal = principal
        return principal

    def _remember(self, digest: bytes, checked: _Checked) -> None:
        if len(self._checked) >= MAX_TOKENS:
            self._checked.pop(next(iter(self._checked)))  # the oldest
        self._checked[digest] = checked

    async def _check(self, text: str) -> OutsideToken:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(None, _token, text)
        except OtherKeyError:
            await self._ask_for_keys(loop)
        except SignedTokenError as error:
            raise _refused(error) from error
        try:
            return await loop.run_in_executor(None, _token, text)
        except SignedTokenError as error:
            raise _refused(error) from error

    async def _ask_for_keys(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises IssuerAwayError."""
        if self._waiting >= MAX_WAITING:
            raise IssuerAwayError("Too many access tokens wait for the keys of their issuer. Try again in a moment.")
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "gateway-keys")
        self._waiting += 1
        try:
            await loop.run_in_executor(self._threads, read_keys)
        except ProviderError as error:
            raise IssuerAwayError(f"This access token cannot be checked now: {error}") from error
        finally:
            self._waiting -= 1


class _Checked:
    """A token that was good when it was checked. Its end does not move when the clock is set back."""

    def __init__(self, token: OutsideToken) -> None:
        self.token = token
        self.principal: Principal | None = None
        self._ends_at = time.monotonic() + (token.ends_at.timestamp() - time.time())

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._ends_at


def _refused(error: SignedTokenError) -> TokenError:
    return TokenError(f"This access token is refused: {error}. Sign in at {resources.outside_issuer()} again.")


# Keys -------------------------------------------------------------------------------------------------------------


_addresses, _keys = Remembered(resources.outside_issuer), Remembered(resources.outside_issuer)


def read_keys() -> None:
    """Ask the issuer for its keys, unless somebody did a moment ago. Raises ProviderError."""
    issuer = Issuer(
        settings.GUILD_HALL_SIGN_IN_JWKS_URL or resources.outside_issuer(),
        resources.outside_issuer(),
        settings.GUILD_HALL_PLAIN_HTTP_HOSTS,
    )
    address = settings.GUILD_HALL_SIGN_IN_JWKS_URL or _addresses.get(issuer.url, lambda: _address(issuer))
    _keys.get(resources.outside_issuer(), lambda: issuer.keys(address), seconds=issuers.KEYS_AGAIN_SECONDS)


def _address(issuer: Issuer) -> str:
    document = issuer.document(lambda own: own == resources.outside_issuer(), "GUILD_HALL_SIGN_IN_ISSUER")
    return issuer.endpoint(document, "jwks_uri")


def forget() -> None:
    """Forget the issuer. For tests."""
    _addresses.forget()
    _keys.forget()


# What a token says ------------------------------------------------------------------------------------------------


def _token(text: str) -> OutsideToken:
    """Check a token with the keys in memory. Raises SignedTokenError, and OtherKeyError if another key is needed."""
    known: Keys | None = _keys.known(resources.outside_issuer())
    if known is None and text.count(".") == 2:
        raise OtherKeyError("the keys of its issuer are not known")
    audience = settings.GUILD_HALL_SIGN_IN_AUDIENCE
    expected = Expected(resources.outside_issuer(), [audience] if audience else None, WHAT, MAX_LENGTH)
    signed = signed_tokens.verify(text, expected, lambda _: known or [])
    _require_access_token(signed)
    claims = signed.claims
    return OutsideToken(
        issuer=claims["iss"],
        subject=_subject(claims),
        client_id=_client_id(claims),
        resource=resources.WHOLE_GATEWAY if audience else _resource(claims["aud"]),
        scopes=_scopes(claims),
        ends_at=datetime.fromtimestamp(min(int(claims["exp"]) + LEEWAY, time.time() + MAX_SECONDS), UTC),
    )


def _require_access_token(signed: SignedToken) -> None:
    """Refuse ID tokens and others that the issuer signs with the same keys, and tokens that are bound to a key."""
    kind = str(signed.header.get("typ", "")).lower().removeprefix("application/")
    if kind not in TYPES or str(signed.claims.get("typ", "bearer")).lower() != "bearer":  # the claim is Keycloak's
        raise SignedTokenError("it is no access token")
    if kind != TYPES[0] and any(name in signed.claims for name in NOT_IN_ACCESS_TOKENS):
        raise SignedTokenError("it is an ID token and no access token")
    if "cnf" in signed.claims:
        raise SignedTokenError("it is bound to a key of its client (DPoP or mTLS), which the gateway does not support")


def _subject(claims: Mapping[str, Any]) -> str:
    subject = claims.get(settings.GUILD_HALL_SIGN_IN_SUBJECT_CLAIM)
    if not isinstance(subject, str) or not SUBJECT.fullmatch(subject):
        raise SignedTokenError("it does not say who the person is")
    return subject


def _client_id(claims: Mapping[str, Any]) -> str:
    values = [claims[name] for name in CLIENT_CLAIMS if name in claims]
    is_text = bool(values) and isinstance(values[0], str) and 0 < len(values[0]) <= MAX_CLIENT_ID
    if not is_text or not values[0].isprintable() or any(value != values[0] for value in values):
        raise SignedTokenError("it does not say which client has it")
    return str(values[0])


def _resource(audience: Any) -> str:
    """The path of the gateway that the token is for."""
    named = audience if isinstance(audience, list) else [audience]
    paths = {resources.path_of(each) for each in named if isinstance(each, str)} - {None}
    if resources.WHOLE_GATEWAY in paths:
        return resources.WHOLE_GATEWAY
    if len(paths) != 1:
        raise SignedTokenError(f"its audience is no address of the gateway, such as {resources.gateway_address()}/mcp")
    return str(paths.pop())


def _scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    """As a text with spaces or as a list, under the name of RFC 9068 or that of Entra ID and Okta."""
    found: set[str] = set()
    for value in (claims.get("scope"), claims.get("scp")):
        texts = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
        found |= {text for text in texts if isinstance(text, str)}
    return frozenset(found)

"""Grants: what people allow to clients that sign in.

A grant is a token whose text nobody has, so its scope, limits, calls and revocation are those of tokens. Its client has
access tokens. This module knows nothing of the OAuth library, whose rows `prune` deletes with plain SQL, because the
runtime does not load it.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.contrib.auth.models import User
from django.db import connection, transaction
from django.utils import timezone

from mcp_runtime.control.tokens import MAX_TOKEN_NAME, NewToken, make_token, revoke_token
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.security.access import Principal
from roster.models import AccessToken, AuditEntry, ClientRegistration, Grant, Token

if TYPE_CHECKING:
    from mcp_runtime.client.outside import OutsideAnswer

# A consent whose client never comes back for its access token ends so soon.
REDEEM_WITHIN = timedelta(minutes=2)
MAX_SIGN_INS = 20  # of a grant, such as those of several devices. Only so many have their access tokens at once
MAX_UNUSED_CLIENTS = 1000
KEEP = timedelta(days=1)  # clients that nobody allowed, and what is left of grants that ended
# Refresh tokens that were used. A thief may be faster than the client, which is then refused, and the thief with it. So
# they stay for as long as a client may be away.
KEEP_USED = timedelta(days=30)


@dataclass(frozen=True)
class NewGrant:
    """The consent of a person. `resource` is a path of the gateway, as in `security.resources`."""

    client_id: str
    client_name: str
    redirect_uri: str
    resource: str
    days: int  # until its end
    token: NewToken  # the scope


def make_grant(user: User, new: NewGrant, *, maker: Principal) -> Grant:
    """Create a grant and its token. Raises what `make_token` raises, so it never has more rights than `maker`."""
    values = {**vars(new.token), "name": new.client_name[:MAX_TOKEN_NAME], "resource": new.resource}
    ends_at = timezone.now() + timedelta(days=new.days)
    with short_transaction():
        token, _ = make_token(user, NewToken(**{**values, "expires_at": timezone.now() + REDEEM_WITHIN}), maker=maker)
        grant = Grant.objects.create(
            token=token, client_id=new.client_id, redirect_uri=new.redirect_uri, ends_at=ends_at, days=new.days
        )
        details = {
            "client": new.client_name,
            "client_id": new.client_id,
            "sent_back_to": new.redirect_uri,
            "address": new.resource,
            "ends_at": ends_at,
        }
        AuditEntry.record(AuditEntry.Kind.CLIENT_ALLOWED, token.audit_name, after=details)
    return grant


def description_at(address: str, *, seconds: float, max_bytes: int) -> OutsideAnswer:
    """What a client publishes about itself at this address, which must be public. Raises ClientError."""
    from mcp_runtime.client.outside import Guard, ask  # late, because the web loads it only when somebody signs in

    accept = {"Accept": "application/json, application/*+json"}
    return ask(address, Guard(), headers=accept, seconds=seconds, max_bytes=max_bytes)


def find_by_code(code_digest: str) -> Grant | None:
    return Grant.objects.select_related("token__user").filter(code_digest=code_digest).first()


def find_by_family(family: uuid.UUID | None) -> Grant | None:
    return None if family is None else Grant.objects.select_related("token__user").filter(family=family).first()


def find_by_access_token(text: str) -> Grant | None:
    rows = Grant.objects.select_related("token__user")
    return rows.filter(access_tokens__digest=AccessToken.digest_of(text)).first()


def lock(grant: Grant) -> bool:
    """Whether the grant gives access. Neither it nor its user is changed or deleted until the transaction ends."""
    # First the user, as in the admin. Otherwise a deletion would miss the tokens that are stored at this moment.
    list(User.objects.select_for_update(no_key=True).filter(pk=grant.token.user_id))
    token = Token.objects.select_for_update().filter(pk=grant.pk).first()
    return token is not None and token.state == "good" and token.user.is_active


def redeem(grant: Grant, family: uuid.UUID) -> Grant | None:
    """Take the code of the grant, and let it live until its end. None if another request was faster.

    Returns the grant that has the access from now on. It is an older one if the user allowed the same to this client
    before: the new sign-in joins it, and the older one may be of another device. Call it after `lock`.
    """
    with transaction.atomic():
        now = timezone.now()
        if not Grant.objects.filter(pk=grant.pk, redeemed_at=None).update(redeemed_at=now, family=family):
            return None
        grant.family = family
        older = _same_grant(grant)
        if older is not None:
            older.code_digest, older.ends_at, older.redirect_uri = grant.code_digest, grant.ends_at, grant.redirect_uri
            Token.objects.filter(pk=grant.pk).delete()  # nobody has used it
            older.save(update_fields=["code_digest", "ends_at", "redirect_uri"])
            grant = older
        token = Token.objects.select_for_update().get(pk=grant.pk)
        token.expires_at = grant.ends_at
        token.save(update_fields=["expires_at"])
    return grant


def _same_grant(grant: Grant) -> Grant | None:
    """Another live grant of the same user for the same client, address, scope and days. It keeps its limits.

    Not for other days: who allows a borrowed computer one day must not allow it a year by a consent at home.
    """
    new = grant.token
    others = Token.objects.select_for_update().filter(
        user=new.user_id, resource=new.resource, scope=new.scope, tool_set=new.tool_set_id
    )
    others = others.filter(grant__client_id=grant.client_id, grant__issuer=grant.issuer, grant__family__isnull=False)
    others = others.filter(grant__days=grant.days)
    for token in others.exclude(pk=new.pk).order_by("pk"):
        if token.state == "good" and _rows_in_scope(token) == _rows_in_scope(new):
            return Grant.objects.select_related("token__user").get(pk=token.pk)
    return None


def _rows_in_scope(token: Token) -> tuple[set[int], set[int]]:
    return (
        set(token.members.values_list("pk", flat=True)),
        set(token.tools.values_list("pk", flat=True)),
    )


def add_access_token(grant: Grant, text: str, expires_at: datetime, *, newest: Collection[str] = ()) -> None:
    """Store a new access token. `newest` are the digests of the newest one of each sign-in of the grant.

    They stay, and as many of those before them. So a sign-in that gets tokens often ends none of another.
    """
    digest = AccessToken.digest_of(text)
    AccessToken.objects.create(digest=digest, grant=grant, expires_at=expires_at)
    newest = {digest, *newest}
    before = grant.access_tokens.exclude(pk__in=newest).order_by("-expires_at").values_list("pk", flat=True)
    grant.access_tokens.exclude(pk__in=[*newest, *before[: len(newest)]]).delete()


def end_sign_in(grant: Grant, others: Collection[str]) -> None:
    """End one of several sign-ins of the grant. `others` are the digests of the access tokens that stay."""
    grant.access_tokens.exclude(pk__in=others).delete()


def revoke_grant(grant: Grant, reason: str) -> None:
    """Revoke it, unless somebody did already. Its access and refresh tokens give no access from now on."""
    token = Token.objects.select_related("user").get(pk=grant.pk)
    if token.revoked_at is None:
        revoke_token(token, reason)


# What is left over -------------------------------------------------------------------------------------------------

_DEAD_APPLICATIONS = (
    "SELECT id FROM oauth2_provider_application WHERE created < %(old)s "
    "AND client_id NOT IN (SELECT client_id FROM roster_grant)"
)
_LIVE_FAMILIES = (
    "SELECT family FROM roster_grant JOIN roster_token ON roster_token.id = roster_grant.token_id "
    "WHERE family IS NOT NULL AND (revoked_at IS NULL OR revoked_at > %(old)s) "
    "AND (expires_at IS NULL OR expires_at > %(old)s)"
)
_OLD_REFRESH_TOKENS = f"revoked < %(used)s OR token_family NOT IN ({_LIVE_FAMILIES})"
# Children come before their parents.
_STATEMENTS = (
    "DELETE FROM oauth2_provider_grant WHERE expires < %(old)s",
    "UPDATE oauth2_provider_accesstoken SET source_refresh_token_id = NULL WHERE source_refresh_token_id IN "  # noqa: S608
    f"(SELECT id FROM oauth2_provider_refreshtoken WHERE {_OLD_REFRESH_TOKENS})",
    f"DELETE FROM oauth2_provider_refreshtoken WHERE {_OLD_REFRESH_TOKENS}",  # noqa: S608
    "DELETE FROM oauth2_provider_accesstoken WHERE expires < %(old)s AND id NOT IN "
    "(SELECT access_token_id FROM oauth2_provider_refreshtoken WHERE access_token_id IS NOT NULL)",
    *(
        f"DELETE FROM {table} WHERE application_id IN ({_DEAD_APPLICATIONS})"  # noqa: S608 - constants
        for table in ("oauth2_provider_grant", "oauth2_provider_refreshtoken", "oauth2_provider_accesstoken")
    ),
    "DELETE FROM oauth2_provider_application WHERE created < %(old)s "
    "AND client_id NOT IN (SELECT client_id FROM roster_grant)",
)


def prune() -> None:
    """Delete clients that nobody allowed within a day, codes and tokens that ended a day ago, and old used ones."""
    AccessToken.prune()
    ClientRegistration.prune()
    now = timezone.now()
    times = {
        name: connection.ops.adapt_datetimefield_value(now - age) for name, age in (("old", KEEP), ("used", KEEP_USED))
    }
    with transaction.atomic(), connection.cursor() as cursor:
        for statement in _STATEMENTS:
            cursor.execute(statement, times)

"""ID tokens of users who logged in at single sign-on, for members that take them (enterprise-managed authorization).

They are kept only if there is such a member, encrypted as secrets are, until they end or their user is not active.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from django.conf import settings
from django.db.models import Q

from mcp_runtime.protocol.errors import AssertionRefusedError, KeyFileError
from mcp_runtime.rows import clock
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.secrets import values
from roster.models import GuildMember, Identity, UserSignIn


def keep(user_id: int, id_token: str, ends_at: datetime) -> None:
    """Keep the ID token of a login that was just checked, in place of the one before. Raises SecretError."""
    rows = Identity.objects.filter(user_id=user_id)
    if not _are_needed():
        rows.exclude(id_token="").update(id_token="", id_token_ends_at=None)
        return
    with short_transaction():
        values.lock()
        rows.update(id_token=values.encrypt(id_token), id_token_ends_at=ends_at)
        # A refusal of the login before says nothing about this one, which is tried at once.
        UserSignIn.objects.filter(user_id=user_id).update(next_refresh_at=None)


def of_user(user_id: int) -> tuple[str, str]:
    """The issuer and the ID token of the user. Raises AssertionRefusedError with what to do, and KeyFileError."""
    name, issuer = settings.GUILD_HALL_OIDC_NAME, settings.GUILD_HALL_OIDC_ISSUER
    if not issuer:
        raise AssertionRefusedError("it takes the login at the single sign-on of the hall, and the hall has none")
    row = Identity.objects.filter(user_id=user_id, user__is_active=True).first()
    if row is None or row.issuer.rstrip("/") != issuer.rstrip("/"):
        raise AssertionRefusedError(f"it takes the login at {name}; log in to the hall with {name}", needs_login=True)
    if not row.id_token or row.id_token_ends_at is None or row.id_token_ends_at <= clock.now():
        raise AssertionRefusedError(
            f"it takes the login at {name}, and that of this user has ended; log in to the hall with {name} again",
            needs_login=True,
        )
    return row.issuer, values.decrypt_text(row.id_token, "the ID token of the user was")


def users_with_one(user_ids: Collection[int]) -> set[int]:
    """Those of the users for whom `of_user` has an ID token now. It may be one that the provider does not accept."""
    issuer = settings.GUILD_HALL_OIDC_ISSUER.rstrip("/")
    if not user_ids or not issuer:
        return set()
    rows = Identity.objects.filter(user_id__in=user_ids, user__is_active=True, id_token_ends_at__gt=clock.now())
    named = rows.exclude(id_token="").values_list("user_id", "issuer")
    return {user_id for user_id, of_row in named if of_row.rstrip("/") == issuer}


def prune() -> None:
    """Forget those that have ended or whose user is not active, and all of them if no member takes them any more."""
    rows = Identity.objects.exclude(id_token="")
    if _are_needed():
        rows = rows.filter(Q(id_token_ends_at__lt=clock.now()) | Q(user__is_active=False))
    rows.update(id_token="", id_token_ends_at=None)


def encrypt_again() -> None:
    """Encrypt them with the first key of the file. An unreadable one is forgotten. Call it after `values.lock`."""
    for row in Identity.objects.exclude(id_token=""):
        try:
            text = values.encrypt(values.decrypt_text(row.id_token, "the ID token of the user was"))
        except KeyFileError:
            text = ""
        Identity.objects.filter(pk=row.pk, id_token=row.id_token).update(id_token=text)


def _are_needed() -> bool:
    manifests = GuildMember.objects.filter(removed_at=None).exclude(server_url="").values_list("manifest", flat=True)
    return any(_takes_them((manifest or {}).get("oauth") or {}) for manifest in manifests)


def _takes_them(oauth: dict[str, object]) -> bool:
    return oauth.get("grant") == "enterprise_managed" and oauth.get("credentials") == "user"

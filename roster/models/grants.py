"""What people allowed to clients that signed in. `roster.sign_in` writes these rows, and the gateway reads them."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

from django.db import models
from django.db.models import Value
from django.db.models.functions import Now

from roster.models.tokens import Token


class Grant(models.Model):
    """The consent of a person to one client. Its token has the user, the scope, the limits and the end.

    With an outside issuer, the person consents there. `mcp_runtime.security.outside_clients` then makes the row when
    the client comes for the first time, and there are neither codes nor access tokens in the hall.

    No text matches the digest of this token. The client has access tokens in its place, and gets new ones with its
    refresh token. Whoever revokes the token ends all of them.
    """

    # With an outside issuer, which ends it. The column cannot be null, because older versions have it so.
    NO_END = datetime(9999, 1, 1, tzinfo=UTC)

    token = models.OneToOneField(Token, on_delete=models.CASCADE, primary_key=True, related_name="grant")
    client_id = models.CharField(max_length=255, db_index=True, help_text="As in the rows of the OAuth library.")
    redirect_uri = models.CharField(max_length=500, help_text="Where the browser was sent after the consent.")
    code_digest = models.CharField(
        max_length=64, unique=True, null=True, help_text="The SHA-256 of the authorization code."
    )
    redeemed_at = models.DateTimeField(null=True, help_text="When the client got its first access token for the code.")
    family = models.UUIDField(
        unique=True, null=True, help_text="The family of the refresh tokens, as in the rows of the OAuth library."
    )
    ends_at = models.DateTimeField(
        help_text="The end that the person chose. Until it is redeemed, the token ends soon."
    )
    days = models.PositiveIntegerField(
        null=True,
        help_text="The days that the person chose. Null with an outside issuer and in older rows.",
    )
    issuer = models.CharField(
        max_length=500, blank=True, db_default="", help_text="The outside issuer, or empty if the hall is the issuer."
    )
    outside_key = models.CharField(
        max_length=64,
        unique=True,
        null=True,
        help_text="With an outside issuer: one row for each user, client, address and scope. See `outside_clients`.",
    )

    class Meta:
        default_permissions = ()  # those of its token decide

    def __str__(self) -> str:
        return f"grant of {self.token_id}"


class AccessToken(models.Model):
    """A key of a grant for the gateway. Only its SHA-256 is stored."""

    PREFIX = "gha_"  # logs mask what begins so, see roster.masked_log
    REFRESH_PREFIX = "ghr_"  # of refresh tokens, whose rows are those of the OAuth library
    KEEP = timedelta(days=1)  # after its end, so that errors say why it is not valid

    digest = models.CharField(max_length=64, primary_key=True)
    grant = models.ForeignKey(Grant, on_delete=models.CASCADE, related_name="access_tokens")
    expires_at = models.DateTimeField()

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"access token of {self.grant_id}"

    @staticmethod
    def digest_of(text: str) -> str:
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    @classmethod
    def prune(cls) -> int:
        return cls.objects.filter(expires_at__lt=Now() - Value(cls.KEEP)).delete()[0]


class ClientRegistration(models.Model):
    """An attempt to register a client. All processes of the web count them."""

    MAX_PER_MINUTE = 10  # of one address
    MAX_PER_MINUTE_OF_ALL = 100
    KEEP = timedelta(hours=1)

    address = models.CharField(max_length=100, help_text="Of the connection. Behind a proxy it is the proxy's.")
    at = models.DateTimeField(db_default=Now(), db_index=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"registration from {self.address}"

    @classmethod
    def is_too_often(cls, address: str) -> bool:
        """Count an attempt, unless there were too many in the last minute."""
        recent = cls.objects.filter(at__gt=Now() - Value(timedelta(minutes=1)))
        if recent.filter(address=address).count() >= cls.MAX_PER_MINUTE or recent.count() >= cls.MAX_PER_MINUTE_OF_ALL:
            return True
        cls.objects.create(address=address)
        return False

    @classmethod
    def prune(cls) -> int:
        return cls.objects.filter(at__lt=Now() - Value(cls.KEEP)).delete()[0]

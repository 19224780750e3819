"""Invitations of people who have no account yet."""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta

from django.conf import settings
from django.db import models
from django.db.models import Value
from django.db.models.functions import Now
from django.utils import timezone

from roster.models.roles import Role


class Invitation(models.Model):
    """A link with which one person makes an account with this role. `roster.invitations` makes and spends it.

    The link contains a secret. The row has only the hash of it. If the inviter is deleted, the invitation is too.
    """

    PREFIX = "ghi_"  # logs mask what begins so, see roster.masked_log
    LIFETIME = timedelta(hours=72)
    MAX_OPEN = 100  # of one inviter
    KEEP = timedelta(days=30)  # in the list, after its time is over, also if it was used or revoked

    digest = models.CharField(max_length=64, unique=True, editable=False)
    role = models.ForeignKey(Role, on_delete=models.CASCADE, related_name="+")
    note = models.CharField(max_length=150, blank=True, help_text="Who it is for. Only people who may invite see this.")
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.CASCADE,
        null=True,
        related_name="invitations",
        help_text="The inviter. None if the operator made it with `manage.py invite`.",
    )
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)
    used_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.SET_NULL,
        null=True,
        related_name="+",
        help_text="The user who was made with it.",
    )
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]
        default_permissions = ()  # auth.add_user decides

    def __str__(self) -> str:
        return f"invitation {self.pk} as {self.role}"

    @property
    def state(self) -> str:
        """`open`, `used`, `revoked` or `expired`."""
        if self.used_at is not None:
            return "used"
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at <= timezone.now() else "open"

    @classmethod
    def prune(cls) -> int:
        """Delete invitations that expired KEEP days ago. Return how many. The audit log keeps who invited whom."""
        return cls.objects.filter(expires_at__lt=Now() - Value(cls.KEEP)).delete()[0]

    @classmethod
    def new_secret(cls) -> str:
        return cls.PREFIX + secrets.token_urlsafe(32)

    @staticmethod
    def digest_of(secret: str) -> str:
        return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()

"""Secrets for members, and which members may use them."""

from __future__ import annotations

from django.conf import settings
from django.core.validators import RegexValidator
from django.db import models
from django.utils import timezone

from roster.json_field import JsonField
from roster.models.members import GuildMember


class Secret(models.Model):
    """A value that manifests refer to as `${secret:NAME}`. `mcp_runtime.secrets.values` encrypts and decrypts it."""

    name = models.CharField(
        max_length=64,
        unique=True,
        validators=[RegexValidator(r"^[A-Za-z0-9_.-]+\Z", "Use letters, digits, '.', '-' and '_'.")],
        help_text="Manifests refer to it as ${secret:NAME}.",
    )
    encrypted = models.TextField(editable=False, help_text="The value, encrypted with a key of the key file.")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    changed_at = models.DateTimeField(default=timezone.now, editable=False, help_text="When its value was last set.")
    changed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, editable=False, on_delete=models.SET_NULL, related_name="+"
    )

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class SecretUse(models.Model):
    """A member may use a secret, as long as the member is what it was when somebody allowed that."""

    secret = models.ForeignKey(Secret, on_delete=models.CASCADE, related_name="uses")
    member = models.ForeignKey(GuildMember, on_delete=models.CASCADE, related_name="secret_uses")
    digest = models.CharField(
        max_length=64, help_text="The digest of what the member runs or calls, when this was allowed."
    )
    parts = JsonField(default=dict, help_text="The digests of its parts, by their keys in the manifest.")
    allowed_at = models.DateTimeField(default=timezone.now)
    allowed_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["secret", "member"], name="secret_is_allowed_once_for_a_member")]
        default_permissions = ()  # those of the secret decide

    def __str__(self) -> str:
        return f"{self.secret} for {self.member}"

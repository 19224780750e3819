"""Who users are at a provider of single sign-on."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db import models

from roster.json_field import JsonField


class Identity(models.Model):
    """The person at a provider who a user is. A user without a row is a local user.

    Issuer and subject decide who it is. Names and e-mail addresses never do, because they can be given to another
    person. `roster.single_sign_on.people` writes it, and `mcp_runtime.members.kept_id_tokens` the ID token.
    """

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="identity")
    issuer = models.CharField(max_length=500, help_text="The issuer of the provider, as in its ID tokens.")
    subject = models.CharField(max_length=255, help_text="The id of the person at the provider.")
    created_at = models.DateTimeField()
    last_login_at = models.DateTimeField(help_text="The last login through the provider.")
    granted_groups = JsonField(
        db_default=[], default=list, help_text="The ids of the groups, also of roles, that the last login gave."
    )

    id_token = models.TextField(
        blank=True, db_default="", default="", editable=False, help_text="Of the last login, encrypted as secrets are."
    )
    id_token_ends_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        default_permissions = ()
        verbose_name_plural = "identities"
        constraints = [models.UniqueConstraint(fields=["issuer", "subject"], name="one_user_per_issuer_and_subject")]

    def __str__(self) -> str:
        return f"{self.subject} of {self.issuer}"

    @property
    def tokens_end_at(self) -> datetime:
        """When the tokens of the user give no access any more, unless the user logs in again before."""
        return self.last_login_at + timedelta(days=settings.GUILD_HALL_OIDC_TOKEN_DAYS)

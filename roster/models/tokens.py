"""API tokens, and the programs that came with one."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.validators import MinValueValidator
from django.db import models, transaction
from django.db.models import Q
from django.utils import timezone

from roster.models.members import GuildMember, Tool


class ApiToken(models.Model):
    """A user's key to the API and the gateway. Only its SHA-256 is stored: a random token needs no slow hash.

    It opens what its user may, narrowed by its scope. Which kind of scope it has is said by `scope` alone: one whose
    last member left the hall opens nothing, never everything.
    """

    class Scope(models.TextChoices):
        ALL = "all", "Everything its user may"
        MEMBERS = "members", "Some members"  # `members` says which
        TOOLS = "tools", "Some tools"  # `tools` says which; nothing else of their members

    PREFIX = "gh_"

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=100, blank=True, help_text="What it is for, to tell it from others.")
    digest = models.CharField(max_length=64, unique=True, editable=False)
    hint = models.CharField(max_length=12, editable=False, help_text="How the token begins, to tell it from others.")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True, help_text="From then on it opens nothing; empty: never.")
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False, help_text="To the minute.")
    made_with = models.ForeignKey(
        "self",
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        editable=False,
        related_name="made_tokens",
        help_text="The token that it was made with, if with any: it ends with that one.",
    )
    scope = models.CharField(max_length=10, choices=Scope.choices, default=Scope.ALL)
    members = models.ManyToManyField(GuildMember, blank=True, related_name="api_tokens")
    tools = models.ManyToManyField(Tool, blank=True, related_name="api_tokens")
    calls_per_minute = models.PositiveIntegerField(
        null=True, blank=True, help_text="0 is no limit; empty is that of GUILD_HALL_CALLS_PER_MINUTE."
    )
    max_in_flight = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Calls that may be under way at the same time; empty is GUILD_HALL_MAX_IN_FLIGHT.",
    )

    class Meta:
        ordering = ["-id"]
        verbose_name = "API token"
        constraints = [
            models.CheckConstraint(condition=Q(scope__in=["all", "members", "tools"]), name="token_scope_is_known")
        ]

    def __str__(self) -> str:
        return f"{self.hint}… of {self.user}"

    @property
    def state(self) -> str:
        """`good`, `expired` or `revoked`."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= timezone.now() else "good"

    @staticmethod
    def digest_of(token: str) -> str:
        return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()

    @classmethod
    def make(
        cls,
        *,
        user: Any,
        name: str = "",
        expires_at: datetime | None = None,
        scope: Scope = Scope.ALL,
        members: Iterable[GuildMember] = (),
        tools: Iterable[Tool] = (),
        calls_per_minute: int | None = None,
        max_in_flight: int | None = None,
        made_with_id: int | None = None,
    ) -> tuple[ApiToken, str]:
        """A new row and the token itself, which is not kept anywhere: show it once."""
        token = cls.PREFIX + secrets.token_urlsafe(32)
        with transaction.atomic():
            row = cls.objects.create(
                user=user,
                name=name,
                digest=cls.digest_of(token),
                hint=token[:8],
                expires_at=expires_at,
                scope=scope,
                calls_per_minute=calls_per_minute,
                max_in_flight=max_in_flight,
                made_with_id=made_with_id,
            )
            row.members.set(members)
            row.tools.set(tools)
        return row, token

    def revoke(self) -> list[int]:
        """From now on it opens nothing, nor does any token that was made with it, or with one of those; all their ids.

        The rows stay, for the calls that were made with them.
        """
        self.revoked_at = self.revoked_at or timezone.now()
        ended, next_ones = [self.pk], [self.pk]
        with transaction.atomic():
            self.save(update_fields=["revoked_at"])
            while next_ones := list(ApiToken.objects.filter(made_with__in=next_ones).values_list("pk", flat=True)):
                ApiToken.objects.filter(pk__in=next_ones, revoked_at=None).update(revoked_at=self.revoked_at)
                ended += next_ones
        return ended


class TokenClient(models.Model):
    """A program that came to the gateway with a token, as it calls itself: nobody checks what it says.

    Written by `mcp_runtime.gateway.programs`, at most once a minute for each.
    """

    token = models.ForeignKey(ApiToken, on_delete=models.CASCADE, related_name="clients")
    name = models.CharField(max_length=100)
    version = models.CharField(max_length=50, blank=True)
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    calls = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ["-last_seen_at"]
        constraints = [
            models.UniqueConstraint(fields=["token", "name", "version"], name="client_is_unique_of_its_token")
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()

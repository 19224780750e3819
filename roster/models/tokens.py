"""Tokens, and the programs that used them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from django.conf import settings
from django.core.validators import MinValueValidator
from django.db import models, transaction
from django.db.models import Q
from django.utils import timezone

from roster.json_field import JsonField
from roster.models.identities import Identity
from roster.models.members import GuildMember, Tool
from roster.models.tool_sets import ToolSet


@dataclass(frozen=True)
class TokenLimit:
    """A limit of a token: its column, and all that REST, the admin and commands need to read and show it.

    Its name is that of the column, of the key in REST, of the option of create_token, and in `security.limits`.
    If `minimum` is 0, the value 0 means no limit.
    """

    name: str
    words: str  # as in "it has 5 WORDS"
    setting: str  # the limit of tokens without their own
    minimum: int
    maximum: int  # in REST. guildhall/settings.py has the bounds of the setting
    help_text: str

    def column(self) -> models.PositiveIntegerField[int | None, int | None]:
        validators = [MinValueValidator(self.minimum)] if self.minimum else []
        return models.PositiveIntegerField(null=True, blank=True, validators=validators, help_text=self.help_text)

    @property
    def zero(self) -> str:
        """What 0 means, if it is allowed."""
        return "" if self.minimum else "0 is no limit"

    @property
    def default(self) -> int:
        return int(getattr(settings, self.setting))

    def of(self, token: Token) -> int:
        """The limit of the token, its own or the default."""
        value: int | None = getattr(token, self.name)
        return self.default if value is None else value


CALLS_PER_MINUTE = TokenLimit(
    name="calls_per_minute",
    words="calls per minute",
    setting="GUILD_HALL_CALLS_PER_MINUTE",
    minimum=0,
    maximum=1_000_000,
    help_text="0 means no limit. If empty, GUILD_HALL_CALLS_PER_MINUTE applies.",
)
MAX_IN_FLIGHT = TokenLimit(
    name="max_in_flight",
    words="concurrent calls",
    setting="GUILD_HALL_MAX_IN_FLIGHT",
    minimum=1,
    maximum=100_000,
    help_text="The maximum number of concurrent calls. If empty, GUILD_HALL_MAX_IN_FLIGHT applies.",
)


class Token(models.Model):
    """A user's key to the API and the gateway. Only its SHA-256 is stored, because a random token needs no slow hash.

    It has the rights of its user, narrowed by its scope. Only `scope` says which kind of scope it is. So a token whose
    last member left the hall gives no access, not access to everything.
    """

    class Scope(models.TextChoices):
        ALL = "all", "Everything"
        MEMBERS = "members", "Some members"  # `members` says which
        # `tools` says which, nothing else of their members. Or `tool_set` does, as a whole. A version without tool
        # sets then finds no tool, and gives no access. It would take an unknown scope for everything.
        TOOLS = "tools", "Some tools"

    LIMITS = (CALLS_PER_MINUTE, MAX_IN_FLIGHT)
    # For `make`. It switches off all limits that can be switched off. The others hold for every token.
    UNLIMITED: ClassVar[dict[str, int]] = {limit.name: 0 for limit in LIMITS if not limit.minimum}
    # A dormant token is one of a user of single sign-on who has not logged in for too long.
    STATES = ("good", "expired", "revoked", "dormant")
    PREFIX = "gh_"
    MAX_PINNED = 20

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(
        max_length=100, blank=True, help_text="The purpose of the token, such as the name of its client."
    )
    digest = models.CharField(max_length=64, unique=True, editable=False)
    hint = models.CharField(max_length=12, editable=False, help_text="The first characters of the token.")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="The token gives no access from this time on. Leave it empty for a token that does not expire.",
    )
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="The minute of the last request with the token."
    )
    made_with = models.ForeignKey(
        "self",
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        editable=False,
        related_name="made_tokens",
        help_text="The token that created this token. If that token is revoked, this one is revoked too.",
    )
    scope = models.CharField(max_length=10, choices=Scope.choices, default=Scope.ALL)
    members = models.ManyToManyField(GuildMember, blank=True, related_name="tokens")
    tools = models.ManyToManyField(Tool, blank=True, related_name="tokens")
    tool_set = models.ForeignKey(
        ToolSet,
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="tokens",
        help_text="The token is for what is in this tool set, also after changes of the set.",
    )
    calls_per_minute = CALLS_PER_MINUTE.column()
    max_in_flight = MAX_IN_FLIGHT.column()
    search_mode = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Clients list three tools that find and call all others, in place of all tools.",
    )
    # A version without grants finds no text with the digest of a grant's token, so it need not know this.
    resource = models.CharField(
        max_length=210,
        blank=True,
        db_default="",
        editable=False,
        help_text="Of a grant: the path of the gateway that it is for. Empty for a token.",
    )
    pinned_tools = JsonField(
        default=list,
        db_default=[],
        blank=True,
        help_text="MEMBER/TOOL of the tools that clients list beside these three.",
    )

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(condition=Q(scope__in=["all", "members", "tools"]), name="token_scope_is_known")
        ]

    def __str__(self) -> str:
        return f"{self.hint}… of {self.user}"

    @property
    def audit_name(self) -> str:
        """As in the audit log, whose entries stay when the token is deleted."""
        return f"token {self.hint}… {f'({self.name}) ' if self.name else ''}of {self.user}"

    @property
    def is_grant(self) -> bool:
        """Whether it belongs to a client that signed in (`Grant`)."""
        return bool(self.resource)

    @property
    def state(self) -> str:
        """One of STATES."""
        now = timezone.now()
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and self.expires_at <= now:
            return "expired"
        return "dormant" if self.dormant_at is not None and self.dormant_at <= now else "good"

    @property
    def dormant_at(self) -> datetime | None:
        """From when on it gives no access until its user logs in again. None for tokens of local users.

        Queries, unless `user__identity` is selected.
        """
        identity: Identity | None = getattr(self.user, "identity", None)
        return None if identity is None else identity.tokens_end_at

    @property
    def ends_at(self) -> datetime | None:
        """When it ends or becomes dormant. None for never. Queries as `dormant_at` does."""
        return min((moment for moment in (self.expires_at, self.dormant_at) if moment is not None), default=None)

    @property
    def own_limits(self) -> dict[str, int | None]:
        """The limits by name. None means the default."""
        return {limit.name: getattr(self, limit.name) for limit in self.LIMITS}

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
        tool_set: ToolSet | None = None,
        made_with_id: int | None = None,
        search_mode: bool = False,
        pinned_tools: Sequence[str] = (),
        resource: str = "",
        **limits: int | None,
    ) -> tuple[Token, str]:
        """Create a row, and return it with the token, which is stored nowhere. `limits` has the names in LIMITS."""
        token = cls.PREFIX + secrets.token_urlsafe(32)
        with transaction.atomic():
            row = cls.objects.create(
                user=user,
                name=name,
                digest=cls.digest_of(token),
                hint=token[:8],
                expires_at=expires_at,
                scope=scope,
                tool_set=tool_set,
                made_with_id=made_with_id,
                search_mode=search_mode,
                pinned_tools=list(pinned_tools),
                resource=resource,
                **limits,
            )
            row.members.set(members)
            row.tools.set(tools)
        return row, token

    def revoke(self) -> list[int]:
        """Revoke it and all tokens that were made with it, directly or indirectly. Returns their ids.

        The rows stay, for the calls that were made with them.
        """
        self.revoked_at = self.revoked_at or timezone.now()
        token_ids, children = [self.pk], [self.pk]
        with transaction.atomic():
            self.save(update_fields=["revoked_at"])
            while children := list(Token.objects.filter(made_with__in=children).values_list("pk", flat=True)):
                Token.objects.filter(pk__in=children, revoked_at=None).update(revoked_at=self.revoked_at)
                token_ids += children
        return token_ids


class TokenClient(models.Model):
    """A program that used a token at the gateway, under the name that it gave. Nobody checks the name.

    `mcp_runtime.gateway.programs` writes it, at most once a minute for each.
    """

    token = models.ForeignKey(Token, on_delete=models.CASCADE, related_name="clients")
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


class TokenBucket(models.Model):
    """The calls of a token in this minute, for all gateways of a hall with several nodes. They borrow calls from it."""

    token = models.OneToOneField(Token, on_delete=models.CASCADE, primary_key=True, related_name="bucket")
    full_at = models.DateTimeField(help_text="When all calls of a minute may be made again, by the database's clock.")

    def __str__(self) -> str:
        return f"bucket of {self.token_id}"


class TokenShare(models.Model):
    """How many concurrent calls of a token the gateway of one runtime may have, in a hall with several nodes.

    The shares of all living runtimes together are never more than the token's `max_in_flight`.
    """

    token = models.ForeignKey(Token, on_delete=models.CASCADE, related_name="shares")
    lease_id = models.UUIDField(help_text="The lease of the runtime.")
    calls = models.PositiveIntegerField(help_text="The number of concurrent calls.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["token", "lease_id"], name="one_share_per_token_and_lease")]

    def __str__(self) -> str:
        return f"{self.calls} concurrent calls of {self.token_id}"

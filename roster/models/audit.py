"""The audit log: who changed what. Entries are only added, and `prune` deletes old ones.

The model refuses changes and deletions, and so do triggers in the database. They permit one thing, the deletion of
entries that are older than MIN_DAYS. Age needs no switch that other code could use too, it is the same rule for every
client of the database, and a fault in `prune` or its setting cannot delete new entries.
"""

from __future__ import annotations

import getpass
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import msgspec
from django.db import IntegrityError, NotSupportedError, models, transaction
from django.db.models import F, Value
from django.db.models.functions import Now
from django.utils import timezone

from mcp_runtime.secrets.references import MASK
from roster.json_field import JsonField

# What begins so is a token, an access or refresh token, or the secret of an invitation. The hint of a token is shorter.
_SECRET = re.compile(r"\bgh([iar]?)_[A-Za-z0-9_-]{12,}")
_SECRET_KEY = re.compile(r"passw|secret|digest|api_?key|authorization", re.IGNORECASE)
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")  # PostgreSQL refuses them
MAX_TEXT, MAX_ITEMS, MAX_DEPTH = 500, 50, 4  # of a value, of one list or object, of objects in objects
MAX_NAME = 400  # of an actor and a target
MAX_BYTES = 8_000  # of the JSON of one side
PRUNE_BATCH = 1000


# Who --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Actor:
    """Who makes a change. The name stays in the log when the user is deleted."""

    source: str  # of AuditEntry.Source
    name: str
    user_id: int | None = None
    token_id: int | None = None
    address: str = ""  # of the client's connection. Only entries of logins have it


def of_command_line() -> Actor:
    """The user of the operating system, with the command that this process runs."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container may run with an id that has no name
        user = str(os.geteuid())
    verb = sys.argv[1] if len(sys.argv) > 1 and re.fullmatch(r"[a-z_]{1,40}", sys.argv[1]) else ""
    command = Path(sys.argv[0]).name[:40] if sys.argv and sys.argv[0] else "python"
    return Actor(AuditEntry.Source.COMMAND, f"system user {user} ({command}{' ' if verb else ''}{verb})")


def of_runtime() -> Actor:
    return Actor(AuditEntry.Source.RUNTIME, "the runtime")


_actor: ContextVar[Callable[[], Actor] | None] = ContextVar("actor of the audit log", default=None)
actors_of_process: list[Callable[[], Actor]] = []


def act_as_runtime() -> None:
    """From now on the runtime makes the changes of this process, in all its threads."""
    actors_of_process[:] = [of_runtime]


@contextmanager
def acting(actor: Callable[[], Actor]) -> Iterator[None]:
    """This actor makes the changes inside. It is asked at each entry, because REST learns late who sent a request."""
    reset = _actor.set(actor)
    try:
        yield
    finally:
        _actor.reset(reset)


def current_actor() -> Actor:
    """Who makes changes now. Outside of `acting`, a process is a command, or the runtime."""
    return (_actor.get() or (actors_of_process or [of_command_line])[0])()


# The rows ---------------------------------------------------------------------------------------------------------


def _refuse() -> NoReturn:
    raise NotSupportedError("Entries of the audit log are only added. Nobody changes or deletes them.")


class AppendOnlyQuerySet(models.QuerySet["AuditEntry"]):
    def update(self, **_: Any) -> NoReturn:
        _refuse()

    def delete(self) -> NoReturn:
        _refuse()

    def bulk_update(self, *_: Any, **__: Any) -> NoReturn:
        _refuse()


class AuditEntry(models.Model):
    """One change or login. It refers to no other row, because it stays when that row is deleted.

    `record` writes it, in the transaction of the change that it describes.
    """

    class Source(models.TextChoices):
        WEB = "web", "Web"  # a browser
        REST = "rest", "REST"
        COMMAND = "command", "Command line"
        RUNTIME = "runtime", "Runtime"

    class Kind(models.TextChoices):
        LOGIN = "login", "logged in"
        LOGIN_FAILED = "login_failed", "failed to log in"
        LOGOUT = "logout", "logged out"
        LOGIN_LINK_MADE = "login_link_made", "made a link for a login"
        USER_CREATED = "user_created", "created user"
        USER_CHANGED = "user_changed", "changed user"
        USER_DELETED = "user_deleted", "deleted user"
        ROLE_CHANGED = "role_changed", "changed role"
        PASSWORD_CHANGED = "password_changed", "changed password"
        INVITATION_MADE = "invitation_made", "invited"
        INVITATION_REVOKED = "invitation_revoked", "revoked invitation"
        INVITATION_ACCEPTED = "invitation_accepted", "accepted invitation"
        TOKEN_CREATED = "token_created", "created token"
        TOKEN_CHANGED = "token_changed", "changed token"
        TOKEN_REVOKED = "token_revoked", "revoked token"
        TOKEN_DELETED = "token_deleted", "deleted token"
        CLIENT_ALLOWED = "client_allowed", "allowed client"
        GROUP_CREATED = "group_created", "created group"
        GROUP_CHANGED = "group_changed", "changed group"
        GROUP_DELETED = "group_deleted", "deleted group"
        MEMBER_PROPOSED = "member_proposed", "proposed member"
        MEMBER_APPROVED = "member_approved", "approved member"
        MEMBER_DISCARDED = "member_discarded", "discarded proposed member"
        MEMBER_ADDED = "member_added", "added member"
        MEMBER_REMOVED = "member_removed", "removed member"
        MEMBER_TRASHED = "member_trashed", "moved member to the trash"
        MEMBER_RESTORED = "member_restored", "restored member"
        MEMBER_DELETED = "member_deleted", "deleted member"
        EDIT_PROPOSED = "edit_proposed", "proposed edit"
        EDIT_APPROVED = "edit_approved", "approved edit"
        EDIT_DISCARDED = "edit_discarded", "discarded edit"
        MEMBER_STARTED = "member_started", "started member"
        MEMBER_STOPPED = "member_stopped", "stopped member"
        MEMBER_RESTARTED = "member_restarted", "restarted member"
        MEMBER_REFRESHED = "member_refreshed", "refreshed member"
        MEMBER_ENABLED = "member_enabled", "enabled member"
        MEMBER_DISABLED = "member_disabled", "disabled member"
        MEMBER_MOVED = "member_moved", "moved member"
        MEMBER_RESERVED = "member_reserved", "reserved member"
        MEMBER_SIGNED_IN = "member_signed_in", "signed member in"
        MEMBER_SIGNED_OUT = "member_signed_out", "signed member out"
        PACKAGES_LOCKED = "packages_locked", "locked packages"
        PACKAGES_UNLOCKED = "packages_unlocked", "deleted locks of packages"
        TOOL_ENABLED = "tool_enabled", "enabled tool"
        TOOL_DISABLED = "tool_disabled", "disabled tool"
        PROMPT_ENABLED = "prompt_enabled", "enabled prompt"
        PROMPT_DISABLED = "prompt_disabled", "disabled prompt"
        RESOURCE_ENABLED = "resource_enabled", "enabled resource"
        RESOURCE_DISABLED = "resource_disabled", "disabled resource"
        RESOURCE_TEMPLATE_ENABLED = "resource_template_enabled", "enabled resource template"
        RESOURCE_TEMPLATE_DISABLED = "resource_template_disabled", "disabled resource template"
        CONTRACT_APPROVED = "contract_approved", "approved change"
        TOOL_SET_CREATED = "tool_set_created", "created tool set"
        TOOL_SET_CHANGED = "tool_set_changed", "changed tool set"
        TOOL_SET_DELETED = "tool_set_deleted", "deleted tool set"
        SECRET_SET = "secret_set", "set secret"
        SECRET_DELETED = "secret_deleted", "deleted secret"
        SECRET_ALLOWED = "secret_allowed", "allowed secret"
        SECRET_FORBIDDEN = "secret_forbidden", "forbade secret"
        SECRETS_KEY_ROTATED = "secrets_key_rotated", "rotated key of secrets"
        NODE_DRAINED = "node_drained", "drained node"
        NODE_UNDRAINED = "node_undrained", "undrained node"
        NODE_REMOVED = "node_removed", "removed node"

    MIN_DAYS = 30  # the triggers of migration 0030 have the same number
    # Entries in an hour, and of these about one target. Strangers and members cause them, as often as they like. The
    # rest is counted, and becomes one entry.
    LIMITS: ClassVar[dict[str, tuple[int, int]]] = {
        Kind.LOGIN_FAILED: (100, 20),
        Kind.MEMBER_ADDED: (2000, 20),
        Kind.MEMBER_REMOVED: (2000, 20),
        Kind.PACKAGES_LOCKED: (2000, 20),
    }

    at = models.DateTimeField("time", db_default=Now(), editable=False)
    # Without `choices`, so that a new kind needs no migration, and a version without it can still show its entries.
    kind = models.CharField(max_length=30, editable=False)
    source = models.CharField(max_length=10, editable=False)
    actor = models.CharField(max_length=MAX_NAME, editable=False, help_text="Who did it, by name.")
    actor_user = models.BigIntegerField(null=True, editable=False, help_text="The id of the user, who may be deleted.")
    actor_token = models.BigIntegerField(null=True, editable=False, help_text="The id of the token of the request.")
    address = models.CharField(max_length=100, blank=True, editable=False, help_text="For logins, that of the client.")
    target = models.CharField(max_length=MAX_NAME, editable=False, help_text="What it is about, such as user bob.")
    member = models.CharField(max_length=64, blank=True, editable=False, help_text="The member that it is about.")
    before = JsonField(null=True, editable=False)
    after = JsonField(null=True, editable=False)

    objects = AppendOnlyQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        base_manager_name = "objects"
        default_permissions = ("view",)
        verbose_name_plural = "audit entries"
        indexes = [models.Index(fields=["kind", "at"]), models.Index(fields=["at"])]

    def __str__(self) -> str:
        return f"{self.actor} {self.action}: {self.target}"

    @property
    def action(self) -> str:
        """The kind in words."""
        return str(dict(self.Kind.choices).get(self.kind, self.kind))

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            _refuse()
        super().save(*args, **{**kwargs, "force_insert": True})

    def delete(self, *_: Any, **__: Any) -> NoReturn:
        _refuse()

    @classmethod
    def record(
        cls,
        kind: Kind,
        target: str,
        *,
        member: str = "",
        before: dict[str, Any] | None = None,
        after: dict[str, Any] | None = None,
        actor: Actor | None = None,
    ) -> None:
        """Add an entry. Call it in the transaction of the change.

        `before` and `after` have the names and values that changed. Secrets in them are masked, and long values are
        cut. Lists of names under `members` and `tools` are shown only as far as the reader may see them.
        """
        target = _text(target)[:MAX_NAME]
        if kind in cls.LIMITS and cls._overflows(kind, target):
            return
        actor = actor or current_actor()
        cls.objects.create(
            kind=kind,
            source=actor.source,
            actor=_text(actor.name)[:MAX_NAME],
            actor_user=actor.user_id,
            actor_token=actor.token_id,
            address=actor.address[:100],
            target=target,
            member=member,
            before=_bounded(before),
            after=_bounded(after),
        )

    @classmethod
    def _overflows(cls, kind: Kind, target: str) -> bool:
        """Whether this hour has enough entries of the kind. Then this one is counted."""
        AuditOverflow.settle()
        in_all, of_target = cls.LIMITS[kind]
        hour = AuditOverflow.this_hour()
        entries = cls.objects.filter(kind=kind, at__gte=hour)
        if entries.count() < in_all and entries.filter(target=target).count() < of_target:
            return False
        AuditOverflow.count_one(kind, hour)
        return True

    @classmethod
    def prune(cls, days: int) -> int:
        """Delete entries that are older than so many days, at least MIN_DAYS. Returns how many."""
        count = 0
        # Not `cls.objects`, which refuses it.
        age = Value(timedelta(days=max(days, cls.MIN_DAYS)))
        old: models.QuerySet[AuditEntry] = models.QuerySet(cls).filter(at__lt=Now() - age).order_by("pk")
        while ids := list(old.values_list("pk", flat=True)[:PRUNE_BATCH]):
            count += models.QuerySet(cls).filter(pk__in=ids)._raw_delete(old.db)
        return count


class AuditOverflow(models.Model):
    """How many entries of a kind were left out in one hour. When the hour is over, one entry replaces it."""

    kind = models.CharField(max_length=30)
    hour = models.DateTimeField(help_text="The beginning of the hour.")
    count = models.PositiveBigIntegerField(default=0)

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["kind", "hour"], name="one_overflow_per_kind_and_hour")]

    def __str__(self) -> str:
        return f"{self.count} more of {self.kind} since {self.hour}"

    @staticmethod
    def this_hour() -> datetime:
        return timezone.now().replace(minute=0, second=0, microsecond=0)

    @classmethod
    def count_one(cls, kind: str, hour: datetime) -> None:
        rows = cls.objects.filter(kind=kind, hour=hour)
        if not rows.update(count=F("count") + 1):
            try:
                with transaction.atomic():
                    cls.objects.create(kind=kind, hour=hour, count=1)
            except IntegrityError:  # another request was faster
                rows.update(count=F("count") + 1)

    @classmethod
    def settle(cls) -> None:
        """Replace each row of an hour that is over by an entry."""
        for row in cls.objects.filter(hour__lt=cls.this_hour()):
            with transaction.atomic():
                # Of several processes at the same moment, the database lets one delete the row.
                if cls.objects.filter(pk=row.pk, count=row.count).delete()[0]:
                    row.record()

    def record(self) -> None:
        AuditEntry.objects.create(
            kind=self.kind,
            source=AuditEntry.Source.RUNTIME,
            actor="several",
            target=f"{self.count:,} more, which have no entries of their own",
            after={"count": self.count, "hour": f"{self.hour:%Y-%m-%d %H}:00 UTC"},
        )


# Values -----------------------------------------------------------------------------------------------------------


def _bounded(values: dict[str, Any] | None) -> Any:
    if values is None:
        return None
    plain = _plain(values, 0)
    return plain if len(msgspec.json.encode(plain)) <= MAX_BYTES else {"note": "The values are too long for this log."}


def _plain(value: Any, depth: int) -> Any:
    """The value as JSON, without secrets and without what is too long or too deep."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth >= MAX_DEPTH or not isinstance(value, dict | list | tuple | set | frozenset):
        return _text(str(value))
    if isinstance(value, dict):
        items = [(_text(str(key)), part) for key, part in list(value.items())[:MAX_ITEMS]]
        return {key: MASK if _SECRET_KEY.search(key) else _plain(part, depth + 1) for key, part in items}
    parts = sorted(value) if isinstance(value, set | frozenset) else list(value)
    more = [f"… and {len(parts) - MAX_ITEMS} more"] if len(parts) > MAX_ITEMS else []
    return [_plain(part, depth + 1) for part in parts[:MAX_ITEMS]] + more


def _text(text: str) -> str:
    masked = _SECRET.sub(r"gh\1_…", _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text[: 4 * MAX_TEXT]))
    return f"{masked[: MAX_TEXT - 1]}…" if len(masked) > MAX_TEXT else masked

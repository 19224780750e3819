"""What the audit log learns from Django: logins, and changes of users, groups and tokens. And who may read what.

`AuditEntry.record` writes the entries. Signals see every change through the ORM, whichever screen or command makes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.contrib.auth import BACKEND_SESSION_KEY
from django.contrib.auth.models import Group, Permission, User
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.db import transaction
from django.db.models import Exists, Model, OuterRef, Q, QuerySet
from django.db.models.signals import m2m_changed, post_save, pre_delete, pre_save
from django.dispatch import receiver
from django.http import HttpRequest

from roster.login_backends import PROVIDER
from roster.models import Actor, AuditEntry, GuildMember, Token

Kind = AuditEntry.Kind
PERMISSION = "roster.view_auditentry"
WITH_TOKEN = " with token "  # noqa: S105 - words between the names of a user and a token
WITH_SINGLE_SIGN_ON = " with single sign-on"
SOMEBODY = "somebody"  # who is not logged in
UNKNOWN_NAME = "an unknown name"
WAYS = {PROVIDER: "single sign-on"}  # of logins, other than with a password
HIDDEN = "one that you may not see"


# Who --------------------------------------------------------------------------------------------------------------


def actor_of(request: HttpRequest) -> Actor:
    """The user or token of the request. REST framework sets the token when it has checked it."""
    principal: Any = getattr(request, "auth", None)
    source = AuditEntry.Source.REST if hasattr(request, "auth") else AuditEntry.Source.WEB
    user: Any = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return Actor(source, SOMEBODY)
    token_id = getattr(principal, "token_id", None)
    if token_id is None:
        return Actor(source, user.get_username(), user.pk)
    name = f" ({principal.token_name})" if principal.token_name else ""
    return Actor(source, f"{user.get_username()}{WITH_TOKEN}{principal.token_hint}…{name}", user.pk, token_id)


def address_of(request: HttpRequest | None) -> str:
    """That of the connection. Behind a proxy it is the proxy's, because a client can write any header."""
    return str(request.META.get("REMOTE_ADDR", "")) if request is not None else ""


# Logins -----------------------------------------------------------------------------------------------------------


@receiver(user_logged_in, dispatch_uid="audit")
def _record_login(request: HttpRequest | None, user: User, **_: Any) -> None:
    actor = Actor(AuditEntry.Source.WEB, user.get_username(), user.pk, address=address_of(request))
    way = WAYS.get(request.session.get(BACKEND_SESSION_KEY, "")) if request is not None else None
    AuditEntry.record(Kind.LOGIN, _name(user), actor=actor, after={"with": way} if way else None)


@receiver(user_logged_out, dispatch_uid="audit")
def _record_logout(request: HttpRequest | None, user: User | None, **_: Any) -> None:
    if user is not None:
        actor = Actor(AuditEntry.Source.WEB, user.get_username(), user.pk, address=address_of(request))
        AuditEntry.record(Kind.LOGOUT, _name(user), actor=actor)


@receiver(user_login_failed, dispatch_uid="audit")
def _record_failed_login(credentials: dict[str, Any], request: HttpRequest | None = None, **_: Any) -> None:
    """An unknown name is not stored, because people type their password into the wrong field."""
    user = User.objects.filter(username=str(credentials.get("username", ""))[:150].replace("\0", "")).first()
    actor = Actor(AuditEntry.Source.WEB, SOMEBODY, address=address_of(request))
    AuditEntry.record(Kind.LOGIN_FAILED, _name(user) if user else UNKNOWN_NAME, actor=actor)


# Changes of users, groups and tokens ------------------------------------------------------------------------------

Snapshot = dict[str, Any]
Key = tuple[type[Model], int]

USER_COLUMNS = ("username", "first_name", "last_name", "email", "is_active", "is_staff", "is_superuser")
TOKEN_COLUMNS = ("name", "scope", "expires_at", *(limit.name for limit in Token.LIMITS))
COLUMNS: dict[type[Model], tuple[str, ...]] = {
    User: (*USER_COLUMNS, "password"),
    Group: ("name",),
    Token: TOKEN_COLUMNS,
}


class _Changes:
    """The rows that are changing, as they were before. `is_merged`: they are recorded when the outermost block ends."""

    def __init__(self, *, is_merged: bool) -> None:
        self.is_merged = is_merged
        self.snapshots: dict[Key, Snapshot | None] = {}


_changes: ContextVar[_Changes | None] = ContextVar("changes for the audit log", default=None)


@contextmanager
def merged() -> Iterator[None]:
    """A transaction in which all changes of one user, group or token become one entry of each kind."""
    changes = _changes.get()
    if changes is not None and changes.is_merged:
        yield
        return
    changes = _Changes(is_merged=True)
    reset = _changes.set(changes)
    try:
        with transaction.atomic():
            yield
            for key, before in changes.snapshots.items():
                _record(key, before)
    finally:
        _changes.reset(reset)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Changes inside have no entries. For what the hall does to its own groups after each migration."""
    reset = _changes.set(_Changes(is_merged=True))
    try:
        yield
    finally:
        _changes.reset(reset)


def _begin(key: Key, *, is_new: bool = False) -> None:
    """Remember the row as it is before a change."""
    changes = _changes.get()
    if changes is None:
        changes = _Changes(is_merged=False)
        _changes.set(changes)
    if not changes.is_merged or key not in changes.snapshots:
        changes.snapshots[key] = None if is_new else _snapshot(key)


def _end(key: Key) -> None:
    """Record the change, unless it is part of a larger one."""
    changes = _changes.get()
    if changes is not None and not changes.is_merged and key in changes.snapshots:
        _record(key, changes.snapshots.pop(key))


def _snapshot(key: Key) -> Snapshot | None:
    model, pk = key
    columns = model._default_manager.filter(pk=pk).values(*COLUMNS[model]).first()
    if columns is None:
        return None
    if model is User:
        names = list(Group.objects.filter(user=pk).values_list("name", "role__name"))
        columns["role"] = ", ".join(sorted(role for _, role in names if role)) or None
        columns["groups"] = sorted(name for name, role in names if not role)
        columns["permissions"] = _permissions(user=pk)
    elif model is Group:
        columns["permissions"] = _permissions(group=pk)
    return columns


def _permissions(**owner: int) -> list[str]:
    rows = Permission.objects.filter(**owner).values_list("content_type__app_label", "codename")
    return sorted(f"{app}.{codename}" for app, codename in rows)


def _record(key: Key, before: Snapshot | None) -> None:
    """Compare the row with its snapshot. None is a new row."""
    model, pk = key
    after = _snapshot(key)
    if after is None or after == before:
        return
    target = _name(model._default_manager.get(pk=pk))
    if before is None:
        if model is not Token:  # `mcp_runtime.control.tokens` records it, with its members and tools
            kind = Kind.USER_CREATED if model is User else Kind.GROUP_CREATED
            AuditEntry.record(kind, target, after=_filled(after))
        return
    differences = [name for name in after if after[name] != before[name]]
    for kind, names in _kinds(model, differences):
        has_values = kind != Kind.PASSWORD_CHANGED
        AuditEntry.record(
            kind,
            target,
            before={name: before[name] for name in names} if has_values else None,
            after={name: after[name] for name in names} if has_values else None,
        )


def _kinds(model: type[Model], names: list[str]) -> Iterable[tuple[AuditEntry.Kind, list[str]]]:
    """The entries for these differences, each with its names."""
    if model is not User:
        yield (Kind.TOKEN_CHANGED if model is Token else Kind.GROUP_CHANGED), names
        return
    others = [name for name in names if name not in ("password", "role")]
    for kind, part in (
        (Kind.USER_CHANGED, others),
        (Kind.ROLE_CHANGED, [name for name in names if name == "role"]),
        (Kind.PASSWORD_CHANGED, [name for name in names if name == "password"]),
    ):
        if part:
            yield kind, part


def _filled(snapshot: Snapshot) -> Snapshot:
    """What says something about a new or deleted row."""
    return {name: value for name, value in snapshot.items() if name != "password" and value not in (None, "", [])}


def _name(row: Any) -> str:
    if isinstance(row, User):
        return f"user {row.get_username()}"
    return row.audit_name if isinstance(row, Token) else f"group {row.name}"


def _before_save(sender: Any, instance: Any, update_fields: frozenset[str] | None, raw: bool = False, **_: Any) -> None:
    if _is_watched(sender, instance, update_fields, raw) and not instance._state.adding:
        _begin((sender, instance.pk))


def _after_save(
    sender: Any, instance: Any, created: bool, update_fields: frozenset[str] | None, raw: bool = False, **_: Any
) -> None:
    if _is_watched(sender, instance, update_fields, raw):
        if created:
            _begin((sender, instance.pk), is_new=True)
        _end((sender, instance.pk))


for _model in COLUMNS:
    pre_save.connect(_before_save, sender=_model, dispatch_uid=f"audit:{_model.__name__}")
    post_save.connect(_after_save, sender=_model, dispatch_uid=f"audit:{_model.__name__}")


def _is_watched(sender: Any, instance: Any, update_fields: frozenset[str] | None, raw: bool) -> bool:
    if raw:
        return False
    # A login may write the same password with a newer hash.
    if sender is User and update_fields == frozenset({"password"}) and instance._password is None:
        return False
    return update_fields is None or not update_fields.isdisjoint(COLUMNS[sender])


def _on_link(sender: Any, instance: Any, action: str, reverse: bool, pk_set: set[int] | None, **_: Any) -> None:
    """A user's groups or permissions, or a group's permissions. `instance` may be at either end of the link."""
    owner = Group if sender is Group.permissions.through else User
    if not reverse:
        keys = [instance.pk]
    elif pk_set is not None:
        keys = sorted(pk_set)
    else:  # all links of a group or a permission end
        end, column = (f"{model.__name__.lower()}_id" for model in (type(instance), owner))
        keys = list(sender.objects.filter(**{end: instance.pk}).values_list(column, flat=True))
        if action == "post_clear":
            keys = [pk for model, pk in (_changes.get() or _Changes(is_merged=False)).snapshots if model is owner]
    for pk in keys:
        (_begin if action.startswith("pre_") else _end)((owner, pk))


for _through in (User.groups.through, User.user_permissions.through, Group.permissions.through):
    m2m_changed.connect(_on_link, sender=_through, dispatch_uid=f"audit:{_through.__name__}")


@receiver(pre_delete, sender=User, dispatch_uid="audit")
def _record_deleted_user(instance: User, **_: Any) -> None:
    before = {**_filled(_snapshot((User, instance.pk)) or {}), "tokens": instance.tokens.count()}
    AuditEntry.record(Kind.USER_DELETED, _name(instance), before=before)


@receiver(pre_delete, sender=Group, dispatch_uid="audit")
def _record_deleted_group(instance: Group, **_: Any) -> None:
    AuditEntry.record(Kind.GROUP_DELETED, _name(instance), before=_filled(_snapshot((Group, instance.pk)) or {}))


@receiver(pre_delete, sender=GuildMember, dispatch_uid="audit")
def _record_deleted_member(instance: GuildMember, **_: Any) -> None:
    groups = sorted(instance.groups.values_list("name", flat=True))
    before = {"groups": groups} if groups else None
    AuditEntry.record(Kind.MEMBER_DELETED, f"member {instance.name}", member=instance.name, before=before)


# Who may read what ------------------------------------------------------------------------------------------------


def visible_entries(*, is_superuser: bool, closed_members: Collection[str]) -> QuerySet[AuditEntry]:
    """The entries for a reader. Members that are reserved for groups of others do not exist for the reader.

    A member whose row was deleted may have been reserved. So only superusers see its entries.
    """
    entries = AuditEntry.objects.all()
    if is_superuser:
        return entries
    members = GuildMember.objects.filter(name=OuterRef("member")).exclude(name__in=closed_members)
    return entries.filter(Q(member="") | Exists(members))


Show = Callable[[Any], Any]


def shower(*, is_superuser: bool, closed_members: Collection[str]) -> Show:
    """A function that returns `before` or `after` of an entry for a reader: without names of members of others."""
    if is_superuser:
        return lambda values: values
    names = set(GuildMember.objects.exclude(name__in=closed_members).values_list("name", flat=True))

    def show(values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {
            key: [name if str(name).partition("/")[0] in names else HIDDEN for name in value]
            if key in ("members", "tools", "pinned_tools") and isinstance(value, list)
            else value
            for key, value in values.items()
        }

    return show


def by_actor(name: str) -> Q:
    """A condition for the entries of this actor, also with a token or with single sign-on."""
    return Q(actor__in=[name, f"{name}{WITH_SINGLE_SIGN_ON}"]) | Q(actor__startswith=f"{name}{WITH_TOKEN}")


def filtered(
    entries: QuerySet[AuditEntry],
    *,
    kind: Collection[str] = (),
    source: Collection[str] = (),
    actor: str = "",
    member: str = "",
    since: datetime | None = None,
    until: datetime | None = None,
) -> QuerySet[AuditEntry]:
    """The entries to which all of these apply. What is empty applies to all."""
    conditions = {"kind__in": kind, "source__in": source, "member": member, "at__gte": since, "at__lt": until}
    entries = entries.filter(by_actor(actor)) if actor else entries
    return entries.filter(**{lookup: value for lookup, value in conditions.items() if value})


def differences(entry: AuditEntry) -> Iterator[tuple[str, str, str]]:
    """The name, and the values before and after as texts, of all that the entry says. Empty texts are unknown."""
    before, after = (side if isinstance(side, dict) else {} for side in (entry.before, entry.after))
    for name in {**before, **after}:
        sides = [_words(side[name]) if name in side else "" for side in (before, after)]
        yield name.replace("_", " "), sides[0], sides[1]


def summary(entry: AuditEntry) -> str:
    """The differences as one text. Empty if there are none."""
    parts = [
        f"{name}: {before} → {after}" if before and after else f"{name}: {after or before}"
        for name, before, after in differences(entry)
    ]
    return "; ".join(parts)


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_words(part) for part in value) or "none"
    if isinstance(value, bool) or value in (None, ""):
        return {True: "yes", False: "no"}.get(value, "none")
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)


def named(actor: Actor, user: User) -> Actor:
    """The actor as this user. For an invitation, whose user does not exist before it is accepted."""
    return replace(actor, name=user.get_username(), user_id=user.pk)

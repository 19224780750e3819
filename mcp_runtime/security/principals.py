"""Principals of the rows: by user, by token, and whether one that somebody keeps is still true.

Making a principal takes a few queries. Whoever keeps one makes another when `version()` has changed, and looks at
`is_expired`. Not every change shows in the version, for QuerySet.update and plain SQL send no signals. So nobody keeps
one for long without a comparison with the rows: `KEPT_SECONDS` here, `are_outdated` for the gateway.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import Group, User
from django.db import connection
from django.db.models import Q
from django.db.models.expressions import RawSQL
from django.utils import timezone

from mcp_runtime.protocol.errors import AccessError, TokenError
from mcp_runtime.rows import plain_sql
from mcp_runtime.rows.kept_queries import KeptQuery, Slot
from mcp_runtime.security.access import CONTROL, INVOKE, VIEW_CALLS, VIEW_MEMBERS, VIEW_TOOLS, Principal
from mcp_runtime.security.limits import Limits
from roster.models import ApiToken, GuildMember, Hall

# How exact `last_used_at` is.
TOUCH_SECONDS = 60.0
MAX_KEPT = 2000
# How long a change that did not show in the version may stay unseen here.
KEPT_SECONDS = 2.0

# In SQL: it is asked at every request, and the ORM would take longer for it than for the token.
_VERSION = f"SELECT CAST(hall_id AS text) || ':' || access_version FROM {Hall._meta.db_table} WHERE id = 1"  # noqa: S608

_VERSION_AND_USER = f"SELECT ({_VERSION}), is_active FROM {User._meta.db_table} WHERE id = %s"  # noqa: S608 - a constant

_VERSION_OF_TOKEN = RawSQL(_VERSION, ())  # noqa: S611 - a constant
# What most requests need of a token: it is good, and was in use a moment ago. Not the two rows, with all their columns.
_GOOD_TOKENS = KeptQuery(
    lambda: (
        ApiToken.objects.annotate(version=_VERSION_OF_TOKEN)
        .filter(Q(expires_at=None) | Q(expires_at__gt=Slot("now")), digest=Slot("digest"), revoked_at=None)
        .filter(user__is_active=True, last_used_at__gt=Slot("touched"))
        .order_by()
    ),
    columns=["id"],
    annotations=["version"],
)
_TOKENS = KeptQuery(
    lambda: ApiToken.objects.annotate(version=_VERSION_OF_TOKEN).filter(digest=Slot("digest")).order_by(),
    related={"user": ()},
    annotations=["version"],
)


def version() -> str | None:
    """Another text whenever anything changed that decides; None while the hall has no row."""
    rows = plain_sql.read(_VERSION, [])
    return str(rows[0][0]) if rows else None


def principal_of_user(user: User) -> Principal:
    """Who comes without a token: a browser's session, a command. Raises AccessError for a user who is not active."""
    rows = plain_sql.read(_VERSION_AND_USER, [user.pk])
    if not rows or not rows[0][1]:
        raise AccessError(f"user {user.get_username()!r} is not active")
    seen = None if rows[0][0] is None else str(rows[0][0])
    if (kept := _known(("user", user.pk), seen)) is not None:
        return kept.principal
    fresh = User.objects.get(pk=user.pk)
    return _keep(("user", user.pk), seen, _principal(fresh, _rights_of([fresh])[fresh.pk]))


def principal_of_token(text: str) -> Principal:
    """Who comes with this token. Raises TokenError with a sentence: unknown, revoked, expired, user not active."""
    return holder_of(text)[1]


def holder_of(text: str) -> tuple[User, Principal]:
    """The token's user beside who they are with it. One query, while nothing changed. Raises TokenError."""
    digest, now = ApiToken.digest_of(text), timezone.now()
    touched = now - timedelta(seconds=TOUCH_SECONDS)
    good: Any = _GOOD_TOKENS.first(digest=digest, now=_in_sql(now), touched=_in_sql(touched))
    kept = None if good is None else _known(("token", good.pk), good.version)
    if kept is not None and kept.user is not None:
        return copy(kept.user), kept.principal  # a view may change its own
    return _read_holder(digest)


def _in_sql(moment: datetime) -> Any:
    return connection.ops.adapt_datetimefield_value(moment)


def _read_holder(digest: str) -> tuple[User, Principal]:
    token: Any = _TOKENS.first(digest=digest)
    if token is None:
        raise TokenError("This token is not known. Make one with: manage.py create_token USER")
    require_good(token)
    used = token.last_used_at
    if used is None or used <= timezone.now() - timedelta(seconds=TOUCH_SECONDS):
        touch(token.pk)
    return token.user, _keep(("token", token.pk), token.version, principal_of_row(token), copy(token.user))


def principal_of_row(token: ApiToken) -> Principal:
    """As `principal_of_token`, of a token that is at hand. Raises TokenError."""
    require_good(token)
    return _principals_of([token])[token.pk]


def are_outdated(kept: Collection[Principal]) -> bool:
    """Whether one of these, each with a token, would be another now. The same few queries for one and for thousands.

    Then what this process keeps is forgotten, for that may be as old.
    """
    ids = [who.token_id for who in kept if who.token_id is not None and not who.is_expired]
    tokens = ApiToken.objects.select_related("user").filter(pk__in=ids)
    now = _principals_of([token for token in tokens if _is_good(token)])
    is_outdated = any(now.get(who.token_id or 0) != who for who in kept if not who.is_expired)
    if is_outdated:
        _kept.clear()
    return is_outdated


def _principals_of(tokens: Collection[ApiToken]) -> dict[int, Principal]:
    """By the token's id. Each token needs its user at hand."""
    rights = _rights_of({token.user_id: token.user for token in tokens}.values())
    of_scope = {scope: [token.pk for token in tokens if token.scope == scope] for scope in ApiToken.Scope}
    members: dict[int, set[str]] = defaultdict(set)
    if narrowed := of_scope[ApiToken.Scope.MEMBERS]:
        links = ApiToken.members.through.objects.filter(apitoken__in=narrowed)
        for token_id, name in links.values_list("apitoken_id", "guildmember__name"):
            members[token_id].add(name)
    tools: dict[int, set[tuple[str, str]]] = defaultdict(set)
    if narrowed := of_scope[ApiToken.Scope.TOOLS]:
        chosen = ApiToken.tools.through.objects.filter(apitoken__in=narrowed)
        for token_id, member, tool in chosen.values_list("apitoken_id", "tool__member__name", "tool__name"):
            tools[token_id].add((member, tool))
    return {
        token.pk: _principal(
            token.user,
            rights[token.user_id],
            token_id=token.pk,
            token_name=token.name,
            token_hint=token.hint,
            expires_at=token.expires_at,
            members=frozenset(members[token.pk]) if token.scope == ApiToken.Scope.MEMBERS else None,
            tools=frozenset(tools[token.pk]) if token.scope == ApiToken.Scope.TOOLS else None,
            limits=Limits(**{limit.name: limit.of(token) for limit in ApiToken.LIMITS}),
        )
        for token in tokens
    }


def _is_good(token: ApiToken) -> bool:
    return token.state == "good" and token.user.is_active


def require_good(token: ApiToken) -> None:
    """Raises TokenError when the token opens nothing any more."""
    if token.revoked_at is not None:
        raise TokenError("This token was revoked. Make another with: manage.py create_token USER")
    if token.state == "expired":
        raise TokenError(f"This token expired at {token.expires_at:%Y-%m-%d %H:%M} UTC; make another.")
    if not token.user.is_active:
        raise TokenError("The user of this token is not active.")


def touch(*token_ids: int) -> None:
    """These tokens are in use now; written at most once a minute for each."""
    now = timezone.now()
    stale = Q(last_used_at=None) | Q(last_used_at__lte=now - timedelta(seconds=TOUCH_SECONDS))
    ApiToken.objects.filter(stale, pk__in=token_ids).update(last_used_at=now)


@dataclass(frozen=True)
class _Rights:
    """Of an active user: those of the permissions named above, and the members that are reserved for others."""

    permissions: frozenset[str]
    closed_members: frozenset[str] = frozenset()


_ALL_RIGHTS = _Rights(frozenset({INVOKE, CONTROL, VIEW_CALLS, VIEW_MEMBERS, VIEW_TOOLS}))  # a superuser's


def _rights_of(users: Iterable[User]) -> dict[int, _Rights]:
    """By the user's id. Not by `User.has_perm`, which asks two queries for each user."""
    found = {user.pk: _ALL_RIGHTS for user in users if user.is_superuser}
    ids = [user.pk for user in users if not user.is_superuser]
    if not ids:
        return found
    codenames = [permission.partition(".")[2] for permission in _ALL_RIGHTS.permissions]
    named = {"permission__codename__in": codenames, "permission__content_type__app_label": "roster"}
    permissions: dict[int, set[str]] = defaultdict(set)
    own = User.user_permissions.through.objects.filter(user__in=ids, **named)
    for user_id, codename in own.values_list("user_id", "permission__codename"):
        permissions[user_id].add(f"roster.{codename}")
    of_group: dict[int, set[str]] = defaultdict(set)
    for group_id, codename in Group.permissions.through.objects.filter(**named).values_list(
        "group_id", "permission__codename"
    ):
        of_group[group_id].add(f"roster.{codename}")
    groups: dict[int, set[int]] = defaultdict(set)
    for user_id, group_id in User.groups.through.objects.filter(user__in=ids).values_list("user_id", "group_id"):
        groups[user_id].add(group_id)
        permissions[user_id] |= of_group[group_id]
    reserved: dict[str, set[int]] = defaultdict(set)
    for member, group_id in GuildMember.objects.exclude(groups=None).values_list("name", "groups__id"):
        reserved[member].add(group_id)
    for user_id in ids:
        closed = frozenset(member for member, allowed in reserved.items() if not allowed & groups[user_id])
        found[user_id] = _Rights(frozenset(permissions[user_id]), closed)
    return found


def _principal(user: User, rights: _Rights, **of_token: Any) -> Principal:
    return Principal(
        user_id=user.pk,
        name=user.get_username(),
        invokes=INVOKE in rights.permissions,
        controls=CONTROL in rights.permissions,
        views_calls=VIEW_CALLS in rights.permissions,
        views_members=VIEW_MEMBERS in rights.permissions,
        views_tools=VIEW_TOOLS in rights.permissions,
        closed_members=rights.closed_members,
        **of_token,
    )


@dataclass(frozen=True)
class _Kept:
    version: str
    made_at: float
    principal: Principal
    user: User | None  # of a token


# Of this process. A snapshot that is younger than its version is made once more.
_kept: dict[tuple[str, int], _Kept] = {}


def _known(key: tuple[str, int], seen: str | None) -> _Kept | None:
    kept = _kept.get(key)
    if kept is None or kept.version != seen or time.monotonic() > kept.made_at + KEPT_SECONDS:
        return None
    return kept


def _keep(key: tuple[str, int], seen: str | None, principal: Principal, user: User | None = None) -> Principal:
    if seen is not None:
        if len(_kept) >= MAX_KEPT:
            _kept.clear()
        _kept[key] = _Kept(seen, time.monotonic(), principal, user)
    return principal

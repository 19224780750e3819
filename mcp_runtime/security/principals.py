"""Reads principals from the rows, by user or by token, and checks whether cached ones are still true.

Reading a principal takes a few queries, so callers cache it. They read it again when `version()` has changed, and check
`is_expired`. Some changes do not change the version, because QuerySet.update and plain SQL send no signals. So a cached
principal is compared with the rows from time to time: after `CACHE_SECONDS` here, with `are_outdated` in the gateway.
A login with single sign-on does not change the version either, although tokens then live longer: a principal whose time
is over is read again anyway.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import Group, User
from django.db import connection
from django.db.models import Q
from django.db.models.expressions import RawSQL
from django.utils import timezone

from mcp_runtime.protocol.errors import AccessError, TokenError
from mcp_runtime.rows import plain_sql
from mcp_runtime.rows.compiled_queries import CompiledQuery, Placeholder
from mcp_runtime.security.access import CONTROL, INVOKE, VIEW_CALLS, VIEW_MEMBERS, VIEW_TOOLS, Principal
from mcp_runtime.security.limits import TokenLimits
from mcp_runtime.security.resources import is_own_sign_in_on, may_be_outside_token
from roster.models import AccessToken, GuildMember, Hall, Token, ToolSet, ToolSetEntry, ToolSetGroup

# How exact `last_used_at` is.
TOUCH_SECONDS = 60.0
MAX_CACHED = 2000
# How long a change that does not change the version may stay without effect here.
CACHE_SECONDS = 2.0

# As SQL, because every request needs it. The ORM would take longer for it than for the token.
_VERSION = f"SELECT CAST(hall_id AS text) || ':' || access_version FROM {Hall._meta.db_table} WHERE id = 1"  # noqa: S608

_VERSION_AND_USER = f"SELECT ({_VERSION}), is_active FROM {User._meta.db_table} WHERE id = %s"  # noqa: S608 - a constant

# As an annotation of other rows that a request reads anyway.
VERSION = RawSQL(_VERSION, ())  # noqa: S611 - a constant
# Most requests need only this of a token: it is good, and was used a moment ago. That saves reading two whole rows.
_GOOD_TOKENS = CompiledQuery(
    lambda: (
        Token.objects.annotate(version=VERSION)
        .filter(
            Q(expires_at=None) | Q(expires_at__gt=Placeholder("now")), digest=Placeholder("digest"), revoked_at=None
        )
        .filter(user__is_active=True, last_used_at__gt=Placeholder("touched"))
        .order_by()
    ),
    columns=["id"],
    annotations=["version"],
)
_TOKENS = CompiledQuery(
    lambda: Token.objects.annotate(version=VERSION).filter(digest=Placeholder("digest")).order_by(),
    related={"user": ()},
    annotations=["version"],
)


def version() -> str | None:
    """A text that changes with every change of access. None while the hall has no row."""
    rows = plain_sql.read(_VERSION, [])
    return str(rows[0][0]) if rows else None


def principal_of_user(user: User) -> Principal:
    """The principal of a browser's session or a command, without a token. Raises AccessError for an inactive user."""
    rows = plain_sql.read(_VERSION_AND_USER, [user.pk])
    if not rows or not rows[0][1]:
        raise AccessError(f"user {user.get_username()!r} is not active")
    current_version = None if rows[0][0] is None else str(rows[0][0])
    if (entry := _current_entry(("user", user.pk), current_version)) is not None:
        return entry.principal
    fresh = User.objects.get(pk=user.pk)
    return _store(("user", user.pk), current_version, _principal(fresh, _rights_of([fresh])[fresh.pk]))


def holder_of_session(user: User, current_version: str | None) -> tuple[Principal, frozenset[str] | None]:
    """The principal of a browser's session, and the user's permissions, which are None for a superuser.

    It takes no query while nothing changes. The caller has read the version of access a moment ago, and then the user.
    Raises AccessError for an inactive user.
    """
    if not user.is_active:
        raise AccessError(f"user {user.get_username()!r} is not active")
    key = ("session", user.pk)
    if (entry := _current_entry(key, current_version)) is not None:
        return entry.principal, entry.permissions
    permissions = None if user.is_superuser else frozenset(user.get_all_permissions())
    principal = _principal(user, _rights_of([user])[user.pk])
    return _store(key, current_version, principal, permissions=permissions), permissions


def principal_of_token(text: str) -> Principal:
    """The principal of a token. Raises TokenError, with the reason, if it is unknown, revoked, expired or inactive."""
    return _of_access_token(text) if text.startswith(AccessToken.PREFIX) else holder_of(text)[1]


def holder_of(text: str) -> tuple[User, Principal]:
    """The user and the principal of a token. Takes one query while nothing changes. Raises TokenError.

    An access token is refused. It is for the gateway, and this is for REST, where it could create tokens.
    """
    if text.startswith(AccessToken.PREFIX) or may_be_outside_token(text):
        raise TokenError("An access token of a client is for the gateway. REST needs a token of a person.")
    digest, now = Token.digest_of(text), timezone.now()
    touched = now - timedelta(seconds=TOUCH_SECONDS)
    good: Any = _GOOD_TOKENS.first(digest=digest, now=_in_sql(now), touched=_in_sql(touched))
    entry = None if good is None else _current_entry(("token", good.pk), good.version)
    if entry is not None and entry.user is not None and not entry.principal.is_expired:
        return copy(entry.user), entry.principal  # a copy, because a view may change it
    return _read_holder(digest)


def _of_access_token(text: str) -> Principal:
    """The principal of a grant, until its access token ends. Raises TokenError."""
    rows = AccessToken.objects.select_related("grant__token__user__identity")
    access_token = rows.filter(digest=AccessToken.digest_of(text)).first()
    if access_token is None or not is_own_sign_in_on():
        raise TokenError("This access token is not known. Sign in again.")
    if access_token.expires_at <= timezone.now():
        raise TokenError("This access token expired. Get another with the refresh token, or sign in again.")
    token = access_token.grant.token
    principal = principal_of_row(token)
    touch(token.pk)
    return replace(principal, access_ends_at=access_token.expires_at)


def _in_sql(moment: datetime) -> Any:
    return connection.ops.adapt_datetimefield_value(moment)


def _read_holder(digest: str) -> tuple[User, Principal]:
    token: Any = _TOKENS.first(digest=digest)
    if token is None:
        raise TokenError("This token is not known. Make one with: guildhall create_token USER")
    require_good(token)
    last_used_at = token.last_used_at
    if last_used_at is None or last_used_at <= timezone.now() - timedelta(seconds=TOUCH_SECONDS):
        touch(token.pk)
    return token.user, _store(("token", token.pk), token.version, principal_of_row(token), copy(token.user))


def principal_of_row(token: Token) -> Principal:
    """As `principal_of_token`, for a token that is already read. Raises TokenError."""
    require_good(token)
    return _principals_of([token])[token.pk]


def are_outdated(principals: Collection[Principal]) -> bool:
    """Whether one of these principals of tokens has changed in the rows. Takes the same few queries for thousands.

    If so, this also clears the cache of the process, which may be as old.
    """
    ids = [each.token_id for each in principals if each.token_id is not None and not each.is_expired]
    tokens = Token.objects.select_related("user__identity").filter(pk__in=ids)
    current = _principals_of([token for token in tokens if _is_good(token)])
    is_outdated = any(current.get(each.token_id or 0) != each for each in principals if not each.is_expired)
    if is_outdated:
        _cache.clear()
    return is_outdated


def _principals_of(tokens: Collection[Token]) -> dict[int, Principal]:
    """Principals by the token's id. The user of each token must be loaded."""
    rights = _rights_of({token.user_id: token.user for token in tokens}.values())
    of_scope = {scope: [token.pk for token in tokens if token.scope == scope] for scope in Token.Scope}
    members: dict[int, set[str]] = defaultdict(set)
    if narrowed := of_scope[Token.Scope.MEMBERS]:
        links = Token.members.through.objects.filter(token__in=narrowed)
        for token_id, name in links.values_list("token_id", "guildmember__name"):
            members[token_id].add(name)
    tools: dict[int, set[tuple[str, str]]] = defaultdict(set)
    if narrowed := of_scope[Token.Scope.TOOLS]:
        tool_links = Token.tools.through.objects.filter(token__in=narrowed)
        for token_id, member, tool in tool_links.values_list("token_id", "tool__member__name", "tool__name"):
            tools[token_id].add((member, tool))
    names_of_sets = _add_tool_sets(tokens, rights, members, tools)
    return {
        token.pk: _principal(
            token.user,
            rights[token.user_id],
            token_id=token.pk,
            token_name=token.name,
            token_hint=token.hint,
            expires_at=token.ends_at,
            resource=token.resource,
            members=frozenset(members[token.pk])
            if token.scope == Token.Scope.MEMBERS or token.pk in names_of_sets
            else None,
            tools=frozenset(tools[token.pk]) if token.scope == Token.Scope.TOOLS else None,
            tool_set=names_of_sets.get(token.pk),
            limits=TokenLimits(**{limit.name: limit.of(token) for limit in Token.LIMITS}),
            searches=token.search_mode,
            pinned=frozenset(_member_and_tool(text) for text in token.pinned_tools),
        )
        for token in tokens
    }


def _member_and_tool(text: str) -> tuple[str, str]:
    member, _, tool = text.partition("/")
    return member, tool


def _add_tool_sets(
    tokens: Iterable[Token],
    rights: Mapping[int, _Rights],
    members: dict[int, set[str]],
    tools: dict[int, set[tuple[str, str]]],
) -> dict[int, str]:
    """Add what is in the tool set of each token, unless its user may not use the set. Return the names of the sets."""
    owners = {token.pk: (token.tool_set_id, token.user_id) for token in tokens if token.scope == Token.Scope.TOOLS}
    sets = {pk: (set_id, user_id) for pk, (set_id, user_id) in owners.items() if set_id is not None}
    if not sets:
        return {}
    names = dict(ToolSet.objects.filter(pk__in={set_id for set_id, _ in sets.values()}).values_list("pk", "name"))
    entries: dict[int, list[tuple[str, str]]] = defaultdict(list)
    rows = ToolSetEntry.objects.filter(tool_set__in=names).order_by()
    for set_id, member, tool in rows.values_list("tool_set_id", "member__name", "tool_name"):
        entries[set_id].append((member, tool))
    for token_id, (set_id, user_id) in sets.items():
        if names.get(set_id) not in rights[user_id].closed_sets:
            members[token_id] |= {member for member, tool in entries[set_id] if not tool}
            tools[token_id] |= {(member, tool) for member, tool in entries[set_id] if tool}
    return {token_id: names[set_id] for token_id, (set_id, _) in sets.items() if set_id in names}


def _is_good(token: Token) -> bool:
    return token.state == "good" and token.user.is_active


def require_good(token: Token) -> None:
    """Raise TokenError if the token is not valid any more."""
    if token.is_grant and token.state != "good":
        raise TokenError("This sign-in was revoked or has ended. Sign in again.")
    if token.revoked_at is not None:
        raise TokenError("This token was revoked. Make another with: guildhall create_token USER")
    if token.state == "expired":
        raise TokenError(f"This token expired at {token.expires_at:%Y-%m-%d %H:%M} UTC; make another.")
    if token.state == "dormant":
        raise TokenError(
            f"The user of this token has not used single sign-on since {token.user.identity.last_login_at:%Y-%m-%d}. "
            "The token works again when the user logs in to the admin."
        )
    if not token.user.is_active:
        raise TokenError("The user of this token is not active.")


def touch(*token_ids: int) -> None:
    """Record that these tokens are in use. Writes at most once a minute for each."""
    now = timezone.now()
    stale = Q(last_used_at=None) | Q(last_used_at__lte=now - timedelta(seconds=TOUCH_SECONDS))
    Token.objects.filter(stale, pk__in=token_ids).update(last_used_at=now)


@dataclass(frozen=True)
class _Rights:
    """The rights of an active user: which of the permissions above, and which members are reserved for others."""

    permissions: frozenset[str]
    closed_members: frozenset[str] = frozenset()
    closed_sets: frozenset[str] = frozenset()


_ALL_RIGHTS = _Rights(frozenset({INVOKE, CONTROL, VIEW_CALLS, VIEW_MEMBERS, VIEW_TOOLS}))  # a superuser's


def _rights_of(users: Iterable[User]) -> dict[int, _Rights]:
    """Rights by the user's id. `User.has_perm` would make two queries for each user."""
    rights = {user.pk: _ALL_RIGHTS for user in users if user.is_superuser}
    ids = [user.pk for user in users if not user.is_superuser]
    if not ids:
        return rights
    codenames = [permission.partition(".")[2] for permission in _ALL_RIGHTS.permissions]
    condition = {"permission__codename__in": codenames, "permission__content_type__app_label": "roster"}
    permissions: dict[int, set[str]] = defaultdict(set)
    rows = User.user_permissions.through.objects.filter(user__in=ids, **condition)
    for user_id, codename in rows.values_list("user_id", "permission__codename"):
        permissions[user_id].add(f"roster.{codename}")
    of_group: dict[int, set[str]] = defaultdict(set)
    for group_id, codename in Group.permissions.through.objects.filter(**condition).values_list(
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
    reserved_sets: dict[str, set[int]] = defaultdict(set)
    for tool_set, group_id in ToolSetGroup.objects.values_list("tool_set__name", "group_id"):
        reserved_sets[tool_set].add(group_id)
    for user_id in ids:
        closed = [
            frozenset(name for name, group_ids in each.items() if not group_ids & groups[user_id])
            for each in (reserved, reserved_sets)
        ]
        rights[user_id] = _Rights(frozenset(permissions[user_id]), *closed)
    return rights


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
        closed_sets=rights.closed_sets,
        **of_token,
    )


@dataclass(frozen=True)
class _CacheEntry:
    version: str
    created_at: float
    principal: Principal
    user: User | None  # of a token
    permissions: frozenset[str] | None  # of the user of a session who is no superuser


# The cache of this process. A snapshot that is newer than its version is read again, which is harmless.
_cache: dict[tuple[str, int], _CacheEntry] = {}


def _current_entry(key: tuple[str, int], current_version: str | None) -> _CacheEntry | None:
    entry = _cache.get(key)
    if entry is None or entry.version != current_version or time.monotonic() > entry.created_at + CACHE_SECONDS:
        return None
    return entry


def _store(
    key: tuple[str, int],
    version: str | None,
    principal: Principal,
    user: User | None = None,
    permissions: frozenset[str] | None = None,
) -> Principal:
    if version is not None:
        if len(_cache) >= MAX_CACHED:
            _cache.clear()
        _cache[key] = _CacheEntry(version, time.monotonic(), principal, user, permissions)
    return principal

"""Who may do what: the one place that decides, for every door.

A `Principal` is a snapshot of one who asks. Making it takes a few queries, asking it none, so that a list of a thousand
tools costs nothing. Whoever keeps one makes it anew when `version()` is another, and looks at `is_expired`. Not every
change shows in the version, for QuerySet.update and plain SQL send no signals. So nobody keeps one for long without a
comparison with the rows: `KEPT_SECONDS` here, `are_outdated` for the gateway.

A member or tool that came after the snapshot is decided right by it: members begin without groups (giving them some
changes the version), and a scope holds the names it opens, never those it does not.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.conf import settings
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.db.models import Q
from django.db.models.expressions import RawSQL
from django.utils import timezone

from mcp_runtime import protocol
from mcp_runtime.errors import AccessError, NotAllowedError, TokenError
from mcp_runtime.limits import Owner
from roster.models import ApiToken, GuildMember, Hall, Tool

CONTROL = "roster.control_member"
INVOKE = "roster.invoke_tool"
VIEW_CALLS = "roster.view_invocation"
VIEW_MEMBERS = "roster.view_guildmember"
VIEW_TOOLS = "roster.view_tool"
VIEW_SESSIONS = "roster.view_agentsession"

# How exact `last_used_at` is.
TOUCH_SECONDS = 60.0
MAX_KEPT = 2000
# How long a change that did not show in the version may stay unseen here.
KEPT_SECONDS = 2.0

# In SQL: it is asked at every request, and the ORM would take longer for it than for the token.
_VERSION = f"SELECT CAST(hall_id AS text) || ':' || access_version FROM {Hall._meta.db_table} WHERE id = 1"  # noqa: S608

_VERSION_AND_USER = f"SELECT ({_VERSION}), is_active FROM {User._meta.db_table} WHERE id = %s"  # noqa: S608 - a constant


@dataclass(frozen=True)
class Principal:
    """One who asks, and all that is needed to decide what they may. 0 as a limit is no limit."""

    user_id: int | None
    name: str  # of the user
    invokes: bool = False  # the permission INVOKE
    controls: bool = False  # the permission CONTROL
    views_calls: bool = False  # the permission VIEW_CALLS
    views_members: bool = False  # the permission VIEW_MEMBERS
    views_tools: bool = False  # the permission VIEW_TOOLS
    closed_members: frozenset[str] = frozenset()  # reserved for groups that the user is not in
    token_id: int | None = None
    token_name: str = ""
    token_hint: str = ""
    expires_at: datetime | None = None
    members: frozenset[str] | None = None  # the token's scope: these members; None: not narrowed so
    tools: frozenset[tuple[str, str]] | None = None  # the token's scope: these tools, each (member, tool)
    calls_per_minute: int = 0
    max_in_flight: int = 0

    @property
    def owner(self) -> Owner:
        """Whose budgets it uses."""
        return self.user_id, self.token_id

    @property
    def is_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= timezone.now()

    @property
    def is_narrowed(self) -> bool:
        """Whether a token's scope leaves out anything."""
        return self.members is not None or self.tools is not None

    @cached_property
    def _members_of_tools(self) -> frozenset[str]:
        return frozenset(member for member, _ in self.tools or ())

    def reaches(self, member: str) -> bool:
        """Whether the member is there at all for who asks: its groups and the token's scope, no permissions."""
        if member in self.closed_members:
            return False
        if self.tools is not None:
            return member in self._members_of_tools
        return self.members is None or member in self.members

    def may_invoke(self, member: str, tool: str) -> bool:
        if not self.invokes or member in self.closed_members:
            return False
        if self.tools is not None:
            return (member, tool) in self.tools
        return self.members is None or member in self.members

    def may_see(self, member: str) -> bool:
        """Whether any tool of it may be called."""
        return self.invokes and self.reaches(member)

    def may_use_all(self, member: str) -> bool:
        """Whether everything of it may be used, resources and prompts too: not with a scope of single tools."""
        return self.may_see(member) and self.tools is None

    def may_control(self, member: str) -> bool:
        """Start, stop, switch it and its tools. A scope of single tools leaves their member alone."""
        return self.controls and self.tools is None and self.reaches(member)

    def may_list(self, member: str, tool: str) -> bool:
        """Whether the tool is shown: to who may call it, and to who may switch it."""
        return self.may_invoke(member, tool) or self.may_control(member)

    def may_read_log(self, member: str) -> bool:
        """What the member writes, for whomever it works: its log, and the last lines of it in errors and changes."""
        return self.views_members and self.tools is None and self.reaches(member)

    @property
    def views_figures(self) -> bool:
        """Whether figures of everybody's calls are shown, of members as a whole."""
        return self.views_members or self.views_tools or self.views_calls

    def may_view_figures(self, member: str, tool: str = "") -> bool:
        """Figures of everybody's calls of the member, or of one of its tools."""
        if self.tools is not None and (member, tool) not in self.tools:
            return False
        return self.reaches(member) and (self.views_tools or self.views_calls if tool else self.views_figures)

    def may_cancel(self, member: str, made_by: int | None) -> bool:
        """A call of the member that this user made; or anybody's, for who may stop the member."""
        return (made_by is not None and made_by == self.user_id) or self.may_control(member)


OPERATOR = Principal(
    None, "operator", invokes=True, controls=True, views_calls=True, views_members=True, views_tools=True
)


@dataclass(frozen=True)
class Decision:
    """Whether a call would be taken, and every reason for it, or against it, as sentences."""

    allowed: bool
    reasons: list[str]


# Snapshots --------------------------------------------------------------------------------------------------------


def version() -> str | None:
    """Another text whenever anything changed that decides; None while the hall has no row."""
    with connection.cursor() as cursor:
        cursor.execute(_VERSION)
        row = cursor.fetchone()
    return None if row is None else str(row[0])


def principal_of_user(user: User) -> Principal:
    """Who comes without a token: a browser's session, a command. Raises AccessError for a user who is not active."""
    with connection.cursor() as cursor:
        cursor.execute(_VERSION_AND_USER, [user.pk])
        row = cursor.fetchone()
    if row is None or not row[1]:
        raise AccessError(f"user {user.get_username()!r} is not active")
    seen = None if row[0] is None else str(row[0])
    if (kept := _known(("user", user.pk), seen)) is not None:
        return kept
    fresh = User.objects.get(pk=user.pk)
    return _keep(("user", user.pk), seen, _principal(fresh, _rights_of([fresh])[fresh.pk]))


def principal_of_token(text: str) -> Principal:
    """Who comes with this token. Raises TokenError with a sentence: unknown, revoked, expired, user not active."""
    return holder_of(text)[1]


def holder_of(text: str) -> tuple[User, Principal]:
    """The token's user beside who they are with it. One query, while nothing changed. Raises TokenError."""
    try:
        # `get`, not `first`: sorting the one row costs a sixth of the whole request.
        tokens = ApiToken.objects.select_related("user").annotate(version=RawSQL(_VERSION, ()))  # noqa: S611 - a constant
        token = tokens.get(digest=ApiToken.digest_of(text))
    except ApiToken.DoesNotExist as error:
        raise TokenError("This token is not known. Make one with: manage.py create_token USER") from error
    require_good(token)
    used = token.last_used_at
    if used is None or used <= timezone.now() - timedelta(seconds=TOUCH_SECONDS):
        touch(token.pk)
    seen: str | None = token.version
    if (kept := _known(("token", token.pk), seen)) is not None:
        return token.user, kept
    return token.user, _keep(("token", token.pk), seen, principal_of_row(token))


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
            calls_per_minute=_or_default(token.calls_per_minute, settings.GUILD_HALL_CALLS_PER_MINUTE),
            max_in_flight=_or_default(token.max_in_flight, settings.GUILD_HALL_MAX_IN_FLIGHT),
        )
        for token in tokens
    }


def _or_default(limit: int | None, default: int) -> int:
    return default if limit is None else limit


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


# Of this process. A snapshot that is younger than its version is made once more.
_kept: dict[tuple[str, int], _Kept] = {}


def _known(key: tuple[str, int], seen: str | None) -> Principal | None:
    kept = _kept.get(key)
    if kept is None or kept.version != seen or time.monotonic() > kept.made_at + KEPT_SECONDS:
        return None
    return kept.principal


def _keep(key: tuple[str, int], seen: str | None, principal: Principal) -> Principal:
    if seen is not None:
        if len(_kept) >= MAX_KEPT:
            _kept.clear()
        _kept[key] = _Kept(seen, time.monotonic(), principal)
    return principal


# Refusals ---------------------------------------------------------------------------------------------------------


def require_invoke(principal: Principal, member: str, tool: str) -> None:
    """Raises NotAllowedError, which says what is missing. By names alone: whether there is such a tool is not told."""
    if not principal.may_invoke(member, tool):
        raise NotAllowedError(_sentences(_lacks(principal, INVOKE, principal.invokes, member, tool)))


def require_use(principal: Principal, member: str) -> None:
    """As `may_use_all`. Raises NotAllowedError, which says what is missing."""
    if not principal.may_use_all(member):
        raise NotAllowedError(_sentences(_lacks(principal, INVOKE, principal.invokes, member, None)))


def require_anything(principal: Principal) -> None:
    """Raises NotAllowedError for who may use nothing, of whatever member that is there or may yet come."""
    reasons = []
    if not principal.invokes:
        reasons.append(f"this needs the permission {INVOKE}, which user {principal.name!r} does not have")
    if principal.members == frozenset() or principal.tools == frozenset():
        reasons.append(f"{_token(principal)} is for members or tools that have all left the hall")
    if reasons:
        raise NotAllowedError(_sentences(reasons))


def require_control(principal: Principal, member: str) -> None:
    """Raises NotAllowedError, which says what is missing."""
    if not principal.may_control(member):
        raise NotAllowedError(_sentences(_lacks(principal, CONTROL, principal.controls, member, None)))


def require_log(principal: Principal, member: str) -> None:
    """Raises NotAllowedError, which says what is missing."""
    if not principal.may_read_log(member):
        raise NotAllowedError(_sentences(_lacks(principal, VIEW_MEMBERS, principal.views_members, member, None)))


def require_figures(principal: Principal, member: str, tool: str = "") -> None:
    """Raises NotAllowedError, which says what is missing."""
    if principal.may_view_figures(member, tool):
        return
    if tool:
        permission, has_it = f"{VIEW_TOOLS} or {VIEW_CALLS}", principal.views_tools or principal.views_calls
    else:
        permission, has_it = f"{VIEW_MEMBERS} or {VIEW_CALLS}", principal.views_figures
    raise NotAllowedError(_sentences(_lacks(principal, permission, has_it, member, tool or None)))


def require_all_figures(principal: Principal) -> None:
    """For figures of whole members, whichever. Raises NotAllowedError, which says what is missing."""
    if not principal.views_figures:
        user = f"user {principal.name!r} does not have"
        raise NotAllowedError(f"This needs the permission {VIEW_MEMBERS} or {VIEW_CALLS}, which {user}.")
    if principal.tools is not None:
        raise NotAllowedError(f"Figures are of whole members, and {_token(principal)} is for some tools alone.")


def require_cancel(principal: Principal, member: str, made_by: int | None) -> None:
    """Raises NotAllowedError, which says what is missing."""
    if not principal.may_cancel(member, made_by):
        raise NotAllowedError(_sentences(_lacks(principal, CONTROL, principal.controls, member, None)))


def _sentences(reasons: list[str]) -> str:
    return " ".join(f"{reason[0].upper()}{reason[1:]}." for reason in reasons)


def _lacks(principal: Principal, permission: str, has_it: bool, member: str, tool: str | None) -> list[str]:
    """What is missing, each as a sentence without its full stop; `tool` None: the member as a whole is meant."""
    reasons = []
    if not has_it:
        reasons.append(f"this needs the permission {permission}, which user {principal.name!r} does not have")
    if member in principal.closed_members:
        reasons.append(f"member {member!r} is reserved for groups, and user {principal.name!r} is in none of them")
    if principal.members is not None and member not in principal.members:
        reasons.append(f"{_token(principal)} is for these members alone: {_names(principal.members)}")
    if principal.tools is not None and (tool is None or (member, tool) not in principal.tools):
        names = _names(f"{owner}/{name}" for owner, name in principal.tools)
        reasons.append(f"{_token(principal)} is for these tools alone: {names}")
    return reasons


def _token(principal: Principal) -> str:
    name = f" ({principal.token_name})" if principal.token_name else ""
    return f"the token {principal.token_hint}…{name}"


def _names(names: Any) -> str:
    known = sorted(names)
    more = f" and {len(known) - 10} more" if len(known) > 10 else ""
    return (", ".join(known[:10]) + more) or "none that is left"


# Explanations -----------------------------------------------------------------------------------------------------


def explain(principal: Principal, member: str, tool: str) -> Decision:
    """Whether a call of the tool would be taken now, and every reason. Asks the database."""
    against = _lacks(principal, INVOKE, principal.invokes, member, tool)
    if principal.is_expired:
        against.append(f"{_token(principal)} expired")
    against += _obstacles(member, tool)
    if against:
        return Decision(False, against)
    return Decision(True, [*_grants(principal, member), f"tool {tool!r} of member {member!r} is switched on"])


def _obstacles(member: str, tool: str) -> list[str]:
    """Why nobody can call it now."""
    row = GuildMember.objects.filter(name=member, removed_at=None).first()
    if row is None:
        return [f"no member {member!r} is in the roster"]
    reasons = [] if row.enabled else [f"member {member!r} is disabled"]
    known = Tool.objects.filter(member=row, name=tool, listed=True).first()
    if known is None:
        reasons.append(f"member {member!r} lists no tool {tool!r}")
    elif not known.enabled:
        reasons.append(f"tool {tool!r} of member {member!r} is switched off")
    elif protocol.needs_task(known.definition):
        reasons.append(f"tool {tool!r} of member {member!r} {protocol.NEEDS_TASK}")
    return reasons


def _grants(principal: Principal, member: str) -> list[str]:
    if principal.user_id is None:
        return ["who may run the hall's commands is its operator, and may do everything"]
    user = User.objects.get(pk=principal.user_id)
    reasons = [f"user {principal.name!r} {_source_of_permission(user)}"]
    groups = list(Group.objects.filter(guild_members__name=member).order_by("name"))
    if not groups:
        reasons.append(f"member {member!r} is reserved for no group")
    elif user.is_superuser:
        reasons.append(f"member {member!r} is reserved for groups, which superusers need not be in")
    else:
        shared = user.groups.filter(pk__in=[group.pk for group in groups]).values_list("name", flat=True)
        reasons.append(f"member {member!r} is reserved for groups, and the user is in {_names(shared)}")
    if principal.token_id is not None:
        scope = "includes it" if principal.is_narrowed else "is everything that its user may"
        reasons.append(f"the scope of {_token(principal)} {scope}")
    return reasons


def _source_of_permission(user: User) -> str:
    if user.is_superuser:
        return "is a superuser"
    codename = INVOKE.partition(".")[2]
    invoke = Permission.objects.filter(codename=codename, content_type__app_label="roster")
    if user.user_permissions.filter(pk__in=invoke).exists():
        return f"has the permission {INVOKE}"
    names = user.groups.filter(permissions__in=invoke).values_list("name", flat=True)
    return f"has the permission {INVOKE} by group {_names(set(names))}"

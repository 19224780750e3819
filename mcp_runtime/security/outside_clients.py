"""Clients that sign in at an outside issuer: from a checked access token to a principal.

The first token of a client for a user makes a row of `Token` with its `Grant`, so all that counts, limits, lists and
revokes tokens works for it as for a client that signed in at the hall. The user is the one that single sign-on made for
the person. Nothing here makes users.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError
from django.utils import timezone

from mcp_runtime.protocol.errors import ScopeError, TokenError
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.security import principals
from mcp_runtime.security.access import Principal
from mcp_runtime.security.resources import web_address
from roster.models import Actor, AuditEntry, Grant, GuildMember, Identity, Token, ToolSet

MAX_CLIENTS = 100  # of a user. Some issuers let everybody register clients
EVERYTHING, TOOL_SET = "all", "set:"


@dataclass(frozen=True)
class OutsideToken:
    """What a checked access token says. `resource` is a path of the gateway, as in `security.resources`."""

    issuer: str
    subject: str
    client_id: str
    resource: str
    scopes: frozenset[str]
    ends_at: datetime


@dataclass(frozen=True)
class _Target:
    """What a scope gives: everything, a member or a tool set."""

    name: str
    member: GuildMember | None = None
    tool_set: ToolSet | None = None

    @property
    def key(self) -> str:
        """Other rows with the same name later are another target."""
        return f"{self.name} {self.member.pk if self.member else ''} {self.tool_set.pk if self.tool_set else ''}"


def target_of(scopes: Collection[str]) -> str:
    """What these scopes give: the first scope of the setting that is among them decides. Raises ScopeError.

    A token may have only the part of a scope after its last slash, because Entra ID leaves the rest out.
    """
    for scope, target in settings.GUILD_HALL_SIGN_IN_SCOPES:
        if scope in scopes or scope.rpartition("/")[2] in scopes:
            return str(target)
    known = ", ".join(scope for scope, _ in settings.GUILD_HALL_SIGN_IN_SCOPES)
    raise ScopeError(f"This access token has no scope of this hall. Ask for one of these: {known}.")


def principal_of(token: OutsideToken) -> Principal:
    """The principal of a client, until its access token ends. Raises TokenError, with what to do."""
    target = _target(target_of(token.scopes))
    identity = Identity.objects.select_related("user").filter(issuer=token.issuer, subject=token.subject).first()
    if identity is None:
        raise TokenError(
            f"This hall does not know the person of this access token. Log in at {web_address()} with single sign-on "
            "once, then try again."
        )
    if not identity.user.is_active:
        raise TokenError("The user of this access token is not active.")
    try:
        row = _row(identity.user, token, target)
    except IntegrityError:  # the same client came to another node at the same moment
        row = _row(identity.user, token, target)
    if row.state == "dormant":
        raise TokenError(
            f"The user of this access token has not used single sign-on since {identity.last_login_at:%Y-%m-%d}. "
            f"Log in at {web_address()}, then try again."
        )
    principal = principals.principal_of_row(row)
    principals.touch(row.pk)
    return replace(principal, access_ends_at=token.ends_at)


def _target(name: str) -> _Target:
    """Raises TokenError if it has left the hall."""
    if name == EVERYTHING:
        return _Target(name)
    if name.startswith(TOOL_SET):
        found = _Target(name, tool_set=ToolSet.objects.filter(name=name.removeprefix(TOOL_SET)).first())
    else:
        found = _Target(name, member=GuildMember.objects.filter(name=name, removed_at=None).first())
    if found.member is None and found.tool_set is None:
        raise TokenError(f"The scope of this access token is for {name!r}, which this hall lacks. Ask its operator.")
    return found


def _row(user: User, token: OutsideToken, target: _Target) -> Token:
    """The row of the client, which is made if there is none. Raises TokenError, and IntegrityError if another made it.

    A revoked row refuses the client for the user, whatever address and scope it asks for next, until somebody deletes
    the row. Otherwise the next token of the issuer would take the revocation back.
    """
    rows = Grant.objects.filter(issuer=token.issuer, client_id=token.client_id, token__user=user)
    grants = list(rows.select_related("token__user__identity"))
    if any(grant.token.revoked_at is not None for grant in grants):
        raise TokenError("This client was revoked in the hall. Delete it from the list of tokens to allow it again.")
    parts = (str(user.pk), token.issuer, token.client_id, token.resource, target.key)
    key = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
    found = next((grant.token for grant in grants if grant.outside_key == key), None)
    return found or new_row(user, token, target, key)


def new_row(user: User, token: OutsideToken, target: _Target, key: str) -> Token:
    """Insert the token of a client, with its grant. Raises TokenError if the user has too many clients."""
    if Grant.objects.exclude(issuer="").filter(token__user=user).count() >= MAX_CLIENTS:
        raise TokenError(f"The user has {MAX_CLIENTS} clients. Delete some of them in the list of tokens.")
    scope = Token.Scope.TOOLS if target.tool_set else Token.Scope.MEMBERS if target.member else Token.Scope.ALL
    actor = Actor(AuditEntry.Source.RUNTIME, f"{user.get_username()} at {token.issuer}", user.pk)
    with short_transaction():
        row, _ = Token.make(
            user=user,
            name=token.client_id[:100],
            scope=scope,
            members=[target.member] if target.member else [],
            tool_set=target.tool_set,
            resource=token.resource,
        )
        Grant.objects.create(
            token=row,
            client_id=token.client_id,
            issuer=token.issuer,
            outside_key=key,
            redeemed_at=timezone.now(),
            ends_at=Grant.NO_END,
        )
        details = {"client_id": token.client_id, "issuer": token.issuer, "address": token.resource, "for": target.name}
        AuditEntry.record(AuditEntry.Kind.CLIENT_ALLOWED, row.audit_name, after=details, actor=actor)
    return row

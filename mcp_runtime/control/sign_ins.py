"""Sign in at the authorization servers of members: a person begins it here, and finishes it in the browser.

The tokens of a member are for everybody who may use it, or for the lists of the hall if each user has an own sign-in.
So whoever may start and stop the member may sign it in. Functions with `own` are about the sign-in of one user alone.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.models import User
from django.utils import timezone

from mcp_runtime.control import ways_in
from mcp_runtime.control.members import record_of_member, require_enabled, set_desired_state
from mcp_runtime.control.sign_in_clients import CALLBACK, Known, client_of, server_of
from mcp_runtime.protocol.errors import ClientIdNeededError, ClientOverError, RequestRefusedError
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.secrets import values
from mcp_runtime.security import resources
from roster.models import (
    AuditEntry,
    GuildMember,
    MemberSignInAttempt,
    SignInAttempt,
    UserSignInAttempt,
)

if TYPE_CHECKING:  # the web loads them when somebody signs a member in
    from mcp_runtime.members.credentials import Holder
    from mcp_runtime.members.manifest.declaration import Manifest

Kind = AuditEntry.Kind
OVER = "This sign-in is over, or somebody else began it. Open the page of the member and sign in again."


@dataclass(frozen=True)
class Begun:
    """A sign-in that waits for the person, who opens `address` until `ends_at`."""

    address: str
    issuer: str
    client_id: str
    client_source: str
    scopes: tuple[str, ...]
    ends_at: datetime

    @property
    def host(self) -> str:
        """The host of the page on which the person signs in."""
        return urlsplit(self.address).netloc


# Begin ------------------------------------------------------------------------------------------------------------


def begin(
    member: GuildMember,
    user: User,
    *,
    web: str,
    session: str = "",
    client_id: str = "",
    client_secret: str = "",
    own: bool = False,
) -> Begun:
    """Find the authorization server, and prepare a sign-in that only this user can finish, in this session if given.

    `web` is the address of the web. `client_id` and `client_secret` are for a server at which the hall cannot register.
    With `own`, the tokens will be for the calls of this user alone. Raises OAuthError, ClientIdNeededError and other
    RequestRefusedErrors.
    """
    from mcp_runtime.client import outside
    from mcp_runtime.members import credentials
    from mcp_runtime.oauth import grants

    manifest = _manifest_of_remote_server(member)
    holder = _holder(member, user if own else None)
    if refusal := ways_in.refusal(member, own=own):
        raise RequestRefusedError(refusal)
    known = Known.of(member, manifest.url, holder)
    guard = outside.Guard.near(manifest.url, settings.GUILD_HALL_PLAIN_HTTP_HOSTS)
    redirect = f"{web}{CALLBACK}"
    with outside.in_total(credentials.ASK_SECONDS):
        server = server_of(member, manifest, known, guard)
        scopes = grants.wanted_scopes(server, known.challenge, manifest.oauth.scopes, known.kept_scopes(server))
        try:
            entered = (client_id, client_secret)
            client = client_of(member, server, known.client(server, redirect), guard, web, entered, scopes)
        except ClientIdNeededError as need:
            if not own:
                raise
            raise RequestRefusedError(
                f"the hall has no client id at {server.issuer!r}; somebody who may start and stop member "
                f"{member.name!r} must sign the member in first"
            ) from need
    attempt = grants.Attempt.at(server)
    secret = {
        "server": server.as_json(),
        "client": [client.id, client.secret, client.method, client.source],
        "state": attempt.state,
        "verifier": attempt.verifier,
        "key": attempt.key,
        "scopes": list(scopes),
        "redirect": redirect,
    }
    row = _write_attempt(member, user, session, manifest.url, attempt.state, secret, holder)
    address = grants.authorization_address(server, client, redirect, scopes, attempt)
    ends_at = row.created_at + MemberSignInAttempt.LIFETIME
    return Begun(address, server.issuer, client.id, client.source, scopes, ends_at)


def _manifest_of_remote_server(member: GuildMember) -> Manifest:
    """The manifest of a member at which the hall can sign in. Raises RequestRefusedError."""
    from mcp_runtime.members.manifest.declaration import Manifest

    require_enabled(member)
    manifest = Manifest.from_json(member.manifest) if member.manifest else None
    if manifest is None or not manifest.url:
        raise RequestRefusedError(f"member {member.name!r} is no remote server, so it has nothing to sign in at")
    if any(name.lower() == "authorization" for name in manifest.headers):
        raise RequestRefusedError(f"the manifest of {member.name!r} has its own Authorization header")
    return manifest


def _holder(member: GuildMember, user: User | None) -> Holder:
    """Whose the tokens are: of this user alone, or those of the member. Raises RequestRefusedError."""
    from mcp_runtime.members import credentials

    if user is None:
        return credentials.LISTS if member.signs_in_by_user else credentials.EVERYBODY
    if not member.signs_in_by_user:
        raise RequestRefusedError(
            f"users have no sign-in of their own at member {member.name!r}; its manifest has no "
            'oauth.credentials of "user"'
        )
    return credentials.of_user(user.pk)


def _write_attempt(
    member: GuildMember,
    user: User,
    session: str,
    url: str,
    state: str,
    secret: Mapping[str, Any],
    holder: Holder,
) -> MemberSignInAttempt | UserSignInAttempt:
    attempts: Any = MemberSignInAttempt.objects if holder.is_shared else UserSignInAttempt.objects
    # Many users may sign in at once, so one of them must not push out the others.
    rivals = {"user": user} if holder.is_user else {}
    purpose = {} if holder.is_shared else {"for_lists": not holder.is_user}
    with values.refusals(), short_transaction():
        values.lock()
        attempts.filter(created_at__lt=timezone.now() - MemberSignInAttempt.LIFETIME).delete()
        others = attempts.filter(member=member, **rivals, **purpose).order_by("-pk").values_list("pk", flat=True)
        attempts.filter(pk__in=list(others[MemberSignInAttempt.MAX_OPEN - 1 :])).delete()
        attempt: MemberSignInAttempt | UserSignInAttempt = attempts.create(
            **purpose,
            state_digest=_digest(state),
            member=member,
            user=user,
            session_digest=_digest(session) if session else "",
            url=url,
            encrypted=values.encrypt(json.dumps(secret)),
        )
        return attempt


# Finish -----------------------------------------------------------------------------------------------------------


def finish(
    answer: Mapping[str, Sequence[str]],
    user: User,
    session: str,
    may_finish: Callable[[GuildMember, bool], bool] = lambda member, is_own: True,
) -> tuple[GuildMember, bool]:
    """Take the parameters that the browser brings back from the authorization server, and keep the tokens.

    Each attempt ends here, whatever comes of it. `may_finish` says whether the user still has the right, for a member
    or for an own sign-in. Returns the member, and whether the sign-in is the user's own. Raises RequestRefusedError.
    """
    from mcp_runtime.client import outside
    from mcp_runtime.members import credentials
    from mcp_runtime.oauth import grants
    from mcp_runtime.oauth.clients import OAuthClient
    from mcp_runtime.oauth.discovery import AuthorizationServer

    row = _taken_attempt(next(iter(answer.get("state", ())), ""), user, session)
    member, own = row.member, isinstance(row, UserSignInAttempt) and not row.for_lists
    if not _is_open(row, own=own) or not may_finish(member, own):
        raise RequestRefusedError(OVER)
    with values.refusals():
        secret = json.loads(values.decrypt_text(row.encrypted, "the sign-in was"))
    server = AuthorizationServer.from_json(secret["server"])
    if member.allowed_issuer not in ("", server.issuer):
        raise RequestRefusedError(OVER)
    client = OAuthClient(*secret["client"])
    guard = outside.Guard.near(row.url, settings.GUILD_HALL_PLAIN_HTTP_HOSTS)
    code = grants.code_of(answer, server, secret["state"])
    attempt = grants.Attempt(secret["state"], secret["verifier"], secret.get("key", ""))
    try:
        with outside.in_total(credentials.ASK_SECONDS):
            tokens = grants.redeem(server, client, secret["redirect"], code, attempt, guard)
    except ClientOverError:
        credentials.forget_client(member.pk, client)
        raise
    with values.refusals(), short_transaction():
        _require_same(member, row.url, user, server.issuer, own=own)
        holder = _holder(member, user if own else None)
        if holder == credentials.LISTS:
            credentials.forget(member.pk)  # the account for everybody, which the member had before
        credentials.keep(
            member,
            row.url,
            server,
            client,
            tokens,
            asked=secret["scopes"],
            user_id=user.pk,
            redirect=secret["redirect"],
            holder=holder,
        )
        after = {"issuer": server.issuer, "client_id": client.id, "scopes": list(tokens.scopes or secret["scopes"])}
        record_of_member(member, Kind.MEMBER_SIGNED_IN, after=after | _purpose(holder))
    if not own:
        _connect_again(member)
    return member, own


def _taken_attempt(state: str, user: User, session: str) -> MemberSignInAttempt | UserSignInAttempt:
    """The attempt of this user with this state, which is deleted. Raises RequestRefusedError."""
    row = _attempt_of(state)
    if row is None or row.user_id != user.pk or not _is_session(row, session):
        raise RequestRefusedError(OVER)  # an attempt of somebody else stays, for the person who began it
    if not type(row)._default_manager.filter(pk=row.pk).delete()[0]:
        raise RequestRefusedError(OVER)
    return row


def _is_open(row: MemberSignInAttempt | UserSignInAttempt, *, own: bool) -> bool:
    """Whether the attempt is in time, and its member is as it was. After a change, the tokens could be for others."""
    member, is_late = row.member, row.created_at < timezone.now() - MemberSignInAttempt.LIFETIME
    is_same = isinstance(row, UserSignInAttempt) == member.signs_in_by_user and row.url == member.server_url
    return is_same and not is_late and member.removed_at is None and not ways_in.refusal(member, own=own)


def _require_same(member: GuildMember, url: str, user: User, issuer: str, *, own: bool) -> None:
    """Raise RequestRefusedError if somebody removed or changed the member or the user during the request."""
    now = GuildMember.objects.filter(pk=member.pk, removed_at=None).first()
    if now is None or now.server_url != url or now.signs_in_by_user != member.signs_in_by_user:
        raise RequestRefusedError(OVER)
    if now.allowed_issuer not in ("", issuer):
        raise RequestRefusedError(OVER)
    if ways_in.refusal(now, own=own):  # with the grant of now nobody signs in
        raise RequestRefusedError(OVER)
    if not User.objects.filter(pk=user.pk, is_active=True).exists():
        raise RequestRefusedError(OVER)


def _attempt_of(state: str) -> MemberSignInAttempt | UserSignInAttempt | None:
    digest = _digest(state)
    shared = MemberSignInAttempt.objects.select_related("member").filter(state_digest=digest).first()
    return shared or UserSignInAttempt.objects.select_related("member").filter(state_digest=digest).first()


def _purpose(holder: Holder) -> dict[str, Any]:
    """What the audit log says about a sign-in that is not for everybody."""
    return {} if holder.is_shared else {"for": "own calls" if holder.is_user else "lists"}


def _is_session(row: SignInAttempt, session: str) -> bool:
    return not row.session_digest or hmac.compare_digest(row.session_digest, _digest(session))


def sign_out(member: GuildMember, own: User | None = None) -> bool:
    """Forget the tokens of the member, or those of this user, and let the authorization server end them if it can.

    Returns whether the authorization server said that it did. Raises RequestRefusedError if there is nothing to forget.
    """
    from mcp_runtime.client.outside import Guard
    from mcp_runtime.members import credentials
    from mcp_runtime.oauth import grants

    holder = _holder(member, own)
    row = holder.model.objects.filter(**holder.keys(member.pk)).first()
    if row is None:
        who = f"member {member.name!r} is" if own is None else "you are"
        raise RequestRefusedError(f"{who} not signed in")
    with short_transaction():
        held = credentials.forget(member.pk, holder)
        before = {"issuer": row.issuer, "scopes": list(row.scopes)} | _purpose(holder)
        record_of_member(member, Kind.MEMBER_SIGNED_OUT, before=before)
    if own is None:
        _connect_again(member)
    if held is None or held.server is None or held.client is None:
        return False
    guard = Guard.near(row.url, settings.GUILD_HALL_PLAIN_HTTP_HOSTS)
    return grants.revoke(held.server, held.client, held.refresh or held.access, guard)


def address_of_web() -> str:
    """Where users open the pages for their sign-ins, without a slash at the end. The runtime asks here."""
    return resources.web_address()


# Helpers ----------------------------------------------------------------------------------------------------------


def _connect_again(member: GuildMember) -> None:
    """Let the runtime connect with the new tokens, or without them, if the member should run."""
    if member.enabled and member.desired_state == GuildMember.DesiredState.RUNNING:
        set_desired_state(member, restart_requested_at=timezone.now())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

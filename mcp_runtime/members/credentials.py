"""The tokens of members behind OAuth, as rows: read, keep, renew and forget them. Nothing else writes these rows.

A `Holder` says whose tokens they are: of everybody who uses the member, of one user, or of the hall for its lists.
What came in one way, see `unattended.way_of`, is of no use in another: it would be the access of somebody else.

One process at a time renews the tokens of a member. It takes a lease of the row by compare-and-set, asks the
authorization server without a transaction, and writes what came before anybody uses it. All others wait, and read the
row again.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F, Q, QuerySet

from mcp_runtime.client import outside
from mcp_runtime.client.outside import Guard
from mcp_runtime.oauth import clients, grants
from mcp_runtime.oauth.challenges import Challenge
from mcp_runtime.oauth.clients import OAuthClient
from mcp_runtime.oauth.discovery import AuthorizationServer
from mcp_runtime.oauth.grants import Tokens
from mcp_runtime.protocol.errors import (
    AccessEndedError,
    ClientOverError,
    GrantOverError,
    KeyFileError,
    OAuthError,
    ServerAwayError,
)
from mcp_runtime.rows import clock
from mcp_runtime.rows.database import give_connection_back, persistently, short_transaction
from mcp_runtime.secrets import values
from roster.models import GuildMember, MemberSignIn, SignIn, UserSignIn

# Of all requests for one renewal: perhaps the metadata of three servers, an exchange, and the request for the token.
ASK_SECONDS = 20.0
WAIT_SECONDS = 25.0  # for the renewal of another process, which is over or failed then
LEASE_SECONDS = 30.0  # longer than the requests and the write of what came, or another process would ask too
LOOK_SECONDS = 0.05
PERSON = SignIn.PERSON
EARLY_SECONDS = 60.0  # before the end of the access token. Of a short one, half of its life
LONGEST_PAUSE = 60.0  # between two tries while the authorization server is away


@dataclass(frozen=True)
class Holder:
    """Who uses the tokens of a row. Without `is_shared`, a user, or the hall itself for its lists if that is None."""

    is_shared: bool = True
    user_id: int | None = None

    @property
    def is_user(self) -> bool:
        return self.user_id is not None

    def rows(self, member_id: int) -> QuerySet[Any]:
        """The row of this holder, if there is one. Tokens of a person who is not active are of no use to anybody."""
        if self.is_shared:
            return MemberSignIn.objects.filter(pk=member_id)
        rows = UserSignIn.objects.filter(**self.keys(member_id)).exclude(user__is_active=False)
        return rows.exclude(signed_in_by__is_active=False)

    def keys(self, member_id: int) -> dict[str, Any]:
        return {"member_id": member_id} | ({} if self.is_shared else {"user_id": self.user_id})

    @property
    def model(self) -> type[MemberSignIn] | type[UserSignIn]:
        return MemberSignIn if self.is_shared else UserSignIn


EVERYBODY = Holder()
LISTS = Holder(is_shared=False)


def of_user(user_id: int) -> Holder:
    return Holder(is_shared=False, user_id=user_id)


@dataclass(frozen=True)
class Held:
    """What the hall has at an authorization server. `client` and `server` are None before the first sign-in.

    `key` is that of the proofs, and empty if the authorization server binds no tokens to keys. `is_bound` says whether
    the access token is.
    """

    version: int
    access: str = field(default="", repr=False)
    refresh: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    is_bound: bool = False
    client: OAuthClient | None = None
    server: AuthorizationServer | None = None
    expires_at: datetime | None = None


def read(row: SignIn) -> Held:
    """Raises KeyFileError."""
    if not row.encrypted:
        return Held(row.version)
    secret = json.loads(values.decrypt_sign_in(row))
    client = OAuthClient(row.client_id, secret["client_secret"], row.client_method, row.client_source)
    server = AuthorizationServer.from_json(row.server)
    return Held(
        row.version,
        access=secret["access"],
        refresh=secret["refresh"],
        key=secret.get("key", ""),
        is_bound=secret.get("is_bound", False),
        client=client,
        server=server,
        expires_at=row.expires_at,
    )


def row_of(member_id: int, url: str, holder: Holder = EVERYBODY, way: str = PERSON) -> MemberSignIn | UserSignIn | None:
    """The row of the member with this url and this way. What the hall had for another url is forgotten."""
    row: MemberSignIn | UserSignIn | None = holder.rows(member_id).first()
    if row is None or row.url == url:
        return row if row is not None and row.came_by(way) else None
    holder.model.objects.filter(pk=row.pk, url=row.url).delete()
    return None


def forget_other_ways(
    member_id: int, *, of_everybody: str | None = None, of_lists: str | None = None, of_users: str | None = None
) -> None:
    """Forget what the hall got in another way than these, and all that is of a holder whose way is None."""
    of_member = UserSignIn.objects.filter(member_id=member_id)
    rows_by_way: list[tuple[QuerySet[Any], str | None]] = [
        (MemberSignIn.objects.filter(pk=member_id), of_everybody),
        (of_member.filter(user=None), of_lists),
        (of_member.exclude(user=None), of_users),
    ]
    for rows, way in rows_by_way:
        for row in rows:
            if way is None or not row.came_by(way):
                _same(row).filter(version=row.version).delete()  # somebody may sign in at this moment


def _columns(server: AuthorizationServer, client: OAuthClient, tokens: Tokens | None, way: str) -> dict[str, Any]:
    """The columns for these tokens. Call it in a transaction, after `values.lock`. Raises SecretError."""
    secret = {
        "access": tokens.access if tokens else "",
        "refresh": tokens.refresh if tokens else "",
        "key": tokens.key if tokens else "",
        "is_bound": tokens is not None and tokens.is_bound,
        "client_secret": client.secret,
    }
    ends = clock.now() + timedelta(seconds=tokens.seconds) if tokens and tokens.seconds is not None else None
    return {
        "issuer": server.issuer,
        "server": server.as_json() | {"way": way},
        "client_id": client.id,
        "client_method": client.method,
        "client_source": client.source,
        "encrypted": values.encrypt(json.dumps(secret)),
        "has_tokens": tokens is not None,
        "expires_at": ends,
        "refresh_lease": None,
        "refresh_until": None,
        "refresh_failures": 0,
        "next_refresh_at": None,
    }


def keep(
    member: GuildMember,
    url: str,
    server: AuthorizationServer,
    client: OAuthClient,
    tokens: Tokens,
    *,
    asked: Collection[str],
    user_id: int | None,
    redirect: str = "",
    holder: Holder = EVERYBODY,
) -> None:
    """Write what a sign-in gave. It replaces all that the hall had for this holder. Raises SecretError."""
    with short_transaction():
        values.lock()
        keys = holder.keys(member.pk)
        old = holder.model.objects.filter(**keys).first()
        columns = _columns(server, client, tokens, PERSON)
        is_step_up = bool(old and old.wanted_scopes)
        columns |= {
            "url": url,
            "version": old.version + 1 if old else 1,
            "scopes": list(tokens.scopes or asked),
            "wanted_scopes": [],
            "step_ups": old.step_ups if old and is_step_up else 0,
            "signed_in_at": clock.now(),
            "signed_in_by_id": user_id,
            "redirect": redirect,
        }
        holder.model.objects.update_or_create(**keys, defaults=columns)
        if not holder.is_user:
            GuildMember.objects.filter(pk=member.pk).update(needs_sign_in=False)


def forget(member_id: int, holder: Holder = EVERYBODY) -> Held | None:
    """Forget the tokens of this holder, and what was asked for. Returns what the hall had, to revoke it."""
    with short_transaction():
        row = holder.model.objects.select_for_update().filter(**holder.keys(member_id)).first()
        if row is None:
            return None
        try:
            held = read(row)
        except KeyFileError:
            held = None
        row.delete()
    return held


def end_of_other_issuer(row: SignIn, issuer: str) -> str:
    """End the sign-in of a person if the manifest names another issuer than the one that gave it. Nobody is asked.

    Returns why, in words for people, or an empty text. Raises KeyFileError.
    """
    if row.is_of(issuer):
        return ""
    if row.has_tokens:
        with short_transaction():
            values.lock()
            # Not if somebody signs in at this moment. A refresh that is in progress loses its lease.
            _same(row).filter(version=row.version).update(**_ended(row), version=F("version") + 1)
        row.has_tokens, row.version = False, row.version + 1
    return other_issuer(row.issuer, issuer)


def other_issuer(old: str, new: str) -> str:
    return f"its manifest names the authorization server {new!r}, and the last sign-in was at {old!r}"


def issuer_now(member_id: int) -> str:
    """The issuer that the manifest names at this moment, also if the connection is older. Empty if it names none."""
    member = GuildMember.objects.only("manifest").filter(pk=member_id).first()
    return member.allowed_issuer if member else ""


def forget_client(member_id: int, client: OAuthClient) -> None:
    """Do not use this client in the next sign-in, because the authorization server does not know it any more.

    A client of the manifest stays. Tokens stay too, until the authorization server or their end says otherwise.
    """
    for model in (MemberSignIn, UserSignIn):
        rows = model._default_manager.filter(member_id=member_id, client_id=client.id)
        rows.filter(client_source__in=clients.REPLACEABLE).update(redirect="")  # it is of use for its redirect alone


def prune() -> None:
    """Forget the tokens of users who are not active any more. Nothing uses or renews them since the user is not."""
    UserSignIn.objects.filter(Q(user__is_active=False) | Q(signed_in_by__is_active=False)).delete()


# What the member asks for -----------------------------------------------------------------------------------------


def note_challenge(member_id: int, url: str, challenge: Challenge, holder: Holder = EVERYBODY) -> Challenge:
    """Remember what the member said when it refused a request, for the next sign-in.

    Returns what the member said last. That is another challenge than this one if this one is of no scheme of OAuth.
    """
    asked = {"resource_metadata": challenge.resource_metadata[:2048], "challenge_scopes": list(challenge.scopes)}
    with short_transaction():
        defaults: dict[str, Any] = {"url": url, **asked}
        row, is_new = holder.model.objects.get_or_create(**holder.keys(member_id), defaults=defaults)
        if is_new:
            return challenge
        if not challenge.is_oauth:
            return Challenge(True, row.resource_metadata, tuple(row.challenge_scopes))
        holder.model.objects.filter(pk=row.pk, url=url).update(**asked)
        return challenge


def note_step_up(member_id: int, scopes: Iterable[str], holder: Holder = EVERYBODY) -> bool:
    """Remember scopes that a call needs. False if the member asked for more too often, or for what it gave already."""
    with short_transaction():
        row = holder.model.objects.select_for_update().filter(**holder.keys(member_id)).first()
        if row is None or not row.has_tokens:
            return False
        wanted = list(dict.fromkeys([*row.wanted_scopes, *scopes]))[:100]
        is_too_often = row.step_ups >= MemberSignIn.MAX_STEP_UPS and not row.wanted_scopes
        if set(wanted) <= set(row.scopes) or is_too_often:
            return False
        if wanted != row.wanted_scopes:
            step_ups = row.step_ups + (0 if row.wanted_scopes else 1)
            holder.model.objects.filter(pk=row.pk).update(wanted_scopes=wanted, step_ups=step_ups)
        if not holder.is_user:  # one user's need is nothing that others should see
            GuildMember.objects.filter(pk=member_id).update(needs_sign_in=True)
        return True


# Renewing ---------------------------------------------------------------------------------------------------------

Ask = Callable[[Held], tuple[AuthorizationServer, OAuthClient, Tokens]]


def refresh_of(guard: Guard, issuer: str = "") -> Ask:
    """Ask for new tokens with the refresh token. It is sent only to the `issuer` of the manifest, if that names one."""

    def ask(held: Held) -> tuple[AuthorizationServer, OAuthClient, Tokens]:
        if held.client is None or held.server is None or not held.refresh:
            raise GrantOverError("the authorization server gave no refresh token")
        if issuer and held.server.issuer != issuer:
            raise GrantOverError(other_issuer(held.server.issuer, issuer))
        return held.server, held.client, grants.refresh(held.server, held.client, held.refresh, guard, held.key)

    return ask


def require_issuer(server: AuthorizationServer, issuer: str, known: str, *, is_by_user: bool = False) -> None:
    """Raise OAuthError if the authorization server is another one than the manifest allows, or than the `known` one.

    Otherwise a member could let the hall send the secret of a client, which the manifest names, to any server.
    """
    if issuer and server.issuer != issuer:
        raise OAuthError(f"the member names the authorization server {server.issuer!r}, and its manifest {issuer!r}")
    if not issuer and known and known != server.issuer:
        # Nobody can sign other users out.
        remedy = "name the right one as oauth.issuer in the manifest" if is_by_user else "sign the member out"
        raise OAuthError(
            f"the authorization server of the member was {known!r} and is {server.issuer!r} now; "
            f"{remedy} if that is right"
        )


def issuer_of(held: Held | None) -> str:
    """The authorization server of a sign-in. Empty if there is none."""
    return held.server.issuer if held is not None and held.server is not None else ""


def issuer_of_users(member_id: int, url: str) -> str:
    """The authorization server that has the secret of the manifest since the first sign-in of a user, or for the lists.

    All users have the same client there. Empty if nobody has signed in with it.
    """
    rows = UserSignIn.objects.filter(member_id=member_id, url=url, client_source="manifest").exclude(issuer="")
    return rows.order_by("pk").values_list("issuer", flat=True).first() or ""


def renew(member_id: int, url: str, version: int, ask: Ask, holder: Holder = EVERYBODY, way: str = PERSON) -> Held:
    """Tokens for `url` that are newer than those of `version`. All who ask at the same time cause one request.

    Raises GrantOverError if a person must sign in again, and another OAuthError if there are none now. After an
    AccessEndedError the row has none either, so that no other process uses them.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        row = holder.rows(member_id).first()
        if row is None:
            raise GrantOverError("somebody signed out, or is not active any more")
        if row.url != url:
            raise GrantOverError("the member has another url now")
        if not row.came_by(way):
            raise GrantOverError("the member has another grant now")
        if row.version != version and row.has_tokens:
            return read(row)
        if row.version != version and way == PERSON:
            raise GrantOverError("the authorization server ended the sign-in")
        now = clock.now()
        if row.next_refresh_at is not None and now < row.next_refresh_at < _latest(now, LONGEST_PAUSE):
            raise ServerAwayError("the last try failed a moment ago")
        if (lease := _take(row, now)) is not None:
            if (renewed := _renew(row, lease, ask, way)) is not None:
                return renewed
            continue  # somebody signed the member in or out meanwhile, which the row says
        if time.monotonic() > deadline:
            raise ServerAwayError("another process asks for new tokens, and did not get them in time")
        give_connection_back()
        time.sleep(LOOK_SECONDS)


def _latest(now: datetime, seconds: float) -> datetime:
    """What is later than this was written before somebody set the clock back. Clocks of nodes differ a little."""
    return now + timedelta(seconds=2 * seconds)


def _take(row: SignIn, now: datetime) -> uuid.UUID | None:
    """The lease of the row for one request. None if another process has it."""
    lease = uuid.uuid4()
    free = _same(row).filter(version=row.version)
    is_lost = Q(refresh_until__lt=now) | Q(refresh_until__gt=_latest(now, LEASE_SECONDS))
    free = free.filter(Q(refresh_lease=None) | is_lost)
    is_taken = free.update(refresh_lease=lease, refresh_until=now + timedelta(seconds=LEASE_SECONDS))
    return lease if is_taken else None


def _same(row: SignIn) -> QuerySet[Any]:
    return type(row)._default_manager.filter(pk=row.pk)


def _renew(row: SignIn, lease: uuid.UUID, ask: Ask, way: str) -> Held | None:
    """The new tokens. None if the lease is lost."""
    own = _same(row).filter(refresh_lease=lease)
    give_connection_back()
    try:
        held = read(row)
        with outside.in_total(ASK_SECONDS):
            server, client, tokens = ask(held)
    except GrantOverError as error:
        is_client_over = isinstance(error, ClientOverError)
        if not persistently(lambda: _end(row, lease, is_client_over=is_client_over)):
            return None
        raise
    except BaseException as error:
        seconds = min(2.0 ** min(row.refresh_failures, 10), LONGEST_PAUSE)
        pause: dict[str, Any] = {
            "refresh_lease": None,
            "refresh_failures": F("refresh_failures") + 1,
            "next_refresh_at": clock.now() + timedelta(seconds=seconds),
        }
        if isinstance(error, AccessEndedError) and row.has_tokens:
            persistently(lambda: _end(row, lease, **pause))
        else:
            own.update(**pause)
        raise

    def write() -> int:
        with short_transaction():
            values.lock()
            scopes = {"scopes": list(tokens.scopes)} if tokens.scopes else {}
            return own.update(**_columns(server, client, tokens, way), **scopes, version=F("version") + 1)

    if not persistently(write):
        return None
    ends = clock.now() + timedelta(seconds=tokens.seconds) if tokens.seconds is not None else None
    return Held(
        row.version + 1, tokens.access, tokens.refresh, tokens.key, tokens.is_bound, client, server, expires_at=ends
    )


def _end(row: SignIn, lease: uuid.UUID, *, is_client_over: bool = False, **more: Any) -> int:
    """The tokens are over. Who the hall is at the authorization server stays if it is of use. 0 if the lease is lost.

    A client of the manifest stays in any case, because its secret is for this authorization server alone.
    """
    with short_transaction():
        values.lock()
        nothing = _ended(row, is_client_over=is_client_over)
        own = _same(row).filter(refresh_lease=lease)
        return own.update(**{**nothing, **more}, version=F("version") + 1)


def _ended(row: SignIn, *, is_client_over: bool = False) -> dict[str, Any]:
    """The columns without tokens. Call it in a transaction, after `values.lock`. Raises SecretError."""
    held = read(row)
    is_gone = is_client_over and row.client_source in clients.REPLACEABLE
    if held.server is not None and held.client is not None and not is_gone:
        return _columns(held.server, held.client, None, row.way)
    return {"has_tokens": False, "encrypted": "", "refresh_lease": None, "expires_at": None}

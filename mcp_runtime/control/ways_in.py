"""In which way the hall gets the tokens of a member behind OAuth, and whether it has them, in words for people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import QuerySet

from mcp_runtime.members import kept_id_tokens
from mcp_runtime.protocol.errors import AssertionRefusedError, SecretError
from roster.models import GuildMember, MemberSignIn, SignIn, UserSignIn

AUTHORIZATION_CODE, ENTERPRISE_MANAGED = "authorization_code", "enterprise_managed"
WAYS = {
    "client_credentials": "The hall signs in as itself, with its client id.",
    "workload_identity": "The hall signs in as itself, with the signed token of its platform.",
    ENTERPRISE_MANAGED: "The identity provider of the company vouches for a service.",
}
LOGIN = "The login of each user at {} gives the access."


def grant_of(member: GuildMember) -> str:
    """The grant for the member itself, or for its lists if each user has an own one."""
    oauth = member.manifest.get("oauth") or {}
    grant = str(oauth.get("grant") or AUTHORIZATION_CODE)
    is_for_users_alone = oauth.get("credentials") == "user" and not oauth.get("subject_token")
    return AUTHORIZATION_CODE if is_for_users_alone else grant


def own_grant_of(member: GuildMember) -> str:
    """The grant for each user, of a member where each user has an own one."""
    return str((member.manifest.get("oauth") or {}).get("grant") or AUTHORIZATION_CODE)


def sentence(grant: str, *, own: bool = False) -> str:
    """Empty if a person signs in at the authorization server of the member."""
    if own and grant == ENTERPRISE_MANAGED:
        return LOGIN.format(settings.GUILD_HALL_OIDC_NAME)
    return WAYS.get(grant, "")


def refusal(member: GuildMember, *, own: bool) -> str:
    """Why nobody can sign in at the authorization server of the member, and what to do. Empty if somebody can."""
    grant = own_grant_of(member) if own else grant_of(member)
    if not (text := sentence(grant, own=own)):
        return ""
    if own:
        name = settings.GUILD_HALL_OIDC_NAME
        return f"nobody signs in at member {member.name!r}. {text} Log in to the hall with {name} again."
    return f"nobody signs in at member {member.name!r}. {text} If that fails, its page has the reason; then restart it."


def login_fault(user: User) -> str:
    """Why the last login of the user at single sign-on gives no access now, and what to do. Empty if it does."""
    try:
        kept_id_tokens.of_user(user.pk)
    except (AssertionRefusedError, SecretError) as fault:
        return str(fault)
    return ""


@dataclass(frozen=True)
class Report:
    """The sign-in of a member for people. It has no token."""

    grant: str  # in which way the hall gets the tokens
    state: str  # "needed", "more scopes needed", "signed in", or "none" if the member never asked for one
    issuer: str = ""
    client_id: str = ""
    scopes: tuple[str, ...] = ()
    wanted_scopes: tuple[str, ...] = ()
    signed_in_at: datetime | None = None
    signed_in_by: str = ""
    expires_at: datetime | None = None
    explanation: str = ""  # without a person at the authorization server: a sentence about the grant
    last_try_failed: bool = False  # to get or renew the tokens. The error of the call has the reason


def report_of(member: GuildMember) -> Report | None:
    """The sign-in of the member itself. None for a member that is no remote server."""
    if not member.server_url:
        return None
    rows = UserSignIn.objects.filter(member=member, user=None) if member.signs_in_by_user else None
    grant = grant_of(member)
    row = _row(MemberSignIn.objects.filter(pk=member.pk) if rows is None else rows, member, grant)
    explanation = sentence(grant)
    if row is None:
        return Report(grant, "needed" if member.needs_sign_in else "none", explanation=explanation)
    is_in_error = member.status == GuildMember.Status.ERROR
    state = "signed in" if row.has_tokens else "none"
    if member.needs_sign_in:
        state = "needed" if is_in_error or not row.has_tokens else "more scopes needed"
    return _report(row, state, grant, explanation)


def own_report_of(member: GuildMember, user: User) -> Report | None:
    """The sign-in of this user. None for a member where users have none of their own."""
    if not member.signs_in_by_user:
        return None
    grant = own_grant_of(member)
    row = _row(UserSignIn.objects.filter(member=member, user=user), member, grant)
    explanation = sentence(grant, own=True)
    if row is None or not row.has_tokens:
        failed = row is not None and row.next_refresh_at is not None
        state = "none" if explanation else "needed"
        return Report(grant, state, explanation=explanation, last_try_failed=failed)
    return _report(row, "more scopes needed" if row.wanted_scopes else "signed in", grant, explanation)


def _row(rows: QuerySet[Any], member: GuildMember, grant: str) -> MemberSignIn | UserSignIn | None:
    """The row, unless it is of another grant or issuer. Then the next start of the member or the next call ends it."""
    row: MemberSignIn | UserSignIn | None = rows.select_related("signed_in_by").filter(url=member.server_url).first()
    if row is None or row.way.partition(":")[0] not in ("", grant) or not row.is_of(member.allowed_issuer):
        return None
    return row


def _report(row: SignIn, state: str, grant: str, explanation: str) -> Report:
    user = row.signed_in_by
    return Report(
        grant=grant,
        state=state,
        explanation=explanation,
        issuer=row.issuer,
        client_id=row.client_id,
        scopes=tuple(row.scopes),
        wanted_scopes=tuple(row.wanted_scopes),
        signed_in_at=row.signed_in_at if row.has_tokens else None,
        signed_in_by=user.get_username() if user and row.has_tokens else "",
        expires_at=row.expires_at,
        last_try_failed=row.next_refresh_at is not None,
    )

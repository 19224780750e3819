"""What to do after a call that failed, for the person who looks at it, with a link to the page where it is done."""

from __future__ import annotations

from dataclasses import dataclass

from django.urls import reverse
from django.utils.html import format_html

from mcp_runtime.protocol.errors import ErrorKind, SignInText
from mcp_runtime.security.access import Principal
from roster.models import GuildMember

OWN, AGAIN = "admin:roster_guildmember_own_sign_in", " Then call again. This call was never sent."


@dataclass(frozen=True)
class Viewer:
    """Who looks at the failure, and whether the request was theirs. Without a name, it was of no user."""

    principal: Principal
    requester: str = ""
    is_requester: bool = False


def hint_of(kind: str, message: str, member: GuildMember, viewer: Viewer, general: str) -> str:
    """The advice for this failure, which is HTML if it has a link, and otherwise the `general` one of its kind.

    The message only decides which advice it is, because it may quote the member. No address is taken from it.
    """
    if kind != ErrorKind.UNAVAILABLE or not member.server_url:
        return general
    if member.signs_in_by_user and SignInText.NO_USER in message:
        return "Each user signs in at this member alone, and this call is of no user. Call it here, or with your token."
    if member.signs_in_by_user and (SignInText.OWN in message or SignInText.NO_ACCOUNT in message):
        return _of_own(message, member, viewer)
    return _of_member(member, viewer) if SignInText.NEEDED in message else general


def _of_own(message: str, member: GuildMember, viewer: Viewer) -> str:
    page = reverse(OWN, args=[member.pk])
    if not viewer.is_requester:
        own_page = reverse("member-own-sign-in", args=[member.pk])
        text = "Only {} can do that, after a login to this hall, on the page <code>{}</code>." + AGAIN
        return format_html(text, viewer.requester or "the user who called", own_page)
    if SignInText.NO_ACCOUNT in message:
        text = "Open <a href='{}'>your access at {}</a>. If your login has ended, log in again there." + AGAIN
    elif SignInText.MORE_SCOPES in message:
        text = "<a href='{}'>Sign in at {} again</a>, and allow the scopes that the tool needs." + AGAIN
    else:
        text = "<a href='{}'>Sign in at {}</a> with your own account there." + AGAIN
    return format_html(text, page, member.name)


def _of_member(member: GuildMember, viewer: Viewer) -> str:
    if viewer.principal.may_control(member.name):
        page = reverse("admin:roster_guildmember_sign_in", args=[member.pk])
        return format_html("<a href='{}'>Sign {} in</a> at its authorization server." + AGAIN, page, member.name)
    page = reverse("admin:roster_guildmember_change", args=[member.pk])
    text = "Ask somebody who may start and stop members to sign it in, on the page of <a href='{}'>{}</a>." + AGAIN
    return format_html(text, page, member.name)

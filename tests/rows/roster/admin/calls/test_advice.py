"""What the admin says to do after a call that lacked a sign-in. The messages are those of the runtime."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from mcp_runtime.members.user_tokens import NO_USER
from mcp_runtime.protocol.errors import ErrorKind, MemberFailedError, SignInText
from mcp_runtime.security import principals
from roster.admin.members import extra_outcomes
from roster.models import Call, GuildMember
from tests.support.admin import allow, html, make_call, make_member, make_tool, page_of

pytestmark = pytest.mark.django_db

URL = "https://mcp.example.com/mcp"
OWN = f"{SignInText.NEEDED}: {SignInText.OWN} http://localhost:8000/members/1/own-sign-in/"
MORE = f"{SignInText.MORE_SCOPES} (write): {SignInText.OWN} http://localhost:8000/members/1/own-sign-in/"
LOGIN = f"{SignInText.NO_ACCOUNT}: it takes the login at Okta; log in to the hall with Okta at http://localhost:8000/"
SHARED = f"member 'vault' {SignInText.NEEDED}: sign in on its page in the admin, or with guildhall sign_in vault"


def vault(**oauth: str) -> GuildMember:
    manifest = {"name": "vault", "version": "1", "transport": "http", "url": URL, "oauth": oauth}
    return make_member("vault", manifest=manifest, server_url=URL)


def failed(member: GuildMember, message: str, user: User | None, **columns: Any) -> Call:
    values = {"status": "failed", "error_kind": "unavailable", "requested_by": user, **columns}
    message = f"tool 'echo' of member 'vault': {message}; the call was not sent"
    return make_call(member, error_message=message, **values)


def advice_in(text: str) -> str:
    return text.partition("<strong>What to do:</strong> ")[2].partition("</p>")[0]


@pytest.mark.parametrize(
    ("message", "words"),
    [(OWN, "Sign in at vault</a>"), (MORE, "Sign in at vault again</a>, and allow the scopes"), (LOGIN, "your access")],
)
@pytest.mark.parametrize("place", ["the runner", "the page of the call"])
def test_who_called_gets_a_link_to_the_own_sign_in(
    page: Client, alice: User, message: str, words: str, place: str
) -> None:
    member = vault(credentials="user")
    call = failed(member, message, alice)
    tool = make_tool(member)
    outcome = reverse("admin:roster_tool_outcome", args=[tool.pk, call.pk])
    hint = advice_in(html(page.get(outcome if place == "the runner" else page_of(call))))
    address = reverse("admin:roster_guildmember_own_sign_in", args=[member.pk])
    assert f"<a href='{address}'>" in hint
    assert words in hint
    assert "Then call again" in hint


def test_somebody_else_gets_no_link_to_their_own_sign_in(page: Client) -> None:
    member = vault(credentials="user")
    bert = User.objects.create_user("bert<b>")
    hint = advice_in(html(page.get(page_of(failed(member, OWN, bert)))))
    assert hint.startswith("Only bert&lt;b&gt; can do that")
    assert f"<code>/members/{member.pk}/own-sign-in/</code>" in hint
    assert "<a " not in hint


def test_a_call_of_no_user_is_to_be_made_by_a_user(page: Client) -> None:
    hint = advice_in(html(page.get(page_of(failed(vault(credentials="user"), NO_USER, None)))))
    assert "this call is of no user" in hint


def test_the_sign_in_of_the_member_is_linked_for_those_who_may_give_it(client: Client, alice: User) -> None:
    member, caller = vault(), User.objects.create_user("carl", is_staff=True)
    allow(caller, "invoke_tool", "view_call")
    call = failed(member, SHARED, caller)
    client.force_login(caller)
    assert "Ask somebody who may start and stop members" in advice_in(html(client.get(page_of(call))))
    client.force_login(alice)
    hint = advice_in(html(client.get(page_of(call))))
    assert f"<a href='{reverse('admin:roster_guildmember_sign_in', args=[member.pk])}'>Sign vault in</a>" in hint


@pytest.mark.parametrize("kind", ["tool", "protocol"])
def test_a_member_cannot_cause_the_advice_with_its_own_words(page: Client, alice: User, kind: str) -> None:
    call = failed(vault(credentials="user"), OWN, alice, error_kind=kind)
    assert "own-sign-in" not in advice_in(html(page.get(page_of(call))))


def test_prompts_and_resources_have_the_same_advice(alice: User) -> None:
    member = vault(credentials="user")
    error = MemberFailedError(ErrorKind.UNAVAILABLE, f"member 'vault' is unavailable: {OWN}")
    outcome = extra_outcomes.of_error(error, member, principals.principal_of_user(alice))
    assert outcome.failure is not None
    assert outcome.failure.failure is not None
    assert reverse("admin:roster_guildmember_own_sign_in", args=[member.pk]) in outcome.failure.failure.hint

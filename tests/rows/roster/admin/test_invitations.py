"""Invitations in the admin: the form, the link that is shown once, the list, and forged requests."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone
from django.utils.html import strip_tags

from roster import invitations, roles
from roster.models import Invitation, Role
from tests.support.admin import ESCAPED, EVIL, act, html, list_of, messages_of

pytestmark = pytest.mark.django_db

INVITE, USERS = "/admin/roster/invitation/invite/", "/admin/auth/user/"
LINK = re.compile(r"http://localhost:8000(/invitations/ghi_[\w-]{43}/)")


def browser_with(role: str | None, *permissions: str) -> Client:
    user = User.objects.create_user(f"user with {role}")
    roles.set_role(user, role and Role.objects.get(name=role))
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    browser = Client()
    browser.force_login(user)
    return browser


def make(note: str = "", inviter: User | None = None) -> Invitation:
    return invitations.invite(Role.objects.get(name="caller"), inviter=inviter, note=note)[0]


def test_the_link_is_shown_once_and_makes_an_account(client: Client) -> None:
    browser = browser_with("admin")
    assert '<option value="caller" selected>' in html(browser.get(INVITE))
    text = html(response := browser.post(INVITE, {"role": "operator", "note": "Carl of the press"}))
    invitation = Invitation.objects.get()
    assert "no-store" in response.headers["Cache-Control"]
    assert f"valid until {invitation.expires_at:%Y-%m-%d %H:%M:%S} UTC" in strip_tags(text)
    assert 'data-copy="new-link"' in text
    link = LINK.search(text)
    assert link
    for page in (INVITE, list_of("invitation"), "/admin/lists/"):
        assert "ghi_" not in html(browser.get(page))
    assert all("ghi_" not in str(session.get_decoded()) for session in Session.objects.all())
    assert all("ghi_" not in f"{entry} {entry.object_repr}" for entry in LogEntry.objects.all())
    answers = {"username": "carl", "password1": "a long secret", "password2": "a long secret"}
    assert client.post(link[1], answers).status_code == 302
    assert str(roles.role_of(User.objects.get(username="carl"))) == "operator"
    assert "used by carl" in html(browser.get(list_of("invitation")))


def test_the_lists_of_users_and_invitations_lead_to_the_form() -> None:
    browser = browser_with("admin")
    for page in (USERS, list_of("invitation")):
        assert f'href="{INVITE}"' in html(browser.get(page))
    assert f'href="{INVITE}"' not in html(browser_with(None, "view_user").get(USERS))
    assert f'href="{list_of("invitation")}"' in html(browser.get("/admin/"))


def test_the_list_shows_for_whom_who_when_and_the_state(page: Client, alice: User) -> None:
    for note, inviter in (("for expired", None), ("for revoked", alice), (EVIL, alice)):
        make(note, inviter)
    Invitation.objects.filter(note="for expired").update(expires_at=timezone.now() - timedelta(seconds=1))
    invitations.revoke(Invitation.objects.get(note="for revoked"))
    text = html(page.get(list_of("invitation")))
    for word in ("for expired", "for revoked", ESCAPED, "the operator", "alice", "caller", "open", "expired"):
        assert word in text
    assert 'status-revoked">revoked' in text
    assert EVIL not in text


def test_a_revoked_invitation_stays_in_the_list_and_cannot_be_revoked_again(page: Client, alice: User) -> None:
    invitation = make("Carl", alice)
    assert messages_of(act(page, "invitation", "revoke", invitation)) == ["Revoked (1): Carl."]
    assert Invitation.objects.get().state == "revoked"
    again = messages_of(act(page, "invitation", "revoke", invitation))
    assert again == ["Not changed (1): Carl: it is not open any more."]


def test_too_many_open_invitations_are_refused_with_a_sentence(
    page: Client, monkeypatch: pytest.MonkeyPatch, alice: User
) -> None:
    monkeypatch.setattr(Invitation, "MAX_OPEN", 1)
    make("", alice)
    assert "open invitations, which is the limit" in html(page.post(INVITE, {"role": "caller"}))
    assert Invitation.objects.count() == 1


def test_a_superuser_can_delete_a_user_who_has_invited(page: Client) -> None:
    carl = User.objects.create_user("carl")
    make("", carl)
    assert page.post(f"{USERS}{carl.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not User.objects.filter(username="carl").exists()


# What an attacker tries -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["viewer", "caller", "operator"])
def test_other_roles_neither_invite_nor_see_nor_revoke(role: str) -> None:
    browser, invitation = browser_with(role), make()
    assert browser.get(INVITE).status_code == 403
    assert browser.post(INVITE, {"role": "viewer"}).status_code == 403
    assert browser.get(list_of("invitation")).status_code == 403
    assert act(browser, "invitation", "revoke", invitation).status_code == 403
    assert [row.state for row in Invitation.objects.all()] == ["open"]
    assert list_of("invitation") not in html(browser.get("/admin/"))


@pytest.mark.parametrize("forged", ["admin", "operator", "king", "", "1"])
def test_a_forged_role_with_rights_that_the_inviter_lacks_is_refused(forged: str) -> None:
    browser = browser_with("caller", "add_user")
    offered = html(browser.get(INVITE))
    assert 'value="viewer"' in offered
    assert 'value="operator"' not in offered
    assert "The invitation was not made." in html(browser.post(INVITE, {"role": forged}))
    assert not Invitation.objects.exists()


def test_forged_columns_are_not_read(page: Client, alice: User) -> None:
    mallory = User.objects.create_user("mallory")
    forged: dict[str, Any] = {"created_by": mallory.pk, "expires_at": "2099-01-01", "digest": "0" * 64}
    html(page.post(INVITE, {"role": "caller", **forged}))
    invitation = Invitation.objects.get()
    assert invitation.created_by == alice
    assert invitation.expires_at < timezone.now() + timedelta(hours=73)
    assert invitation.digest != "0" * 64


def test_the_list_cannot_be_filtered_by_the_hash(page: Client) -> None:
    assert page.get(list_of("invitation"), {"digest__startswith": "a"}).status_code == 400


def test_nobody_deletes_invitations_or_opens_a_page_of_one(page: Client) -> None:
    invitation = make()
    act(page, "invitation", "delete_selected", invitation, post="yes")
    for path in ("add/", f"{invitation.pk}/change/", f"{invitation.pk}/delete/", f"{invitation.pk}/history/"):
        assert page.get(f"{list_of('invitation')}{path}").status_code == 404
    assert Invitation.objects.get().state == "open"

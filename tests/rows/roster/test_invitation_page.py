"""The public page of an invitation, as an invited person uses it, and as an attacker does."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.db import IntegrityError, connections
from django.test import Client
from django.utils import timezone

from mcp_runtime.system.console import ConsoleHandler
from roster import invitation_page, invitations, roles
from roster.models import Invitation, Role
from tests.support.admin import html

pytestmark = pytest.mark.django_db

PASSWORD = "a long secret"


@pytest.fixture(autouse=True)
def _static_root() -> None:
    settings.STATIC_ROOT.mkdir(exist_ok=True)  # WhiteNoise warns about a missing folder


def make_path(role: str = "caller", inviter: User | None = None) -> str:
    _, link = invitations.invite(Role.objects.get(name=role), inviter=inviter)
    return link.removeprefix("http://localhost:8000")


def answers(name: str = "carl", **more: Any) -> dict[str, Any]:
    return {"username": name, "password1": PASSWORD, "password2": PASSWORD, **more}


def test_the_invited_person_chooses_a_name_and_is_logged_in(client: Client) -> None:
    path = make_path("operator")
    assert "<strong>operator</strong>" in html(client.get(path))
    response = client.post(path, answers())
    assert (response.status_code, response.headers["Location"]) == (302, "/admin/")
    assert "carl" in html(client.get("/admin/"))
    assert User.objects.get().get_all_permissions() == roles.permissions_of_role("operator")
    assert Client().login(username="carl", password=PASSWORD)


def test_a_hundred_previews_spend_nothing(client: Client) -> None:
    path = make_path()
    for method in (client.get, client.head, client.options):
        for _ in range(3 if method != client.get else 94):
            method(path)
    assert Invitation.objects.get().state == "open"
    assert client.post(path, answers()).status_code == 302


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"password2": "another secret"}, "The two password fields didn"),
        ({"password1": "short", "password2": "short"}, "This password is too short."),
        ({"password1": "password", "password2": "password"}, "This password is too common."),
        ({"username": "Anna"}, "A user with that username already exists."),
        ({"username": "not a name"}, "Enter a valid username."),
        ({"username": ""}, "This field is required."),
    ],
)
def test_a_mistake_in_the_form_is_explained_and_does_not_spend_the_invitation(
    client: Client, wrong: dict[str, str], text: str
) -> None:
    User.objects.create_user("anna")
    path = make_path()
    assert text in html(client.post(path, answers(**wrong)))
    assert User.objects.count() == 1
    assert client.post(path, answers()).status_code == 302


def test_a_name_that_somebody_takes_at_the_same_moment_is_explained(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_path()

    def taken(*_: object) -> None:
        raise IntegrityError

    monkeypatch.setattr(invitation_page.invitations, "accept", taken)
    assert "A user with that username already exists." in html(client.post(path, answers()))


def test_all_links_that_do_not_work_have_one_answer(client: Client) -> None:
    anna = User.objects.create_superuser("anna")
    used, expired, revoked, orphaned = make_path(), make_path(), make_path(), make_path("caller", anna)
    client.post(used, answers())
    rows = list(Invitation.objects.order_by("pk"))
    Invitation.objects.filter(pk=rows[1].pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    invitations.revoke(rows[2])
    User.objects.filter(username="anna").update(is_active=False)
    pages = set()
    for path in (used, expired, revoked, orphaned, "/invitations/nothing/", "/invitations/%00/"):
        browser = Client()
        for response in (browser.get(path), browser.post(path, answers("eve"))):
            assert response.status_code == 410
            assert response.headers["Referrer-Policy"] == "no-referrer"
            assert "no-store" in response.headers["Cache-Control"]
            pages.add(response.content)
    assert len(pages) == 1
    assert b"Ask the person who sent it to you for a new link." in pages.pop()
    assert {user.username for user in User.objects.all()} == {"anna", "carl"}


def test_the_page_is_not_stored_and_its_path_is_in_no_referrer(client: Client) -> None:
    path = make_path()
    for response in (client.get(path), client.post(path, {})):
        assert response.headers["Referrer-Policy"] == "strict-origin"
        assert "no-store" in response.headers["Cache-Control"]
        assert path not in html(response)
    accepted = client.post(path, answers())
    assert accepted.headers["Referrer-Policy"] == "no-referrer"
    assert "no-store" in accepted.headers["Cache-Control"]


# What an attacker tries -------------------------------------------------------------------------------------------


def test_forged_fields_give_no_other_rights(client: Client) -> None:
    path = make_path("viewer")
    permission = Permission.objects.get(codename="add_user")
    forged = {"role": "admin", "is_superuser": "on", "is_staff": "on", "user_permissions": [permission.pk]}
    client.post(path, answers(**forged, groups=[Role.objects.get(name="admin").group.pk], next="https://evil.example/"))
    carl = User.objects.get()
    assert carl.get_all_permissions() == roles.permissions_of_role("viewer")
    assert (carl.is_superuser, carl.is_staff) == (False, False)


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example/", "/admin/logout/"])
def test_the_first_page_is_the_only_place_it_leads_to(client: Client, target: str) -> None:
    path = make_path()
    response = client.post(f"{path}?next={target}", answers(next=target))
    assert response.headers["Location"] == "/admin/"


def test_a_replayed_form_makes_no_second_user(client: Client) -> None:
    path = make_path()
    client.post(path, answers())
    assert Client().post(path, answers("eve")).status_code == 410
    assert Client().post(path, answers()).status_code == 410
    assert User.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_two_forms_at_the_same_moment_make_one_user() -> None:
    path = make_path()
    barrier, statuses = threading.Barrier(2), []

    def send(name: str) -> None:
        try:
            browser = Client()
            barrier.wait()
            statuses.append(browser.post(path, answers(name)).status_code)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=send, args=(name,)) for name in ("carl", "dora")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [302, 410]
    assert User.objects.count() == 1


def test_a_form_without_the_csrf_token_or_from_another_site_makes_nobody() -> None:
    path = make_path()
    browser = Client(enforce_csrf_checks=True)
    assert browser.post(path, answers()).status_code == 403
    browser.get(path)
    token = browser.cookies[settings.CSRF_COOKIE_NAME].value
    evil = {"Origin": "https://evil.example"}
    assert browser.post(path, answers(csrfmiddlewaretoken=token), headers=evil).status_code == 403
    assert not User.objects.exists()
    assert browser.post(path, answers(csrfmiddlewaretoken=token)).status_code == 302


def test_the_session_from_before_the_form_is_not_used_afterwards() -> None:
    """Otherwise somebody who planted it would be logged in too."""
    path, browser = make_path(), Client()
    session = browser.session
    session["planted"] = True
    session.save()
    before = session.session_key
    browser.post(path, answers())
    assert browser.session.session_key != before


def test_a_foreign_host_header_does_not_change_the_link(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["evil.example"]
    browser = Client(headers={"Host": "evil.example"})
    browser.force_login(User.objects.create_superuser("anna"))
    text = html(browser.post("/admin/roster/invitation/invite/", {"role": "caller"}))
    assert "http://localhost:8000/invitations/ghi_" in text
    assert "//evil.example" not in text


def test_the_secret_is_in_no_line_of_the_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_path()
    console = next(each for each in logging.getLogger().handlers if isinstance(each, ConsoleHandler))
    Client(enforce_csrf_checks=True).post(path, answers())  # Django warns of it, with the path

    def fail(secret: str) -> None:
        raise RuntimeError(f"no answer for {secret}")

    monkeypatch.setattr(invitation_page.invitations, "find", fail)
    assert Client(raise_request_exception=False).get(path).status_code == 500
    lines = [console.format(record) for record in caplog.records]
    secret = path.split("/")[2]
    assert [line for line in lines if "Forbidden" in line and "/invitations/ghi_…/" in line]
    assert [line for line in lines if "RuntimeError: no answer for ghi_…" in line]
    assert not [line for line in lines if secret in line]

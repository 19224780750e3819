"""Links for a login from the command line: they work once, soon, for one user, and where passwords do not."""

from __future__ import annotations

import io
import threading
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connections
from django.test import Client

from roster import login_links
from roster.management.commands import prepare
from roster.models import AuditEntry
from tests.support.admin import html

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _static_root(settings: Any) -> None:
    settings.STATIC_ROOT.mkdir(exist_ok=True)  # WhiteNoise warns about a missing folder


@pytest.fixture
def anna() -> User:
    return User.objects.create_superuser("anna")


def path_for(name: str) -> str:
    output = io.StringIO()
    call_command("login_link", name, stdout=output)
    link = output.getvalue().splitlines()[-1]
    assert link.startswith("http://localhost:8000/login-links/ghi_")
    return link.removeprefix("http://localhost:8000")


def test_a_link_logs_its_user_in_once(anna: User) -> None:
    path, browser = path_for("anna"), Client()
    assert "Log in as anna" in html(browser.get(path))
    response = browser.post(path)
    assert (response.status_code, response.headers["Location"]) == (302, "/admin/")
    assert browser.get("/admin/").status_code == 200
    assert Client().post(path).status_code == 410
    assert [entry.kind for entry in AuditEntry.objects.order_by("pk")][-2:] == ["login_link_made", "login"]


def test_it_works_where_passwords_are_switched_off(anna: User, settings: Any) -> None:
    settings.GUILD_HALL_OIDC_ONLY = 1
    settings.AUTHENTICATION_BACKENDS = ["roster.login_backends.LinkBackend", "roster.login_backends.ProviderBackend"]
    browser = Client()
    assert browser.post(path_for("anna")).status_code == 302
    assert browser.get("/admin/").status_code == 200


def test_the_first_start_does_not_show_a_password_that_nobody_can_use(settings: Any) -> None:
    lines: list[str] = []
    command = prepare.Command()
    command.say = lines.append
    settings.GUILD_HALL_OIDC_ONLY = 1
    command.make_first_account()
    assert lines == ["First start: use single sign-on, or log in as  admin  with: guildhall login_link admin"]
    assert User.objects.get().is_superuser


def test_previews_spend_nothing(anna: User) -> None:
    path = path_for("anna")
    for _ in range(5):
        Client().get(path)
        Client().head(path)
    assert Client().post(path).status_code == 302


def test_a_newer_link_an_other_login_and_another_password_end_the_older_ones(anna: User) -> None:
    first, second = path_for("anna"), path_for("anna")
    assert Client().post(second).status_code == 302
    assert Client().post(first).status_code == 410
    third = path_for("anna")
    user = User.objects.get()
    user.set_password("another long secret")
    user.save()
    assert Client().post(third).status_code == 410


def test_a_link_does_not_work_after_its_time_or_for_a_user_who_is_gone(
    anna: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_for("anna")
    User.objects.update(is_active=False)
    assert Client().post(path).status_code == 410
    with pytest.raises(CommandError, match="is not active"):
        path_for("anna")
    User.objects.update(is_active=True)
    monkeypatch.setattr(login_links, "LIFETIME", -login_links.LIFETIME)
    assert Client().post(path).status_code == 410


@pytest.mark.parametrize("secret", ["ghi_", "ghi_AAAA", "nothing", "ghi_%00", "ghi_" + "a" * 5000, "ghi_%C3%A4"])
def test_other_links_do_not_work(anna: User, secret: str) -> None:
    for response in (Client().get(f"/login-links/{secret}/"), Client().post(f"/login-links/{secret}/")):
        assert response.status_code == 410
        assert response.headers["Referrer-Policy"] == "no-referrer"


def test_a_link_of_another_kind_of_secret_does_not_work(anna: User) -> None:
    import base64

    from django.core import signing

    text = signing.dumps(login_links.state_of(anna), salt="another")
    secret = "ghi_" + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    assert Client().post(f"/login-links/{secret}/").status_code == 410


def test_a_form_without_the_csrf_token_logs_nobody_in(anna: User) -> None:
    assert Client(enforce_csrf_checks=True).post(path_for("anna")).status_code == 403


@pytest.mark.django_db(transaction=True)
def test_two_forms_at_the_same_moment_log_in_once() -> None:
    User.objects.create_superuser("anna")
    path = path_for("anna")
    barrier, statuses = threading.Barrier(2), []

    def send() -> None:
        try:
            barrier.wait()
            statuses.append(Client().post(path).status_code)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [302, 410]

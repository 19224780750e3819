"""Who may log in to the admin, and where the login leads."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from roster import roles
from roster.models import Role
from tests.support.admin import html

pytestmark = pytest.mark.django_db

NO_ROLE = "No role has been given to you"
TOOLS = "/admin/roster/tool/"


@pytest.fixture(autouse=True)
def _static_root() -> None:
    settings.STATIC_ROOT.mkdir(exist_ok=True)  # WhiteNoise warns about a missing folder


@pytest.fixture
def bob() -> User:
    return User.objects.create_user("bob", password="a long secret")


def log_in(client: Client, password: str = "a long secret", next_page: str = TOOLS) -> Any:
    data = {"username": "bob", "password": password, "next": next_page}
    return client.post(f"{reverse('admin:login')}?next={next_page}", data, follow=True)


def test_a_user_without_staff_status_logs_in_and_sees_the_pages_of_the_role(client: Client, bob: User) -> None:
    roles.set_role(bob, Role.objects.get(name="viewer"))
    assert not bob.is_staff
    assert log_in(client).request["PATH_INFO"] == TOOLS
    response = client.get("/admin/roster/call/")
    assert response.status_code == 403
    text = response.content.decode()
    assert "You are logged in as <strong>bob</strong>, whose permissions do not include this page" in text
    assert 'href="/admin/roster/tool/"' in text  # the navigation leads back


def test_a_superuser_is_not_told_to_ask_an_admin(client: Client, bob: User) -> None:
    User.objects.update(is_superuser=True)
    client.force_login(bob)
    response = client.get("/admin/roster/call/add/")
    assert response.status_code == 403
    assert "no user of this hall may open this page" in response.content.decode()
    assert "Ask an admin" not in response.content.decode()


def test_a_user_without_any_right_is_told_so_wherever_the_login_was_to_lead(client: Client, bob: User) -> None:
    response = log_in(client)
    assert response.redirect_chain == [("/admin/", 302)]
    text = html(response)
    assert "You are logged in as <strong>bob</strong>" in text
    assert NO_ROLE in text
    assert "Ask an admin" in text


def test_a_search_at_the_address_of_the_hall_is_a_search_of_the_roster(client: Client) -> None:
    assert client.get("/?q=share+billing&status=error").url == "/admin/?q=share+billing&status=error"  # type: ignore[attr-defined]
    assert client.get("/").url == "/admin/"  # type: ignore[attr-defined]


def test_staff_status_gives_no_right(client: Client, bob: User) -> None:
    User.objects.filter(pk=bob.pk).update(is_staff=True)
    assert NO_ROLE in html(log_in(client))


def test_the_note_is_gone_once_the_user_has_a_role(client: Client, bob: User) -> None:
    log_in(client)
    roles.set_role(bob, Role.objects.get(name="viewer"))
    text = html(client.get("/admin/"))
    assert NO_ROLE not in text
    assert 'id="roster"' in text


def test_a_wrong_password_and_an_inactive_user_stay_at_the_login(client: Client, bob: User) -> None:
    for password in ("wrong", "a long secret"):
        response = log_in(client, password)
        assert "Please enter a correct username and password" in html(response)
        assert response.redirect_chain == []
        User.objects.filter(pk=bob.pk).update(is_active=False)


def test_a_user_who_becomes_inactive_is_sent_to_the_login(client: Client, bob: User) -> None:
    log_in(client)
    User.objects.filter(pk=bob.pk).update(is_active=False)
    assert client.get("/admin/").headers["Location"].startswith("/admin/login/")


def test_a_page_that_is_not_there_has_the_navigation_and_a_way_back(client: Client, bob: User) -> None:
    roles.set_role(bob, Role.objects.get(name="caller"))
    client.force_login(bob)
    for address in ("/admin/roster/call/4711/change/", "/admin/nowhere/", "/nowhere"):
        response = client.get(address)
        assert response.status_code == 404, address
        text = response.content.decode()
        assert "There is no such page, or what was on it does not exist for you." in text, address
        assert 'href="/admin/roster/tool/"' in text, address  # the navigation leads back


def test_a_stranger_sees_no_navigation_on_a_page_that_is_not_there(client: Client) -> None:
    response = client.get("/nowhere")
    assert response.status_code == 404
    assert 'href="/admin/roster/tool/"' not in response.content.decode()

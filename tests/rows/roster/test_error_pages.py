"""The pages for errors: each says what happened, leads back, and shows nothing of the error."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from django.http import HttpRequest
from django.test import Client, RequestFactory

from roster import error_pages
from roster.admin.members.roster import RosterScreen

pytestmark = pytest.mark.django_db


@pytest.fixture
def alice(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("alice"))
    return client


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [
        ("/admin/roster/tool/?manifest__env=x", 400, "The same page without filters"),
        ("/admin/roster/call/999/change/", 404, "There is no such page"),
        ("/admin/roster/call/999/part/", 404, "There is no such page"),
        ("/nowhere", 404, "There is no such page"),
    ],
)
def test_an_error_page_leads_back(alice: Client, address: str, status: int, words: str) -> None:
    response = alice.get(address)
    assert response.status_code == status
    text = response.content.decode()
    assert words in text
    assert 'id="places"' in text
    assert "roster/icon.svg" in text


def test_a_form_without_its_token_is_told_to_reload() -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("alice"))
    response = client.post("/admin/roster/tool/1/disable/")
    assert response.status_code == 403
    assert "Nothing was changed." in response.content.decode()


def test_an_error_of_the_hall_has_a_page_without_any_row(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret words")

    monkeypatch.setattr(RosterScreen, "roster_view", fail)
    client.raise_request_exception = False
    client.force_login(User.objects.create_superuser("alice"))
    response = client.get("/admin/")
    assert response.status_code == 500
    text = response.content.decode()
    assert "An error inside the hall ended this request." in text
    assert 'href="/admin/"' in text
    assert "secret words" not in text


@pytest.mark.parametrize(("path", "is_json"), [("/api/members/", True), ("/admin/", False)])
def test_a_request_that_no_middleware_has_seen_gets_an_answer(path: str, is_json: bool) -> None:
    request: HttpRequest = RequestFactory().get(path)
    for response, status in (
        (error_pages.bad_request(request, ValueError("x")), 400),
        (error_pages.broken(request), 500),
    ):
        assert response.status_code == status
        expected = "application/problem+json" if is_json else "text/html; charset=utf-8"
        assert response["Content-Type"] == expected


@pytest.mark.parametrize(("accept", "is_page"), [("text/html,*/*;q=0.8", True), ("*/*", False)])
def test_a_person_gets_a_page_while_the_database_is_away_and_a_script_one_line(
    client: Client, monkeypatch: pytest.MonkeyPatch, accept: str, is_page: bool
) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("no connection to secret-host")

    monkeypatch.setattr(RosterScreen, "roster_view", fail)
    client.force_login(User.objects.create_superuser("alice"))
    response = client.get("/admin/", headers={"Accept": accept})
    assert response.status_code == 503
    text = response.content.decode()
    assert "The database does not answer; try again." in text
    assert ('href="/admin/"' in text) is is_page
    assert "secret-host" not in text

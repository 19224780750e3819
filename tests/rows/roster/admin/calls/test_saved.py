"""Filters of the list of calls that a user saved."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from roster.models import GuildMember, SavedFilter
from tests.support.calls import LIST, add, html, ids, words

pytestmark = pytest.mark.django_db

SAVE = reverse("admin:roster_call_save_filter")


def delete_address(row: SavedFilter) -> str:
    return reverse("admin:roster_call_delete_filter", args=[row.pk])


def test_a_saved_filter_is_a_link_to_its_list(page: Client, anna: GuildMember) -> None:
    call = add(anna, status="failed", error_kind="tool")
    add(anna)
    assert 'name="query" value="q=ec+ho&amp;status__exact=failed"' in html(
        page.get(LIST, {"q": "ec ho", "status__exact": "failed"})
    )
    response = page.post(SAVE, {"name": " Broken\n calls ", "query": "status__exact=failed&p=2&span=day"}, follow=True)
    assert response.redirect_chain == [(f"{LIST}?status__exact=failed", 302)]
    assert "Saved the filter Broken calls." in words(response)
    assert "Save this filter" not in words(response)
    assert '<a href="?status__exact=failed" aria-current="true">Broken calls</a>' in html(response)
    assert [row.call.pk for row in response.context["rows"]] == [call.pk]
    page.post(SAVE, {"name": "Broken calls", "query": "within=900"})
    assert SavedFilter.objects.get().query == "within=900"
    assert "Save this filter" not in words(page.get(LIST))


def test_a_saved_filter_is_its_users_own(page: Client, client: Client, bob: User) -> None:
    other = Client()
    other.force_login(User.objects.create_superuser("eve"))
    client.post(SAVE, {"name": "mine", "query": "q=secret-word"})
    row = SavedFilter.objects.get()
    assert row.user == bob
    assert "mine" not in words(other.get(LIST))
    assert other.post(delete_address(row)).status_code == 404
    assert "Deleted the saved filter mine." in words(client.post(delete_address(row), follow=True))
    assert not SavedFilter.objects.exists()


@pytest.mark.parametrize(
    ("name", "query", "text"),
    [
        ("", "q=x", "needs a name"),
        ("x" * 61, "q=x", "needs a name"),
        ("x", "", "no filter to save"),
        ("x", "p=2&token__digest=a&user__password=b", "no filter to save"),
        ("x", "&".join(["q=x"] * 60), "no filter to save"),
        ("x", "q=" + "y" * 2001, "too long"),
    ],
)
def test_a_filter_that_cannot_be_saved_says_why(page: Client, name: str, query: str, text: str) -> None:
    assert text in words(page.post(SAVE, {"name": name, "query": query}, follow=True))
    assert not SavedFilter.objects.exists()


def test_saved_filters_are_bounded(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SavedFilter, "MAX_PER_USER", 2)
    for name in ("a", "b"):
        page.post(SAVE, {"name": name, "query": "q=x"})
    assert "2 saved filters" in words(page.post(SAVE, {"name": "c", "query": "q=x"}, follow=True))
    page.post(SAVE, {"name": "b", "query": "q=y"})
    assert sorted(SavedFilter.objects.values_list("name", "query")) == [("a", "q=x"), ("b", "q=y")]


def test_names_and_queries_are_escaped(page: Client, anna: GuildMember) -> None:
    evil = '"><img src=x onerror=alert(1)>\u202e'
    page.post(SAVE, {"name": evil, "query": f"q={evil}"})
    text = html(page.get(LIST, {"q": evil}))
    assert "<img" not in text
    assert ids(page, q=evil) == []
    assert "\u202e" not in SavedFilter.objects.get().name


def test_filters_are_saved_by_who_may_see_the_list(client: Client, bob: User) -> None:
    bob.user_permissions.clear()
    assert client.post(SAVE, {"name": "x", "query": "q=x"}).status_code == 403
    assert client.get(SAVE).status_code in (403, 405)

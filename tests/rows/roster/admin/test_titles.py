"""The titles of all pages: each names what it shows, in the words of the hall."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from roster.models import Node, StatusChange
from tests.rows.roster.admin.test_times import full_hall, pages_of
from tests.support.admin import html

pytestmark = pytest.mark.django_db

__all__ = ["full_hall"]

STOCK = re.compile(r"(^|\| )(View|Change|Select) |^Delete$|administration|Change history|Authentication")
TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
HEADING = re.compile(r"<h1[^>]*>(.*?)</h1>", re.DOTALL)
CRUMBS = re.compile(r'class="breadcrumbs">(.*?)</div>', re.DOTALL)


def words(markup: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", markup)).split())


def heads_of(text: str) -> dict[str, str]:
    found = {name: pattern.search(text) for name, pattern in (("title", TITLE), ("h1", HEADING), ("crumbs", CRUMBS))}
    return {name: words(match[1]) for name, match in found.items() if match}


def test_no_page_has_a_stock_title_and_all_titles_differ(page: Client, full_hall: None) -> None:
    lists = [f"/admin/roster/{model}/" for model in ("statuschange", "portallocation", "node", "toolset", "auditentry")]
    heads = {address: heads_of(text) for address, text in pages_of(page, "/admin/", *lists).items()}

    faults = [
        f"{address}: {name} {text!r}"
        for address, head in heads.items()
        for name, text in head.items()
        if STOCK.search(text.removesuffix(" | Guild Hall"))
    ]
    assert not faults, "\n".join(faults)
    titles: dict[str, list[str]] = {}
    for address, head in heads.items():
        titles.setdefault(head["title"], []).append(address)
    assert not {title: pages for title, pages in titles.items() if len(pages) > 1}
    assert len(heads) > 40


@pytest.mark.parametrize(
    ("model", "titles", "query"),
    [
        ("statuschange", ["new status", "time", "member"], "new__exact=error"),
        ("token", ["kind", "scope", "creation", "expiry"], "expires_at__isnull=True"),
        ("agent", ["creation"], "created_at__gte=2026-01-01T00:00Z"),
    ],
)
def test_filters_have_titles_for_people_and_still_work(
    page: Client, full_hall: None, model: str, titles: list[str], query: str
) -> None:
    text = html(page.get(f"/admin/roster/{model}/?{query}"))
    assert re.findall(r"<summary>\s*By (.*?)\s*</summary>", text) == titles
    assert "Clear all filters" in text


@pytest.mark.parametrize(
    ("name", "title"), [("change", "Node main"), ("history", "History of main"), ("delete", "Delete main")]
)
def test_the_pages_of_a_row_name_it(page: Client, name: str, title: str) -> None:
    row: Any = Node.objects.get_or_create(name="main")[0]
    if name == "delete":  # a node is removed by an action
        row, title = Group.objects.create(name="kitchen"), "Delete kitchen"

    heads = heads_of(html(page.get(reverse(f"admin:{row._meta.label_lower.replace('.', '_')}_{name}", args=[row.pk]))))

    assert heads["title"] == f"{title} | Guild Hall"
    assert heads["h1"] == title


def test_only_rows_that_people_change_have_a_history(page: Client, full_hall: None, alice: User) -> None:
    change = StatusChange.objects.first()
    assert change is not None
    user_page = html(page.get(reverse("admin:auth_user_change", args=[alice.pk])))

    assert "historylink" in user_page
    assert "historylink" not in html(page.get(reverse("admin:roster_statuschange_change", args=[change.pk])))


def test_the_page_of_an_app_has_all_lists(page: Client) -> None:
    assert page.get("/admin/nothing/").status_code == 404

    text = html(page.get("/admin/auth/"))

    assert "Authentication" not in text
    assert ">Audit log</a>" in text


def test_the_page_that_deletes_several_rows_leads_back_to_their_list(page: Client, alice: User) -> None:
    group = Group.objects.create(name="kitchen")

    text = html(
        page.post(reverse("admin:auth_group_changelist"), {"action": "delete_selected", "_selected_action": [group.pk]})
    )

    assert heads_of(text)["crumbs"].startswith("Home \u203a Groups \u203a")
    assert heads_of(text)["h1"] == "Delete 1 group"

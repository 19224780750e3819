"""The list of tools and a tool's page in a real browser."""

from __future__ import annotations

import re
import shutil

import pytest
from playwright.sync_api import Page, expect

from tests.browser.axe import check_page
from tests.browser.rig import BrowserHall, Visitor
from tests.browser.test_runner import GALLERY

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> BrowserHall:
    folder = new_hall.add("gallery", display_name="Gallery")
    shutil.copy(GALLERY, folder / "server.py")
    new_hall.bring_up("gallery")
    return new_hall


def test_tools_are_found_while_typing_filtered_and_called(page: Page) -> None:
    page.goto("/admin/roster/tool/")
    expect(page.get_by_role("heading", name="gallery")).to_be_visible()
    page.get_by_label("Find", exact=True).fill("rows table")
    names = page.locator(".tool-name")
    expect(names).to_have_count(1)
    expect(page).to_have_url(re.compile(r"\?q=rows\+table$"))
    page.get_by_role("link", name="Show all").click()
    expect(page.get_by_label("Find", exact=True)).to_have_value("")
    expect(names).not_to_have_count(1)
    page.get_by_role("link", name="may delete").click()
    expect(names).to_have_text(["destroy"])
    page.reload()
    expect(names).to_have_text(["destroy"])
    page.get_by_role("link", name="Call destroy").click()
    expect(page.get_by_role("heading", name="Call destroy")).to_be_visible()


def test_a_tool_is_disabled_and_enabled_without_leaving_the_list(page: Page) -> None:
    page.goto("/admin/roster/tool/?q=nothing")
    page.get_by_role("button", name="Disable nothing").click()
    expect(page.locator(".tool-row .badge", has_text="disabled")).to_be_visible()
    expect(page.get_by_role("link", name="Call nothing")).to_have_count(0)
    page.get_by_label("Select nothing").check()
    page.get_by_role("button", name="Enable selected").click()
    expect(page.get_by_role("link", name="Call nothing")).to_be_visible()
    expect(page).to_have_url(re.compile(r"\?q=nothing$"))


def test_the_tools_have_no_accessibility_problems_and_fit_each_window(visitor: Visitor) -> None:
    page = visitor.window(bypass_csp=True)
    page.goto("/admin/roster/tool/")
    assert not any(check_page(page).values())
    for name in ("hostile", "rows"):
        page.goto(f"/admin/roster/tool/?q={name}")
        page.locator(".tool-name a").first.click()
        expect(page.get_by_role("heading", name="Parameters")).to_be_visible()
        assert not any(check_page(page).values())

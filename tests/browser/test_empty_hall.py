"""A new hall without a member, and at first also without a runtime."""

from __future__ import annotations

import sys

import pytest
from playwright.sync_api import Page, expect

from tests.browser.rig import BrowserHall

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> BrowserHall:
    """The web alone."""
    result = new_hall.manage("prepare")
    assert result.returncode == 0, result.stderr
    new_hall.serve_web()
    return new_hall


def test_an_empty_hall_explains_how_to_start_a_runtime_and_make_a_member(hall: BrowserHall, page: Page) -> None:
    page.goto("/")
    banner = page.get_by_text("No runtime is alive")
    expect(banner).to_be_visible()
    expect(banner).to_contain_text("guildhall runtime")
    lesson = page.locator(".first-member")
    expect(lesson.get_by_role("listitem")).to_have_count(3)
    expect(lesson).to_contain_text("guildhall new_member hello")

    page.evaluate("window.__not_reloaded = true")
    hall.popen([sys.executable, "-m", "mcp_runtime.runtime.guard"])
    expect(banner).not_to_be_visible()
    result = hall.manage("new_member", "hello")
    assert result.returncode == 0, result.stderr
    expect(page.get_by_role("heading", name="hello")).to_be_visible()
    expect(page.locator(".card").get_by_text("connected", exact=True)).to_be_visible()
    expect(lesson).not_to_be_attached()
    assert page.evaluate("window.__not_reloaded === true")

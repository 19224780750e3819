"""Light and dark: as the system has it, until somebody chooses otherwise. Contrast is in test_accessibility.py."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.rig import Visitor, until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

BRIGHTNESS = """() => {
  const [red, green, blue] = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number);
  return (red + green + blue) / 765;
}"""


def brightness(page: Page) -> float:
    found: float = page.evaluate(BRIGHTNESS)
    return found


def test_pages_are_dark_where_the_system_is_and_light_where_it_is_light(visitor: Visitor) -> None:
    for scheme in ("dark", "light"):
        page = visitor.window(scheme=scheme)
        page.goto("/")
        assert (brightness(page) < 0.2) is (scheme == "dark")


def test_who_chooses_light_has_it_on_the_next_page_too(visitor: Visitor) -> None:
    page = visitor.window(scheme="dark")
    page.goto("/")
    toggle = page.get_by_role("button", name="Toggle theme")
    expect(toggle).to_be_visible()
    toggle.click()
    until(page, lambda: brightness(page) > 0.8, what="the page is light")
    page.goto("/admin/roster/tool/")
    assert brightness(page) > 0.8

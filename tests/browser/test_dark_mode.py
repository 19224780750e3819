"""Light and dark follow the system, until the user chooses a theme. Contrast is in test_accessibility.py."""

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
    value: float = page.evaluate(BRIGHTNESS)
    return value


def test_pages_follow_the_color_scheme_of_the_system(visitor: Visitor) -> None:
    for scheme in ("dark", "light"):
        page = visitor.window(scheme=scheme)
        page.goto("/")
        assert (brightness(page) < 0.2) is (scheme == "dark")


def test_a_chosen_theme_stays_on_the_next_page(visitor: Visitor) -> None:
    page = visitor.window(scheme="dark")
    page.goto("/")
    toggle = page.get_by_role("button", name="Toggle theme")
    expect(toggle).to_be_visible()
    toggle.click()
    until(page, lambda: brightness(page) > 0.8, what="the page is light")
    page.goto("/admin/roster/tool/")
    assert brightness(page) > 0.8

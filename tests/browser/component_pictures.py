"""The pictures of docs/components.md: one part of a real page each, with a narrow margin around it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import FloatRect, Locator, Page, expect

from tests.browser.rig import Visitor

WIDTH, HEIGHT = 1100, 800
MARGIN = 6  # pixels around the part
MAX_BYTES = 60_000


def card(page: Page) -> Locator:
    page.goto("/")
    return page.locator(".card", has_text="Mailer")


def table(page: Page) -> Locator:
    page.goto("/admin/roster/call/?q=forecast")
    page.evaluate("document.querySelectorAll('.calls-table tbody tr:nth-child(n + 4)').forEach((row) => row.remove())")
    return page.locator(".calls-table")


def badges(page: Page) -> Locator:
    page.goto("/admin/roster/tool/")
    group = page.locator(".tool-group").first
    group.evaluate("(group) => group.querySelectorAll('.tool-row:nth-child(n + 2)').forEach((row) => row.remove())")
    return group


def message(page: Page) -> Locator:
    """A button of a member, whose page says what it did."""
    page.goto("/")
    page.get_by_role("button", name="Restart mailer").click()
    expect(page.locator("#live-messages p")).to_be_visible()
    return page.locator("#live-messages p")


def dialog(page: Page) -> Locator:
    page.goto("/")
    page.locator("h1").click()
    page.keyboard.press("?")
    return page.locator("#keys-dialog")


def empty_state(page: Page) -> Locator:
    page.goto("/admin/roster/tool/?q=nothing+like+this")
    return page.locator(".no-matches").first


def error_page(page: Page) -> Locator:
    page.goto("/admin/nowhere/")
    return page.locator("body")


def form_field(page: Page) -> Locator:
    open_forecast(page)
    return page.locator("#fields > .sf-field").first


def json_view(page: Page) -> Locator:
    open_forecast(page)
    page.get_by_role("textbox", name="City").fill("Lisbon")
    page.get_by_role("button", name="Call", exact=True).click()
    item = page.locator("#outcome .result-item", has=page.locator(".json-tree")).first
    expect(item).to_be_visible()
    page.evaluate("document.querySelector('.runner-sticky').style.position = 'static'")
    return item


def time(page: Page) -> Locator:
    page.goto("/")
    page.get_by_role("link", name="Mailer", exact=True).click()
    return page.locator(".timeline-line").last  # the first change, which has no text below


def open_forecast(page: Page) -> None:
    page.goto("/")
    page.get_by_role("link", name="Weather", exact=True).click()
    page.get_by_role("link", name="Call forecast").click()
    expect(page.locator("#fields .sf-field").first).to_be_visible()


# The last one changes the hall.
COMPONENTS: dict[str, Callable[[Page], Locator]] = {
    "card": card,
    "table": table,
    "badges": badges,
    "dialog": dialog,
    "empty-state": empty_state,
    "error-page": error_page,
    "form-field": form_field,
    "json-view": json_view,
    "time": time,
    "message": message,
}
BOTH_SCHEMES = ("card", "badges", "json-view", "message")


def take_component_pictures(visitor: Visitor, folder: Path) -> None:
    visitor.faults.allow("404")  # of the error page
    for name, show in COMPONENTS.items():
        for scheme in ("light", "dark") if name in BOTH_SCHEMES else ("light",):
            height = 330 if name == "error-page" else HEIGHT
            page = visitor.window(width=WIDTH, height=height, scheme=scheme, reduced_motion="reduce", traced=False)
            part = show(page)
            part.scroll_into_view_if_needed()
            path = folder / f"component-{name}{'-dark' if scheme == 'dark' else ''}.png"
            page.screenshot(path=path, clip=around(page, part), animations="disabled")
            page.close()
            print(f"{path.name}: {path.stat().st_size:,} bytes")
            assert path.stat().st_size < MAX_BYTES, path


def around(page: Page, part: Locator) -> FloatRect:
    """The place of the part in the window, with its margin, as far as it is in the window."""
    box, window = part.bounding_box(), page.viewport_size
    assert box is not None
    assert window is not None
    left, top = max(0, box["x"] - MARGIN), max(0, box["y"] - MARGIN)
    right = min(window["width"], box["x"] + box["width"] + MARGIN)
    bottom = min(window["height"], box["y"] + box["height"] + MARGIN)
    return {"x": left, "y": top, "width": right - left, "height": bottom - top}

"""The list of calls, and how buttons, fields and long names look on all pages."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.rig import BrowserHall, Visitor

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

FOREIGN_FONTS = """() => {
  const font = (element) => getComputedStyle(element).fontFamily;
  const buttons = [...document.querySelectorAll("button")];
  return buttons.filter((each) => font(each) !== font(document.body)).map((each) => each.outerHTML);
}"""


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> BrowserHall:
    new_hall.add("good")
    new_hall.add_stage("stage", {"tools": [{"name": "long_name_" * 10, "inputSchema": {"type": "object"}}]})
    new_hall.bring_up("good", "stage")
    for text in ("one", "two"):
        new_hall.call("good", "echo", {"text": text})
    new_hall.api("members/good/tools/sleep/invoke/", method="POST", json={"arguments": {"seconds": 600}})
    return new_hall


def test_only_calls_in_progress_can_be_cancelled(page: Page) -> None:
    page.goto("/admin/roster/call/")
    cancel, compare = (page.get_by_role("button", name=name) for name in ("Cancel selected", "Compare two"))
    rows = page.locator(".calls-table tbody tr")
    running = rows.filter(has_text="sleep").get_by_role("checkbox")
    finished = rows.filter(has_text="echo").get_by_role("checkbox")

    finished.nth(0).check()
    finished.nth(1).check()
    expect(compare).to_be_enabled()
    expect(cancel).to_be_disabled()

    running.check()
    expect(compare).to_be_disabled()
    expect(cancel).to_be_enabled()
    cancel.click()
    expect(rows.filter(has_text="sleep").get_by_text("cancelled", exact=True)).to_be_visible()


@pytest.mark.parametrize("path", ["/admin/", "/admin/roster/call/", "/admin/roster/guildmember/proposals/"])
def test_buttons_have_the_font_of_the_page(page: Page, path: str) -> None:
    page.goto(path)

    assert page.locator("button").count() > 0
    assert page.evaluate(FOREIGN_FONTS) == []


def test_on_a_phone_the_links_above_a_member_begin_at_the_same_place(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/admin/roster/guildmember/")
    page.get_by_role("link", name="good", exact=True).click()
    links = page.locator(".object-tools > li")
    boxes = [box for link in links.all() if (box := link.bounding_box())]
    lines = {box["y"]: min(other["x"] for other in boxes if other["y"] == box["y"]) for box in boxes}

    assert len(lines) > 1
    assert len(set(lines.values())) == 1


@pytest.mark.parametrize("width", [1280, 390])
def test_the_cost_of_a_tool_with_a_long_name_is_in_the_window(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.goto("/admin/roster/token/")
    page.locator("#result_list tbody .field-beginning a").first.click()
    page.get_by_role("link", name="What the agent sees").click()
    row = page.locator(".agent-view tbody tr", has_text="long_name")

    expect(row).to_have_count(1)
    box = row.locator("td").last.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= width


def test_on_a_phone_a_tool_with_a_long_name_can_be_called(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/admin/roster/tool/?q=long_name")
    row = page.locator(".tool-row", has_text="long_name")

    for part in (row.get_by_role("link", name="Call"), row.get_by_role("link").first):
        box = part.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 390


def test_on_a_phone_all_fields_of_a_form_are_equally_wide(visitor: Visitor) -> None:
    page = visitor.window(width=390)
    page.goto("/admin/auth/user/add/")
    fields = page.locator("input[name=username], input[name=password1], input[name=password2]")
    widths = {round(box["width"]) for field in fields.all() if (box := field.bounding_box())}

    assert len(widths) == 1

"""Members and tools of a large hall are chosen by a search: by keyboard, on a phone, in light and dark."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser import axe
from tests.browser.rig import BrowserHall, Visitor

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

ROWS = """
from roster.models import GuildMember, Tool
members = GuildMember.objects.bulk_create(
    GuildMember(name=f"member-{number:03}", directory=f"member-{number:03}", description="One of many.")
    for number in range(100)
)
Tool.objects.bulk_create(
    Tool(member=member, name=f"tool-{number}", position=number,
         definition={"name": f"tool-{number}", "description": "Does one thing."})
    for member in members for number in range(20)
)
"""


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> BrowserHall:
    """The web alone, with 100 members and 2,000 tools."""
    result = new_hall.manage("prepare")
    assert result.returncode == 0, result.stderr
    new_hall.run(ROWS)
    new_hall.serve_web()
    return new_hall


def test_a_token_for_two_of_2000_tools_is_made_by_keyboard(page: Page) -> None:
    page.goto("/admin/roster/token/add/")
    page.get_by_label("Scope:").select_option("tools")
    picker = page.locator(".field-tools").get_by_role("group", name="Tools")
    expect(picker.get_by_role("checkbox")).to_have_count(20)
    picker.get_by_role("searchbox", name="Find tools").focus()
    keyboard = page.keyboard
    keyboard.type("member-077 tool-13")
    expect(picker.get_by_role("status")).to_have_text("1 match.")
    keyboard.press("Enter")  # searches, and does not send the form
    keyboard.press("ArrowDown")
    keyboard.press("Space")
    expect(picker.get_by_label("member-077/tool-13")).to_be_checked()
    keyboard.press("ArrowUp")
    keyboard.press("Control+A")
    keyboard.type("member-003/")
    expect(picker.get_by_role("status")).to_have_text("No matches.")
    keyboard.press("Backspace")
    expect(picker.get_by_role("status")).to_have_text("20 matches.")
    keyboard.press("ArrowDown")
    keyboard.press("Space")
    expect(picker.get_by_role("list", name="Chosen tools").get_by_role("checkbox")).to_have_count(1)
    page.get_by_label("Name:").fill("narrow")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("member-003/tool-0, member-077/tool-13")).to_be_visible()


def test_what_is_unchecked_is_not_chosen(page: Page) -> None:
    page.goto("/admin/roster/agent/new/")
    picker = page.get_by_role("group", name="Members").last
    search = picker.get_by_role("searchbox")
    search.fill("member-050")
    picker.get_by_label("member-050").check()
    search.fill("member-060")
    picker.get_by_label("member-060").check()
    picker.get_by_label("member-050").uncheck()
    search.fill("member-07")
    expect(picker.get_by_role("status")).to_have_text("10 matches.")
    chosen = picker.get_by_role("list", name="Chosen members").get_by_role("listitem")
    expect(chosen).to_have_text(["member-060: One of many."])


@pytest.mark.parametrize(
    ("address", "field"),
    [
        ("/admin/roster/token/add/", "#id_tools"),
        ("/admin/roster/agent/new/", "#id_members"),
        ("/admin/roster/secret/add/", "#id_members"),
    ],
)
def test_the_picker_is_accessible_and_fits_a_phone(visitor: Visitor, address: str, field: str) -> None:
    page = visitor.window(bypass_csp=True)
    page.goto(address)
    if "token" in address:
        page.get_by_label("Scope:").select_option("tools")
    picker = page.locator(field)
    picker.get_by_role("checkbox").nth(3).check()
    picker.get_by_role("searchbox").fill("099")
    expect(picker.get_by_role("status")).to_contain_text("match")
    expect(picker.get_by_role("checkbox").first).to_be_checked()
    assert not any(axe.check_page(page).values())


def test_a_tool_set_offers_what_is_typed(page: Page) -> None:
    page.goto("/admin/roster/toolset/add/")
    page.locator("#id_entries-0-content").press_sequentially("member-099/tool-7")
    expect(page.locator("#tool-set-choices option")).to_have_count(1)
    assert page.locator("#tool-set-choices option").get_attribute("value") == "member-099/tool-7"


def test_a_search_without_a_hall_says_so(page: Page) -> None:
    page.goto("/admin/roster/agent/new/")
    page.route("**/admin/choices/**", lambda route: route.fulfill(body="a page of a proxy"))
    picker = page.locator("#id_members")
    picker.get_by_role("searchbox").fill("member")
    expect(picker.get_by_role("status")).to_contain_text("The hall does not respond.")
    expect(picker.get_by_role("checkbox")).to_have_count(20)

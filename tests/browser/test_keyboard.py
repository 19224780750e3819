"""Without a mouse: Tab reaches every control, the focus is visible, and a tool can be called."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.rig import PASSWORD, BrowserHall, Visitor
from tests.conftest import eventually

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

MAX_TABS = 150
# The name of the element that has the focus, and whether the focus is visible.
FOCUSED_ELEMENT = """() => {
  const element = document.activeElement;
  if (!element || element === document.body) return null;
  (window.__visited ??= new WeakSet()).add(element);
  const style = getComputedStyle(element);
  const box = element.getBoundingClientRect();
  const label = element.getAttribute("aria-label") || element.labels?.[0]?.innerText;
  const name = label || element.innerText || element.value;
  const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  return {
    name: (name || "").trim().split("\\n")[0], tag: element.tagName,
    isVisible: (outlined || style.boxShadow !== "none") && box.width > 0 && box.height > 0,
  };
}"""
# The controls that Tab did not visit.
UNVISITED_ELEMENTS = """() => [...document.querySelectorAll("a[href], button, input, select, textarea, summary")]
  .filter((element) => !window.__visited.has(element) && !element.disabled && element.tabIndex >= 0)
  .filter((element) => element.checkVisibility({ visibilityProperty: true }) && !element.closest("[inert]"))
  .map((element) => element.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> BrowserHall:
    schema = {"type": "object", "properties": {"text": {"type": "string", "title": "Text"}}, "required": ["text"]}
    new_hall.add_stage("parrot", {"tools": [{"name": "repeat", "inputSchema": schema}]})
    new_hall.add("broken", "exit=3", restart="never")
    new_hall.bring_up("parrot")
    new_hall.wait_for_status("broken", "error")
    new_hall.call("parrot", "repeat", {"text": "hello"})
    return new_hall


def tab_to(page: Page, name: str, *, tag: str = "") -> None:
    for _ in range(MAX_TABS):
        page.keyboard.press("Tab")
        element = page.evaluate(FOCUSED_ELEMENT)
        if element and element["name"] == name and tag in ("", element["tag"].lower()):
            return
    pytest.fail(f"Tab does not reach {name!r} on {page.url}")


def test_a_call_is_made_without_a_mouse(visitor: Visitor) -> None:
    page = visitor.window(logged_in=False)
    page.goto("/")
    expect(page.get_by_label("Username")).to_be_focused()
    page.keyboard.type("admin")
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Roster")).to_be_visible()
    tab_to(page, "parrot")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Tools")).to_be_visible()
    tab_to(page, "Call repeat")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Call", exact=True)).to_be_visible()
    tab_to(page, "Text", tag="textarea")
    page.keyboard.type("said without a mouse")
    tab_to(page, "Call")
    page.keyboard.press("Enter")
    result = page.get_by_role("region", name="Result")
    expect(result.get_by_text("succeeded")).to_be_visible()
    expect(result.get_by_text("said without a mouse").first).to_be_visible()


@pytest.mark.parametrize("screen", ["roster", "member", "runner", "calls", "call"])
def test_tab_reaches_every_control_and_the_focus_is_visible(hall: BrowserHall, page: Page, screen: str) -> None:
    page.goto(address_of(hall, screen))
    names: list[str] = []
    names_without_visible_focus: set[str] = set()
    page.evaluate("document.querySelector('a').focus()")  # the first field of the runner has the focus
    page.evaluate(FOCUSED_ELEMENT)
    for _ in range(MAX_TABS):
        page.keyboard.press("Tab")
        element = page.evaluate(FOCUSED_ELEMENT)
        if element is None:
            break
        names.append(element["name"])
        if not element["isVisible"]:
            names_without_visible_focus.add(element["name"] or element["tag"])
    assert len(names) > 5
    assert names_without_visible_focus == set()
    assert page.evaluate(UNVISITED_ELEMENTS) == []


def address_of(hall: BrowserHall, screen: str) -> str:
    script = """
from django.urls import reverse
from roster.models import Call, Tool
tool = Tool.objects.select_related("member").get(name="repeat")
print(reverse("admin:index"), reverse("admin:roster_guildmember_change", args=[tool.member.pk]),
      reverse("admin:roster_tool_call", args=[tool.pk]), reverse("admin:roster_call_changelist"),
      reverse("admin:roster_call_change", args=[Call.objects.first().pk]))
"""
    addresses = dict(zip(["roster", "member", "runner", "calls", "call"], hall.run(script).split(), strict=True))
    return addresses[screen]


def test_ctrl_k_finds_a_tool_and_enter_opens_it(visitor: Visitor) -> None:
    page = visitor.window()
    page.goto("/admin/roster/call/")
    page.keyboard.press("Control+k")
    dialog = page.get_by_role("dialog", name="Search")
    expect(dialog.get_by_role("searchbox")).to_be_focused()
    expect(dialog.get_by_role("link", name="repeat")).to_be_visible()  # called a moment ago
    page.keyboard.type("repea")
    expect(dialog.get_by_role("listitem").first).to_contain_text("parrot")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/admin/roster/tool/\d+/call/$"))


def test_the_arrow_keys_go_through_the_results_and_escape_closes_them(visitor: Visitor) -> None:
    page = visitor.window()
    page.goto("/admin/")
    page.keyboard.press("Control+k")
    page.keyboard.type("to")
    results = page.get_by_role("dialog", name="Search").get_by_role("listitem")
    expect(results.filter(has_text="Tokens")).to_be_visible()
    expect(results.filter(has_text="Calls")).to_have_count(0)  # of the list without words
    page.keyboard.press("ArrowDown")
    expect(results.first.get_by_role("link")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(page.locator("#search-words")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.type("k")  # goes on with the word
    expect(page.locator("#search-words")).to_have_value("tok")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_command_restarts_a_member_and_the_page_says_so(visitor: Visitor, hall: BrowserHall) -> None:
    page = visitor.window()
    page.goto("/admin/")
    page.keyboard.press("Control+k")
    page.keyboard.type("restart parrot")
    expect(page.get_by_role("dialog", name="Search").get_by_role("button", name="Restart: parrot")).to_be_visible()
    started_at = hall.member("parrot")["started_at"]
    page.keyboard.press("Enter")
    expect(page.get_by_text("Restart requested (1): parrot.")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)
    eventually(lambda: hall.member("parrot")["started_at"] not in (None, started_at), within=30)
    hall.wait_for_status("parrot", "connected")


def test_a_slash_goes_to_the_search_of_the_page_and_a_question_mark_shows_the_keys(visitor: Visitor) -> None:
    page = visitor.window()
    page.goto("/admin/")
    page.keyboard.press("/")
    expect(page.locator("#find-words")).to_be_focused()
    page.keyboard.type("?/")  # is typed
    expect(page.locator("#find-words")).to_have_value("?/")
    page.goto("/admin/roster/toolset/add/")
    page.locator("h1").first.click()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.get_by_role("dialog", name="Search")).to_be_visible()

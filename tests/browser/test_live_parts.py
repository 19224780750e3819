"""How a live part asks (roster/static/roster/live.js): what it shows when nobody answers, and what it leaves alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.rig import BrowserHall, Visitor, until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

CARDS = "**/cards/**"
# What stands in the place of the answer; the part's own header makes it one of the hall's.
PART = {"X-Live": "part", "Content-Type": "text/html"}


def not_live(page: Page) -> Locator:
    return page.locator("#not-live")


def answers(page: Page, answer: Callable[[Route], None]) -> list[float]:
    """From now on `answer` answers for the roster; when it was asked, in milliseconds of the page's clock."""
    asked: list[float] = []

    def handle(route: Route) -> None:
        asked.append(float(page.evaluate("performance.now()")))
        answer(route)

    page.route(CARDS, handle)
    return asked


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda route: route.abort(), "No live updates: the hall does not respond."),
        (lambda route: route.fulfill(status=503), "No live updates: the hall responded with an error (503)."),
        (lambda route: route.fulfill(status=403), "No live updates: you no longer have permission to see this."),
        (lambda route: route.fulfill(status=302, headers={"Location": "/"}), "No live updates: you are logged out."),
        (lambda route: route.fulfill(body="<h1>A proxy's page</h1>"), "No live updates: another server responded"),
    ],
)
def test_what_is_not_live_says_so_in_one_line_and_mends_itself(
    page: Page, visitor: Visitor, answer: Callable[[Route], None], words: str
) -> None:
    visitor.faults.allow(r"Failed to load resource")
    page.goto("/")
    card = page.locator(".card").first
    expect(card).to_be_visible()
    answers(page, answer)
    expect(not_live(page)).to_contain_text(words)
    expect(card).to_be_visible()
    page.unroute(CARDS)
    expect(not_live(page)).to_be_empty()


def test_a_hall_that_does_not_answer_is_asked_ever_more_rarely(page: Page, visitor: Visitor) -> None:
    visitor.faults.allow(r"Failed to load resource")
    page.goto("/")
    asked = answers(page, lambda route: route.abort())
    until(page, lambda: len(asked) >= 4, what="it was asked four times")
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]  # 1, 2 and 4 s, and what it takes
    assert pauses[2] > pauses[0] + 1500


def test_a_part_is_never_asked_twice_at_a_time(page: Page) -> None:
    page.goto("/")
    held: list[Route] = []
    page.route(CARDS, lambda route: held.append(route))
    until(page, lambda: held, what="it was asked")
    page.wait_for_timeout(2500)  # three of its periods
    assert len(held) == 1
    held[0].continue_()
    until(page, lambda: len(held) == 2, what="it was asked again")
    page.unroute(CARDS)


def test_open_details_typed_text_and_focus_survive(page: Page) -> None:
    page.goto("/")
    body = '<details id="d"><summary>more</summary>{0}</details><input id="i" value=""><p id="p">{0}</p>'
    turn = {"number": 0}

    def answer(route: Route) -> None:
        turn["number"] += 1
        route.fulfill(body=body.format(turn["number"]), headers=PART)

    page.route(CARDS, answer)
    expect(page.locator("#p")).to_be_visible()
    page.locator("#d summary").click()
    page.locator("#i").fill("half a word")
    seen = page.locator("#p").inner_text()
    expect(page.locator("#p")).not_to_have_text(seen)
    expect(page.locator("#d")).to_have_attribute("open", "")
    expect(page.locator("#i")).to_have_value("half a word")
    expect(page.locator("#i")).to_be_focused()
    page.locator("#d summary").focus()
    seen = page.locator("#p").inner_text()
    expect(page.locator("#p")).not_to_have_text(seen)
    expect(page.locator("#i")).to_have_value("half a word")


def test_a_part_that_is_done_is_asked_no_more(page: Page) -> None:
    page.goto("/")
    asked = answers(page, lambda route: route.fulfill(body="<p>over</p>", headers={**PART, "X-Live": "done"}))
    expect(page.get_by_text("over", exact=True)).to_be_visible()
    page.wait_for_timeout(2500)  # three of its periods
    assert len(asked) == 1


def test_a_button_keeps_the_place_on_the_page_and_says_what_it_did(hall: BrowserHall, page: Page) -> None:
    page.goto("/admin/?q=good")
    page.evaluate("window.__not_reloaded = true")
    page.get_by_role("button", name="Restart good").click()
    expect(page.locator("#live-messages")).to_have_text("Restart requested (1): good.")
    hall.wait_for_status("good", "connected")
    assert page.evaluate("window.__not_reloaded === true")
    assert page.url.endswith("/?q=good")


def test_a_button_that_has_the_focus_never_does_what_another_says(hall: BrowserHall, page: Page) -> None:
    values = {"arguments": {"seconds": 3}}
    call = hall.api("members/good/tools/sleep/invoke/", method="POST", json=values)["id"]
    page.goto(f"/admin/roster/call/{call}/change/")
    page.get_by_role("button", name="Cancel this call").focus()
    expect(page.get_by_role("status").get_by_text("succeeded", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Call again")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel this call")).not_to_be_attached()


def test_buttons_work_without_scripts(hall: BrowserHall, visitor: Visitor) -> None:
    page = visitor.window(java_script_enabled=False)
    page.goto("/")
    page.get_by_role("button", name="Restart good").click()
    expect(page.locator(".messagelist")).to_contain_text("Restart requested (1): good.")
    hall.wait_for_status("good", "connected")


def test_a_chip_narrows_the_roster_and_the_address_says_so(page: Page) -> None:
    page.goto("/")
    page.locator(".chip-connected").click()
    expect(page.locator(".chip-connected")).to_have_attribute("aria-current", "true")
    assert page.url.endswith("?status=connected")
    page.get_by_role("searchbox").fill("no such thing")
    expect(page.get_by_text("No matches.")).to_be_visible()
    page.get_by_role("link", name="Show all").click()
    expect(page.locator(".card").first).to_be_visible()
    expect(page.get_by_role("searchbox")).to_have_value("")


def test_the_menu_closes_with_escape_and_when_one_goes_on_elsewhere(page: Page) -> None:
    page.goto("/")
    menu, users = page.locator("#places summary"), page.get_by_role("link", name="Users", exact=True)
    menu.press("Enter")
    expect(users).to_be_visible()
    page.keyboard.press("Escape")
    expect(users).not_to_be_visible()
    expect(menu).to_be_focused()
    menu.click()
    expect(users).to_be_visible()
    page.get_by_role("searchbox").focus()
    expect(users).not_to_be_visible()

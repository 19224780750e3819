"""The requests of live parts (roster/static/roster/live.js), and what a part shows and keeps."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.rig import BrowserHall, Visitor, until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

CARDS = "**/cards/**"
# The header X-Live marks the response as one of the hall.
PART = {"X-Live": "part", "Content-Type": "text/html"}


def not_live_banner(page: Page) -> Locator:
    return page.locator("#not-live")


def route_cards(page: Page, respond: Callable[[Route], None]) -> list[float]:
    """Let `respond` serve the roster. Returns the times of the requests, in milliseconds of the page's clock."""
    request_times: list[float] = []

    def handle(route: Route) -> None:
        request_times.append(float(page.evaluate("performance.now()")))
        respond(route)

    page.route(CARDS, handle)
    return request_times


@pytest.mark.parametrize(
    ("respond", "text"),
    [
        (lambda route: route.abort(), "No live updates: the hall does not respond."),
        (lambda route: route.fulfill(status=503), "No live updates: the hall responded with an error (503)."),
        (lambda route: route.fulfill(status=403), "No live updates: you no longer have permission to see this."),
        (lambda route: route.fulfill(status=302, headers={"Location": "/"}), "No live updates: you are logged out."),
        (lambda route: route.fulfill(body="<h1>A proxy's page</h1>"), "No live updates: another server responded"),
    ],
)
def test_a_failed_update_is_shown_in_one_line_and_updates_resume(
    page: Page, visitor: Visitor, respond: Callable[[Route], None], text: str
) -> None:
    visitor.faults.allow(r"Failed to load resource")
    page.goto("/")
    card = page.locator(".card").first
    expect(card).to_be_visible()
    route_cards(page, respond)
    expect(not_live_banner(page)).to_contain_text(text)
    expect(card).to_be_visible()
    page.unroute(CARDS)
    expect(not_live_banner(page)).to_be_empty()


def test_requests_become_rarer_while_the_hall_does_not_respond(page: Page, visitor: Visitor) -> None:
    visitor.faults.allow(r"Failed to load resource")
    page.goto("/")
    request_times = route_cards(page, lambda route: route.abort())
    until(page, lambda: len(request_times) >= 4, what="there are four requests")
    pauses = [
        later - earlier for earlier, later in itertools.pairwise(request_times)
    ]  # 1, 2 and 4 s, and the time of the requests
    assert pauses[2] > pauses[0] + 1500


def test_a_part_has_only_one_request_at_a_time(page: Page) -> None:
    page.goto("/")
    routes: list[Route] = []
    page.route(CARDS, lambda route: routes.append(route))
    until(page, lambda: routes, what="there is a request")
    page.wait_for_timeout(2500)  # three periods of the part
    assert len(routes) == 1
    routes[0].continue_()
    until(page, lambda: len(routes) == 2, what="there is a second request")
    page.unroute(CARDS)


def test_open_details_typed_text_and_focus_survive_updates(page: Page) -> None:
    page.goto("/")
    body = '<details id="d"><summary>more</summary>{0}</details><input id="i" value=""><p id="p">{0}</p>'
    turn = {"number": 0}

    def respond(route: Route) -> None:
        turn["number"] += 1
        route.fulfill(body=body.format(turn["number"]), headers=PART)

    page.route(CARDS, respond)
    expect(page.locator("#p")).to_be_visible()
    page.locator("#d summary").click()
    page.locator("#i").fill("half a word")
    old_text = page.locator("#p").inner_text()
    expect(page.locator("#p")).not_to_have_text(old_text)
    expect(page.locator("#d")).to_have_attribute("open", "")
    expect(page.locator("#i")).to_have_value("half a word")
    expect(page.locator("#i")).to_be_focused()
    page.locator("#d summary").focus()
    old_text = page.locator("#p").inner_text()
    expect(page.locator("#p")).not_to_have_text(old_text)
    expect(page.locator("#i")).to_have_value("half a word")


def test_a_finished_part_sends_no_more_requests(page: Page) -> None:
    page.goto("/")
    request_times = route_cards(
        page, lambda route: route.fulfill(body="<p>over</p>", headers={**PART, "X-Live": "done"})
    )
    expect(page.get_by_text("over", exact=True)).to_be_visible()
    page.wait_for_timeout(2500)  # three periods of the part
    assert len(request_times) == 1


def test_a_button_keeps_the_page_and_shows_its_effect(hall: BrowserHall, page: Page) -> None:
    page.goto("/admin/?q=good")
    page.evaluate("window.__not_reloaded = true")
    page.get_by_role("button", name="Restart good").click()
    expect(page.locator("#live-messages")).to_have_text("Restart requested (1): good.")
    hall.wait_for_status("good", "connected")
    assert page.evaluate("window.__not_reloaded === true")
    assert page.url.endswith("/?q=good")


def test_a_focused_button_is_removed_when_its_action_is_no_longer_possible(hall: BrowserHall, page: Page) -> None:
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


def test_a_chip_filters_the_roster_and_the_filter_is_in_the_address(page: Page) -> None:
    page.goto("/")
    page.locator(".chip-connected").click()
    expect(page.locator(".chip-connected")).to_have_attribute("aria-current", "true")
    assert page.url.endswith("?status=connected")
    page.get_by_role("searchbox").fill("no such thing")
    expect(page.get_by_text("No matches.")).to_be_visible()
    page.get_by_role("link", name="Show all").click()
    expect(page.locator(".card").first).to_be_visible()
    expect(page.get_by_role("searchbox")).to_have_value("")


def test_the_menu_closes_with_escape_and_when_it_loses_the_focus(page: Page) -> None:
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

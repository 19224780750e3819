"""Live pages: they show changes without a reload, and a hidden tab sends no requests."""

from __future__ import annotations

import os
import signal

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.rig import BrowserHall, Visitor, set_reload_marker, set_visibility, until, was_reloaded
from tests.support.machine import Stopwatch

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

MAX_SECONDS = 3.0  # about one on an idle machine


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> BrowserHall:
    new_hall.add("good")
    for name in ("mortal", "other"):
        new_hall.add(name, restart="never")
    new_hall.bring_up("good", "mortal", "other")
    return new_hall


def card(page: Page, name: str) -> Locator:
    return page.locator(".card").filter(has=page.get_by_role("link", name=name, exact=True))


def kill(hall: BrowserHall, name: str) -> None:
    os.kill(hall.member(name)["pid"], signal.SIGKILL)


def test_a_card_shows_a_crash_and_a_restart_without_a_reload(hall: BrowserHall, page: Page) -> None:
    page.goto("/")
    mortal_card = card(page, "mortal")
    expect(mortal_card.get_by_text("connected", exact=True)).to_be_visible()
    set_reload_marker(page)
    kill(hall, "mortal")
    watch = Stopwatch()
    expect(mortal_card.get_by_text("error", exact=True)).to_be_visible()
    assert watch.seconds < MAX_SECONDS
    expect(mortal_card).to_contain_text("SIGKILL")
    expect(card(page, "good").get_by_text("connected", exact=True)).to_be_visible()
    mortal_card.get_by_role("button", name="Restart").click()
    expect(mortal_card.get_by_text("connected", exact=True)).to_be_visible()
    assert not was_reloaded(page)


def test_the_page_of_a_member_shows_a_crash_without_a_reload(hall: BrowserHall, page: Page) -> None:
    page.goto("/")
    page.get_by_role("link", name="other", exact=True).click()
    expect(page.get_by_text("connected", exact=True).first).to_be_visible()
    set_reload_marker(page)
    kill(hall, "other")
    watch = Stopwatch()
    expect(page.get_by_text("error", exact=True).first).to_be_visible()
    assert watch.seconds < MAX_SECONDS
    expect(page.get_by_text("SIGKILL").first).to_be_visible()
    assert not was_reloaded(page)


def test_a_hidden_tab_sends_no_requests_and_updates_when_it_is_visible_again(
    hall: BrowserHall, visitor: Visitor
) -> None:
    hidden_page, visible_page = visitor.window(), visitor.window()
    hidden_page.goto("/")
    set_visibility(hidden_page, visible=False)
    visible_page.goto("/")
    request_counts = {"hidden": 0, "visible": 0}
    hidden_page.on("request", lambda _: request_counts.update(hidden=request_counts["hidden"] + 1))
    visible_page.on("request", lambda _: request_counts.update(visible=request_counts["visible"] + 1))
    until(visible_page, lambda: request_counts["visible"] >= 4, what="the visible tab sends requests")
    hall.add("newcomer")
    expect(card(visible_page, "newcomer")).to_be_visible()
    assert request_counts["hidden"] == 0
    expect(card(hidden_page, "newcomer")).not_to_be_attached()
    set_visibility(hidden_page, visible=True)
    expect(card(hidden_page, "newcomer")).to_be_visible()


def test_typed_text_survives_a_live_update(hall: BrowserHall, page: Page) -> None:
    page.goto("/")
    search = page.get_by_role("searchbox")
    search.fill("goo")
    expect(card(page, "mortal")).not_to_be_attached()
    expect(card(page, "good")).to_be_visible()
    search.press("End")
    search.type("d")
    with page.expect_response("**/cards/**"):
        hall.call("good", "echo", {"text": "hello"})
    expect(search).to_have_value("good")
    expect(search).to_be_focused()


# How many controls of the page a message covers.
COVERED = """() => {
  const own = document.getElementById("live-messages").getBoundingClientRect();
  return [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, summary")].filter((each) => {
    const box = each.getBoundingClientRect();
    return !each.closest("#live-messages") && box.width > 0 && box.left < own.right && own.left < box.right
      && box.top < own.bottom && own.top < box.bottom;
  }).length;
}"""


@pytest.mark.parametrize("width", [1440, 390])
def test_the_message_of_a_button_covers_no_control_and_leaves_when_somebody_dismisses_it(
    hall: BrowserHall, visitor: Visitor, width: int
) -> None:
    page = visitor.window(width=width)
    hall.wait_for_status("good", "connected")
    page.goto("/admin/?q=good")
    message = page.locator("#live-messages p")
    card(page, "good").get_by_role("button", name="Restart").click()
    expect(message).to_have_text("Restart requested (1): good.")
    expect(message).to_have_count(1)
    assert page.evaluate(COVERED) == 0
    box = message.get_by_role("button", name="Dismiss").bounding_box()
    assert box is not None
    assert min(box["width"], box["height"]) >= 24
    message.get_by_role("button", name="Dismiss").click()
    expect(message).to_have_count(0)


def test_the_second_press_of_a_double_click_presses_nothing(hall: BrowserHall, visitor: Visitor) -> None:
    page = visitor.window()
    hall.wait_for_status("good", "connected")
    page.goto("/admin/?q=good")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
    stop = card(page, "good").get_by_role("button", name="Stop")
    stop.dispatch_event("click", {"detail": 2})  # the place in which the first press found Restart
    with page.expect_response("**/restart/"):
        card(page, "good").get_by_role("button", name="Restart").dispatch_event("click", {"detail": 1})
    assert len(sent) == 1
    assert "restart" in sent[0]

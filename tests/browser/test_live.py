"""Pages that stay true by themselves: what happens is seen without a reload, and a hidden tab asks nothing."""

from __future__ import annotations

import os
import signal

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.rig import BrowserHall, Visitor, mark, show, until, was_reloaded
from tests.support.machine import Stopwatch

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

SEEN_WITHIN_SECONDS = 3.0  # about one on an idle machine


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


def test_a_crash_is_seen_on_its_card_and_a_start_too(hall: BrowserHall, page: Page) -> None:
    page.goto("/")
    mortal = card(page, "mortal")
    expect(mortal.get_by_text("connected", exact=True)).to_be_visible()
    mark(page)
    kill(hall, "mortal")
    watch = Stopwatch()
    expect(mortal.get_by_text("error", exact=True)).to_be_visible()
    assert watch.seconds < SEEN_WITHIN_SECONDS
    expect(mortal).to_contain_text("SIGKILL")
    expect(card(page, "good").get_by_text("connected", exact=True)).to_be_visible()
    mortal.get_by_role("button", name="Restart").click()
    expect(mortal.get_by_text("connected", exact=True)).to_be_visible()
    assert not was_reloaded(page)


def test_a_crash_is_seen_on_the_members_own_page(hall: BrowserHall, page: Page) -> None:
    page.goto("/")
    page.get_by_role("link", name="other", exact=True).click()
    expect(page.get_by_text("connected", exact=True).first).to_be_visible()
    mark(page)
    kill(hall, "other")
    watch = Stopwatch()
    expect(page.get_by_text("error", exact=True).first).to_be_visible()
    assert watch.seconds < SEEN_WITHIN_SECONDS
    expect(page.get_by_text("SIGKILL").first).to_be_visible()
    assert not was_reloaded(page)


def test_a_tab_that_is_hidden_asks_nothing_and_catches_up_when_it_is_seen_again(
    hall: BrowserHall, visitor: Visitor
) -> None:
    hidden, seen = visitor.window(), visitor.window()
    hidden.goto("/")
    show(hidden, visible=False)
    seen.goto("/")
    asked = {"hidden": 0, "seen": 0}
    hidden.on("request", lambda _: asked.update(hidden=asked["hidden"] + 1))
    seen.on("request", lambda _: asked.update(seen=asked["seen"] + 1))
    until(seen, lambda: asked["seen"] >= 4, what="the tab that is seen asks")
    hall.add("newcomer")
    expect(card(seen, "newcomer")).to_be_visible()
    assert asked["hidden"] == 0
    expect(card(hidden, "newcomer")).not_to_be_attached()
    show(hidden, visible=True)
    expect(card(hidden, "newcomer")).to_be_visible()


def test_what_somebody_types_survives_what_happens_around_it(hall: BrowserHall, page: Page) -> None:
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

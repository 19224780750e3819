"""How heavy pages are on their way to a browser that has nothing of them yet, and how soon a large roster is drawn."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.end_to_end.browser.rig import BrowserHall, Visitor
from tests.end_to_end.browser.screens import screens_of

pytestmark = [pytest.mark.browser, pytest.mark.processes, pytest.mark.timeout(180)]

MOST_BYTES = 300_000


def transferred(page: Page, path: str) -> int:
    """Bytes on the wire until the page and all it names are there, headers included."""
    weights: list[int] = []
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.send("Network.clearBrowserCache")
    session.on("Network.loadingFinished", lambda event: weights.append(int(event["encodedDataLength"])))
    page.goto(path, wait_until="load")
    session.detach()
    return sum(weights)


def test_every_screen_weighs_less_than_300_kb(hall: BrowserHall, visitor: Visitor) -> None:
    hall.call("good", "echo", {"text": "hello"})
    page = visitor.window(traced=False)
    weights = {screen: transferred(page, screen) for screen in screens_of(hall)}
    assert min(weights.values()) > 10_000, weights
    assert {screen: weight for screen, weight in weights.items() if weight > MOST_BYTES} == {}

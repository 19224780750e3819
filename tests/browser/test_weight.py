"""The transferred bytes of pages for a browser with an empty cache."""

from __future__ import annotations

import pytest

from tests.browser.rig import BrowserHall, Visitor, transferred_bytes
from tests.browser.screens import screens_of

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

MAX_BYTES = 300_000


def test_every_screen_transfers_less_than_300_kb(hall: BrowserHall, visitor: Visitor) -> None:
    hall.call("good", "echo", {"text": "hello"})
    page = visitor.window(traced=False)
    weights = {screen: transferred_bytes(page, screen) for screen in screens_of(hall)}
    assert min(weights.values()) > 10_000, weights
    assert {screen: weight for screen, weight in weights.items() if weight > MAX_BYTES} == {}

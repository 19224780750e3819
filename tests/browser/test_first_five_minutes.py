"""A new user without documentation finds the broken member, reads the reason, fixes it, and calls its tool."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.rig import PASSWORD, BrowserHall, Visitor
from tests.support.machine import Stopwatch

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

MAX_SECONDS = 60.0
TOOL = {
    "name": "forecast",
    "title": "Forecast",
    "description": "Says how the weather will be.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "title": "City", "description": "Where."},
            "days": {"type": "integer", "title": "Days", "minimum": 1, "maximum": 7, "default": 3},
        },
        "required": ["city"],
    },
}
WORKING_STAGE: dict[str, Any] = {
    "tools": [TOOL],
    "answers": {"forecast": {"result": {"content": [{"type": "text", "text": "Sunny, with a gentle breeze."}]}}},
}
BROKEN_STAGE = {"stderr": "KeyError: 'WEATHER_STATION' is not set", "exit": 3}


@pytest.fixture
def hall(new_hall: BrowserHall) -> BrowserHall:
    names = ("archive", "calendar", "library")
    for name in names:
        new_hall.add_stage(name, WORKING_STAGE, displayName=name.capitalize(), description=f"The {name}.")
    new_hall.add_stage(
        "weather", BROKEN_STAGE, restart="never", displayName="Weather", description="What it will be like."
    )
    new_hall.bring_up(*names)
    new_hall.wait_for_status("weather", "error")
    return new_hall


def test_a_new_user_fixes_the_broken_member_and_calls_its_tool_within_a_minute(
    hall: BrowserHall, visitor: Visitor
) -> None:
    page = visitor.window(logged_in=False)
    watch = Stopwatch()
    page.goto("/")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()

    broken_card = page.locator("#roster li").filter(has=page.get_by_role("heading")).filter(has_text="error")
    expect(broken_card).to_have_count(1)
    expect(broken_card.get_by_role("heading", name="Weather")).to_be_visible()
    expect(broken_card).to_contain_text("exit code 3")
    expect(broken_card).to_contain_text("'WEATHER_STATION' is not set")
    expect(broken_card).to_contain_text("What to do")

    hall.add_stage("weather", WORKING_STAGE, restart="never", displayName="Weather")
    weather_card = page.locator("#roster li").filter(has=page.get_by_role("heading", name="Weather"))
    weather_card.get_by_role("button", name="Restart").click()
    expect(weather_card.get_by_text("connected", exact=True)).to_be_visible()

    call_tool(page, weather_card)
    assert watch.seconds < MAX_SECONDS


def call_tool(page: Page, card: Locator) -> None:
    card.get_by_role("link", name="Weather", exact=True).click()
    page.get_by_role("link", name="Call forecast").click()
    page.get_by_role("textbox", name="City").fill("Lisbon")
    page.get_by_role("button", name="Call", exact=True).click()
    result = page.get_by_role("region", name="Result")
    expect(result.get_by_text("succeeded")).to_be_visible()
    expect(result.get_by_text("Sunny, with a gentle breeze.").first).to_be_visible()

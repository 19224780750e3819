"""Members are added and removed in the browser: by keyboard, on a phone, and from the registry to the first answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.axe import check_page
from tests.browser.rig import BrowserHall, Visitor, until
from tests.browser.screens import OVERFLOW
from tests.conftest import needs_program
from tests.support.registry import WEATHER, Registry, serve

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

ADD = "/admin/roster/guildmember/proposals/"
STDIO_SERVER = Path(__file__).resolve().parents[1] / "support" / "servers" / "stdio_server.py"
# From npm, so that the first start fetches it.
EVERYTHING: dict[str, Any] = {
    "name": "io.modelcontextprotocol/everything",
    "title": "Everything",
    "description": "All features of MCP",
    "version": "2025.8.18",
    "packages": [
        {
            "registryType": "npm",
            "identifier": "@modelcontextprotocol/server-everything",
            "version": "2025.8.18",
            "transport": {"type": "stdio"},
            "environmentVariables": [
                {"name": "API_KEY", "description": "Any text.", "isRequired": True, "isSecret": True}
            ],
        }
    ],
}


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with serve() as server:
        server.servers[EVERYTHING["name"]] = [EVERYTHING]
        yield server


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall, registry: Registry) -> BrowserHall:
    new_hall.add("good")
    new_hall.bring_up("good", GUILD_HALL_REGISTRY_URL=registry.url)
    return new_hall


def press(page: Page, button: str) -> None:
    """Use a button as people without a mouse do."""
    control = page.get_by_role("button", name=button, exact=True)
    control.focus()
    page.keyboard.press("Enter")


def test_a_server_of_the_registry_answers_within_a_minute(page: Page, hall: BrowserHall) -> None:
    needs_program("npx")
    page.goto(ADD)
    page.get_by_label("Name:", exact=True).first.fill("everything")
    press(page, "Search")
    press(page, f"Choose {EVERYTHING['name']}")
    page.get_by_label("API_KEY:").fill("canary-4711-abc")
    press(page, "Propose")
    press(page, "Approve everything")
    expect(page.get_by_text("is approved. The hall creates")).to_be_visible()
    hall.wait_for_status("everything", "connected")
    answer = hall.call("everything", "echo", {"message": "hello"})
    assert answer["status"] == "succeeded"
    assert "hello" in json.dumps(answer["result"])
    assert "canary-4711-abc" not in (hall.members_dir / "everything" / "guild-member.json").read_text()


def test_the_values_of_a_server_are_filled_in_by_keyboard_on_a_phone(visitor: Visitor) -> None:
    page = visitor.window(width=390)
    page.goto(f"{ADD}?registry=weather")
    assert page.evaluate(OVERFLOW) <= 0
    press(page, f"Choose {WEATHER['name']}")
    page.get_by_label("CITY:").fill("Oss")
    assert page.evaluate(OVERFLOW) <= 0
    page.get_by_label("CITY:").press("Enter")  # the folder is missing
    expect(page.get_by_text("folder: needs a value")).to_be_visible()
    expect(page.get_by_label("CITY:")).to_have_value("Oss")
    page.get_by_label("folder:").fill("/srv/a\n/srv/b")
    page.get_by_label("CITY:").press("Enter")
    region = page.get_by_role("region", name="weather")
    expect(region.get_by_text("/srv/b", exact=True)).to_be_visible()
    expect(region.get_by_text("Set the secret")).to_be_visible()
    assert page.evaluate(OVERFLOW) <= 0
    press(page, "Discard weather")
    expect(page.get_by_text("weather is discarded")).to_be_visible()


def test_the_page_for_values_has_no_serious_accessibility_problems(visitor: Visitor) -> None:
    page = visitor.window(traced=False, bypass_csp=True)
    page.goto(f"{ADD}?registry=weather")
    press(page, f"Choose {WEATHER['name']}")
    expect(page.get_by_label("CITY:")).to_be_visible()
    assert {view: faults for view, faults in check_page(page).items() if faults} == {}


def test_a_pasted_member_is_approved_removed_and_restored(page: Page, hall: BrowserHall) -> None:
    # The sandbox hides the files of the hall, so the program is an argument.
    program = {"command": sys.executable, "args": ["-c", STDIO_SERVER.read_text()]}
    page.goto(ADD)
    page.get_by_label("Source:").fill(json.dumps({"mcpServers": {"pasted": program}}))
    press(page, "Look up")
    press(page, "Approve pasted")
    hall.wait_for_status("pasted", "connected")
    page.goto("/admin/roster/guildmember/")
    page.get_by_role("link", name="pasted", exact=True).first.click()
    page.get_by_role("link", name="Remove", exact=True).click()
    press(page, "Remove")
    expect(page.get_by_text("pasted is removed")).to_be_visible()
    until(page, lambda: "pasted" not in hall.statuses(), what="the member has left the roster")
    page.reload()
    press(page, "Restore pasted")
    expect(page.get_by_text("pasted is restored")).to_be_visible()
    hall.wait_for_status("pasted", "connected")

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
from tests.browser.rig import BrowserHall, Visitor, press, until
from tests.browser.screens import OVERFLOW
from tests.conftest import needs_program
from tests.support.bundles import node_bundle
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
    expect(page.locator(".form-row.errors", has=page.get_by_label("folder:"))).to_contain_text("Needs a value.")
    expect(page.get_by_label("folder:")).to_be_focused()
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
    page.get_by_label("Text:").fill(json.dumps({"mcpServers": {"pasted": program}}))
    press(page, "Propose from this text")
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


def test_a_bundle_is_uploaded_filled_in_approved_and_called_by_keyboard(visitor: Visitor, hall: BrowserHall) -> None:
    needs_program("node")
    page = visitor.window()
    page.goto(ADD)
    page.get_by_label("File:").set_input_files({"name": "echo.mcpb", "mimeType": "", "buffer": node_bundle()})
    press(page, "Propose the bundle")
    expect(page.get_by_text("What it says.", exact=True)).to_be_visible()
    page.get_by_label("Name:").fill("echoes")
    page.get_by_label("Key:").fill("canary-4711-abc")
    page.get_by_label("Key:").press("Enter")  # the greeting is missing
    expect(page.locator(".form-row.errors", has=page.get_by_label("Greeting:"))).to_contain_text("Needs a value.")
    expect(page.get_by_label("Name:")).to_have_value("echoes")
    page.get_by_label("Name:").fill("")
    assert page.evaluate(OVERFLOW) <= 0
    page.get_by_label("Greeting:").fill("hello")
    page.get_by_label("Key:").fill("canary-4711-abc")
    page.get_by_label("Key:").press("Enter")
    region = page.get_by_role("region", name="echo")
    expect(region.get_by_text("Anna", exact=True)).to_be_visible()
    summary = region.get_by_text("Its 3 files")
    summary.focus()
    page.keyboard.press("Enter")
    expect(region.get_by_text("server/index.js", exact=True)).to_be_visible()
    press(page, "Approve echo")
    expect(page.get_by_text("is approved. The hall creates")).to_be_visible()
    arrival = page.get_by_role("region", name="echo")
    expect(arrival.get_by_text("connected", exact=True)).to_be_visible(timeout=60_000)
    expect(arrival.get_by_text("It has 1 tool.")).to_be_visible()
    assert page.evaluate(OVERFLOW) <= 0
    arrival.get_by_role("link", name="Open echo").click()
    expect(page.get_by_role("link", name="Call greet")).to_be_visible()
    answer = hall.call("echo", "greet", {})
    assert "From the bundle: hello key of 15" in json.dumps(answer["result"])


def test_the_page_of_a_proposed_bundle_fits_a_phone_and_has_no_serious_accessibility_problems(visitor: Visitor) -> None:
    page = visitor.window(width=390, traced=False, bypass_csp=True)
    page.goto(ADD)
    many = {f"folder/{'long-' * 20}{number}.js": b"" for number in range(20)}
    page.get_by_label("File:").set_input_files({"name": "a.mcpb", "mimeType": "", "buffer": node_bundle(many)})
    press(page, "Propose the bundle")
    page.get_by_label("Name:").fill("phone")
    page.get_by_label("Greeting:").fill("hello")
    press(page, "Propose")
    page.get_by_text("Its 23 files").click()
    assert page.evaluate(OVERFLOW) <= 0
    assert {view: faults for view, faults in check_page(page).items() if faults} == {}
    press(page, "Discard phone")
    expect(page.get_by_text("phone is discarded")).to_be_visible()


def test_a_file_that_is_no_bundle_is_refused_on_the_page(page: Page) -> None:
    page.goto(ADD)
    page.get_by_label("File:").set_input_files({"name": "a.mcpb", "mimeType": "", "buffer": b"hello"})
    press(page, "Propose the bundle")
    expect(page.get_by_text("is not a zip")).to_be_visible()


def test_an_approved_member_that_fails_is_explained_and_one_without_a_folder_is_discarded(
    visitor: Visitor, hall: BrowserHall
) -> None:
    page = visitor.window(width=390, traced=False, bypass_csp=True)
    (hall.members_dir / "blocked").mkdir()
    (hall.members_dir / "blocked" / "notes.txt").write_text("mine")
    for name, source in (("nothing", "no-such-program --serve"), ("blocked", "another-program")):
        page.goto(ADD)
        page.get_by_label("Text:").fill(source)
        page.locator("#id_name").fill(name)
        press(page, "Propose from this text")
        press(page, f"Approve {name}")
        expect(page.get_by_role("region", name=name)).to_be_visible()
    failed, blocked = page.get_by_role("region", name="nothing"), page.get_by_role("region", name="blocked")
    expect(failed.get_by_text("Install no-such-program")).to_be_visible(timeout=60_000)
    expect(failed.get_by_role("link", name="Fix it: nothing")).to_be_visible()
    expect(blocked.get_by_text("exists already, without a manifest")).to_be_visible(timeout=60_000)
    assert {view: faults for view, faults in check_page(page).items() if faults} == {}
    press(page, "Discard blocked")
    expect(page.get_by_text("blocked is discarded")).to_be_visible()
    expect(blocked).to_have_count(0)


def test_a_new_member_begins_with_the_template(page: Page, hall: BrowserHall) -> None:
    page.goto(ADD)
    page.get_by_role("textbox", name="Name:").last.fill("greeter")
    press(page, "Propose from the template")
    press(page, "Approve greeter")
    hall.wait_for_status("greeter", "connected")
    answer = hall.call("greeter", "hello", {"name": "Ada"})
    assert "Hello, Ada!" in json.dumps(answer["result"])

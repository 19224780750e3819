"""Members are edited in the browser: by keyboard, on a phone, and from an error to its repair."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.axe import check_page
from tests.browser.rig import BrowserHall, Visitor, press
from tests.browser.screens import OVERFLOW

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

LIST = "/admin/roster/guildmember/"


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> BrowserHall:
    new_hall.add("good")
    new_hall.bring_up("good")
    return new_hall


def open_member(page: Page, name: str) -> None:
    page.goto(LIST)
    page.get_by_role("link", name=name, exact=True).first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(name)


def test_a_member_is_edited_by_keyboard_on_a_phone_and_the_edit_is_taken_back(
    visitor: Visitor, hall: BrowserHall
) -> None:
    page = visitor.window(width=390)
    open_member(page, "good")
    page.get_by_role("link", name="Edit", exact=True).click()
    assert page.evaluate(OVERFLOW) <= 0
    page.get_by_label("timeout", exact=True).fill("0")
    page.get_by_label("env", exact=True).fill("REGION=eu\nAPI_TOKEN=canary-4711-abc")
    page.get_by_label("timeout", exact=True).press("Enter")
    expect(page.get_by_text("must be seconds")).to_be_visible()
    expect(page.get_by_label("timeout", exact=True)).to_be_focused()
    assert page.evaluate(OVERFLOW) <= 0
    page.get_by_label("timeout", exact=True).fill("77")
    page.get_by_label("timeout", exact=True).press("Enter")
    expect(page.get_by_role("heading", name="Edit 1, proposed")).to_be_visible()
    assert page.evaluate(OVERFLOW) <= 0
    assert "canary" not in page.content()
    press(page, "Approve")
    expect(page.get_by_role("heading", name="Edit 1, written")).to_be_visible()
    manifest = hall.members_dir / "good" / "guild-member.json"
    written = json.loads(manifest.read_text())
    assert (written["timeout"], written["env"]["API_TOKEN"]) == (77, "${secret:good-API_TOKEN}")
    hall.wait_for_status("good", "connected")
    press(page, "Take back")
    expect(page.get_by_role("heading", name="Edit 2, written")).to_be_visible()
    assert "timeout" not in json.loads(manifest.read_text())


def test_a_fault_in_a_manifest_is_repaired_from_its_card(page: Page, hall: BrowserHall) -> None:
    folder = hall.add("broken")
    path = folder / "guild-member.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_concurrency": 0}))
    page.goto("/admin/")
    page.get_by_role("link", name="Fix it: broken").click()
    expect(page.get_by_label("max_concurrency")).to_be_focused()
    expect(page.get_by_text("must be a whole number from 1 to 1024").first).to_be_visible()
    page.get_by_label("max_concurrency").fill("3")
    page.get_by_label("Replace what the file has").check()
    press(page, "Propose")
    press(page, "Approve")
    expect(page.get_by_role("heading", name=re.compile("written"))).to_be_visible()
    hall.wait_for_status("broken", "connected")
    assert json.loads(path.read_text())["max_concurrency"] == 3


def test_the_pages_of_edits_have_no_serious_accessibility_problems(visitor: Visitor) -> None:
    page = visitor.window(traced=False, bypass_csp=True)
    open_member(page, "good")
    page.get_by_role("link", name="Edit", exact=True).click()
    expect(page.get_by_label("command", exact=True)).to_be_visible()
    assert {view: faults for view, faults in check_page(page).items() if faults} == {}
    page.get_by_label("description").fill("Another text.")
    press(page, "Propose")
    expect(page.get_by_role("button", name="Approve", exact=True)).to_be_visible()
    assert {view: faults for view, faults in check_page(page).items() if faults} == {}

"""What pages say while a change waits, or has not reached a member: held tools, edits, and new values of secrets."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.axe import check_page
from tests.browser.rig import BrowserHall, Visitor, press
from tests.browser.screens import OVERFLOW

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

RENDER = {"name": "render", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}


def search(description: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return {"name": "search", "description": description, "inputSchema": schema}


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> BrowserHall:
    new_hall.add("good")
    new_hall.add("weather", env={"KEY": "${secret:weather-key}"})
    new_hall.add_stage("archive", {"tools": [search("Searches."), RENDER]}, contracts="hold")
    new_hall.bring_up("good", "archive")
    result = new_hall.manage("set_secret", "weather-key", "--members", "weather", input="first")
    assert result.returncode == 0, result.stderr
    new_hall.wait_for_status("weather", "connected")
    return new_hall


def open_member(page: Page, name: str) -> None:
    page.goto("/admin/")
    page.get_by_role("link", name=name, exact=True).click()


def test_a_held_change_is_on_the_card_and_leads_to_its_approval(
    page: Page, visitor: Visitor, hall: BrowserHall
) -> None:
    page.goto("/admin/")
    stage = hall.members_dir / "archive" / "stage.json"
    stage.write_text(json.dumps({"tools": [search("Searches all of it."), RENDER]}))
    hall.api("members/archive/restart/", method="POST")
    link = page.get_by_role("link", name="1 change in what archive offers")
    expect(link).to_be_visible(timeout=60_000)
    phone = visitor.window(width=390, scheme="dark", traced=False, bypass_csp=True)
    phone.goto("/admin/")
    expect(phone.get_by_role("link", name="1 change in what archive offers")).to_be_visible()
    assert {view: faults for view, faults in check_page(phone).items() if faults} == {}
    link.click()
    press(page, "Approve this change")
    expect(page.get_by_text("No change waits for an approval.")).to_be_visible()
    page.goto("/admin/")
    expect(page.locator(".card", has_text="archive")).to_be_visible()
    expect(link).to_have_count(0)


def test_an_edit_that_waits_is_on_the_card_until_somebody_decides(page: Page, hall: BrowserHall) -> None:
    page.goto("/admin/")
    edit = hall.api("members/good/", method="PATCH", json={"manifest": {"timeout": 60}})
    link = page.get_by_role("link", name="1 proposed edit of good")
    expect(link).to_be_visible()
    hall.run(f"from roster.models import ManifestEdit; ManifestEdit.objects.filter(pk={edit['id']}).delete()")
    expect(link).to_have_count(0)


def test_after_a_new_value_each_member_with_the_old_one_has_a_button(page: Page, visitor: Visitor) -> None:
    page.goto("/admin/roster/secret/")
    page.get_by_role("link", name="weather-key").click()
    page.get_by_label("Value:").fill("second")
    press(page, "Save")
    region = page.get_by_role("region", name="Members that run with an old value")
    expect(region.get_by_role("link", name="weather")).to_be_visible()
    window = visitor.window(traced=False, bypass_csp=True)
    window.goto(page.url)
    assert {view: faults for view, faults in check_page(window).items() if faults} == {}
    press(page, "Restart weather")
    expect(page.get_by_text("Restart requested (1): weather.")).to_be_visible()
    expect(region).to_have_count(0, timeout=60_000)


def test_the_address_at_the_gateway_is_copied(visitor: Visitor, hall: BrowserHall) -> None:
    page = visitor.window(width=390, permissions=["clipboard-read", "clipboard-write"])
    open_member(page, "good")
    press(page, "Copy the address at the gateway")
    expect(page.get_by_role("button", name="Copy the address at the gateway")).to_have_text("Copied")
    address = f"http://localhost:{hall.gateway_port}/mcp/good"
    assert page.evaluate("navigator.clipboard.readText()") == address
    assert page.evaluate(OVERFLOW) <= 0
    hall.api("tool-sets/writing/", method="PUT", json={"entries": [{"member": "good"}]})
    page.goto("/admin/roster/toolset/")
    page.get_by_role("link", name="writing", exact=True).click()
    press(page, "Copy the address at the gateway")
    expect(page.get_by_role("button", name="Copy the address at the gateway")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == f"http://localhost:{hall.gateway_port}/sets/writing/mcp"
    assert page.evaluate(OVERFLOW) <= 0


def test_a_tool_that_runs_only_as_a_task_is_not_called(visitor: Visitor, hall: BrowserHall) -> None:
    page = visitor.window(traced=False, bypass_csp=True)
    open_member(page, "archive")
    page.get_by_role("link", name="render runs only as a task").click()
    expect(page.get_by_text("The hall cannot call this tool.")).to_be_visible()
    expect(page.get_by_role("button", name="Call", exact=True)).to_be_disabled()
    assert {view: faults for view, faults in check_page(page).items() if faults} == {}
    with page.expect_response(re.compile("/runtime/")):  # the keys do nothing, also after a while
        page.keyboard.press("Control+Enter")
    assert hall.api("calls/?member=archive")["results"] == []

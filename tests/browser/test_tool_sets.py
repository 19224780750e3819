"""A tool set is made in the browser, and its page shows what an agent sees, also on a phone."""

from __future__ import annotations

import base64
import json
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.rig import BrowserHall, Visitor
from tests.browser.screens import OVERFLOW

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

# Each test has a tool set of its own, so that they pass alone and in any order.
ROWS = """
from mcp_runtime.control.tool_sets import Entry, Values, create_tool_set
from mcp_runtime.security.access import OPERATOR
from roster.models import Call, GuildMember, Tool
for name in ("notes", "files"):
    member = GuildMember.objects.create(name=name, directory=name)
    for position, tool in enumerate(("add", "find")):
        Tool.objects.create(member=member, name=tool, position=position,
                            definition={"name": tool, "description": f"The tool {tool} as the member describes it."})
for name in ("for-a-token", "busy", "trimmed"):
    create_tool_set(Values(name, entries=[Entry("notes")]), OPERATOR, None)
for tool_set in ("busy", "trimmed", None):
    Call.objects.create(member=GuildMember.objects.get(name="notes"), tool_name="add", timeout=5, source="gateway",
                        status="succeeded", requester="anna", tool_set=tool_set)
"""


MANY_MEMBERS = """
from roster.models import GuildMember
GuildMember.objects.bulk_create(GuildMember(name=f"many-{n}", directory=f"many-{n}") for n in range(12))
"""


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> BrowserHall:
    """The web alone, because tool sets need no runtime."""
    result = new_hall.manage("prepare")
    assert result.returncode == 0, result.stderr
    new_hall.run(ROWS)
    new_hall.serve_web()
    return new_hall


def test_a_tool_set_is_made_and_previewed_on_every_screen(page: Page, visitor: Visitor) -> None:
    page.goto("/admin/roster/toolset/add/")
    page.get_by_label("Name:", exact=True).fill("writing")
    page.get_by_label("Title:").fill("Writing")
    page.locator("#id_entries-0-content").fill("notes/add")
    page.locator("#id_entries-0-new_name").fill("write")
    page.locator("#id_entries-0-new_description").fill("Writes a note.")
    page.locator("#id_entries-1-content").fill("files")
    page.get_by_role("button", name="Save and continue editing").click()
    preview = page.get_by_role("region", name="What you see at /sets/writing/mcp")
    expect(preview.get_by_role("row")).to_have_count(4)
    expect(preview.get_by_role("cell", name="Writes a note.")).to_be_visible()
    address = page.url
    for scheme, width in (("light", 1280), ("dark", 1280), ("light", 390)):
        window = visitor.window(scheme=scheme, width=width)
        window.goto(address)
        region = window.get_by_role("region", name="What you see at /sets/writing/mcp")
        expect(region.get_by_role("cell", name="write", exact=True)).to_be_visible()
        assert window.evaluate(OVERFLOW) <= 0
        for number in range(3):  # the fields of the first entry, with room for what people write
            box = window.locator("#entries-0 :is(input[type=text], textarea)").nth(number).bounding_box()
            assert box is not None
            assert box["width"] > 150


def test_a_token_for_a_tool_set_is_made_from_its_page_and_shows_its_address(page: Page, visitor: Visitor) -> None:
    page.goto("/admin/roster/toolset/")
    page.get_by_role("link", name="for-a-token").click()
    page.get_by_role("link", name="Create a token for this tool set").click()
    expect(page.get_by_label("Scope:")).to_have_value("tool_set")
    expect(page.locator(".field-tool_set select")).to_be_visible()
    expect(page.locator(".field-members")).to_be_hidden()
    page.get_by_label("Scope:").select_option("all")
    # A choice from before stays visible, because the form refuses it.
    expect(page.locator(".field-tool_set select")).to_be_visible()
    page.get_by_label("Scope:").select_option("tool_set")
    page.get_by_label("Name:").fill("ci")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("#config-agent-sdk")).to_contain_text("/sets/for-a-token/mcp")
    expect(page.get_by_text("This token is for the tool set for-a-token")).to_be_visible()
    address = page.url

    page.goto("/admin/roster/token/add/")
    expect(page.locator(".field-tool_set")).to_be_hidden()
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_label("Tool set").select_option("for-a-token")
    expect(page.locator("#config-agent-sdk")).to_contain_text("/sets/for-a-token/mcp")
    expect(page.locator("#config-agent-sdk")).not_to_contain_text("gh_PUT_A_TOKEN_HERE")
    for path in (address, page.url, "/admin/roster/token/add/?scope=tool_set"):
        for scheme, width in (("light", 1280), ("dark", 1280), ("light", 390)):
            window = visitor.window(scheme=scheme, width=width)
            window.goto(path)
            expect(window.get_by_text("for-a-token").first).to_be_attached()
            assert window.evaluate(OVERFLOW) <= 0, path


def test_the_calls_of_a_tool_set_are_found_from_its_page(page: Page, visitor: Visitor) -> None:
    page.goto("/admin/roster/toolset/")
    page.get_by_role("link", name="busy").click()
    page.get_by_role("link", name="All calls at this address").click()
    expect(page.get_by_label("Tool set")).to_have_value("busy")
    rows = page.get_by_role("region", name="Calls, newest first").get_by_role("row")
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_contain_text("Gateway, busy")
    list_page = page.url
    rows.nth(1).get_by_role("link").first.click()
    expect(page.get_by_role("link", name="busy", exact=True)).to_be_visible()
    for path in (list_page, page.url):
        for scheme, width in (("light", 1280), ("dark", 1280), ("light", 390)):
            window = visitor.window(scheme=scheme, width=width)
            window.goto(path)
            expect(window.get_by_text("busy").first).to_be_attached()
            assert window.evaluate(OVERFLOW) <= 0, path


def test_one_click_leaves_the_tools_in_a_set_that_were_called(page: Page, visitor: Visitor) -> None:
    page.goto("/admin/roster/toolset/")
    page.get_by_role("link", name="trimmed").click()
    page.get_by_role("link", name="The cost of these tools").click()
    expect(page.get_by_role("row")).to_have_count(3)
    for scheme, width in (("light", 1280), ("dark", 1280), ("light", 390)):
        window = visitor.window(scheme=scheme, width=width)
        window.goto(page.url)
        expect(window.get_by_text("was not called in the last 30 days")).to_be_visible()
        assert window.evaluate(OVERFLOW) <= 0
    page.get_by_role("button", name="Keep only the 1 tool that was called").click()
    expect(page.get_by_text("trimmed now has the 1 tool that was called.")).to_be_visible()
    expect(page.get_by_role("row")).to_have_count(2)


def test_the_links_that_add_the_hall_to_an_editor_have_the_new_token(page: Page) -> None:
    page.goto("/admin/roster/token/add/")
    page.get_by_role("button", name="Save", exact=True).click()
    token = page.locator(".messagelist code.token").inner_text()
    page.get_by_text("VS Code", exact=True).click()
    link = page.get_by_role("link", name="Add to VS Code").get_attribute("href")
    assert link is not None
    assert json.loads(unquote(link.split("?", 1)[1]))["headers"] == {"Authorization": f"Bearer {token}"}
    page.get_by_text("Cursor", exact=True).click()
    link = page.get_by_role("link", name="Add to Cursor").get_attribute("href")
    assert link is not None
    config = base64.b64decode(parse_qs(urlsplit(link).query)["config"][0])
    assert json.loads(config)["headers"] == {"Authorization": f"Bearer {token}"}


def test_the_members_of_a_token_are_searched_and_chosen_ones_stay(page: Page, hall: BrowserHall) -> None:
    hall.run(MANY_MEMBERS)
    page.goto("/admin/roster/token/add/")
    page.get_by_role("button", name="Save", exact=True).click()
    choices = page.locator("#member-choices label:visible")
    expect(choices).to_have_count(14)
    page.get_by_label("many-3", exact=True).check()
    page.get_by_label("Find a member").fill("many 1")
    expect(choices).to_have_count(4)  # many-1, many-10, many-11, and the chosen one
    expect(page.get_by_label("many-3", exact=True)).to_be_checked()
    expect(page.locator("#config-agent-sdk")).to_contain_text("?members=many-3")

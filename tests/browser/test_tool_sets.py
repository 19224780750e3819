"""A tool set is made in the browser, and its page shows what an agent sees, also on a phone."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.rig import BrowserHall, Visitor
from tests.browser.screens import OVERFLOW

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

ROWS = """
from roster.models import GuildMember, Tool
for name in ("notes", "files"):
    member = GuildMember.objects.create(name=name, directory=name)
    for position, tool in enumerate(("add", "find")):
        Tool.objects.create(member=member, name=tool, position=position,
                            definition={"name": tool, "description": f"The tool {tool} as the member describes it."})
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

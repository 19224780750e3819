"""The page of a member in a browser: a crash with its cause, the tools, and the growing log."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.rig import BrowserHall, Visitor, set_reload_marker, set_visibility, was_reloaded

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

EVIL = "<img src=x onerror=alert(1)>"
TOOLS = [{"name": name, "description": f"Does {name}.", "inputSchema": {"type": "object"}} for name in "abcdefgh"]


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> BrowserHall:
    new_hall.add_stage("mortal", {"tools": TOOLS}, restart="never")
    new_hall.add_stage("writer", {"tools": TOOLS})
    new_hall.bring_up("mortal", "writer")
    return new_hall


def open_page(page: Page, name: str) -> None:
    page.goto("/admin/")
    page.get_by_role("link", name=name, exact=True).click()
    expect(page.locator(".member-state").get_by_text("connected", exact=True)).to_be_visible()
    set_reload_marker(page)


def lines(page: Page) -> Locator:
    return page.locator("#log-lines > div:not([hidden])")


def log_of(hall: BrowserHall, name: str) -> Path:
    return hall.data_dir / "logs" / f"{name}.log"


def write(hall: BrowserHall, *texts: str) -> None:
    """Append to the log as the member `writer` would. The runtime has the file open for appending too."""
    with log_of(hall, "writer").open("a") as file:
        file.write("".join(f"{text}\n" for text in texts))


def distance_to_end(page: Page) -> float:
    script = "(box) => box.scrollHeight - box.scrollTop - box.clientHeight"
    return float(page.locator("#log-lines").evaluate(script))


def test_a_crash_is_shown_with_its_cause_and_last_lines_and_restart_fixes_it(hall: BrowserHall, page: Page) -> None:
    open_page(page, "mortal")
    hall.call("mortal", "a")
    os.kill(hall.member("mortal")["pid"], signal.SIGKILL)
    fault = page.locator("#fault")
    expect(fault).to_contain_text("signal SIGKILL")
    expect(fault.locator("pre")).to_contain_text("called a")
    expect(fault).to_contain_text("What to do:")
    first = page.locator(".timeline li").first
    expect(first).to_contain_text("connected →")
    expect(first).to_contain_text("signal SIGKILL")
    first.get_by_text("Last lines of output").click()
    expect(first.locator("pre")).to_contain_text("called a")
    page.get_by_role("button", name="Restart", exact=True).click()
    expect(page.locator(".member-state").get_by_text("connected", exact=True)).to_be_visible()
    expect(fault).not_to_be_attached()
    assert not was_reloaded(page)


def test_a_call_is_in_the_list_of_the_member(hall: BrowserHall, page: Page) -> None:
    open_page(page, "writer")
    call = hall.call("writer", "b")
    row = page.locator(f"#call-{call['id']}")
    expect(row).to_contain_text("succeeded")
    row.get_by_role("link").first.click()
    expect(page).to_have_url(f"{hall.url}/admin/roster/call/{call['id']}/change/")


def test_tools_are_searched_and_disabled_without_a_reload(hall: BrowserHall, page: Page) -> None:
    open_page(page, "writer")
    page.get_by_role("searchbox", name="Search the tools of this member").fill("does g")
    expect(page.locator("#tool-rows > .row:visible")).to_have_count(1)
    page.get_by_role("button", name="Disable g").click()
    expect(page.get_by_role("button", name="Enable g")).to_be_visible()
    expect(page.get_by_role("link", name="Call g")).not_to_be_attached()
    expect(page.locator("#tool-rows > .row:visible")).to_have_count(1)
    page.get_by_role("button", name="Enable g").click()
    expect(page.get_by_role("link", name="Call g")).to_be_visible()
    assert not was_reloaded(page)


def test_the_log_is_followed_and_stays_where_the_reader_scrolled(hall: BrowserHall, page: Page) -> None:
    write(hall, *(f"earlier {number}" for number in range(300)))
    open_page(page, "writer")
    write(hall, "\x1b[31mred\x1b[0m", EVIL)
    expect(lines(page).last).to_have_text(EVIL)
    expect(lines(page).nth(-2)).to_have_text("red")
    assert distance_to_end(page) < 5
    page.locator("#log-lines").evaluate("(box) => { box.scrollTop = 0; }")
    write(hall, "while scrolled up")
    expect(lines(page).last).to_have_text("while scrolled up")
    assert page.locator("#log-lines").evaluate("(box) => box.scrollTop") == 0
    page.get_by_role("button", name="Go to end").click()
    write(hall, "at the end")
    expect(lines(page).last).to_have_text("at the end")
    assert distance_to_end(page) < 5
    assert not was_reloaded(page)


def test_the_log_is_followed_through_a_rotation(hall: BrowserHall, page: Page) -> None:
    write(hall, "before")
    open_page(page, "writer")
    expect(lines(page).last).to_have_text("before")
    write(hall, "the last of the old file")
    path = log_of(hall, "writer")
    path.rename(path.with_name(f"{path.name}.1"))
    write(hall, "the first of the new file")
    expect(lines(page).last).to_have_text("the first of the new file")
    expect(lines(page).nth(-2)).to_have_text("the last of the old file")


def test_the_log_is_filtered_while_the_user_types(hall: BrowserHall, page: Page) -> None:
    write(hall, *(f"{word} {number}" for number in range(20) for word in ("apple", "pear")))
    open_page(page, "writer")
    page.get_by_role("searchbox", name="Filter the lines of the log").fill("APPLE 1")
    expect(lines(page)).to_have_text([f"apple {number}" for number in (1, *range(10, 20))])
    write(hall, "pear 1000", "apple 1000")
    expect(lines(page).last).to_have_text("apple 1000")
    page.get_by_role("searchbox", name="Filter the lines of the log").fill("")
    expect(lines(page).nth(-2)).to_have_text("pear 1000")


def test_a_paused_log_continues_with_the_missed_lines(hall: BrowserHall, page: Page) -> None:
    open_page(page, "writer")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#log-state")).to_have_text("Paused")
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url) if "/log/" in request.url else None)
    write(hall, "while paused")
    with page.expect_response("**/parts/head/"):
        pass
    assert urls == []
    page.get_by_role("button", name="Follow").click()
    expect(lines(page).last).to_have_text("while paused")


def test_a_hidden_tab_does_not_request_the_log(hall: BrowserHall, visitor: Visitor) -> None:
    hidden_page, visible_page = visitor.window(), visitor.window()
    for page in (hidden_page, visible_page):
        open_page(page, "writer")
    set_visibility(hidden_page, visible=False)
    urls: list[str] = []
    hidden_page.on("request", lambda request: urls.append(request.url))
    write(hall, "while hidden")
    expect(lines(visible_page).last).to_have_text("while hidden")
    assert urls == []
    set_visibility(hidden_page, visible=True)
    expect(lines(hidden_page).last).to_have_text("while hidden")


def test_the_page_keeps_at_most_2000_lines(hall: BrowserHall, page: Page) -> None:
    open_page(page, "writer")
    for turn in range(5):
        write(hall, *(f"flood {turn} {number}" for number in range(600)))
        expect(lines(page).last).to_have_text(f"flood {turn} 599")
    assert page.locator("#log-lines > div").count() == 2000


def test_the_whole_log_can_be_downloaded(hall: BrowserHall, page: Page, tmp_path: Path) -> None:
    write(hall, "to be taken home")
    open_page(page, "writer")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    file = tmp_path / "log"
    download.value.save_as(file)
    assert download.value.suggested_filename == "writer.log"
    assert file.read_text().endswith("to be taken home\n")


def test_on_a_phone_the_recent_calls_do_not_scroll_sideways(hall: BrowserHall, page: Page) -> None:
    for _ in range(3):
        hall.call("writer", "b")
    page.set_viewport_size({"width": 390, "height": 844})
    open_page(page, "writer")
    rows = page.locator("#calls tbody tr")
    expect(rows.first).to_contain_text("succeeded")
    script = "(box) => [...box.querySelectorAll('*')].filter((part) => part.scrollWidth > box.clientWidth).length"
    assert page.locator("#calls").evaluate(script) == 0
    heights = rows.evaluate_all("(rows) => rows.map((row) => row.clientHeight)")
    assert max(heights) < 90  # three short lines

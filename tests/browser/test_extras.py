"""Prompts and resources of a member in a real browser: fill in, complete, read, watch, disable."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.browser.axe import check_page
from tests.browser.rig import BrowserHall, Visitor, press
from tests.browser.screens import OVERFLOW
from tests.conftest import ROOT, eventually

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

LIBRARY = ROOT / "tests" / "support" / "servers" / "library.py"
# As in library.py.
EVIL = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'><b class=injected>\"'bold"
HOURS, GUIDE = "library:///hours.md", "library:///cities/{city}/{season}"


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> BrowserHall:
    for name, options in (("library", {}), ("full", {"resources": 1_989})):
        folder = new_hall.add(name, timeout=3)
        shutil.copy(LIBRARY, folder / "server.py")
        (folder / "library.json").write_text(json.dumps(options))
    new_hall.bring_up("library", "full")
    for name in ("library", "full"):
        prompts = f"members/{name}/prompts/"
        eventually(lambda prompts=prompts: new_hall.api(prompts)["count"], what="the hall knows its lists")
    return new_hall


@pytest.fixture(scope="module")
def homes(hall: BrowserHall) -> dict[str, str]:
    """The pages of the members, by name."""
    rows = "dict(GuildMember.objects.values_list('name', 'pk'))"
    output = hall.run(f"import json; from roster.models import GuildMember; print(json.dumps({rows}))")
    ids = json.loads(output.splitlines()[-1])
    return {name: f"/admin/roster/guildmember/{pk}" for name, pk in ids.items()}


def is_unharmed(page: Page) -> bool:
    return page.evaluate("window.pwned") is None and page.locator(".injected").count() == 0


def ask(page: Page, button: str) -> None:
    press(page, button)
    expect(page.locator("#outcome-heading")).to_be_focused()


def test_a_prompt_is_filled_in_with_values_of_the_member_and_its_messages_are_shown(
    page: Page, homes: dict[str, str]
) -> None:
    page.goto(f"{homes['library']}/change/")
    page.get_by_role("link", name="Prompts 7").click()
    page.get_by_role("link", name="Open trip").click()
    city, season = page.get_by_role("combobox", name="City"), page.get_by_role("combobox", name="season")
    city.press_sequentially("a")
    expect(page.get_by_role("option")).to_have_text(["Amsterdam", "Antwerp", "Athens"])
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("option", selected=True)).to_have_text("Antwerp")
    page.keyboard.press("Enter")
    expect(city).to_have_value("Antwerp")
    expect(city).to_have_attribute("aria-expanded", "false")
    season.focus()
    page.get_by_role("option", name="autumn in Antwerp").click()
    page.keyboard.press("Control+Enter")
    messages = page.locator(".conversation > li")
    expect(messages).to_have_count(6)
    expect(messages.nth(0)).to_contain_text("Plan a trip to Antwerp in autumn in Antwerp.")
    expect(messages.nth(0).locator("strong")).to_have_text("Antwerp")
    expect(messages.nth(1).locator("img")).to_be_visible()
    expect(messages.nth(2).get_by_role("heading", name="Opening hours")).to_be_visible()
    expect(messages.nth(4).locator("audio")).to_be_visible()
    with page.expect_download() as download:
        messages.nth(0).get_by_role("button", name="Download").click()
    assert Path(download.value.path()).read_text().startswith("Plan a trip to **Antwerp**")
    messages.nth(5).get_by_role("link", name="data").click()
    ask(page, "Read")
    expect(page.locator("#outcome")).to_contain_text("Amsterdam")


def test_escape_closes_the_values_and_a_failed_completion_disturbs_nobody(
    visitor: Visitor, page: Page, homes: dict[str, str]
) -> None:
    visitor.faults.allow("500")
    page.goto(f"{homes['library']}/prompt/?name=trip")
    city = page.get_by_role("combobox", name="City")
    city.press_sequentially("b")
    expect(page.get_by_role("listbox")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("listbox")).to_be_hidden()
    page.route("**/complete/", lambda route: route.fulfill(status=500))
    city.press_sequentially("o")
    ask(page, "Get messages")
    expect(page.locator(".conversation")).to_contain_text("Plan a trip to bo")


def test_a_template_is_filled_in_and_its_resource_read(page: Page, homes: dict[str, str]) -> None:
    page.goto(f"{homes['library']}/template/?template={quote(GUIDE)}")
    page.get_by_label("city").fill("Bern")
    page.get_by_label("season").fill("all year")
    ask(page, "Read")
    expect(page.locator("#outcome")).to_contain_text("This is cities/Bern/all%20year.")
    page.get_by_role("link", name="library:///cities/Bern/all%20year").click()
    expect(page.get_by_role("button", name="Watch for updates")).to_be_visible()


def test_values_of_a_member_are_texts(page: Page, homes: dict[str, str]) -> None:
    page.goto(f"{homes['library']}/template/?template={quote('library:///search{?words,page}')}")
    page.get_by_label("words").press_sequentially("w")
    expect(page.get_by_role("option").first).to_have_text(EVIL)
    expect(page.locator(".suggestions-more").first).to_have_text("… of 301 values")
    assert is_unharmed(page)


def test_a_person_watches_a_resource_and_sees_its_update(hall: BrowserHall, page: Page, homes: dict[str, str]) -> None:
    page.goto(f"{homes['library']}/resource/?uri={quote(HOURS)}")
    press(page, "Watch for updates")
    updates = page.get_by_role("status", name="Updates")
    expect(updates).to_contain_text("No update since")
    hall.call("library", "touch", {"uri": HOURS})
    expect(updates).to_contain_text("Updated at")
    press(page, "Stop watching")
    expect(updates).to_be_empty()


def test_a_download_is_a_file_and_never_a_page(page: Page, homes: dict[str, str]) -> None:
    page.goto(f"{homes['library']}/resource/?uri={quote('library:///page.html')}")
    ask(page, "Read")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").first.click()
    assert download.value.suggested_filename == "page.html"
    assert Path(download.value.path()).read_text() == f"<html>{EVIL}</html>"
    assert is_unharmed(page)


@pytest.mark.parametrize(
    "path",
    [
        f"prompt/?name={quote(EVIL)}",
        f"resource/?uri={quote('library:///' + EVIL)}",
        "resource/?uri=library:///logo.svg",
        "resource/?uri=library:///page.html",
        "prompt/?name=fail",
        "prompt/?name=nonsense",
        "prompt/?name=huge",
        "prompt/?name=hang",
        "resource/?uri=library:///huge",
        "resource/?uri=library:///nowhere",
    ],
)
def test_a_hostile_or_broken_member_harms_no_page(page: Page, homes: dict[str, str], path: str) -> None:
    page.goto(f"{homes['library']}/{path}")
    ask(page, "Get messages" if path.startswith("prompt") else "Read")
    assert is_unharmed(page)
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate(OVERFLOW) <= 0


def test_two_thousand_resources_are_searched_and_paged(page: Page, homes: dict[str, str]) -> None:
    page.goto(f"{homes['full']}/change/?show=resources#tools")
    expect(page.locator("#extra-rows > li")).to_have_count(50)
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_text("51 to 100 of 2,000")).to_be_visible()
    page.get_by_role("searchbox", name="Search the resources").fill("book 1234")
    page.keyboard.press("Enter")
    expect(page.locator("#extra-rows > li")).to_have_count(1)
    expect(page.locator("#extra-rows")).to_contain_text("library:///books/1234.txt")


def test_an_operator_disables_a_resource_without_leaving_the_page(
    hall: BrowserHall, page: Page, homes: dict[str, str]
) -> None:
    page.goto(f"{homes['library']}/change/?show=resources#tools")
    name = "library:///map.png"
    press(page, f"Disable {name}")
    expect(page.get_by_role("button", name=f"Enable {name}")).to_be_visible()
    expect(page.get_by_text("Disabled the resource")).to_be_visible()
    names = {each["uri"] for each in hall.api("members/library/resources/")["resources"]}
    assert name not in names
    press(page, f"Enable {name}")
    expect(page.get_by_role("button", name=f"Disable {name}")).to_be_visible()


def test_links_in_results_of_tools_lead_to_the_hall(hall: BrowserHall, page: Page) -> None:
    call = hall.call("library", "links")
    page.goto(f"/admin/roster/call/{call['id']}/change/")
    links = page.locator(".result-link a")
    expect(links).to_have_count(3)
    for number in range(3):
        assert "/resource/?uri=" in str(links.nth(number).get_attribute("href"))
    links.first.click()
    expect(page.get_by_role("heading", name="Opening hours")).to_be_visible()


@pytest.mark.parametrize(
    "path", ["change/?show=prompts", "change/?show=resources", "prompt/?name=trip", f"resource/?uri={HOURS}"]
)
def test_the_pages_have_no_serious_accessibility_problems(visitor: Visitor, homes: dict[str, str], path: str) -> None:
    page = visitor.window(traced=False, bypass_csp=True)  # axe-core is a script with its own styles
    page.goto(f"{homes['library']}/{path}")
    if path.startswith("prompt"):
        page.get_by_label("City").fill("Rome")
        ask(page, "Get messages")
    assert {view: problems for view, problems in check_page(page).items() if problems} == {}


def test_without_scripts_the_form_loads_the_page_with_the_answer(visitor: Visitor, homes: dict[str, str]) -> None:
    page = visitor.window(java_script_enabled=False, traced=False)
    page.goto(f"{homes['library']}/prompt/?name=trip")
    page.get_by_label("City").fill("Rome")
    page.get_by_role("button", name="Get messages").click()
    expect(page.locator(".conversation")).to_contain_text("Plan a trip to Rome")
    expect(page.get_by_label("City")).to_have_value("Rome")

"""axe-core over every screen that links lead to, wide and narrow, light and dark."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser.rig import BrowserHall, Visitor
from tests.browser.screens import OVERFLOW, screens_of

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

AXE = (Path(__file__).parent / "axe.min.js").read_text()
# Django's own: the tooltip beside a choice of many, and the pairs of fields for date and time of its users' page.
DJANGOS = ".help-tooltip, form#user_form .datetime"
RUN = """async ([djangos, only]) => {
  const options = { resultTypes: ["violations"], ...(only ? { runOnly: { type: "rule", values: only } } : {}) };
  const found = (await axe.run({ exclude: [[djangos]] }, options)).violations;
  return found
    .filter((finding) => ["serious", "critical"].includes(finding.impact))
    .flatMap((finding) => finding.nodes.map((node) => `${finding.id}: ${node.target} ${node.html.slice(0, 150)}`));
}"""
# A colour that is on its way from light to dark is nobody's choice.
STAND_STILL = """() => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync("*, ::before, ::after { transition: none !important; animation: none !important }");
  document.adoptedStyleSheets = [sheet];
}"""


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> BrowserHall:
    """Of each kind of row one, so that every screen has something to show."""
    new_hall.add("good", displayName="Good", description="Does as it is told.")
    new_hall.add("broken", "exit=3", restart="never", description="Ends at once.")
    new_hall.bring_up("good")
    new_hall.wait_for_status("broken", "error")
    new_hall.call("good", "echo", {"text": "hello"})
    new_hall.call("good", "fail")
    new_hall.api("members/good/tools/sleep/invoke/", method="POST", json={"arguments": {"seconds": 600}})
    new_hall.run("from django.contrib.auth.models import Group; Group.objects.create(name='staff')")
    return new_hall


def findings(page: Page, *, only: list[str] | None = None) -> list[str]:
    found: list[str] = page.evaluate(RUN, [DJANGOS, only])
    return found


def test_every_screen_fits_a_phone_and_has_no_serious_findings_wide_or_narrow_light_or_dark(
    hall: BrowserHall, visitor: Visitor
) -> None:
    page = visitor.window(traced=False, bypass_csp=True)  # axe-core is a script with styles of its own
    found: dict[str, list[str]] = {}
    for screen in screens_of(hall):
        for how, findings_there in findings_of(page, screen).items():
            for finding in findings_there:
                found.setdefault(finding, []).append(f"{screen} {how}")
    told = [f"{finding}\n    {len(places)} times, first at {places[0]}" for finding, places in found.items()]
    assert not told, "\n".join(told)


def test_on_a_phone_the_way_to_call_a_tool_is_in_the_window(hall: BrowserHall, visitor: Visitor) -> None:
    page = visitor.window()
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto("/admin/roster/tool/")
    box = page.locator(".field-call a").first.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 390


@pytest.mark.parametrize(
    ("model", "tells"),
    [
        ("call", [".calls-number", ".status", ".calls-tool", ".calls-requester", ".calls-age", ".calls-duration"]),
        (
            "token",
            [".field-beginning", ".status", ".field-name", ".field-user", ".field-scope_text", ".field-last_used"],
        ),
    ],
)
def test_on_a_phone_rows_are_low_and_all_they_say_is_in_the_window(
    visitor: Visitor, model: str, tells: list[str]
) -> None:
    page = visitor.window()
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"/admin/roster/{model}/")
    row = page.locator("table:has(.action-select) tbody tr").last
    for selector in tells:
        box = row.locator(selector).bounding_box()
        assert box is not None, selector
        assert box["x"] >= 0, selector
        assert box["x"] + box["width"] <= 390, selector
    whole = row.bounding_box()
    assert whole is not None
    assert whole["height"] < 80


def findings_of(page: Page, screen: str) -> dict[str, list[str]]:
    """All rules for wide and narrow, and how colours stand out in light and dark."""
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(screen)
    page.evaluate(AXE)
    page.evaluate(STAND_STILL)
    seen = {"wide light": findings(page)}
    page.emulate_media(color_scheme="dark")
    seen["wide dark"] = findings(page, only=["color-contrast"])
    page.set_viewport_size({"width": 390, "height": 800})
    seen["narrow dark"] = findings(page)
    page.emulate_media(color_scheme="light")
    seen["narrow light"] = findings(page, only=["color-contrast"])
    page.set_viewport_size({"width": 360, "height": 740})
    seen["small phone"] = ["wider than the window"] if page.evaluate(OVERFLOW) > 0 else []
    return seen

"""axe-core over every screen that links lead to, wide and narrow, light and dark."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser.rig import BrowserHall, Visitor
from tests.browser.screens import OVERFLOW, screens_of

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

AXE = (Path(__file__).parent / "axe.min.js").read_text()
# Elements of Django: the tooltip beside a multiple choice, and the date and time fields of its page of a user.
DJANGO_ELEMENTS = ".help-tooltip, form#user_form .datetime"
RUN_AXE = """async ([excluded, only]) => {
  const options = { resultTypes: ["violations"], ...(only ? { runOnly: { type: "rule", values: only } } : {}) };
  const { violations } = await axe.run({ exclude: [[excluded]] }, options);
  return violations
    .filter(({ impact }) => ["serious", "critical"].includes(impact))
    .flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.target} ${node.html.slice(0, 150)}`));
}"""
# Without transitions, because a colour in the middle of a transition is not a real colour of the page.
STOP_ANIMATIONS = """() => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync("*, ::before, ::after { transition: none !important; animation: none !important }");
  document.adoptedStyleSheets = [sheet];
}"""


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> BrowserHall:
    """A hall with one row of each kind, so that no screen is empty."""
    new_hall.add("good", displayName="Good", description="Does as it is told.")
    new_hall.add("broken", "exit=3", restart="never", description="Ends at once.")
    new_hall.bring_up("good")
    new_hall.wait_for_status("broken", "error")
    new_hall.call("good", "echo", {"text": "hello"})
    new_hall.call("good", "fail")
    new_hall.api("members/good/tools/sleep/invoke/", method="POST", json={"arguments": {"seconds": 600}})
    new_hall.run("from django.contrib.auth.models import Group; Group.objects.create(name='staff')")
    return new_hall


def run_axe(page: Page, *, only: list[str] | None = None) -> list[str]:
    violations: list[str] = page.evaluate(RUN_AXE, [DJANGO_ELEMENTS, only])
    return violations


def test_every_screen_fits_a_phone_and_has_no_serious_accessibility_problems(
    hall: BrowserHall, visitor: Visitor
) -> None:
    page = visitor.window(traced=False, bypass_csp=True)  # axe-core is a script with its own styles
    screens_by_violation: dict[str, list[str]] = {}
    for screen in screens_of(hall):
        for view, violations in check_screen(page, screen).items():
            for violation in violations:
                screens_by_violation.setdefault(violation, []).append(f"{screen} {view}")
    problems = [
        f"{violation}\n    {len(screens)} times, first at {screens[0]}"
        for violation, screens in screens_by_violation.items()
    ]
    assert not problems, "\n".join(problems)


def test_on_a_phone_the_link_to_call_a_tool_is_in_the_window(hall: BrowserHall, visitor: Visitor) -> None:
    page = visitor.window()
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto("/admin/roster/tool/")
    box = page.locator(".field-call a").first.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 390


@pytest.mark.parametrize(
    ("model", "selectors"),
    [
        ("call", [".calls-number", ".status", ".calls-tool", ".calls-requester", ".calls-age", ".calls-duration"]),
        (
            "token",
            [".field-beginning", ".status", ".field-name", ".field-user", ".field-scope_text", ".field-last_used"],
        ),
    ],
)
def test_on_a_phone_rows_are_low_and_all_fields_are_in_the_window(
    visitor: Visitor, model: str, selectors: list[str]
) -> None:
    page = visitor.window()
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"/admin/roster/{model}/")
    row = page.locator("table:has(.action-select) tbody tr").last
    for selector in selectors:
        box = row.locator(selector).bounding_box()
        assert box is not None, selector
        assert box["x"] >= 0, selector
        assert box["x"] + box["width"] <= 390, selector
    row_box = row.bounding_box()
    assert row_box is not None
    assert row_box["height"] < 80


def check_screen(page: Page, screen: str) -> dict[str, list[str]]:
    """The violations of each view: all rules for wide and narrow windows, and the contrast in light and dark."""
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(screen)
    page.evaluate(AXE)
    page.evaluate(STOP_ANIMATIONS)
    violations = {"wide light": run_axe(page)}
    page.emulate_media(color_scheme="dark")
    violations["wide dark"] = run_axe(page, only=["color-contrast"])
    page.set_viewport_size({"width": 390, "height": 800})
    violations["narrow dark"] = run_axe(page)
    page.emulate_media(color_scheme="light")
    violations["narrow light"] = run_axe(page, only=["color-contrast"])
    page.set_viewport_size({"width": 360, "height": 740})
    violations["small phone"] = ["wider than the window"] if page.evaluate(OVERFLOW) > 0 else []
    return violations

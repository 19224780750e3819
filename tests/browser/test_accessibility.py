"""axe-core over every screen that links lead to, wide and narrow, light and dark."""

from __future__ import annotations

import pytest

from tests.browser.axe import check_screen
from tests.browser.rig import BrowserHall, Visitor
from tests.browser.screens import screens_of

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]


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

"""axe-core on a page, wide and narrow, light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from playwright.sync_api import Page

from tests.browser.screens import SIDEWAYS

AXE = (Path(__file__).parent / "axe.min.js").read_text()
# Elements of Django: the tooltip beside a multiple choice, and the date and time fields of its page of a user.
DJANGO_ELEMENTS = ".help-tooltip, form#user_form .datetime"
RUN_AXE = """async ([excluded, only]) => {
  const rules = { "target-size": { enabled: true } }; // places to click have at least 24 pixels
  const options = { resultTypes: ["violations"], rules, ...(only ? { runOnly: { type: "rule", values: only } } : {}) };
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


# Scripts hear of other colours before the next picture is drawn. The page of the API changes its own colours then.
DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def run_axe(page: Page, *, only: list[str] | None = None) -> list[str]:
    violations: list[str] = page.evaluate(RUN_AXE, [DJANGO_ELEMENTS, only])
    return violations


def check_screen(page: Page, screen: str) -> dict[str, list[str]]:
    """The violations of each view of the screen at this address."""
    page.goto(screen)
    return check_page(page)


def check_page(page: Page) -> dict[str, list[str]]:
    """The violations of each view: all rules for wide and narrow windows, and the contrast in light and dark.

    The window of the page needs `bypass_csp`, because axe-core is a script with its own styles.
    """
    _show_in(page, "light")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.evaluate(AXE)
    page.evaluate(STOP_ANIMATIONS)
    violations = {"wide light": run_axe(page)}
    _show_in(page, "dark")
    violations["wide dark"] = run_axe(page, only=["color-contrast"])
    page.set_viewport_size({"width": 390, "height": 800})
    violations["narrow dark"] = run_axe(page)
    _show_in(page, "light")
    violations["narrow light"] = run_axe(page, only=["color-contrast"]) + page.evaluate(SIDEWAYS)
    page.set_viewport_size({"width": 360, "height": 740})
    violations["small phone"] = page.evaluate(SIDEWAYS)
    return violations


def _show_in(page: Page, colours: Literal["light", "dark"]) -> None:
    page.emulate_media(color_scheme=colours)
    page.evaluate(DRAWN)

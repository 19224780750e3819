"""The pictures of README and docs, made again: `make screenshots`.

The README shows a hall with the shipped members, one more member and a broken one. Calls of the last hour are written
into its rows, and the last calls are real. docs/components.md shows parts of the same hall. docs/first-server.md shows
another hall, which is like that of its reader.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.component_pictures import take_component_pictures
from tests.browser.rig import BrowserHall, Visitor, find_chromium, hall_in, launch_browser
from tests.conftest import ROOT

IMAGES = ROOT / "docs" / "images"
MAX_BYTES = 200_000
WIDTH = 1280
SHIPPED = ("example", "notes")
FORECAST = {
    "name": "forecast",
    "title": "Forecast",
    "description": "How the weather will be in a city, day by day.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "title": "City", "description": "As people there write it."},
            "days": {"type": "integer", "title": "Days", "minimum": 1, "maximum": 7, "default": 3},
            "unit": {"enum": ["celsius", "fahrenheit"], "title": "Unit", "default": "celsius"},
            "details": {
                "type": "object",
                "title": "Details",
                "properties": {
                    "wind": {"type": "boolean", "title": "Wind"},
                    "rain": {"type": "boolean", "title": "Rain"},
                },
            },
        },
        "required": ["city"],
    },
    "outputSchema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
SUNNY = {"min": 12, "max": 21, "sky": "clear", "rain": 0.05}
WEATHER = {
    "tools": [FORECAST, {"name": "stations", "title": "Stations", "inputSchema": {"type": "object"}}],
    "answers": {
        "forecast": {
            "result": {
                "content": [{"type": "text", "text": "**Lisbon**: sunny, 12 to 21 °C, a gentle breeze from the west."}],
                "structuredContent": {"city": "Lisbon", "unit": "celsius", "days": [SUNNY, {**SUNNY, "max": 23}]},
            }
        }
    },
}
MAILER = {"stderr": "smtplib.SMTPAuthenticationError: (535, b'the password is wrong')", "exit": 1}
# Rows of calls of the last hour. Some failed, and none is real.
HISTORY = """
import random
from datetime import timedelta
from django.utils import timezone
from mcp_runtime.calls import statistics
from roster.models import CallRollup, GuildMember, Hall, Call, Tool
random.seed(7)
now = timezone.now()
busy = {"example": 140, "notes": 60, "weather": 90}
rows = []
for member in GuildMember.objects.filter(name__in=busy):
    tools = list(member.tools.values_list("name", flat=True))
    for _ in range(busy[member.name]):
        began = now - timedelta(minutes=60 * random.random() ** 0.7 + 1)
        ended = began + timedelta(seconds=random.lognormvariate(-3, 1))
        failed = random.random() < 0.06
        rows.append(Call(
            member=member, tool_name=random.choice(tools), timeout=30, source=random.choice(["rest", "gateway"]),
            requester=random.choice(["ada", "grace", "admin"]), queued_at=began, started_at=began, finished_at=ended,
            status="failed" if failed else "succeeded", error_kind="tool" if failed else "",
            error_message="the tool failed" if failed else "", result=None if failed else {"content": []}))
Call.objects.bulk_create(sorted(rows, key=lambda row: row.queued_at))
CallRollup.objects.all().delete()
Hall.objects.update(rolled_up_until=None)
statistics.roll_up()
"""


def prepare_hall(hall: BrowserHall) -> None:
    for name in SHIPPED:
        shutil.copytree(ROOT / "guild-members" / name, hall.members_dir / name)
    hall.add_stage("weather", WEATHER, displayName="Weather", description="Forecasts from two hundred stations.")
    hall.add_stage("mailer", MAILER, restart="never", displayName="Mailer", description="Sends letters.")
    hall.bring_up(*SHIPPED, "weather")
    hall.wait_for_status("mailer", "error")
    hall.run(HISTORY)
    hall.call("example", "echo", {"text": "hello"})
    hall.call("example", "fail", {"message": "The cellar is flooded."})
    hall.call("notes", "add_note", {"text": "Water the plants."})
    hall.call("weather", "forecast", {"city": "Lisbon"})


def show_roster(page: Page) -> None:
    page.goto("/")
    expect(page.locator(".card")).to_have_count(4)


def show_runner(page: Page) -> None:
    page.goto("/")
    page.get_by_role("link", name="Weather", exact=True).click()
    page.get_by_role("link", name="Call forecast").click()
    page.get_by_role("textbox", name="City").fill("Lisbon")
    page.get_by_role("button", name="Call", exact=True).click()
    expect(page.get_by_role("region", name="Result").get_by_text("succeeded", exact=True)).to_be_visible()
    page.evaluate("scrollTo(0, 0)")


def show_calls(page: Page) -> None:
    page.goto("/admin/roster/call/")
    page.get_by_role("link", name="Plots").click()
    expect(page.locator("svg.plot")).to_be_visible()


# Each screen with the height of its window.
SCREENS = {"roster": (show_roster, 630), "runner": (show_runner, 1000), "calls": (show_calls, 1000)}


# docs/first-server.md ----------------------------------------------------------------------------------------------


def prepare_first_hall(hall: BrowserHall) -> None:
    for name in SHIPPED:
        shutil.copytree(ROOT / "guild-members" / name, hall.members_dir / name)
    hall.bring_up(*SHIPPED)
    result = hall.manage("new_member", "greeter")
    assert result.returncode == 0, result.stderr
    hall.wait_for_status("greeter", "connected")


def show_first_roster(page: Page) -> None:
    page.goto("/")
    expect(page.locator(".card")).to_have_count(3)
    expect(page.get_by_role("link", name="greeter", exact=True)).to_be_visible()


def show_first_call(page: Page) -> None:
    page.goto("/")
    page.get_by_role("link", name="greeter", exact=True).click()
    page.get_by_role("link", name="Call hello").click()
    page.get_by_role("textbox", name="name").fill("Ada")
    page.get_by_role("button", name="Call", exact=True).click()
    expect(page.get_by_role("region", name="Result").get_by_text("succeeded", exact=True)).to_be_visible()
    page.evaluate("scrollTo(0, 0)")


def show_first_calls(page: Page) -> None:
    page.goto("/admin/roster/call/")
    expect(page.get_by_role("cell", name="hello greeter")).to_be_visible()


FIRST_SCREENS = {
    "first-roster": (show_first_roster, 440),
    "first-call": (show_first_call, 700),
    "first-calls": (show_first_calls, 460),
}

Screens = Mapping[str, tuple[Callable[[Page], None], int]]


def take_screenshots(visitor: Visitor, screens: Screens, *schemes: str) -> None:
    for scheme in schemes:
        for name, (show, height) in screens.items():
            page = visitor.window(width=WIDTH, height=height, scheme=scheme, reduced_motion="reduce", traced=False)
            show(page)
            path = IMAGES / f"{name}{'-dark' if scheme == 'dark' else ''}.png"
            page.screenshot(path=path, animations="disabled")
            print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")
            assert path.stat().st_size < MAX_BYTES, path
    assert visitor.faults.unexpected() == []


@contextmanager
def visitor_of_new_hall(browser: Browser, prepare: Callable[[BrowserHall], None]) -> Iterator[Visitor]:
    with tempfile.TemporaryDirectory() as folder, hall_in(Path(folder)) as hall:
        prepare(hall)
        visitor = Visitor(browser, hall)
        yield visitor
        visitor.close()


def main() -> None:
    if not find_chromium():
        sys.exit("No Chromium: install it (Debian: apt-get install chromium) or name one in CHROMIUM.")
    with sync_playwright() as playwright:
        browser = launch_browser(playwright)
        with visitor_of_new_hall(browser, prepare_hall) as visitor:
            take_screenshots(visitor, SCREENS, "light", "dark")
            take_component_pictures(visitor, IMAGES)
        with visitor_of_new_hall(browser, prepare_first_hall) as visitor:
            take_screenshots(visitor, FIRST_SCREENS, "light")
        browser.close()


if __name__ == "__main__":
    main()

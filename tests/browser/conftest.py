"""One browser for all tests here, one hall for each module, and one window for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Error, Page, sync_playwright

from tests.browser.rig import BrowserHall, Visitor, hall_in, launch_browser, require_browser

FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.when == "call" and report.failed and (visitor := getattr(item, "funcargs", {}).get("visitor")):
        try:
            report.sections.append(("browser", f"saved in {visitor.save_evidence(item.nodeid.split('/')[-1])}"))
        except Error as error:
            report.sections.append(("browser", f"no screenshot could be saved: {error}"))
    return report


# Only for this package, because tests of other packages use the ORM, which does not work beside Playwright's loop.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    require_browser()
    with sync_playwright() as playwright:
        browser = launch_browser(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def new_hall(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserHall]:
    """A hall that is not started. The fixture `hall` of the module adds members and starts it."""
    with hall_in(tmp_path_factory.mktemp("hall")) as hall:
        yield hall


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> BrowserHall:
    """A hall with one good member. Modules that need other members define their own `hall`."""
    new_hall.add("good", displayName="Good", description="Does as it is told.")
    new_hall.bring_up("good")
    return new_hall


@pytest.fixture
def visitor(browser: Browser, hall: BrowserHall) -> Iterator[Visitor]:
    visitor = Visitor(browser, hall)
    yield visitor
    visitor.close()
    assert visitor.faults.unexpected() == []


@pytest.fixture
def page(visitor: Visitor) -> Page:
    """A window in which `admin` is logged in: 1280 x 900, light."""
    return visitor.window()

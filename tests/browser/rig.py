"""A hall and a browser as a user has them.

Tests here read pages and REST, but no rows. The hall has its own database, and Playwright's event loop runs in the
thread of the tests, where Django's ORM refuses to work.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Page,
    Playwright,
    Request,
    expect,
)

from tests.conftest import ROOT, eventually
from tests.support import machine
from tests.support.hall import Hall

STAGE = ROOT / "tests" / "support" / "servers" / "stage.py"
FAILURES = ROOT / "tests" / "browser" / "failures"
PASSWORD = "open sesame"
PATIENCE_SECONDS = 15.0  # of expect(), because machines that run tests are sometimes slow
# The first one has no window, and takes a sixth less time.
CHROMIUM_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
REPORT_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) => {
  console.error(`Content-Security-Policy: ${event.violatedDirective} forbids ${event.blockedURI} ${event.sample}`);
});
"""
# Traces of failures, with the page after each step, take a tenth of the time of all tests here.
TRACES = os.environ.get("TRACES") == "1"
# The browser resolves only the names of this machine, so it can load nothing from outside.
ARGUMENTS = ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"]

expect.set_options(timeout=PATIENCE_SECONDS * 1000)


def find_chromium() -> str:
    """The path of the browser, from the variable CHROMIUM or from PATH. Empty if there is none."""
    path = os.environ.get("CHROMIUM", "")
    return path or next(filter(None, map(shutil.which, CHROMIUM_NAMES)), "")


def launch_browser(playwright: Playwright) -> Browser:
    return playwright.chromium.launch(executable_path=find_chromium(), args=ARGUMENTS)


class BrowserHall(Hall):
    """A whole hall with its own SQLite file. Tests read its state over REST."""

    one_time_links: list[str]  # of an invitation and of a login, where a fixture has made them

    def environment(self, **more: str) -> dict[str, str]:
        own_values = {"DATABASE_URL": "", "REDIS_URL": "", "GUILD_HALL_ADMIN_PASSWORD": PASSWORD}
        return super().environment(**own_values, **more)

    def manage(self, *argv: str, timeout: float = 120, **options: Any) -> subprocess.CompletedProcess[str]:
        """With a long timeout, because browsers use most of a slow machine."""
        return super().manage(*argv, timeout=timeout, **options)

    def add_stage(self, name: str, stage: dict[str, Any], **manifest: Any) -> Path:
        """A member that `stage` controls, see tests/support/servers/stage.py."""
        folder = self.add(name, args=["stage.py", "${PORT}"], **manifest)
        shutil.copy(STAGE, folder / "stage.py")
        (folder / "stage.json").write_text(json.dumps(stage))
        return folder

    def bring_up(self, *names: str, **environment: str) -> None:
        """Start the hall, and wait until the web responds and these members are connected."""
        self.up(**environment)
        self.wait_for_web()
        for name in names:
            self.wait_for_status(name, "connected")

    def serve_web(self, **environment: str) -> None:
        """Start the web alone, without a runtime. The database must be prepared."""
        self.popen([sys.executable, "-m", "guildhall.web"], **environment)
        self.wait_for_web()

    def wait_for_web(self) -> None:
        def is_up() -> bool:
            assert all(process.poll() is None for process in self.processes), self.output()
            try:
                return requests.get(f"{self.url}/healthz", timeout=5).ok
            except requests.RequestException:
                return False

        eventually(is_up, within=60, what="the web responds")

    def api(self, path: str, *, method: str = "GET", **options: Any) -> Any:
        """The parsed response of REST to `admin`."""
        token = (self.data_dir / "local-token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", **options.pop("headers", {})}
        response = requests.request(method, f"{self.url}/api/{path}", headers=headers, timeout=30, **options)
        assert response.ok, f"{path}: {response.status_code} {response.text[:500]}"
        return response.json()

    def member(self, name: str) -> dict[str, Any]:
        row: dict[str, Any] = self.api(f"members/{name}/")
        return row

    def wait_for_status(self, name: str, *statuses: str) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while (current := self.statuses()).get(name) not in statuses:
            assert time.monotonic() < deadline, (
                f"{name} is {' or '.join(statuses)}: no; {current}\n{self.output()[-5000:]}"
            )
            time.sleep(0.1)
        return self.member(name)

    def statuses(self) -> dict[str, str]:
        return {member["name"]: member["status"] for member in self.api("roster/")["members"]}

    def call(self, name: str, tool: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a tool and wait for its outcome."""
        path, body = f"members/{name}/tools/{tool}/invoke/", {"arguments": arguments or {}}
        row: dict[str, Any] = self.api(path, method="POST", json=body, headers={"Prefer": "wait=30"})
        return row

    def run(self, script: str) -> str:
        """Run a Python script that can use the rows of the hall, in a new process. Returns its output."""
        result = self.manage("shell", "--verbosity=0", "-c", script)
        assert result.returncode == 0, result.stderr
        return result.stdout

    @functools.cached_property
    def login_cookies(self) -> list[Any]:
        """The cookies of a browser in which `admin` is logged in. Contexts that begin logged in use them."""
        with requests.Session() as session:
            page = session.get(f"{self.url}/admin/login/", timeout=30)
            field = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text)
            assert field, page.text
            form = {"username": "admin", "password": PASSWORD, "csrfmiddlewaretoken": field[1], "next": "/admin/"}
            response = session.post(
                page.url, data=form, headers={"Origin": self.url}, timeout=30, allow_redirects=False
            )
            assert response.status_code == 302, response.text
            return [{"name": cookie.name, "value": cookie.value, "url": self.url} for cookie in session.cookies]


class Faults:
    """Console errors, exceptions, violations of the policy, and requests to other hosts. No page may have any."""

    def __init__(self) -> None:
        self._faults: list[str] = []
        self._allowed: list[re.Pattern[str]] = []

    def allow(self, pattern: str) -> None:
        """Faults that the test provokes itself, e.g. the 400 that Chromium writes into the console."""
        self._allowed.append(re.compile(pattern))

    def listen(self, context: BrowserContext, home: str) -> None:
        context.add_init_script(REPORT_VIOLATIONS)
        context.on("console", self._on_console)
        context.on("weberror", lambda error: self._faults.append(f"exception: {error.error}"))
        context.on("request", lambda request: self._on_request(request, home))
        context.on("page", lambda page: page.on("crash", lambda: self._faults.append(f"the page crashed: {page.url}")))

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._faults.append(f"console: {message.text} ({message.location.get('url', '')})")

    def _on_request(self, request: Request, home: str) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob", "about") and address.netloc != urlsplit(home).netloc:
            self._faults.append(f"a request to elsewhere: {request.url[:200]}")

    def unexpected(self) -> list[str]:
        return [fault for fault in self._faults if not any(allowed.search(fault) for allowed in self._allowed)]


def until(page: Page, condition: Callable[[], object], *, within: float = PATIENCE_SECONDS, what: str = "") -> None:
    """Wait for a condition that the page does not show. Unlike `eventually`, this handles events of the page."""
    deadline = time.monotonic() + machine.patience(within)
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within} s: {what or condition}")
        page.wait_for_timeout(20)


def press(page: Page, button: str) -> None:
    """Use a button as people without a mouse do."""
    control = page.get_by_role("button", name=button, exact=True)
    control.focus()
    page.keyboard.press("Enter")


def transferred_bytes(page: Page, path: str) -> int:
    """The transferred bytes of the page and all its files, headers included, without a cache."""
    weights: list[int] = []
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.send("Network.clearBrowserCache")
    session.on("Network.loadingFinished", lambda event: weights.append(int(event["encodedDataLength"])))
    page.goto(path, wait_until="load")
    session.detach()
    return sum(weights)


class Visitor:
    """Opens browser windows on one hall. Saves evidence if a test fails."""

    def __init__(self, browser: Browser, hall: BrowserHall) -> None:
        self.browser, self.hall = browser, hall
        self.faults = Faults()
        self.contexts: list[BrowserContext] = []

    def window(
        self,
        *,
        width: int = 1280,
        height: int = 900,
        scheme: str = "light",
        logged_in: bool = True,
        traced: bool = TRACES,
        **options: Any,
    ) -> Page:
        """A page in a new context. Sizes are in CSS pixels. A trace of many pages takes long."""
        context = self.browser.new_context(
            base_url=self.hall.url, viewport={"width": width, "height": height}, color_scheme=scheme, **options
        )
        context.set_default_timeout(PATIENCE_SECONDS * 1000)
        if traced:
            context.tracing.start(screenshots=False, snapshots=True, sources=False)
        self.faults.listen(context, self.hall.url)
        if logged_in:
            context.add_cookies(self.hall.login_cookies)
        self.contexts.append(context)
        return context.new_page()

    def save_evidence(self, name: str) -> Path:
        """Save screenshots and traces of all windows. `python -m playwright show-trace` shows a trace."""
        folder = FAILURES / re.sub(r"[^\w-]+", "-", name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for number, context in enumerate(self.contexts):
            for page in context.pages:
                page.screenshot(path=folder / f"{number}-{context.pages.index(page)}.png", timeout=5000)
            with suppress(Error):  # the context has no trace
                context.tracing.stop(path=folder / f"{number}-trace.zip")
        (folder / "hall.log").write_text(self.hall.output())
        return folder

    def close(self) -> None:
        for context in self.contexts:
            context.close()


@contextmanager
def hall_in(folder: Path) -> Iterator[BrowserHall]:
    hall = BrowserHall(folder)
    try:
        yield hall
    finally:
        hall.end()


def require_browser() -> None:
    """Without a browser skip the test, or fail it in CI, which has a browser."""
    if not find_chromium():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(
            "no Chromium: install it (Debian: apt-get install chromium) or name one in CHROMIUM"
        )


def set_reload_marker(page: Page) -> None:
    """Set a marker that a reload deletes."""
    page.evaluate("window.__not_reloaded = true")


def was_reloaded(page: Page) -> bool:
    return not page.evaluate("window.__not_reloaded === true")


def set_visibility(page: Page, *, visible: bool) -> None:
    """Hide or show the page, as a browser does with its tabs. Playwright itself keeps every page visible."""
    page.evaluate(
        """(visible) => {
          Object.defineProperty(document, "hidden", { configurable: true, get: () => !visible });
          const state = () => (visible ? "visible" : "hidden");
          Object.defineProperty(document, "visibilityState", { configurable: true, get: state });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        visible,
    )

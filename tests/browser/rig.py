"""A hall and a browser as a user has them.

Tests here look at pages and ask REST, never rows: the hall has a database of its own, and Playwright's event loop runs
in the thread of the tests, where Django's ORM refuses to work.
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
PATIENCE_SECONDS = 15.0  # of expect(): machines that run tests are slow at times
# First the one without a window of its own, which takes a sixth less time.
CHROMIUM_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TELL_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) => {
  console.error(`Content-Security-Policy: ${event.violatedDirective} forbids ${event.blockedURI} ${event.sample}`);
});
"""
# Traces of failures, with the page after each step, take a tenth of the time of all tests here.
TRACES = os.environ.get("TRACES") == "1"
# No name but this machine's is known to the browser, so nothing can come from outside.
ARGUMENTS = ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"]

expect.set_options(timeout=PATIENCE_SECONDS * 1000)


def chromium() -> str:
    """Where the browser is: the variable CHROMIUM, else what is installed; empty when there is none."""
    named = os.environ.get("CHROMIUM", "")
    return named or next(filter(None, map(shutil.which, CHROMIUM_NAMES)), "")


def launched(playwright: Playwright) -> Browser:
    return playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)


class BrowserHall(Hall):
    """A whole hall on a SQLite file of its own; what it says of itself is asked over REST."""

    def environment(self, **more: str) -> dict[str, str]:
        own = {"DATABASE_URL": "", "REDIS_URL": "", "GUILD_HALL_ADMIN_PASSWORD": PASSWORD}
        return super().environment(**own, **more)

    def manage(self, *argv: str, timeout: float = 120, **options: Any) -> subprocess.CompletedProcess[str]:
        """Browsers leave little of a slow machine to others."""
        return super().manage(*argv, timeout=timeout, **options)

    def add_stage(self, name: str, stage: dict[str, Any], **manifest: Any) -> Path:
        """A member that plays what `stage` says, see tests/support/servers/stage.py."""
        folder = self.add(name, args=["stage.py", "${PORT}"], **manifest)
        shutil.copy(STAGE, folder / "stage.py")
        (folder / "stage.json").write_text(json.dumps(stage))
        return folder

    def bring_up(self, *names: str, **environment: str) -> None:
        """The web answers, and these members are connected."""
        self.up(**environment)
        self.wait_for_web()
        for name in names:
            self.wait_for_status(name, "connected")

    def serve_web(self) -> None:
        """The web alone, on a database that is prepared; no runtime."""
        self.popen([sys.executable, "-m", "guildhall.web"])
        self.wait_for_web()

    def wait_for_web(self) -> None:
        def answers() -> bool:
            assert all(process.poll() is None for process in self.processes), self.output()
            try:
                return requests.get(f"{self.url}/healthz", timeout=5).ok
            except requests.RequestException:
                return False

        eventually(answers, within=60, what="the web answers")

    def api(self, path: str, *, method: str = "GET", **options: Any) -> Any:
        """What REST answers to `admin`, parsed."""
        token = (self.data_dir / "local-token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", **options.pop("headers", {})}
        answer = requests.request(method, f"{self.url}/api/{path}", headers=headers, timeout=30, **options)
        assert answer.ok, f"{path}: {answer.status_code} {answer.text[:500]}"
        return answer.json()

    def member(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api(f"members/{name}/")
        return found

    def wait_for_status(self, name: str, *statuses: str) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while (found := self.statuses()).get(name) not in statuses:
            assert time.monotonic() < deadline, (
                f"{name} is {' or '.join(statuses)}: no; {found}\n{self.output()[-5000:]}"
            )
            time.sleep(0.1)
        return self.member(name)

    def statuses(self) -> dict[str, str]:
        return {member["name"]: member["status"] for member in self.api("roster/")["members"]}

    def call(self, name: str, tool: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a tool and wait for the end, however it ends."""
        path, body = f"members/{name}/tools/{tool}/invoke/", {"arguments": arguments or {}}
        ended: dict[str, Any] = self.api(path, method="POST", json=body, headers={"Prefer": "wait=30"})
        return ended

    def run(self, script: str) -> str:
        """Python with the hall's rows at hand, in a process of its own; what it prints."""
        done = self.manage("shell", "--verbosity=0", "-c", script)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @functools.cached_property
    def login_cookies(self) -> list[Any]:
        """Of a browser in which `admin` has logged in, for contexts that begin logged in."""
        with requests.Session() as session:
            page = session.get(f"{self.url}/admin/login/", timeout=30)
            field = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text)
            assert field, page.text
            form = {"username": "admin", "password": PASSWORD, "csrfmiddlewaretoken": field[1], "next": "/admin/"}
            answer = session.post(page.url, data=form, headers={"Origin": self.url}, timeout=30, allow_redirects=False)
            assert answer.status_code == 302, answer.text
            return [{"name": cookie.name, "value": cookie.value, "url": self.url} for cookie in session.cookies]


class Faults:
    """What no page may do: errors in the console, exceptions, violations of the policy, requests to elsewhere."""

    def __init__(self) -> None:
        self._seen: list[str] = []
        self._allowed: list[re.Pattern[str]] = []

    def allow(self, pattern: str) -> None:
        """Faults that the test provokes itself, e.g. the 400 that Chromium writes into the console."""
        self._allowed.append(re.compile(pattern))

    def listen(self, context: BrowserContext, home: str) -> None:
        context.add_init_script(TELL_VIOLATIONS)
        context.on("console", self._on_console)
        context.on("weberror", lambda error: self._seen.append(f"exception: {error.error}"))
        context.on("request", lambda request: self._on_request(request, home))
        context.on("page", lambda page: page.on("crash", lambda: self._seen.append(f"the page crashed: {page.url}")))

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._seen.append(f"console: {message.text} ({message.location.get('url', '')})")

    def _on_request(self, request: Request, home: str) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob", "about") and address.netloc != urlsplit(home).netloc:
            self._seen.append(f"a request to elsewhere: {request.url[:200]}")

    def unexpected(self) -> list[str]:
        return [fault for fault in self._seen if not any(allowed.search(fault) for allowed in self._allowed)]


def until(page: Page, condition: Callable[[], object], *, within: float = PATIENCE_SECONDS, what: str = "") -> None:
    """Wait for what the page itself does not show; unlike with `eventually`, its events keep coming in."""
    deadline = time.monotonic() + machine.patience(within)
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within} s: {what or condition}")
        page.wait_for_timeout(20)


def transferred(page: Page, path: str) -> int:
    """Bytes on the wire until the page and all it names are there, headers included, for who has nothing of it yet."""
    weights: list[int] = []
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.send("Network.clearBrowserCache")
    session.on("Network.loadingFinished", lambda event: weights.append(int(event["encodedDataLength"])))
    page.goto(path, wait_until="load")
    session.detach()
    return sum(weights)


class Visitor:
    """Opens browsers' windows on one hall, and keeps what is needed to see why a test failed."""

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

    def keep_evidence(self, name: str) -> Path:
        """Screenshots and traces of all windows; `python -m playwright show-trace` shows a trace."""
        folder = FAILURES / re.sub(r"[^\w-]+", "-", name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for number, context in enumerate(self.contexts):
            for page in context.pages:
                page.screenshot(path=folder / f"{number}-{context.pages.index(page)}.png", timeout=5000)
            with suppress(Error):  # it was not traced
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
    """Without one the tests are skipped at home; in CI, which has one, they fail."""
    if not chromium():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(
            "no Chromium: install it (Debian: apt-get install chromium) or name one in CHROMIUM"
        )


def mark(page: Page) -> None:
    """What a reload would wipe away."""
    page.evaluate("window.__not_reloaded = true")


def was_reloaded(page: Page) -> bool:
    return not page.evaluate("window.__not_reloaded === true")


def show(page: Page, *, visible: bool) -> None:
    """As the browser does when another tab comes to the front. Playwright itself keeps every page visible."""
    page.evaluate(
        """(visible) => {
          Object.defineProperty(document, "hidden", { configurable: true, get: () => !visible });
          const state = () => (visible ? "visible" : "hidden");
          Object.defineProperty(document, "visibilityState", { configurable: true, get: state });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        visible,
    )

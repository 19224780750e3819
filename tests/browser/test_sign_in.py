"""A client that signs in with a browser, as its person sees it: three clicks, and the tools are listed."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
import requests
from playwright.sync_api import Page, expect

from tests.browser.axe import check_screen
from tests.browser.rig import PASSWORD, BrowserHall, Visitor, until
from tests.conformance import suite
from tests.conftest import ROOT
from tests.support import machine
from tests.support.ports import free_range
from tests.support.real_servers import NODE, SERVERS, SUITE
from tests.support.sign_in import challenge_of

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> BrowserHall:
    new_hall.add("good", displayName="Good", description="Does as it is told.")
    new_hall.add("other")
    new_hall.bring_up("good", "other")
    return new_hall


class SigningClient:
    """A client of the SDK in a process, and what it says."""

    def __init__(self, *program: str) -> None:
        self.process = subprocess.Popen(
            program,
            cwd=ROOT,
            env={**os.environ, "SDK_ROOT": str(SUITE)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(json.loads(line))

    def next_line(self, page: Page) -> dict[str, Any]:
        until(page, lambda: not self.lines.empty() or self.process.poll() is not None, within=60, what="a line")
        if self.lines.empty():
            assert self.process.stderr is not None
            pytest.fail(f"the client ended: {self.process.stderr.read()[-3000:]}")
        return self.lines.get()

    def says(self, key: str, page: Page) -> Any:
        """The next value with this key."""
        while key not in (line := self.next_line(page)):
            pass
        return line[key]

    def list_again(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("again\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def log_in_at(page: Page, address: str) -> None:
    """Open the address of a client as somebody who is not logged in."""
    page.goto(address)
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()


@pytest.fixture
def client(hall: BrowserHall) -> Iterator[SigningClient]:
    url = f"http://localhost:{hall.gateway_port}/mcp"
    client = SigningClient(sys.executable, "-m", "tests.support.signing_client", url)
    yield client
    client.end()


def test_a_client_with_only_the_address_lists_tools_after_consent_until_it_is_revoked(
    hall: BrowserHall, visitor: Visitor, client: SigningClient
) -> None:
    visitor.faults.allow("a request to elsewhere: http://(localhost|127.0.0.1)")
    visitor.faults.allow(r"favicon")
    page = visitor.window(logged_in=False)
    log_in_at(page, client.says("open", page))

    expect(page.get_by_text("Test client")).to_be_visible()
    expect(page.get_by_text("Nobody has checked this name")).to_be_visible()
    page.get_by_label("Only some members").check()
    page.get_by_role("checkbox", name="good").check()
    page.get_by_role("button", name="Allow", exact=True).click()

    expect(page.get_by_text("You can close this page.")).to_be_visible()
    tools = client.says("tools", page)
    assert tools
    assert all(name.startswith("good__") for name in tools)

    (grant,) = [row for row in hall.api("tokens/")["results"] if row["name"] == "Test client"]
    assert (grant["scope"], grant["members"], grant["state"]) == ("members", ["good"], "good")
    hall.api(f"tokens/{grant['id']}/revoke/", method="POST")
    revoked_at = time.monotonic()
    line: dict[str, Any] = {}
    while "open" not in line:  # until it is refused, and asks its person again
        assert time.monotonic() < revoked_at + machine.patience(1), "it still has access"
        client.list_again()
        line = client.next_line(page)


def test_the_consent_has_no_serious_accessibility_problems_and_fits_a_phone(
    hall: BrowserHall, visitor: Visitor
) -> None:
    issuer, redirect = f"http://localhost:{hall.web_port}", "http://127.0.0.1/callback"
    body = {"client_name": "Client", "redirect_uris": [redirect]}
    client_id = requests.post(f"{issuer}/oauth/register", json=body, timeout=10).json()["client_id"]
    query = {"response_type": "code", "client_id": client_id, "redirect_uri": redirect}
    query |= {"code_challenge": challenge_of("v" * 50), "code_challenge_method": "S256"}
    page = visitor.window(traced=False, bypass_csp=True)  # axe-core is a script with its own styles
    problems = check_screen(page, f"/oauth/authorize?{urlencode(query)}")
    assert {view: found for view, found in problems.items() if found} == {}


def test_the_typescript_sdk_signs_in_for_the_address_of_one_member(hall: BrowserHall, visitor: Visitor) -> None:
    if not NODE.exists():
        pytest.skip(suite.HOW_TO_INSTALL)
    visitor.faults.allow("a request to elsewhere: http://(localhost|127.0.0.1)")
    visitor.faults.allow(r"favicon")
    page = visitor.window(logged_in=False)
    url = f"http://localhost:{hall.gateway_port}/mcp/good"
    client = SigningClient(str(NODE), str(SERVERS / "typescript_signing_client.mjs"), url, "echo")
    try:
        log_in_at(page, client.says("open", page))
        expect(page.get_by_text("TypeScript client")).to_be_visible()
        expect(page.get_by_label("All of the member good")).to_be_checked()
        page.get_by_role("button", name="Allow", exact=True).click()
        assert client.says("result", page) == "hi"
    finally:
        client.end()
    (grant,) = [row for row in hall.api("tokens/")["results"] if row["name"] == "TypeScript client"]
    assert (grant["members"], grant["client"]["address"]) == (["good"], url)


def test_the_conformance_suite_finds_no_fault_in_the_authorization_server(hall: BrowserHall, visitor: Visitor) -> None:
    if not suite.is_installed():
        pytest.skip(suite.HOW_TO_INSTALL)
    visitor.faults.allow("a request to elsewhere: http://(localhost|127.0.0.1)")
    visitor.faults.allow(r"favicon")
    port = free_range(1)[0]
    issuer = f"http://localhost:{hall.web_port}"
    metadata = requests.get(f"{issuer}/.well-known/oauth-authorization-server", timeout=10).json()
    redirect = {"client_name": "Conformance", "redirect_uris": ["http://127.0.0.1/callback"]}
    client_id = requests.post(metadata["registration_endpoint"], json=redirect, timeout=10).json()["client_id"]
    page = visitor.window(logged_in=False)
    program = [str(suite.NODE), str(suite.SUITE), "authorization", "--url", issuer, "--client-id", client_id]
    with subprocess.Popen([*program, "--port", str(port)], stdout=subprocess.PIPE, text=True) as process:
        try:
            lines: list[str] = []
            reader = threading.Thread(target=lambda: lines.extend(iter(process.stdout.readline, "")), daemon=True)  # type: ignore[union-attr]
            reader.start()
            until(page, lambda: any("/oauth/authorize?" in line for line in lines), within=60, what="the suite asks")
            log_in_at(page, next(line.strip() for line in lines if "/oauth/authorize?" in line))
            page.get_by_role("button", name="Allow", exact=True).click()
            until(page, lambda: process.poll() is not None, within=60, what="the suite ends")
        finally:
            process.kill()
    reader.join(10)
    output = "".join(lines)
    assert process.returncode == 0, output
    assert "authorization-code-grant" in output
    assert "FAILURE" not in output

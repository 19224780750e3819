"""Clients of other authors sign in, as their people see it: nobody copies a token, and three clicks lead to the tools.

Each client lists the tools and calls one. After its access token ended, it goes on without a click. After somebody
revoked its grant, it signs in again.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

import pytest
from playwright.sync_api import Page, expect

from tests.browser.rig import PASSWORD, BrowserHall, Visitor, until
from tests.conftest import ROOT
from tests.support.member_process import free_port
from tests.support.opened import OpenedAddresses
from tests.support.real_servers import NODE, SERVERS, SUITE

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

MODULES = SUITE / "node_modules"
REMOTE = MODULES / "mcp-remote" / "dist" / "proxy.js"
INSPECTOR = MODULES / "@modelcontextprotocol" / "inspector" / "clients" / "cli" / "build" / "index.js"


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> BrowserHall:
    new_hall.add("good", displayName="Good", description="Does as it is told.")
    # Claude Code publishes a description of itself, which a hall without internet cannot fetch. Then it registers.
    more = {"DJANGO_SETTINGS_MODULE": "tests.support.short_tokens", "GUILD_HALL_SIGN_IN_PUBLISHED": "0"}
    new_hall.bring_up("good", **more)
    return new_hall


@pytest.fixture(autouse=True)
def end_of_grants(hall: BrowserHall) -> Iterator[None]:
    """No test sees the grants of another, also if it failed."""
    yield
    for grant in active_grants(hall):
        hall.api(f"tokens/{grant['id']}/revoke/", method="POST")


class SigningClient(Protocol):
    """A client. Each `use` lists the tools and calls `echo`, and signs in if it must."""

    def use(self) -> None: ...

    def opened(self) -> list[str]:
        """All addresses that it opened in a browser."""

    def uses(self) -> list[tuple[list[str], str]]:
        """The tools and the result of each use that has ended. Fails if the client failed."""

    def end(self) -> None: ...


class Running:
    """A program that goes on, and uses the tools for each line that it reads."""

    def __init__(self, folder: Path, *program: str) -> None:
        self._addresses = OpenedAddresses(folder / "opened")
        self._program = program
        self._environment = clean_environment(folder, self._addresses)
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._lines: list[dict[str, Any]] = []

    def use(self) -> None:
        if self._process is None:
            self._process = start(self._program, self._environment)
            self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
            self._reader.start()
            return
        assert self._process.stdin is not None
        self._process.stdin.write("again\n")
        self._process.stdin.flush()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.append(json.loads(line))
        self._lines.append({"error": f"it ended: {errors_of(self._environment).read_text()[-3000:]}"})

    def opened(self) -> list[str]:
        return [*self._addresses(), *(line["open"] for line in list(self._lines) if "open" in line)]

    def uses(self) -> list[tuple[list[str], str]]:
        lines = list(self._lines)
        assert not [line for line in lines if "error" in line], lines
        tools = [line["tools"] for line in lines if "tools" in line]
        return list(zip(tools, [line["result"] for line in lines if "result" in line], strict=False))

    def end(self) -> None:
        if self._process is not None:
            end(self._process, self._reader)


class Commands:
    """A client that is a command for each thing. `use` runs them all, one after the other.

    `read` makes the tools and the result of a call from their outputs.
    """

    def __init__(
        self, folder: Path, commands: list[tuple[str, ...]], read: Callable[[list[str]], tuple[list[str], str]]
    ) -> None:
        self._addresses = OpenedAddresses(folder / "opened")
        self._environment = clean_environment(folder, self._addresses)
        self._commands, self._make_use = commands, read
        self._uses: queue.Queue[tuple[list[str], str] | BaseException] = queue.Queue()
        self._ended: list[tuple[list[str], str]] = []
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def use(self) -> None:
        self._reader = threading.Thread(target=self._run, daemon=True)
        self._reader.start()

    def _run(self) -> None:
        outputs = []
        try:
            for command in self._commands:
                self._process = start(command, self._environment)
                output = self._process.communicate(timeout=100)[0]
                errors = errors_of(self._environment).read_text()
                assert self._process.returncode == 0, f"{command}: {output[-1500:]} {errors[-1500:]}"
                outputs.append(output)
            self._uses.put(self._make_use(outputs))
        except (AssertionError, OSError, ValueError, LookupError, subprocess.TimeoutExpired) as error:
            self._uses.put(error)

    def opened(self) -> list[str]:
        return self._addresses()

    def uses(self) -> list[tuple[list[str], str]]:
        while not self._uses.empty():
            use = self._uses.get()
            if isinstance(use, BaseException):
                raise use
            self._ended.append(use)
        return self._ended

    def end(self) -> None:
        if self._process is not None:
            end(self._process, self._reader)


def clean_environment(folder: Path, addresses: OpenedAddresses) -> dict[str, str]:
    """What is set for real clients: a home of their own, and the browser that only writes down."""
    home = folder / "home"
    home.mkdir()
    private = {key: value for key, value in os.environ.items() if not key.startswith(("GUILD_HALL_", "ANTHROPIC_"))}
    # The Inspector otherwise opens a browser only from a terminal, and forgets tokens where there is no keychain.
    private |= {"MCP_AUTO_OPEN_ENABLED": "true", "MCP_INSPECTOR_SECRET_STORE": "file"}
    private |= {"HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config"), "SDK_ROOT": str(SUITE), "NO_COLOR": "1"}
    return {**private, **addresses.environment}


def start(program: tuple[str, ...], environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start the program with pipes, and with its errors in a file of its home."""
    with errors_of(environment).open("a") as errors:
        return subprocess.Popen(
            program,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )


def start_in_terminal(program: tuple[str, ...], environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start the program as if a person had, with its output in the file of its errors."""
    own, of_program = pty.openpty()
    process = subprocess.Popen(
        program,
        env=environment,
        stdin=of_program,
        stdout=of_program,
        stderr=of_program,
        text=True,
        start_new_session=True,
    )
    os.close(of_program)

    def read() -> None:
        with suppress(OSError), errors_of(environment).open("ab") as errors, open(own, "rb", buffering=0) as output:
            while text := output.read(4096):
                errors.write(text)
                errors.flush()

    threading.Thread(target=read, daemon=True).start()
    return process


def errors_of(environment: dict[str, str]) -> Path:
    return Path(environment["HOME"]) / "errors"


def end(process: subprocess.Popen[str], reader: threading.Thread | None = None) -> None:
    """Kill the program and all that it started, so that the thread that reads its output comes to an end."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
    if reader is not None:
        reader.join(10)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()


# The clients ------------------------------------------------------------------------------------------------------


def require(path: Path, how: str = "make conformance-suite") -> str:
    if not path.exists():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"{path.name} is not installed: {how}")
    return str(path)


def in_python(kind: str, folder: Path, url: str) -> SigningClient:
    return Running(folder, sys.executable, "-m", "tests.support.signing_client", url, kind)


def typescript_sdk(folder: Path, url: str) -> SigningClient:
    return Running(folder, require(NODE), str(SERVERS / "typescript_signing_client.mjs"), url)


def mcp_remote(folder: Path, url: str) -> SigningClient:
    relay = (require(NODE), require(REMOTE), url, "--auth-timeout", "100")
    return Running(folder, sys.executable, "-m", "tests.support.signing_client", url, "stdio", *relay)


def inspector(folder: Path, url: str) -> SigningClient:
    callback = f"http://127.0.0.1:{free_port()}/oauth/callback"
    command = (require(NODE), require(INSPECTOR), "--transport", "http", "--server-url", url, "--format", "json")
    command += ("--callback-url", callback)

    def read(outputs: list[str]) -> tuple[list[str], str]:
        tools, result = (json.loads(output) for output in outputs)
        tools, result = tools.get("result", tools), result.get("result", result)
        return [tool["name"] for tool in tools["tools"]], result["content"][0]["text"]

    call = ("--method", "tools/call", "--tool-name", "good__echo", "--tool-arg", "text=hi")
    return Commands(folder, [(*command, "--method", "tools/list"), (*command, *call)], read)


CLIENTS: dict[str, Callable[[Path, str], SigningClient]] = {
    "Python SDK": lambda folder, url: in_python("sdk", folder, url),
    "FastMCP": lambda folder, url: in_python("fastmcp", folder, url),
    "TypeScript SDK": typescript_sdk,
    "mcp-remote": mcp_remote,
    "Inspector": inspector,
}


# The person -------------------------------------------------------------------------------------------------------


class Person:
    """Somebody at a browser, whose clicks are counted."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0

    def press(self, name: str) -> None:
        self.clicks += 1
        self.page.get_by_role("button", name=name, exact=True).click()

    def connect(self, client: SigningClient) -> None:
        """Press what each client has for that, and follow to the page that it opens."""
        self.clicks += 1
        opened = len(client.opened())
        while len(client.opened()) == opened:  # until it is refused: a revocation takes up to half a second
            uses = len(client.uses())
            client.use()
            until(
                self.page,
                lambda uses=uses: len(client.opened()) > opened or len(client.uses()) > uses,
                within=60,
                what="a page opens",
            )
        self.page.goto(client.opened()[opened])

    def allow(self) -> None:
        if self.page.get_by_label("Password").is_visible():
            self.page.get_by_label("Username").fill("admin")
            self.page.get_by_label("Password").fill(PASSWORD)
            self.press("Log in")
        expect(self.page.get_by_role("button", name="Allow", exact=True)).to_be_visible()
        self.press("Allow")

    def sees_use(self, client: SigningClient, uses: int) -> None:
        """Wait for one use more than these, and check it."""
        until(self.page, lambda: len(client.uses()) > uses, within=90, what="the client used the tools")
        tools, result = client.uses()[uses]
        assert "good__echo" in tools
        assert result == "hi"


def active_grants(hall: BrowserHall) -> list[dict[str, Any]]:
    return [row for row in hall.api("tokens/?limit=100")["results"] if row.get("client") and row["state"] == "good"]


def let_access_tokens_end(hall: BrowserHall, page: Page) -> None:
    valid = "AccessToken.objects.filter(expires_at__gt=Now()).count()"
    script = f"from django.db.models.functions import Now; from roster.models import AccessToken; print({valid})"
    until(page, lambda: hall.run(script).strip() == "0", within=60, what="the access tokens ended")


@pytest.mark.parametrize("name", CLIENTS)
def test_a_real_client_needs_three_clicks_refreshes_by_itself_and_signs_in_again_when_it_is_revoked(
    name: str, hall: BrowserHall, visitor: Visitor, tmp_path: Path
) -> None:
    visitor.faults.allow("a request to elsewhere: ")
    visitor.faults.allow("Failed to load resource")  # pictures on the last page, which is of the client
    person = Person(visitor.window(logged_in=False))
    with ExitStack() as stack:
        client = CLIENTS[name](tmp_path, f"http://localhost:{hall.gateway_port}/mcp")
        stack.callback(client.end)
        person.connect(client)
        person.allow()
        person.sees_use(client, 0)
        assert person.clicks <= 3
        (grant,) = active_grants(hall)

        let_access_tokens_end(hall, person.page)
        opened = client.opened()
        client.use()
        person.sees_use(client, 1)
        assert client.opened() == opened, "it asks a person after its access token ended"
        assert [row["id"] for row in active_grants(hall)] == [grant["id"]]

        hall.api(f"tokens/{grant['id']}/revoke/", method="POST")
        person.connect(client)
        uses = len(client.uses())
        person.allow()
        person.sees_use(client, uses)
        (new,) = active_grants(hall)
        assert new["id"] != grant["id"]


def claude() -> str:
    """The program of Claude Code: the one on PATH, or the one that the Agent SDK brings (`make agent`)."""
    if path := shutil.which("claude"):
        return path
    found = importlib.util.find_spec("claude_agent_sdk")
    folder = Path(found.origin or "").parent if found else Path("claude_agent_sdk")
    return require(folder / "_bundled" / "claude", "make agent")


def test_claude_code_logs_in_with_a_browser_without_an_account_and_needs_to_again_when_it_is_revoked(
    hall: BrowserHall, visitor: Visitor, tmp_path: Path
) -> None:
    visitor.faults.allow("a request to elsewhere: ")
    visitor.faults.allow("Failed to load resource")  # pictures on the last page, which is of the client
    person = Person(visitor.window(logged_in=False))
    program, url = claude(), f"http://localhost:{hall.gateway_port}/mcp"
    addresses = OpenedAddresses(tmp_path / "opened")
    environment = clean_environment(tmp_path, addresses)

    def run(*arguments: str) -> str:
        answer = subprocess.run(
            [program, "mcp", *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
        return answer.stdout + answer.stderr

    run("add", "--scope", "user", "--transport", "http", "guild-hall", url)
    assert "Needs authentication" in run("list")
    login = start_in_terminal((program, "mcp", "login", "guild-hall"), environment)
    try:
        until(person.page, lambda: addresses() or login.poll() is not None, within=60, what="a page opens")
        assert addresses(), errors_of(environment).read_text()
        person.page.goto(addresses()[0])
        person.allow()
        until(person.page, lambda: login.poll() is not None, within=60, what="the login ends")
    finally:
        end(login)
    (grant,) = active_grants(hall)
    assert "Connected" in run("list")
    let_access_tokens_end(hall, person.page)
    assert "Connected" in run("list")
    hall.api(f"tokens/{grant['id']}/revoke/", method="POST")
    until(person.page, lambda: "Needs authentication" in run("list"), within=20, what="it must log in again")

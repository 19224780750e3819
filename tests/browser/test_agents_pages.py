"""Tokens and agents in a browser: configure a client, send messages to an agent, and stop it."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.rig import BrowserHall, Visitor, set_reload_marker, until, was_reloaded
from tests.support.servers.model import Model

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

AGENT_SECONDS = 60.0  # the agent's own program takes seconds to start
TOKEN = re.compile(r"gh_[\w-]{43}")


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model() as model:
        yield model


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall, model: Model, tmp_path_factory: pytest.TempPathFactory) -> BrowserHall:
    new_hall.add("good", description="Does as it is told.")
    new_hall.add("other")
    no_login = {"ANTHROPIC_AUTH_TOKEN": "", "CLAUDE_CODE_OAUTH_TOKEN": "", "CLAUDE_CONFIG_DIR": ""}
    home = str(tmp_path_factory.mktemp("home"))
    new_hall.bring_up(
        "good", "other", **no_login, ANTHROPIC_BASE_URL=model.url, ANTHROPIC_API_KEY="sk-sesame", HOME=home
    )
    return new_hall


# A token ----------------------------------------------------------------------------------------------------------


def test_a_new_token_is_in_the_configuration_of_each_client_until_a_reload(visitor: Visitor) -> None:
    page = visitor.window(permissions=["clipboard-read", "clipboard-write"])
    page.goto("/admin/roster/token/add/")
    expect(page.locator(".field-members")).to_be_hidden()
    page.get_by_label("Name").fill("laptop")
    page.get_by_role("button", name="Save", exact=True).click()
    token = page.locator("code.token").inner_text()
    assert TOKEN.fullmatch(token)
    expect(page.locator("#config-agent-sdk")).to_contain_text(token)
    page.get_by_text("Codex", exact=True).click()
    page.get_by_role("button", name="Copy the configuration for Codex").click()
    expect(page.locator("#copy-status")).to_have_text("Copied.")
    text = page.evaluate("navigator.clipboard.readText()")
    assert f"Bearer {token}" in text
    page.get_by_label("good", exact=True).check()
    expect(page.locator("#config-codex")).to_contain_text("/mcp?members=good")
    expect(page.locator("#config-codex")).to_contain_text(token)
    page.get_by_label("Directly to the endpoint of each member").check()
    expect(page.locator("#config-codex")).not_to_contain_text("members=good")
    expect(page.locator("#config-codex")).to_contain_text("[mcp_servers.good]")
    page.reload()
    expect(page.locator("#config-agent-sdk")).to_contain_text("gh_PUT_A_TOKEN_HERE")
    assert token not in page.content()


def test_a_token_in_search_mode_pins_tools(visitor: Visitor) -> None:
    page = visitor.window()
    page.goto("/admin/roster/token/add/")
    expect(page.locator(".field-pinned_tools")).to_be_hidden()
    page.get_by_label("Search mode").check()
    expect(page.locator(".field-pinned_tools")).to_be_visible()
    page.locator(".field-pinned_tools").get_by_label("good/echo").check()
    page.get_by_label("Search mode").uncheck()
    expect(page.locator(".field-pinned_tools")).to_be_visible()  # the form would refuse the choice
    page.get_by_label("Search mode").check()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("search mode: three tools that find and call all others, and good/echo")).to_be_visible()
    expect(page.locator(".cost")).to_contain_text("4 tools")


def test_without_a_clipboard_the_text_is_selected(hall: BrowserHall, page: Page) -> None:
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.add_init_script("document.execCommand = () => false")
    page.goto("/admin/roster/token/")
    page.locator("#result_list tbody th a").first.click()
    page.get_by_role("button", name="Copy the configuration for Claude Desktop").click()
    expect(page.locator("#copy-status")).to_contain_text("The text is selected.")
    assert "mcpServers" in page.evaluate("getSelection().toString()")


# An agent ---------------------------------------------------------------------------------------------------------


def needs_agent_sdk() -> None:
    if importlib.util.find_spec("claude_agent_sdk") is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("pip install -r requirements-agent.txt")


def create_agent(page: Page, prompt: str) -> None:
    page.goto("/admin/roster/agent/")
    page.get_by_role("link", name="New agent").first.click()  # an empty list has another one
    page.get_by_label("good: Does as it is told.").check()
    page.get_by_label("First message").fill(prompt)
    page.get_by_role("button", name="Create the agent").click()
    set_reload_marker(page)


def send(page: Page, prompt: str) -> None:
    page.get_by_label("Say to the agent").fill(prompt)
    page.get_by_label("Say to the agent").press("Control+Enter")
    expect(page.get_by_label("Say to the agent")).to_have_value("")


def test_one_page_sends_messages_to_an_agent_shows_its_transcript_and_stops_it(hall: BrowserHall, page: Page) -> None:
    needs_agent_sdk()
    until(page, lambda: hall.run(PRINT_PROBLEM).strip() == "", what="the runtime knows that agents can run")
    transcript, seconds = page.locator("#transcript"), AGENT_SECONDS * 1000
    create_agent(page, "say **bold** <img src=x onerror=alert(1)>")
    expect(transcript.locator("strong")).to_have_text("bold", timeout=seconds)
    expect(transcript.locator("img")).not_to_be_attached()
    expect(transcript.get_by_text("succeeded", exact=True)).to_be_visible(timeout=seconds)

    send(page, 'call echo {"text": "hello"}')
    call = transcript.locator("details.call")
    expect(call.get_by_text("succeeded", exact=True)).to_be_visible(timeout=seconds)
    call.locator("summary").first.click()
    expect(call.get_by_text('"hello"').first).to_be_visible()
    expect(transcript).to_contain_text("The tool said:", timeout=seconds)
    expect(call.get_by_text('"hello"').first).to_be_visible()  # still open, although there is more text

    send(page, "hang")
    stop = page.get_by_role("button", name="Stop the agent")
    expect(stop).to_be_visible(timeout=seconds)
    page.get_by_label("Say to the agent").fill("half a thought")
    stop.click()
    expect(transcript.get_by_text("cancelled", exact=True)).to_be_visible(timeout=seconds)
    expect(stop).not_to_be_attached()
    expect(page.get_by_label("Say to the agent")).to_have_value("half a thought")

    page.get_by_label("Say to the agent").fill(" ")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#say-state")).to_contain_text("Not sent: a message needs a prompt")
    assert not was_reloaded(page)


def test_repeated_submits_create_one_agent(hall: BrowserHall, page: Page) -> None:
    page.goto("/admin/roster/agent/new/")
    page.evaluate(COUNT_SUBMITS)
    keyboard, prompt = page.keyboard, page.get_by_label("First message")
    prompt.fill("hello")
    prompt.press("Control+Enter")
    prompt.press("Control+Enter")
    page.get_by_role("button", name="Create the agent").click()
    assert page.evaluate("window.sent") == 1

    page.evaluate("window.dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
    prompt.focus()
    keyboard.down("Control")
    keyboard.down("Enter")
    page.evaluate("window.dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
    keyboard.down("Enter")  # the key is held down
    assert page.evaluate("window.sent") == 2


COUNT_SUBMITS = """() => {
  window.sent = 0;
  window.addEventListener("submit", (event) => {
    if (!event.defaultPrevented) window.sent += 1;
    event.preventDefault();
  });
}"""
PRINT_PROBLEM = "from mcp_runtime.control.agents import agent_problem; print(agent_problem())"

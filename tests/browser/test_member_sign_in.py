"""A member behind OAuth in a browser: from *Sign in* on its card to its tools, and out again."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.rig import BrowserHall, Visitor
from tests.support.oauth_server import OAuthWorld, oauth_world

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def world() -> Iterator[OAuthWorld]:
    with oauth_world() as world:
        yield world


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall, world: OAuthWorld) -> BrowserHall:
    folder = new_hall.members_dir / "vault"
    folder.mkdir(parents=True)
    manifest = {"name": "vault", "version": "1.0.0", "transport": "http", "url": world.url}
    (folder / "guild-member.json").write_text(json.dumps(manifest))
    new_hall.bring_up(GUILD_HALL_WEB_URL=new_hall.url)
    return new_hall


def test_three_clicks_lead_from_the_card_to_the_tools(hall: BrowserHall, visitor: Visitor, world: OAuthWorld) -> None:
    visitor.faults.allow("a request to elsewhere: " + world.base)
    page = visitor.window()
    page.goto("/admin/")
    card = page.locator(".card").filter(has_text="vault")
    expect(card.locator(".status")).to_have_text("sign-in needed")
    card.get_by_role("button", name="Sign vault in").click()
    expect(page.locator("code").filter(has_text=world.base).first).to_be_visible()
    page.get_by_role("link", name="Continue to 127.0.0.1").click()
    expect(page.locator(".messagelist")).to_contain_text("is signed in, and connects now.")
    expect(page.locator(".member-state")).to_contain_text("connected")
    expect(page.locator("#tools")).to_contain_text("look")
    assert hall.call("vault", "look", {})["status"] == "succeeded"
    page.locator("#sign-out").click()
    expect(page.locator(".member-state")).to_contain_text("sign-in needed")
    expect(page.locator("#sign-in-button")).to_be_visible()
    assert world.refresh == {}

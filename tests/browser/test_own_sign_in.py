"""A member where each user signs in alone, in a browser: from the failed call to a call with the own account."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.rig import BrowserHall, Visitor
from tests.support.oauth_server import OAuthWorld, oauth_world

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def world() -> Iterator[OAuthWorld]:
    with oauth_world(echoes=True) as world:
        yield world


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall, world: OAuthWorld) -> BrowserHall:
    folder = new_hall.members_dir / "vault"
    folder.mkdir(parents=True)
    manifest = {"name": "vault", "version": "1.0.0", "transport": "http", "url": world.url}
    manifest |= {"oauth": {"credentials": "user"}}
    (folder / "guild-member.json").write_text(json.dumps(manifest))
    new_hall.bring_up(GUILD_HALL_WEB_URL=new_hall.url)
    return new_hall


def test_a_person_signs_in_alone_from_the_page_of_the_member_and_out_again(
    hall: BrowserHall, visitor: Visitor, world: OAuthWorld
) -> None:
    visitor.faults.allow("a request to elsewhere: " + world.base)
    page = visitor.window()
    page.goto("/admin/")
    card = page.locator(".card").filter(has_text="vault")
    world.account = "lists"
    card.get_by_role("button", name="Sign vault in").click()
    expect(page.get_by_text("to read the lists of vault, and for no call")).to_be_visible()
    page.get_by_role("link", name="Continue to 127.0.0.1").click()
    expect(page.locator(".member-state")).to_contain_text("connected")

    failed = hall.call("vault", "look", {})
    assert failed["status"] == "failed"
    (path,) = re.findall(rf"Sign in for yourself at {hall.url}(/members/\d+/own-sign-in/)", failed["error"]["message"])
    page.goto(path)
    expect(page.locator("#own-state")).to_contain_text("You are not signed in")
    page.goto(f"/admin/roster/call/{failed['id']}/change/")
    page.locator(".result-hint").get_by_role("link", name="Sign in at vault").click()
    expect(page.locator("#own-state")).to_contain_text("You are not signed in")
    world.account = "admin"
    page.locator("#begin").click()
    page.get_by_role("link", name="Continue to 127.0.0.1").click()
    expect(page.locator(".messagelist")).to_contain_text("You are signed in at vault.")
    expect(page.locator("#own-state")).to_contain_text("You are signed in at")
    called = hall.call("vault", "look", {})
    assert world.accounts[called["result"]["content"][0]["text"]] == "admin"

    page.get_by_role("link", name="Back to vault").click()
    expect(page.get_by_text("Sign-in for its lists")).to_be_visible()
    page.locator("#own-sign-in").click()
    page.locator("#own-sign-out").click()
    expect(page.locator(".messagelist")).to_contain_text("You are signed out at vault.")
    assert hall.call("vault", "look", {})["status"] == "failed"
    assert hall.member("vault")["status"] == "connected"

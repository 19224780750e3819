"""Somebody logs in with the button, as the provider says who they are and which groups they have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.rig import PASSWORD, BrowserHall, Visitor
from tests.browser.screens import OVERFLOW
from tests.support import provider as support
from tests.support.provider import Provider

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with support.serve() as provider:
        yield provider


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall, provider: Provider) -> BrowserHall:
    """The web alone, with the provider."""
    result = new_hall.manage("prepare")
    assert result.returncode == 0, result.stderr
    new_hall.serve_web(
        GUILD_HALL_WEB_URL=new_hall.url,
        GUILD_HALL_OIDC_ISSUER=provider.url,
        GUILD_HALL_OIDC_NAME="Example Ltd",
        GUILD_HALL_OIDC_CLIENT_ID=support.CLIENT_ID,
        GUILD_HALL_OIDC_CLIENT_SECRET=support.CLIENT_SECRET,
        GUILD_HALL_OIDC_ALLOW="@example.com",
        GUILD_HALL_OIDC_GROUPS="*=viewer,engineering=operator",
    )
    return new_hall


def log_in(visitor: Visitor, **options: object) -> Page:
    page = visitor.window(logged_in=False, **options)  # type: ignore[arg-type]
    page.goto("/admin/roster/call/")
    page.get_by_role("link", name="Log in with Example Ltd").click()
    return page


def test_a_group_of_the_provider_is_a_role_until_the_provider_takes_it_back(
    visitor: Visitor, provider: Provider
) -> None:
    visitor.faults.allow(r"a request to elsewhere: http://127\.0\.0\.1:\d+/authorize")
    provider.person["groups"] = ["engineering"]

    page = log_in(visitor)

    expect(page.get_by_role("heading", name="Calls")).to_be_visible()  # the page that she wanted
    expect(page.locator("#user-tools")).to_contain_text("jane")
    page.get_by_label("Guild Hall").get_by_text("More").click()
    expect(page.get_by_role("link", name="Nodes")).to_be_visible()  # operators see them

    provider.person["groups"] = []
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_text("Logged out")).to_be_visible()
    page.goto("/admin/")
    page.get_by_role("link", name="Log in with Example Ltd").focus()
    page.keyboard.press("Enter")

    expect(page.get_by_role("heading", name="Roster")).to_be_visible()
    page.get_by_label("Guild Hall").get_by_text("More").click()
    expect(page.get_by_role("link", name="Status changes")).to_be_visible()
    expect(page.get_by_role("link", name="Nodes")).not_to_be_visible()


def test_somebody_who_may_not_come_in_reads_why_and_can_still_use_a_password(
    visitor: Visitor, provider: Provider
) -> None:
    visitor.faults.allow(r"a request to elsewhere: http://127\.0\.0\.1:\d+/authorize")
    visitor.faults.allow("403")
    provider.person |= {"sub": "2", "email": "eve@evil.example", "preferred_username": "eve"}

    page = log_in(visitor, width=390, height=800)

    expect(page.get_by_role("alert")).to_contain_text("You may not use this hall.")
    assert page.evaluate(OVERFLOW) <= 0
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Calls")).to_be_visible()

"""A member to which the login at single sign-on gives the access: from the login to a call, and after its end again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from playwright.sync_api import Page, expect

from tests.browser.rig import BrowserHall, Visitor
from tests.browser.screens import OVERFLOW
from tests.support import provider as support
from tests.support.agents import GatewayClient
from tests.support.oauth_server import OAuthWorld, oauth_world
from tests.support.provider import Answer, Provider

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

JANE = "248289761001"
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"


class Company:
    """The provider of single sign-on, and the authorization server of the member, which trusts what it signs."""

    def __init__(self, provider: Provider, world: OAuthWorld) -> None:
        self.provider, self.world = provider, world
        self.refused: set[str] = set()  # ID tokens
        self.id_token = ""  # of the last exchange
        provider.exchange = self._exchange

    def refuse_login(self) -> None:
        """Accept no ID token of before, as after the end of a session there. The access tokens end as well."""
        self.refused.add(self.id_token)
        self.world.expire()

    def _exchange(self, form: dict[str, str]) -> Answer:
        self.id_token = form["subject_token"]
        key = next(iter(self.provider.keys.values())).public_key()
        person = jwt.decode(self.id_token, key, ["RS256"], audience=support.CLIENT_ID, issuer=self.provider.url)
        if self.id_token in self.refused:
            return Answer(400, b'{"error": "invalid_grant"}')
        claims: dict[str, Any] = {"iss": self.provider.url, "sub": person["sub"], "aud": form["audience"]}
        claims |= {"resource": form["resource"], "client_id": "the-hall"}
        assertion = self.world.signed(self.world.assertion_header, **claims)
        body = {"access_token": assertion, "issued_token_type": ID_JAG, "token_type": "N_A"}
        return Answer(200, json.dumps(body).encode())


@pytest.fixture(scope="module")
def company() -> Iterator[Company]:
    with support.serve() as provider, oauth_world(echoes=True, lists_openly=True) as world:
        yield Company(provider, world)


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall, company: Company) -> BrowserHall:
    folder = new_hall.members_dir / "vault"
    folder.mkdir(parents=True)
    manifest: dict[str, Any] = {"name": "vault", "version": "1.0.0", "transport": "http", "url": company.world.url}
    oauth = {
        "grant": "enterprise_managed",
        "credentials": "user",
        "client_id": "the-hall",
        "issuer": company.world.base,
    }
    (folder / "guild-member.json").write_text(json.dumps(manifest | {"oauth": oauth}))
    new_hall.bring_up(
        "vault",
        GUILD_HALL_WEB_URL=new_hall.url,
        GUILD_HALL_OIDC_ISSUER=company.provider.url,
        GUILD_HALL_OIDC_NAME="Example Ltd",
        GUILD_HALL_OIDC_CLIENT_ID=support.CLIENT_ID,
        GUILD_HALL_OIDC_CLIENT_SECRET=support.CLIENT_SECRET,
        GUILD_HALL_OIDC_ALLOW="@example.com",
        GUILD_HALL_OIDC_GROUPS="*=operator",
    )
    return new_hall


def call(page: Page) -> None:
    """Call the tool from its form, beginning at the list of tools."""
    page.goto("/admin/roster/tool/")
    page.get_by_role("link", name="Call look").click()
    page.get_by_role("button", name="Call", exact=True).click()


def account_of_result(page: Page, company: Company) -> str:
    expect(page.locator("#outcome-status")).to_have_text("succeeded")
    text = page.locator("#outcome")
    return next(account for seen, account in company.world.accounts.items() if seen in text.inner_text())


def test_a_login_that_the_provider_refuses_is_renewed_with_one_click_and_the_call_goes_on(
    hall: BrowserHall, visitor: Visitor, company: Company
) -> None:
    visitor.faults.allow(r"a request to elsewhere: http://127\.0\.0\.1:\d+/authorize")
    page = visitor.window(logged_in=False)
    page.goto("/admin/")
    page.get_by_role("link", name="Log in with Example Ltd").click()
    call(page)
    assert account_of_result(page, company) == JANE

    company.refuse_login()
    call(page)
    expect(page.locator("#outcome-status")).to_have_text("failed")
    expect(page.locator("#outcome")).to_contain_text("the identity provider does not accept the ID token")
    expect(page.locator("#outcome")).to_contain_text(f"log in to the hall again at {hall.url}/members/")
    created = hall.manage("create_token", "jane")
    token = created.stdout.splitlines()[-1]
    client = GatewayClient(hall, token).begin("2025-11-25", elicitation={"url": {}})
    with client.listen() as stream:
        (asked,) = client.call("vault__look")["error"]["data"]["elicitations"]
        page.goto(asked["url"])
        expect(page.get_by_role("alert")).to_contain_text("The last try to get access with your login failed")
        assert page.evaluate(OVERFLOW) <= 0
        page.get_by_role("link", name="Log in again").click()
        expect(page.locator("#own-state")).to_be_visible()
        expect(page.get_by_role("heading", name="Sign in for yourself at vault")).to_be_visible()
        complete = stream.until("notifications/elicitation/complete")
        assert complete["params"] == {"elicitationId": asked["elicitationId"]}
        assert company.world.accounts[client.text("vault__look")] == JANE
    call(page)
    assert account_of_result(page, company) == JANE
    page.goto(asked["url"])
    expect(page.locator("#own-state")).to_contain_text("The hall has access in your name.")
    assert company.provider.faults == []

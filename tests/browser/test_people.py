"""Users who are made in the browser or on the command line, and what they see after they log in."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.rig import BrowserHall, Visitor
from tests.browser.screens import OVERFLOW

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

SECRET = "a long secret"


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> BrowserHall:
    """The web alone, because users need no runtime."""
    result = new_hall.manage("prepare")
    assert result.returncode == 0, result.stderr
    new_hall.serve_web()
    return new_hall


def log_in(visitor: Visitor, name: str, password: str) -> Page:
    page = visitor.window(logged_in=False)
    page.goto("/admin/")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
    return page


def test_a_user_who_is_made_in_the_browser_logs_in_as_a_caller(page: Page, visitor: Visitor) -> None:
    page.goto("/admin/auth/user/add/")
    page.get_by_label("Username").fill("carl")
    page.get_by_label("Password:", exact=True).fill(SECRET)
    page.get_by_label("Password confirmation").fill(SECRET)
    expect(page.get_by_label("Role")).to_have_value("caller")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("was added successfully")).to_be_visible()
    expect(page.get_by_label("Superuser status")).not_to_be_visible()
    page.get_by_text("Advanced").click()
    expect(page.get_by_label("Superuser status")).to_be_visible()

    callers_page = log_in(visitor, "carl", SECRET)

    expect(callers_page.get_by_role("heading", name="Roster")).to_be_visible()
    places = callers_page.get_by_label("Guild Hall")
    expect(places.get_by_role("link", name="Tools")).to_be_visible()
    expect(places.get_by_role("link", name="Tokens")).to_be_visible()
    places.get_by_role("link", name="Calls").click()
    expect(callers_page.get_by_text("You see the calls that you made yourself.")).to_be_visible()


def test_a_user_of_the_command_line_whose_role_is_taken_is_told_whom_to_ask(
    hall: BrowserHall, visitor: Visitor
) -> None:
    password = hall.manage("create_user", "dora", "--role", "viewer").stdout.splitlines()[-1]
    page = log_in(visitor, "dora", password)
    expect(page.get_by_role("search")).to_be_visible()

    visitor.faults.allow("403 .*/cards/")  # the open roster asks for changes until the page is left
    hall.manage("set_role", "dora", "none")
    page.goto("/admin/")

    expect(page.get_by_text("You are logged in as dora.")).to_be_visible()
    expect(page.get_by_text("Ask an admin of this hall for a role.")).to_be_visible()
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate(OVERFLOW) <= 0


def test_an_invited_person_makes_an_account_with_a_link_that_works_once(page: Page, visitor: Visitor) -> None:
    page.goto("/admin/auth/user/")
    page.get_by_role("link", name="Invite a person").click()
    page.get_by_label("Role").select_option("operator")
    page.get_by_label("Note").fill("Olga")
    page.get_by_role("button", name="Make the link").click()
    link = page.locator("#new-link").inner_text()
    page.get_by_role("button", name="Copy the link").click()
    expect(page.locator("#copy-status")).to_contain_text(re.compile("Copied|selected"))
    page.get_by_role("link", name="All invitations").click()
    expect(page.get_by_role("row").filter(has_text="Olga")).to_contain_text("open")

    guest = visitor.window(logged_in=False)
    guest.set_viewport_size({"width": 390, "height": 800})
    guest.goto(urlsplit(link).path)
    assert guest.evaluate(OVERFLOW) <= 0
    guest.get_by_label("Username").fill("olga")
    guest.get_by_label("Password:", exact=True).fill(SECRET)
    guest.get_by_label("Password confirmation").fill(SECRET)
    guest.get_by_role("button", name="Create the account").click()
    expect(guest.get_by_role("heading", name="Roster")).to_be_visible()
    page.reload()
    expect(page.get_by_role("row").filter(has_text="Olga")).to_contain_text("used by olga")


def test_an_admin_puts_people_into_a_group_and_reserves_a_member_for_it(
    page: Page, hall: BrowserHall, visitor: Visitor
) -> None:
    hall.run('from roster.models import GuildMember; GuildMember.objects.create(name="notes", directory="notes")')
    hall.manage("create_user", "berta", "--role", "caller")
    password = hall.manage("create_user", "anna", "--role", "admin").stdout.splitlines()[-1]
    admin = log_in(visitor, "anna", password)
    expect(admin.get_by_role("heading", name="Roster")).to_be_visible()

    admin.goto("/admin/auth/group/add/")
    admin.get_by_label("Name:").fill("writers")
    admin.locator("#id_users_from").select_option(label="anna")
    admin.get_by_role("button", name="Choose selected users").click()
    expect(admin.locator("#id_users_to")).to_contain_text("anna")
    # The superuser has more rights.
    expect(admin.locator("#id_users_from")).not_to_contain_text("admin")
    admin.get_by_role("button", name="Save", exact=True).click()
    expect(admin.get_by_text("was added successfully")).to_be_visible()

    admin.goto("/admin/auth/user/")
    admin.get_by_role("link", name="berta").click()
    admin.get_by_role("checkbox", name="writers").check()
    admin.get_by_role("button", name="Save and continue editing").click()
    expect(admin.get_by_role("checkbox", name="writers")).to_be_checked()
    users_page = admin.url

    admin.goto("/admin/roster/guildmember/")
    admin.get_by_role("link", name="notes").click()
    admin.get_by_role("link", name="Reserve for groups").click()
    groups_page = admin.url
    admin.get_by_role("checkbox", name="writers").check()
    admin.get_by_role("button", name="Save").click()
    expect(admin.get_by_text("Reserved for: writers.").first).to_be_visible()

    page.goto("/admin/auth/group/")
    page.get_by_role("link", name="writers").click()
    expect(page.locator("#id_users_to option")).to_have_text(["anna", "berta"])
    for address in (page.url, users_page, groups_page):
        for scheme, width in (("light", 1280), ("dark", 1280), ("light", 390)):
            window = visitor.window(scheme=scheme, width=width)
            window.goto(address)
            expect(window.get_by_role("button", name="Save").first).to_be_visible()
            assert window.evaluate(OVERFLOW) <= 0, address

"""axe-core over every screen that links lead to, and over the pages outside of the admin, in all sizes and colours."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.axe import check_page, check_screen
from tests.browser.rig import BrowserHall, Visitor
from tests.browser.screens import screens_of

pytestmark = [pytest.mark.browser, pytest.mark.timeout(500)]

LISTS = [
    *(f"roster/{name}" for name in ("guildmember", "tool", "call", "agent", "token", "toolset", "secret", "node")),
    *(f"roster/{name}" for name in ("statuschange", "portallocation", "invitation", "auditentry")),
    *("auth/user", "auth/group", "lists", "search", "password_change"),
    *(f"roster/{name}" for name in ("guildmember/proposals", "guildmember/trash", "agent/new", "invitation/invite")),
    *(f"{name}/add" for name in ("roster/token", "roster/toolset", "roster/secret", "auth/user", "auth/group")),
]
# What no member makes. The last line of the output has the addresses of the two links, which are shown only once.
ROWS = """
from django.contrib.auth.models import Group, User
from mcp_runtime.control import proposals, secrets
from roster import invitations, login_links
from roster.models import Agent, GuildMember, Role, Token, Tool, ToolSet, ToolSetEntry, TrashedMember
admin = User.objects.get(username="admin")
Group.objects.create(name="staff")
Token.make(user=admin, name="script")
secrets.set_secret("KITCHEN_KEY", "open sesame", admin)
desk = ToolSet.objects.create(name="desk", title="Desk", created_by=admin)
User.objects.create_user("ada.lovelace@example.org", email="ada.lovelace@example.org", first_name="Ada")
ToolSetEntry.objects.create(tool_set=desk, member=GuildMember.objects.get(name="good"), tool_name="echo")
Agent.objects.create(name="talk", created_by=admin).members.add(GuildMember.objects.get(name="good"))
proposals.propose("npx -y thing", admin, name="thing")
TrashedMember.objects.create(name="gone", directory="gone")
link = invitations.invite(Role.objects.get(name="viewer"), inviter=admin, note="Ada")[1]
print(link, login_links.make(admin).address)
"""


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> BrowserHall:
    """A hall with one row of each kind, so that no screen is empty."""
    new_hall.add("good", displayName="Good", description="Does as it is told.")
    new_hall.add("broken", "exit=3", restart="never", description="Ends at once.")
    new_hall.bring_up("good")
    new_hall.wait_for_status("broken", "error")
    new_hall.call("good", "echo", {"text": "hello"})
    new_hall.call("good", "fail")
    new_hall.api("members/good/tools/sleep/invoke/", method="POST", json={"arguments": {"seconds": 600}})
    assert new_hall.login_cookies  # before the link, which a login spends
    new_hall.one_time_links = new_hall.run(ROWS).split()[-2:]
    return new_hall


# The pages that Django's admin may have for each kind of row. Some kinds have only a few of them.
PAGES_OF_ROWS = """
from django.contrib import admin
for model in admin.site._registry:
    start, row = f"/admin/{model._meta.app_label}/{model._meta.model_name}/", model.objects.order_by("pk").last()
    print(start, f"{start}add/", *(f"{start}{row.pk}/{page}/" for page in ("change", "history", "delete")))
"""


def problems_of(page: Page, screens: list[str]) -> str:
    """Each violation of these screens, with the first place where it is."""
    places: dict[str, list[str]] = {}
    for screen in screens:
        for view, violations in check_screen(page, screen).items():
            for violation in violations:
                places.setdefault(violation, []).append(f"{screen} {view}")
    return "\n".join(f"{violation}\n    {len(at)} times, first at {at[0]}" for violation, at in places.items())


def test_every_screen_fits_a_phone_and_has_no_serious_accessibility_problems(
    hall: BrowserHall, visitor: Visitor
) -> None:
    page = visitor.window(traced=False, bypass_csp=True)  # axe-core is a script with its own styles
    pages_of_rows = hall.run(PAGES_OF_ROWS).split()
    screens = screens_of(hall, *pages_of_rows)
    missing = [name for name in LISTS if f"/admin/{name}/" not in screens]
    assert not missing
    problems = problems_of(page, screens)
    assert not problems, problems


def test_no_page_outside_of_the_admin_has_serious_accessibility_problems(hall: BrowserHall, visitor: Visitor) -> None:
    visitor.faults.allow("status of 4")
    page = visitor.window(traced=False, bypass_csp=True)
    links = [urlsplit(link).path for link in hall.one_time_links]
    gone = [
        "/invitations/gone/",
        "/login-links/gone/",
        "/members/sign-in/?state=x&code=y",
        "/oauth/authorize?client_id=x",
    ]
    errors = ["/nowhere/", "/admin/nowhere/", "/admin/roster/call/?status=failed"]
    problems = problems_of(page, [*links, *gone, *errors])
    page.goto("/api/docs/")
    expect(page.locator(".opblock").first).to_be_visible()  # its script draws it
    # Swagger UI has links in its buttons, which styles cannot change.
    found = [each for views in check_page(page).values() for each in views if not each.startswith("nested-interactive")]
    assert (problems, found) == ("", [])


def test_on_a_phone_the_link_to_call_a_tool_is_in_the_window(hall: BrowserHall, visitor: Visitor) -> None:
    page = visitor.window()
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto("/admin/roster/tool/")
    box = page.locator(".call-verb").first.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 390


@pytest.mark.parametrize(
    ("model", "selectors"),
    [
        ("call", [".calls-number", ".status", ".calls-tool", ".calls-requester", ".calls-age", ".calls-duration"]),
        ("guildmember", [".field-name", ".status", ".field-title", ".field-tool_count", ".field-short_error"]),
        (
            "token",
            [".field-beginning", ".status", ".field-name", ".field-user", ".field-scope_text", ".field-last_used"],
        ),
    ],
)
def test_on_a_phone_rows_are_low_and_all_fields_are_in_the_window(
    visitor: Visitor, model: str, selectors: list[str]
) -> None:
    page = visitor.window()
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"/admin/roster/{model}/")
    row = page.locator("table:has(.action-select) tbody tr").last
    for selector in selectors:
        box = row.locator(selector).bounding_box()
        assert box is not None, selector
        assert box["x"] >= 0, selector
        assert box["x"] + box["width"] <= 390, selector
    row_box = row.bounding_box()
    assert row_box is not None
    assert row_box["height"] < 80

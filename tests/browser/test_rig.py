"""The rig reports the faults of pages, so that they fail a test."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.rig import PASSWORD, Visitor, until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


def test_a_user_logs_in_through_the_form_and_sees_the_members(visitor: Visitor) -> None:
    page = visitor.window(logged_in=False)
    page.goto("/")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("link", name="Good", exact=True)).to_be_visible()


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("console.error('it hurts')", "console: it hurts"),
        ("setTimeout(() => { throw new Error('oh no') })", "exception: oh no"),
        ("fetch('http://elsewhere.example/').catch(() => 0)", "a request to elsewhere: http://elsewhere.example/"),
    ],
)
def test_the_rig_reports_console_errors_exceptions_and_requests_to_other_hosts(
    visitor: Visitor, script: str, text: str
) -> None:
    page = visitor.window(bypass_csp=True)
    page.goto("/admin/")
    page.evaluate(f"() => {{ {script} }}")
    until(page, lambda: any(text in fault for fault in visitor.faults.unexpected()), what=text)
    visitor.faults.allow("it hurts|oh no|elsewhere|ERR_NAME_NOT_RESOLVED")


def test_the_rig_reports_a_violation_of_the_content_security_policy(visitor: Visitor, page: Page) -> None:
    page.goto("/admin/")
    page.evaluate("""() => {
      const policy = Object.assign(document.createElement("meta"), { httpEquiv: "Content-Security-Policy" });
      policy.content = "script-src 'none'";
      document.head.append(policy);
      document.body.append(Object.assign(document.createElement("script"), { textContent: "window.ran = true" }));
    }""")
    text = "Content-Security-Policy: script-src"
    until(page, lambda: any(text in fault for fault in visitor.faults.unexpected()), what=text)
    visitor.faults.allow("Content.Security.Policy|Refused to")

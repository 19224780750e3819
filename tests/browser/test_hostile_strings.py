"""Members whose texts try to run scripts, to load from other hosts and to break pages. No attempt succeeds."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.rig import BrowserHall, Visitor
from tests.browser.screens import OVERFLOW, screens_of

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

OTHER_HOST = "http://elsewhere.example"
MARKUP = (
    """</script></textarea></title></pre></style>'"`><img src=x onerror="window.__pwned=1">"""
    "<script>window.__pwned=2</script><svg/onload=window.__pwned=3><a href='javascript:window.__pwned=4'>come</a>"
    "<iframe srcdoc='<script>top.__pwned=5</script>'></iframe>{{ 7*7 }}{% csrf_token %}${__pwned=6}"
)
MARKDOWN = (
    "[here](javascript:window.__pwned=7) ![see](javascript:window.__pwned=8) "
    f"![pixel]({OTHER_HOST}/pixel.png) <{OTHER_HOST}> [x]: data:text/html,<script>window.__pwned=9</script> "
    "[one](java\tscript:window.__pwned=10) [two](&#106;avascript:window.__pwned=11) [three](data:text/html,<script>)"
)
CONTROLS = "right\u202eot\u2066left \u200b\ufeff a\x00b\x1b[31mred\x07 \U0001f600"
LONG = "W" * 100_000
# Of the web, and those with which the page of a token adds the hall to a client.
GOOD_LINKS = ("http://", "https://", "cursor://anysphere.cursor-deeplink/mcp/install?", "vscode:mcp/install?")
HOSTILE = f"{MARKUP} {MARKDOWN} {CONTROLS}"
SVG = base64.b64encode(
    b"<svg xmlns='http://www.w3.org/2000/svg' onload='top.__pwned=12'><script>top.__pwned=13</script></svg>"
).decode()
PAGE = f"<html><body onload='top.__pwned=14'><img src='{OTHER_HOST}/x.png'></body></html>"

SCHEMA = {
    "type": "object",
    "title": HOSTILE,
    "description": HOSTILE,
    "properties": {
        MARKUP: {
            "type": "string",
            "title": HOSTILE,
            "description": HOSTILE,
            "default": HOSTILE,
            "examples": [HOSTILE],
        },
        "__proto__": {"type": "string", "description": "pollution"},
        "constructor": {"type": "object", "properties": {"prototype": {"type": "string", "default": HOSTILE}}},
        "choice": {"enum": [HOSTILE, "<b>bold</b>", None], "description": MARKDOWN},
        "either": {"anyOf": [{"title": HOSTILE, "type": "string"}, {"title": LONG[:5000], "type": "integer"}]},
        "list": {"type": "array", "items": {"type": "string", "title": HOSTILE}, "default": [HOSTILE]},
        "link": {"type": "string", "format": "uri", "default": "javascript:window.__pwned=15"},
        "text": {"type": "string", "pattern": "(a+)+$", "default": LONG[:5000]},
        "odd": {"type": HOSTILE, "format": HOSTILE, "$ref": f"{OTHER_HOST}/schema.json"},
    },
}
RESULT = {
    "content": [
        {"type": "text", "text": HOSTILE},
        {
            "type": "text",
            "text": f"# {MARKDOWN}\n\n<script>window.__pwned=16</script>\n\n```{MARKUP}\n{MARKUP}\n```",
        },
        {"type": "text", "text": LONG},
        {"type": "image", "data": SVG, "mimeType": "image/svg+xml"},
        {"type": "image", "data": "not base64 <script>", "mimeType": "image/png"},
        {"type": "image", "data": SVG, "mimeType": 'image/png"><script>window.__pwned=17</script>'},
        {"type": "audio", "data": SVG, "mimeType": "text/html"},
        {"type": "resource_link", "uri": "javascript:window.__pwned=18", "name": HOSTILE, "title": HOSTILE},
        {
            "type": "resource_link",
            "uri": f"{OTHER_HOST}/{MARKUP}",
            "name": LONG,
            "icons": [{"src": f"{OTHER_HOST}/i.png"}],
        },
        {"type": "resource", "resource": {"uri": f"ui://{MARKUP}", "mimeType": "text/html", "text": PAGE}},
        {"type": "resource", "resource": {"uri": "data:text/html,x", "mimeType": "text/html", "blob": SVG}},
        {"type": HOSTILE, "text": HOSTILE},
    ],
    "structuredContent": {
        MARKUP: HOSTILE,
        "__proto__": {"polluted": True},
        "long": LONG,
        "deep": [[[[[[[[HOSTILE]]]]]]]],
    },
    "_meta": {"ui": {"resourceUri": f"ui://{MARKUP}"}},
}
TOOLS = [
    "<img src=x onerror=window.__pwned=19>",
    "</script><script>window.__pwned=20</script>",
    "t" * 200,
    "..",
    "plain",
]
ANSWERS = {
    "talk": {"result": RESULT},
    "fail": {"result": {"isError": True, "content": [{"type": "text", "text": HOSTILE}]}},
    "refuse": {"error": {"code": -32602, "message": HOSTILE, "data": {"hint": HOSTILE, MARKUP: LONG}}},
    "step": {"progress": [{"progress": 1, "total": 2, "message": HOSTILE + LONG}], "pause": 600},
}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "title": HOSTILE, "description": HOSTILE, "inputSchema": {"type": "object"}, **more}


@pytest.fixture(scope="module")
def hall(new_hall: BrowserHall) -> BrowserHall:
    values = {
        "displayName": MARKUP[:190],
        "version": MARKUP[:90],
        "description": f"{MARKUP} {MARKDOWN} {LONG}"[:10_000],
    }
    stage = {
        "tools": [
            *(tool(name, inputSchema=SCHEMA, outputSchema=SCHEMA, annotations={"title": HOSTILE}) for name in TOOLS),
            *(tool(name) for name in ANSWERS),
            tool("long", description=LONG, title=LONG, inputSchema={**SCHEMA, "description": LONG}),
        ],
        "answers": ANSWERS,
        "info": {"name": HOSTILE, "title": HOSTILE, "version": HOSTILE, "websiteUrl": "javascript:window.__pwned=21"},
        "instructions": HOSTILE + LONG,
        "stderr": HOSTILE,
    }
    new_hall.add_stage("hostile", stage, **values)
    new_hall.add_stage("dying", {"stderr": HOSTILE, "exit": 3}, restart="never", **values)
    new_hall.add_stage("listless", {"list_error": HOSTILE}, restart="never", **values)
    new_hall.add_stage("misread", {}, **{"port": MARKUP, MARKUP: HOSTILE}, **values)
    new_hall.add("unread").joinpath("guild-member.json").write_text(HOSTILE)
    new_hall.bring_up("hostile")
    for name in ("dying", "listless"):
        new_hall.wait_for_status(name, "error")
    for name in ("talk", "fail", "refuse"):
        new_hall.call("hostile", name)
    new_hall.call("hostile", "plain", {"text": HOSTILE.replace("\0", ""), "long": LONG})
    new_hall.api("members/hostile/tools/step/invoke/", method="POST", json={"arguments": {}})
    return new_hall


CALL_PAGES = """
import json
from django.urls import reverse
from roster.models import Tool
print(json.dumps({tool.name: reverse("admin:roster_tool_call", args=[tool.pk]) for tool in Tool.objects.all()}))
"""


def pages_of_rows(hall: BrowserHall) -> list[str]:
    """The page of every row. `screens_of` has only one page of each kind."""
    script = """
import json
from django.urls import reverse
from roster.models import GuildMember, Call, StatusChange, Tool
pages = [("guildmember", GuildMember), ("tool", Tool), ("call", Call), ("statuschange", StatusChange)]
found = [reverse(f"admin:roster_{name}_change", args=[row.pk]) for name, model in pages for row in model.objects.all()]
print(json.dumps(found + [reverse("admin:roster_tool_call", args=[tool.pk]) for tool in Tool.objects.all()]))
"""
    pages: list[str] = json.loads(hall.run(script))
    return pages


def find_harm(page: Page) -> str:
    """The problem of the current page, or an empty text. Opens all details of the page first."""
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    if page.evaluate("window.__pwned !== undefined || ({}).polluted !== undefined"):
        return f"executed: {page.evaluate('window.__pwned')}"
    hrefs = page.evaluate("[...document.querySelectorAll('a[href], form[action]')].map((e) => e.href || e.action)")
    if bad_links := [href for href in hrefs if not href.startswith(GOOD_LINKS)]:
        return f"links to {bad_links[0][:80]}"
    if page.locator("#content h1, #content h2, #content").count() == 0:
        return "has no content"
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 800})
        if (overflow := page.evaluate(OVERFLOW)) > 0:
            return f"is {overflow} pixels wider than a window of {width}"
    return ""


def test_no_text_of_a_member_is_executed_or_breaks_a_page(hall: BrowserHall, visitor: Visitor) -> None:
    page = visitor.window(traced=False)
    problems = {}
    for screen in screens_of(hall, *pages_of_rows(hall)):
        response = page.goto(screen)
        if response is None or not response.ok:
            problems[screen] = "is not there"
        elif problem := find_harm(page):
            problems[screen] = problem
    assert not problems, "\n".join(f"{screen} {problem}" for screen, problem in problems.items())


def test_the_runner_calls_a_hostile_tool_and_shows_its_result_safely(hall: BrowserHall, visitor: Visitor) -> None:
    page = visitor.window(traced=False)
    addresses = json.loads(hall.run(CALL_PAGES))
    for name in (TOOLS[0], *(name for name in ANSWERS if name != "step")):
        page.goto(addresses[name])
        page.get_by_role("button", name="Call", exact=True).click()
        # Arguments that do not match the schema are refused at their field, and that is shown safely too.
        outcome = page.locator("#outcome-status:not(:empty), #call-errors .errornote")
        expect(outcome.first).to_be_visible()
        expect(page.locator("#outcome-status").filter(has_text=re.compile("queued|running"))).not_to_be_attached()
        assert find_harm(page) == "", name


def test_the_search_of_the_roster_accepts_hostile_text(visitor: Visitor) -> None:
    page = visitor.window()
    page.goto("/")
    for text in (MARKUP[:100], "%00%0a", "\u202e", "W" * 100):
        with page.expect_response("**/cards/**"):
            page.get_by_role("searchbox").fill(text)
        assert find_harm(page) == "", text
    page.get_by_role("searchbox").fill("' OR 1=1 --")
    expect(page.get_by_text("No matches.")).to_be_visible()
    page.get_by_role("searchbox").fill("")
    expect(page.locator("#roster .card")).to_have_count(5)

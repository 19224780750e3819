"""The result of a call on a page. It is shown according to its type, and a member cannot attack the reader."""

from __future__ import annotations

import base64
import json
import re
import time
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote_plus

import pytest
from django.template.loader import render_to_string

from roster.admin import present
from roster.admin.calls import results
from roster.models import Call

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"pixels").decode()
READER = "/admin/roster/guildmember/7/resource/?uri="  # the page on which the hall reads a resource of member 7
SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    """Every tag and attribute of a page, as a browser would read them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def attributes_of(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


def call(result: Any = None, **columns: Any) -> Call:
    return Call(**{"tool_name": "t", "member_id": 7, "timeout": 1, "status": "succeeded", "result": result, **columns})


def render(result: Any = None, output_schema: dict[str, Any] | None = None, **columns: Any) -> str:
    view = results.result_view(call(result, **columns), output_schema)
    return render_to_string("admin/roster/result.html", {"view": view})


def render_text(text: str) -> str:
    return render({"content": [{"type": "text", "text": text}]})


def assert_harmless(html: str) -> None:
    for tag, attributes in Tags(html).tags:
        assert tag not in ("script", "style", "iframe", "object", "embed", "svg", "form", "base", "link", "meta"), tag
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name != "style", tag
            if name in ("href", "src"):
                is_here = name == "href" and value.startswith(READER)
                safe = r"https?://|data:(image/(png|jpeg|gif|webp|bmp)|audio/[\w-]+);base64,"
                assert is_here or re.match(safe, value), value


HOSTILE_TEXTS = [
    SCRIPT,
    f"# heading {SCRIPT}",
    "[click](javascript:alert(1)) and **bold**",
    "[click](JaVaScRiPt&#58;alert(1)) **bold**",
    "[click](data:text/html;base64,PHNjcmlwdD4=) **bold**",
    "[click](vbscript:x) **bold** <javascript:alert(1)>",
    '[click](https://fine.example/"onmouseover="alert(1)) **bold**',
    "![x](https://evil.example/track.png) **bold**",
    "**bold**\n\n<div style='position:fixed'>over all</div>\n\n<iframe src=//evil.example></iframe>",
    f"```{SCRIPT}\n{SCRIPT}\n```",
    f"|a|b|\n|-|-|\n|{SCRIPT}|x|",
    '[a][b] **bold**\n\n[b]: javascript:alert(1) "t"',
    "<https://user@evil.example/%0Ajavascript:alert(1)> **bold**",
    json.dumps({SCRIPT: [SCRIPT, {SCRIPT: SCRIPT}]}),
    "\u202e" + SCRIPT,
]


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_hostile_text_is_harmless_in_every_place(text: str) -> None:
    data = base64.b64encode(text.encode()).decode()
    parts = [
        {"type": "text", "text": text},
        {"type": "image", "data": data, "mimeType": "image/svg+xml"},
        {"type": "image", "data": data, "mimeType": "image/png"},
        {"type": "image", "data": text, "mimeType": text},
        {"type": "audio", "data": data, "mimeType": "text/html"},
        {"type": "resource_link", "uri": text, "name": text, "title": text, "description": text, "mimeType": text},
        {"type": "resource", "resource": {"uri": text, "text": text, "mimeType": "text/markdown"}},
        {"type": "resource", "resource": {"uri": text, "text": text, "mimeType": "text/html"}},
        {"type": "resource", "resource": {"uri": text, "blob": data, "mimeType": "text/html"}},
        {"type": text, text: text},
        text,
    ]
    html = render(
        {"content": parts, "structuredContent": {text: text}, "_meta": {text: text}},
        {"type": "object", "required": [text + "!"]},
        status="failed",
        error_kind="tool",
        error_message=text,
        error_data={text: text},
    )
    assert_harmless(html)
    assert not Tags(html).attributes_of("img")


@pytest.mark.parametrize(
    ("address", "is_allowed"),
    [
        ("https://example.org/a?b=c#d", True),
        ("http://localhost:8000/", True),
        ("javascript:alert(1)", False),
        ("data:text/html,x", False),
        ("//example.org/", False),
        ("https:///nowhere", False),
        ("https://[::1", False),
        ("https://exa mple.org/", False),
        ("https://example.org\\@evil.example/", False),
        ("file:///etc/passwd", False),
        ("", False),
    ],
)
def test_only_addresses_of_the_web_lead_there(address: str, is_allowed: bool) -> None:
    assert present.leads_to_the_web(address) is is_allowed


@pytest.mark.parametrize("uri", ["https://example.org/a?b=c&d", "javascript:alert(1)", "file:///etc/passwd", SCRIPT])
def test_a_link_to_a_resource_leads_to_the_page_on_which_the_hall_reads_it(uri: str) -> None:
    html = render({"content": [{"type": "resource_link", "uri": uri, "name": "n"}]})
    assert [link["href"] for link in Tags(html).attributes_of("a")] == [READER + quote_plus(uri)]


def test_a_resource_without_a_uri_or_of_an_unknown_member_has_no_link() -> None:
    link = {"type": "resource_link", "uri": "x:y", "name": "n"}
    for uri in ("", "x" * 3_000, None):
        assert "<a" not in render({"content": [{**link, "uri": uri}]})
    assert "<a" not in "".join(item.html for item in results.items_of([link]))


def test_markdown_links_open_in_a_new_tab_without_a_referrer() -> None:
    link = Tags(render_text("**see** [there](https://example.org/x)")).attributes_of("a")[0]
    assert link == {"href": "https://example.org/x", "target": "_blank", "rel": "noopener noreferrer nofollow"}


def test_markdown_headings_are_below_the_headings_of_the_page() -> None:
    html = render_text("# Title\n\n- one\n- two\n\n|a|b|\n|-|-|\n|1|2|\n\n```python\nx < 1\n```")
    for fragment in ("<h3>Title</h3>", "<li>one</li>", "<td>1</td>", "<pre><code>x &lt; 1\n</code></pre>"):
        assert fragment in html


@pytest.mark.parametrize("text", ["plain words", "2 * 3 * 4", "snake_case_name", "a - b", "C:\\path [x](y)"])
def test_plain_text_is_not_changed(text: str) -> None:
    view = results.result_view(call({"content": [{"type": "text", "text": text}]}))
    assert view is not None
    assert [item.kind for item in view.items] == ["text"]


def test_json_text_is_shown_as_a_tree() -> None:
    html = render_text('{"name": "x", "n": [1, true, null]}')
    assert '<span class="json-key">name</span>: <span class="json-string">&quot;x&quot;</span>' in html
    assert "[ 3 items ]" in html


def test_a_png_is_shown_and_an_svg_is_shown_as_text() -> None:
    svg = base64.b64encode(b"<svg onload='alert(1)'></svg>").decode()
    html = render(
        {
            "content": [
                {"type": "image", "data": PNG, "mimeType": "image/png"},
                {"type": "image", "data": svg, "mimeType": "image/svg+xml"},
            ]
        }
    )
    assert [image["src"] for image in Tags(html).attributes_of("img")] == [f"data:image/png;base64,{PNG}"]
    assert "&lt;svg onload=" in html


def test_an_image_with_a_wrong_type_is_not_shown() -> None:
    data = base64.b64encode(b"<html>").decode()
    assert not Tags(render({"content": [{"type": "image", "data": data, "mimeType": "image/png"}]})).attributes_of(
        "img"
    )


def test_sound_can_be_played() -> None:
    data = base64.b64encode(b"RIFFsound").decode()
    html = render({"content": [{"type": "audio", "data": data, "mimeType": "audio/wav; codecs=1"}]})
    assert Tags(html).attributes_of("audio")[0]["src"] == f"data:audio/wav;base64,{data}"


def test_images_share_one_size_limit() -> None:
    data = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"x" * 3_000_000).decode()
    html = render({"content": [{"type": "image", "data": data, "mimeType": "image/png"}] * 3})
    assert len(Tags(html).attributes_of("img")) == 1
    assert "too large to show here" in html


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ({"n": 1}, None, "has no output schema"),
        ({"n": 1}, {"type": "object", "properties": {"n": {"type": "integer"}}}, ">matches the output schema"),
        ({"n": "x"}, {"type": "object", "properties": {"n": {"type": "integer"}}}, "n: &#x27;x&#x27; is not of type"),
        ({"n": 1}, {"type": "nonsense"}, "the output schema is broken"),
    ],
)
def test_structured_content_is_validated_against_the_output_schema(value: Any, schema: Any, expected: str) -> None:
    assert expected in render({"content": [], "structuredContent": value}, schema)


def test_a_text_that_repeats_the_structured_content_is_left_out() -> None:
    result = {"content": [{"type": "text", "text": '{"n":1}'}, {"type": "text", "text": "more"}]}
    view = results.result_view(call({**result, "structuredContent": {"n": 1}}))
    assert view is not None
    assert [item.source for item in view.items] == ["more"]


@pytest.mark.parametrize("kind", Call.ErrorKind.values)
def test_every_kind_of_error_has_a_hint(kind: str) -> None:
    html = render(status="failed", error_kind=kind, error_message="went wrong")
    assert results.HINTS[kind].split(".")[0].split('"')[0][:40].replace("'", "&#x27;") in html
    assert "went wrong" in html


def test_a_failure_is_told_once_and_in_the_words_of_the_tool() -> None:
    subject = "tool 't' of member 'kitchen': "
    result = {"content": [{"type": "text", "text": "The cellar is flooded."}], "isError": True}
    html = render(result, status="failed", error_kind="tool", error_message=f"{subject}The cellar is flooded.")
    assert html.partition("Whole result")[0].count("The cellar is flooded.") == 1
    for kind in ("tool", "timeout"):
        html = render(status="failed", error_kind=kind, error_message=f"{subject}no answer <in> time")
        assert html.count("no answer &lt;in&gt; time") == 1
        assert "kitchen" not in html


def test_every_mismatch_with_the_output_schema_is_told() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "rows": {"type": "array", "items": {"type": "string"}}},
        "required": ["n", "rows", "more"],
    }
    html = render({"content": [], "structuredContent": {"n": "x", "rows": ["a", 5]}}, schema)
    for error in (
        "n: &#x27;x&#x27; is not of type",
        "rows.1: 5 is not of type",
        "more: &#x27;more&#x27; is a required",
    ):
        assert f"<li>{error}" in html


def test_a_stored_call_has_the_addresses_of_its_files() -> None:
    content = [{"type": "image", "data": PNG, "mimeType": "image/png"}, {"type": "text", "text": "x" * 200_000}]
    html = render({"content": content, "structuredContent": [1]}, pk=7)
    for part in ("0", "1", "structured", "result"):
        assert f'href="/admin/roster/call/7/file/{part}/" download' in html
    assert 'data-show-all="/admin/roster/call/7/file/1/"' in html
    assert "/file/" not in render({"content": content})


def test_there_are_hints_only_for_existing_kinds_of_error() -> None:
    assert set(results.HINTS) == set(Call.ErrorKind.values)


def test_nothing_is_shown_for_a_call_that_has_not_ended() -> None:
    assert results.result_view(call(status="running")) is None
    assert render(status="queued").strip() == ""


def test_an_empty_result_is_shown_as_empty() -> None:
    assert "The result is empty." in render({"content": []})


@pytest.mark.parametrize("result", [None, [], "x", {"content": "x"}, {"content": [None, 5, [], {}]}, {"content": {}}])
def test_a_result_of_any_form_is_shown(result: Any) -> None:
    assert '<div class="result">' in render(result)


def nested(depth: int) -> Any:
    value: Any = "core"
    for _ in range(depth):
        value = {"a": [value]}
    return value


LARGE_RESULTS = {
    "a deep structure": {"structuredContent": nested(40)},
    "deep text": {"content": [{"type": "text", "text": '{"a":' * 1000 + "1" + "}" * 1000}]},
    "deeper text": {"content": [{"type": "text", "text": "[" * 90_000}]},
    "many nodes": {"structuredContent": {"rows": [{"n": n, "m": n} for n in range(30_000)]}},
    "long text": {"content": [{"type": "text", "text": "x" * 3_000_000}]},
    "long strings": {"structuredContent": ["x" * 100_000] * 100},
    "many things": {"content": [{"type": "text", "text": "x"}] * 20_000},
    "quotes": {"content": [{"type": "text", "text": "# x\n" + ">" * 45_000}]},
    "brackets": {"content": [{"type": "text", "text": "# x\n" + "[" * 45_000}]},
    "links": {"content": [{"type": "text", "text": "# x\n" + "[a](" * 11_000}]},
    "emphasis": {"content": [{"type": "text", "text": "# x\n" + "*a_ " * 11_000}]},
    "backticks": {"content": [{"type": "text", "text": "# x\n" + "".join("`" * n + " " for n in range(300))}]},
    "lists": {"content": [{"type": "text", "text": "# x\n" + "".join("  " * n + "- a\n" for n in range(200))}]},
    "stars": {"content": [{"type": "text", "text": "**" + "a**" * 15_000}]},
    "a wide table": {"content": [{"type": "text", "text": "|a" * 200 + "|\n" + "|-" * 200 + "|\n" + "|1|\n" * 5000}]},
}


@pytest.mark.parametrize("result", LARGE_RESULTS.values(), ids=LARGE_RESULTS.keys())
def test_a_large_or_deep_result_is_shown_in_part_and_quickly(result: Any) -> None:
    started_at = time.thread_time()
    html = render(result)
    assert time.thread_time() - started_at < 3, "seconds of CPU"
    assert len(html) < 2_500_000
    assert_harmless(html)

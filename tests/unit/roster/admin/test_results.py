"""What a page shows of a result: the thing it is, and nothing that a member could do to whoever looks."""

from __future__ import annotations

import base64
import json
import re
import time
from html.parser import HTMLParser
from typing import Any

import pytest
from django.template.loader import render_to_string

from roster.admin import present
from roster.admin.calls import results
from roster.models import Call

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"pixels").decode()
EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    """Every tag and attribute of a page, as a browser would read them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def of(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.found if name == tag]


def call(result: Any = None, **columns: Any) -> Call:
    return Call(**{"tool_name": "t", "timeout": 1, "status": "succeeded", "result": result, **columns})


def drawn(result: Any = None, output_schema: dict[str, Any] | None = None, **columns: Any) -> str:
    view = results.result_view(call(result, **columns), output_schema)
    return render_to_string("admin/roster/result.html", {"view": view})


def of_text(text: str) -> str:
    return drawn({"content": [{"type": "text", "text": text}]})


def assert_harmless(html: str) -> None:
    for tag, attributes in Tags(html).found:
        assert tag not in ("script", "style", "iframe", "object", "embed", "svg", "form", "base", "link", "meta"), tag
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name != "style", tag
            if name in ("href", "src"):
                assert re.match(r"https?://|data:(image/(png|jpeg|gif|webp|bmp)|audio/[\w-]+);base64,", value), value


HOSTILE = [
    EVIL,
    f"# heading {EVIL}",
    "[click](javascript:alert(1)) and **bold**",
    "[click](JaVaScRiPt&#58;alert(1)) **bold**",
    "[click](data:text/html;base64,PHNjcmlwdD4=) **bold**",
    "[click](vbscript:x) **bold** <javascript:alert(1)>",
    '[click](https://fine.example/"onmouseover="alert(1)) **bold**',
    "![x](https://evil.example/track.png) **bold**",
    "**bold**\n\n<div style='position:fixed'>over all</div>\n\n<iframe src=//evil.example></iframe>",
    f"```{EVIL}\n{EVIL}\n```",
    f"|a|b|\n|-|-|\n|{EVIL}|x|",
    '[a][b] **bold**\n\n[b]: javascript:alert(1) "t"',
    "<https://user@evil.example/%0Ajavascript:alert(1)> **bold**",
    json.dumps({EVIL: [EVIL, {EVIL: EVIL}]}),
    "\u202e" + EVIL,
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_does_nothing_wherever_it_stands(text: str) -> None:
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
    html = drawn(
        {"content": parts, "structuredContent": {text: text}, "_meta": {text: text}},
        {"type": "object", "required": [text + "!"]},
        status="failed",
        error_kind="tool",
        error_message=text,
        error_data={text: text},
    )
    assert_harmless(html)
    assert not Tags(html).of("img")


@pytest.mark.parametrize(
    ("address", "leads"),
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
def test_links_lead_to_the_web_alone(address: str, leads: bool) -> None:
    assert present.leads_to_the_web(address) is leads
    html = drawn({"content": [{"type": "resource_link", "uri": address, "name": "n"}]})
    assert [link["href"] for link in Tags(html).of("a")] == ([address] if leads else [])


def test_links_of_markdown_open_beside_the_page_and_tell_nothing_of_it() -> None:
    link = Tags(of_text("**see** [there](https://example.org/x)")).of("a")[0]
    assert link == {"href": "https://example.org/x", "target": "_blank", "rel": "noopener noreferrer nofollow"}


def test_markdown_is_laid_out_below_the_headings_of_the_page() -> None:
    html = of_text("# Title\n\n- one\n- two\n\n|a|b|\n|-|-|\n|1|2|\n\n```python\nx < 1\n```")
    for piece in ("<h3>Title</h3>", "<li>one</li>", "<td>1</td>", "<pre><code>x &lt; 1\n</code></pre>"):
        assert piece in html


@pytest.mark.parametrize("text", ["plain words", "2 * 3 * 4", "snake_case_name", "a - b", "C:\\path [x](y)"])
def test_plain_text_stays_as_it_is(text: str) -> None:
    view = results.result_view(call({"content": [{"type": "text", "text": text}]}))
    assert view is not None
    assert [item.kind for item in view.items] == ["text"]


def test_text_that_is_json_is_a_tree() -> None:
    html = of_text('{"name": "x", "n": [1, true, null]}')
    assert '<span class="json-key">name</span>: <span class="json-string">&quot;x&quot;</span>' in html
    assert "[ 3 items ]" in html


def test_a_picture_is_shown_and_an_svg_is_only_read() -> None:
    svg = base64.b64encode(b"<svg onload='alert(1)'></svg>").decode()
    html = drawn(
        {
            "content": [
                {"type": "image", "data": PNG, "mimeType": "image/png"},
                {"type": "image", "data": svg, "mimeType": "image/svg+xml"},
            ]
        }
    )
    assert [image["src"] for image in Tags(html).of("img")] == [f"data:image/png;base64,{PNG}"]
    assert "&lt;svg onload=" in html


def test_a_picture_that_is_none_of_its_type_is_not_shown() -> None:
    data = base64.b64encode(b"<html>").decode()
    assert not Tags(drawn({"content": [{"type": "image", "data": data, "mimeType": "image/png"}]})).of("img")


def test_sound_can_be_played() -> None:
    data = base64.b64encode(b"RIFFsound").decode()
    html = drawn({"content": [{"type": "audio", "data": data, "mimeType": "audio/wav; codecs=1"}]})
    assert Tags(html).of("audio")[0]["src"] == f"data:audio/wav;base64,{data}"


def test_pictures_share_one_bound() -> None:
    data = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"x" * 3_000_000).decode()
    html = drawn({"content": [{"type": "image", "data": data, "mimeType": "image/png"}] * 3})
    assert len(Tags(html).of("img")) == 1
    assert "too large to show here" in html


@pytest.mark.parametrize(
    ("value", "schema", "said"),
    [
        ({"n": 1}, None, "has no output schema"),
        ({"n": 1}, {"type": "object", "properties": {"n": {"type": "integer"}}}, ">matches the output schema"),
        ({"n": "x"}, {"type": "object", "properties": {"n": {"type": "integer"}}}, "n: &#x27;x&#x27; is not of type"),
        ({"n": 1}, {"type": "nonsense"}, "the output schema is broken"),
    ],
)
def test_structured_content_is_held_against_the_output_schema(value: Any, schema: Any, said: str) -> None:
    assert said in drawn({"content": [], "structuredContent": value}, schema)


def test_a_text_that_repeats_the_structured_content_is_left_out() -> None:
    result = {"content": [{"type": "text", "text": '{"n":1}'}, {"type": "text", "text": "more"}]}
    view = results.result_view(call({**result, "structuredContent": {"n": 1}}))
    assert view is not None
    assert [item.source for item in view.items] == ["more"]


@pytest.mark.parametrize("kind", Call.ErrorKind.values)
def test_every_kind_of_error_has_a_hint(kind: str) -> None:
    html = drawn(status="failed", error_kind=kind, error_message="went wrong")
    assert results.HINTS[kind].split(".")[0].split('"')[0][:40].replace("'", "&#x27;") in html
    assert "went wrong" in html


def test_there_are_no_hints_for_errors_that_are_not() -> None:
    assert set(results.HINTS) == set(Call.ErrorKind.values)


def test_nothing_is_shown_of_a_call_that_is_not_over() -> None:
    assert results.result_view(call(status="running")) is None
    assert drawn(status="queued").strip() == ""


def test_an_empty_result_says_so() -> None:
    assert "The result is empty." in drawn({"content": []})


@pytest.mark.parametrize("result", [None, [], "x", {"content": "x"}, {"content": [None, 5, [], {}]}, {"content": {}}])
def test_a_result_of_any_form_is_shown(result: Any) -> None:
    assert '<div class="result">' in drawn(result)


def nested(depth: int) -> Any:
    value: Any = "core"
    for _ in range(depth):
        value = {"a": [value]}
    return value


HUGE = {
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


@pytest.mark.parametrize("result", HUGE.values(), ids=HUGE.keys())
def test_what_is_huge_or_twisted_is_shown_in_part_and_soon(result: Any) -> None:
    began = time.thread_time()
    html = drawn(result)
    assert time.thread_time() - began < 3, "seconds of CPU"
    assert len(html) < 2_500_000
    assert_harmless(html)

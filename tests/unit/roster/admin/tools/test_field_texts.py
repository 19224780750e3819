"""The descriptions of fields, laid out from Markdown. Schemas come from members, so nothing in them is trusted."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from roster.admin.calls.items import short_prose
from roster.admin.tools import field_texts as module
from roster.admin.tools.field_texts import field_texts


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, list[tuple[str, str | None]]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, attrs))


def schema_of(**descriptions: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"description": text} for name, text in descriptions.items()}}


def test_emphasis_code_and_links_are_laid_out_in_a_line() -> None:
    text = "One of `a` or **b**, see [the list](https://example.org/list).\n- not a list"

    assert short_prose(text) == (
        "One of <code>a</code> or <strong>b</strong>, see "
        '<a href="https://example.org/list" target="_blank" rel="noopener noreferrer nofollow">the list</a>.'
        "\n- not a list"
    )


@pytest.mark.parametrize(
    "text",
    [
        "[click](javascript:alert(1))",
        "[click](data:text/html,x)",
        "<script>alert(1)</script> `x`",
        "<img src=x onerror=alert(1)>",
        "![x](https://example.org/x.png)",
        "<javascript:alert(1)>",
        '[x](https://example.org/" onclick="alert(1))',
    ],
)
def test_html_pictures_and_other_links_stay_text(text: str) -> None:
    tags = Tags()
    tags.feed(short_prose(text))

    assert {name for name, _ in tags.found} <= {"code", "a"}
    assert all(
        (dict(attributes)["href"] or "").startswith("https://") for name, attributes in tags.found if name == "a"
    )


def test_control_characters_are_replaced_and_long_descriptions_end() -> None:
    assert short_prose("a\u202eb") == "a\ufffdb"
    assert len(short_prose("x" * 10_000)) <= 600


def test_each_description_with_markdown_comes_once_from_everywhere_in_the_schema() -> None:
    schema = {
        **schema_of(plain="no signs", code="a `b`", same=" a `b`\r\n"),
        "$defs": {"place": {"anyOf": [{"description": "the *city*"}]}},
    }

    assert [text for text, _ in field_texts(schema)] == ["a `b`", "the *city*"]


def test_a_property_with_the_name_description_is_no_description() -> None:
    assert field_texts({"properties": {"description": {"type": "string"}}}) == []


def test_a_long_description_has_lists_and_headings() -> None:
    ((_, html),) = field_texts(schema_of(long="# Title\n\n- `one`\n- two\n\n" + "word " * 100))

    assert "<h3>Title</h3>" in html
    assert "<li><code>one</code></li>" in html


def test_a_hostile_schema_costs_a_bounded_amount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ALL", 100)
    texts = field_texts(schema_of(**{f"field{number}": f"`{number}` " + "x" * 30 for number in range(50)}))
    assert len(texts) == 2

    deep: dict[str, Any] = {"description": "`too deep`"}
    for _ in range(200):
        deep = {"properties": {"below": deep}}
    assert field_texts(deep) == []

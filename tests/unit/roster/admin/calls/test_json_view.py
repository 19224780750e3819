"""JSON as tables and trees, whatever a member sends."""

from __future__ import annotations

import time
from typing import Any

import pytest

from roster.admin.calls import items, json_view


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([{"n": 1, "name": "a"}, {"n": 2, "more": [1]}], ["n", "name", "more"]),
        ({"total": 2, "rows": [{"<b>": 1}, {}]}, ["&lt;b&gt;"]),
        ([{"a": 1}], []),
        ([{}, {}], []),
        ([{"a": 1}, 2], []),
        ([1, 2], []),
        ("text", []),
        ({}, []),
    ],
)
def test_lists_of_objects_are_tables(value: Any, expected: list[str]) -> None:
    html = json_view.json_tables(value)
    assert [part.partition("</th>")[0] for part in html.split('<th scope="col">')[1:]] == expected


def test_cells_have_the_values_and_no_html() -> None:
    html = json_view.json_tables([{"a": "<i>", "b": None, "c": {"d": ["<u>"]}}, {"a": 5, "b": True, "c": ""}])
    for cell in ("<td>&lt;i&gt;</td>", "<td>null</td>", "<td>true</td>", '<td class="json-amount">5</td>', "<td></td>"):
        assert cell in html
    assert "{ &quot;d&quot;: [ &quot;&lt;u&gt;&quot; ] }" in html


def test_a_long_and_wide_list_is_a_table_of_its_beginning() -> None:
    rows = [{f"column {number}": "x" * 5_000 for number in range(100)} for _ in range(500)]
    html = json_view.json_tables(rows)
    assert html.count("<tr>") == json_view.MAX_ROWS + 1
    assert "the first 200 of 500 rows and 20 of 100 columns" in html
    assert len(html) < 2_500_000


def test_json_is_read_only_as_far_as_it_is_shown() -> None:
    value = [{"n": number} for number in range(1_000_000)]
    started_at = time.thread_time()
    text, is_cut = json_view.json_text(value, 1_000)
    assert time.thread_time() - started_at < 0.5, "seconds of CPU"
    assert (len(text), is_cut) == (1_000, True)
    assert json_view.json_text({"a": [1]}, 1_000) == ('{\n  "a": [\n    1\n  ]\n}', False)


def test_a_megabyte_of_json_is_a_tree_and_a_table() -> None:
    text = "[" + ", ".join(f'{{"number": {number}}}' for number in range(50_000)) + "]"
    item = items.text_item(text)
    assert (item.kind, item.is_json, item.is_cut) == ("JSON", True, True)
    assert "json-table" in item.html
    assert "json-tree" in item.html


def test_a_list_of_tasks_has_boxes() -> None:
    item = items.text_item("- [ ] open\n- [x] done")
    assert item.kind == "Markdown"
    assert "<li>☐ open</li>" in item.html
    assert "<li>☑ done</li>" in item.html


def test_a_text_with_colours_is_copied_without_their_codes() -> None:
    item = items.text_item("\x1b[31mred\x1b[0m")
    assert '<span class="ansi-red">red</span>' in item.html
    assert item.source == "red"


@pytest.mark.parametrize(
    ("value", "is_open"),
    [
        ([{"a": 1}, {"a": 2}], False),
        ({"rows": [{"a": 1}, {"a": 2}]}, False),
        ({"total": 2, "rows": [{"a": 1}, {"a": 2}]}, True),
        ({str(number): [{"a": 1}, {"a": 2}] for number in range(4)}, True),
    ],
)
def test_the_tree_beside_a_table_is_open_if_it_has_more(value: Any, is_open: bool) -> None:
    assert ('<details class="result-source" open><summary>As a tree' in items.json_item(value).html) is is_open


@pytest.mark.parametrize(
    "text",
    [
        r'{"\ud800": "\udc00 end"}',
        r'[{"a\udfff": 1, "b": "\ud83d"}, {"a\udfff": 2}]',
        r'{"deep": [[{"a": "\u0000"}]]}',
    ],
)
def test_escapes_of_characters_that_no_page_can_send_are_replaced(text: str) -> None:
    item = items.text_item(text)
    for part in (item.html, item.source):
        assert "\N{REPLACEMENT CHARACTER}" in part
        assert part.encode()
    assert items.text_item(r'{"a": "\ud83d\ude00"}').source == '{\n  "a": "\N{GRINNING FACE}"\n}'


def test_json_that_no_database_can_store_is_shown_as_its_text() -> None:
    text = r'{"a": "\ud800", "b": ' + "[" * 500 + "]" * 500 + "}"
    item = items.text_item(text)
    assert (item.kind, item.source) == ("text", text)

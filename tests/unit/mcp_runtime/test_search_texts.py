"""The searchable text of a call."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_runtime.calls import search_texts


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": [{"type": "text", "text": "grüezi"}, {"type": "text", "text": "zwei"}]}, "grüezi zwei"),
        ({"content": [{"type": "resource", "resource": {"uri": "note://7", "text": "seven"}}]}, "note://7 seven"),
        ({"content": [{"type": "resource_link", "uri": "note://8", "name": "eight"}]}, "note://8 eight"),
        ({"content": [{"type": "image", "data": "QUJD"}], "structuredContent": {"size": [3, "wide"]}}, "3 wide"),
        ({"content": [{"type": "text", "text": "a"}], "structuredContent": {"b": "b"}}, "a"),
        ({"content": "no list"}, ""),
        ({"content": [None, 3, {"type": "text", "text": 5}]}, ""),
        (None, ""),
    ],
)
def test_the_text_of_a_result_is_what_people_read_of_it(result: Any, text: str) -> None:
    assert search_texts.text_of_result(result) == text


def test_the_text_has_the_values_of_arguments_in_their_order_and_no_names() -> None:
    arguments = {"path": "/tmp/a-b.txt", "lines": [1, 2.5, True, None], "deep": {"er": ["x"]}}
    assert search_texts.searchable(arguments, "", "it broke").split() == [
        "tmp",
        "a",
        "b",
        "txt",
        "1",
        "2",
        "5",
        "x",
        "it",
        "broke",
    ]


def test_the_text_is_bounded_whatever_arguments_and_results_are() -> None:
    huge = {"text": "x" * 5_000_000, "more": ["y" * 100] * 100_000, "empty": [[]] * 100_000}
    result = {"content": [{"type": "text", "text": "z" * 1_000_000}] * 1000}
    text = search_texts.searchable(huge, search_texts.text_of_result(result), "e" * 9_000)
    assert len(text) <= search_texts.MAX_ARGUMENTS + search_texts.MAX_RESULT + 1
    assert search_texts.searchable([[]] * 1_000_000, "", "") == ""


def test_the_text_can_be_stored_in_every_database() -> None:
    text = search_texts.searchable({"text": "nul\0nul"}, search_texts.text_of_result(_texts("a\ud800b")), "")
    text.encode()
    assert "\0" not in text


def test_the_words_of_a_search_are_bounded_and_have_no_syntax() -> None:
    assert search_texts.words_of_search("\"a\" OR b* NEAR(c, d) -e col:f ^g 'h' \\i") == [
        "a",
        "OR",
        "b",
        "NEAR",
        "c",
        "d",
        "e",
        "col",
        "f",
        "g",
        "h",
        "i",
    ]
    assert len(search_texts.words_of_search("w " * 1000)) == search_texts.MAX_WORDS
    assert max(map(len, search_texts.words_of_search("w" * 1000))) == search_texts.MAX_WORD


def _texts(*texts: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text} for text in texts]}

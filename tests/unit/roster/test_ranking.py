"""The order of what a search finds."""

from __future__ import annotations

import pytest

from roster.ranking import MAX_QUERY, MAX_TEXT, MAX_WORDS, Texts, parts_of, score, words_of


def best(query: str, *texts: Texts) -> list[str]:
    """The names of what is found, the best first."""
    found = [(score(words_of(query), each), each.name) for each in texts]
    return [name for points, name in sorted(found, key=lambda pair: -pair[0]) if points]


BILLING = [
    Texts(f"{verb}_billing", context="accounts") for verb in ("list", "get", "create", "update", "share", "delete")
]


def test_only_what_has_every_word_is_found() -> None:
    assert best("share billing", *BILLING) == ["share_billing"]
    assert best("share nothing", *BILLING) == []
    assert best("", *BILLING) == []


def test_a_name_counts_more_than_a_title_and_a_description_least() -> None:
    assert best(
        "invoice",
        Texts("a", description="Sends an invoice."),
        Texts("b", title="New invoice"),
        Texts("c", context="invoice"),
        Texts("invoice"),
        Texts("send_invoice"),
    ) == ["invoice", "send_invoice", "b", "c", "a"]


def test_a_whole_word_counts_more_than_the_beginning_of_one_and_this_more_than_another_part() -> None:
    assert best("art", Texts("start_all"), Texts("article_list"), Texts("list_art")) == [
        "list_art",
        "article_list",
        "start_all",
    ]


def test_the_words_of_a_name_in_their_order_are_the_best_match() -> None:
    assert best("get order", Texts("order_get_all"), Texts("getOrder"), Texts("order_get")) == [
        "getOrder",
        "order_get",
        "order_get_all",
    ]


def test_words_may_be_in_different_texts() -> None:
    assert best("kitchen light", Texts("light_on", context="kitchen"), Texts("light_on", context="hall")) == [
        "light_on"
    ]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("listOpenOrders", ["list", "open", "orders"]),
        ("HTTPServer2", ["http", "server", "2"]),
        ("a-b.c_d", ["a", "b", "c", "d"]),
        ("Größe_ändern", ["grösse", "ändern"]),
        ("日本", ["日本"]),
        ("", []),
    ],
)
def test_the_words_of_a_name(text: str, parts: list[str]) -> None:
    assert parts_of(text) == parts


def test_a_text_in_letters_without_case_is_found() -> None:
    assert best("日本", Texts("日本_list"), Texts("list")) == ["日本_list"]


def test_a_query_is_bounded() -> None:
    assert words_of("x\0y " * 500) == ["x", "y"] * (MAX_WORDS // 2)
    assert sum(map(len, words_of("x" * 5 * MAX_QUERY))) == MAX_QUERY


def test_only_the_beginning_of_a_long_description_is_searched() -> None:
    description = f"early {'x' * MAX_TEXT} late"
    assert best("early", Texts("a", description=description)) == ["a"]
    assert best("late", Texts("a", description=description)) == []

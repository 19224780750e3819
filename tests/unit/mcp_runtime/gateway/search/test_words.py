from __future__ import annotations

import pytest

from mcp_runtime.gateway.search.synonyms import GROUPS, synonyms
from mcp_runtime.gateway.search.words import stem, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("getUserID", ["get", "user", "id"]),
        ("HTTPServer2Config", ["http", "serv", "config"]),
        ("notes__add-note.v2", ["note", "add", "note"]),
        ("SCREAMING_SNAKE", ["scream", "snak"]),
        ("What are the weather alerts of my city?", ["weath", "alert", "citi"]),
        ("", []),
        ("a the of", []),
        ("Größe ändern", ["grösse", "ändern"]),
        ("天気予報 を調べる", ["天気", "気予", "予報", "を調", "調べ", "べる"]),
        ("天気APIの", ["天気", "api", "の"]),
    ],
)
def test_a_text_is_split_into_words_without_notation_and_frequent_words(text: str, words: list[str]) -> None:
    assert [word for word in words_of(text) if not word.isdigit()] == words


def test_a_word_that_is_only_data_is_ignored() -> None:
    assert words_of("x" * 41) == []


@pytest.mark.parametrize(
    "forms",
    [
        "schedule schedules scheduled scheduling scheduler",
        "repository repositories",
        "calculate calculates calculating calculation calculator",
        "run runs running runner",
        "convert converts converted converter",
        "search searches searched searching",
    ],
)
def test_forms_of_a_word_have_one_stem(forms: str) -> None:
    assert len({stem(form) for form in forms.split()}) == 1


def test_short_words_stay_apart() -> None:
    assert len({stem(word) for word in ("use", "bus", "red", "bed", "order", "is", "us")}) == 7


def test_synonyms_go_both_ways_and_no_word_is_its_own() -> None:
    table = synonyms()
    assert stem("remove") in table[stem("delete")]
    assert stem("delete") in table[stem("remove")]
    assert not [word for word, others in table.items() if word in others]


def test_each_group_has_several_words() -> None:
    assert not [line for line in GROUPS.strip().splitlines() if len({stem(word) for word in line.split()}) < 2]

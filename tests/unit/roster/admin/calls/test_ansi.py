"""Texts of terminals: their colours are classes, everything else that a terminal obeys is gone, and nothing is HTML."""

from __future__ import annotations

import re
import time

import pytest

from roster.admin.calls import ansi

ESC = "\x1b"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain <b>", "plain &lt;b&gt;"),
        (f"{ESC}[31mred{ESC}[0m plain", '<span class="ansi-red">red</span> plain'),
        (f"{ESC}[1;4;32mdone{ESC}[22m", '<span class="ansi-green ansi-bold ansi-underlined">done</span>'),
        (f"{ESC}[41;97mx{ESC}[m.", '<span class="ansi-white ansi-on-red">x</span>.'),
        (f"{ESC}[38;5;196mx{ESC}[39my", '<span class="ansi-red">x</span>y'),
        (f"{ESC}[38;2;20;20;250mx", '<span class="ansi-blue">x</span>'),
        (f"{ESC}[48:5:21mx", '<span class="ansi-on-blue">x</span>'),
        (f"{ESC}[31m{ESC}[999;98mx", '<span class="ansi-red">x</span>'),
        (f"{ESC}[38;5m{ESC}[38;2;1mx", "x"),
        (f"{ESC}[2J{ESC}[1;1H{ESC}]0;title\x07{ESC}]8;;javascript:alert(1){ESC}\\link{ESC}]8;;\x07", "link"),
        (f"{ESC}]52;c;AAAA\x9cx{ESC}Pq{ESC}\\y{ESC}(Bz\x9b31mw", 'xyz<span class="ansi-red">w</span>'),
        ("a\x08b\x00c\r\nd\te\rf", "abc\nd\tef"),
        (f"end {ESC}", "end "),
        (f"end {ESC}[3", "end "),
        (f"{ESC}[31m<script>", '<span class="ansi-red">&lt;script&gt;</span>'),
        (f'{ESC}[31"><img src=x>m', "&gt;&lt;img src=x&gt;m"),
    ],
)
def test_a_text_of_a_terminal_becomes_spans_with_classes(text: str, expected: str) -> None:
    html = ansi.to_html(text)
    assert html == expected
    tags = re.findall(r"<[^>]*>", html)
    assert all(re.fullmatch(r'</span>|<span class="ansi[a-z -]*">', tag) for tag in tags)


def test_without_codes_only_the_words_remain() -> None:
    assert ansi.without_codes(f"{ESC}[31mred{ESC}[0m\tand{ESC}]0;t\x07 so\r\n") == "red\tand so\n"


@pytest.mark.parametrize(
    "text",
    [f"{ESC}[31mx" * 20_000, ESC * 100_000, f"{ESC}[" * 50_000, f"{ESC}]" * 50_000, f"{ESC}[" + "1;" * 50_000],
)
def test_a_hostile_text_takes_little_time_and_space(text: str) -> None:
    started_at = time.thread_time()
    html = ansi.to_html(text)
    assert time.thread_time() - started_at < 2, "seconds of CPU"
    assert html.count("<span") <= ansi.MAX_SPANS
    assert ESC not in html

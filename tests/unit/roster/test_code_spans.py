"""Code between backquotes in a text of the hall."""

from __future__ import annotations

import pytest

from roster.templatetags.hall import code_spans


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("no code", "no code"),
        ("run `ls -l` now", "run <code>ls -l</code> now"),
        ("`a` and `b`", "<code>a</code> and <code>b</code>"),
        ("a ` alone", "a ` alone"),
        ("`a` and ` alone", "<code>a</code> and ` alone"),
        ("<b>`<i>`", "&lt;b&gt;<code>&lt;i&gt;</code>"),
        ("", ""),
    ],
)
def test_parts_between_backquotes_are_code_and_everything_is_escaped(text: str, html: str) -> None:
    assert code_spans(text) == html

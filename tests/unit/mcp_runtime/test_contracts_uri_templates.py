"""Whether a URI may come from resource templates."""

from __future__ import annotations

import pytest

from mcp_runtime.contracts.uri_templates import MAX_COMPARED, matcher


@pytest.mark.parametrize(
    ("template", "uri", "may_be", "surely_may_be"),
    [
        ("db://{table}", "db://cars", True, True),
        ("db://{table}", "db://cars/rows", True, False),  # a lenient server takes it, and RFC 6570 never makes it
        ("db://{table}", "db://cars?x=1", True, False),
        ("db://{table}", "DB://cars", True, False),
        ("db://{table}", "dc://cars", False, False),
        ("db://{table}/rows", "db://cars/rows", True, True),
        ("db://{table}/rows", "db://cars", False, False),
        ("db://{a,b}", "db://x,y", True, True),
        ("db://{+path}", "db://a/b?c#d", True, True),
        ("db://{path*}", "db://a/b", True, True),
        ("db://x{?q}", "db://x?q=1", True, True),
        ("{+anything}", "x:\ny", True, True),
        ("a.c{x}", "abc", False, False),
        ("x{}y", "xy", True, True),
        ("x{y", "x{y", True, True),
        ("\ud800{x}", "\ud800", True, True),
    ],
)
def test_a_uri_is_compared_with_a_template(template: str, uri: str, may_be: bool, surely_may_be: bool) -> None:
    assert matcher([template], is_strict=False)(uri) is may_be
    assert matcher([template], is_strict=True)(uri) is surely_may_be


def test_one_of_several_templates_is_enough() -> None:
    assert matcher(["a{x}", "b{x}"], is_strict=True)("bc")
    assert not matcher([], is_strict=False)("bc")


@pytest.mark.parametrize("is_strict", [True, False])
def test_what_is_too_large_to_compare_counts_as_held_and_never_as_agreed(is_strict: bool) -> None:
    for templates, uri in ((["a" * MAX_COMPARED, "b"], "c"), (["{x}"], "c" * (MAX_COMPARED + 1))):
        assert matcher(templates, is_strict=is_strict)(uri) is not is_strict

"""Numbers that count something: one format on all pages, and digits of one width."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from roster.admin import present

ROOT = Path(__file__).resolve().parents[4]
TEMPLATES = sorted((ROOT / "roster" / "templates").rglob("*.html"))
SHOWN = re.compile(r"\{\{ ?([\w.]+) ?\}\}")
COUNTED = re.compile(
    r"(count|total|tokens|tools|calls|failed|left_out|matches|shown|start_index|end_index|scanned|repeats|restarts"
    r"|\w+_count|\w+_total|total_\w+|max_\w+)$"
)
# Values of attributes for scripts and addresses, the paths of plots, and texts that are in the format already.
NO_NUMBERS = {"max_found", "all_tools", "all_calls", "top_calls"}
PLOTS = {"plot.html", "spark.html"}


def test_each_number_of_a_template_has_the_format_of_the_hall() -> None:
    faults = [
        f"{template.relative_to(ROOT)}: {{{{ {name} }}}} needs |number"
        for template in TEMPLATES
        for text in [template.read_text()]
        for name in SHOWN.findall(text)
        if COUNTED.match(name.split(".")[-1]) or f"{name}|pluralize" in text
        if name not in NO_NUMBERS and not (template.name in PLOTS and name in ("calls", "failed"))
    ]
    assert not faults, "\n".join(faults)


def test_only_one_style_sets_the_width_of_digits() -> None:
    styles = (ROOT / "roster" / "static" / "roster").glob("*.css")
    assert [style.name for style in styles if "tabular-nums" in style.read_text()] == ["admin.css"]


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (999, "999"), (1000, "1,000"), (-1234567, "-1,234,567"), ("no limit", "no limit")]
)
def test_a_number_has_separators_of_thousands_and_other_values_stay(value: object, text: str) -> None:
    assert present.number(value) == text

"""JSON for people: as a tree that folds without a script, and as tables where it is a list of objects.

static/roster/json_tree.js adds the search, and the parts of a large value that the tree leaves out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from django.utils.html import escape, format_html
from django.utils.safestring import SafeString, mark_safe

MAX_TREE_NODES = 2_000
MAX_TREE_DEPTH = 24
MAX_TREE_TEXT = 2_000
MAX_KEY = 200
MAX_TABLES = 3
MAX_ROWS = 200
MAX_COLUMNS = 20
MAX_CELL = 300
MIN_ROWS = 2  # fewer are easier to read as a tree


def bounded(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}… and {len(text) - length:,} more characters"


def json_text(value: Any, length: int) -> tuple[str, bool]:
    """`value` as JSON with indents, and whether it was cut to `length` characters. A long value is not read whole."""
    parts: list[str] = []
    size = 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value):
        parts.append(part)
        size += len(part)
        if size > length:
            return "".join(parts)[:length], True
    return "".join(parts), False


# Trees ------------------------------------------------------------------------------------------------------------


def json_tree(value: Any) -> SafeString:
    """`value` as nested <details>. Nodes, depth and length of texts are bounded."""
    return mark_safe(f'<div class="json-tree">{"".join(_Tree().lines(value))}</div>')  # noqa: S308 - all escaped


@dataclass
class _Tree:
    node_budget: int = field(default=MAX_TREE_NODES)

    def lines(self, value: Any, label: str = "", depth: int = 0) -> Iterator[str]:
        self.node_budget -= 1
        if not isinstance(value, (dict, list)) or not value:
            yield f'<div class="json-leaf">{label}{_leaf(value)}</div>'
            return
        count = f"{len(value):,} {'key' if isinstance(value, dict) else 'item'}{'' if len(value) == 1 else 's'}"
        brackets = "{}" if isinstance(value, dict) else "[]"
        if depth >= MAX_TREE_DEPTH:
            note = f'<span class="json-more">{brackets} {count}, nested too deeply to show here</span>'
            yield f'<div class="json-leaf">{label}{note}</div>'
            return
        is_open = " open" if depth < 2 or (depth < 4 and len(value) <= 5) else ""
        summary = f'{label}<span class="json-count">{brackets[0]} {count} {brackets[1]}</span>'
        yield f"<details{is_open}><summary>{summary}</summary>"
        yield from self._children(value, depth)
        yield "</details>"

    def _children(self, value: dict[str, Any] | list[Any], depth: int) -> Iterator[str]:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for number, (key, item) in enumerate(pairs):
            if self.node_budget <= 0:
                yield f'<div class="json-leaf json-more">… and {len(value) - number:,} more</div>'
                return
            name = bounded(str(key), MAX_KEY)
            yield from self.lines(item, f'<span class="json-key">{escape(name)}</span>: ', depth + 1)


def _leaf(value: Any) -> str:
    if isinstance(value, str):
        text = json.dumps(bounded(value, MAX_TREE_TEXT), ensure_ascii=False)
        return f'<span class="json-string">{escape(text)}</span>'
    word = "boolean" if isinstance(value, bool) else "null" if value is None else "number"
    return f'<span class="json-{word}">{escape(json.dumps(value))}</span>'


# Tables -----------------------------------------------------------------------------------------------------------


def json_tables(value: Any) -> SafeString:
    """The lists of objects in `value`, itself or its own entries, each as a table. Empty if there are none."""
    named = value.items() if isinstance(value, dict) else [("", value)]
    found = ((name, rows) for name, rows in named if _is_tabular(rows))
    return mark_safe("".join(_table(str(name), rows) for name, rows in islice(found, MAX_TABLES)))  # noqa: S308


def tables_have_all(value: Any) -> bool:
    """Whether the tables of `json_tables` show each entry of `value`, apart from what they cut."""
    return _is_tabular(value) or (
        isinstance(value, dict) and len(value) <= MAX_TABLES and all(map(_is_tabular, value.values()))
    )


def _is_tabular(rows: Any) -> bool:
    return (
        isinstance(rows, list)
        and len(rows) >= MIN_ROWS
        and all(isinstance(row, dict) for row in rows)
        and bool(rows[0])
    )


def _table(name: str, rows: list[dict[str, Any]]) -> SafeString:
    shown = rows[:MAX_ROWS]
    names = list(dict.fromkeys(key for row in shown for key in islice(row, 10 * MAX_COLUMNS)))
    columns = names[:MAX_COLUMNS]
    caption = bounded(name, MAX_KEY)
    notes = [f"the first {len(shown):,} of {len(rows):,} rows"] if len(rows) > len(shown) else []
    notes += [f"{len(columns)} of {len(names):,} columns"] if len(names) > len(columns) else []
    head = "".join(f'<th scope="col">{escape(bounded(column, MAX_KEY))}</th>' for column in columns)
    body = "".join(f"<tr>{''.join(_cell(row, column) for column in columns)}</tr>" for row in shown)
    return format_html(
        '<div class="json-table" tabindex="0" role="group" aria-label="{}"><table>{}<thead><tr>{}</tr></thead>'
        "<tbody>{}</tbody></table></div>{}",
        f"{caption or 'Table'}, {len(rows):,} rows",
        format_html("<caption>{}</caption>", caption) if caption else "",
        mark_safe(head),  # noqa: S308 - escaped above
        mark_safe(body),  # noqa: S308 - escaped in _cell
        format_html('<p class="result-message">The table shows {}.</p>', " and ".join(notes)) if notes else "",
    )


def _cell(row: dict[str, Any], column: str) -> str:
    if column not in row:
        return "<td></td>"
    value = row[column]
    if isinstance(value, str):
        return f"<td>{escape(bounded(value, MAX_CELL))}</td>"
    if isinstance(value, (dict, list)):
        text, is_cut = json_text(value, MAX_CELL)
        return f'<td class="json-cell">{escape(" ".join(text.split()))}{"…" if is_cut else ""}</td>'
    kind = "" if value is None or isinstance(value, bool) else ' class="json-amount"'
    return f"<td{kind}>{escape(json.dumps(value))}</td>"

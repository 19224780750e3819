"""Two calls side by side: their arguments, their results, and the differences."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from django.db.models import QuerySet

from mcp_runtime.control.calls import masked_arguments
from roster.admin.calls.lines import escaped
from roster.models import Call

# The limits of each side. At worst a comparison costs the product of both sides' lines, and members decide on results.
MAX_CHARACTERS = 200_000
MAX_LINES = 1_500
MAX_LINE = 2_000
# A line that occurs more often does not help to align the texts, and would cost the most.
COMMON = 5
AROUND = 3  # equal lines that are shown beside those that differ
SCANNED = 100_000


@dataclass(frozen=True)
class Line:
    """A line of both sides. `change`: empty, `changed`, `left` or `right` (only there), or `skipped` (equal lines)."""

    change: str
    left: str
    right: str
    count: int = 0


@dataclass(frozen=True)
class Part:
    title: str
    lines: list[Line]
    is_equal: bool
    is_cut: bool


def previous_of(calls: QuerySet[Call], call: Call) -> int | None:
    """The id of the previous call of the same tool, among the SCANNED calls before this one."""
    earlier = calls.filter(member=call.member_id, tool_name=call.tool_name, pk__lt=call.pk, pk__gte=call.pk - SCANNED)
    return earlier.order_by("-id").values_list("pk", flat=True).first()


def compare(left: Call, right: Call) -> list[Part]:
    """Arguments, and result or error."""
    return [
        part("Arguments", _json(masked_arguments(left)), _json(masked_arguments(right))),
        part("Result", _outcome(left), _outcome(right)),
    ]


def part(title: str, left: str, right: str) -> Part:
    ours, theirs = _lines(left), _lines(right)
    is_cut = any(
        len(text) > MAX_CHARACTERS or text.count("\n") >= MAX_LINES or any(len(line) > MAX_LINE for line in lines)
        for text, lines in ((left, left.splitlines()[:MAX_LINES]), (right, right.splitlines()[:MAX_LINES]))
    )
    return Part(title, list(_differences(ours, theirs)), ours == theirs, is_cut)


def _lines(text: str) -> list[str]:
    return [escaped(line[:MAX_LINE]) for line in text[:MAX_CHARACTERS].splitlines()[:MAX_LINES]]


def _differences(left: list[str], right: list[str]) -> Iterator[Line]:
    often = Counter(right)
    matcher = SequenceMatcher(lambda line: often[line] > COMMON, left, right, autojunk=False)
    for tag, i, i_end, j, j_end in matcher.get_opcodes():
        if tag == "equal":
            yield from _equal(left[i:i_end], is_first=i == 0, is_last=i_end == len(left))
            continue
        for step in range(max(i_end - i, j_end - j)):
            has_left, has_right = i + step < i_end, j + step < j_end
            change = "changed" if has_left and has_right else "left" if has_left else "right"
            yield Line(change, left[i + step] if has_left else "", right[j + step] if has_right else "")


def _equal(lines: list[str], *, is_first: bool, is_last: bool) -> Iterator[Line]:
    """The equal lines next to a difference, and the number of the others."""
    before = 0 if is_first else AROUND
    after = 0 if is_last else AROUND
    if len(lines) <= before + after + 1 or (is_first and is_last):
        yield from (Line("", line, line) for line in lines)
        return
    yield from (Line("", line, line) for line in lines[:before])
    yield Line("skipped", "", "", len(lines) - before - after)
    yield from (Line("", line, line) for line in lines[len(lines) - after :])


def _outcome(call: Call) -> str:
    if not call.is_finished:
        return f"The call is {call.status}."
    if call.result is None:
        data = "" if call.error_data is None else f"\n{_json(call.error_data)}"
        return f"{call.error_kind or call.status}\n{call.error_message}{data}"
    return _json(_with_text_lines(call.result))


def _with_text_lines(result: Any) -> Any:
    """The value as JSON, but with texts line by line, so that differences inside them are visible."""
    if not isinstance(result, dict) or not isinstance(result.get("content"), list):
        return result
    content = [
        {**item, "text": item["text"].splitlines()}
        if isinstance(item, dict) and isinstance(item.get("text"), str) and "\n" in item["text"]
        else item
        for item in result["content"]
    ]
    return {**result, "content": content}


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)

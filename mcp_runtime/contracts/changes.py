"""The changes between two definitions that a member listed under the same name, each with a grade.

A definition is the object as in MCP's lists. Definitions are bounded: a list of changes has at most MAX_CHANGES.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from mcp_runtime.contracts import schemas
from mcp_runtime.contracts.canonical import canonical_json, version_of
from mcp_runtime.contracts.grades import HELD_GRADES, MAX_CHANGES, TOO_LARGE, Change, Grade, pointer, shown
from mcp_runtime.contracts.schemas import change_of_text
from mcp_runtime.contracts.texts import TASK_SUPPORT, new_texts

MAX_COMPARED = 2_000  # changes. A definition with more is not compared part by part

Kind = Literal["tool", "prompt", "resourceTemplate", "instructions"]

# The annotations of MCP: what holds without them, the harmless value, and what the tool says with it.
_HINTS = (
    ("readOnlyHint", False, True, "only reads"),
    ("destructiveHint", True, False, "destroys nothing"),
    ("idempotentHint", False, True, "does nothing more when it is called again with the same arguments"),
    ("openWorldHint", True, False, "reaches nothing outside"),
)


def compare(kind: Kind, before: Any, after: Any) -> list[Change]:
    """Return the changes, the worst first. Empty if both definitions have the same version."""
    if canonical_json(before) == canonical_json(after):
        return []
    if isinstance(before, dict) and isinstance(after, dict):
        before, after = _without_common(before, after)
    changes = list(itertools.islice(_COMPARISONS[kind](before, after), MAX_COMPARED))
    if len(changes) == MAX_COMPARED:
        return [TOO_LARGE]
    # A model reads all texts, also those that say nothing about arguments, such as comments.
    places = {change.place for change in changes if change.grade in HELD_GRADES}
    unseen = ((place, text) for place, text in new_texts(before, after) if places.isdisjoint(_with_parents(place)))
    changes += [Change(Grade.TEXT, place, f"This text is new: {shown(text)}.") for place, text in _first(unseen)]
    if not changes:
        changes = [Change(Grade.NOTATION, "", "It is written in another way, and means the same.")]
    order = list(Grade)
    return sorted(changes, key=lambda change: -order.index(change.grade))[:MAX_CHANGES]


def _without_common(before: dict[str, Any], after: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    common = {key for key in before.keys() & after.keys() if canonical_json(before[key]) == canonical_json(after[key])}
    return _without(before, *common), _without(after, *common)


def _with_parents(place: str) -> list[str]:
    parts = place.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]


def _first(texts: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    return itertools.islice(texts, MAX_CHANGES)


def is_renamed(kind: Kind, before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether a definition is an earlier one under another name.

    Tools and prompts then differ only in their names and titles, and have something else. A resource template is found
    by its URI template, so an earlier one is one with the same name.
    """
    if kind == "resourceTemplate":
        return bool(after.get("name")) and before.get("name") == after.get("name")
    old, new = (_without(definition, "name", "title") for definition in (before, after))
    return bool(old) and version_of(old) == version_of(new)


def _without(definition: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in definition.items() if key not in keys}


def _tool(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Change]:
    yield from schemas.changes_of_input(before.get("inputSchema", {}), after.get("inputSchema", {}), "/inputSchema")
    yield from _output(before.get("outputSchema"), after.get("outputSchema"))
    yield from _annotations(_object(before.get("annotations")), _object(after.get("annotations")))
    yield from _execution(_object(before.get("execution")), _object(after.get("execution")))
    yield from _texts(before, after, "inputSchema", "outputSchema", "annotations", "execution")
    for key in ("annotations", "execution"):
        if not isinstance(before.get(key, {}), dict) or not isinstance(after.get(key, {}), dict):
            yield from filter(None, [change_of_text(before.get(key), after.get(key), f"/{key}", key)])


def _texts(before: dict[str, Any], after: dict[str, Any], *other_keys: str) -> Iterator[Change]:
    for key in sorted((before.keys() | after.keys()) - {*other_keys}):
        if (change := change_of_text(before.get(key), after.get(key), pointer("", key), key)) is not None:
            yield change


def _output(before: Any, after: Any) -> Iterator[Change]:
    if before is None and after is None:
        return
    if before is None:
        yield Change(Grade.WIDER, "/outputSchema", "It says now what its results look like.")
    elif after is None:
        yield Change(Grade.BREAKING, "/outputSchema", "It no longer says what its results look like.")
    else:
        yield from schemas.changes_of_output(before, after, "/outputSchema")


def _annotations(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Change]:
    for key, default, harmless, meaning in _HINTS:
        old, new = before.get(key, default), after.get(key, default)
        if old is new or (canonical_json(old) == canonical_json(new)):
            continue
        place = f"/annotations/{key}"
        if new is harmless:
            yield Change(Grade.SOFTENED, place, f"It says now that it {meaning} ({key} was {shown(old)}).")
        elif old is harmless:
            yield Change(Grade.BREAKING, place, f"It no longer says that it {meaning} ({key} is {shown(new)}).")
        else:
            yield Change(Grade.TEXT, place, f"{key} was {shown(old)} and is {shown(new)}.")
    hints = {key for key, *_ in _HINTS}
    for key in sorted((before.keys() | after.keys()) - hints):
        place = pointer("/annotations", key)
        if (change := change_of_text(before.get(key), after.get(key), place, key)) is not None:
            yield change


def _execution(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Change]:
    old, new = (each.get("taskSupport", "forbidden") for each in (before, after))
    place, sentence = "/execution/taskSupport", f"Calls as tasks were {shown(old)} and are {shown(new)}."
    if canonical_json(old) != canonical_json(new):
        if new == "optional" and old in TASK_SUPPORT:
            yield Change(Grade.WIDER, place, sentence)
        else:
            yield Change(Grade.BREAKING if new == "required" else Grade.NARROWER, place, sentence)
    for key in sorted((before.keys() | after.keys()) - {"taskSupport"}):
        there = pointer("/execution", key)
        if (change := change_of_text(before.get(key), after.get(key), there, key)) is not None:
            yield change


def _prompt(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Change]:
    old, new = (_arguments(prompt.get("arguments")) for prompt in (before, after))
    for name in sorted(old.keys() | new.keys()):
        place = pointer("/arguments", name)
        if name not in new:
            yield Change(Grade.BREAKING, place, f"The argument {shown(name)} was removed.")
            continue
        was_required, is_required = (each.get(name, {}).get("required") is True for each in (old, new))
        if name not in old:
            grade = Grade.BREAKING if is_required else Grade.WIDER
            yield Change(grade, place, f"The {'required ' if is_required else ''}argument {shown(name)} was added.")
        elif is_required != was_required:
            grade = Grade.BREAKING if is_required else Grade.WIDER
            yield Change(grade, place, f"The argument {shown(name)} is {'' if is_required else 'not '}required now.")
        for key in sorted((old.get(name, {}).keys() | new[name].keys()) - {"name", "required"}):
            there = pointer(place, key)
            if (change := change_of_text(old.get(name, {}).get(key), new[name].get(key), there, key)) is not None:
                yield change
    yield from _texts(before, after, "arguments")


def _arguments(arguments: Any) -> dict[str, dict[str, Any]]:
    """Return the arguments of a prompt by name. Without those that have no name."""
    parts = arguments if isinstance(arguments, list) else []
    return {part["name"]: part for part in parts if isinstance(part, dict) and isinstance(part.get("name"), str)}


def _template(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Change]:
    for key, subject in (("uriTemplate", "Its URI"), ("mimeType", "Its content")):
        old, new = before.get(key), after.get(key)
        if canonical_json(old) != canonical_json(new):
            yield Change(Grade.BREAKING, f"/{key}", f"{subject} was {shown(old)} and is {shown(new)}.")
    yield from _texts(before, after, "uriTemplate", "mimeType")


def _instructions(before: Any, after: Any) -> Iterator[Change]:
    return filter(None, [change_of_text(before, after, "", "The text")])


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


_COMPARISONS = {"tool": _tool, "prompt": _prompt, "resourceTemplate": _template, "instructions": _instructions}

"""The library's validators, without the parts that a hostile schema could make endless.

These parts are patterns, unique items and alternatives.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import attrs
import jsonschema
import re2  # type: ignore[import-untyped]
from jsonschema.validators import extend

from mcp_runtime.schemas.quick_checks import fitting
from mcp_runtime.schemas.schema_work import current

# The time of a pattern for one character and one instruction, at worst.
PATTERN_SECONDS = 5e-9
# The library looks up each item in a list of the evaluated items. Longer arrays and objects are not checked here.
MAX_UNEVALUATED = 1000
# Compiled patterns in the cache. A value with more patterns for its keys is not searched for secrets but fully masked.
MAX_COMPILED = 256
# Longer arrays are first checked item by item without the library.
SHORT_ARRAY = 16


@lru_cache
def guarded(cls: Any, has_pattern_properties: bool) -> Any:
    """`cls` with replacements for all parts that a schema could make endless."""
    keywords: dict[str, Any] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties(cls.VALIDATORS["additionalProperties"]),
        "uniqueItems": _unique_items,
    }
    for keyword in ("anyOf", "oneOf"):
        if keyword in cls.VALIDATORS:
            keywords[keyword] = _without_discarded(cls.VALIDATORS[keyword])
    if "exclusiveMinimum" in cls.VALIDATORS:  # before draft 6 `items` means something else
        keywords["items"] = _items(cls.VALIDATORS["items"])
    for keyword in ("unevaluatedItems", "unevaluatedProperties"):
        if keyword in cls.VALIDATORS:
            keywords[keyword] = _unless_many(cls.VALIDATORS[keyword])
    if has_pattern_properties:
        # The library's search of patternProperties uses `re`, which cannot be replaced. So this is not checked here.
        keywords["unevaluatedProperties"] = _unchecked
    guarded: Any = extend(cls, keywords)  # type: ignore[no-untyped-call]
    guarded.evolve = _evolve
    guarded.descend = _descend(guarded.descend)
    guarded.is_valid = _is_valid
    return guarded


def _evolve(validator: Any, **changes: Any) -> Any:
    """Keep the guarded class for a subschema. The library's own evolve uses an unguarded one if there is a `$schema`.

    Every use of a subschema calls this, also through references. So this is the place to check the time.
    """
    current().look()
    return attrs.evolve(validator, **changes)


def _descend(original: Any) -> Any:
    """Use `map` and a function. With a generator, one more frame for each level would reach the recursion limit."""

    def descend(validator: Any, instance: Any, schema: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        work = current()
        work.trifle()  # `true` and `false` are applied without `evolve`
        return map(work.count_error, original(validator, instance, schema, *args, **kwargs))

    return descend


def _is_valid(validator: Any, instance: Any) -> bool:
    """`contains` uses one validator for each item, without `evolve`."""
    work = current()
    work.look()
    before = work.errors
    is_valid = next(validator.iter_errors(instance), None) is None
    work.errors = before
    return is_valid


def _without_discarded(original: Any) -> Any:
    """Do not count the errors of alternatives that do not fit, once another alternative fits."""

    def alternatives(validator: Any, value: Any, instance: Any, schema: Any) -> list[jsonschema.ValidationError]:
        work = current()
        before = work.errors
        errors = list(original(validator, value, instance, schema))
        if not errors:
            work.errors = before
        return errors

    return alternatives


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
    if isinstance(instance, str) and _search(pattern, instance) is False:
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: dict[str, Any], instance: Any, _: Any
) -> Iterator[jsonschema.ValidationError]:
    if not isinstance(instance, dict):
        return
    for pattern, subschema in patterns.items():
        for key, value in instance.items():
            if _search(pattern, key):
                yield from validator.descend(value, subschema, path=key, schema_path=pattern)


def _additional_properties(original: Any) -> Any:
    def additional_properties(
        validator: Any, value: Any, instance: Any, schema: dict[str, Any]
    ) -> Iterator[jsonschema.ValidationError]:
        patterns = schema.get("patternProperties")
        if patterns and isinstance(instance, dict):
            instance = {key: item for key, item in instance.items() if not is_covered(key, patterns)}
            schema = {keyword: part for keyword, part in schema.items() if keyword != "patternProperties"}
        yield from original(validator, value, instance, schema)

    return additional_properties


def _unique_items(_: Any, is_set: Any, instance: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
    # The library compares each item with each other item if they cannot be sorted.
    if is_set is True and isinstance(instance, list) and len({_canonical(item) for item in instance}) < len(instance):
        yield jsonschema.ValidationError(f"{instance!r} has non-unique elements")


def _items(original: Any) -> Any:
    def items(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
        is_long = isinstance(instance, list) and len(instance) > SHORT_ARRAY
        fits = fitting(validator, value) if is_long and "prefixItems" not in schema else None
        if fits is None:
            yield from original(validator, value, instance, schema)
            return
        work = current()
        for index, item in enumerate(instance):
            work.trifle()
            if not fits(item):
                yield from validator.descend(item, value, path=index)

    return items


def _unless_many(original: Any) -> Any:
    def unevaluated(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
        if isinstance(instance, (list, dict)) and len(instance) <= MAX_UNEVALUATED:
            yield from original(validator, value, instance, schema)

    return unevaluated


def _unchecked(*_: Any) -> Iterator[jsonschema.ValidationError]:
    yield from ()


def _canonical(value: Any) -> str:
    """The same text for values that are equal in JSON Schema. 1 equals 1.0, but not true."""
    current().trifle()
    return json.dumps(_with_whole_numbers(value), sort_keys=True)


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, (dict, list)):
        current().look()
    if isinstance(value, dict):
        return {key: _with_whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in value]
    return value


def is_covered(key: str, patterns: Iterable[str]) -> bool:
    """Whether one of `patterns` matches `key`, or might match. A pattern that RE2 cannot compile might match."""
    return any(_search(pattern, key) is not False for pattern in patterns)


def _search(pattern: str, text: str) -> bool | None:
    """Whether `text` matches `pattern`. None if RE2 cannot compile the pattern (look-around, back references).

    RE2 takes time linear in `text`, and other threads run meanwhile. With `re`, a pattern could backtrack for ever and
    block every thread of the process.
    """
    compiled = _compiled(pattern)
    if compiled is None:
        return None
    current().look(compiled.programsize * len(text) * PATTERN_SECONDS)
    return compiled.search(text) is not None


@lru_cache(maxsize=MAX_COMPILED)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.max_mem = 1_000_000
    options.log_errors = False
    options.never_capture = True
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError):
        return None

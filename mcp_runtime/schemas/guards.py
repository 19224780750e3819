"""The library's validators without what a hostile schema could make endless: patterns, uniqueness, alternatives."""

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

# Of a pattern, for a character and an instruction, at worst.
PATTERN_SECONDS = 5e-9
# The library looks each item up in a list of those that are evaluated: more are left to the member.
MAX_UNEVALUATED = 1000
# Patterns that are kept ready. A value with more patterns for its keys is not searched for secrets: all is masked.
MAX_COMPILED = 256
# Arrays that are longer than this are first checked item by item without the library.
SHORT_ARRAY = 16


@lru_cache
def guarded(cls: Any, has_pattern_properties: bool) -> Any:
    """`cls` with every part replaced whose time a schema could stretch without end."""
    keywords: dict[str, Any] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties(cls.VALIDATORS["additionalProperties"]),
        "uniqueItems": _unique_items,
    }
    for keyword in ("anyOf", "oneOf"):
        if keyword in cls.VALIDATORS:
            keywords[keyword] = _without_discarded(cls.VALIDATORS[keyword])
    if "exclusiveMinimum" in cls.VALIDATORS:  # before draft 6 it means something else
        keywords["items"] = _items(cls.VALIDATORS["items"])
    for keyword in ("unevaluatedItems", "unevaluatedProperties"):
        if keyword in cls.VALIDATORS:
            keywords[keyword] = _unless_many(cls.VALIDATORS[keyword])
    if has_pattern_properties:
        # The library's own search of patternProperties goes through `re`, out of reach: left to the member.
        keywords["unevaluatedProperties"] = _unchecked
    guarded: Any = extend(cls, keywords)  # type: ignore[no-untyped-call]
    guarded.evolve = _evolve
    guarded.descend = _descend(guarded.descend)
    guarded.is_valid = _is_valid
    return guarded


def _evolve(validator: Any, **changes: Any) -> Any:
    """The same class for a subschema: the library's own evolve leaves for an unguarded one where that says `$schema`.

    Every application of a subschema comes through here, references included: the place to look at the clock.
    """
    current().look()
    return attrs.evolve(validator, **changes)


def _descend(original: Any) -> Any:
    """`map` and a plain function, no generator: one more frame for each level would reach the recursion limit."""

    def descend(validator: Any, instance: Any, schema: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        work = current()
        work.trifle()  # `true` and `false` are applied without `evolve`
        return map(work.noted, original(validator, instance, schema, *args, **kwargs))

    return descend


def _is_valid(validator: Any, instance: Any) -> bool:
    """`contains` tries one validator on each item, without `evolve`."""
    work = current()
    work.look()
    before = work.errors
    is_valid = next(validator.iter_errors(instance), None) is None
    work.errors = before
    return is_valid


def _without_discarded(original: Any) -> Any:
    """Errors of alternatives that were tried in vain are held no longer once another one fits."""

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
    # The library compares each with each where items cannot be sorted.
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
    """The same text for what JSON Schema calls equal: 1 and 1.0 are, 1 and true are not."""
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
    """Whether one of `patterns` matches `key`, or might: one that cannot be tried gets the benefit of the doubt."""
    return any(_search(pattern, key) is not False for pattern in patterns)


def _search(pattern: str, text: str) -> bool | None:
    """Whether `pattern` is found in `text`; None for a pattern that cannot be tried (look-around, back references).

    Through RE2, which takes time linear in `text` and does not hold the interpreter meanwhile: `re` can be made to
    backtrack for ever, holding every thread of the process.
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

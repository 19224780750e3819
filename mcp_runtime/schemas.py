"""A tool's input schema: is it usable, do arguments fit it, where do they hold secrets. No Django, no I/O.

Schemas come from members, so nothing here trusts them: no reference is fetched, no schema makes the check run for
ever, and whatever a schema breaks is reported as a fault of that schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import attrs
import jsonschema
import re2  # type: ignore[import-untyped]
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.jsonschema import DRAFT202012

MASK = "********"
MAX_SCHEMA_CHARACTERS = 200_000
# What one validation may cost. A step is one schema applied to one value: 10 to 20 microseconds.
MAX_STEPS = 200_000
# Characters times instructions of a pattern that cost as much as a step, at worst.
PATTERN_WORK_PER_STEP = 1000
# So many misfits are told at once, the most telling first.
MAX_MISFITS = 20
MAX_REASON = 500

Path = tuple[str | int, ...]


class BrokenSchemaError(Exception):
    """The schema itself cannot be used; the message says why."""


@dataclass(frozen=True)
class Misfit:
    """One place that does not fit, and why. A property that is missing is its own place."""

    path: Path
    reason: str


class ArgumentsError(Exception):
    """Arguments do not fit. `path` is their place ("items.0.name", empty for the whole), `reason` why.

    `misfits` are all that were found, MAX_MISFITS at most, this one among them.
    """

    def __init__(self, path: str, reason: str, misfits: Sequence[Misfit] = ()) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.path = path
        self.reason = reason
        self.misfits = tuple(misfits) or (Misfit((), str(self)),)


def check_schema(schema: Any) -> str:
    """Why `schema` cannot be used for validation; empty when it can."""
    try:
        _validator(schema)
    except BrokenSchemaError as error:
        return str(error)
    return ""


def validate(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Raise ArgumentsError for the most telling misfit, BrokenSchemaError when the schema fails in use."""
    validator = _validator(schema)
    try:
        errors = _errors(validator, arguments)
    except _TooMuchWorkError:
        raise ArgumentsError("", "checking them against the tool's input schema takes too long") from None
    except Exception as fault:  # a schema may break the library anyhow
        raise BrokenSchemaError(f"the input schema cannot be applied: {type(fault).__name__}: {fault}"[:500]) from fault
    if errors:
        first = errors[0]
        place = ".".join(str(part) for part in first.absolute_path)
        raise ArgumentsError(place, first.message[:MAX_REASON], [_misfit(error) for error in errors])


def _errors(validator: Validator, instance: Any) -> list[jsonschema.ValidationError]:
    """What does not fit, the most telling first; of alternatives what is wrong with the nearest one."""
    token = _work.set(_Work())
    try:
        # `best_match` goes by relevance too, and takes the greatest.
        found = sorted(validator.iter_errors(instance), key=jsonschema.exceptions.relevance, reverse=True)
    finally:
        _work.reset(token)
    return [jsonschema.exceptions.best_match([error]) or error for error in found[:MAX_MISFITS]]


def _misfit(error: jsonschema.ValidationError) -> Misfit:
    path = tuple(error.absolute_path)
    if error.validator == "required" and isinstance(error.instance, dict):
        # One error for each property that is missing, named in the message alone.
        missing = [name for name in _list(error.validator_value) if error.message.startswith(f"{name!r} ")]
        path += tuple(name for name in missing[:1] if name not in error.instance)
    return Misfit(path, error.message[:MAX_REASON])


def _validator(schema: Any) -> Validator:
    if not isinstance(schema, dict):
        raise BrokenSchemaError("the input schema is not a JSON object")
    try:
        text = json.dumps(schema)
    except RecursionError as error:
        raise BrokenSchemaError("the input schema is nested too deep") from error
    if len(text) > MAX_SCHEMA_CHARACTERS:
        raise BrokenSchemaError(f"the input schema is longer than {MAX_SCHEMA_CHARACTERS:,} characters")
    return _checked_validator(text)


@lru_cache(maxsize=256)
def _checked_validator(text: str) -> Validator:
    """Judging a schema costs far more than applying it: once per text is enough. (Faults are not remembered.)"""
    schema = json.loads(text)
    try:
        cls = _guarded(validator_for(schema, default=jsonschema.Draft202012Validator), '"patternProperties"' in text)
        errors = _errors(cls(cls.META_SCHEMA, registry=Registry()), schema)
    except _TooMuchWorkError:
        raise BrokenSchemaError("the input schema takes too long to check") from None
    except Exception as fault:  # as above
        raise BrokenSchemaError(f"the input schema cannot be read: {type(fault).__name__}: {fault}"[:500]) from fault
    if errors:
        place = ".".join(str(part) for part in errors[0].absolute_path)
        raise BrokenSchemaError(f"the input schema is broken at {place or 'its root'}: {errors[0].message}"[:500])
    # An explicit empty registry: without one the library would fetch a remote $ref over the network.
    validator: Validator = cls(schema, registry=Registry())
    return validator


# Guards: what a hostile schema could make endless -----------------------------------------------------------------


class _TooMuchWorkError(Exception):
    pass


class _Work:
    """What one validation has cost so far."""

    def __init__(self) -> None:
        self._steps = 0.0

    def add(self, steps: float) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise _TooMuchWorkError


_work: ContextVar[_Work] = ContextVar("work")


@lru_cache
def _guarded(cls: Any, has_pattern_properties: bool) -> Any:
    """`cls` with every part replaced whose time a schema could stretch without end."""
    keywords: dict[str, Any] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties(cls.VALIDATORS["additionalProperties"]),
        "uniqueItems": _unique_items,
    }
    if has_pattern_properties:
        # The library's own search of patternProperties goes through `re`, out of reach: left to the member.
        keywords["unevaluatedProperties"] = _unchecked
    guarded: Any = extend(cls, keywords)  # type: ignore[no-untyped-call]
    guarded.evolve = _evolve
    return guarded


def _evolve(validator: Any, **changes: Any) -> Any:
    """The same class for a subschema: the library's own evolve leaves for an unguarded one where that says `$schema`.

    Every application of a subschema comes through here, references included: the place to count.
    """
    _work.get().add(1)
    return attrs.evolve(validator, **changes)


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
            instance = {key: item for key, item in instance.items() if not _is_covered(key, patterns)}
            schema = {keyword: part for keyword, part in schema.items() if keyword != "patternProperties"}
        yield from original(validator, value, instance, schema)

    return additional_properties


def _unique_items(_: Any, wanted: Any, instance: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
    # The library compares each with each where items cannot be sorted.
    if wanted is True and isinstance(instance, list) and len({_canonical(item) for item in instance}) < len(instance):
        yield jsonschema.ValidationError(f"{instance!r} has non-unique elements")


def _unchecked(*_: Any) -> Iterator[jsonschema.ValidationError]:
    yield from ()


def _canonical(value: Any) -> str:
    """The same text for what JSON Schema calls equal: 1 and 1.0 are, 1 and true are not."""
    return json.dumps(_with_whole_numbers(value), sort_keys=True)


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _with_whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in value]
    return value


def _is_covered(key: str, patterns: Iterable[str]) -> bool:
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
    if work := _work.get(None):
        work.add(1 + compiled.programsize * len(text) / PATTERN_WORK_PER_STEP)
    return compiled.search(text) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.max_mem = 1_000_000
    options.log_errors = False
    options.never_capture = True
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError):
        return None


# Secrets ----------------------------------------------------------------------------------------------------------

_SECRET_WORDS = (b'"writeOnly"', b'"password"')

_IN_PLACE = ("if", "then", "else")
_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_IN_PLACE_MAPS = ("dependentSchemas", "dependencies")
_OTHER_PROPERTIES = ("additionalProperties", "unevaluatedProperties")
_OTHER_ITEMS = ("items", "additionalItems", "unevaluatedItems", "contains")


def may_mark_secrets(encoded: bytes) -> bool:
    """Whether a schema, as JSON, may mark anything as a secret: a quick look that errs on this side."""
    return any(word in encoded for word in _SECRET_WORDS)


def secret_paths(schema: dict[str, Any], arguments: dict[str, Any]) -> list[list[str | int]]:
    """Places in `arguments` that the schema marks `writeOnly` or `format: password`, the broken parts passed over."""
    found: set[Path] = set()
    seen: set[tuple[int, Path]] = set()
    # A list of work, not recursion: schemas may refer to themselves. `seen` is what ends that.
    todo: list[tuple[Any, Any, Path]] = [(schema, arguments, ())]
    references = _References(schema)
    while todo:
        part, value, path = todo.pop()
        if not isinstance(part, dict) or (id(part), path) in seen:
            continue
        seen.add((id(part), path))
        if path and (part.get("writeOnly") is True or part.get("format") == "password"):
            found.add(path)
            continue
        todo += [(other, value, path) for other in _same_place(part, references)]
        if isinstance(value, dict):
            for key, item in value.items():
                todo += [(other, item, (*path, key)) for other in _of_property(part, key)]
        elif isinstance(value, list):
            for index, item in enumerate(value):
                todo += [(other, item, (*path, index)) for other in _of_item(part, index)]
    return [list(path) for path in sorted(found, key=str)]


def _same_place(schema: dict[str, Any], references: _References) -> Iterator[Any]:
    """Schemas that apply to the same value as `schema` does."""
    yield from (schema.get(keyword) for keyword in _IN_PLACE)
    for keyword in _IN_PLACE_LISTS:
        yield from _list(schema.get(keyword))
    for keyword in _IN_PLACE_MAPS:
        yield from _dict(schema.get(keyword)).values()
    for keyword in ("$ref", "$dynamicRef"):
        if isinstance(schema.get(keyword), str):
            yield references.target(schema[keyword])


def _of_property(schema: dict[str, Any], key: str) -> Iterator[Any]:
    known = _dict(schema.get("properties"))
    matching = [part for pattern, part in _dict(schema.get("patternProperties")).items() if _is_covered(key, [pattern])]
    yield from matching
    if key in known:
        yield known[key]
    elif not matching:
        yield from (schema.get(keyword) for keyword in _OTHER_PROPERTIES)


def _of_item(schema: dict[str, Any], index: int) -> Iterator[Any]:
    # Before 2020-12 a list under `items` was what `prefixItems` is now.
    prefix = _list(schema.get("prefixItems")) or _list(schema.get("items"))
    if index < len(prefix):
        yield prefix[index]
    else:
        yield from (schema.get(keyword) for keyword in _OTHER_ITEMS)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


class _References:
    """Where references inside `schema` lead. Read through once, and only when there is a reference."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema

    @cached_property
    def _resolver(self) -> Any:
        root = DRAFT202012.create_resource({**self._schema, "$id": ""})
        try:
            return Registry().with_resource("", root).crawl().resolver()
        except Exception:  # noqa: BLE001 - a broken schema may break the library anyhow
            return Registry().resolver()

    def target(self, reference: str) -> Any:
        """The schema that `reference` leads to ("#/$defs/login", "#anchor"); None when it leads out, or nowhere."""
        try:
            return self._resolver.lookup(reference).contents
        except Exception:  # noqa: BLE001 - as above
            return None


def mask(arguments: dict[str, Any], paths: list[list[str | int]]) -> dict[str, Any]:
    """A copy of `arguments` with MASK at `paths`; places that are not there are passed over."""
    masked: Any = arguments
    for path in paths:
        masked = _masked(masked, path)
    return dict(masked)


def without(arguments: dict[str, Any], paths: list[list[str | int]]) -> dict[str, Any]:
    """A copy of `arguments` with nothing at `paths`: a property is gone, an item of a list is null."""
    left: Any = arguments
    for path in paths:
        left = _without(left, path)
    return dict(left)


def _without(value: Any, path: list[str | int]) -> Any:
    key, rest = path[0], path[1:]
    if isinstance(value, dict) and key in value:
        if not rest:
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: _without(value[key], rest)}
    if isinstance(value, list) and isinstance(key, int) and key < len(value):
        return [*value[:key], _without(value[key], rest) if rest else None, *value[key + 1 :]]
    return value


def _masked(value: Any, path: list[str | int]) -> Any:
    if not path:
        return MASK
    key, rest = path[0], path[1:]
    if isinstance(value, dict) and key in value:
        return {**value, key: _masked(value[key], rest)}
    if isinstance(value, list) and isinstance(key, int) and key < len(value):
        return [*value[:key], _masked(value[key], rest), *value[key + 1 :]]
    return value

"""A tool's input schema: is it usable, do arguments fit it, where do they hold secrets. No Django, no I/O.

Schemas come from members and arguments from clients, so nothing here trusts them: no reference is fetched, whatever
walks through them has a budget of CPU time, and whatever a schema breaks is reported as a fault of that schema. Work
that takes long steps aside: it sleeps most of the time, so that the other threads of the process hardly notice it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from operator import itemgetter
from typing import Any

import attrs
import jsonschema
import re2  # type: ignore[import-untyped]
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from mcp_runtime.quick_checks import Check, fitting, is_sound_schema
from mcp_runtime.schema_work import MAX_REASON, TooMuchWorkError, Work, current, paced

MASK = "********"
MAX_SCHEMA_CHARACTERS = 200_000
# Budgets in seconds of the thread's own CPU time: a thread that waits for the interpreter is not punished for others.
CHECK_SECONDS = 1.0  # of one schema, against the schema of schemas
VALIDATION_SECONDS = 0.5  # of one validation; a schema applied to a value takes 5 to 20 microseconds
SECRETS_SECONDS = 0.25  # of one search for secrets
# A verdict that depends on how fast the machine was is forgotten after so long. Forgotten at once it would cost its
# budget with each call of a hostile tool.
RETRY_SECONDS = 60.0
MAX_SLOW = 1024  # such verdicts, kept by a hash of the schema
# Of a pattern, for a character and an instruction, at worst.
PATTERN_SECONDS = 5e-9
# Of those at the top so many are looked at for the most telling ones.
MAX_COMPARED = 1000
# The library looks each item up in a list of those that are evaluated: more are left to the member.
MAX_UNEVALUATED = 1000
# Schemas that apply to the same value, summed over all parts of a schema. One with more is not searched for secrets.
MAX_IN_PLACE = 50_000
# Patterns that are kept ready. A value with more patterns for its keys is not searched for secrets: all is masked.
MAX_COMPILED = 256
# Names and indexes in all places of secrets of one call; they are kept with it.
MAX_SECRET_STEPS = 20_000
# The place that stands for every argument. Thousands of names would be written and read with the call again and again.
EVERYWHERE: list[list[str | int]] = [[]]
# So many misfits are told at once, the most telling first.
MAX_MISFITS = 20

# Arrays that are longer than this are first checked item by item without the library.
SHORT_ARRAY = 16
TOO_LONG_TO_CHECK = "the input schema takes too long to check"
TOO_LONG_TO_APPLY = "the input schema takes too long to apply, whatever the arguments"
TOO_COMPLEX = "the input schema is too complex to tell secrets from other arguments: all are masked"
# Faults that another moment, or a faster machine, might not find.
PASSING_FAULTS = frozenset({TOO_LONG_TO_CHECK, TOO_LONG_TO_APPLY, TOO_COMPLEX})

Path = tuple[str | int, ...]
# As read, or its JSON text: what is known of a long one is found by the text, without reading or writing it again.
Schema = dict[str, Any] | str


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
    """Why `schema`, as read, cannot be used for validation; empty when it can."""
    if not isinstance(schema, dict):
        return "the input schema is not a JSON object"
    try:
        with paced():
            _validator(schema)
    except BrokenSchemaError as error:
        return str(error)
    return ""


def validate(schema: Schema, arguments: dict[str, Any]) -> None:
    """Raise ArgumentsError for the most telling misfit, BrokenSchemaError when the schema fails in use.

    What takes more than VALIDATION_SECONDS is an ArgumentsError.
    """
    with paced():
        _validate(schema, arguments)


def _validate(schema: Schema, arguments: dict[str, Any]) -> None:
    validator, fits = _validator(schema)
    try:
        with Work(VALIDATION_SECONDS):
            if fits is not None and fits(arguments):
                return
        errors = _errors(validator, arguments, VALIDATION_SECONDS)
    except TooMuchWorkError:
        raise ArgumentsError("", "checking them against the tool's input schema takes too long") from None
    except (RecursionError, OverflowError):
        # Deep nesting and huge numbers break good schemas too. One caller must not end the validation for all others.
        reason = "they nest too deep or hold too large a number to be checked against the tool's input schema"
        raise ArgumentsError("", reason) from None
    except Exception as fault:  # a schema may break the library anyhow
        raise BrokenSchemaError(_broken_in_use(fault)) from fault
    if errors:
        first = errors[0]
        place = ".".join(str(part) for part in first.absolute_path)
        raise ArgumentsError(place, first.message[:MAX_REASON], [_misfit(error) for error in errors])


def _broken_in_use(fault: Exception) -> str:
    return f"the input schema cannot be applied: {type(fault).__name__}: {fault}"[:500]


def _errors(validator: Validator, instance: Any, seconds: float) -> list[jsonschema.ValidationError]:
    """What does not fit, the most telling first; of alternatives what is wrong with the nearest one.

    Raises TooMuchWorkError, unless something was found before: then it is known that it does not fit.
    """
    found: list[jsonschema.ValidationError] = []
    with Work(seconds) as work:
        try:
            for error in islice(validator.iter_errors(instance), MAX_COMPARED):
                found.append(error)
                work.noted(error)
        except TooMuchWorkError:
            if not found:
                raise
    # `best_match` goes by relevance too, and takes the greatest.
    found.sort(key=jsonschema.exceptions.relevance, reverse=True)
    return [jsonschema.exceptions.best_match([error]) or error for error in found[:MAX_MISFITS]]


def _misfit(error: jsonschema.ValidationError) -> Misfit:
    path = tuple(error.absolute_path)
    if error.validator == "required" and isinstance(error.instance, dict):
        # One error for each property that is missing, named in the message alone.
        missing = [name for name in _list(error.validator_value) if error.message.startswith(f"{name!r} ")]
        path += tuple(name for name in missing[:1] if name not in error.instance)
    return Misfit(path, error.message[:MAX_REASON])


def _validator(schema: Schema) -> tuple[Validator, Check | None]:
    text = _text_of(schema)
    key = ("validator", hash(text))
    if fault := _slow.get(key):
        raise BrokenSchemaError(fault)
    try:
        validator, fault, fits = _checked_validator(text)
    except _SlowSchemaError as error:
        _slow.put(key, str(error))
        raise
    if validator is None:
        raise BrokenSchemaError(fault)
    return validator, fits


def _text_of(schema: Schema) -> str:
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
    except RecursionError as error:
        raise BrokenSchemaError("the input schema is nested too deep") from error
    if len(text) > MAX_SCHEMA_CHARACTERS:
        raise BrokenSchemaError(f"the input schema is longer than {MAX_SCHEMA_CHARACTERS:,} characters")
    return text


class _SlowSchemaError(BrokenSchemaError):
    """As now, on this machine. Not kept for as long as other verdicts are."""


@lru_cache(maxsize=256)
def _checked_validator(text: str) -> tuple[Validator | None, str, Check | None]:
    """The validator and a quick check, or None and what is wrong. Raises _SlowSchemaError.

    Checking a schema costs far more than applying it: once per text.
    """
    schema = json.loads(text)
    try:
        cls = _guarded(validator_for(schema, default=jsonschema.Draft202012Validator), '"patternProperties"' in text)
        with Work(CHECK_SECONDS):
            is_sound = is_sound_schema(schema, cls.VALIDATORS)
        errors = [] if is_sound else _errors(cls(cls.META_SCHEMA, registry=Registry()), schema, CHECK_SECONDS)
    except TooMuchWorkError:
        raise _SlowSchemaError(TOO_LONG_TO_CHECK) from None
    except Exception as fault:  # noqa: BLE001 - as above
        return None, f"the input schema cannot be read: {type(fault).__name__}: {fault}"[:500], None
    if errors:
        place = ".".join(str(part) for part in errors[0].absolute_path)
        return None, f"the input schema is broken at {place or 'its root'}: {errors[0].message}"[:500], None
    try:
        _secret_marks(text)
    except TooMuchWorkError:
        raise _SlowSchemaError(TOO_COMPLEX) from None
    # An explicit empty registry: without one the library would fetch a remote $ref over the network.
    validator: Validator = cls(schema, registry=Registry())
    try:
        _errors(validator, {}, VALIDATION_SECONDS)
        with Work(CHECK_SECONDS):
            return validator, "", fitting(validator, schema)
    except TooMuchWorkError:
        raise _SlowSchemaError(TOO_LONG_TO_APPLY) from None
    except Exception as fault:  # noqa: BLE001 - as above
        return None, _broken_in_use(fault), None


class _Verdicts:
    """What was too slow, for RETRY_SECONDS each; MAX_SLOW at most."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[float, str]] = {}

    def get(self, key: Hashable) -> str:
        """Empty when there is none."""
        until, verdict = self._kept.get(key, (0.0, ""))
        return verdict if time.monotonic() < until else ""

    def put(self, key: Hashable, verdict: str) -> None:
        if len(self._kept) >= MAX_SLOW:
            self._kept = {}
        self._kept[key] = time.monotonic() + RETRY_SECONDS, verdict


_slow = _Verdicts()


# Guards: what a hostile schema could make endless -----------------------------------------------------------------


@lru_cache
def _guarded(cls: Any, has_pattern_properties: bool) -> Any:
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
            instance = {key: item for key, item in instance.items() if not _is_covered(key, patterns)}
            schema = {keyword: part for keyword, part in schema.items() if keyword != "patternProperties"}
        yield from original(validator, value, instance, schema)

    return additional_properties


def _unique_items(_: Any, wanted: Any, instance: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
    # The library compares each with each where items cannot be sorted.
    if wanted is True and isinstance(instance, list) and len({_canonical(item) for item in instance}) < len(instance):
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


# Secrets ----------------------------------------------------------------------------------------------------------

_SECRET_WORDS = ('"writeOnly"', '"password"')

_IN_PLACE = ("if", "then", "else")
_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_IN_PLACE_MAPS = ("dependentSchemas", "dependencies")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_OTHER_PROPERTIES = ("additionalProperties", "unevaluatedProperties")
_OTHER_ITEMS = ("items", "additionalItems", "unevaluatedItems", "contains")

Part = dict[str, Any]


def may_mark_secrets(text: str) -> bool:
    """Whether a schema, as JSON, may mark anything as a secret: a quick look that errs on this side."""
    return any(word in text for word in _SECRET_WORDS)


def secret_paths(schema: Schema, arguments: dict[str, Any], seconds: float = SECRETS_SECONDS) -> list[list[str | int]]:
    """Places in `arguments` that the schema marks `writeOnly` or `format: password`, the broken parts passed over.

    Where that cannot be told within `seconds` of CPU everything counts as a secret: EVERYWHERE.
    """
    if not arguments:
        return []
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
    except RecursionError:
        return EVERYWHERE
    if not may_mark_secrets(text):
        return []
    if len(text) > MAX_SCHEMA_CHARACTERS:
        return EVERYWHERE
    try:
        with paced():
            marks = _secret_marks(text, seconds)
            with Work(seconds):
                keyed = [(str(place), place) for place in _bounded(marks.places_in(arguments))] if marks else []
    except TooMuchWorkError:
        return EVERYWHERE
    keyed.sort(key=itemgetter(0))
    return [place for _, place in keyed]


def _bounded(places: Iterator[list[str | int]]) -> Iterator[list[str | int]]:
    steps = 0
    for place in places:
        steps += len(place)
        if steps > MAX_SECRET_STEPS:
            raise TooMuchWorkError
        yield place


def _secret_marks(text: str, seconds: float = SECRETS_SECONDS) -> _SecretMarks | None:
    """The marks of the schema with this text; None when it has none. Raises TooMuchWorkError for too many."""
    if not may_mark_secrets(text):
        return None
    key = ("marks", hash(text))
    if _slow.get(key):
        raise TooMuchWorkError
    try:
        with Work(seconds):
            return _gathered_marks(text)
    except TooMuchWorkError:
        _slow.put(key, TOO_COMPLEX)
        raise


@lru_cache(maxsize=64)
def _gathered_marks(text: str) -> _SecretMarks:
    return _SecretMarks(json.loads(text))


class _SecretMarks:
    """Where a schema marks secrets. For each of its parts it knows the parts that apply to the same value.

    Made within `_work`; raises TooMuchWorkError. Read by several threads, and changed by none.
    """

    def __init__(self, schema: Part) -> None:
        self._references = _References(schema)
        self._root = schema
        self._in_place: dict[int, tuple[Part, ...]] = {}
        self._gather()

    def _gather(self) -> None:
        left = MAX_IN_PLACE
        todo: list[Any] = [self._root]
        while todo:
            part = todo.pop()
            current().trifle()
            if isinstance(part, dict) and id(part) not in self._in_place:
                parts = self._in_place[id(part)] = self._closure(part, left)
                left -= len(parts)
                if sum(len(_dict(other.get("patternProperties"))) for other in parts) > MAX_COMPILED:
                    raise TooMuchWorkError
                todo += [*part.values(), *parts]
            elif isinstance(part, list):
                todo += part

    def _closure(self, part: Part, most: int) -> tuple[Part, ...]:
        """`part` and the parts that apply wherever it does. Raises TooMuchWorkError for more than `most`."""
        found = {id(part): part}
        todo: list[Part] = [part]
        while todo:
            for other in _same_place(todo.pop(), self._references):
                if isinstance(other, dict) and id(other) not in found:
                    current().trifle()
                    if len(found) >= most:
                        raise TooMuchWorkError
                    found[id(other)] = other
                    todo.append(other)
        return tuple(found.values())

    def places_in(self, arguments: dict[str, Any]) -> Iterator[list[str | int]]:
        """Within `_work`; raises TooMuchWorkError."""
        path: list[str | int] = []
        # Not recursion, and no list of all work: of each level only the children that are yet to be looked at.
        parts = self._all([self._root])
        if any(_is_secret(part) for part in parts):
            yield []
            return
        levels = [self._children(parts, arguments)]
        while levels:
            child = next(levels[-1], None)
            if child is None:
                levels.pop()
                if path:
                    path.pop()
                continue
            key, value, parts = child
            if any(_is_secret(part) for part in parts):
                yield [*path, key]
            elif isinstance(value, (dict, list)):
                path.append(key)
                levels.append(self._children(parts, value))

    def _children(self, parts: list[Part], value: Any) -> Iterator[tuple[str | int, Any, list[Part]]]:
        """Key, value, and the parts that apply, of each child that any part applies to and that may hold a secret."""
        return self._properties(parts, value) if isinstance(value, dict) else self._items(parts, value)

    def _properties(self, parts: list[Part], value: dict[str, Any]) -> Iterator[tuple[str, Any, list[Part]]]:
        work = current()
        for key, item in value.items():
            applying: list[Any] = []
            for part in parts:
                work.trifle()
                applying += _of_property(part, key)
            if applying and (found := self._all(applying)):
                yield key, item, found

    def _items(self, parts: list[Part], value: list[Any]) -> Iterator[tuple[int, Any, list[Part]]]:
        work = current()
        first_alike = max((len(_prefix(part)) for part in parts), default=0)
        found: list[Part] = []
        is_secret = False
        for index, item in enumerate(value):
            work.trifle()
            if index <= first_alike:
                applying: list[Any] = []
                for part in parts:
                    work.trifle()
                    applying += _of_item(part, index)
                found = self._all(applying)
                is_secret = any(_is_secret(part) for part in found)
            if found and (is_secret or isinstance(item, (dict, list))):
                yield index, item, found

    def _all(self, parts: list[Any]) -> list[Part]:
        """These, and all that apply wherever they do, each once."""
        found: dict[int, Part] = {}
        for part in parts:
            if isinstance(part, dict) and id(part) not in found:
                current().trifle()
                found.update((id(other), other) for other in self._in_place[id(part)])
        return list(found.values())


def _is_secret(part: Part) -> bool:
    return part.get("writeOnly") is True or part.get("format") == "password"


def _same_place(schema: dict[str, Any], references: _References) -> Iterator[Any]:
    """Schemas that apply to the same value as `schema` does."""
    yield from (schema.get(keyword) for keyword in _IN_PLACE)
    for keyword in _IN_PLACE_LISTS:
        yield from _list(schema.get(keyword))
    for keyword in _IN_PLACE_MAPS:
        yield from _dict(schema.get(keyword)).values()
    for keyword in _REFERENCES:
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


def _prefix(schema: dict[str, Any]) -> list[Any]:
    # Before 2020-12 a list under `items` was what `prefixItems` is now.
    return _list(schema.get("prefixItems")) or _list(schema.get("items"))


def _of_item(schema: dict[str, Any], index: int) -> Iterator[Any]:
    prefix = _prefix(schema)
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


def mask(arguments: dict[str, Any], paths: Sequence[Sequence[str | int]]) -> dict[str, Any]:
    """A copy of `arguments` with MASK at `paths`; places that are not there are passed over."""
    if [] in paths:
        return dict.fromkeys(arguments, MASK)
    masked: dict[str, Any] = _changed(arguments, _tree_of(paths), _hide)
    return masked


def without(arguments: dict[str, Any], paths: Sequence[Sequence[str | int]]) -> dict[str, Any]:
    """A copy of `arguments` with nothing at `paths`: a property is gone, an item of a list is null."""
    if [] in paths:
        return {}
    left: dict[str, Any] = _changed(arguments, _tree_of(paths), _take_away)
    return left


def _hide(holder: Any, key: Any) -> None:
    holder[key] = MASK


def _take_away(holder: Any, key: Any) -> None:
    if isinstance(holder, dict):
        del holder[key]
    else:
        holder[key] = None


_Tree = dict[str | int, Any]  # None at the end of a path


def _tree_of(paths: Sequence[Sequence[str | int]]) -> _Tree:
    """The paths as one tree, so that what holds thousands of secrets is copied once. Of two the shorter one counts."""
    tree: _Tree = {}
    for path in paths:
        place: _Tree | None = tree
        for key in path[:-1]:
            place = place.setdefault(key, {}) if place is not None else None
        if place is not None:
            place[path[-1]] = None
    return tree


def _changed(value: Any, tree: _Tree, change: Callable[[Any, Any], None]) -> Any:
    copied = value.copy()
    for key, rest in tree.items():
        if isinstance(value, dict) != isinstance(key, str) or not _is_there(value, key):
            continue
        if rest is None:
            change(copied, key)
        elif isinstance(value[key], (dict, list)):
            copied[key] = _changed(value[key], rest, change)
    return copied


def _is_there(value: Any, key: Any) -> bool:
    return key in value if isinstance(value, dict) else 0 <= key < len(value)

"""Whether a tool's input schema is usable, and whether arguments fit it.

Schemas come from members and arguments from clients, so this module does not trust them. It never fetches a reference.
All work on them has a budget of CPU time. Any error that a schema causes is reported as a fault of the schema. Long
work steps aside, that is, it sleeps most of the time, so that it hardly delays other threads of the process.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import jsonschema
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry

from mcp_runtime.schemas.guards import guarded
from mcp_runtime.schemas.quick_checks import Check, fitting, is_sound_schema
from mcp_runtime.schemas.schema_work import (
    MAX_REASON,
    MAX_SCHEMA_CHARACTERS,
    Schema,
    TooMuchWorkError,
    Work,
    paced,
    too_slow,
)
from mcp_runtime.schemas.secrets import TOO_COMPLEX, secret_marks

# Budgets in seconds of the thread's own CPU time, so waiting for the interpreter does not count.
CHECK_SECONDS = 1.0  # for one schema, against its meta-schema
VALIDATION_SECONDS = 0.5  # for one validation. A schema takes 5 to 20 microseconds for a value
# Top-level errors that are compared to find the most relevant ones.
MAX_COMPARED = 1000
# Validation errors that are listed at once, the most relevant first.
MAX_ERRORS = 20
TOO_LONG_TO_CHECK = "the input schema takes too long to check"
TOO_LONG_TO_APPLY = "the input schema takes too long to apply, whatever the arguments"
# Faults that may disappear at another time or on a faster machine.
TEMPORARY_FAULTS = frozenset({TOO_LONG_TO_CHECK, TOO_LONG_TO_APPLY, TOO_COMPLEX})
Path = tuple[str | int, ...]


class BrokenSchemaError(Exception):
    """The schema itself cannot be used. The message says why."""


@dataclass(frozen=True)
class ValidationError:
    """A place that does not fit, and the reason. Not an exception. A missing property is a place too."""

    path: Path
    reason: str


class ArgumentsError(Exception):
    """Arguments do not fit. `path` is the place ("items.0.name", empty for all of them), `reason` the reason.

    `errors` are at most MAX_ERRORS errors, including this one.
    """

    def __init__(self, path: str, reason: str, errors: Sequence[ValidationError] = ()) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.path = path
        self.reason = reason
        self.errors = tuple(errors) or (ValidationError((), str(self)),)


def check_schema(schema: Any) -> str:
    """Why `schema`, as read, cannot be used for validation. Empty if it can."""
    if not isinstance(schema, dict):
        return "the input schema is not a JSON object"
    try:
        with paced():
            _validator(schema)
    except BrokenSchemaError as error:
        return str(error)
    return ""


def validate(schema: Schema, arguments: dict[str, Any]) -> None:
    """Raise ArgumentsError for the most relevant validation error, BrokenSchemaError if the schema fails in use.

    A validation that takes more than VALIDATION_SECONDS also raises ArgumentsError.
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
        # Deep nesting and huge numbers break good schemas too. One client must not stop validation for all others.
        reason = "they nest too deep or hold too large a number to be checked against the tool's input schema"
        raise ArgumentsError("", reason) from None
    except Exception as fault:  # a schema may raise anything in the library
        raise BrokenSchemaError(_broken_in_use(fault)) from fault
    if errors:
        first = errors[0]
        place = ".".join(str(part) for part in first.absolute_path)
        raise ArgumentsError(place, first.message[:MAX_REASON], [_validation_error(error) for error in errors])


def _broken_in_use(fault: Exception) -> str:
    return f"the input schema cannot be applied: {type(fault).__name__}: {fault}"[:500]


def _errors(validator: Validator, instance: Any, seconds: float) -> list[jsonschema.ValidationError]:
    """The validation errors, the most relevant first. For alternatives, the errors of the one that fits best.

    Raises TooMuchWorkError if it has no error until then. One error is enough to know that the value does not fit.
    """
    errors: list[jsonschema.ValidationError] = []
    with Work(seconds) as work:
        try:
            for error in islice(validator.iter_errors(instance), MAX_COMPARED):
                errors.append(error)
                work.count_error(error)
        except TooMuchWorkError:
            if not errors:
                raise
    # `best_match` also uses the relevance, and takes the greatest.
    errors.sort(key=jsonschema.exceptions.relevance, reverse=True)
    return [jsonschema.exceptions.best_match([error]) or error for error in errors[:MAX_ERRORS]]


def _validation_error(error: jsonschema.ValidationError) -> ValidationError:
    path = tuple(error.absolute_path)
    if error.validator == "required" and isinstance(error.instance, dict):
        # Each missing property has its own error, and only the message contains its name.
        names = error.validator_value if isinstance(error.validator_value, list) else []
        missing = [name for name in names if error.message.startswith(f"{name!r} ")]
        path += tuple(name for name in missing[:1] if name not in error.instance)
    return ValidationError(path, error.message[:MAX_REASON])


def _validator(schema: Schema) -> tuple[Validator, Check | None]:
    text = _text_of(schema)
    key = ("validator", hash(text))
    if fault := too_slow.get(key):
        raise BrokenSchemaError(fault)
    try:
        validator, fault, fits = _checked_validator(text)
    except _SlowSchemaError as error:
        too_slow.put(key, str(error))
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
    """The schema is too slow now, on this machine. This verdict is cached for a shorter time than others."""


@lru_cache(maxsize=256)
def _checked_validator(text: str) -> tuple[Validator | None, str, Check | None]:
    """The validator and a quick check, or None and the fault. Raises _SlowSchemaError.

    Checking a schema takes far longer than applying it, so each text is checked once.
    """
    schema = json.loads(text)
    try:
        cls = guarded(validator_for(schema, default=jsonschema.Draft202012Validator), '"patternProperties"' in text)
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
        secret_marks(text)
    except TooMuchWorkError:
        raise _SlowSchemaError(TOO_COMPLEX) from None
    # Pass an empty registry. Without one the library would fetch a remote $ref over the network.
    validator: Validator = cls(schema, registry=Registry())
    try:
        _errors(validator, {}, VALIDATION_SECONDS)
        with Work(CHECK_SECONDS):
            return validator, "", fitting(validator, schema)
    except TooMuchWorkError:
        raise _SlowSchemaError(TOO_LONG_TO_APPLY) from None
    except Exception as fault:  # noqa: BLE001 - as above
        return None, _broken_in_use(fault), None

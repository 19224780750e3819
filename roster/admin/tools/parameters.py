"""The parameters of a schema as rows of a table. Schemas come from members, so everything is bounded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from roster.admin import present
from roster.calls import resolve

MAX_PARAMETERS = 200
MAX_DEPTH = 4
MAX_ALTERNATIVES = 6
MAX_TEXT = 2_000
MAX_VALUE = 120

# The rules of a schema that a person wants to know before a call, in words.
_RULES = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "minLength": "at least {} character{s}",
    "maxLength": "at most {} character{s}",
    "minItems": "at least {} item{s}",
    "maxItems": "at most {} item{s}",
    "pattern": "matches {}",
    "default": "default {}",
}


@dataclass(frozen=True)
class Parameter:
    """A property. `name` has dots for properties of objects, and brackets for items of lists: `people[].name`."""

    name: str
    kind: str
    is_required: bool
    title: str
    description: str
    rules: str


def parameters_of(schema: dict[str, Any]) -> list[Parameter]:
    """The properties of the schema, and below each object or list of objects its own. At most MAX_PARAMETERS."""
    return list(_Reader(schema).properties(schema, "", 0))


@dataclass
class _Reader:
    root: dict[str, Any]
    budget: int = field(default=MAX_PARAMETERS)

    def properties(self, schema: dict[str, Any], prefix: str, depth: int) -> Iterator[Parameter]:
        found, required = schema.get("properties"), schema.get("required")
        if not isinstance(found, dict) or depth > MAX_DEPTH:
            return
        names = set(map(str, required)) if isinstance(required, list) else set()
        for name, part in found.items():
            if self.budget <= 0:
                return
            self.budget -= 1
            yield from self._parameter(f"{prefix}{name}", self._flat(part), name in names, depth)

    def _parameter(self, name: str, schema: dict[str, Any], is_required: bool, depth: int) -> Iterator[Parameter]:
        yield Parameter(
            present.bounded(name, 255),
            self._kind(schema),
            is_required,
            _text(schema.get("title"), 200),
            _text(schema.get("description"), MAX_TEXT),
            ", ".join(_rules(schema)),
        )
        yield from self.properties(schema, f"{name}.", depth + 1)
        items = self._flat(schema.get("items"))
        yield from self.properties(items, f"{name}[].", depth + 1)

    def _flat(self, schema: Any) -> dict[str, Any]:
        """The schema, or what it refers to, with its own texts."""
        for _ in range(MAX_DEPTH):
            reference = schema.get("$ref") if isinstance(schema, dict) else None
            target = resolve(reference, self.root) if isinstance(reference, str) else None
            if not isinstance(target, dict):
                break
            schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
        return schema if isinstance(schema, dict) else {}

    def _kind(self, schema: dict[str, Any], depth: int = 0) -> str:
        if isinstance(schema.get("enum"), list):
            return "one of " + ", ".join(_value(each) for each in schema["enum"][: 2 * MAX_ALTERNATIVES])
        if "const" in schema:
            return _value(schema["const"])
        for keyword in ("anyOf", "oneOf"):
            if isinstance(schema.get(keyword), list) and depth < MAX_DEPTH:
                parts = (self._kind(self._flat(each), depth + 1) for each in schema[keyword][:MAX_ALTERNATIVES])
                return " or ".join(dict.fromkeys(parts))
        kind = schema.get("type")
        words = [str(each) for each in kind] if isinstance(kind, list) else [str(kind)] if kind else []
        if words == ["array"] and isinstance(schema.get("items"), dict) and depth < MAX_DEPTH:
            return f"list of {self._kind(self._flat(schema['items']), depth + 1)}"
        form = schema.get("format") if isinstance(schema.get("format"), str) else ""
        text = " or ".join(words[:MAX_ALTERNATIVES]) or ("object" if "properties" in schema else "any")
        return present.bounded(f"{text} ({form})" if form else text, MAX_VALUE)


def _rules(schema: dict[str, Any]) -> Iterator[str]:
    for keyword, words in _RULES.items():
        if keyword in schema and schema[keyword] is not None:
            yield words.format(_value(schema[keyword]), s="" if schema[keyword] == 1 else "s")
    if isinstance(schema.get("examples"), list) and schema["examples"]:
        yield f"for example {_value(schema['examples'][0])}"


def _value(value: Any) -> str:
    return present.bounded(value if isinstance(value, str) and value else json.dumps(value), MAX_VALUE)


def _text(value: Any, length: int) -> str:
    return present.bounded(value, length) if isinstance(value, str) else ""

"""The texts of a call that people write and read: arguments as JSON, a skeleton of them, progress, result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roster.models import Call

# Schemas come from members. A schema that nests or branches without end still gives a small skeleton.
MAX_DEPTH = 8
MAX_PROPERTIES = 100
MAX_VALUES = 1000  # in all: a hundred properties that refer to each other would be millions

EMPTY_VALUES: Mapping[str, Any] = {"string": "", "integer": 0, "number": 0, "boolean": False, "array": [], "null": None}


def parse_arguments(text: str) -> Any:
    """The JSON value of `text`, or `{}` if it is empty. Raises ValueError with a message for the user."""
    try:
        value = json.loads(text.strip() or "{}")
        # Python's json reads NaN and 1e999, which are not JSON. The database would refuse them later and less clearly.
        json.dumps(value, allow_nan=False)
    except RecursionError:
        raise ValueError("the arguments are nested too deep") from None
    except ValueError as error:
        raise ValueError(f"the arguments are not JSON: {error}") from error
    return value


def skeleton_of(schema: dict[str, Any]) -> dict[str, Any]:
    """The smallest value that may fit `schema`: required properties and those with a default, with a first value."""
    return _Skeleton(schema).of_object(schema, 0)


class _Skeleton:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._budget = MAX_VALUES

    def of_object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, dict):
            return {}
        names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        chosen_names = [
            name for name, part in properties.items() if name in names or (isinstance(part, dict) and "default" in part)
        ]
        return {
            name: self._value(properties[name], depth + 1)
            for name in chosen_names[:MAX_PROPERTIES]
            if not _is_example_number(properties[name])
        }

    def _value(self, schema: Any, depth: int) -> Any:
        self._budget -= 1
        if not isinstance(schema, dict) or depth > MAX_DEPTH or self._budget < 0:
            return None
        for keyword in ("default", "const"):
            if keyword in schema:
                return self._own_value(schema[keyword])
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return self._own_value(schema["enum"][0])
        if isinstance(schema.get("$ref"), str):
            return self._value(resolve(schema["$ref"], self._root), depth + 1)
        for keyword in ("anyOf", "oneOf", "allOf"):
            if isinstance(schema.get(keyword), list) and schema[keyword]:
                return self._value(schema[keyword][0], depth + 1)
        kinds = schema.get("type")
        kind = kinds[0] if isinstance(kinds, list) and kinds else kinds
        if kind == "object" or "properties" in schema:
            return self.of_object(schema, depth)
        if kind in ("integer", "number") and isinstance(schema.get("minimum"), (int, float)):
            return schema["minimum"]
        return EMPTY_VALUES.get(kind) if isinstance(kind, str) else None

    def _own_value(self, value: Any) -> Any:
        """Charge a value of the schema by its length, because a thousand places may refer to one value."""
        self._budget -= len(json.dumps(value)) // 100
        return value


def _is_example_number(schema: Any) -> bool:
    """Whether the schema shows examples of a number. Its place stays empty, because each number would be a value."""
    return (
        isinstance(schema, dict)
        and schema.get("type") in ("integer", "number")
        and "examples" in schema
        and not schema.keys() & {"default", "const", "enum"}
    )


def resolve(reference: str, root: dict[str, Any]) -> Any:
    """Resolve a reference inside the same schema ("#/$defs/login"). Other references are not resolved."""
    place: Any = root if reference.startswith("#") else None
    for part in reference.split("/")[1:]:
        place = place.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(place, dict) else None
    return place


def texts_of(result: Any) -> list[str]:
    """The text items of a tool's result, for people."""
    content = result.get("content") if isinstance(result, dict) else None
    items = content if isinstance(content, list) else []
    return [item["text"] for item in items if isinstance(item, dict) and isinstance(item.get("text"), str)]


def own_words(call: Call) -> str:
    """The message of its error without the names of the tool and the member, for a page that has them already."""
    return without_names(call.error_message, call.tool_name)


def without_names(message: str, tool_name: str) -> str:
    subject = f"tool {tool_name!r} of member '"
    _, end, words = message.removeprefix(subject).partition("': ")
    return words if message.startswith(subject) and end else message


def progress_text(progress: dict[str, Any] | None) -> str:
    """`2 of 3: fetching`. Empty without progress."""
    if not progress:
        return ""
    total = progress.get("total")
    text = f"{progress['progress']:g}" + (f" of {total:g}" if total is not None else "")
    return f"{text}: {progress['message']}" if progress.get("message") else text

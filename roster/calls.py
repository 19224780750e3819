"""What people type into a call and read of it: arguments as JSON, a skeleton to begin with, progress, answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

# Schemas come from members: one that nests or branches without end still gives a small skeleton.
MAX_DEPTH = 8
MAX_PROPERTIES = 100

EMPTY_VALUES: Mapping[str, Any] = {"string": "", "integer": 0, "number": 0, "boolean": False, "array": [], "null": None}


def parse_arguments(text: str) -> Any:
    """The JSON value of `text`, `{}` for nothing. Raises ValueError with a sentence for whoever typed it."""
    try:
        value = json.loads(text.strip() or "{}")
        # What json reads but JSON has no words for (NaN, 1e999) would be refused by the database, later and worse.
        json.dumps(value, allow_nan=False)
    except RecursionError:
        raise ValueError("the arguments are nested too deep") from None
    except ValueError as error:
        raise ValueError(f"the arguments are not JSON: {error}") from error
    return value


def skeleton_of(schema: dict[str, Any]) -> dict[str, Any]:
    """The least that might fit `schema`: its required properties, and those with a default, each with a first value."""
    return _object(schema, schema, 0)


def _object(schema: dict[str, Any], root: dict[str, Any], depth: int) -> dict[str, Any]:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return {}
    wanted = [
        name
        for name, part in properties.items()
        if (isinstance(required, list) and name in required) or (isinstance(part, dict) and "default" in part)
    ]
    return {name: _value(properties[name], root, depth + 1) for name in wanted[:MAX_PROPERTIES]}


def _value(schema: Any, root: dict[str, Any], depth: int) -> Any:
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return None
    for keyword in ("default", "const"):
        if keyword in schema:
            return schema[keyword]
    for keyword in ("examples", "enum"):
        if isinstance(schema.get(keyword), list) and schema[keyword]:
            return schema[keyword][0]
    if isinstance(schema.get("$ref"), str):
        return _value(_resolve(schema["$ref"], root), root, depth + 1)
    for keyword in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(keyword), list) and schema[keyword]:
            return _value(schema[keyword][0], root, depth + 1)
    kinds = schema.get("type")
    kind = kinds[0] if isinstance(kinds, list) and kinds else kinds
    if kind == "object" or "properties" in schema:
        return _object(schema, root, depth)
    if kind in ("integer", "number") and isinstance(schema.get("minimum"), (int, float)):
        return schema["minimum"]
    return EMPTY_VALUES.get(kind) if isinstance(kind, str) else None


def _resolve(reference: str, root: dict[str, Any]) -> Any:
    """A reference inside the same schema ("#/$defs/login"); others lead nowhere."""
    place: Any = root if reference.startswith("#") else None
    for part in reference.split("/")[1:]:
        place = place.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(place, dict) else None
    return place


def texts_of(result: Any) -> list[str]:
    """The text content items of a tool's result, as a person would read them."""
    content = result.get("content") if isinstance(result, dict) else None
    items = content if isinstance(content, list) else []
    return [item["text"] for item in items if isinstance(item, dict) and isinstance(item.get("text"), str)]


def progress_text(progress: dict[str, Any] | None) -> str:
    """`2 of 3: fetching`; empty before anything was said."""
    if not progress:
        return ""
    total = progress.get("total")
    done = f"{progress['progress']:g}" + (f" of {total:g}" if total is not None else "")
    return f"{done}: {progress['message']}" if progress.get("message") else done

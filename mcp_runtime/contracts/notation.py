"""One notation for schemas that mean the same. The result is for comparisons only."""

from __future__ import annotations

import re
from typing import Any

from mcp_runtime.contracts.canonical import canonical_json

Schema = dict[str, Any]

MAX_REFERENCES = 32  # that one schema may follow, one after the other
# Keywords that `texts` compares. They have no meaning for those who pass arguments.
_IDLE = {"$schema", "$id", "$comment", "$anchor", "$defs", "definitions"}
_TYPE_OF_KEYWORD = {
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format"), "string"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), "number"),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"), "array"),
    **dict.fromkeys(("properties", "required", "additionalProperties", "patternProperties"), "object"),
}
# What has no effect is the same as nothing.
_EMPTY: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("minLength", "minItems", "minProperties"), (0,)),
    **{keyword: ([], {}) for keyword in ("required", "properties", "patternProperties", "dependentRequired")},
    "additionalProperties": (True, {}),
    "items": (True, {}),
    "uniqueItems": (False,),
    "deprecated": (False,),
    "readOnly": (False,),
    "writeOnly": (False,),
    "allOf": ([],),
    "title": ("",),
    "description": ("",),
}

NOTHING: Schema = {"not": {}}


def normal(schema: Any, root: Any) -> Schema:
    """Return the schema in one notation. `root` is the document that its `$ref` points into.

    Its parts keep their notation. A schema that is no object permits everything, and `false` is NOTHING.
    """
    if not isinstance(schema, dict):
        return dict(NOTHING) if schema is False else {}
    result = {key: value for key, value in _resolved(schema, root).items() if key not in _IDLE}
    if "const" in result:
        result.setdefault("enum", [result.pop("const")])
    for key, empty in _EMPTY.items():
        if key in result and any(_is_same(result[key], value) for value in empty):
            del result[key]
    _merge_alternatives(result, root)
    _sort(result)
    return result


def _resolved(schema: Schema, root: Any) -> Schema:
    """Return the schema with what its `$ref` and its only `allOf` name. Its own keywords are stronger."""
    result = dict(schema)
    for _ in range(MAX_REFERENCES):
        alone = result.get("allOf")
        if isinstance(alone, list) and len(alone) == 1 and isinstance(alone[0], dict) and not alone[0].keys() & result:
            del result["allOf"]
            result = {**alone[0], **result}
        target = _target(result.get("$ref"), root)
        if target is None:
            break
        del result["$ref"]
        result = {**target, **result}
    return result


def _target(reference: Any, root: Any) -> Schema | None:
    """Return the part of the document that a reference names. None for any other reference."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    part = root
    for step in reference[1:].split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        part = part.get(key) if isinstance(part, dict) else None
    return part if isinstance(part, dict) else None


def _merge_alternatives(schema: Schema, root: Any) -> None:
    """Write alternatives of different types as one schema with several types. Their keywords then concern one type."""
    for keyword in ("anyOf", "oneOf"):
        parts = schema.get(keyword)
        if not isinstance(parts, list) or not parts or "type" in schema or "enum" in schema:
            continue
        if len(parts) > len(_TYPES):
            continue
        merged: Schema = {}
        types: list[str] = []
        for part in parts:
            own = _resolved(part, root) if isinstance(part, dict) else {}
            kind = own.pop("type", None) if own else None
            if (
                not isinstance(kind, str)
                or kind in types
                or not _concerns_only(own, kind)
                or own.keys() & schema.keys()
            ):
                break
            types.append(kind)
            merged |= own
        else:
            if not {"integer", "number"} <= set(types):
                del schema[keyword]
                schema |= merged | {"type": types}


_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")


def _concerns_only(keywords: Schema, kind: str) -> bool:
    kind = "number" if kind == "integer" else kind
    return all(_TYPE_OF_KEYWORD.get(keyword) == kind for keyword in keywords)


def _sort(schema: Schema) -> None:
    """Sort the lists whose order has no meaning."""
    kind = schema.get("type")
    kinds = [kind] if isinstance(kind, str) else kind
    if isinstance(kinds, list) and all(isinstance(each, str) for each in kinds):
        schema["type"] = sorted({*kinds} - ({"integer"} if "number" in kinds else set()))
    else:
        schema.pop("type", None)
    if isinstance(required := schema.get("required"), list):
        schema["required"] = sorted({name for name in required if isinstance(name, str)})
    elif "required" in schema:
        del schema["required"]
    if isinstance(values := schema.get("enum"), list):
        schema["enum"] = sorted(values, key=canonical_json)
    elif "enum" in schema:
        del schema["enum"]
    if not isinstance(schema.get("properties", {}), dict):
        del schema["properties"]


def _is_same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and value == other


_SEPARATORS = re.compile("[ _.-]+")


def is_derived_title(title: Any, name: str) -> bool:
    """Whether a title says only what the name of the property says. Libraries write such titles: "Max Results"."""
    return title is None or (
        isinstance(title, str) and _SEPARATORS.sub("", title.lower()) == _SEPARATORS.sub("", name.lower())
    )

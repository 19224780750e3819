"""The keys of a manifest as fields with texts, for forms and for the command line.

A list is one text with a line for each entry, and values with names are lines too: NAME=VALUE, or NAME: VALUE for
headers. If a line could not be read back as it is, the text is JSON. A value that is not shown is written as MASK,
which leaves it as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import inspect

from mcp_runtime.control.edits import shown_value
from mcp_runtime.members.manifest.changes import EDITABLE_KEYS, Change, bare, type_of
from mcp_runtime.members.manifest.declaration import FIELDS
from mcp_runtime.secrets.references import MASK

LONG = 5000  # characters of a text that gets several lines


@dataclass(frozen=True)
class ManifestField:
    """One key, such as `timeout` or `env`, or one of the values of a record, such as `limits.memory_mb`."""

    key: str
    description: str
    kind: inspect.Type
    is_optional: bool = False
    """Whether its absence means something else than each of its values."""

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self.key.split("."))

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(map(str, self.kind.values)) if isinstance(self.kind, inspect.LiteralType) else ()

    @property
    def has_lines(self) -> bool:
        return isinstance(self.kind, (inspect.VarTupleType, inspect.DictType))

    @property
    def is_long(self) -> bool:
        return isinstance(self.kind, inspect.StrType) and (self.kind.max_length or 0) > LONG

    @property
    def separator(self) -> str:
        return ": " if self.key == "headers" else "="

    def text_of(self, value: Any) -> str:
        """The text of a value in JSON. None is the empty text."""
        if value is None or value == {} or (value == [] and not self.is_optional):
            return ""
        if value == []:
            return "[]"  # which means something else than no value
        if isinstance(value, list):
            return _lines_or_json([str(item) for item in value], value)
        if isinstance(value, Mapping):
            shown = {name: shown_value(Change((self.key, name), inner, None), inner) for name, inner in value.items()}
            lines = [f"{name}{self.separator}{inner}" for name, inner in shown.items()]
            text = "\n".join(lines)
            is_readable = self._names_of(text.split("\n")) == {name: str(inner) for name, inner in shown.items()}
            return text if is_readable else json.dumps(shown, ensure_ascii=False)
        is_whole = isinstance(value, float) and value.is_integer()
        return str(int(value)) if is_whole else str(value)

    def value_of(self, text: str) -> Any:
        """The value of a text, as JSON. The validation of the manifest finds what is wrong with it."""
        if not text and self.is_optional:
            return None
        if isinstance(self.kind, inspect.VarTupleType):
            values = _json(text, list)
            return values if values is not None else [line for line in text.split("\n") if line]
        if isinstance(self.kind, inspect.DictType):
            item = bare(self.kind.value_type)
            names = _json(text, dict)
            pairs = names if names is not None else self._names_of(text.split("\n"))
            return {name: _scalar(item, value) if isinstance(value, str) else value for name, value in pairs.items()}
        return _scalar(self.kind, text) if text else None

    def _names_of(self, lines: list[str]) -> dict[str, str]:
        """The values of lines. A line without a separator is a name with an empty value, as in an .env file."""
        names = {}
        for line in filter(None, lines):
            sign = self.separator.strip()
            # The name of a tool may contain anything, and its number does not.
            name, _, value = line.rpartition(sign) if self.key == "tool_timeouts" else line.partition(sign)
            names[name.strip() if sign == ":" else name] = value.strip() if sign == ":" else value
        return names

    def patch_of(self, text: str, before: str) -> Any:
        """What a JSON Merge Patch says for this key, if its text was `before`. Raises ValueError with a sentence."""
        value = self.value_of(text)
        if not isinstance(self.kind, inspect.DictType):
            return value
        known = self.value_of(before)
        if lost := next((name for name, inner in value.items() if inner == MASK and known.get(name) != MASK), None):
            raise ValueError(f"{lost} has no hidden value that could stay; write its value in place of {MASK}")
        changed = {name: inner for name, inner in value.items() if known.get(name) != inner}
        return {**changed, **{name: None for name in known if name not in value}}


def fields() -> Iterator[ManifestField]:
    """All that can be edited, in the order of the declaration."""
    for key in EDITABLE_KEYS:
        kind = type_of(key)
        if isinstance(kind, inspect.DataclassType):
            for inner in kind.fields:
                yield _field(f"{key}.{inner.name}", inner.type)
        else:
            yield _field(key, FIELDS[key].type)


def field_of(key: str) -> ManifestField | None:
    """The field of a key, also of one name of its values (`env.TOKEN`). None if there is none."""
    name, _, inner = key.partition(".")
    if name in EDITABLE_KEYS and inner and isinstance(kind := type_of(name), inspect.DictType):
        return ManifestField(key, "", bare(kind.value_type))
    return next((field for field in fields() if field.key == key), None)


def text_in(manifest: Mapping[str, Any], field: ManifestField) -> str:
    """The text of the field for the manifest of a member's row."""
    value: Any = manifest.get(FIELDS[field.path[0]].name)
    if len(field.path) == 2:
        value = value.get(field.path[1]) if isinstance(value, Mapping) else None
    return field.text_of(value)


def _field(key: str, kind: inspect.Type) -> ManifestField:
    return ManifestField(key, _description(kind), bare(kind), is_optional=_is_optional(kind))


def _is_optional(kind: inspect.Type) -> bool:
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    return isinstance(kind, inspect.UnionType)


def _description(kind: inspect.Type) -> str:
    """The description of the outermost declaration that has one."""
    while isinstance(kind, (inspect.Metadata, inspect.UnionType)):
        if isinstance(kind, inspect.Metadata):
            if text := (kind.extra_json_schema or {}).get("description"):
                return str(text)
            kind = kind.type
        else:
            kind = kind.types[0]
    return ""


def _lines_or_json(lines: list[str], value: list[Any]) -> str:
    text = "\n".join(lines)
    is_readable = all(line and "\n" not in line and "\r" not in line for line in lines) and _json(text, list) is None
    return text if is_readable else json.dumps(value, ensure_ascii=False)


def _json(text: str, kind: type[Any]) -> Any:
    """The value if the text is JSON of this kind, else None."""
    if not text.lstrip().startswith(("[", "{")):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, kind) else None


def _scalar(kind: inspect.Type, text: str) -> Any:
    """The text as a number or a switch, if the key has that. A text that is none stays, for the validation."""
    if not isinstance(kind, (inspect.IntType, inspect.FloatType, inspect.BoolType)):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, (int, float)) else text

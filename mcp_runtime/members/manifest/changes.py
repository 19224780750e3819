"""Changes of single values of a manifest: what a person edits in the hall, and how it is written into the file.

The path of a value is its key in the file, such as ("timeout",). If a key holds values by name, it is the key and the
name: ("env", "TOKEN") or ("limits", "memory_mb"). A value that is absent, or that is the default, is None.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect

from mcp_runtime.members.manifest.declaration import FIELDS, REQUIRED_KEYS, SERVER_KEYS
from mcp_runtime.members.manifest.parser import MAX_QUOTED, value_errors
from mcp_runtime.protocol.errors import ManifestError

Path = tuple[str, ...]

FIXED_KEYS = {
    "name": "cannot be edited, because another name is another member; rename it in its file",
    "enabled": "cannot be edited; enable or disable the member instead",
}
EDITABLE_KEYS = tuple(key for key in FIELDS if key not in FIXED_KEYS)
HIDDEN_KEYS = ("env", "headers")  # people write keys of APIs into their values
MAX_CHANGES = 1000
_MISSING = object()


@dataclass(frozen=True)
class Change:
    """One value before and after an edit, in JSON."""

    path: Path
    before: Any
    after: Any

    @property
    def key(self) -> str:
        """`env.TOKEN`, as in errors of manifests."""
        return ".".join(self.path)

    def as_json(self) -> dict[str, Any]:
        return {"path": list(self.path), "before": self.before, "after": self.after}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Change:
        return cls(tuple(values["path"]), values["before"], values["after"])

    def reversed(self) -> Change:
        return Change(self.path, self.after, self.before)


def type_of(key: str) -> inspect.Type:
    """The declared type of the values of a key, without its bounds and without None."""
    return bare(FIELDS[key].type)


def bare(kind: inspect.Type) -> inspect.Type:
    while isinstance(kind, (inspect.Metadata, inspect.UnionType)):
        kind = kind.type if isinstance(kind, inspect.Metadata) else kind.types[0]
    return kind


def has_names(key: str) -> bool:
    """Whether the key holds values by name, each of which is changed on its own."""
    return isinstance(type_of(key), (inspect.DictType, inspect.DataclassType))


def values_of(manifest: Mapping[str, Any]) -> dict[Path, Any]:
    """The values of the manifest of a member's row, by path, without defaults."""
    values = {}
    for key, field in FIELDS.items():
        value = manifest.get(field.name)
        for path, inner in _paths(key, value) if has_names(key) else [((key,), value)]:
            if (changed := _without_default(path, inner)) is not None:
                values[path] = changed
    return values


def changes_of(manifest: Mapping[str, Any], patch: Mapping[str, Any], *, keep_same: bool = False) -> list[Change]:
    """The changes that a JSON Merge Patch (RFC 7396) of the file's keys means for the manifest of a member's row.

    With `keep_same` also those to a value that the row has already, because the file may have another one. Values are
    not validated, except that keys with names need an object. Raises ManifestError.
    """
    values = values_of(manifest)
    wanted: dict[Path, Any] = {}
    for key, value in patch.items():
        if key not in EDITABLE_KEYS:
            raise ManifestError(key[:MAX_QUOTED], FIXED_KEYS.get(key, "is not a key of a manifest"))
        if not has_names(key):
            wanted[(key,)] = value
        elif value is None:
            wanted |= dict.fromkeys((path for path in values if path[0] == key), None)
        elif isinstance(value, Mapping):
            wanted |= dict(_paths(key, value))
        else:
            raise ManifestError(key, "must be an object")
    if len(wanted) > MAX_CHANGES:
        raise ManifestError("", f"has more than {MAX_CHANGES:,} changes")
    changes = [Change(path, values.get(path), _without_default(path, value)) for path, value in wanted.items()]
    return [change for change in changes if keep_same or not _is_same(change.before, change.after)]


def changed(manifest: Mapping[str, Any], changes: Iterable[Change]) -> dict[str, Any]:
    """The content of a file with the values of this row's manifest and the changes. It is not validated."""
    values = values_of(manifest)
    for change in changes:
        values[change.path] = change.after
    document: dict[str, Any] = {} if manifest.get("enabled", True) else {"enabled": False}
    for path, value in values.items():
        if value is not None:
            _put(document, path, value)
    return document


def applied(
    document: Mapping[str, Any], edits: Sequence[Sequence[Change]], *, replaced: Collection[Path] = ()
) -> dict[str, Any]:
    """The content of the file with the changes of these edits, in their order. All other values stay as they are.

    Of several changes of one value the last one counts, so that a file that has its result already is not changed.
    Raises ManifestError if a value is none of those that it had in these edits. Values at the paths in `replaced` are
    replaced, whatever they are.
    """
    result = dict(document)
    if isinstance(nested := result.get("mcp"), dict):
        result["mcp"] = dict(nested)
    known: dict[Path, list[Any]] = {}
    for change in itertools.chain.from_iterable(edits):
        known.setdefault(change.path, []).extend((change.before, change.after))
    for path, values in known.items():
        holder = _holder(result, path[0])
        current = _without_default(path, _get(holder, path))
        if path not in replaced and not any(_is_same(current, value) for value in values):
            raise ManifestError(".".join(path), "was changed in the file since somebody edited it here; edit it again")
        if values[-1] is None:
            _remove(holder, path)
        elif not _is_same(current, values[-1]):
            _put(holder, path, values[-1])
    return result


def is_applied(manifest: Mapping[str, Any], changes: Iterable[Change]) -> bool:
    """Whether the manifest of a member's row has the values of after the changes."""
    values = values_of(manifest)
    return all(_is_same(values.get(change.path), change.after) for change in changes)


def faults_of(changes: Iterable[Change]) -> list[ManifestError]:
    """What is wrong with the new values, each on its own."""
    faults = []
    for change in changes:
        key, *names = change.path
        if change.after is not None:
            faults += value_errors(key, {names[0]: change.after} if names else change.after)
    return faults


def _paths(key: str, value: Any) -> list[tuple[Path, Any]]:
    return [((key, name), inner) for name, inner in value.items()] if isinstance(value, Mapping) else []


def _holder(document: dict[str, Any], key: str) -> dict[str, Any]:
    """The object that has the key: the top of the file, or `mcp`, where the settings of the server may be too."""
    nested = document.get("mcp")
    if key in SERVER_KEYS and isinstance(nested, dict) and key not in document:
        return nested
    return document


def _get(holder: Mapping[str, Any], path: Path) -> Any:
    value: Any = holder
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _put(holder: dict[str, Any], path: Path, value: Any) -> None:
    for part in path[:-1]:
        inner = holder.get(part)
        holder[part] = dict(inner) if isinstance(inner, dict) else {}  # a copy, because the document stays
        holder = holder[part]
    holder[path[-1]] = value


def _remove(holder: dict[str, Any], path: Path) -> None:
    """Remove the value, and its object if nothing is left in it."""
    key, *names = path
    if names and isinstance(inner := holder.get(key), dict):
        holder[key] = {name: value for name, value in inner.items() if name != names[0]}
    if not names or not holder.get(key):
        holder.pop(key, None)


def _without_default(path: Path, value: Any) -> Any:
    """The value, or None if it is the default. A required key has none."""
    is_default = value is not None and path[0] not in REQUIRED_KEYS and _is_same(value, _default(path))
    return None if is_default else value


def default_of(path: Path) -> Any:
    """The value that holds when the file has none. None if there is no such value."""
    default = _default(path)
    return None if default is _MISSING else default


def _default(path: Path) -> Any:
    field = FIELDS[path[0]]
    if len(path) == 2:
        kind = type_of(path[0])
        fields = kind.fields if isinstance(kind, inspect.DataclassType) else ()
        found = next((inner for inner in fields if inner.name == path[1]), None)
        if found is None:
            return _MISSING  # names of dictionaries have no defaults
        field = found
    if field.default is not msgspec.NODEFAULT:
        return list(field.default) if isinstance(field.default, tuple) else msgspec.to_builtins(field.default)
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else _MISSING


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON. Python takes true for 1, and JSON knows one kind of number."""
    if one is other:
        return True
    if _MISSING in (one, other) or isinstance(one, bool) != isinstance(other, bool):
        return False
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)

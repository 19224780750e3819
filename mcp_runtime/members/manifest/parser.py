"""Validates JSON values by the declaration. It reports every fault, with its key and what to write.

The declaration cannot express some rules, which are code here. Some keys exclude each other. A key under `mcp` may not
be at the top too. Some names are reserved for the hall. `client.remote` has the rules for a url and for headers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from msgspec import inspect

from mcp_runtime.client import remote
from mcp_runtime.members.manifest.declaration import (
    FIELDS,
    KEYS,
    LIMIT_KEYS,
    NODE_KEYS,
    OAUTH_KEYS,
    REQUIRED_KEYS,
    SERVER_KEYS,
    Manifest,
)
from mcp_runtime.members.packages.lines import line_fault
from mcp_runtime.protocol.errors import ManifestError
from mcp_runtime.secrets import references

RESERVED_ENV_PREFIX = "GUILD_HALL_"
MAX_FAULTS = 20
MAX_WARNINGS = 20
MAX_QUOTED = 80  # characters of a text of the manifest
SHORTEST_CLEAR_SECRET = 12


def parse(values: dict[str, Any]) -> tuple[Manifest, list[str]]:
    """Return the manifest and warnings (REQ-MCP-HTTP-1 to 4). Raises ManifestError with every fault."""
    if not isinstance(values.get("mcp", {}), dict):
        raise ManifestError("mcp", "must be an object")
    document = _Input.of(values)
    faults = list(islice(_faults(document), MAX_FAULTS + 1))
    if faults:
        first, *others = faults[:MAX_FAULTS]
        more = [ManifestError("", "and more")] if len(faults) > MAX_FAULTS else []
        raise ManifestError(first.path, first.reason, [*others, *more])
    manifest = Manifest(**{FIELDS[key].name: _plain(FIELDS[key].type, value) for key, value in document.values.items()})
    return manifest, [*unknown_keys(values), *_port_warnings(manifest), *_secret_warnings(manifest)]


def name_error(name: Any) -> str:
    """Why it cannot be the name of a member. Empty if it can."""
    return next((error.reason for error in _errors(FIELDS["name"].type, name, "name")), "")


def value_errors(key: str, value: Any) -> list[ManifestError]:
    """What is wrong with a value of this key, without regard to the other keys."""
    return list(islice(_errors(FIELDS[key].type, value, key), MAX_FAULTS))


def unknown_keys(values: dict[str, Any]) -> list[str]:
    """Warnings about unknown keys."""
    keys = [key for key in values if key not in KEYS]
    for parent, known_keys in (
        *(("mcp", SERVER_KEYS), ("node", NODE_KEYS)),
        *(("limits", LIMIT_KEYS), ("oauth", OAUTH_KEYS)),
    ):
        if isinstance(inner := values.get(parent), dict):
            keys += [f"{parent}.{key}" for key in inner if key not in known_keys]
    warnings = [f"unknown key {key[:MAX_QUOTED]!r} is ignored" for key in keys[:MAX_WARNINGS]]
    if len(keys) > MAX_WARNINGS:
        warnings.append(f"{len(keys) - MAX_WARNINGS} more unknown keys are ignored")
    return warnings


def _port_warnings(manifest: Manifest) -> list[str]:
    mentions_port = "${PORT}" in " ".join([*manifest.args, *manifest.env.values()])
    if manifest.command and manifest.transport == "http" and not mentions_port:
        return ["neither args nor env mentions ${PORT}: how will the server know its port?"]
    return []


def _secret_warnings(manifest: Manifest) -> list[str]:
    """Warnings about secrets that more people than necessary can read."""
    in_args = [place for place, value in enumerate(manifest.args) if references.REFERENCE.search(value)]
    warnings = [
        f"args.{place}: every user of the machine can read the arguments of processes; put the secret into env"
        for place in in_args
    ]
    return warnings + [
        f"env.{name[:MAX_QUOTED]}: seems to hold a secret in clear; {references.HINT}"
        for name, value in manifest.env.items()
        if remote.SECRET_NAME.search(name) and _is_clear_secret(value)
    ]


def _is_clear_secret(value: str) -> bool:
    """Whether it could be a secret. Paths, short words and values with a reference or the port are none."""
    return len(value) >= SHORTEST_CLEAR_SECRET and not re.search(r"[/\s]|\$\{", value)


@dataclass(frozen=True)
class _Input:
    """The values by key, both from the top and from `mcp`. `nested` has those from `mcp`."""

    values: dict[str, Any]
    nested: Mapping[str, Any]
    repeated: list[str]

    @classmethod
    def of(cls, values: dict[str, Any]) -> _Input:
        nested = {key: value for key, value in values.get("mcp", {}).items() if key in SERVER_KEYS}
        top = {key: value for key, value in values.items() if key in FIELDS}
        return cls({**top, **nested}, nested, [key for key in nested if key in top])

    def path(self, key: str) -> str:
        return f"mcp.{key}" if key in self.nested else key


def _faults(document: _Input) -> Iterator[ManifestError]:
    for key in document.repeated:
        yield ManifestError("", f"{key!r} is given twice: at the top and under mcp")
    sound = set()
    for key, field in FIELDS.items():
        if key not in document.values:
            if key in REQUIRED_KEYS:
                yield ManifestError(key, "is required")
            continue
        faults = list(islice(_errors(field.type, document.values[key], document.path(key)), MAX_FAULTS + 1))
        yield from faults
        if not faults:
            sound.add(key)
    yield from _exclusions(document)
    yield from _value_faults({key: document.values[key] for key in sound}, document)


# By the declaration -----------------------------------------------------------------------------------------------


def _errors(kind: inspect.Type, value: Any, path: str, error: str = "") -> Iterator[ManifestError]:
    """The faults of `value`, if it is not of the declared kind."""
    if isinstance(kind, inspect.Metadata):
        yield from _errors(kind.type, value, path, (kind.extra or {}).get("error", ""))
    elif isinstance(kind, inspect.UnionType):  # with None, for an absent key
        yield from _errors(kind.types[0], value, path)
    elif isinstance(kind, inspect.VarTupleType):
        yield from _array_errors(kind, value, path)
    elif isinstance(kind, inspect.DictType):
        yield from _object_errors(kind, value, path)
    elif isinstance(kind, inspect.DataclassType):
        yield from _record_errors(kind, value, path)
    elif reason := _error(kind, value, error):
        yield ManifestError(path, reason)


def _array_errors(kind: inspect.VarTupleType, value: Any, path: str) -> Iterator[ManifestError]:
    if not isinstance(value, list):
        yield ManifestError(path, "must be an array of strings")
        return
    if kind.max_length is not None and len(value) > kind.max_length:
        yield ManifestError(path, f"must not have more than {kind.max_length} entries")
        return
    for index, item in enumerate(value):
        yield from _errors(kind.item_type, item, f"{path}.{index}")


def _object_errors(kind: inspect.DictType, value: Any, path: str) -> Iterator[ManifestError]:
    if not isinstance(value, dict):
        yield ManifestError(path, "must be an object")
    elif kind.max_length is not None and len(value) > kind.max_length:
        yield ManifestError(path, f"must not be more than {kind.max_length}")
    else:
        for name, part in value.items():
            of_name = list(_errors(kind.key_type, name, f"{path}.{name[:MAX_QUOTED]}"))
            yield from of_name or _errors(kind.value_type, part, f"{path}.{name[:MAX_QUOTED]}")


def _record_errors(kind: inspect.DataclassType, value: Any, path: str) -> Iterator[ManifestError]:
    if not isinstance(value, dict):
        yield ManifestError(path, "must be an object")
        return
    for field in kind.fields:
        if field.name in value:
            yield from _errors(field.type, value[field.name], f"{path}.{field.name}")


def _error(kind: inspect.Type, value: Any, error: str) -> str:
    """What is wrong with a value that has no parts. Empty if nothing is wrong."""
    if isinstance(kind, inspect.BoolType):
        return "" if isinstance(value, bool) else "must be true or false"
    if isinstance(kind, (inspect.FloatType, inspect.IntType)):
        return _number_error(kind, value, error)
    if not isinstance(value, str):
        return "must be a string"
    if isinstance(kind, inspect.LiteralType):
        choices = " or ".join(f'"{choice}"' for choice in kind.values)
        return "" if value in kind.values else f"{value[:MAX_QUOTED]!r} is not supported; use {choices}"
    return _text_error(cast(inspect.StrType, kind), value, error)  # the declaration has no other kinds


def _number_error(kind: inspect.FloatType | inspect.IntType, value: Any, error: str) -> str:
    is_whole = isinstance(kind, inspect.IntType)
    if _is_number(value) and _is_within(kind, value) and (not is_whole or value == int(value)):
        return ""
    words = ((" from {}", kind.ge), (" above {}", kind.gt), (" to {}", kind.le), (" below {}", kind.lt))
    bounds = "".join(text.format(bound) for text, bound in words if bound is not None)
    return error or f"must be a {'whole ' if is_whole else ''}number{bounds}"


def _is_within(kind: inspect.FloatType | inspect.IntType, value: float) -> bool:
    """Whether the number is finite and within the declared bounds."""
    return (
        abs(value) <= sys.float_info.max
        and (kind.ge is None or value >= kind.ge)
        and (kind.gt is None or value > kind.gt)
        and (kind.le is None or value <= kind.le)
        and (kind.lt is None or value < kind.lt)
    )


def _text_error(kind: inspect.StrType, value: str, error: str) -> str:
    if len(value) < (kind.min_length or 0):
        return "must not be empty"
    if kind.max_length is not None and len(value) > kind.max_length:
        return f"must not be longer than {kind.max_length:,} characters"
    if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
        return "must not hold NUL characters or lone surrogates"
    if kind.pattern and not re.fullmatch(kind.pattern, value):
        return error.replace("{value}", repr(value[:MAX_QUOTED]))
    return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _plain(kind: inspect.Type, value: Any) -> Any:
    """`value` as the declared type, because JSON has one kind of number, and arrays for tuples."""
    if isinstance(kind, inspect.Metadata):
        return _plain(kind.type, value)
    if isinstance(kind, inspect.UnionType):
        return _plain(kind.types[0], value)
    if isinstance(kind, inspect.VarTupleType):
        return tuple(value)
    if isinstance(kind, inspect.DictType):
        return {name: _plain(kind.value_type, part) for name, part in value.items()}
    if isinstance(kind, inspect.DataclassType):
        return kind.cls(
            **{field.name: _plain(field.type, value[field.name]) for field in kind.fields if field.name in value}
        )
    if isinstance(kind, inspect.FloatType):
        return float(value)
    return int(value) if isinstance(kind, inspect.IntType) else value


# By hand: what the declaration cannot say -------------------------------------------------------------------------


def _exclusions(document: _Input) -> Iterator[ManifestError]:
    """A server is either started by the hall or remote. Some keys are only for one of them."""
    keys = document.values.keys()
    if "url" not in keys:
        if "command" not in keys:
            yield ManifestError("command", "is required, unless url says where a server runs already")
        if "headers" in keys:
            yield ManifestError(document.path("headers"), "belongs to url; a server that command starts has env")
        if "oauth" in keys:
            yield ManifestError("oauth", "belongs to url; a server that command starts has env")
        return
    if "command" in keys:
        yield ManifestError(document.path("url"), "is given beside command: the server is started here or runs there")
        return
    if document.values.get("transport") == "stdio":
        yield ManifestError(document.path("url"), 'is for "transport": "http"; a stdio server has a command')
    if document.values.get("sandbox", "off") != "off":
        yield ManifestError("sandbox", "belongs to command; with url nothing is started")
    if document.values.get("packages", "fetched") != "fetched":
        yield ManifestError("packages", "belongs to command; with url nothing is started")
    for key in ("args", "env", "limits"):
        if key in keys:
            yield ManifestError(document.path(key), "belongs to command; with url nothing is started")


def _items(values: Sequence[str] | Mapping[str, str]) -> Iterable[tuple[str, str]]:
    if isinstance(values, Mapping):
        return values.items()
    return ((str(place), value) for place, value in enumerate(values))


def _value_faults(sound: Mapping[str, Any], document: _Input) -> Iterator[ManifestError]:
    """The faults of values whose type is right, but which may not be sent or passed to a process."""
    for name in sound.get("env", ()):
        if name.startswith(RESERVED_ENV_PREFIX):
            reason = "names beginning with GUILD_HALL_ are the hall's own"
            yield ManifestError(f"{document.path('env')}.{name[:MAX_QUOTED]}", reason)
    for key in ("args", "env"):
        for name, value in _items(sound.get(key, ())):
            if fault := references.reference_fault(value):
                yield ManifestError(f"{document.path(key)}.{name[:MAX_QUOTED]}", fault)
    is_locked = "command" in sound and sound.get("packages", "fetched") != "fetched"
    if is_locked and (fault := line_fault(sound["command"], sound.get("args", ()), sound.get("env", {}))):
        yield ManifestError("packages", f'must be "fetched", because {fault}')
    if "url" in sound and (fault := remote.url_fault(sound["url"])):
        yield ManifestError(document.path("url"), fault)
    yield from _oauth_faults(sound)
    header_names: set[str] = set()
    for name, value in sound.get("headers", {}).items():
        path = f"{document.path('headers')}.{name[:MAX_QUOTED]}"
        if fault := remote.header_fault(name, value):
            yield ManifestError(path, fault)
        if name.lower() in header_names:
            yield ManifestError(path, "is given twice, and headers do not differ by case")
        header_names.add(name.lower())


def _oauth_faults(sound: Mapping[str, Any]) -> Iterator[ManifestError]:
    values = sound.get("oauth", {})
    for key in (key for key in references.OF_OAUTH if values.get(key)):
        if not references.is_reference(values[key]):
            yield ManifestError(f"oauth.{key}", f"must be a reference; {references.HINT}")
        elif fault := references.reference_fault(values[key]):
            yield ManifestError(f"oauth.{key}", fault)
    for key in ("issuer", "idp_issuer"):
        if values.get(key) and (fault := remote.url_fault(values[key])):
            yield ManifestError(f"oauth.{key}", fault)
    yield from _client_faults(values)
    yield from _grant_faults(values)
    if values and any(name.lower() == "authorization" for name in sound.get("headers", {})):
        yield ManifestError("oauth", "is given beside headers.Authorization: only one of them can be sent")


def _client_faults(values: Mapping[str, Any]) -> Iterator[ManifestError]:
    """The id of the hall and its proof."""
    grant, proofs = values.get("grant"), [key for key in ("client_secret", "private_key") if values.get(key)]
    if len(proofs) > 1:
        yield ManifestError("oauth.private_key", "is given beside client_secret: only one of them is used")
    if proofs and not values.get("client_id"):
        yield ManifestError("oauth.client_id", f"is required beside {proofs[0]}")
    if grant == "client_credentials" and not proofs:
        reason = "is required for client_credentials, beside client_id; or private_key"
        yield ManifestError("oauth.client_secret", reason)
    if "private_key" in proofs and grant in (None, "authorization_code"):
        yield ManifestError("oauth.private_key", 'is for a grant without a person, such as "client_credentials"')


def _grant_faults(values: Mapping[str, Any]) -> Iterator[ManifestError]:
    """What each grant needs, and which keys are for one of them alone."""
    grant, is_by_user = values.get("grant", "authorization_code"), values.get("credentials") == "user"
    if is_by_user and grant in ("client_credentials", "workload_identity"):
        yield ManifestError("oauth.credentials", f'must be "member" for {grant}, which no user signs in for')
    required = {
        "workload_identity": ("assertion", "issuer"),
        "enterprise_managed": ("client_id", "issuer", *(() if is_by_user else ("subject_token",))),
    }
    for key in required.get(grant, ()):
        if not values.get(key):
            yield ManifestError(f"oauth.{key}", f"is required for {grant}")
    if values.get("assertion") and grant != "workload_identity":
        yield ManifestError("oauth.assertion", 'is for "grant": "workload_identity"')
    of_provider = ("subject_token", "idp_issuer", "idp_client_id", "idp_client_secret")
    named = [key for key in of_provider if values.get(key)]
    if grant != "enterprise_managed":
        yield from (ManifestError(f"oauth.{key}", 'is for "grant": "enterprise_managed"') for key in named)
    elif named and "subject_token" not in named and is_by_user:
        reason = "is for subject_token; the login of a user is for the provider of single sign-on alone"
        yield from (ManifestError(f"oauth.{key}", reason) for key in named)
    elif "subject_token" in named:
        missing = [key for key in ("idp_issuer", "idp_client_id") if key not in named]
        yield from (ManifestError(f"oauth.{key}", "is required beside subject_token") for key in missing)

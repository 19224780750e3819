"""Generates the published JSON Schema from the declaration. `python -m mcp_runtime.members.manifest.schema` prints it.

Rules that the declaration cannot express are added here, with the same regular expressions as in the parser: keys that
exclude each other, reserved names, and the form of a url and of headers. Only the parser checks whether two headers
differ only by case, whether the host and the port of a url are possible, and the references in args and env.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import msgspec

from mcp_runtime.client import remote
from mcp_runtime.members.manifest.declaration import FIELDS, SERVER_KEYS, Manifest
from mcp_runtime.members.manifest.parser import RESERVED_ENV_PREFIX
from mcp_runtime.secrets import references

# With the names of variables that the parser accepts.
REFERENCE = references.REFERENCE.pattern.replace("([A-Za-z_][A-Za-z0-9_]*)", f"({references.MEMBER_VARIABLE.pattern})")


def published() -> dict[str, Any]:
    """docs/guild-member.schema.json."""
    properties = {key: {**_declaration(key), **_NOT_DECLARED.get(key, {})} for key in FIELDS}
    server = {key: {"$ref": f"#/$defs/{key}"} for key in SERVER_KEYS}
    under_mcp = {
        "description": "Another place for transport, command, args, env, url and headers. Each may be here or at the "
        "top, not in both.",
        "type": "object",
        "properties": server,
    }
    others = {key: part for key, part in properties.items() if key not in SERVER_KEYS}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "guild-member.json",
        "description": "The manifest of a guild member: how the hall starts its MCP server, or where one runs. "
        "docs/manifest.md explains it.",
        "type": "object",
        "required": ["name", "version"],
        "properties": {
            "$schema": {"description": "For editors; ignored by the hall."},
            **others,
            **server,
            "mcp": under_mcp,
        },
        "allOf": _EXCLUSIONS,
        "$defs": {key: properties[key] for key in SERVER_KEYS},
    }


def _declaration(key: str) -> dict[str, Any]:
    """The schema of one key."""
    field = FIELDS[key]
    part = _resolved(_PROPERTIES[field.name])
    if key in _WITHOUT_DEFAULT:
        part = {word: value for word, value in part.items() if word != "default"}
    elif field.default_factory is not msgspec.NODEFAULT:
        part = {**part, "default": field.default_factory()}
    return part


def _resolved(part: dict[str, Any]) -> dict[str, Any]:
    """The schema without `$ref`, and without `null`, which means that the key is absent. No manifest may contain it."""
    description = {"description": part.get("description", "")}
    if "$ref" in part:
        properties = _DEFINITIONS[part["$ref"].rpartition("/")[2]]["properties"]
        return {
            **description,
            "type": "object",
            "properties": {name: _resolved(inner) for name, inner in properties.items()},
        }
    return {**description, **part["anyOf"][0]} if "anyOf" in part else part


def _any_case(pattern: re.Pattern[str]) -> str:
    """The regular expression without `(?i)`, which JSON Schema does not know: `[Aa]` for `a`."""
    parts = re.split(r"(\[[^]]*\]|\\.)", pattern.pattern.removeprefix("(?i)"))
    return "".join(
        part if part.startswith(("[", "\\")) else re.sub("[a-z]", lambda match: f"[{match[0].upper()}{match[0]}]", part)
        for part in parts
    )


# For these keys the default in the declaration means that the key is absent. So it is not published as a default.
_WITHOUT_DEFAULT = {"displayName", "description", "transport", "command", "url"}
_DEFINITIONS = msgspec.json.schema(Manifest)["$defs"]
_PROPERTIES = _DEFINITIONS["Manifest"]["properties"]
_NOT_DECLARED: dict[str, dict[str, Any]] = {
    "env": {
        "propertyNames": {
            **_PROPERTIES["env"]["propertyNames"],
            "not": {"pattern": f"^{RESERVED_ENV_PREFIX}"},
        }
    },
    "url": {
        "pattern": f"^{remote.URL.pattern}$",
        "not": {"pattern": _any_case(remote.SECRET_IN_QUERY)},
    },
    "headers": {
        "propertyNames": {
            "maxLength": remote.MAX_NAME,
            "pattern": f"^{remote.NAME.pattern}$",
            "not": {"pattern": f"^({_any_case(remote.RESERVED)})$"},
        },
        "patternProperties": {_any_case(remote.SECRET_NAME): {"pattern": REFERENCE}},
        "allOf": [
            {
                "additionalProperties": {
                    **_PROPERTIES["headers"]["additionalProperties"],
                    "allOf": [
                        {"pattern": f"^{references.HEADER_VALUE.pattern}$"},
                        {"pattern": rf"^([^$]|\$+{REFERENCE.removeprefix(chr(92) + '$')}|\$+([^${{]|$))*$"},
                    ],
                }
            }
        ],
        # Any other value would apply only to headers that `patternProperties` does not match.
        "additionalProperties": True,
    },
}


def _under_mcp(key: str) -> dict[str, Any]:
    return {"required": ["mcp"], "properties": {"mcp": {"required": [key]}}}


def _without(*keys: str) -> dict[str, Any]:
    absent = dict.fromkeys(keys, False)
    return {"properties": {**absent, "mcp": {"properties": absent}}}


_NO_PROCESS = {"properties": {"limits": False, "sandbox": {"const": "off"}, "packages": {"const": "fetched"}}}
_EXCLUSIONS: list[dict[str, Any]] = [
    {"oneOf": [{"required": ["transport"]}, _under_mcp("transport")]},
    {
        "$comment": "A command or a url, here or under mcp, and no two of them.",
        "oneOf": [{"required": ["command"]}, {"required": ["url"]}, _under_mcp("command"), _under_mcp("url")],
    },
    {
        "$comment": "args, env, limits, packages and sandbox go with command, headers and oauth go with url.",
        "if": {"anyOf": [{"required": ["url"]}, _under_mcp("url")]},
        "then": {"allOf": [_without("args", "env"), _NO_PROCESS]},
        "else": {"allOf": [_without("headers"), {"not": {"required": ["oauth"]}}]},
    },
    *({"not": {**_under_mcp(key), "required": [key, "mcp"]}} for key in ("args", "env", "headers")),
]


def text() -> str:
    return json.dumps(published(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())

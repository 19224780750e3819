"""Moves the secrets out of changed values of a manifest. What is clear stays in the manifest."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mcp_runtime.secrets.references import secret_names
from mcp_runtime.sources.values import Values


def without_secrets(
    member: str, patch: Mapping[str, Any], *, args: Collection[str] = (), reserved: Collection[str] = ()
) -> tuple[dict[str, Any], dict[str, str]]:
    """The patch with references in place of secrets, and the secrets by their names.

    `args` are the arguments that the member has already, which stay as they are. `reserved` are names of secrets that a
    new one may not have. Values that are no texts are left to the validation. Raises SourceError.
    """
    values = Values(member, allow_bare=False, reserved={*reserved, *secret_names(_texts(patch))})
    result = dict(patch)
    for key in ("env", "headers"):
        if isinstance(named := patch.get(key), Mapping):
            result[key] = {
                name: values.beside_references(name, text, f"{key}.{name[:80]}", is_header=key == "headers")
                if isinstance(text, str)
                else text
                for name, text in named.items()
            }
    if isinstance(new := patch.get("args"), list) and all(isinstance(arg, str) for arg in new):
        result["args"] = values.arguments(new, "args", kept=set(args), has_references=True)
    if isinstance(url := patch.get("url"), str) and "${" not in url:
        result["url"] = values.address(url, "url")
    return result, values.secrets


def masked_arguments(args: list[str], mask: str) -> list[str]:
    """The arguments with `mask` in place of what seems to be a secret, for people."""
    values = Values("", allow_bare=False)
    hidden = values.arguments(args, "args", has_references=True)
    for name in values.secrets:
        hidden = [arg.replace(f"${{secret:{name}}}", mask) for arg in hidden]
    return hidden


def _texts(patch: Mapping[str, Any]) -> list[str]:
    """The changed texts that may have references."""
    named = [text for key in ("env", "headers") if isinstance(patch.get(key), Mapping) for text in patch[key].values()]
    args = patch.get("args")
    return [text for text in [*named, *(args if isinstance(args, list) else [])] if isinstance(text, str)]

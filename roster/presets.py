"""Presets: arguments saved under a name, for one user and one tool. They never contain secrets."""

from __future__ import annotations

import json
from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet

from mcp_runtime.control.calls import without_secrets
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import ProtocolError
from roster.models import Preset, Tool

MAX_PRESETS = 50  # of one user and tool
MAX_CHARACTERS = 100_000  # of one preset, as JSON


class PresetRefusedError(Exception):
    """The preset was not saved. The message says why."""


def of(user: User, tool: Tool) -> QuerySet[Preset]:
    return Preset.objects.filter(user=user, tool=tool)


def save(user: User, tool: Tool, name: str, arguments: Any) -> tuple[Preset, list[str]]:
    """Save `arguments` under `name`, and replace an earlier preset. Returns it, and the places of omitted secrets.

    Raises PresetRefusedError.
    """
    name = " ".join(name.split())
    if not name or len(name) > Preset.MAX_NAME:
        raise PresetRefusedError(f"a preset needs a name, of {Preset.MAX_NAME} characters at most")
    if not isinstance(arguments, dict):
        raise PresetRefusedError("the arguments must be a JSON object")
    try:
        if jsonrpc.storable(arguments) != arguments or "\0" in name:
            raise PresetRefusedError("text with NUL characters or lone surrogates cannot be stored")
    except ProtocolError as error:
        raise PresetRefusedError(f"the arguments cannot be stored: {error}") from error
    public_arguments, left_out = without_secrets(tool, arguments)
    if len(json.dumps(public_arguments)) > MAX_CHARACTERS:
        raise PresetRefusedError(f"the arguments are longer than {MAX_CHARACTERS:,} characters")
    presets = of(user, tool)
    if presets.exclude(name=name).count() >= MAX_PRESETS:
        raise PresetRefusedError(f"there are {MAX_PRESETS} presets for this tool already; delete one first")
    columns = {"arguments": public_arguments, "left_out": left_out}
    row, _ = Preset.objects.update_or_create(user=user, tool=tool, name=name, defaults=columns)
    return row, left_out

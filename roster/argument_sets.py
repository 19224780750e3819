"""Arguments that people keep to call a tool with again: of one user and one tool, by name, never with a secret."""

from __future__ import annotations

import json
from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet

from mcp_runtime.control.calls import without_secrets
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import ProtocolError
from roster.models import ArgumentSet, Tool

MAX_SETS = 50  # of one user and tool
MAX_CHARACTERS = 100_000  # of one set, as JSON


class SetRefusedError(Exception):
    """The set is not kept. The message says why."""


def of(user: User, tool: Tool) -> QuerySet[ArgumentSet]:
    return ArgumentSet.objects.filter(user=user, tool=tool)


def save(user: User, tool: Tool, name: str, arguments: Any) -> tuple[ArgumentSet, list[str]]:
    """Keep `arguments` under `name`, in the place of those that had it; beside it where secrets were left out.

    Raises SetRefusedError.
    """
    name = " ".join(name.split())
    if not name or len(name) > ArgumentSet.MAX_NAME:
        raise SetRefusedError(f"a set needs a name, of {ArgumentSet.MAX_NAME} characters at most")
    if not isinstance(arguments, dict):
        raise SetRefusedError("the arguments must be a JSON object")
    try:
        if jsonrpc.storable(arguments) != arguments or "\0" in name:
            raise SetRefusedError("text with NUL characters or lone surrogates cannot be stored")
    except ProtocolError as error:
        raise SetRefusedError(f"the arguments cannot be stored: {error}") from error
    kept, left_out = without_secrets(tool, arguments)
    if len(json.dumps(kept)) > MAX_CHARACTERS:
        raise SetRefusedError(f"the arguments are longer than {MAX_CHARACTERS:,} characters")
    known = of(user, tool)
    if known.exclude(name=name).count() >= MAX_SETS:
        raise SetRefusedError(f"there are {MAX_SETS} sets for this tool already; delete one first")
    columns = {"arguments": kept, "left_out": left_out}
    row, _ = ArgumentSet.objects.update_or_create(user=user, tool=tool, name=name, defaults=columns)
    return row, left_out

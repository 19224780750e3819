"""What the commands `prompt` and `resource` share."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand

from mcp_runtime.control.extras import Extra
from roster.management.terminal import harmless, one_line

if TYPE_CHECKING:
    from mcp_runtime.control.extra_uses import Completion


def add_search(parser: ArgumentParser) -> None:
    parser.add_argument("--search", default="", help="only those with these words in their name, title or description")
    parser.add_argument("--json", action="store_true", help="print the definitions as JSON")


def add_user(parser: ArgumentParser) -> None:
    parser.add_argument("--user", help="the user who asks. Without it the operator asks")


def state_of(extra: Extra) -> str:
    if not extra.is_listed:
        return "disabled, not listed"
    if not extra.is_enabled:
        return "disabled"
    return f"held: {one_line(extra.hold, 80)}" if extra.hold else "enabled"


def rows_of(extra: Extra) -> dict[str, Any]:
    """It as JSON."""
    state = {"kind": str(extra.kind), "name": extra.name, "listed": extra.is_listed, "enabled": extra.is_enabled}
    return {**state, "hold": extra.hold, "definition": extra.definition}


def write_completion(command: BaseCommand, completion: Completion) -> None:
    """One value a line. What is left out goes to stderr."""
    for value in completion.values:
        command.stdout.write(harmless(value).replace("\n", " "))
    if completion.has_more:
        total = f" of {completion.total:,}" if completion.total is not None else ""
        command.stderr.write(f"These are the first {len(completion.values)}{total}. Give more of the value.")

"""What a tool says about itself, in words for people, and what is in the way of a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mcp_runtime.protocol import mcp
from roster.models import Tool


def _annotations(tool: Tool) -> dict[str, Any]:
    annotations = tool.definition.get("annotations")
    return annotations if isinstance(annotations, dict) else {}


def is_destructive(tool: Tool) -> bool:
    """Whether the tool declares it. In MCP that is the default, but users would soon ignore a question at each call."""
    annotations = _annotations(tool)
    return annotations.get("destructiveHint") is True and annotations.get("readOnlyHint") is not True


@dataclass(frozen=True)
class Badge:
    """An annotation in words. `kind` is its class: `destructive`, `writes`, `reads` or empty."""

    text: str
    kind: str = ""


def badges_of(tool: Tool) -> list[Badge]:
    """The tool's annotations in words. They come from the member, and nobody has checked them."""
    annotations = _annotations(tool)
    words = {
        "readOnlyHint": (Badge("only reads data", "reads"), Badge("may change data", "writes")),
        "idempotentHint": (Badge("safe to repeat"), None),
        "openWorldHint": (Badge("uses external systems"), Badge("uses no external systems")),
    }
    badges = [
        positive if annotations[name] else negative
        for name, (positive, negative) in words.items()
        if isinstance(annotations.get(name), bool)
    ]
    if is_destructive(tool):  # which says more than this
        badges = [badge for badge in badges if badge is None or badge.kind != "writes"]
    destructive = [Badge("may delete or overwrite data", "destructive")] if is_destructive(tool) else []
    task = [Badge("only as a task")] if mcp.needs_task(tool.definition) else []
    return [*destructive, *filter(None, badges), *task]


def takes_arguments(tool: Tool) -> bool:
    """Whether there is anything to fill in. An empty schema allows everything, but its tool mostly takes nothing."""
    schema = tool.input_schema
    uninformative_keys = {
        "$schema",
        "$id",
        "type",
        "title",
        "description",
        "additionalProperties",
        "properties",
        "required",
    }
    return bool(
        schema.keys() - uninformative_keys
        or schema.get("properties")
        or schema.get("required")
        or isinstance(schema.get("additionalProperties"), dict)
    )


def obstacle_of(tool: Tool) -> str:
    """Why nobody can call the tool now, and what to do. Empty if it can be called."""
    member = tool.member
    if member.removed_at is not None:
        return f"The folder of the member {member.name} is gone, so its tools cannot be called."
    if not member.enabled:
        return f"The member {member.name} is disabled. Enable it on its page to call its tools."
    if not tool.listed:
        return f"The member {member.name} no longer lists this tool."
    if not tool.enabled:
        return "This tool is disabled. Enable it on its page to call it."
    if tool.is_held:
        return "This tool is held, because its definition changed. It can be called after somebody approves the change."
    return ""

"""The events of an agent as rows, without the secrets in arguments of calls."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

from mcp_runtime.agents import transitions
from mcp_runtime.agents.process import GATEWAY, tool_rule
from mcp_runtime.protocol import mcp
from mcp_runtime.rows.database import persistently, unit_of_work
from mcp_runtime.schemas import secrets
from mcp_runtime.secrets.references import MASK
from roster.models import Agent, AgentEvent, AgentMessage, Tool

BATCH_SECONDS = 0.2  # how long events wait to be written together
BATCH = 50


class Transcript:
    """The transcript of one message. Only the thread of its run adds to it."""

    def __init__(self, message: AgentMessage) -> None:
        self._message = message
        self._batch: list[tuple[str, dict[str, Any]]] = []
        self._event_count = 0
        self._write_at = 0.0
        # By the agent's name of a tool: all input schemas, as JSON, that it has had and that may mark secrets.
        self._secret_schemas: dict[str, set[str]] = {}

    @property
    def is_full(self) -> bool:
        return self._event_count + len(self._batch) >= transitions.MAX_EVENTS

    def add(self, kind: str, data: dict[str, Any]) -> None:
        if not self._batch:
            self._write_at = time.monotonic() + BATCH_SECONDS
        self._batch.append((kind, self._without_secrets(data) if kind == AgentEvent.Kind.TOOL_CALL else data))

    def write_due(self, *, is_last: bool) -> None:
        """Write the batch if it has waited for long enough or is large enough. With `is_last`, write it anyway."""
        is_time = time.monotonic() >= self._write_at or len(self._batch) >= BATCH
        if self._batch and (is_time or is_last):
            persistently(partial(unit_of_work, partial(transitions.write_events, self._message, self._batch)))
            self._event_count, self._batch = self._event_count + len(self._batch), []

    def _without_secrets(self, call: dict[str, Any]) -> dict[str, Any]:
        """The call without the values that its tool's schema marks as secret, now or at an earlier call.

        Members may list other tools and other schemas while the agent works, but the agent uses its first list.
        """
        name = tool_rule(str(call["server"]), str(call["tool"]))
        schemas = self._secret_schemas.setdefault(name, set())
        schemas |= persistently(partial(unit_of_work, partial(_read_secret_schemas, self._message, name)))
        if not schemas:
            return call
        arguments = call["arguments"]
        if not isinstance(arguments, dict):  # they were cut, so the places of the secrets are not known
            return {**call, "arguments": MASK}
        paths = [path for schema in sorted(schemas) for path in secrets.secret_paths(schema, arguments)]
        return {**call, "arguments": secrets.mask(arguments, paths)}


def _read_secret_schemas(message: AgentMessage, name: str) -> set[str]:
    """The schemas, as JSON, of the tools that the agent calls by that name, if they may mark secrets.

    It compares the names first, because reading the schemas of all tools of a large member blocks all other threads.
    """
    agent = message.agent
    tools = Tool.objects.filter(member__in=agent.members.all())
    names = tools.values_list("pk", "member__name", "name")
    tool_ids = [pk for pk, member, tool in names if _name_for_agent(agent, member, tool) == name]
    schemas = {json.dumps(tool.input_schema) for tool in tools.filter(pk__in=tool_ids)}
    return {schema for schema in schemas if secrets.may_mark_secrets(schema)}


def _name_for_agent(agent: Agent, member: str, tool: str) -> str:
    return tool_rule(member, tool) if agent.direct else tool_rule(GATEWAY, mcp.qualified_name(member, tool))

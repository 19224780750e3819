"""Create, use, read and stop agents."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.db.models import QuerySet

from mcp_runtime.agents import setup, transitions
from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control.members import (
    find_member,
    require_enabled,
    require_startable,
    set_desired_state,
    start_member,
)
from mcp_runtime.control.nodes import live_node_ids, read_liveness
from mcp_runtime.control.notify import notify_runtime
from mcp_runtime.protocol.errors import AgentUnavailableError, UnknownMemberError
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.security import access
from roster.models import Agent, AgentEvent, AgentMessage, GuildMember, Node


def create_agent(
    member_names: Sequence[str], *, requester: Requester, name: str = "", direct: bool = False, model: str = ""
) -> Agent:
    """Create an agent, and start its members. Raises RequestRefusedError, AccessError."""
    principal = requester.current_principal()
    members = [find_member(member_name) for member_name in dict.fromkeys(member_names)]
    for row in members:
        access.require_use(principal, row.name)
        require_startable(row)
    agent = transitions.create(members, requester=requester, name=name, direct=direct, model=model)
    for row in members:
        start_member(row)
    return agent


def find_agent(name_or_id: str) -> Agent:
    """The agent with that name or id. Raises UnknownAgentError."""
    return transitions.find(name_or_id)


def queue_message(agent: Agent, prompt: Any, *, requester: Requester, timeout: float | None = None) -> AgentMessage:
    """Queue a prompt to the agent, and start its members.

    Raises RequestRefusedError, or its subclass AgentUnavailableError if no agent can run.
    """
    if problem := agent_problem():
        raise AgentUnavailableError(f"no agent can run: {problem}")
    principal = requester.current_principal()
    members = list(agent.members.all())
    for row in members:
        access.require_use(principal, row.name)
        if row.removed_at:
            raise UnknownMemberError(f"member {row.name!r} of agent {agent.name!r} is gone from the roster")
        require_enabled(row)
    with short_transaction():  # nothing may see the message before the desired state of its members
        message = transitions.queue(
            agent, prompt, timeout=timeout or settings.GUILD_HALL_AGENT_TIMEOUT, requester=requester
        )
        for row in members:
            if row.desired_state != GuildMember.DesiredState.RUNNING:
                set_desired_state(row, desired_state=GuildMember.DesiredState.RUNNING)
    notify_runtime(members=True)
    return message


def stop_agent(row: Agent) -> list[AgentMessage]:
    """Cancel waiting messages, and stop the running one. Raises NotCancellableError if there is none."""
    messages = transitions.stop(row)
    notify_runtime(members=True)
    return messages


def stop_message(row: AgentMessage) -> AgentMessage:
    """Cancel a waiting message, or stop a running one. A message that has ended does not change."""
    message = transitions.cancel(row)
    notify_runtime(members=True)
    return message


def agent_problem() -> str:
    """Why no agent can run on any node that is alive. If none is alive, why none could run in this process."""
    rows = Node.objects.filter(pk__in=live_node_ids()).values_list("name", "agent_problem")
    problems: dict[str, str] = dict(rows)
    if not problems:
        return setup.problem(os.environ)
    if not all(problems.values()):
        return ""
    if len(problems) == 1:
        return next(iter(problems.values()))
    return "; ".join(f"on node {name}: {problem}" for name, problem in problems.items())


def wait_note(row: Agent) -> str:
    """A sentence if the agent's messages wait for a node that is not alive. Otherwise empty.

    The files of a conversation are on the node of its first message, and no other node can continue it.
    """
    is_queued = any(message.status == AgentMessage.Status.QUEUED for message in row.messages.all())
    if row.node_id is None or not is_queued:
        return ""
    liveness = read_liveness()
    if row.node_id in liveness.live_ids or not liveness.has_several_nodes:
        return ""
    name = liveness.nodes[row.node_id].name
    return f"The message waits for node {name!r}, which has the files of the conversation. That node is not alive."


def transcript(row: Agent, after: int = 0, *, message: AgentMessage | None = None) -> QuerySet[AgentEvent]:
    """The events of the agent, or of one of its messages, after the event with that id."""
    return transitions.events_after(row, after, message=message)


def is_under_way(row: Agent, *, message: AgentMessage | None = None) -> bool:
    """Whether the transcript may grow. Check it before you read the transcript."""
    return transitions.is_under_way(row, message=message)

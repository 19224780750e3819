"""Agents' sessions: made, spoken in, read and stopped."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from mcp_runtime.agents import sessions, setup
from mcp_runtime.calls.invocations import Caller
from mcp_runtime.control.members import (
    find_member,
    live_runtime,
    require_enabled,
    require_startable,
    set_desired_state,
    start_member,
)
from mcp_runtime.control.notify import notify_runtime
from mcp_runtime.protocol.errors import AgentUnavailableError, UnknownMemberError
from mcp_runtime.security import access
from roster.models import AgentEvent, AgentMessage, AgentSession, GuildMember, Hall


def create_session(
    member_names: Sequence[str], *, caller: Caller, name: str = "", direct: bool = False, model: str = ""
) -> AgentSession:
    """A session of an agent with these members, which are started. Raises RequestRefusedError, AccessError."""
    who = caller.current_principal()
    members = [find_member(member_name) for member_name in dict.fromkeys(member_names)]
    for row in members:
        access.require_use(who, row.name)
        require_startable(row)
    session = sessions.create(members, caller=caller, name=name, direct=direct, model=model)
    for row in members:
        start_member(row)
    return session


def find_session(name_or_id: str) -> AgentSession:
    """The session of that name or id. Raises UnknownSessionError."""
    return sessions.find(name_or_id)


def queue_message(session: AgentSession, prompt: Any, *, caller: Caller, timeout: float | None = None) -> AgentMessage:
    """Queue a prompt to the session's agent, its members started.

    Raises RequestRefusedError, among them AgentUnavailableError when no agent could run.
    """
    if problem := agent_problem():
        raise AgentUnavailableError(f"no agent can run: {problem}")
    who = caller.current_principal()
    members = list(session.members.all())
    for row in members:
        access.require_use(who, row.name)
        if row.removed_at:
            raise UnknownMemberError(f"member {row.name!r} of session {session.name!r} is gone from the roster")
        require_enabled(row)
    with transaction.atomic():  # the message is not seen before its members should run
        message = sessions.queue(session, prompt, timeout=timeout or settings.GUILD_HALL_AGENT_TIMEOUT, caller=caller)
        for row in members:
            if row.desired_state != GuildMember.DesiredState.RUNNING:
                set_desired_state(row, desired_state=GuildMember.DesiredState.RUNNING)
    notify_runtime(members=True)
    return message


def stop_session(row: AgentSession) -> list[AgentMessage]:
    """Cancel waiting messages, and stop the running one. Raises NotCancellableError when there is none."""
    messages = sessions.stop(row)
    notify_runtime(members=True)
    return messages


def stop_message(row: AgentMessage) -> AgentMessage:
    """Cancel a message that waits, or stop one that runs. One that is over stays as it is."""
    message = sessions.cancel(row)
    notify_runtime(members=True)
    return message


def agent_problem() -> str:
    """What is missing to run agents, as the runtime sees it; without one, as this process does."""
    if live_runtime() is None:
        return setup.problem(os.environ)
    return Hall.objects.values_list("agent_problem", flat=True).get(pk=1)


def transcript(row: AgentSession, after: int = 0, *, message: AgentMessage | None = None) -> QuerySet[AgentEvent]:
    """What happened in the session (or for one of its messages) behind the event of that id."""
    return sessions.events_after(row, after, message=message)


def is_under_way(row: AgentSession, *, message: AgentMessage | None = None) -> bool:
    """Whether the transcript may grow: ask before reading it."""
    return sessions.is_under_way(row, message=message)

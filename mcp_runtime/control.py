"""Wishes and the bell: all that web and commands use of the runtime.

Nothing here starts, stops or calls anything: it writes down what is wanted, and rings. The runtime does the rest, and
sees every wish within a second even when no bell arrives.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from celery import Celery, current_app
from django.conf import settings
from django.contrib.auth.models import Group
from django.db import transaction
from django.db.models import Count, Q, QuerySet, Subquery
from django.utils import timezone

from mcp_runtime import (
    access,
    agent_setup,
    discovery,
    invocations,
    lease,
    logs,
    protocol,
    schemas,
    sessions,
    statistics,
    waiting,
)
from mcp_runtime.errors import (
    AgentUnavailableError,
    MemberDisabledError,
    RequestRefusedError,
    UnknownMemberError,
    UnknownToolError,
)
from mcp_runtime.invocations import Caller
from roster.models import AgentEvent, AgentMessage, AgentSession, ApiToken, GuildMember, Hall, Invocation, Tool

logger = logging.getLogger("guildhall.control")

# Calls under way that `calls_version` looks at.
MAX_COMPARED = 1000

DRAIN_TASK = "mcp_runtime.tasks.drain"


# The bell ---------------------------------------------------------------------------------------------------------


def ring(*, wishes: bool = False) -> None:
    """Tell the runtime, after the current transaction, to look at the queue (or at the wishes for its members).

    A bell that fails is one log line, never an error.
    """
    if settings.REDIS_URL:
        transaction.on_commit(partial(_ring_now, wishes))


def _ring_now(wishes: bool) -> None:
    try:
        bell().send_task(DRAIN_TASK, kwargs={"wishes": wishes}, queue=queue_name(), retry=False, ignore_result=True)
    except Exception as error:  # noqa: BLE001 - whatever a broker does, the row is safe and will be seen
        logger.warning("the broker could not be told (%s); the runtime will see it within a second", error)


@cache
def queue_name() -> str:
    """The hall's own queue: two halls on one Redis must not hear each other."""
    return f"guildhall-{lease.hall().hall_id}"


@cache
def bell() -> Celery[Any]:
    """The Celery app, its broker keys prefixed with the hall's id."""
    app: Celery[Any] = current_app._get_current_object()  # type: ignore[attr-defined]
    if settings.REDIS_URL:
        app.conf.broker_transport_options["global_keyprefix"] = f"{queue_name()}:"
    return app


# Members ----------------------------------------------------------------------------------------------------------


def member(name: str) -> GuildMember:
    """The member of that name. Raises UnknownMemberError."""
    row = GuildMember.objects.filter(name=name, removed_at=None).first()
    if row is None:
        raise UnknownMemberError(f"no member {name!r} is in the roster")
    return row


def start(row: GuildMember) -> None:
    """Wish it running; out of `error` it is tried at once, its restart counter forgotten."""
    _require_startable(row)
    retry = {"restart_requested_at": timezone.now()} if row.status == GuildMember.Status.ERROR else {}
    _wish(row, wanted=GuildMember.Wanted.RUNNING, **retry)


def stop(row: GuildMember, *, force: bool = False) -> None:
    """Wish it stopped, until somebody starts it or a call needs it.

    Raises MemberInUseError while a session needs it, unless forced; so do restart and disable.
    """
    if not force:
        sessions.require_unneeded(row)
    _wish(row, wanted=GuildMember.Wanted.STOPPED, restart_requested_at=None)


def restart(row: GuildMember, *, force: bool = False) -> None:
    """Wish a new process, from the manifest as it is now."""
    _require_enabled(row)
    if not force:
        sessions.require_unneeded(row)
    if row.manifest_error:
        raise RequestRefusedError(f"member {row.name!r} cannot start: {row.manifest_error}")
    _wish(row, wanted=GuildMember.Wanted.RUNNING, restart_requested_at=timezone.now())


def refresh(row: GuildMember) -> None:
    """Wish its tools listed anew; a member that does not run has none to list."""
    if row.status != GuildMember.Status.CONNECTED:
        raise RequestRefusedError(f"member {row.name!r} is {row.status}: its tools are listed when it is connected")
    _wish(row, refresh_requested_at=timezone.now())


def enable(row: GuildMember) -> None:
    with transaction.atomic():
        Hall.access_changed()
        _wish(row, enabled=True, wanted=GuildMember.Wanted.RUNNING)


def disable(row: GuildMember, *, force: bool = False) -> None:
    """It stops, and calls to it are refused until it is enabled."""
    if not force:
        sessions.require_unneeded(row)
    with transaction.atomic():
        Hall.access_changed()
        _wish(row, enabled=False)


def reserve(row: GuildMember, groups: Iterable[Group]) -> None:
    """For the users of these groups alone; of none, for everybody who may call tools."""
    row.groups.set(groups)


MEMBER_VERBS: dict[str, Callable[..., None]] = {
    "start": start,
    "stop": stop,
    "restart": restart,
    "refresh": refresh,
    "enable": enable,
    "disable": disable,
}
# Those that a session's need stands against; they take `force`.
FORCIBLE_VERBS = ("stop", "restart", "disable")


def _require_startable(row: GuildMember) -> None:
    _require_enabled(row)
    if row.manifest_error:
        raise RequestRefusedError(f"member {row.name!r} cannot start: {row.manifest_error}")


def _require_enabled(row: GuildMember) -> None:
    if not row.enabled:
        raise MemberDisabledError(f"member {row.name!r} is disabled; enable it first")


def _wish(row: GuildMember, **wishes: Any) -> None:
    GuildMember.objects.filter(pk=row.pk).update(**wishes)
    for field, value in wishes.items():
        setattr(row, field, value)
    ring(wishes=True)


def switch_tool(tool: Tool, *, on: bool) -> None:
    """A tool switched off is hidden from lists and refused at every door."""
    with transaction.atomic():
        Hall.access_changed()
        Tool.objects.filter(pk=tool.pk).update(enabled=on)
    tool.enabled = on


def tool(member_name: str, tool_name: str) -> Tool:
    """The tool, switched on or not. Raises UnknownMemberError, UnknownToolError."""
    row = member(member_name)
    found = Tool.objects.filter(member=row, name=tool_name, listed=True).select_related("member").first()
    if found is None:
        raise UnknownToolError(f"member {member_name!r} lists no tool {tool_name!r}")
    return found


def sync_roster() -> discovery.SyncReport:
    """Make the rows match the members folder now; the runtime acts on what changed."""
    report = discovery.sync(settings.GUILD_HALL_MEMBERS_DIR)
    ring(wishes=True)
    return report


def folders_of_names() -> dict[str, str]:
    """Which folder a name belongs to, should others claim it."""
    return discovery.owners()


# Calls ------------------------------------------------------------------------------------------------------------


def queue_call(
    member_name: str, tool_name: str, arguments: Any, *, caller: Caller, idempotency_key: str | None = None
) -> tuple[Invocation, bool]:
    """Queue one call (see `invocations.queue`). Accepted whether or not a runtime is alive: it waits its turn."""
    invocation, created = invocations.queue(
        member_name=member_name,
        tool_name=tool_name,
        arguments=arguments,
        caller=caller,
        idempotency_key=idempotency_key,
    )
    if created:
        if invocation.member.wanted != GuildMember.Wanted.RUNNING:
            _wish(invocation.member, wanted=GuildMember.Wanted.RUNNING)
        ring()
    return invocation, created


def cancel_call(invocation: Invocation) -> Invocation:
    cancelled = invocations.cancel(invocation)
    ring(wishes=True)
    return cancelled


def why_not_again(invocation: Invocation) -> str:
    """Why a call cannot be made again with the same arguments, which are not known any more; empty when it can."""
    if invocation.secret_paths:
        return "its arguments held secrets, which are masked"
    return why_not_known(invocation)


def why_not_known(invocation: Invocation) -> str:
    """Why hardly anything is known of a call's arguments; empty when they are, but for secrets."""
    if protocol.CUT in invocation.arguments:
        return "its arguments were too long to be kept whole"
    if invocation.door == Invocation.Door.GATEWAY and not settings.GUILD_HALL_RECORD_BYTES:
        return "arguments of calls through the gateway are not kept here"
    return ""


def calls_version() -> tuple[Any, ...]:
    """Another value whenever a call came, was started, asked to end, or ended. Costs the same for a million calls."""
    ended = Invocation.objects.filter(finished_at__isnull=False).order_by("-finished_at").values("finished_at")[:1]
    newest = Invocation.objects.order_by("-id").annotate(last_end=Subquery(ended)).values_list("id", "last_end").first()
    active = invocations.under_way().order_by("status", "id").values_list("id", "status", "cancel_requested_at")
    return newest, list(active[:MAX_COMPARED])


def wait_for(invocation_id: int, timeout: float) -> bool:
    """Wait until the call is over, at most `timeout` seconds; whether it is."""
    return waiting.calls.wait(invocation_id, timeout)


# Tokens -----------------------------------------------------------------------------------------------------------


def revoke_token(row: ApiToken) -> None:
    """It opens nothing any more, nor do tokens made with it. Their queued calls are cancelled, their agents stopped."""
    with transaction.atomic():
        revoked = row.revoke()
        invocations.cancel_asked_with(revoked)
        stopped = sessions.stop_asked_with(revoked)
    if stopped:
        ring(wishes=True)


# Agents' sessions -------------------------------------------------------------------------------------------------


def create_session(
    member_names: Sequence[str], *, caller: Caller, name: str = "", direct: bool = False, model: str = ""
) -> AgentSession:
    """A session of an agent with these members, which are wished running. Raises RequestRefusedError, AccessError."""
    who = caller.who()
    members = [member(member_name) for member_name in dict.fromkeys(member_names)]
    for row in members:
        access.require_use(who, row.name)
        _require_startable(row)
    session = sessions.create(members, caller=caller, name=name, direct=direct, model=model)
    for row in members:
        start(row)
    return session


def queue_message(session: AgentSession, prompt: Any, *, caller: Caller, timeout: float | None = None) -> AgentMessage:
    """Queue a prompt to the session's agent, its members wished running.

    Raises RequestRefusedError, among them AgentUnavailableError when no agent could run.
    """
    if problem := agent_problem():
        raise AgentUnavailableError(f"no agent can run: {problem}")
    who = caller.who()
    members = list(session.members.all())
    for row in members:
        access.require_use(who, row.name)
        if row.removed_at:
            raise UnknownMemberError(f"member {row.name!r} of session {session.name!r} is gone from the roster")
        _require_enabled(row)
    with transaction.atomic():  # the message is not seen before its members are wanted
        message = sessions.queue(session, prompt, timeout=timeout or settings.GUILD_HALL_AGENT_TIMEOUT, caller=caller)
        for row in members:
            if row.wanted != GuildMember.Wanted.RUNNING:
                _wish(row, wanted=GuildMember.Wanted.RUNNING)
    ring(wishes=True)
    return message


def agent_problem() -> str:
    """What is missing to run agents, as the runtime sees it; without one, as this process does."""
    if live_runtime() is None:
        return agent_setup.problem(os.environ)
    return Hall.objects.values_list("agent_problem", flat=True).get(pk=1)


def session(name_or_id: str) -> AgentSession:
    """The session of that name or id. Raises UnknownSessionError."""
    return sessions.find(name_or_id)


def stop_session(row: AgentSession) -> list[AgentMessage]:
    """Cancel what waits and ask what runs to stop. Raises NotCancellableError when there is nothing."""
    stopped = sessions.stop(row)
    ring(wishes=True)
    return stopped


def stop_message(row: AgentMessage) -> AgentMessage:
    """Cancel it while it waits, ask it to stop while it runs; one that is over is left alone."""
    stopped = sessions.cancel(row)
    ring(wishes=True)
    return stopped


def transcript(row: AgentSession, after: int = 0, *, message: AgentMessage | None = None) -> QuerySet[AgentEvent]:
    """What happened in the session (or for one of its messages) behind the event of that id."""
    return sessions.events_after(row, after, message=message)


def is_under_way(row: AgentSession, *, message: AgentMessage | None = None) -> bool:
    """Whether the transcript may grow: ask before reading it."""
    return sessions.is_under_way(row, message=message)


# The roster as readers see it -------------------------------------------------------------------------------------


def live_runtime() -> lease.Holder | None:
    """The runtime that is alive, or None."""
    return lease.live_holder()


def shown_status(row: GuildMember, *, runtime_is_alive: bool) -> str:
    """The truthful status: without a live runtime nobody is connected; a folder that cannot be used is an error."""
    if row.manifest_error and (not runtime_is_alive or row.status == GuildMember.Status.DISCONNECTED):
        return GuildMember.Status.ERROR.value
    return str(row.status) if runtime_is_alive else GuildMember.Status.DISCONNECTED.value


def roster() -> QuerySet[GuildMember]:
    """Every member whose folder is there."""
    return GuildMember.objects.filter(removed_at=None)


def visible_tools() -> Q:
    """The tools that lists show: told by the member, not switched off."""
    return Q(listed=True, enabled=True)


def shown_arguments(invocation: Invocation) -> dict[str, Any]:
    """The arguments with their secrets masked, whether or not the call is over."""
    return schemas.mask(invocation.arguments, invocation.secret_paths)


def without_secrets(tool: Tool, arguments: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What of `arguments` may be kept or passed on, and the places of the secrets that were left out ("login.key")."""
    paths = schemas.secret_paths(tool.input_schema, arguments)
    return schemas.without(arguments, paths), _places(paths)


def masked_secrets(tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    """`arguments` as they may be shown: where the tool's schema marks a secret there is a mask."""
    return schemas.mask(arguments, schemas.secret_paths(tool.input_schema, arguments))


def unmasked_arguments(invocation: Invocation) -> tuple[dict[str, Any], list[str]]:
    """The arguments of an earlier call without its secrets, and where those were."""
    paths = invocation.secret_paths
    return schemas.without(invocation.arguments, paths), _places(paths)


def _places(paths: list[list[str | int]]) -> list[str]:
    return [".".join(map(str, path)) or "all arguments" for path in paths]


def output_misfit(output_schema: dict[str, Any], value: Any) -> str:
    """Why the structured content of a result does not fit its tool's output schema; empty when it does."""
    try:
        schemas.validate(output_schema, value)
    except schemas.ArgumentsError as error:
        return str(error).replace("the tool's input schema", "the output schema")
    except schemas.BrokenSchemaError as error:
        return str(error).replace("the input schema", "the output schema")
    return ""


def log_tail(row: GuildMember, lines: int) -> list[str]:
    """The last `lines` lines that the member wrote, oldest first."""
    return logs.tail(_log_of(row), lines)


def log_after(row: GuildMember, cursor: str, lines: int) -> logs.Part:
    """The lines behind the cursor of an earlier part of its log; without one, or behind a flood, the last `lines`."""
    return logs.part_after(_log_of(row), cursor, lines=lines)


def whole_log(row: GuildMember) -> Iterator[bytes]:
    """All that is kept of its log, oldest first."""
    return logs.whole(_log_of(row))


def _log_of(row: GuildMember) -> Path:
    return logs.path_of(settings.GUILD_HALL_DATA_DIR, row.name)


# Figures ----------------------------------------------------------------------------------------------------------


def call_counts() -> dict[tuple[str, str], int]:
    """Finished calls since the hall exists, by member name and outcome (succeeded, cancelled, or the error kind)."""
    return invocations.call_counts()


SPANS = tuple(statistics.SPANS)  # that figures are told of, by name; the first where nobody asks for one
SPARK_POINTS = statistics.SPARK_POINTS


def call_series(
    span: str, *, member: GuildMember | None = None, tool_name: str = "", without: Iterable[str] = ()
) -> statistics.Series:
    """How many calls ended and failed, and how long they took, over the last `hour`, `day` or `week`.

    Of a member's tool, of a member, or of all members but those of the names `without`. KeyError for another span.
    """
    member_id = None if member is None else member.pk
    return statistics.series(statistics.SPANS[span], member_id=member_id, tool_name=tool_name, without=[*without])


def calls_of_last_hour() -> dict[int, list[tuple[int, int]]]:
    """(calls, failed) of twelve times five minutes, oldest first, by member id; a member without calls is not there."""
    return statistics.last_hour()


def queue_depth(who: access.Principal) -> dict[str, int]:
    """How many calls of the members that are there for `who` wait and run, by status; one without any is there as 0."""
    active = invocations.under_way().exclude(member__name__in=who.closed_members).order_by()
    if who.members is not None:
        active = active.filter(member__name__in=who.members)
    counts = dict(active.values_list("status").annotate(count=Count("id")))
    return {status.value: counts.get(status.value, 0) for status in Invocation.ACTIVE}


# Upkeep -----------------------------------------------------------------------------------------------------------


def prune_invocations(*, days: int, keep: int) -> int:
    """Delete finished calls older than `days`, and the oldest beyond the newest `keep`; how many went."""
    return invocations.prune(days=days, keep=keep)

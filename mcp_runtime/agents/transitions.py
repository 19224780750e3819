"""Agents as rows: create, queue, claim, record, finish, stop. The only writer of a message's status.

    queued -> running -> succeeded | failed | cancelled        queued -> cancelled | failed (unavailable)

Each arrow is one compare-and-set. A message is claimed at most once. If its runtime dies, it ends as `failed / lost`.
"""

from __future__ import annotations

import logging
import re
import secrets
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError, connection
from django.db.models import Count, Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from mcp_runtime.calls.transitions import Requester
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import (
    AccessError,
    MemberInUseError,
    NotCancellableError,
    ProtocolError,
    RequestRefusedError,
    TokenError,
    UnknownAgentError,
)
from mcp_runtime.rows import clock
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.rows.lease import held_by, held_by_none
from mcp_runtime.security import access, principals
from mcp_runtime.security.access import OPERATOR, Principal
from roster.models import Agent, AgentEvent, AgentMessage, Call, GuildMember, Node, Token

logger = logging.getLogger("guildhall.runtime")

MessageStatus = AgentMessage.Status
MessageErrorKind = AgentMessage.ErrorKind
Kind = AgentEvent.Kind

# A name of digits only would look like an id.
NAME = re.compile(r"(?!\d+$)[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}")
MAX_PROMPT = 100_000  # characters
MAX_QUEUED = 20  # messages to one agent
# A run that never ends must not fill the disk. Its last event is always stored.
MAX_EVENTS = 10_000
PRUNE_BATCH = 50
TOKEN_GRACE = timedelta(minutes=5)
DEAD_SECONDS = 60.0  # since the last heartbeat of a node. A restart takes less
_DEAD_NODE = "node '{node}', which has the files of the conversation, is not alive"
_SPREAD = "the members of this direct agent are on several nodes; move them to one node, or use the gateway"


# Create and find --------------------------------------------------------------------------------------------------


def create(members: Iterable[GuildMember], *, requester: Requester, name: str = "", direct: bool, model: str) -> Agent:
    """Create an agent with these members. Raises RequestRefusedError if it is not possible."""
    by_id = {member.pk: member for member in members}
    if not by_id:
        raise RequestRefusedError("an agent needs at least one member, whose tools it may use")
    _require_own_account(by_id.values(), requester.user, requester.user)
    remote = [member.name for member in by_id.values() if member.server_url]
    if direct and remote:
        raise RequestRefusedError(
            f"member {remote[0]!r} is a remote server, behind secrets that an agent is not given: "
            "make one that goes through the gateway, not direct"
        )
    if name and not NAME.fullmatch(name):
        raise RequestRefusedError(
            f"{name!r} is no name for an agent: give letters, digits, spaces, '.', '_', '-', at most 100, and "
            "not digits alone"
        )
    agent = Agent(
        name=name or _default_name(list(by_id.values())),
        direct=direct,
        model=model,
        created_by=requester.user,
        creator=requester.name,
        made_with_id=requester.principal.token_id if requester.principal else None,
    )
    try:
        with short_transaction():
            agent.save(force_insert=True)
            agent.members.set(by_id.values())
    except IntegrityError as error:
        raise RequestRefusedError(f"there is an agent {agent.name!r} already; give another name") from error
    return agent


def _default_name(members: list[GuildMember]) -> str:
    return f"{members[0].name}-{secrets.token_hex(3)}"


def find(name_or_id: str) -> Agent:
    """The agent with that name or id. Raises UnknownAgentError."""
    by_id = name_or_id.isascii() and name_or_id.isdigit() and len(name_or_id) <= 18
    agent = Agent.objects.filter(**({"pk": int(name_or_id)} if by_id else {"name": name_or_id})).first()
    if agent is None:
        raise UnknownAgentError(f"there is no agent {name_or_id!r}")
    return agent


def queue(agent: Agent, prompt: Any, *, timeout: float, requester: Requester) -> AgentMessage:
    """Queue a message to the agent. Raises RequestRefusedError."""
    if not isinstance(prompt, str) or not prompt.strip():
        raise RequestRefusedError("a message needs a prompt, a text that is not blank")
    if len(prompt) > MAX_PROMPT:
        raise RequestRefusedError(f"the prompt has {len(prompt)} characters; {MAX_PROMPT} are taken at most")
    try:
        clean = jsonrpc.storable(prompt)
    except ProtocolError as error:
        raise RequestRefusedError(f"the prompt cannot be stored: {error}") from error
    if agent.messages.filter(status=MessageStatus.QUEUED).count() >= MAX_QUEUED:
        raise RequestRefusedError(f"agent {agent.name!r} has {MAX_QUEUED} messages waiting already")
    _require_own_account(agent.members.all(), agent.created_by, requester.user)
    return AgentMessage.objects.create(
        agent=agent,
        prompt=clean,
        timeout=timeout,
        source=requester.source,
        requested_by=requester.user,
        requester=requester.name,
        asked_with_id=requester.principal.token_id if requester.principal else None,
    )


def require_unneeded(member: GuildMember) -> None:
    """Raise MemberInUseError while a waiting or running message to an agent needs the member."""
    message = (
        AgentMessage.objects.filter(status__in=AgentMessage.ACTIVE, agent__members=member)
        .select_related("agent")
        .first()
    )
    if message is not None:
        raise MemberInUseError(
            f"member {member.name!r} is needed by agent {message.agent.name!r}, whose message {message.pk} is "
            f"{message.status}. Stop the agent first, or force it"
        )


# Claim, record, finish: for the runtime ---------------------------------------------------------------------------


def due_messages(lease_id: uuid.UUID) -> QuerySet[AgentMessage]:
    """Messages that this runtime may run now, oldest first. Only the first one of each agent in which none is running.

    The files of a conversation are on the node of its first message, so later messages run there too.
    """
    earlier = AgentMessage.objects.filter(
        agent=OuterRef("agent"), status__in=AgentMessage.ACTIVE, pk__lt=OuterRef("pk")
    )
    running = AgentMessage.objects.filter(agent=OuterRef("agent"), status=MessageStatus.RUNNING)
    messages = AgentMessage.objects.filter(~Exists(earlier), ~Exists(running), status=MessageStatus.QUEUED).order_by(
        "id"
    )
    if connection.vendor == "sqlite":  # the hall has one runtime
        return messages
    # A direct agent uses ports of its own machine. On another one these may be ports of members that it may not use.
    elsewhere = GuildMember.objects.filter(agents=OuterRef("agent")).exclude(lease_id=lease_id)
    messages = messages.filter(Q(agent__direct=False) | ~Exists(elsewhere))
    return messages.filter(Q(agent__node=None) | Q(agent__node__lease_id=lease_id))


def end_unserved_messages(lease_id: uuid.UUID) -> int:
    """Change queued messages that no node may run to failed / unavailable after their timeout. Returns how many.

    The node with the conversation has been dead for a minute, or a direct agent's members are not all on one node.
    """
    if connection.vendor == "sqlite":
        return 0
    is_dead = Q(agent__node__heartbeat_at__lt=Now() - timedelta(seconds=DEAD_SECONDS))
    owners = GuildMember.objects.filter(agents=OuterRef("agent")).order_by().values("agents")
    spread = Exists(owners.annotate(count=Count("lease_id", distinct=True)).filter(count__gt=1))
    return _end_late(is_dead, _DEAD_NODE, lease_id) + _end_late(Q(agent__direct=True) & Q(spread), _SPREAD, lease_id)


def _end_late(condition: Q, reason: str, lease_id: uuid.UUID) -> int:
    """End the queued messages that match, and have waited for longer than their timeout."""
    queued = AgentMessage.objects.filter(condition, status=MessageStatus.QUEUED).select_related("agent__node")
    late = [row for row in queued if clock.now() - row.queued_at > timedelta(seconds=row.timeout)]
    count = 0
    for message in late:
        text = reason.format(node=message.agent.node)
        count += refuse(message, MessageOutcome.failed(MessageErrorKind.UNAVAILABLE, text), lease_id)
    return count


def claim(message: AgentMessage, lease_id: uuid.UUID) -> bool:
    """Change a message from queued to running, once. Returns False if it was not queued any more."""
    with short_transaction():
        count = AgentMessage.objects.filter(held_by(lease_id), pk=message.pk, status=MessageStatus.QUEUED).update(
            status=MessageStatus.RUNNING, started_at=clock.now(), lease_id=lease_id
        )
        if count:
            Agent.objects.filter(pk=message.agent_id).update(
                node=Node.objects.filter(lease_id=lease_id).values("pk")[:1]
            )
    return count == 1


def stop_requests(lease_id: uuid.UUID) -> QuerySet[AgentMessage]:
    """Messages that this runtime runs and that have a request to stop."""
    return AgentMessage.objects.filter(
        status=MessageStatus.RUNNING, lease_id=lease_id, cancel_requested_at__isnull=False
    )


def write_events(message: AgentMessage, events: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """Add events to the transcript. One thread writes it for a message, so the ids are in the order of events."""
    AgentEvent.objects.bulk_create(
        [AgentEvent(message=message, kind=kind, data=jsonrpc.storable(data)) for kind, data in events]
    )


def note_sdk_session(message: AgentMessage, sdk_session_id: str) -> None:
    """Store the id of the Agent SDK's session, which the next message resumes."""
    Agent.objects.filter(pk=message.agent_id).update(sdk_session_id=sdk_session_id[:100])


def make_token(message: AgentMessage) -> str:
    """Create the run's token for the gateway. It is for the agent's members, and expires at the run's latest end.

    It has the limits of the token with which the message was queued, and does not outlive that token. It is revoked at
    every end of the message. Raises RequestRefusedError, AccessError.
    """
    agent = message.agent
    user = agent.created_by
    if user is None and message.source == Call.Source.COMMAND:  # the operator, who may do everything
        user = User.objects.filter(is_superuser=True, is_active=True).order_by("pk").first()
    if user is None or not user.is_active:
        raise RequestRefusedError("there is no active user whose rights the agent could have at the gateway")
    requester = _principal_of_token(message)
    over_at = clock.now() + timedelta(seconds=message.timeout) + TOKEN_GRACE
    with short_transaction():
        row, token = Token.make(
            user=user,
            name=f"agent {agent.name}"[:100],
            expires_at=min(over_at, requester.expires_at) if requester and requester.expires_at else over_at,
            scope=Token.Scope.MEMBERS,
            members=agent.members.all(),
            made_with_id=message.asked_with_id,
            **(asdict(requester.limits) if requester else {}),
        )
        AgentMessage.objects.filter(pk=message.pk).update(token=row)
    return token


def require_access(message: AgentMessage) -> None:
    """Raise AccessError if the requester or the agent's creator may not use all of its members any more.

    It is checked at the start, because the message may have waited for long, and a direct agent is not checked later.
    Raises RequestRefusedError if the agent would use an account of somebody else.
    """
    members = list(message.agent.members.all())
    for who in (_asker(message), _maker(message)):
        for member in members:
            access.require_use(who, member.name)
    _require_own_account(members, message.agent.created_by, message.requested_by)


def _require_own_account(members: Iterable[GuildMember], creator: User | None, asker: User | None) -> None:
    """Raise RequestRefusedError if the agent has the account of another user than the asker at one of the members.

    Its calls are those of its creator. At a member where each user signs in alone, they have the creator's account.
    """
    for member in members:
        if not member.signs_in_by_user or (creator is not None and creator == asker):
            continue
        where = f"each user signs in at member {member.name!r} alone"
        if asker is None or creator is None:
            raise RequestRefusedError(
                f"{where}, and this agent is of no user; make an agent as a user, such as over REST"
            )
        raise RequestRefusedError(f"{where}, and this agent has the account of {creator.get_username()!r} there")


def _asker(message: AgentMessage) -> Principal:
    if (with_token := _principal_of_token(message)) is not None:
        return with_token
    if message.requested_by is not None:
        return principals.principal_of_user(message.requested_by)
    if message.source == Call.Source.COMMAND:
        return OPERATOR
    raise AccessError("The user who asked is gone.")


def _maker(message: AgentMessage) -> Principal:
    maker = message.agent.created_by
    return _asker(message) if maker is None else principals.principal_of_user(maker)


def _principal_of_token(message: AgentMessage) -> Principal | None:
    """The principal of the message's token. None without a token. Raises TokenError."""
    if message.asked_with_id is None:
        return None
    token = Token.objects.select_related("user").filter(pk=message.asked_with_id).first()
    if token is None:
        raise TokenError("The token that the message was asked with is gone.")
    return principals.principal_of_row(token)


def note_problem(problem: str, lease_id: uuid.UUID) -> None:
    """Note what this node lacks to run agents. Admin, REST and commands show it to users who queue messages."""
    Node.objects.filter(lease_id=lease_id).update(agent_problem=problem)


@dataclass(frozen=True)
class MessageOutcome:
    """The end of a message, with the values of its columns."""

    status: AgentMessage.Status
    result: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    error_kind: str = ""
    error_message: str = ""

    @classmethod
    def failed(cls, kind: AgentMessage.ErrorKind, message: str, usage: dict[str, Any] | None = None) -> MessageOutcome:
        return cls(MessageStatus.FAILED, error_kind=kind, error_message=message, usage=usage or {})


def finish(message: AgentMessage, outcome: MessageOutcome, lease_id: uuid.UUID) -> bool:
    """Change a running message to its final status. False if it does not belong to this runtime any more."""
    rows = AgentMessage.objects.filter(
        held_by(lease_id), pk=message.pk, status=MessageStatus.RUNNING, lease_id=lease_id
    )
    return _finish(rows, message, outcome)


def _finish(rows: QuerySet[AgentMessage], message: AgentMessage, outcome: MessageOutcome) -> bool:
    changes: dict[str, Any] = {
        "status": outcome.status,
        "finished_at": clock.now(),
        "result": jsonrpc.storable(outcome.result),
        "usage": jsonrpc.storable(outcome.usage),
        "error_kind": outcome.error_kind,
        "error_message": jsonrpc.storable(outcome.error_message),
    }
    last_word = {
        "status": outcome.status.value,
        "text": outcome.result or outcome.error_message,
        "error_kind": str(outcome.error_kind),
        "usage": outcome.usage,
    }
    # One commit, so that after the last line of the transcript the message has ended and the token is revoked.
    with short_transaction():
        if not rows.update(**changes):
            return False
        Token.objects.filter(agentmessage=message.pk).delete()
        write_events(message, [(Kind.RESULT, last_word)])
    return True


def end_lost_messages(lease_id: uuid.UUID, reason: str) -> int:
    """Change running messages whose lease no node has to failed / lost. Returns how many.

    The runtime with `lease_id` does this for the whole hall.
    """
    running = AgentMessage.objects.filter(held_by(lease_id), held_by_none(), status=MessageStatus.RUNNING)
    count = 0
    for message in running:
        count += _finish(running.filter(pk=message.pk), message, MessageOutcome.failed(MessageErrorKind.LOST, reason))
    return count


def end_messages_of_lease(lease_id: uuid.UUID, reason: str) -> None:
    """Change running messages of this runtime to failed / lost. This is the last step of its stop."""
    for message in AgentMessage.objects.filter(status=MessageStatus.RUNNING, lease_id=lease_id):
        finish(message, MessageOutcome.failed(MessageErrorKind.LOST, reason), lease_id)


def refuse(message: AgentMessage, outcome: MessageOutcome, lease_id: uuid.UUID) -> bool:
    """Change a message that was never claimed from queued to failed."""
    rows = AgentMessage.objects.filter(held_by(lease_id), pk=message.pk, status=MessageStatus.QUEUED)
    return _finish(rows, message, outcome)


# Stop -------------------------------------------------------------------------------------------------------------


def stop(agent: Agent) -> list[AgentMessage]:
    """Cancel the agent's waiting messages, and request the stop of the running one. Returns all of them.

    Raises NotCancellableError if there is none.
    """
    messages = list(agent.messages.filter(status__in=AgentMessage.ACTIVE).order_by("-id"))
    if not messages:
        raise NotCancellableError(f"no message to agent {agent.name!r} is in progress")
    return [cancel(message) for message in messages]


def cancel(message: AgentMessage) -> AgentMessage:
    """Cancel a waiting message, or request the stop of a running one. A message that has ended does not change."""
    rows = AgentMessage.objects.filter(pk=message.pk, status=MessageStatus.QUEUED)
    outcome = MessageOutcome(MessageStatus.CANCELLED, error_message="stopped before it was started")
    if not _finish(rows, message, outcome):
        running = AgentMessage.objects.filter(pk=message.pk, status=MessageStatus.RUNNING, cancel_requested_at=None)
        running.update(cancel_requested_at=clock.now())
    message.refresh_from_db()
    return message


def stop_messages_of_tokens(token_ids: Iterable[int]) -> list[AgentMessage]:
    """Cancel or stop, as `cancel` does, the messages of these tokens that wait or run."""
    messages = AgentMessage.objects.filter(status__in=AgentMessage.ACTIVE, asked_with__in=token_ids)
    return [cancel(message) for message in messages.order_by("-id")]


# Read -------------------------------------------------------------------------------------------------------------


def events_after(agent: Agent, event_id: int, *, message: AgentMessage | None = None) -> QuerySet[AgentEvent]:
    """The transcript of the agent, or of one message, after that event."""
    conditions = {"message": message} if message is not None else {"message__agent": agent}
    return AgentEvent.objects.filter(**conditions, pk__gt=event_id).order_by("pk")


def is_under_way(agent: Agent, *, message: AgentMessage | None = None) -> bool:
    """Whether more events may come. Call it before you read the events, so that you miss none."""
    messages = agent.messages.filter(status__in=AgentMessage.ACTIVE)
    return (messages.filter(pk=message.pk) if message is not None else messages).exists()


# Prune ------------------------------------------------------------------------------------------------------------


def prune(*, days: int) -> int:
    """Delete agents without activity for `days`, with their transcripts. Returns how many it deleted."""
    since = clock.now() - timedelta(days=days)
    young = AgentMessage.objects.filter(agent=OuterRef("pk"), queued_at__gte=since)
    active = AgentMessage.objects.filter(agent=OuterRef("pk"), status__in=AgentMessage.ACTIVE)
    old = Agent.objects.filter(~Exists(young), ~Exists(active), created_at__lt=since)
    count = 0
    while ids := list(old.values_list("pk", flat=True)[:PRUNE_BATCH]):
        old.filter(pk__in=ids).delete()
        count += len(ids)
    return count

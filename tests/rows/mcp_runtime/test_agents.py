"""Messages to agents as rows. Each is claimed once and has an outcome, and an agent runs one at a time.

No agent runs in these tests.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from mcp_runtime.agents import transitions
from mcp_runtime.agents.transitions import MessageOutcome
from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control.agents import (
    agent_problem,
    create_agent,
    find_agent,
    is_under_way,
    queue_message,
    stop_agent,
    transcript,
)
from mcp_runtime.control.members import FORCIBLE_VERBS, MEMBER_VERBS, reserve_member, stop_member
from mcp_runtime.protocol.errors import (
    AccessError,
    AgentUnavailableError,
    MemberDisabledError,
    MemberInUseError,
    NotCancellableError,
    RequestRefusedError,
    UnknownAgentError,
    UnknownMemberError,
)
from mcp_runtime.rows import lease
from mcp_runtime.security import principals
from roster.models import Agent, AgentEvent, AgentMessage, Call, GuildMember, Node, Token
from tests.support.leases import add_node

pytestmark = pytest.mark.django_db

COMMAND_LINE = Requester(Call.Source.COMMAND)


@pytest.fixture
def lease_id() -> uuid.UUID:
    """This process has the lease, and everything to run agents."""
    return lease.take()


@pytest.fixture
def anna() -> GuildMember:
    return GuildMember.objects.create(name="anna", directory="anna")


@pytest.fixture
def agent(anna: GuildMember, lease_id: uuid.UUID) -> Agent:
    return create_agent(["anna"], requester=COMMAND_LINE, name="talk")


@pytest.fixture
def agent_of_bob(anna: GuildMember, lease_id: uuid.UUID) -> Agent:
    """An agent of a user who may only call tools."""
    bob = User.objects.create_user("bob")
    bob.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    return create_agent(["anna"], requester=Requester(Call.Source.REST, bob), name="bobs")


def add_queued_message(agent: Agent, prompt: str = "hello") -> AgentMessage:
    return queue_message(agent, prompt, requester=COMMAND_LINE)


def add_running_message(agent: Agent, lease_id: uuid.UUID) -> AgentMessage:
    message = add_queued_message(agent)
    assert transitions.claim(message, lease_id)
    message.refresh_from_db()
    return message


# Create ---------------------------------------------------------------------------------------------------------------


def test_a_new_agent_starts_its_members(lease_id: uuid.UUID, anna: GuildMember) -> None:
    GuildMember.objects.update(desired_state="stopped", status="error")
    agent = create_agent(["anna", "anna"], requester=COMMAND_LINE)
    assert [member.name for member in agent.members.all()] == ["anna"]
    assert agent.name.startswith("anna-")
    anna.refresh_from_db()
    assert anna.desired_state == "running"
    assert anna.restart_requested_at is not None


@pytest.mark.parametrize(
    ("names", "values", "error"),
    [
        ([], {}, RequestRefusedError),
        (["nobody"], {}, UnknownMemberError),
        (["off"], {}, MemberDisabledError),
        (["broken"], {}, RequestRefusedError),
        (["anna"], {"name": "talk"}, RequestRefusedError),
        (["anna"], {"name": "12"}, RequestRefusedError),
        (["anna"], {"name": "a\nb"}, RequestRefusedError),
        (["far"], {"direct": True}, RequestRefusedError),
    ],
)
def test_an_invalid_agent_is_refused_and_not_created(
    agent: Agent, names: list[str], values: dict[str, Any], error: type[Exception]
) -> None:
    GuildMember.objects.create(name="off", directory="off", enabled=False)
    GuildMember.objects.create(name="broken", directory="broken", manifest_error="no command")
    GuildMember.objects.create(name="far", directory="far", server_url="https://far.example.com/mcp")
    with pytest.raises(error):
        create_agent(names, requester=COMMAND_LINE, **values)
    assert Agent.objects.get() == agent


def test_an_agent_is_found_by_name_and_by_id(agent: Agent) -> None:
    assert find_agent("talk") == find_agent(str(agent.pk)) == agent
    for name in ("tall", "999999", "9" * 40, "²"):
        with pytest.raises(UnknownAgentError):
            find_agent(name)


@pytest.mark.parametrize("prompt", ["", " \n", None, 5, "x" * (transitions.MAX_PROMPT + 1)])
def test_an_invalid_prompt_is_refused(agent: Agent, prompt: Any) -> None:
    with pytest.raises(RequestRefusedError):
        queue_message(agent, prompt, requester=COMMAND_LINE)


def test_too_many_waiting_messages_are_refused(agent: Agent) -> None:
    for _ in range(transitions.MAX_QUEUED):
        add_queued_message(agent)
    with pytest.raises(RequestRefusedError, match="waiting already"):
        add_queued_message(agent)


def test_messages_are_refused_while_the_runtime_cannot_run_agents(agent: Agent, lease_id: uuid.UUID) -> None:
    transitions.note_problem("the Agent SDK is not installed", lease_id)
    with pytest.raises(AgentUnavailableError, match="the Agent SDK is not installed"):
        add_queued_message(agent)
    transitions.note_problem("", uuid.uuid4())  # a process without the lease
    assert Node.objects.get().agent_problem
    transitions.note_problem("", lease_id)
    assert add_queued_message(agent).status == "queued"


@pytest.mark.skipif(connection.vendor == "sqlite", reason="a hall on SQLite has one node")
def test_agents_can_run_as_long_as_one_node_can_run_them(lease_id: uuid.UUID) -> None:
    transitions.note_problem("there is no key", lease_id)
    add_node("other", agent_problem="the Agent SDK is not installed")
    own = Node.objects.get(lease_id=lease_id).name
    assert agent_problem() == f"on node {own}: there is no key; on node other: the Agent SDK is not installed"
    Node.objects.filter(name="other").update(agent_problem="")
    assert agent_problem() == ""


def test_a_message_starts_members_that_were_stopped(agent: Agent, anna: GuildMember) -> None:
    stop_member(anna)
    add_queued_message(agent)
    anna.refresh_from_db()
    assert anna.desired_state == "running"


# One at a time --------------------------------------------------------------------------------------------------------


def test_the_oldest_message_of_each_agent_is_due_while_none_of_its_messages_runs(
    agent: Agent, lease_id: uuid.UUID
) -> None:
    other_agent = create_agent(["anna"], requester=COMMAND_LINE)
    first, second, third = add_queued_message(agent), add_queued_message(agent), add_queued_message(other_agent)
    assert list(transitions.due_messages(lease_id)) == [first, third]
    assert transitions.claim(first, lease_id)
    assert list(transitions.due_messages(lease_id)) == [third]
    transitions.finish(first, MessageOutcome(transitions.MessageStatus.SUCCEEDED, result="done"), lease_id)
    assert list(transitions.due_messages(lease_id)) == [second, third]


def test_a_message_is_claimed_only_once_and_only_with_the_lease(agent: Agent, lease_id: uuid.UUID) -> None:
    message = add_queued_message(agent)
    assert not transitions.claim(message, uuid.uuid4())
    assert transitions.claim(message, lease_id)
    assert not transitions.claim(message, lease_id)


def test_the_database_does_not_allow_two_running_messages_of_an_agent(agent: Agent, lease_id: uuid.UUID) -> None:
    add_running_message(agent, lease_id)
    second = add_queued_message(agent)
    with pytest.raises(IntegrityError), transaction.atomic():
        transitions.claim(second, lease_id)


def test_the_status_of_an_agent_is_that_of_its_messages(agent: Agent, lease_id: uuid.UUID) -> None:
    assert agent.status == "idle"
    message = add_queued_message(agent)
    assert agent.status == "queued"
    transitions.claim(message, lease_id)
    add_queued_message(agent)
    assert agent.status == "running"


# Outcomes -------------------------------------------------------------------------------------------------------------


def test_the_outcome_is_the_last_event_and_deletes_the_token(agent: Agent, lease_id: uuid.UUID) -> None:
    user = User.objects.create_superuser("alice")
    message = add_running_message(agent, lease_id)
    token = transitions.make_token(message)
    assert Token.objects.get(digest=Token.digest_of(token)).user == user
    transitions.write_events(message, [("text", {"text": "a\0b"})])
    assert transitions.finish(message, MessageOutcome(transitions.MessageStatus.SUCCEEDED, result="done"), lease_id)
    assert not transitions.finish(message, MessageOutcome.failed(transitions.MessageErrorKind.AGENT, "no"), lease_id)
    events = list(transcript(agent))
    assert [event.kind for event in events] == ["text", "result"]
    assert events[0].data == {"text": "a\N{REPLACEMENT CHARACTER}b"}
    assert not Token.objects.exists()
    message.refresh_from_db()
    assert (message.status, message.result, message.token) == ("succeeded", "done", None)
    assert not is_under_way(agent)


def test_an_agent_without_an_active_user_gets_no_token(agent: Agent, lease_id: uuid.UUID) -> None:
    with pytest.raises(RequestRefusedError, match="no active user"):
        transitions.make_token(add_running_message(agent, lease_id))


def queue_with_token(agent: Agent, **limits: Any) -> tuple[AgentMessage, Token]:
    """A message that the agent's creator queued with a token, and the token."""
    row, text = Token.make(user=agent.created_by, **limits)
    requester = Requester(Call.Source.REST, agent.created_by, principals.principal_of_token(text))
    return queue_message(agent, "hello", requester=requester), row


def test_the_token_of_an_agent_has_the_limits_of_the_token_of_its_message(agent_of_bob: Agent) -> None:
    expiry = timezone.now() + timedelta(seconds=60)
    message, _ = queue_with_token(agent_of_bob, calls_per_minute=7, max_in_flight=3, expires_at=expiry)
    principal = principals.principal_of_token(transitions.make_token(message))
    assert (principal.limits.calls_per_minute, principal.limits.max_in_flight, principal.expires_at) == (7, 3, expiry)
    unlimited_principal = principals.principal_of_token(transitions.make_token(add_queued_message(agent_of_bob)))
    assert (unlimited_principal.limits.calls_per_minute, unlimited_principal.limits.max_in_flight) == (6000, 64)
    assert unlimited_principal.expires_at is not None
    assert unlimited_principal.expires_at > expiry


@pytest.mark.parametrize("loss", ["permission", "group", "active", "revoked", "deleted"])
def test_a_message_does_not_run_after_its_requester_loses_access(
    agent_of_bob: Agent, anna: GuildMember, loss: str
) -> None:
    message, token = queue_with_token(agent_of_bob)
    transitions.require_access(message)
    match loss:
        case "permission":
            agent_of_bob.created_by.user_permissions.clear()  # type: ignore[union-attr]
        case "group":
            reserve_member(anna, [Group.objects.create(name="others")])
        case "active":
            User.objects.filter(username="bob").update(is_active=False)
        case "revoked":
            token.revoke()
        case "deleted":
            token.delete()
    with pytest.raises(AccessError):
        transitions.require_access(AgentMessage.objects.get(pk=message.pk))


def test_messages_of_the_operator_may_run_and_those_of_deleted_users_may_not(agent: Agent) -> None:
    transitions.require_access(add_queued_message(agent))
    message = queue_message(agent, "hello", requester=Requester(Call.Source.REST, User.objects.create_superuser("c")))
    User.objects.all().delete()
    message.refresh_from_db()
    with pytest.raises(AccessError, match="The user who asked is gone"):
        transitions.require_access(message)


def test_an_agent_uses_the_account_of_its_creator_at_a_member_for_the_creator_alone(
    agent_of_bob: Agent, agent: Agent, anna: GuildMember
) -> None:
    bob, olga = agent_of_bob.created_by, User.objects.create_superuser("olga")
    before = [
        queue_message(agent_of_bob, "hello", requester=Requester(Call.Source.REST, olga)),
        queue_message(agent_of_bob, "hello", requester=COMMAND_LINE),
        queue_message(agent, "hello", requester=COMMAND_LINE),
    ]
    GuildMember.objects.update(manifest={"oauth": {"credentials": "user"}})
    requester = Requester(Call.Source.REST, bob)
    transitions.require_access(queue_message(agent_of_bob, "hello", requester=requester))
    create_agent(["anna"], requester=requester)
    for message, text in zip(before, ["has the account of 'bob'", "is of no user", "is of no user"], strict=True):
        with pytest.raises(RequestRefusedError, match=text):
            transitions.require_access(AgentMessage.objects.get(pk=message.pk))
    with pytest.raises(RequestRefusedError, match="has the account of 'bob' there"):
        queue_message(agent_of_bob, "hello", requester=Requester(Call.Source.REST, olga))
    for other in (agent_of_bob, agent):
        with pytest.raises(RequestRefusedError, match="is of no user"):
            queue_message(other, "hello", requester=COMMAND_LINE)
    with pytest.raises(RequestRefusedError, match="is of no user"):
        create_agent(["anna"], requester=COMMAND_LINE)


def test_running_messages_of_a_dead_runtime_end_as_lost_and_queued_ones_stay(agent: Agent, lease_id: uuid.UUID) -> None:
    User.objects.create_superuser("alice")
    message, queued_message = add_running_message(agent, lease_id), add_queued_message(agent)
    transitions.make_token(message)
    lease.release(lease_id)
    new_lease_id = lease.take()
    assert transitions.end_lost_messages(new_lease_id, "the runtime ended") == 1
    message.refresh_from_db()
    queued_message.refresh_from_db()
    assert (message.status, message.error_kind, queued_message.status) == ("failed", "lost", "queued")
    assert not Token.objects.exists()
    assert not transitions.finish(message, MessageOutcome(transitions.MessageStatus.SUCCEEDED), lease_id)


def test_a_stop_cancels_queued_messages_and_requests_the_end_of_the_running_one(
    agent: Agent, lease_id: uuid.UUID
) -> None:
    message, queued_message = add_running_message(agent, lease_id), add_queued_message(agent)
    stop_agent(agent)
    message.refresh_from_db()
    queued_message.refresh_from_db()
    assert (message.status, queued_message.status) == ("running", "cancelled")
    assert list(transitions.stop_requests(lease_id)) == [message]
    transitions.finish(message, MessageOutcome(transitions.MessageStatus.CANCELLED), lease_id)
    with pytest.raises(NotCancellableError, match="no message to agent 'talk'"):
        stop_agent(agent)


# Members in use -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", FORCIBLE_VERBS)
def test_a_member_with_an_active_agent_is_stopped_only_by_force(agent: Agent, anna: GuildMember, verb: str) -> None:
    message = add_queued_message(agent)
    with pytest.raises(MemberInUseError, match=f"agent 'talk', whose message {message.pk} is queued"):
        MEMBER_VERBS[verb](anna)
    anna.refresh_from_db()
    assert (anna.enabled, anna.desired_state, anna.restart_requested_at) == (True, "running", None)
    MEMBER_VERBS[verb](anna, force=True)
    stop_agent(agent)
    GuildMember.objects.update(enabled=True)
    anna.refresh_from_db()
    MEMBER_VERBS[verb](anna)


# Maintenance ----------------------------------------------------------------------------------------------------------


def test_old_agents_are_deleted_with_their_transcripts_unless_a_message_is_active(
    agent: Agent, lease_id: uuid.UUID
) -> None:
    past = timezone.now() - timedelta(days=40)
    active_agent, empty_agent = (create_agent(["anna"], requester=COMMAND_LINE) for _ in range(2))
    message = add_running_message(agent, lease_id)
    transitions.finish(message, MessageOutcome(transitions.MessageStatus.SUCCEEDED), lease_id)
    add_queued_message(active_agent)
    Agent.objects.update(created_at=past)
    assert transitions.prune(days=30) == 1  # the agent without messages, for the others have recent messages
    assert not Agent.objects.filter(pk=empty_agent.pk).exists()
    AgentMessage.objects.update(queued_at=past)
    assert transitions.prune(days=30) == 1
    assert list(Agent.objects.all()) == [active_agent]
    assert not AgentEvent.objects.exists()


# Several nodes --------------------------------------------------------------------------------------------------------


def other_node(name: str, *, is_alive: bool = True) -> Node:
    heartbeat_at = timezone.now() if is_alive else timezone.now() - timedelta(minutes=5)
    return Node.objects.create(name=name, lease_id=uuid.uuid4(), heartbeat_at=heartbeat_at)


def queue_minutes_ago(agent: Agent) -> AgentMessage:
    message = add_queued_message(agent)
    AgentMessage.objects.filter(pk=message.pk).update(queued_at=timezone.now() - timedelta(hours=1), timeout=60)
    return message


on_postgresql = pytest.mark.skipif(connection.vendor == "sqlite", reason="a hall on SQLite has one node")


@on_postgresql
def test_a_conversation_goes_on_at_the_node_with_its_files(agent: Agent, lease_id: uuid.UUID) -> None:
    first = add_queued_message(agent)
    assert transitions.claim(first, lease_id)
    transitions.finish(first, MessageOutcome(transitions.MessageStatus.SUCCEEDED, result="done"), lease_id)
    second, other = add_queued_message(agent), other_node("other")
    assert list(transitions.due_messages(lease_id)) == [second]
    assert list(transitions.due_messages(other.lease_id)) == []


@on_postgresql
def test_a_direct_agent_runs_only_on_the_node_of_its_members(
    agent: Agent, anna: GuildMember, lease_id: uuid.UUID
) -> None:
    other = other_node("other")
    Agent.objects.filter(pk=agent.pk).update(direct=True)
    GuildMember.objects.filter(pk=anna.pk).update(node=other, lease_id=other.lease_id)
    message = add_queued_message(agent)
    assert list(transitions.due_messages(lease_id)) == []
    assert list(transitions.due_messages(other.lease_id)) == [message]


@on_postgresql
def test_a_message_to_an_agent_of_a_dead_node_fails_after_its_timeout(agent: Agent, lease_id: uuid.UUID) -> None:
    Agent.objects.filter(pk=agent.pk).update(node=other_node("dead", is_alive=False))
    late, young = queue_minutes_ago(agent), add_queued_message(agent)
    assert transitions.end_unserved_messages(lease_id) == 1
    late.refresh_from_db()
    young.refresh_from_db()
    assert (late.error_kind, young.status) == ("unavailable", "queued")
    assert late.error_message == "node 'dead', which has the files of the conversation, is not alive"


@on_postgresql
def test_a_direct_agent_with_members_on_two_nodes_is_told_so(
    agent: Agent, anna: GuildMember, lease_id: uuid.UUID
) -> None:
    bob = GuildMember.objects.create(name="bob", directory="bob", lease_id=other_node("other").lease_id)
    GuildMember.objects.filter(pk=anna.pk).update(lease_id=lease_id)
    agent.members.add(bob)
    Agent.objects.filter(pk=agent.pk).update(direct=True)
    late = queue_minutes_ago(agent)
    assert transitions.end_unserved_messages(lease_id) == 1
    late.refresh_from_db()
    assert "are on several nodes" in late.error_message

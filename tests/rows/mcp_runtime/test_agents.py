"""Messages to agents as rows: claimed once, one of each agent at a time, ended always. No agent runs here."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import IntegrityError, transaction
from django.utils import timezone

from mcp_runtime.agents import transitions
from mcp_runtime.agents.transitions import Outcome
from mcp_runtime.calls.transitions import Caller
from mcp_runtime.control.agents import (
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
from roster.models import Agent, AgentEvent, AgentMessage, Call, GuildMember, Hall, Token

pytestmark = pytest.mark.django_db

COMMAND_LINE = Caller(Call.Source.COMMAND)


@pytest.fixture
def lease_id() -> uuid.UUID:
    """This process holds the lease, and lacks nothing to run agents."""
    return lease.take()


@pytest.fixture
def anna() -> GuildMember:
    return GuildMember.objects.create(name="anna", directory="anna")


@pytest.fixture
def talk(anna: GuildMember, lease_id: uuid.UUID) -> Agent:
    return create_agent(["anna"], caller=COMMAND_LINE, name="talk")


@pytest.fixture
def bobs(anna: GuildMember, lease_id: uuid.UUID) -> Agent:
    """An agent of a user who may call tools, and no more."""
    bob = User.objects.create_user("bob")
    bob.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    return create_agent(["anna"], caller=Caller(Call.Source.REST, bob), name="bobs")


def queued(talk: Agent, prompt: str = "hello") -> AgentMessage:
    return queue_message(talk, prompt, caller=COMMAND_LINE)


def running(talk: Agent, lease_id: uuid.UUID) -> AgentMessage:
    message = queued(talk)
    assert transitions.claim(message, lease_id)
    message.refresh_from_db()
    return message


# Making ---------------------------------------------------------------------------------------------------------------


def test_a_new_agent_starts_its_members(lease_id: uuid.UUID, anna: GuildMember) -> None:
    GuildMember.objects.update(desired_state="stopped", status="error")
    made = create_agent(["anna", "anna"], caller=COMMAND_LINE)
    assert [member.name for member in made.members.all()] == ["anna"]
    assert made.name.startswith("anna-")
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
def test_what_cannot_be_an_agent_is_refused_and_leaves_nothing(
    talk: Agent, names: list[str], values: dict[str, Any], error: type[Exception]
) -> None:
    GuildMember.objects.create(name="off", directory="off", enabled=False)
    GuildMember.objects.create(name="broken", directory="broken", manifest_error="no command")
    GuildMember.objects.create(name="far", directory="far", server_url="https://far.example.com/mcp")
    with pytest.raises(error):
        create_agent(names, caller=COMMAND_LINE, **values)
    assert Agent.objects.get() == talk


def test_an_agent_is_found_by_name_and_by_id(talk: Agent) -> None:
    assert find_agent("talk") == find_agent(str(talk.pk)) == talk
    for wrong in ("tall", "999999", "9" * 40, "²"):
        with pytest.raises(UnknownAgentError):
            find_agent(wrong)


@pytest.mark.parametrize("prompt", ["", " \n", None, 5, "x" * (transitions.MAX_PROMPT + 1)])
def test_a_prompt_that_is_none_is_refused(talk: Agent, prompt: Any) -> None:
    with pytest.raises(RequestRefusedError):
        queue_message(talk, prompt, caller=COMMAND_LINE)


def test_too_many_waiting_messages_are_refused(talk: Agent) -> None:
    for _ in range(transitions.MAX_QUEUED):
        queued(talk)
    with pytest.raises(RequestRefusedError, match="waiting already"):
        queued(talk)


def test_what_the_runtime_lacks_refuses_messages(talk: Agent, lease_id: uuid.UUID) -> None:
    transitions.note_problem("the Agent SDK is not installed", lease_id)
    with pytest.raises(AgentUnavailableError, match="the Agent SDK is not installed"):
        queued(talk)
    transitions.note_problem("", uuid.uuid4())  # somebody without the lease
    assert Hall.objects.get().agent_problem
    transitions.note_problem("", lease_id)
    assert queued(talk).status == "queued"


def test_a_message_starts_members_that_were_stopped_meanwhile(talk: Agent, anna: GuildMember) -> None:
    stop_member(anna)
    queued(talk)
    anna.refresh_from_db()
    assert anna.desired_state == "running"


# One after the other --------------------------------------------------------------------------------------------------


def test_of_each_agent_the_oldest_message_is_due_while_none_of_it_runs(talk: Agent, lease_id: uuid.UUID) -> None:
    other = create_agent(["anna"], caller=COMMAND_LINE)
    first, second, third = queued(talk), queued(talk), queued(other)
    assert list(transitions.due_messages()) == [first, third]
    assert transitions.claim(first, lease_id)
    assert list(transitions.due_messages()) == [third]
    transitions.finish(first, Outcome(transitions.Status.SUCCEEDED, result="done"), lease_id)
    assert list(transitions.due_messages()) == [second, third]


def test_a_message_is_claimed_once_and_only_with_the_lease(talk: Agent, lease_id: uuid.UUID) -> None:
    message = queued(talk)
    assert not transitions.claim(message, uuid.uuid4())
    assert transitions.claim(message, lease_id)
    assert not transitions.claim(message, lease_id)


def test_the_database_itself_lets_no_two_messages_of_an_agent_run(talk: Agent, lease_id: uuid.UUID) -> None:
    running(talk, lease_id)
    second = queued(talk)
    with pytest.raises(IntegrityError), transaction.atomic():
        transitions.claim(second, lease_id)


def test_the_agent_says_what_its_messages_do(talk: Agent, lease_id: uuid.UUID) -> None:
    assert talk.status == "idle"
    message = queued(talk)
    assert talk.status == "queued"
    transitions.claim(message, lease_id)
    queued(talk)
    assert talk.status == "running"


# Ends -----------------------------------------------------------------------------------------------------------------


def test_the_end_is_the_last_event_and_kills_the_token(talk: Agent, lease_id: uuid.UUID) -> None:
    user = User.objects.create_superuser("alice")
    message = running(talk, lease_id)
    token = transitions.make_token(message)
    assert Token.objects.get(digest=Token.digest_of(token)).user == user
    transitions.write_events(message, [("text", {"text": "a\0b"})])
    assert transitions.finish(message, Outcome(transitions.Status.SUCCEEDED, result="done"), lease_id)
    assert not transitions.finish(message, Outcome.failed(transitions.ErrorKind.AGENT, "no"), lease_id)
    events = list(transcript(talk))
    assert [event.kind for event in events] == ["text", "result"]
    assert events[0].data == {"text": "a\N{REPLACEMENT CHARACTER}b"}
    assert not Token.objects.exists()
    message.refresh_from_db()
    assert (message.status, message.result, message.token) == ("succeeded", "done", None)
    assert not is_under_way(talk)


def test_without_a_user_whose_rights_it_could_have_an_agent_gets_no_token(talk: Agent, lease_id: uuid.UUID) -> None:
    with pytest.raises(RequestRefusedError, match="no active user"):
        transitions.make_token(running(talk, lease_id))


def asked_with(agent: Agent, **limits: Any) -> tuple[AgentMessage, Token]:
    """A message that the agent's creator queued with a token, and the token."""
    row, text = Token.make(user=agent.created_by, **limits)
    caller = Caller(Call.Source.REST, agent.created_by, principals.principal_of_token(text))
    return queue_message(agent, "hello", caller=caller), row


def test_the_agents_token_has_the_limits_and_the_end_of_the_one_it_was_queued_with(bobs: Agent) -> None:
    soon = timezone.now() + timedelta(seconds=60)
    message, _ = asked_with(bobs, calls_per_minute=7, max_in_flight=3, expires_at=soon)
    own = principals.principal_of_token(transitions.make_token(message))
    assert (own.limits.calls_per_minute, own.limits.max_in_flight, own.expires_at) == (7, 3, soon)
    free = principals.principal_of_token(transitions.make_token(queued(bobs)))
    assert (free.limits.calls_per_minute, free.limits.max_in_flight) == (6000, 64)
    assert free.expires_at is not None
    assert free.expires_at > soon


@pytest.mark.parametrize("taken", ["permission", "group", "active", "revoked", "deleted"])
def test_what_was_taken_away_since_it_was_queued_keeps_a_message_from_running(
    bobs: Agent, anna: GuildMember, taken: str
) -> None:
    message, token = asked_with(bobs)
    transitions.require_access(message)
    match taken:
        case "permission":
            bobs.created_by.user_permissions.clear()  # type: ignore[union-attr]
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


def test_the_operator_may_let_agents_use_everything_and_nobody_nothing(talk: Agent) -> None:
    transitions.require_access(queued(talk))
    gone = queue_message(talk, "hello", caller=Caller(Call.Source.REST, User.objects.create_superuser("c")))
    User.objects.all().delete()
    gone.refresh_from_db()
    with pytest.raises(AccessError, match="The user who asked is gone"):
        transitions.require_access(gone)


def test_what_a_dead_runtime_ran_ends_as_lost_and_what_waited_waits(talk: Agent, lease_id: uuid.UUID) -> None:
    User.objects.create_superuser("alice")
    message, waiting = running(talk, lease_id), queued(talk)
    transitions.make_token(message)
    lease.release(lease_id)
    successor = lease.take()
    assert transitions.end_messages_of_other_leases(successor, "the runtime ended") == 1
    message.refresh_from_db()
    waiting.refresh_from_db()
    assert (message.status, message.error_kind, waiting.status) == ("failed", "lost", "queued")
    assert not Token.objects.exists()
    assert not transitions.finish(message, Outcome(transitions.Status.SUCCEEDED), lease_id)


def test_stop_cancels_what_waits_and_asks_what_runs(talk: Agent, lease_id: uuid.UUID) -> None:
    message, waiting = running(talk, lease_id), queued(talk)
    stop_agent(talk)
    message.refresh_from_db()
    waiting.refresh_from_db()
    assert (message.status, waiting.status) == ("running", "cancelled")
    assert list(transitions.stop_requests(lease_id)) == [message]
    transitions.finish(message, Outcome(transitions.Status.CANCELLED), lease_id)
    with pytest.raises(NotCancellableError, match="no message to agent 'talk'"):
        stop_agent(talk)


# Members in use -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", FORCIBLE_VERBS)
def test_a_member_that_an_agent_needs_is_left_alone_unless_forced(talk: Agent, anna: GuildMember, verb: str) -> None:
    message = queued(talk)
    with pytest.raises(MemberInUseError, match=f"agent 'talk', whose message {message.pk} is queued"):
        MEMBER_VERBS[verb](anna)
    anna.refresh_from_db()
    assert (anna.enabled, anna.desired_state, anna.restart_requested_at) == (True, "running", None)
    MEMBER_VERBS[verb](anna, force=True)
    stop_agent(talk)
    GuildMember.objects.update(enabled=True)
    anna.refresh_from_db()
    MEMBER_VERBS[verb](anna)


# Upkeep ---------------------------------------------------------------------------------------------------------------


def test_old_agents_go_with_their_transcripts_but_none_that_is_under_way(talk: Agent, lease_id: uuid.UUID) -> None:
    past = timezone.now() - timedelta(days=40)
    busy, empty = (create_agent(["anna"], caller=COMMAND_LINE) for _ in range(2))
    ended = running(talk, lease_id)
    transitions.finish(ended, Outcome(transitions.Status.SUCCEEDED), lease_id)
    queued(busy)
    Agent.objects.update(created_at=past)
    assert transitions.prune(days=30) == 1  # the empty one: in the others something happened lately
    assert not Agent.objects.filter(pk=empty.pk).exists()
    AgentMessage.objects.update(queued_at=past)
    assert transitions.prune(days=30) == 1
    assert list(Agent.objects.all()) == [busy]
    assert not AgentEvent.objects.exists()

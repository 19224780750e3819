"""Whose account an agent's run has at a member whose manifest changes to a sign-in of each user, with real servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User

from mcp_runtime.agents import transitions
from mcp_runtime.calls.transitions import Requester
from mcp_runtime.client.exchanges import Exchange
from mcp_runtime.control import sign_ins
from mcp_runtime.members.live import LiveMember
from mcp_runtime.protocol.errors import SignInNeededError
from roster.models import Agent, AgentMessage, Call, GuildMember, Token
from tests.rows.mcp_runtime.test_sign_ins import connected
from tests.support.lifecycle_stage import RemoteStage, row
from tests.support.oauth_server import OAuthWorld, oauth_world

pytestmark = pytest.mark.django_db(transaction=True)

WEB = "http://localhost:8000"


@pytest.fixture
def world() -> Iterator[OAuthWorld]:
    with oauth_world(echoes=True, lists_openly=True) as world:
        yield world


@pytest.fixture
def carl() -> User:
    """The creator of the agent."""
    return User.objects.create_superuser("carl", password="x")


@pytest.fixture
def olga() -> User:
    return User.objects.create_superuser("olga", password="x")


def token_of_run(member: GuildMember, creator: User, asker: User | None) -> Token:
    """The token of a run that began while the member had one account for everybody."""
    source = Call.Source.REST if asker else Call.Source.COMMAND
    agent = Agent.objects.create(name=f"of-{asker}", created_by=creator, creator="carl")
    agent.members.add(member)
    message = transitions.queue(agent, "look", timeout=60.0, requester=Requester(source, asker))
    transitions.make_token(message)
    token = AgentMessage.objects.get(pk=message.pk).token
    assert token is not None
    return token


def after_the_change(stage: RemoteStage, world: OAuthWorld, member: GuildMember, user: User) -> LiveMember:
    """Each user signs in alone from now on, and this user has done it."""
    stage.add_remote(world.url, oauth={"credentials": "user"})
    stage.lifecycle.stop(member.pk)
    stage.lifecycle.start(member.pk)
    world.account = user.username
    begun = sign_ins.begin(row(member), user, web=WEB, own=True)
    sign_ins.finish(world.approve(begun.address), user, "")
    live_member = stage.lifecycle.connected_member(member.pk)
    assert live_member is not None, row(member).last_error
    return live_member


@pytest.mark.parametrize("asker", ["olga", "the operator"])
def test_a_run_that_somebody_else_began_has_no_account_of_its_creator_after_the_change(
    stage: RemoteStage, world: OAuthWorld, carl: User, olga: User, asker: str
) -> None:
    member, _ = connected(stage, world, olga)
    token = token_of_run(member, carl, olga if asker == "olga" else None)
    live_member = after_the_change(stage, world, member, carl)
    users = live_member.users
    assert users is not None
    with pytest.raises(SignInNeededError, match="this agent has the account of its creator"):
        users.look(carl.pk, token.pk)
    with pytest.raises(SignInNeededError, match="this agent has the account of its creator"):
        users.connected_client(carl.pk, 5.0, Exchange(), "", token.pk)
    assert "tools/call" not in world.hashes_by_method()


def test_a_run_that_its_creator_began_has_the_creators_account_after_the_change(
    stage: RemoteStage, world: OAuthWorld, carl: User, olga: User
) -> None:
    member, _ = connected(stage, world, olga)
    of_run = token_of_run(member, carl, carl)
    other, _ = Token.make(user=carl, name="another")
    live_member = after_the_change(stage, world, member, carl)
    assert live_member.users is not None
    for token in (of_run, other):
        assert live_member.users.look(carl.pk, token.pk).token

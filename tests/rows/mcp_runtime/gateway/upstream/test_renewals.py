"""Tokens of users at the gateway while one authorization server is silent. All servers are real."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from mcp_runtime.client import outside
from mcp_runtime.client.bulkheads import MAX_AT_ONCE, Bulkheads
from mcp_runtime.control import sign_ins
from mcp_runtime.gateway.upstream import renewals
from mcp_runtime.gateway.upstream.renewals import Renewals
from mcp_runtime.gateway.upstream.routes import Upstream
from mcp_runtime.members.live import LiveMember
from mcp_runtime.protocol.errors import ServerAwayError, SignInNeededError
from roster.models import GuildMember, UserSignIn
from tests.support.lifecycle_stage import RemoteStage, row
from tests.support.oauth_server import OAuthWorld, oauth_world
from tests.support.silent_server import SilentServer, silent_server

pytestmark = pytest.mark.django_db(transaction=True)

WEB = "http://localhost:8000"
USERS = 8  # as many as there are threads


@pytest.fixture
def silent() -> Iterator[SilentServer]:
    with silent_server() as silent:
        yield silent


@pytest.fixture
def world() -> Iterator[OAuthWorld]:
    with oauth_world(lists_openly=True) as world:
        yield world


@pytest.fixture(autouse=True)
def own_bulkheads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "open_requests", Bulkheads())


@pytest.fixture
def users() -> list[User]:
    return [User.objects.create_superuser(f"user-{number}") for number in range(USERS)]


def signed_in(stage: RemoteStage, world: OAuthWorld, name: str, users: list[User]) -> LiveMember:
    """A member at which these users signed in, whose tokens end now."""
    member: GuildMember = stage.add_remote(world.url, name, oauth={"credentials": "user"})
    stage.lifecycle.start(member.pk)
    for user in users:
        begun = sign_ins.begin(row(member), user, web=WEB, own=True)
        sign_ins.finish(world.approve(begun.address), user, "")
    UserSignIn.objects.filter(member=member).update(expires_at=timezone.now())
    live_member = stage.lifecycle.connected_member(member.pk)
    assert live_member is not None, row(member).last_error
    return live_member


def move_token_endpoint(name: str, base: str) -> None:
    for sign_in in UserSignIn.objects.filter(member__name=name):
        server = {**sign_in.server, "token_endpoint": f"{base}/token"}
        UserSignIn.objects.filter(pk=sign_in.pk).update(server=server)


def test_a_silent_authorization_server_delays_no_user_of_another(
    stage: RemoteStage, world: OAuthWorld, silent: SilentServer, users: list[User]
) -> None:
    names = ("anna", "bert")  # two members of the silent provider
    members = {name: signed_in(stage, world, name, users) for name in (*names, "carl")}
    for name in names:
        move_token_endpoint(name, silent.base)

    async def use() -> None:
        upstream = Upstream(stage.lifecycle, max_bytes=1_000_000)
        ask: Any = upstream._token_for
        waiting = [asyncio.ensure_future(ask(members[name], (user.pk, None))) for name in names for user in users]
        while len(silent.connections) < MAX_AT_ONCE:
            await asyncio.sleep(0.01)
        token = await ask(members["carl"], (users[0].pk, None))
        assert token.token in world.access
        assert world.refreshes == 1
        assert not all(each.done() for each in waiting)
        # All but a few go on with the old token, and do not wait for the silent server.
        while sum(each.done() for each in waiting) < len(waiting) - MAX_AT_ONCE:
            await asyncio.sleep(0.01)
        assert len(silent.connections) == MAX_AT_ONCE
        silent.hang_up()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert not [each for each in results if isinstance(each, SignInNeededError)]
        upstream.close()

    asyncio.run(use())


def test_a_member_has_a_few_threads_and_others_of_its_users_are_told_to_try_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(renewals, "PATIENCE_SECONDS", 0.2)

    async def use() -> None:
        pool, end = Renewals(), asyncio.Event()
        loop, begun = asyncio.get_running_loop(), []

        def renew(number: int) -> int:
            begun.append(number)
            asyncio.run_coroutine_threadsafe(end.wait(), loop).result()
            return number

        first = [asyncio.ensure_future(pool.once((1, str(number), ""), partial(renew, number))) for number in range(3)]
        while len(begun) < renewals.MAX_OF_MEMBER:
            await asyncio.sleep(0.01)
        with pytest.raises(ServerAwayError, match="try again in a moment"):
            await pool.once((1, "another", ""), partial(renew, 9))
        assert await pool.once((2, "of another member", ""), lambda: "renewed") == "renewed"
        same = asyncio.ensure_future(pool.once((1, "0", ""), partial(renew, 9)))
        end.set()
        assert await asyncio.gather(*first, same) == [0, 1, 2, 0]
        assert await pool.once((1, "another", ""), lambda: "renewed") == "renewed"
        pool.close()

    asyncio.run(use())


def test_many_renewals_of_one_member_that_end_soon_all_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use() -> None:
        pool = Renewals()
        jobs = [pool.once((1, str(number), ""), lambda number=number: number) for number in range(100)]  # type: ignore[misc]
        assert await asyncio.gather(*jobs) == list(range(100))
        pool.close()

    asyncio.run(use())

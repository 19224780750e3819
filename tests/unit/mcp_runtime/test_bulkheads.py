"""How many threads may wait for one host, with a server that never answers and one that does. Both are real."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from mcp_runtime.client import bulkheads, outside
from mcp_runtime.client.bulkheads import MAX_AT_ONCE, MAX_HOSTS, PATIENCE_SECONDS, Bulkheads
from mcp_runtime.client.outside import Guard, Place, ask
from mcp_runtime.protocol.errors import ClientError, ConnectError
from tests.conftest import eventually
from tests.support.oauth_server import oauth_world
from tests.support.silent_server import silent_server

GUARD = Guard((Place.LOOPBACK,))


@pytest.fixture(autouse=True)
def own_bulkheads(monkeypatch: pytest.MonkeyPatch) -> Bulkheads:
    own = Bulkheads()
    monkeypatch.setattr(outside, "open_requests", own)
    return own


def test_few_threads_wait_for_a_silent_host_and_other_hosts_are_asked_meanwhile(own_bulkheads: Bulkheads) -> None:
    with silent_server() as silent, oauth_world() as world, ThreadPoolExecutor(8) as pool:
        asks = [pool.submit(ask, f"{silent.base}/token", GUARD, seconds=60.0) for _ in range(8)]
        eventually(lambda: len([each for each in asks if each.done()]) == 8 - MAX_AT_ONCE, within=30)
        failed, waiting = [each for each in asks if each.done()], [each for each in asks if not each.done()]
        for each in failed:
            with pytest.raises(ConnectError, match="does not answer, and other requests already wait"):
                each.result()
        assert len(silent.connections) == MAX_AT_ONCE
        with pytest.raises(ConnectError, match="try again in a moment"):  # at once, without patience
            ask(f"{silent.base}/token", GUARD)
        assert ask(f"{world.base}/.well-known/oauth-authorization-server", GUARD).status == 200
        assert not any(each.done() for each in waiting)
        silent.hang_up()
        for each in waiting:
            with pytest.raises(ClientError):
                each.result(30)
        # It is known to be silent, so one request tries it.
        probe = pool.submit(ask, f"{silent.base}/token", GUARD, seconds=60.0)
        eventually(lambda: len(silent.connections) == MAX_AT_ONCE + 1, within=30)
        with pytest.raises(ConnectError, match="try again in a moment"):
            ask(f"{silent.base}/token", GUARD)
        silent.hang_up()
        with pytest.raises(ClientError):
            probe.result(30)


def test_requests_to_a_host_that_answers_wait_for_their_turn_and_all_succeed() -> None:
    with oauth_world(token_delay=0.1) as world, ThreadPoolExecutor(12) as pool:
        form = {"grant_type": "refresh_token", "refresh_token": "unknown"}
        asks = [pool.submit(ask, f"{world.base}/token", GUARD, form=form, seconds=60.0) for _ in range(24)]
        assert {each.result().status for each in asks} == {400}


def test_an_answer_ends_the_silence() -> None:
    heads, origin = Bulkheads(), "https://a.example:443"

    def fail() -> None:
        with heads.turn(origin, time.monotonic() + 60) as turn:
            turn.sent_at = time.monotonic() - PATIENCE_SECONDS
            raise ConnectError("no answer")

    with pytest.raises(ConnectError, match="no answer"):
        fail()
    with heads.turn(origin, time.monotonic() + 60), pytest.raises(ConnectError, match="already wait"):
        heads.turn(origin, time.monotonic() + 60).__enter__()
    with heads.turn(origin, time.monotonic() + 60), heads.turn(origin, time.monotonic() + 60):
        pass


def test_a_host_that_refuses_at_once_is_not_silent() -> None:
    heads, origin = Bulkheads(), "https://a.example:443"

    def fail() -> None:
        with heads.turn(origin, time.monotonic() + 60) as turn:
            turn.sent_at = time.monotonic()
            raise ConnectError("connection refused")

    with pytest.raises(ConnectError, match="connection refused"):
        fail()
    with heads.turn(origin, time.monotonic() + 60), heads.turn(origin, time.monotonic() + 60):
        pass


def test_only_some_hosts_are_remembered_and_each_that_is_asked_now() -> None:
    heads = Bulkheads()
    with heads.turn("https://busy.example:443", time.monotonic() + 60):
        for number in range(MAX_HOSTS + 5):
            with heads.turn(f"https://{number}.example:443", time.monotonic() + 60):
                pass
        assert "https://busy.example:443" in heads.hosts
    assert len(heads.hosts) == bulkheads.MAX_HOSTS

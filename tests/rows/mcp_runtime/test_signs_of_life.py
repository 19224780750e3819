"""The pings to members, and the effects on members that do not respond. The servers run in this process."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from mcp_runtime.members import signs_of_life
from mcp_runtime.members.live import LiveMember
from mcp_runtime.members.signs_of_life import SignsOfLife
from roster.models import GuildMember
from tests.support.lifecycle_stage import RemoteStage, in_error, last_change, row
from tests.support.scripted_server import Request, Server

pytestmark = pytest.mark.django_db(transaction=True)

Status = GuildMember.Status


class WatchedMember:
    """A member, its server, and turns that the test takes one by one."""

    def __init__(self, stage: RemoteStage, **manifest: str) -> None:
        self.server: Server = stage.serve()
        self.member = stage.up_remote(self.server, **manifest)
        self.live_member: LiveMember = stage.live(self.member)
        self.waiting_functions: list[Callable[[], None]] = []
        self.has_threads = True
        self.signs = SignsOfLife(stage.lifecycle, self._add_function)

    def _add_function(self, work: Callable[[], None]) -> None:
        if not self.has_threads:
            raise RuntimeError("can't start new thread")
        self.waiting_functions.append(work)

    def send_pings(self) -> int:
        """The number of pings that this turn sent."""
        self.signs.turn()
        functions, self.waiting_functions[:] = list(self.waiting_functions), []
        for function in functions:
            function()
        return len(functions)

    def set_ping_behaviour(self, behaviour: Callable[[Request], None]) -> None:
        self.server.behaviours["ping"] = behaviour


@pytest.fixture(autouse=True)
def _short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signs_of_life, "PING_TIMEOUT", 0.2)


def test_a_member_is_pinged_once_after_calls_that_timed_out(stage: RemoteStage) -> None:
    watched = WatchedMember(stage)
    watched.set_ping_behaviour(lambda request: request.hang())
    assert watched.send_pings() == 0
    watched.live_member.silence.note_timeout(30)
    assert [watched.send_pings(), watched.send_pings()] == [1, 0]
    watched.live_member.silence.note_timeout(1)
    watched.live_member.silence.note_timeout(1)
    assert [watched.send_pings(), watched.send_pings()] == [1, 0]


def test_a_member_gets_one_ping_at_a_time(stage: RemoteStage) -> None:
    watched = WatchedMember(stage)
    watched.set_ping_behaviour(lambda request: request.hang())
    watched.live_member.silence.note_timeout(1)
    watched.signs.turn()
    watched.live_member.silence.note_timeout(1)
    watched.signs.turn()
    assert len(watched.waiting_functions) == 1
    watched.waiting_functions.pop()()
    assert watched.send_pings() == 1


def test_only_so_many_members_are_pinged_in_one_turn(stage: RemoteStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signs_of_life, "MAX_PINGS", 0)
    watched = WatchedMember(stage)
    watched.set_ping_behaviour(lambda request: request.result({}))
    watched.live_member.silence.note_timeout(1)
    assert watched.send_pings() == 0
    monkeypatch.setattr(signs_of_life, "MAX_PINGS", 1)
    assert watched.send_pings() == 1


def test_without_a_free_thread_the_next_turn_sends_the_ping(stage: RemoteStage) -> None:
    watched = WatchedMember(stage)
    watched.set_ping_behaviour(lambda request: request.result({}))
    watched.live_member.silence.note_timeout(1)
    watched.has_threads = False
    assert watched.send_pings() == 0
    watched.has_threads = True
    assert watched.send_pings() == 1


@pytest.mark.parametrize(
    "behaviour",
    [
        lambda request: request.result({}),
        lambda request: request.error(-32601, "no"),
        lambda request: request.http(404),
    ],
)
def test_every_response_to_a_ping_ends_the_silence(stage: RemoteStage, behaviour: Callable[[Request], None]) -> None:
    watched = WatchedMember(stage, unresponsive="restart")
    watched.set_ping_behaviour(behaviour)
    for _ in range(5):
        watched.live_member.silence.note_timeout(0)
        assert watched.send_pings() == 1
        assert watched.live_member.silence.timeouts == 0
    assert (row(watched.member).no_answer_since, row(watched.member).status) == (None, Status.CONNECTED)


def test_a_member_that_does_not_respond_is_shown_until_it_responds(stage: RemoteStage) -> None:
    watched = WatchedMember(stage)
    watched.set_ping_behaviour(lambda request: request.hang())
    for _ in range(5):
        watched.live_member.silence.note_timeout(30)
    watched.send_pings()
    silent_member = row(watched.member)
    assert silent_member.no_answer_since is not None
    assert timezone.now() - silent_member.no_answer_since - timedelta(seconds=30) < timedelta(seconds=2)
    assert (silent_member.status, silent_member.silence) == (
        Status.CONNECTED,
        f"no answer since {silent_member.no_answer_since:%Y-%m-%d %H:%M:%S} UTC",
    )
    assert silent_member.all_warnings[0] == silent_member.silence
    watched.live_member.silence.note_answer()
    watched.send_pings()
    assert row(watched.member).no_answer_since is None


def test_a_member_with_unresponsive_restart_is_restarted_after_three_calls_and_a_ping(stage: RemoteStage) -> None:
    watched = WatchedMember(stage, unresponsive="restart")
    watched.set_ping_behaviour(lambda request: request.hang())
    watched.live_member.silence.note_timeout(30)
    watched.live_member.silence.note_timeout(1)
    watched.send_pings()
    assert row(watched.member).status == Status.CONNECTED
    watched.live_member.silence.note_timeout(1)
    watched.send_pings()
    failed_member = in_error(stage, watched.member)
    assert "has given no answer since" in failed_member.last_error
    assert "3 calls timed out, and a ping had no answer within 0.2 s" in failed_member.last_error
    assert (failed_member.no_answer_since, last_change(watched.member).cause) == (None, "no answer")


def test_a_member_that_is_being_stopped_is_not_in_error_for_its_silence(stage: RemoteStage) -> None:
    watched = WatchedMember(stage, unresponsive="restart")
    watched.set_ping_behaviour(lambda request: request.hang())
    for _ in range(3):
        watched.live_member.silence.note_timeout(1)
    watched.live_member.stop_requested.set()
    watched.send_pings()
    assert (row(watched.member).status, row(watched.member).no_answer_since) == (Status.CONNECTED, None)

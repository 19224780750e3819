"""When members are pinged, and what becomes of those that do not answer: real servers, that run in this process."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from mcp_runtime.members import signs_of_life
from mcp_runtime.members.live import LiveMember
from mcp_runtime.members.signs_of_life import SignsOfLife
from roster.models import GuildMember
from tests.rows.mcp_runtime import test_lifecycle_remote
from tests.support.lifecycle_stage import RemoteStage, in_error, last_change, row
from tests.support.scripted_server import Request, Server

pytestmark = pytest.mark.django_db(transaction=True)

stage = test_lifecycle_remote.stage

Status = GuildMember.Status


class Watched:
    """A member, the server that it is, and turns that are taken by hand."""

    def __init__(self, stage: RemoteStage, **manifest: str) -> None:
        self.server: Server = stage.serve()
        self.member = stage.up_remote(self.server, **manifest)
        self.live: LiveMember = stage.live(self.member)
        self.waiting: list[Callable[[], None]] = []
        self.has_threads = True
        self.signs = SignsOfLife(stage.lifecycle, self._run_apart)

    def _run_apart(self, work: Callable[[], None]) -> None:
        if not self.has_threads:
            raise RuntimeError("can't start new thread")
        self.waiting.append(work)

    def pings(self) -> int:
        """How many this turn sent."""
        self.signs.turn()
        work, self.waiting[:] = list(self.waiting), []
        for ask in work:
            ask()
        return len(work)

    def answer_pings(self, how: Callable[[Request], None]) -> None:
        self.server.behaviours["ping"] = how


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signs_of_life, "PING_TIMEOUT", 0.2)


def test_a_member_is_pinged_once_for_each_call_that_timed_out_and_not_again(stage: RemoteStage) -> None:
    watched = Watched(stage)
    watched.answer_pings(lambda r: r.hang())
    assert watched.pings() == 0
    watched.live.silence.note_timeout(30)
    assert [watched.pings(), watched.pings()] == [1, 0]
    watched.live.silence.note_timeout(1)
    watched.live.silence.note_timeout(1)
    assert [watched.pings(), watched.pings()] == [1, 0]


def test_a_member_is_pinged_by_one_at_a_time(stage: RemoteStage) -> None:
    watched = Watched(stage)
    watched.answer_pings(lambda r: r.hang())
    watched.live.silence.note_timeout(1)
    watched.signs.turn()
    watched.live.silence.note_timeout(1)
    watched.signs.turn()
    assert len(watched.waiting) == 1
    watched.waiting.pop()()
    assert watched.pings() == 1


def test_so_many_are_pinged_at_a_time_and_the_others_at_later_turns(
    stage: RemoteStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signs_of_life, "MAX_PINGS", 0)
    watched = Watched(stage)
    watched.answer_pings(lambda r: r.result({}))
    watched.live.silence.note_timeout(1)
    assert watched.pings() == 0
    monkeypatch.setattr(signs_of_life, "MAX_PINGS", 1)
    assert watched.pings() == 1


def test_where_the_system_gives_no_thread_the_next_turn_asks(stage: RemoteStage) -> None:
    watched = Watched(stage)
    watched.answer_pings(lambda r: r.result({}))
    watched.live.silence.note_timeout(1)
    watched.has_threads = False
    assert watched.pings() == 0
    watched.has_threads = True
    assert watched.pings() == 1


@pytest.mark.parametrize("answer", [lambda r: r.result({}), lambda r: r.error(-32601, "no"), lambda r: r.http(404)])
def test_any_answer_to_a_ping_ends_the_silence(stage: RemoteStage, answer: Callable[[Request], None]) -> None:
    watched = Watched(stage, unresponsive="restart")
    watched.answer_pings(answer)
    for _ in range(5):
        watched.live.silence.note_timeout(0)
        assert watched.pings() == 1
        assert watched.live.silence.timeouts == 0
    assert (row(watched.member).no_answer_since, row(watched.member).status) == (None, Status.CONNECTED)


def test_a_member_without_an_answer_is_shown_until_one_comes(stage: RemoteStage) -> None:
    watched = Watched(stage)
    watched.answer_pings(lambda r: r.hang())
    for _ in range(5):
        watched.live.silence.note_timeout(30)
    watched.pings()
    found = row(watched.member)
    assert found.no_answer_since is not None
    assert timezone.now() - found.no_answer_since - timedelta(seconds=30) < timedelta(seconds=2)
    assert (found.status, found.silence) == (Status.CONNECTED, f"no answer since {found.no_answer_since:%H:%M:%S} UTC")
    assert found.all_warnings[0] == found.silence
    found.no_answer_since -= timedelta(days=3)
    assert found.silence == f"no answer since {found.no_answer_since:%Y-%m-%d %H:%M:%S} UTC"
    watched.live.silence.note_answer()
    watched.pings()
    assert row(watched.member).no_answer_since is None


def test_one_whose_manifest_asks_for_it_is_restarted_after_three_calls_and_a_ping(stage: RemoteStage) -> None:
    watched = Watched(stage, unresponsive="restart")
    watched.answer_pings(lambda r: r.hang())
    watched.live.silence.note_timeout(30)
    watched.live.silence.note_timeout(1)
    watched.pings()
    assert row(watched.member).status == Status.CONNECTED
    watched.live.silence.note_timeout(1)
    watched.pings()
    found = in_error(stage, watched.member)
    assert "has given no answer since" in found.last_error
    assert "3 calls timed out, and a ping had no answer within 0.2 s" in found.last_error
    assert (found.no_answer_since, last_change(watched.member).cause) == (None, "no answer")


def test_one_that_is_being_stopped_is_not_in_error_for_its_silence(stage: RemoteStage) -> None:
    watched = Watched(stage, unresponsive="restart")
    watched.answer_pings(lambda r: r.hang())
    for _ in range(3):
        watched.live.silence.note_timeout(1)
    watched.live.stop_requested.set()
    watched.pings()
    assert (row(watched.member).status, row(watched.member).no_answer_since) == (Status.CONNECTED, None)

"""A member that moves to another node: its calls, and what happens if it cannot go."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import OperationalError

from mcp_runtime.members import moves as moves_module
from mcp_runtime.members.moves import Moves
from roster.models import GuildMember, Node
from tests.support.lifecycle_stage import OWN_LEASE

pytestmark = pytest.mark.django_db


class FakeLiveMember:
    def __init__(self, member_id: int) -> None:
        self.member_id, self.relayed_calls, self.is_leaving = member_id, 0, False


class FakeLifecycle:
    lease_id = OWN_LEASE

    def __init__(self, live_member: FakeLiveMember) -> None:
        self._live_member = live_member
        self.stops: list[int] = []

    def live_member(self, member_id: int) -> FakeLiveMember:
        return self._live_member

    def stop(self, member_id: int, *, cause: str) -> None:
        assert self._live_member.is_leaving
        self.stops.append(member_id)


class FakeHandover:
    """Wants the member on the target, as long as there is no error."""

    def __init__(self, departures: list[tuple[GuildMember, Node]]) -> None:
        self.wanted, self.error = departures, ""

    def departures(self) -> list[tuple[GuildMember, Node]]:
        if self.error:
            raise OperationalError(self.error)
        return self.wanted


class Stage:
    def __init__(self) -> None:
        self.target = Node.objects.create(name="b", lease_id="00000000-0000-0000-0000-00000000000b")
        self.member = GuildMember.objects.create(name="anna", directory="anna", lease_id=OWN_LEASE)
        self.live_member = FakeLiveMember(self.member.pk)
        self.lifecycle = FakeLifecycle(self.live_member)
        self.handover = FakeHandover([(self.member, self.target)])
        self.calls = 0
        parts: Any = (self.lifecycle, self.handover, lambda _: self.calls, threading.Event())
        self.moves = Moves(*parts)

    def move(self) -> None:
        self.moves.move(self.member, self.target)

    @property
    def owner(self) -> Node | None:
        return GuildMember.objects.get(pk=self.member.pk).node


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_member_without_calls_is_stopped_and_given_away(stage: Stage) -> None:
    assert stage.moves.due() == [(stage.member, stage.target)]
    stage.move()
    assert (stage.lifecycle.stops, stage.owner) == ([stage.member.pk], stage.target)


@pytest.mark.parametrize("kind", ["queued", "of the gateway"])
def test_a_member_whose_calls_go_on_stays_and_gets_calls_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(moves_module, "PATIENCE", 0.1)
    stage.calls, stage.live_member.relayed_calls = (1, 0) if kind == "queued" else (0, 1)
    stage.move()
    assert (stage.lifecycle.stops, stage.owner, stage.live_member.is_leaving) == ([], None, False)
    assert stage.moves.due() == []  # not at once


def test_a_member_whose_move_is_cancelled_meanwhile_stays(stage: Stage) -> None:
    stage.handover.wanted = []
    stage.move()
    assert (stage.lifecycle.stops, stage.owner, stage.live_member.is_leaving) == ([], None, False)


def test_a_move_that_fails_leaves_a_member_that_gets_calls(stage: Stage) -> None:
    stage.handover.error = "the database is away"
    with pytest.raises(OperationalError):
        stage.move()
    assert (stage.lifecycle.stops, stage.live_member.is_leaving) == ([], False)

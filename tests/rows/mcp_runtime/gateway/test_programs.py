"""Which programs came with which token: what they say is bounded, and rows are written now and then."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError

from mcp_runtime.gateway import programs
from mcp_runtime.gateway.programs import Program, Programs
from mcp_runtime.security.access import OPERATOR
from roster.models import Token, TokenClient
from tests.conftest import eventually
from tests.support.gateway_world import World

pytestmark = pytest.mark.django_db(transaction=True)

CLAUDE = Program("claude-code", "2.1")


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def noted(clock: Clock) -> Programs:
    return Programs(clock)


@pytest.fixture
def token() -> Token:
    return Token.make(user=User.objects.create_user("bob"))[0]


def rows() -> list[tuple[str, str, int]]:
    return [(row.name, row.version, row.calls) for row in TokenClient.objects.order_by("name", "version")]


@pytest.mark.parametrize(
    ("info", "program"),
    [
        ({"name": "claude-code", "version": "2.1", "title": "Claude"}, CLAUDE),
        ({"name": "cursor"}, Program("cursor")),
        ({"name": " a \x1b[31mred\x1b[0m\n\x00b ", "version": 3}, Program("a red��b")),
        ({"name": "n" * 10_000, "version": "v" * 10_000}, Program("n" * 100, "v" * 50)),
        *(({"name": name}, Program()) for name in (None, 7, [], {}, "", "  ")),
        *((info, Program()) for info in (None, "claude", [], 7)),
    ],
)
def test_a_client_is_what_it_calls_itself_within_bounds(info: Any, program: Program) -> None:
    assert Program.from_client_info(info) == program


def test_a_client_is_noted_at_once_and_then_once_a_minute(noted: Programs, token: Token, clock: Clock) -> None:
    noted.note((token.user_id, token.pk), CLAUDE)
    noted.write()
    assert rows() == [("claude-code", "2.1", 0)]
    noted.note((token.user_id, token.pk), CLAUDE, calls=1)
    noted.note((token.user_id, token.pk), CLAUDE, calls=1)
    noted.write()
    assert rows() == [("claude-code", "2.1", 0)]
    clock.now += 60
    noted.write()
    row = TokenClient.objects.get()
    assert row.calls == 2
    assert row.first_seen_at.timestamp() == row.last_seen_at.timestamp() == clock.now - 60


def test_the_last_write_takes_all_that_is_left(noted: Programs, token: Token) -> None:
    noted.note((token.user_id, token.pk), CLAUDE)
    noted.write()
    noted.note((token.user_id, token.pk), CLAUDE, calls=3)
    noted.write(at_once=True)
    assert rows() == [("claude-code", "2.1", 3)]


def test_nothing_new_costs_no_query(
    noted: Programs, token: Token, clock: Clock, django_assert_num_queries: Any
) -> None:
    noted.note((token.user_id, token.pk), CLAUDE)
    noted.write()
    clock.now += 3600
    with django_assert_num_queries(0):
        noted.write()


def test_of_one_token_the_clients_seen_last_are_kept(noted: Programs, token: Token, clock: Clock) -> None:
    other = Token.make(user=token.user)[0]
    noted.note((other.user_id, other.pk), CLAUDE)
    for number in range(programs.MAX_OF_TOKEN + 5):
        clock.now += 1
        noted.note((token.user_id, token.pk), Program("shifty", f"{number:03}"))
        noted.write()
    kept = [row.version for row in TokenClient.objects.filter(token=token)]
    assert kept == [f"{number:03}" for number in range(programs.MAX_OF_TOKEN + 4, 4, -1)]
    assert TokenClient.objects.filter(token=other).count() == 1


def test_a_flood_of_names_of_one_token_leaves_room_for_those_of_others(noted: Programs, token: Token) -> None:
    other = Token.make(user=token.user)[0]
    for number in range(2 * programs.MAX_TALLIES):
        noted.note((token.user_id, token.pk), Program(f"c{number:04}"))
    noted.note((other.user_id, other.pk), CLAUDE)
    noted.write(at_once=True)
    assert TokenClient.objects.filter(token=other).count() == 1


def test_a_flood_of_names_of_one_users_tokens_leaves_room_for_other_users(noted: Programs, token: Token) -> None:
    for _ in range(20):
        flooding = Token.make(user=token.user)[0]
        for number in range(100):
            noted.note((flooding.user_id, flooding.pk), Program(f"c{number:04}"))
    other = Token.make(user=User.objects.create_user("ada"))[0]
    noted.note((other.user_id, other.pk), CLAUDE)
    noted.write(at_once=True)
    assert TokenClient.objects.filter(token=other).count() == 1


def test_a_flood_of_names_fills_neither_the_memory_nor_a_turn(
    noted: Programs, token: Token, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "MAX_TALLIES", 100)
    monkeypatch.setattr(programs, "MAX_AT_ONCE", 7)
    for number in range(500):
        noted.note((token.user_id, token.pk), Program(f"c{number:03}"))
    noted.write()
    assert TokenClient.objects.count() == 7
    for _ in range(20):
        noted.write()
    clock.now += programs.FORGET_SECONDS + 1
    noted.write()
    noted.note((token.user_id, token.pk), CLAUDE)
    noted.write()
    assert TokenClient.objects.filter(name="claude-code").exists()


def test_a_token_that_was_deleted_stops_nothing(noted: Programs, token: Token) -> None:
    gone = (token.user_id, token.pk)
    left = Token.make(user=token.user)[0]
    token.delete()
    noted.note(gone, CLAUDE)
    noted.note((left.user_id, left.pk), CLAUDE)
    noted.write()
    assert [row.token for row in TokenClient.objects.all()] == [left]


def test_what_could_not_be_written_is_written_later(
    noted: Programs, token: Token, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise OperationalError("the database is away")

    noted.note((token.user_id, token.pk), CLAUDE, calls=2)
    with monkeypatch.context() as patch:
        patch.setattr(programs, "_save", away)
        noted.write()
    clock.now += 60
    noted.write()
    assert rows() == [("claude-code", "2.1", 2)]


def test_without_a_token_or_a_name_nothing_is_noted(noted: Programs, token: Token) -> None:
    noted.note(OPERATOR.owner, CLAUDE)
    noted.note((token.user_id, token.pk), Program())
    noted.write(at_once=True)
    assert rows() == []


def test_the_gateway_notes_who_came_and_counts_their_calls(world: World) -> None:
    world.member("notes")
    agent = world.agent().begin()
    eventually(lambda: rows() == [("a", "1", 0)])
    assert "result" in agent.ask("tools/call", name="notes__echo", arguments={})
    info = {"io.modelcontextprotocol/clientInfo": {"name": "modern", "version": "2"}}
    assert world.agent().modern("tools/list", meta=info).status_code == 200
    world.gateway.stop()
    assert rows() == [("a", "1", 1), ("modern", "2", 0)]

"""The programs that used a token. Their names have a maximum length, and their rows are written once a minute."""

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
def recorder(clock: Clock) -> Programs:
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
def test_a_client_has_the_name_that_it_sends_within_limits(info: Any, program: Program) -> None:
    assert Program.from_client_info(info) == program


def test_a_client_is_stored_at_once_and_then_once_a_minute(recorder: Programs, token: Token, clock: Clock) -> None:
    recorder.note((token.user_id, token.pk), CLAUDE)
    recorder.write()
    assert rows() == [("claude-code", "2.1", 0)]
    recorder.note((token.user_id, token.pk), CLAUDE, calls=1)
    recorder.note((token.user_id, token.pk), CLAUDE, calls=1)
    recorder.write()
    assert rows() == [("claude-code", "2.1", 0)]
    clock.now += 60
    recorder.write()
    row = TokenClient.objects.get()
    assert row.calls == 2
    assert row.first_seen_at.timestamp() == row.last_seen_at.timestamp() == clock.now - 60


def test_the_last_write_stores_all_remaining_calls(recorder: Programs, token: Token) -> None:
    recorder.note((token.user_id, token.pk), CLAUDE)
    recorder.write()
    recorder.note((token.user_id, token.pk), CLAUDE, calls=3)
    recorder.write(at_once=True)
    assert rows() == [("claude-code", "2.1", 3)]


def test_a_write_without_changes_runs_no_query(
    recorder: Programs, token: Token, clock: Clock, django_assert_num_queries: Any
) -> None:
    recorder.note((token.user_id, token.pk), CLAUDE)
    recorder.write()
    clock.now += 3600
    with django_assert_num_queries(0):
        recorder.write()


def test_only_the_latest_clients_of_a_token_stay(recorder: Programs, token: Token, clock: Clock) -> None:
    other_token = Token.make(user=token.user)[0]
    recorder.note((other_token.user_id, other_token.pk), CLAUDE)
    for number in range(programs.MAX_OF_TOKEN + 5):
        clock.now += 1
        recorder.note((token.user_id, token.pk), Program("shifty", f"{number:03}"))
        recorder.write()
    versions = [row.version for row in TokenClient.objects.filter(token=token)]
    assert versions == [f"{number:03}" for number in range(programs.MAX_OF_TOKEN + 4, 4, -1)]
    assert TokenClient.objects.filter(token=other_token).count() == 1


def test_many_names_of_one_token_leave_room_for_other_tokens(recorder: Programs, token: Token) -> None:
    other_token = Token.make(user=token.user)[0]
    for number in range(2 * programs.MAX_TALLIES):
        recorder.note((token.user_id, token.pk), Program(f"c{number:04}"))
    recorder.note((other_token.user_id, other_token.pk), CLAUDE)
    recorder.write(at_once=True)
    assert TokenClient.objects.filter(token=other_token).count() == 1


def test_many_names_of_one_users_tokens_leave_room_for_other_users(recorder: Programs, token: Token) -> None:
    for _ in range(20):
        same_users_token = Token.make(user=token.user)[0]
        for number in range(100):
            recorder.note((same_users_token.user_id, same_users_token.pk), Program(f"c{number:04}"))
    other_token = Token.make(user=User.objects.create_user("ada"))[0]
    recorder.note((other_token.user_id, other_token.pk), CLAUDE)
    recorder.write(at_once=True)
    assert TokenClient.objects.filter(token=other_token).count() == 1


def test_many_names_are_limited_in_memory_and_in_one_write(
    recorder: Programs, token: Token, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "MAX_TALLIES", 100)
    monkeypatch.setattr(programs, "MAX_AT_ONCE", 7)
    for number in range(500):
        recorder.note((token.user_id, token.pk), Program(f"c{number:03}"))
    recorder.write()
    assert TokenClient.objects.count() == 7
    for _ in range(20):
        recorder.write()
    clock.now += programs.FORGET_SECONDS + 1
    recorder.write()
    recorder.note((token.user_id, token.pk), CLAUDE)
    recorder.write()
    assert TokenClient.objects.filter(name="claude-code").exists()


def test_a_deleted_token_does_not_stop_a_write(recorder: Programs, token: Token) -> None:
    deleted_owner = (token.user_id, token.pk)
    other_token = Token.make(user=token.user)[0]
    token.delete()
    recorder.note(deleted_owner, CLAUDE)
    recorder.note((other_token.user_id, other_token.pk), CLAUDE)
    recorder.write()
    assert [row.token for row in TokenClient.objects.all()] == [other_token]


def test_rows_that_could_not_be_written_are_written_later(
    recorder: Programs, token: Token, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OperationalError("the database is away")

    recorder.note((token.user_id, token.pk), CLAUDE, calls=2)
    with monkeypatch.context() as patch:
        patch.setattr(programs, "save", fail)
        recorder.write()
    clock.now += 60
    recorder.write()
    assert rows() == [("claude-code", "2.1", 2)]


def test_a_client_without_a_token_or_a_name_is_not_stored(recorder: Programs, token: Token) -> None:
    recorder.note(OPERATOR.owner, CLAUDE)
    recorder.note((token.user_id, token.pk), Program())
    recorder.write(at_once=True)
    assert rows() == []


def test_the_gateway_stores_clients_and_counts_their_calls(world: World) -> None:
    world.member("notes")
    client = world.agent().begin()
    eventually(lambda: rows() == [("a", "1", 0)])
    assert "result" in client.ask("tools/call", name="notes__echo", arguments={})
    info = {"io.modelcontextprotocol/clientInfo": {"name": "modern", "version": "2"}}
    assert world.agent().modern("tools/list", meta=info).status_code == 200
    world.gateway.stop()
    assert rows() == [("a", "1", 1), ("modern", "2", 0)]

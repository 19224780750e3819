"""`guildhall calls`."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.utils import timezone

from mcp_runtime.calls import text_index
from roster.models import Call, GuildMember
from tests.support.api import add_call

pytestmark = pytest.mark.django_db


def output(*argv: str) -> str:
    out = io.StringIO()
    call_command("calls", *argv, stdout=out)
    return out.getvalue()


@pytest.fixture
def alice() -> User:
    """A user without permissions."""
    return User.objects.create_user("alice")


@pytest.fixture
def calls(alice: User) -> list[Call]:
    example = GuildMember.objects.create(name="example", directory="example")
    long_ago = timezone.now() - timedelta(days=3)
    return [
        add_call(example, arguments={"text": "a"}, search_text="plum", queued_at=long_ago, requested_by=alice),
        add_call(example, status="failed", error_kind="tool", error_message="it\x1b[2J broke", search_text="pear"),
    ]


def test_the_table_has_the_newest_first_and_moves_no_cursor(calls: list[Call]) -> None:
    lines = output().splitlines()
    assert lines[0].split()[:2] == ["CALL", "QUEUED"]
    assert lines[1].split()[0] == str(calls[1].pk)
    assert "broke" in lines[1]
    assert "\x1b" not in lines[1]
    assert '"text": "a"' in lines[2]


@pytest.mark.parametrize(
    ("argv", "numbers"),
    [
        (["--search", "plum"], [0]),
        (["--search", "pea"], [1]),
        (["--status", "failed"], [1]),
        (["--error-kind", "tool"], [1]),
        (["--since", "1d"], [1]),
        (["--until", "1d"], [0]),
        (["--limit", "1"], [1]),
        (["--member", "nobody"], []),
        (["--user", "alice"], [0]),
        (["--user", "alice", "--search", "pear"], []),
    ],
)
def test_options_narrow_the_list_and_the_files(calls: list[Call], argv: list[str], numbers: list[int]) -> None:
    expected = [calls[number].pk for number in numbers]
    assert [json.loads(line)["id"] for line in output(*argv, "--format", "jsonl").splitlines()] == expected
    assert [call["id"] for call in json.loads(output(*argv, "--format", "json"))] == expected
    assert [int(row["id"]) for row in csv.DictReader(io.StringIO(output(*argv, "--format", "csv")))] == expected
    assert ("no such calls" in output(*argv)) == (not expected)


def test_results_are_in_json_on_request(calls: list[Call]) -> None:
    assert "result" not in json.loads(output("--format", "jsonl", "--limit", "1"))
    assert "result" in json.loads(output("--format", "jsonl", "--limit", "1", "--results"))


def test_a_search_that_takes_too_long_says_so_and_writes_nothing(
    calls: list[Call], too_long_searches: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CommandError, match="longer words"):
        call_command("calls", "--search", "plum", "--format", "csv")
    assert capsys.readouterr().out == ""


def test_a_database_that_cannot_search_words_says_so(calls: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_index, "is_available", lambda: False)
    with pytest.raises(CommandError, match="FTS5"):
        output("--search", "plum")

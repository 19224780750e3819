"""The exit code of a command says what kind of failure it was (docs/command-line.md)."""

from __future__ import annotations

import io
import re
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from mcp_runtime.protocol import errors
from mcp_runtime.protocol.errors import ErrorKind
from roster.management import exit_codes
from roster.models import Call, GuildMember
from tests.conftest import ROOT
from tests.support.admin import make_call, make_member, make_tool

pytestmark = pytest.mark.django_db


@pytest.fixture
def notes() -> GuildMember:
    member = make_member("notes")
    make_tool(member)
    return member


def code_of(*words: str) -> int:
    with pytest.raises(CommandError) as caught:
        call_command(*words, stdout=io.StringIO(), stderr=io.StringIO())
    return caught.value.returncode


@pytest.mark.usefixtures("notes")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["logs", "nobody"], exit_codes.NOT_FOUND),
        (["member", "stop", "nobody"], exit_codes.NOT_FOUND),
        (["tool", "enable", "notes", "nothing"], exit_codes.NOT_FOUND),
        (["prompt", "enable", "notes", "nothing"], exit_codes.NOT_FOUND),
        (["create_token", "nobody"], exit_codes.NOT_FOUND),
        (["explain_access", "nobody", "notes/echo"], exit_codes.NOT_FOUND),
        (["invoke", "notes", "echo", "{}", "--user", "nobody"], exit_codes.NOT_FOUND),
        (["drain_node", "nobody"], exit_codes.NOT_FOUND),
        (["delete_secret", "NOTHING"], exit_codes.NOT_FOUND),
        (["reserve", "notes", "--groups", "nobody"], exit_codes.NOT_FOUND),
        (["invoke", "notes", "echo", "{"], exit_codes.USAGE),
        (["edit_member", "notes", "--set", "x"], exit_codes.USAGE),
        (["contracts", "approve", "notes"], exit_codes.USAGE),
        (["invoke", "notes", "echo", "[]"], exit_codes.REFUSED),
        (["member", "refresh", "notes"], exit_codes.REFUSED),
        (["newest_version", "notes"], exit_codes.UNAVAILABLE),
        (["runtime", "--check"], exit_codes.FAILURE),
    ],
)
def test_a_failure_has_the_code_of_its_kind(words: list[str], code: int) -> None:
    assert code_of(*words) == code


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        ("failed", ErrorKind.TOOL, exit_codes.FAILED_CALL),
        ("failed", ErrorKind.LOST, exit_codes.FAILED_CALL),
        ("failed", ErrorKind.TIMEOUT, exit_codes.NO_ANSWER),
        ("failed", ErrorKind.UNAVAILABLE, exit_codes.UNAVAILABLE),
        ("cancelled", "", exit_codes.CANCELLED),
        ("queued", "", exit_codes.NO_ANSWER),
    ],
)
def test_a_call_that_did_not_succeed_has_the_code_of_its_error_kind(
    notes: GuildMember, monkeypatch: pytest.MonkeyPatch, status: str, kind: str, code: int
) -> None:
    started_at = timezone.now()
    finished = (
        {"started_at": started_at, "finished_at": started_at + timedelta(seconds=1)} if status != "queued" else {}
    )
    row = make_call(notes, status=status, error_kind=kind, error_message="no" if kind else "", **finished)
    monkeypatch.setattr(
        "roster.management.commands.invoke.queue_call", lambda *_, **__: (Call.objects.get(pk=row.pk), True)
    )
    monkeypatch.setattr("roster.management.commands.invoke.wait_for_call", lambda *_: status != "queued")
    assert code_of("invoke", "notes", "echo", "{}", "--timeout", "0.1") == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UnknownServerError("x"), exit_codes.NOT_FOUND),
        (errors.RegistryError("x"), exit_codes.UNAVAILABLE),
        (errors.TooManyCallsError("x", 1.0), exit_codes.UNAVAILABLE),
        (errors.NotAllowedError("x"), exit_codes.REFUSED),
        (errors.MemberFailedError(ErrorKind.TIMEOUT, "x"), exit_codes.NO_ANSWER),
        (errors.MigrationError("x"), exit_codes.NO_HALL),
        (ValueError("x"), exit_codes.USAGE),
        (OSError("x"), exit_codes.FAILURE),
        (None, exit_codes.FAILURE),
    ],
)
def test_an_error_of_the_hall_decides_the_code(error: BaseException | None, code: int) -> None:
    assert exit_codes.of_cause(error) == code


def test_each_unknown_thing_has_the_same_code() -> None:
    """A new error of this kind needs a place in `exit_codes`."""
    names = [name for name in vars(errors) if name.startswith("Unknown") and name.endswith("Error")]
    assert {exit_codes.of_cause(getattr(errors, name)("x")) for name in names} == {exit_codes.NOT_FOUND}


def test_the_documentation_has_all_codes() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text()
    documented = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", page, re.M) for code in row.split(",")}
    codes = {value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    assert codes | {0, 10, 11, 12, 141} == documented

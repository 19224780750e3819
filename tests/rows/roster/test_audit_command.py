"""`guildhall audit`."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from roster.models import Actor, AuditEntry

pytestmark = pytest.mark.django_db
Kind = AuditEntry.Kind


def output(*argv: str, **options: Any) -> str:
    out = StringIO()
    call_command("audit", *argv, stdout=out, **options)
    return out.getvalue()


@pytest.fixture(autouse=True)
def log() -> None:
    AuditEntry.objects.create(
        kind=Kind.LOGIN, source="web", actor="olga", target="user olga", at=timezone.now() - timedelta(days=3)
    )
    change = {"before": {"role": "viewer"}, "after": {"role": "caller"}}
    AuditEntry.record(Kind.ROLE_CHANGED, "user bob\x1b[2J", actor=Actor("web", "olga"), **change)


def test_the_table_has_the_newest_first_and_moves_no_cursor() -> None:
    lines = output().splitlines()
    assert lines[0].split() == ["TIME", "(UTC)", "ACTOR", "ACTION", "ABOUT", "CHANGE"]
    assert lines[1].endswith("role: viewer → caller")
    assert "\x1b" not in lines[1]
    assert "logged in" in lines[2]


@pytest.mark.parametrize(
    ("argv", "count"),
    [
        (["--since", "2d"], 1),
        (["--since", "2001-01-01"], 2),
        (["--kind", "login"], 1),
        (["--actor", "olga", "--limit", "1"], 1),
        (["--actor", "bob"], 0),
        (["--member", "notes"], 0),
    ],
)
def test_options_narrow_the_list(argv: list[str], count: int) -> None:
    assert len(json.loads(output(*argv, "--json"))) == count
    assert ("no such entries" in output(*argv)) == (count == 0)


def test_json_has_the_values_of_both_sides() -> None:
    entry = json.loads(output("--json"))[0]
    assert (entry["kind"], entry["before"], entry["after"]) == ("role_changed", {"role": "viewer"}, {"role": "caller"})
    assert entry["at"].endswith("Z")


def test_a_wrong_time_is_refused() -> None:
    with pytest.raises(CommandError, match="neither a time ago such as 30d"):
        output("--since", "yesterday")

"""The lines of a member's log during one call: on its page, over REST and at the command line."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.core.management import CommandError, call_command
from django.test import Client

from mcp_runtime.control.members import reserve_member
from mcp_runtime.members import log_spans, logs
from roster.models import Call, GuildMember
from tests.support.calls import add, at, html, words

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def log(tmp_path: Path, settings: object) -> Path:
    settings.GUILD_HALL_DATA_DIR = tmp_path  # type: ignore[attr-defined]
    path = logs.path_of(tmp_path, "anna")
    path.parent.mkdir()
    lines = [(-5, "before"), (1, f"during {EVIL}\x1b[2J"), (60, "after")]
    stamps = [(log_spans.stamp((NOON + timedelta(seconds=seconds)).timestamp()), text) for seconds, text in lines]
    path.write_text("".join(f"{stamp} {text}\n" for stamp, text in stamps))
    return path


@pytest.fixture
def call(anna: GuildMember) -> Call:
    return add(anna, queued_at=NOON, started_at=NOON, finished_at=NOON + timedelta(seconds=3))


@pytest.mark.usefixtures("log")
def test_the_page_has_the_lines_of_the_call_and_says_that_others_may_be_among_them(page: Client, call: Call) -> None:
    assert at(call, "log") in html(page.get(at(call, "change")))
    response = page.get(at(call, "log"))
    assert [line[24:] for line in response.context["lines"]] == [f"during {EVIL}"]
    assert EVIL not in html(response)
    assert "lines of other calls that ran at the same time may be among them" in words(response)


@pytest.mark.usefixtures("log")
def test_the_page_says_why_there_are_no_lines(page: Client, anna: GuildMember, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_spans, "FULL_BYTES", 50)
    assert "was not sent" in words(page.get(at(add(anna, status="queued"), "log")))
    early = NOON - timedelta(days=9)
    assert "before the oldest line" in words(page.get(at(add(anna, started_at=early, finished_at=early), "log")))


@pytest.mark.usefixtures("log")
def test_the_log_needs_the_permission_to_see_the_member(client: Client, bob: User, call: Call) -> None:
    assert at(call, "log") not in html(client.get(at(call, "change")))
    assert client.get(at(call, "log")).status_code == 403
    assert client.get(f"/api/calls/{call.pk}/logs/").status_code == 403
    bob.user_permissions.add(Permission.objects.get(codename="view_guildmember"))
    client.force_login(User.objects.get(pk=bob.pk))
    assert len(client.get(at(call, "log")).context["lines"]) == 1
    Call.objects.update(requested_by=bob)
    reserve_member(call.member, [Group.objects.create(name="others")])
    assert client.get(at(call, "change")).status_code == 200
    assert client.get(at(call, "log")).status_code == 403
    assert client.get(f"/api/calls/{call.pk}/logs/").status_code in (403, 404)


@pytest.mark.usefixtures("log")
def test_rest_and_the_command_have_the_same_lines(page: Client, call: Call) -> None:
    body = page.get(f"/api/calls/{call.pk}/logs/").json()
    assert [line[24:30] for line in body["lines"]] == ["during"]
    assert (body["is_cut"], body["is_late"]) == (False, False)
    out = io.StringIO()
    call_command("logs", "anna", "--call", str(call.pk), stdout=out)
    (line,) = out.getvalue().splitlines()
    assert "during" in line
    assert "\x1b" not in line
    with pytest.raises(CommandError, match="has no call 0"):
        call_command("logs", "anna", "--call", "0")

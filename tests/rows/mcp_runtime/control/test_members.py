from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from mcp_runtime.control.members import (
    MEMBER_VERBS,
    find_member,
    find_tool,
    live_runtime,
    log_tail,
    members_of_roster,
    refresh_member,
    set_tool_enabled,
    sync_roster,
    true_row,
    true_status,
    visible_tools,
)
from mcp_runtime.members import logs
from mcp_runtime.protocol.errors import MemberDisabledError, RequestRefusedError, UnknownMemberError, UnknownToolError
from mcp_runtime.rows import lease
from roster.models import GuildMember, Tool
from tests.rows.mcp_runtime.control.conftest import Broker

pytestmark = pytest.mark.django_db

Status = GuildMember.Status
NOW = timezone.now()


def row(member: GuildMember) -> GuildMember:
    return GuildMember.objects.get(pk=member.pk)


def desired(member: GuildMember) -> tuple[bool, str, bool, bool]:
    """enabled, desired state, whether a restart and a refresh are asked for."""
    found = row(member)
    asked = (found.restart_requested_at is not None, found.refresh_requested_at is not None)
    return found.enabled, found.desired_state, *asked


def test_a_member_is_found_by_its_name_unless_its_folder_is_gone(anna: GuildMember) -> None:
    assert find_member("anna") == anna
    GuildMember.objects.update(removed_at=timezone.now())
    for name in ("anna", "bob", ""):
        with pytest.raises(UnknownMemberError, match=f"no member '{name}'"):
            find_member(name)


@pytest.mark.parametrize(
    ("verb", "before", "after"),
    [
        # enabled, desired state, restart asked, refresh asked
        ("start", {"desired_state": "stopped", "status": "disconnected"}, (True, "running", False, False)),
        ("start", {"desired_state": "running", "status": "error"}, (True, "running", True, False)),
        ("start", {"desired_state": "running", "status": "connected"}, (True, "running", False, False)),
        ("stop", {"desired_state": "running"}, (True, "stopped", False, False)),
        ("stop", {"restart_requested_at": timezone.now()}, (True, "stopped", False, False)),
        ("stop", {"enabled": False}, (False, "stopped", False, False)),
        ("restart", {"desired_state": "stopped", "status": "disconnected"}, (True, "running", True, False)),
        ("refresh", {"status": "connected"}, (True, "running", False, True)),
        ("enable", {"enabled": False, "desired_state": "stopped"}, (True, "running", False, False)),
        ("disable", {"desired_state": "running"}, (False, "running", False, False)),
    ],
)
@pytest.mark.django_db(transaction=True)
def test_a_verb_writes_the_desired_state_and_notifies_the_runtime(
    anna: GuildMember, broker: Broker, verb: str, before: dict[str, Any], after: tuple[Any, ...]
) -> None:
    GuildMember.objects.update(**before)
    given = row(anna)
    status = given.status
    MEMBER_VERBS[verb](given)
    assert desired(anna) == after
    assert row(anna).status == status  # what is seen is not for the web to say
    assert broker.members == [True]
    assert (given.enabled, given.desired_state) == after[:2]  # the caller's copy shows it too


@pytest.mark.parametrize("verb", ["start", "restart"])
def test_a_disabled_member_is_not_started(anna: GuildMember, verb: str) -> None:
    GuildMember.objects.update(enabled=False, desired_state="stopped")
    with pytest.raises(MemberDisabledError, match="enable it first"):
        MEMBER_VERBS[verb](row(anna))
    assert desired(anna) == (False, "stopped", False, False)


@pytest.mark.parametrize("verb", ["start", "restart"])
def test_a_member_with_a_broken_manifest_is_not_started_and_the_fault_is_said(anna: GuildMember, verb: str) -> None:
    GuildMember.objects.update(manifest_error="args: must be a list")
    with pytest.raises(RequestRefusedError, match="'anna' cannot start: args: must be a list"):
        MEMBER_VERBS[verb](row(anna))


@pytest.mark.parametrize("status", [status for status in Status if status != Status.CONNECTED])
def test_a_member_that_is_not_connected_has_no_tools_to_list(anna: GuildMember, status: Status) -> None:
    GuildMember.objects.update(status=status)
    with pytest.raises(RequestRefusedError, match=f"'anna' is {status.value}"):
        refresh_member(row(anna))
    assert row(anna).refresh_requested_at is None


def test_a_tool_is_found_switched_on_or_not_while_it_is_listed(echo: Tool) -> None:
    set_tool_enabled(echo, False)
    assert not Tool.objects.get().enabled
    assert find_tool("anna", "echo") == echo
    set_tool_enabled(echo, True)
    assert find_tool("anna", "echo").enabled
    Tool.objects.update(listed=False)
    with pytest.raises(UnknownToolError, match="'anna' lists no tool 'echo'"):
        find_tool("anna", "echo")
    with pytest.raises(UnknownMemberError):
        find_tool("bob", "echo")


def test_lists_show_what_the_member_told_and_nobody_disabled(echo: Tool) -> None:
    assert list(Tool.objects.filter(visible_tools())) == [echo]
    for columns in ({"enabled": False}, {"enabled": True, "listed": False}):
        Tool.objects.update(**columns)
        assert not Tool.objects.filter(visible_tools()).exists()


# The roster as readers see it -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("fault", ["", "args: must be a list"])
@pytest.mark.parametrize("alive", [True, False])
def test_the_status_that_is_shown_is_the_truth(anna: GuildMember, status: Status, fault: str, alive: bool) -> None:
    anna.status, anna.manifest_error = status, fault
    shown = true_status(anna, runtime_is_alive=alive)
    if not alive:
        assert shown == ("error" if fault else "disconnected")
    elif fault and status == Status.DISCONNECTED:
        assert shown == "error"
    else:
        assert shown == status.value


def test_what_a_row_says_of_a_process_ends_with_the_runtime(anna: GuildMember) -> None:
    def connected() -> GuildMember:
        anna.status, anna.pid, anna.started_at, anna.no_answer_since = Status.CONNECTED, 7, NOW, NOW
        anna.warnings, anna.manifest_warnings, anna.next_restart_at = ["of the process"], ["of the file"], NOW
        return anna

    found = true_row(connected(), runtime_is_alive=True)
    assert (found.status, found.pid, found.started_at, found.next_restart_at) == (Status.CONNECTED, 7, NOW, NOW)
    assert found.all_warnings == [found.silence, "of the file", "of the process"]
    found = true_row(connected(), runtime_is_alive=False)
    assert (found.status, found.pid, found.started_at, found.next_restart_at) == ("disconnected", None, None, None)
    assert (found.endpoint, found.error, found.start_progress, found.all_warnings) == (None, "", "", ["of the file"])


def test_a_runtime_is_alive_while_it_holds_the_lease() -> None:
    assert live_runtime() is None
    lease_id = lease.take()
    holder = live_runtime()
    assert holder is not None
    assert str(holder) == f"process {holder.pid} on {holder.host}"
    lease.release(lease_id)
    assert live_runtime() is None


def test_the_roster_is_every_member_whose_folder_is_there(anna: GuildMember) -> None:
    GuildMember.objects.create(name="gone", directory="gone", removed_at=timezone.now())
    assert list(members_of_roster()) == [anna]


@pytest.mark.django_db(transaction=True)
def test_the_folder_is_read_and_the_runtime_is_notified(
    tmp_path: Path, settings: Any, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    settings.GUILD_HALL_MEMBERS_DIR = tmp_path
    (tmp_path / "bob").mkdir()
    manifest = {"name": "bob", "version": "1", "transport": "http", "command": "sh", "args": ["${PORT}"]}
    (tmp_path / "bob" / "guild-member.json").write_text(json.dumps(manifest))
    assert sync_roster().added == ["bob"]
    assert find_member("bob").version == "1"
    assert broker.members == [True]


def test_the_last_lines_of_a_members_log(anna: GuildMember, tmp_path: Path, settings: Any) -> None:
    settings.GUILD_HALL_DATA_DIR = tmp_path
    assert log_tail(anna, 5) == []
    path = logs.path_of(tmp_path, "anna")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"line {number}\n" for number in range(10)))
    assert log_tail(anna, 3) == ["line 7", "line 8", "line 9"]

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from mcp_runtime.control.logs import log_tail
from mcp_runtime.control.members import (
    MEMBER_VERBS,
    find_member,
    find_tool,
    folder_notes,
    live_runtime,
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
from roster.models import GuildMember, Node, Tool
from tests.rows.mcp_runtime.control.conftest import Broker

pytestmark = pytest.mark.django_db

Status = GuildMember.Status
NOW = timezone.now()


def row_of(member: GuildMember) -> GuildMember:
    return GuildMember.objects.get(pk=member.pk)


def desired_state_of(member: GuildMember) -> tuple[bool, str, bool, bool]:
    """`enabled`, the desired state, and whether a restart and a refresh are requested."""
    row = row_of(member)
    requests = (row.restart_requested_at is not None, row.refresh_requested_at is not None)
    return row.enabled, row.desired_state, *requests


def test_a_member_is_found_by_its_name_unless_it_is_removed(anna: GuildMember) -> None:
    assert find_member("anna") == anna
    GuildMember.objects.update(removed_at=timezone.now())
    for name in ("anna", "bob", ""):
        with pytest.raises(UnknownMemberError, match=f"no member '{name}'"):
            find_member(name)


@pytest.mark.parametrize(
    ("verb", "columns", "expected"),
    [
        # enabled, desired state, restart requested, refresh requested
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
    anna: GuildMember, broker: Broker, verb: str, columns: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    GuildMember.objects.update(**columns)
    member = row_of(anna)
    status = member.status
    MEMBER_VERBS[verb](member)
    assert desired_state_of(anna) == expected
    assert row_of(anna).status == status  # the web never writes the status
    assert broker.members == [True]
    assert (member.enabled, member.desired_state) == expected[:2]  # the object of the caller has the new values too


@pytest.mark.parametrize("verb", ["start", "restart"])
def test_a_disabled_member_is_not_started(anna: GuildMember, verb: str) -> None:
    GuildMember.objects.update(enabled=False, desired_state="stopped")
    with pytest.raises(MemberDisabledError, match="enable it first"):
        MEMBER_VERBS[verb](row_of(anna))
    assert desired_state_of(anna) == (False, "stopped", False, False)


@pytest.mark.parametrize("verb", ["start", "restart"])
def test_a_member_with_an_invalid_manifest_is_not_started_and_the_error_is_shown(anna: GuildMember, verb: str) -> None:
    GuildMember.objects.update(manifest_error="args: must be a list")
    with pytest.raises(RequestRefusedError, match="'anna' cannot start: args: must be a list"):
        MEMBER_VERBS[verb](row_of(anna))


@pytest.mark.parametrize("status", [status for status in Status if status != Status.CONNECTED])
def test_the_tools_of_a_member_that_is_not_connected_cannot_be_refreshed(anna: GuildMember, status: Status) -> None:
    GuildMember.objects.update(status=status)
    with pytest.raises(RequestRefusedError, match=f"'anna' is {status.value}"):
        refresh_member(row_of(anna))
    assert row_of(anna).refresh_requested_at is None


def test_a_listed_tool_is_found_whether_it_is_enabled_or_not(echo: Tool) -> None:
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


def test_lists_contain_only_listed_and_enabled_tools(echo: Tool) -> None:
    assert list(Tool.objects.filter(visible_tools())) == [echo]
    for columns in ({"enabled": False}, {"enabled": True, "listed": False}):
        Tool.objects.update(**columns)
        assert not Tool.objects.filter(visible_tools()).exists()


# The roster as users see it ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("error", ["", "args: must be a list"])
@pytest.mark.parametrize("alive", [True, False])
def test_the_status_that_is_shown_depends_on_the_runtime_and_the_manifest(
    anna: GuildMember, status: Status, error: str, alive: bool
) -> None:
    anna.status, anna.manifest_error, anna.node_id = status, error, 7
    shown_status = true_status(anna, live_ids={7} if alive else {8})
    if not alive:
        assert shown_status == ("error" if error else "disconnected")
    elif error and status == Status.DISCONNECTED:
        assert shown_status == "error"
    else:
        assert shown_status == status.value


def test_data_of_a_process_is_shown_only_with_a_live_runtime(anna: GuildMember) -> None:
    def set_connected() -> GuildMember:
        anna.node_id, anna.status, anna.pid, anna.started_at, anna.no_answer_since = 5, Status.CONNECTED, 7, NOW, NOW
        anna.warnings, anna.manifest_warnings, anna.next_restart_at = ["of the process"], ["of the file"], NOW
        return anna

    row = true_row(set_connected(), live_ids={5})
    assert (row.status, row.pid, row.started_at, row.next_restart_at) == (Status.CONNECTED, 7, NOW, NOW)
    assert row.all_warnings == [row.silence, "of the file", "of the process"]
    row = true_row(set_connected(), live_ids={6})
    assert (row.status, row.pid, row.started_at, row.next_restart_at) == ("disconnected", None, None, None)
    assert (row.endpoint, row.error, row.start_progress, row.all_warnings) == (None, "", "", ["of the file"])


def test_a_runtime_is_live_while_it_has_the_lease() -> None:
    assert live_runtime() is None
    lease_id = lease.take()
    holder = live_runtime()
    assert holder is not None
    assert str(holder) == f"process {holder.pid} on {holder.host}"
    lease.release(lease_id)
    assert live_runtime() is None


def test_the_roster_contains_all_members_that_are_not_removed(anna: GuildMember) -> None:
    GuildMember.objects.create(name="gone", directory="gone", removed_at=timezone.now())
    assert list(members_of_roster()) == [anna]


@pytest.mark.django_db(transaction=True)
def test_a_sync_reads_the_folder_and_notifies_the_runtime(
    tmp_path: Path, settings: Any, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    settings.GUILD_HALL_MEMBERS_DIR = tmp_path
    (tmp_path / "bob").mkdir()
    manifest = {"name": "bob", "version": "1", "transport": "http", "command": "sh", "args": ["${PORT}"]}
    (tmp_path / "bob" / "guild-member.json").write_text(json.dumps(manifest))
    assert sync_roster().added == ["bob"]
    assert find_member("bob").version == "1"
    assert broker.members == [True]


def test_log_tail_returns_the_last_lines_of_the_log(anna: GuildMember, tmp_path: Path, settings: Any) -> None:
    settings.GUILD_HALL_DATA_DIR = tmp_path
    assert log_tail(anna, 5) == []
    path = logs.path_of(tmp_path, "anna")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"line {number}\n" for number in range(10)))
    assert log_tail(anna, 3) == ["line 7", "line 8", "line 9"]


# Folders on several nodes -----------------------------------------------------------------------------------------


def add_node(name: str, folders: dict[str, str], **columns: Any) -> Node:
    return Node.objects.create(**{"name": name, "folders": folders, "lease_id": uuid.uuid4(), **columns})


def test_in_a_hall_with_one_node_nothing_is_said_about_folders(anna: GuildMember) -> None:
    assert folder_notes(anna) == []
    node = add_node("a", {})
    assert folder_notes(anna) == []
    anna.node = node
    assert folder_notes(anna) == []


@pytest.mark.usefixtures("several_nodes")
def test_nodes_that_lack_a_members_folder_or_have_other_files_of_it_are_named(anna: GuildMember) -> None:
    anna.node, anna.digest = add_node("a", {"anna": "one"}), "one"
    add_node("b", {"bob": "one"})
    add_node("c", {"anna": "two"})
    add_node("d", {"anna": "one"})
    add_node("e", {"anna": ""})
    add_node("stopped", {}, lease_id=None)
    assert folder_notes(anna) == [
        "The folder of 'anna' is missing on node 'b'.",
        "The files of 'anna' on node 'c' differ from those on its node 'a'. The member cannot move there until the "
        "files are equal.",
        "The folder of 'anna' on node 'e' is too large or has a faulty manifest.",
    ]


@pytest.mark.usefixtures("several_nodes")
def test_a_node_without_the_labels_of_a_member_needs_no_folder(anna: GuildMember) -> None:
    anna.node, anna.manifest = add_node("a", {}, labels=[]), {**anna.manifest, "node": {"labels": ["gpu"]}}
    add_node("b", {}, labels=["eu"])
    add_node("c", {}, labels=["eu", "gpu"])
    assert folder_notes(anna) == ["The folder of 'anna' is missing on nodes 'a' and 'c'."]


@pytest.mark.usefixtures("several_nodes")
def test_many_nodes_without_a_members_folder_are_one_sentence(anna: GuildMember) -> None:
    for number in range(10, 22):
        add_node(f"n{number}", {})
    names = ", ".join(f"'n{number}'" for number in range(10, 15))
    assert folder_notes(anna) == [f"The folder of 'anna' is missing on nodes {names} and 7 others."]


@pytest.mark.usefixtures("several_nodes")
def test_without_an_owner_only_missing_folders_are_named(anna: GuildMember) -> None:
    anna.digest = "one"
    add_node("a", {"anna": "one"})
    add_node("b", {"anna": "two"})
    add_node("c", {})
    assert folder_notes(anna) == ["The folder of 'anna' is missing on node 'c'."]

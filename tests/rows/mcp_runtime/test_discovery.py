from __future__ import annotations

import json
import os
import shutil
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mcp_runtime.members import discovery
from mcp_runtime.members.discovery import SyncReport
from mcp_runtime.members.manifest.declaration import Manifest
from mcp_runtime.members.manifest.files import FILE_NAME
from roster.models import GuildMember, Hall

pytestmark = pytest.mark.django_db

Status = GuildMember.Status


def put(members_dir: Path, place: str, **changes: Any) -> Path:
    values = {
        "name": Path(place).name,
        "version": "1.0.0",
        "transport": "http",
        "command": "python3",
        "args": ["server.py", "${PORT}"],
        **changes,
    }
    return put_text(members_dir, place, json.dumps(values))


def put_text(members_dir: Path, place: str, text: str) -> Path:
    folder = members_dir / place
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE_NAME).write_text(text)
    return folder


def sync(members_dir: Path) -> str:
    return str(discovery.sync(members_dir))


def member(name: str) -> GuildMember:
    return GuildMember.objects.get(name=name)


def present() -> list[str]:
    return list(GuildMember.objects.filter(removed_at=None).values_list("name", flat=True))


# Coming, changing, going ------------------------------------------------------------------------------------------


def test_a_new_folder_becomes_a_member_with_what_its_manifest_says(tmp_path: Path) -> None:
    put(tmp_path, "echo", displayName="Echo", description="Says it again.", timeout=9, oops=1)
    assert sync(tmp_path) == "1 added: echo"
    row = member("echo")
    assert (row.directory, row.version, row.title, row.description) == ("echo", "1.0.0", "Echo", "Says it again.")
    assert (row.status, row.desired_state, row.enabled) == (Status.DISCONNECTED, GuildMember.DesiredState.RUNNING, True)
    assert row.manifest_warnings == ["unknown key 'oops' is ignored"]
    assert row.call_timeout == 9.0
    assert Manifest.from_json(row.manifest).argv(20000) == ["python3", "server.py", "20000"]


def test_a_collection_of_members_can_be_one_folder(tmp_path: Path) -> None:
    put(tmp_path, "collection/one")
    put(tmp_path, "collection/two")
    put(tmp_path, "collection/deeper/three")
    assert sync(tmp_path) == "2 added: one, two"
    assert member("two").directory == "collection/two"


def test_a_folder_that_links_out_of_the_members_folder_is_no_member(tmp_path: Path) -> None:
    outside = put(tmp_path, "outside")
    (tmp_path / "members").mkdir()
    (tmp_path / "members" / "outside").symlink_to(outside)
    assert sync(tmp_path / "members") == "nothing changed"


def test_an_edited_manifest_changes_its_member_alone(tmp_path: Path) -> None:
    put(tmp_path, "echo")
    put(tmp_path, "other")
    sync(tmp_path)
    put(tmp_path, "echo", version="2.0.0")
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert sync(tmp_path) == "1 changed: echo"
    assert [query["sql"].count("UPDATE") for query in queries if "UPDATE " in query["sql"]] == [1]
    assert member("echo").version == "2.0.0"


def test_a_sync_without_a_change_writes_nothing(tmp_path: Path) -> None:
    put(tmp_path, "echo")
    put_text(tmp_path, "broken", "{")
    sync(tmp_path)
    with CaptureQueriesContext(connection) as queries:
        assert sync(tmp_path) == "nothing changed"
    assert not [query for query in queries if query["sql"].startswith(("UPDATE", "INSERT", "DELETE"))]


def test_the_number_of_queries_does_not_grow_with_the_roster(tmp_path: Path) -> None:
    def queries_of_a_sync() -> int:
        with CaptureQueriesContext(connection) as queries:
            sync(tmp_path)
        return len(queries)

    put(tmp_path, "m0")
    sync(tmp_path)
    few = queries_of_a_sync()
    for number in range(1, 20):
        put(tmp_path, f"m{number}")
    sync(tmp_path)
    assert queries_of_a_sync() == few


def test_a_removed_folder_is_marked_and_its_history_kept(tmp_path: Path) -> None:
    folder = put(tmp_path, "echo")
    sync(tmp_path)
    before = timezone.now()
    shutil.rmtree(folder)
    assert sync(tmp_path) == "1 removed: echo"
    removed_at = member("echo").removed_at
    assert removed_at is not None
    assert removed_at >= before
    assert sync(tmp_path) == "nothing changed"
    assert member("echo").removed_at == removed_at


def test_a_folder_that_comes_back_is_the_same_member(tmp_path: Path) -> None:
    folder = put(tmp_path, "echo")
    sync(tmp_path)
    pk = member("echo").pk
    shutil.rmtree(folder)
    sync(tmp_path)
    put(tmp_path, "elsewhere/echo")
    assert sync(tmp_path) == "1 added: echo"
    assert (member("echo").pk, member("echo").removed_at, member("echo").directory) == (pk, None, "elsewhere/echo")


def test_a_members_folder_that_is_gone_removes_all_and_raises_nothing(tmp_path: Path) -> None:
    put(tmp_path / "members", "echo")
    sync(tmp_path / "members")
    shutil.rmtree(tmp_path / "members")
    assert sync(tmp_path / "members") == "1 removed: echo"


def test_a_new_name_in_the_same_folder_is_another_member(tmp_path: Path) -> None:
    put(tmp_path, "folder", name="old")
    sync(tmp_path)
    put(tmp_path, "folder", name="new")
    assert sync(tmp_path) == "1 added: new; 1 removed: old"


# Faults -----------------------------------------------------------------------------------------------------------


def test_a_broken_manifest_is_a_row_that_shows_its_fault(tmp_path: Path) -> None:
    put(tmp_path, "good")
    put(tmp_path, "broken", args=["${PORT}", 5])
    assert sync(tmp_path) == "2 added: good, broken; 1 faulty: broken"
    row = member("broken")
    assert row.manifest_error == "broken/guild-member.json: args.1: must be a string"
    assert row.manifest == {}
    assert row.error == row.manifest_error
    assert member("good").manifest_error == ""


def test_a_broken_manifest_takes_the_name_it_tells_or_its_folders(tmp_path: Path) -> None:
    put(tmp_path, "a", name="told", args=5)
    put_text(tmp_path, "some folder", "{")
    put_text(tmp_path, "---", "{")
    sync(tmp_path)
    assert sorted(present()) == ["member", "some-folder", "told"]


def test_a_fixed_manifest_clears_the_fault_of_its_row(tmp_path: Path) -> None:
    put(tmp_path, "echo", args=5)
    sync(tmp_path)
    pk = member("echo").pk
    put(tmp_path, "echo")
    assert sync(tmp_path) == "1 changed: echo"
    assert (member("echo").pk, member("echo").manifest_error) == (pk, "")


def test_a_manifest_that_breaks_leaves_the_member_as_it_was(tmp_path: Path) -> None:
    put(tmp_path, "echo", displayName="Echo")
    sync(tmp_path)
    GuildMember.objects.update(status=Status.CONNECTED)
    manifest = member("echo").manifest
    put_text(tmp_path, "echo", "{")
    assert sync(tmp_path) == "1 changed: echo; 1 faulty: echo"
    row = member("echo")
    assert row.manifest_error.startswith("echo/guild-member.json: not JSON")
    assert (row.manifest, row.title, row.status, row.removed_at) == (manifest, "Echo", Status.CONNECTED, None)
    assert row.restart_requested_at is None


def test_a_manifest_that_breaks_after_a_renaming_is_the_fault_of_the_present_member(tmp_path: Path) -> None:
    put(tmp_path, "folder", name="aaa-old")
    sync(tmp_path)
    put(tmp_path, "folder", name="new")
    sync(tmp_path)
    put_text(tmp_path, "folder", "{")
    assert sync(tmp_path) == "1 changed: new; 1 faulty: new"
    assert present() == ["new"]


def test_a_faulty_folder_never_takes_the_name_that_a_good_one_claims(tmp_path: Path) -> None:
    put_text(tmp_path, "a/echo", '{"name": "echo"}')
    put(tmp_path, "b", name="echo")
    put_text(tmp_path, "Echo", "{")
    sync(tmp_path)
    assert (member("echo").directory, member("echo").manifest_error) == ("b", "")
    assert len({name.casefold() for name in present()}) == 3


def test_two_folders_of_one_name_are_one_member_and_one_fault(tmp_path: Path) -> None:
    put(tmp_path, "one", name="echo")
    put(tmp_path, "two", name="echo")
    sync(tmp_path)
    assert member("echo").directory == "one"
    assert "'echo' is taken by the folder 'one'" in member("two").manifest_error
    shutil.rmtree(tmp_path / "one")
    sync(tmp_path)
    assert (member("echo").directory, present()) == ("two", ["echo"])


def test_a_copied_folder_does_not_take_the_place_of_a_member(tmp_path: Path) -> None:
    put(tmp_path, "echo")
    sync(tmp_path)
    put(tmp_path, "a copy of echo", name="echo")
    assert sync(tmp_path) == "1 added: a-copy-of-echo; 1 faulty: a-copy-of-echo"
    assert (member("echo").directory, member("echo").manifest_error) == ("echo", "")


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems refuse such names")
def test_what_a_database_could_not_store_does_not_stop_a_sync(tmp_path: Path) -> None:
    put(tmp_path, "good")
    put(tmp_path, "a", tool_timeouts={"a\0b": 1}, env={"\ud800": "x"})
    put_text(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")), ".", "{")
    assert sync(tmp_path) == "3 added: good, a, caf; 2 faulty: a, caf"
    assert sync(tmp_path) == "nothing changed"


# Enabled ----------------------------------------------------------------------------------------------------------


def test_a_new_member_is_enabled_as_its_manifest_says(tmp_path: Path) -> None:
    put(tmp_path, "on")
    put(tmp_path, "off", enabled=False)
    sync(tmp_path)
    assert (member("on").enabled, member("off").enabled) == (True, False)


def test_the_operators_switch_counts_until_the_manifests_is_edited(tmp_path: Path) -> None:
    put(tmp_path, "echo")
    sync(tmp_path)
    GuildMember.objects.update(enabled=False)
    put(tmp_path, "echo", version="2.0.0")
    sync(tmp_path)
    assert member("echo").enabled is False
    put(tmp_path, "echo", enabled=False)
    sync(tmp_path)
    put(tmp_path, "echo", enabled=True)
    sync(tmp_path)
    assert member("echo").enabled is True


# Processes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "restarts"),
    [
        ({"args": ["other.py", "${PORT}"]}, True),
        ({"env": {"A": "1"}}, True),
        ({"command": "python"}, True),
        ({"description": "new words", "timeout": 3, "tool_timeouts": {"a": 1}, "max_concurrency": 2}, False),
    ],
)
def test_a_running_member_is_restarted_when_only_a_new_process_can_follow(
    tmp_path: Path, change: dict[str, Any], restarts: bool
) -> None:
    put(tmp_path, "echo")
    sync(tmp_path)
    GuildMember.objects.update(status=Status.CONNECTED)
    put(tmp_path, "echo", **change)
    sync(tmp_path)
    assert (member("echo").restart_requested_at is not None) is restarts


def test_a_running_member_whose_folder_moved_is_restarted(tmp_path: Path) -> None:
    put(tmp_path, "echo")
    sync(tmp_path)
    GuildMember.objects.update(status=Status.CONNECTED)
    (tmp_path / "echo").rename(tmp_path / "moved")
    sync(tmp_path)
    assert member("echo").restart_requested_at is not None


def test_a_member_that_does_not_run_needs_no_restart(tmp_path: Path) -> None:
    put(tmp_path, "echo")
    sync(tmp_path)
    put(tmp_path, "echo", command="python")
    sync(tmp_path)
    assert member("echo").restart_requested_at is None


# The rest ---------------------------------------------------------------------------------------------------------


def test_two_syncs_at_once_are_kept_apart_by_the_halls_row(tmp_path: Path) -> None:
    Hall.objects.create()
    put(tmp_path, "echo")
    with CaptureQueriesContext(connection) as queries:
        sync(tmp_path)
    lock = "FOR UPDATE" if connection.features.has_select_for_update else "roster_hall"
    place = next(index for index, query in enumerate(queries) if lock in query["sql"])
    assert place < next(index for index, query in enumerate(queries) if "INSERT" in query["sql"])


def test_the_report_names_everything_that_changed() -> None:
    assert str(SyncReport()) == "nothing changed"
    report = SyncReport(added=["a", "b"], changed=["c"], removed=["d"], faulty=["a"])
    assert str(report) == "2 added: a, b; 1 changed: c; 1 removed: d; 1 faulty: a"


def test_a_removal_is_dated_once(tmp_path: Path) -> None:
    long_ago = timezone.now() - timedelta(days=3)
    GuildMember.objects.create(name="gone", directory="gone", removed_at=long_ago)
    sync(tmp_path)
    assert member("gone").removed_at == long_ago

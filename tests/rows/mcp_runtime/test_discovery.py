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


def write_manifest(members_dir: Path, path: str, **changes: Any) -> Path:
    values = {
        "name": Path(path).name,
        "version": "1.0.0",
        "transport": "http",
        "command": "python3",
        "args": ["server.py", "${PORT}"],
        **changes,
    }
    return write_text(members_dir, path, json.dumps(values))


def write_text(members_dir: Path, path: str, text: str) -> Path:
    folder = members_dir / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE_NAME).write_text(text)
    return folder


def sync(members_dir: Path) -> str:
    return str(discovery.sync(members_dir))


def row_of(name: str) -> GuildMember:
    return GuildMember.objects.get(name=name)


def names_in_roster() -> list[str]:
    return list(GuildMember.objects.filter(removed_at=None).values_list("name", flat=True))


# New, changed and removed members ---------------------------------------------------------------------------------


def test_a_new_folder_becomes_a_member_with_the_data_of_its_manifest(tmp_path: Path) -> None:
    write_manifest(tmp_path, "echo", displayName="Echo", description="Says it again.", timeout=9, oops=1)
    assert sync(tmp_path) == "1 added: echo"
    row = row_of("echo")
    assert (row.directory, row.version, row.title, row.description) == ("echo", "1.0.0", "Echo", "Says it again.")
    assert (row.status, row.desired_state, row.enabled) == (Status.DISCONNECTED, GuildMember.DesiredState.RUNNING, True)
    assert row.manifest_warnings == ["unknown key 'oops' is ignored"]
    assert row.call_timeout == 9.0
    assert Manifest.from_json(row.manifest).argv(20000) == ["python3", "server.py", "20000"]


def test_a_manifest_that_a_member_wrote_into_its_folder_never_becomes_a_member(tmp_path: Path) -> None:
    evil = write_manifest(tmp_path, "evil", sandbox="on")
    sync(tmp_path)
    write_manifest(tmp_path, "evil/data")
    assert sync(tmp_path) == "nothing changed"
    (evil / FILE_NAME).unlink()
    assert sync(tmp_path) == "1 removed: evil"
    assert sync(tmp_path) == "nothing changed"
    assert names_in_roster() == []


def test_a_collection_is_found_although_its_folder_had_a_fault_or_was_once_a_member(tmp_path: Path) -> None:
    write_text(tmp_path, "collection", "no manifest")
    sync(tmp_path)
    (tmp_path / "collection" / FILE_NAME).unlink()
    write_manifest(tmp_path, "collection/one")
    assert sync(tmp_path).startswith("1 added: one")
    row = row_of("one")
    GuildMember.objects.create(name="older", directory="collection", manifest=row.manifest, removed_at=timezone.now())
    assert sync(tmp_path) == "nothing changed"
    assert names_in_roster() == ["one"]


def test_a_folder_can_contain_a_collection_of_members(tmp_path: Path) -> None:
    write_manifest(tmp_path, "collection/one")
    write_manifest(tmp_path, "collection/two")
    write_manifest(tmp_path, "collection/deeper/three")
    assert sync(tmp_path) == "2 added: one, two"
    assert row_of("two").directory == "collection/two"


def test_a_link_out_of_the_members_folder_is_no_member(tmp_path: Path) -> None:
    outside = write_manifest(tmp_path, "outside")
    (tmp_path / "members").mkdir()
    (tmp_path / "members" / "outside").symlink_to(outside)
    assert sync(tmp_path / "members") == "nothing changed"


def test_an_edited_manifest_changes_only_its_member(tmp_path: Path) -> None:
    write_manifest(tmp_path, "echo")
    write_manifest(tmp_path, "other")
    sync(tmp_path)
    write_manifest(tmp_path, "echo", version="2.0.0")
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert sync(tmp_path) == "1 changed: echo"
    assert [query["sql"].count("UPDATE") for query in queries if "UPDATE " in query["sql"]] == [1]
    assert row_of("echo").version == "2.0.0"


def test_a_sync_without_a_change_writes_nothing(tmp_path: Path) -> None:
    write_manifest(tmp_path, "echo")
    write_text(tmp_path, "broken", "{")
    sync(tmp_path)
    with CaptureQueriesContext(connection) as queries:
        assert sync(tmp_path) == "nothing changed"
    assert not [query for query in queries if query["sql"].startswith(("UPDATE", "INSERT", "DELETE"))]


def test_the_number_of_queries_does_not_grow_with_the_roster(tmp_path: Path) -> None:
    def count_queries() -> int:
        with CaptureQueriesContext(connection) as queries:
            sync(tmp_path)
        return len(queries)

    write_manifest(tmp_path, "m0")
    sync(tmp_path)
    query_count = count_queries()
    for number in range(1, 20):
        write_manifest(tmp_path, f"m{number}")
    sync(tmp_path)
    assert count_queries() == query_count


def test_the_member_of_a_removed_folder_is_marked_and_keeps_its_row(tmp_path: Path) -> None:
    folder = write_manifest(tmp_path, "echo")
    sync(tmp_path)
    before = timezone.now()
    shutil.rmtree(folder)
    assert sync(tmp_path) == "1 removed: echo"
    removed_at = row_of("echo").removed_at
    assert removed_at is not None
    assert removed_at >= before
    assert sync(tmp_path) == "nothing changed"
    assert row_of("echo").removed_at == removed_at


def test_a_folder_that_is_restored_is_the_same_member(tmp_path: Path) -> None:
    folder = write_manifest(tmp_path, "echo")
    sync(tmp_path)
    pk = row_of("echo").pk
    shutil.rmtree(folder)
    sync(tmp_path)
    write_manifest(tmp_path, "elsewhere/echo")
    assert sync(tmp_path) == "1 added: echo"
    assert (row_of("echo").pk, row_of("echo").removed_at, row_of("echo").directory) == (pk, None, "elsewhere/echo")


def test_a_missing_members_folder_removes_all_members_without_an_error(tmp_path: Path) -> None:
    write_manifest(tmp_path / "members", "echo")
    sync(tmp_path / "members")
    shutil.rmtree(tmp_path / "members")
    assert sync(tmp_path / "members") == "1 removed: echo"


def test_a_new_name_in_the_same_folder_is_another_member(tmp_path: Path) -> None:
    write_manifest(tmp_path, "folder", name="old")
    sync(tmp_path)
    write_manifest(tmp_path, "folder", name="new")
    assert sync(tmp_path) == "1 added: new; 1 removed: old"


# Faults -----------------------------------------------------------------------------------------------------------


def test_an_invalid_manifest_is_a_row_with_its_error(tmp_path: Path) -> None:
    write_manifest(tmp_path, "good")
    write_manifest(tmp_path, "broken", args=["${PORT}", 5])
    assert sync(tmp_path) == "2 added: good, broken; 1 faulty: broken"
    row = row_of("broken")
    assert row.manifest_error == "broken/guild-member.json: args.1: must be a string"
    assert row.manifest_error_key == "args.1"
    assert row.manifest == {}
    assert row.error == row.manifest_error
    assert row_of("good").manifest_error == ""


def test_an_invalid_manifest_gets_its_own_name_or_that_of_its_folder(tmp_path: Path) -> None:
    write_manifest(tmp_path, "a", name="named", args=5)
    write_text(tmp_path, "some folder", "{")
    write_text(tmp_path, "---", "{")
    sync(tmp_path)
    assert sorted(names_in_roster()) == ["member", "named", "some-folder"]


def test_a_fixed_manifest_clears_the_error_of_its_row(tmp_path: Path) -> None:
    write_manifest(tmp_path, "echo", args=5)
    sync(tmp_path)
    pk = row_of("echo").pk
    write_manifest(tmp_path, "echo")
    assert sync(tmp_path) == "1 changed: echo"
    row = row_of("echo")
    assert (row.pk, row.manifest_error, row.manifest_error_key) == (pk, "", "")


def test_an_error_that_an_older_version_noted_gets_its_place(tmp_path: Path) -> None:
    write_manifest(tmp_path, "echo", args=5)
    sync(tmp_path)
    GuildMember.objects.update(manifest_error_key="")
    sync(tmp_path)
    assert row_of("echo").manifest_error_key == "args"


def test_a_manifest_that_becomes_invalid_does_not_change_the_member(tmp_path: Path) -> None:
    write_manifest(tmp_path, "echo", displayName="Echo")
    sync(tmp_path)
    GuildMember.objects.update(status=Status.CONNECTED)
    manifest = row_of("echo").manifest
    write_text(tmp_path, "echo", "{")
    assert sync(tmp_path) == "1 changed: echo; 1 faulty: echo"
    row = row_of("echo")
    assert row.manifest_error.startswith("echo/guild-member.json: not JSON")
    assert (row.manifest, row.title, row.status, row.removed_at) == (manifest, "Echo", Status.CONNECTED, None)
    assert row.restart_requested_at is None


def test_an_invalid_manifest_after_a_new_name_is_the_error_of_the_new_member(tmp_path: Path) -> None:
    write_manifest(tmp_path, "folder", name="aaa-old")
    sync(tmp_path)
    write_manifest(tmp_path, "folder", name="new")
    sync(tmp_path)
    write_text(tmp_path, "folder", "{")
    assert sync(tmp_path) == "1 changed: new; 1 faulty: new"
    assert names_in_roster() == ["new"]


def test_an_invalid_manifest_never_takes_the_name_of_a_valid_one(tmp_path: Path) -> None:
    write_text(tmp_path, "a/echo", '{"name": "echo"}')
    write_manifest(tmp_path, "b", name="echo")
    write_text(tmp_path, "Echo", "{")
    sync(tmp_path)
    assert (row_of("echo").directory, row_of("echo").manifest_error) == ("b", "")
    assert len({name.casefold() for name in names_in_roster()}) == 3


def test_two_folders_with_one_name_are_one_member_and_one_error(tmp_path: Path) -> None:
    write_manifest(tmp_path, "one", name="echo")
    write_manifest(tmp_path, "two", name="echo")
    sync(tmp_path)
    assert row_of("echo").directory == "one"
    assert "'echo' is taken by the folder 'one'" in row_of("two").manifest_error
    shutil.rmtree(tmp_path / "one")
    sync(tmp_path)
    assert (row_of("echo").directory, names_in_roster()) == ("two", ["echo"])


def test_a_copied_folder_does_not_replace_the_member(tmp_path: Path) -> None:
    write_manifest(tmp_path, "echo")
    sync(tmp_path)
    write_manifest(tmp_path, "a copy of echo", name="echo")
    assert sync(tmp_path) == "1 added: a-copy-of-echo; 1 faulty: a-copy-of-echo"
    assert (row_of("echo").directory, row_of("echo").manifest_error) == ("echo", "")


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems refuse such names")
def test_text_that_a_database_cannot_store_does_not_stop_a_sync(tmp_path: Path) -> None:
    write_manifest(tmp_path, "good")
    write_manifest(tmp_path, "a", tool_timeouts={"a\0b": 1}, env={"\ud800": "x"})
    write_text(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")), ".", "{")
    assert sync(tmp_path) == "3 added: good, a, caf; 2 faulty: a, caf"
    assert sync(tmp_path) == "nothing changed"


# Enabled ----------------------------------------------------------------------------------------------------------


def test_a_new_member_is_enabled_if_its_manifest_enables_it(tmp_path: Path) -> None:
    write_manifest(tmp_path, "on")
    write_manifest(tmp_path, "off", enabled=False)
    sync(tmp_path)
    assert (row_of("on").enabled, row_of("off").enabled) == (True, False)


def test_the_operators_choice_is_used_until_the_manifest_changes_its_own(tmp_path: Path) -> None:
    write_manifest(tmp_path, "echo")
    sync(tmp_path)
    GuildMember.objects.update(enabled=False)
    write_manifest(tmp_path, "echo", version="2.0.0")
    sync(tmp_path)
    assert row_of("echo").enabled is False
    write_manifest(tmp_path, "echo", enabled=False)
    sync(tmp_path)
    write_manifest(tmp_path, "echo", enabled=True)
    sync(tmp_path)
    assert row_of("echo").enabled is True


# Processes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "is_restarted"),
    [
        ({"args": ["other.py", "${PORT}"]}, True),
        ({"env": {"A": "1"}}, True),
        ({"command": "python"}, True),
        ({"description": "new words", "timeout": 3, "tool_timeouts": {"a": 1}, "max_concurrency": 2}, False),
    ],
)
def test_a_running_member_is_restarted_only_if_a_change_needs_a_new_process(
    tmp_path: Path, change: dict[str, Any], is_restarted: bool
) -> None:
    write_manifest(tmp_path, "echo")
    sync(tmp_path)
    GuildMember.objects.update(status=Status.CONNECTED)
    write_manifest(tmp_path, "echo", **change)
    sync(tmp_path)
    assert (row_of("echo").restart_requested_at is not None) is is_restarted


def test_a_running_member_whose_folder_moved_is_restarted(tmp_path: Path) -> None:
    write_manifest(tmp_path, "echo")
    sync(tmp_path)
    GuildMember.objects.update(status=Status.CONNECTED)
    (tmp_path / "echo").rename(tmp_path / "moved")
    sync(tmp_path)
    assert row_of("echo").restart_requested_at is not None


def test_a_member_that_does_not_run_needs_no_restart(tmp_path: Path) -> None:
    write_manifest(tmp_path, "echo")
    sync(tmp_path)
    write_manifest(tmp_path, "echo", command="python")
    sync(tmp_path)
    assert row_of("echo").restart_requested_at is None


# Others -----------------------------------------------------------------------------------------------------------


def test_two_syncs_at_once_are_serialized_by_the_row_of_the_hall(tmp_path: Path) -> None:
    Hall.objects.create()
    write_manifest(tmp_path, "echo")
    with CaptureQueriesContext(connection) as queries:
        sync(tmp_path)
    lock = "FOR UPDATE" if connection.features.has_select_for_update else "roster_hall"
    index_of_lock = next(index for index, query in enumerate(queries) if lock in query["sql"])
    assert index_of_lock < next(index for index, query in enumerate(queries) if "INSERT" in query["sql"])


def test_the_report_names_all_changes() -> None:
    assert str(SyncReport()) == "nothing changed"
    report = SyncReport(added=["a", "b"], changed=["c"], removed=["d"], faulty=["a"])
    assert str(report) == "2 added: a, b; 1 changed: c; 1 removed: d; 1 faulty: a"


def test_the_time_of_a_removal_does_not_change(tmp_path: Path) -> None:
    long_ago = timezone.now() - timedelta(days=3)
    GuildMember.objects.create(name="gone", directory="gone", removed_at=long_ago)
    sync(tmp_path)
    assert row_of("gone").removed_at == long_ago

from __future__ import annotations

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError

from mcp_runtime.control.members import sync_roster
from mcp_runtime.members import discovery
from mcp_runtime.members.manifest.files import FILE_NAME
from mcp_runtime.rows import lease
from roster.models import GuildMember
from tests.conftest import ROOT
from tests.support.leases import own_node

EXPOSED = "listens on 0.0.0.0 port 20000; bind 127.0.0.1 so that nobody else can reach it"


@pytest.fixture
def members_dir(tmp_path: Path, settings: Any, db: None) -> Path:
    settings.GUILD_HALL_MEMBERS_DIR = tmp_path / "members"
    (tmp_path / "members").mkdir()
    return tmp_path / "members"


def write_manifest(folder: Path, **changes: Any) -> Path:
    values = {
        "name": folder.name,
        "version": "1.0.0",
        "transport": "http",
        "command": sys.executable,
        "args": ["server.py", "${PORT}"],
        **changes,
    }
    folder.mkdir(parents=True)
    (folder / FILE_NAME).write_text(json.dumps(values))
    return folder


def check(*args: str | Path) -> tuple[str, str]:
    """The output of the command and its error, or an empty text."""
    output = StringIO()
    error = ""
    try:
        call_command("check_members", *map(str, args), stdout=output, no_color=True)
    except CommandError as command_error:
        error = str(command_error) if command_error.returncode == 1 else f"exit code {command_error.returncode}"
    return output.getvalue(), error


def test_a_stdio_server_needs_no_port_and_its_command_must_exist(members_dir: Path) -> None:
    write_manifest(members_dir / "echo", transport="stdio", args=["server.py"])
    assert check() == ("echo: ok\n1 member checked, no faults.\n", "")
    write_manifest(members_dir / "gone", transport="stdio", command="no-such-npx", args=["-y", "server"])
    assert "fault: command: 'no-such-npx' is not on the PATH" in check()[0]


def test_valid_manifests_end_with_a_summary(members_dir: Path) -> None:
    write_manifest(members_dir / "echo")
    write_manifest(members_dir / "collection" / "other")
    assert check() == ("collection/other: ok\necho: ok\n2 members checked, no faults.\n", "")


def test_a_folder_without_members_is_valid(members_dir: Path) -> None:
    assert check() == ("0 members checked, no faults.\n", "")


def test_errors_have_the_path_of_the_key_and_end_the_command_with_an_error(members_dir: Path) -> None:
    write_manifest(members_dir / "good")
    write_manifest(members_dir / "broken", args=["${PORT}", 5])
    (members_dir / "garbage").mkdir()
    (members_dir / "garbage" / FILE_NAME).write_text("[]")
    assert check() == (
        "broken: faulty\n  fault: args.1: must be a string\n"
        "garbage: faulty\n  fault: must be a JSON object\n"
        "good: ok\n",
        "2 of 3 members cannot be used",
    )


def test_warnings_are_shown_and_are_no_error(members_dir: Path) -> None:
    write_manifest(members_dir / "echo", timout=3)
    assert check() == ("echo: ok\n  warning: unknown key 'timout' is ignored\n1 member checked, no faults.\n", "")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("no-such-program-anywhere", "'no-such-program-anywhere' is not on the PATH"),
        ("./run", "'./run' does not exist in the member's folder"),
        (f"./{FILE_NAME}", f"'./{FILE_NAME}' is not executable"),
    ],
)
def test_a_command_that_cannot_start_is_an_error(members_dir: Path, command: str, reason: str) -> None:
    write_manifest(members_dir / "echo", command=command)
    assert check() == (f"echo: faulty\n  fault: command: {reason}\n", "1 of 1 member cannot be used")


def write_remote_manifest(folder: Path, url: str, **headers: str) -> Path:
    values = {"name": folder.name, "version": "1.0.0", "transport": "http", "url": url, "headers": headers}
    folder.mkdir(parents=True)
    (folder / FILE_NAME).write_text(json.dumps(values))
    return folder


def test_plain_http_to_another_machine_is_an_error_unless_the_settings_allow_it(
    members_dir: Path, settings: Any
) -> None:
    write_remote_manifest(members_dir / "far", "http://mcp.example.com/")
    write_remote_manifest(members_dir / "here", "http://localhost:1234/")
    output, error = check()
    assert "far: faulty\n  fault: url: mcp.example.com is another machine" in output
    assert error == "1 of 2 members cannot be used"
    settings.GUILD_HALL_PLAIN_HTTP_HOSTS = ["mcp.example.com"]
    assert check() == ("far: ok\nhere: ok\n2 members checked, no faults.\n", "")


def test_a_secret_in_clear_is_an_error_and_a_missing_secret_is_a_warning(members_dir: Path) -> None:
    write_remote_manifest(members_dir / "clear", "https://mcp.example.com/", Authorization="Bearer hunter2-hunter2")
    write_remote_manifest(members_dir / "far", "https://mcp.example.com/", Authorization="${file:token}")
    output, error = check()
    assert "clear: faulty\n  fault: headers.Authorization: holds a secret in clear; write ${secret:NAME}" in output
    assert "hunter2" not in output
    warning = "headers.Authorization: the file token does not exist; the runtime needs it"
    assert f"far: ok\n  warning: {warning}\n" in output
    assert error == "1 of 2 members cannot be used"


def test_a_misspelt_key_is_shown_beside_the_missing_key(members_dir: Path) -> None:
    (write_manifest(members_dir / "echo") / FILE_NAME).write_text(
        '{"name": "echo", "transport": "http", "comand": "python3"}'
    )
    output, _ = check()
    assert "fault: command: " in output
    assert "warning: unknown key 'comand' is ignored" in output


def test_two_folders_with_one_name_are_an_error(members_dir: Path) -> None:
    write_manifest(members_dir / "one", name="echo")
    write_manifest(members_dir / "two", name="Echo")
    output, error = check()
    assert "two: faulty\n  fault: name: 'Echo' is taken by the folder 'one'" in output
    assert error == "1 of 2 members cannot be used"


def test_a_copy_of_a_member_is_the_invalid_one_whatever_the_folders_are_called(members_dir: Path) -> None:
    write_manifest(members_dir / "original", name="echo")
    discovery.sync(members_dir)
    write_manifest(members_dir / "copy", name="echo")
    output, _ = check()
    assert "copy: faulty\n  fault: name: 'echo' is taken by the folder 'original'" in output
    assert "original: ok" in output


def test_folders_in_the_arguments_are_checked_instead(members_dir: Path, tmp_path: Path) -> None:
    write_manifest(members_dir / "broken", args=5)
    write_manifest(members_dir / "echo")
    outside = write_manifest(tmp_path / "outside")
    write_manifest(tmp_path / "several" / "one")
    write_manifest(tmp_path / "several" / "two")
    output, error = check(members_dir / "echo", outside, tmp_path / "several", members_dir / "echo")
    assert output.splitlines()[:-1] == [
        "echo: ok",
        f"{outside}: ok",
        f"{tmp_path}/several/one: ok",
        f"{tmp_path}/several/two: ok",
    ]
    assert error == ""


def test_a_folder_without_a_manifest_is_an_error(members_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert check(tmp_path / "gone") == ("", f"{tmp_path}/gone is not a folder")
    assert check(tmp_path / "empty") == ("", f"{tmp_path}/empty holds no {FILE_NAME}, nor do the folders in it")


def test_a_missing_members_folder_is_an_error(tmp_path: Path, settings: Any) -> None:
    settings.GUILD_HALL_MEMBERS_DIR = tmp_path / "gone"
    assert check() == ("", f"{tmp_path}/gone is not a folder")


def test_the_json_output_has_the_same_data(members_dir: Path) -> None:
    write_manifest(members_dir / "echo", name="broken", args=5)
    write_manifest(members_dir / "good", timout=3)
    output, error = check("--json")
    assert json.loads(output) == [
        {
            "folder": "echo",
            "name": "broken",
            "faults": [{"path": "args", "reason": "must be an array of strings"}],
            "warnings": [],
            "process_warnings": [],
        },
        {
            "folder": "good",
            "name": "good",
            "faults": [],
            "warnings": ["unknown key 'timout' is ignored"],
            "process_warnings": [],
        },
    ]
    assert error == "1 of 2 members cannot be used"


def test_control_characters_in_a_manifest_are_not_printed(members_dir: Path) -> None:
    write_manifest(members_dir / "\x1b[2Jx", name="x", **{"\x1b[31m": 1})
    assert "\x1b" not in check()[0]


def test_a_running_member_that_listens_on_all_addresses_gets_a_warning(members_dir: Path) -> None:
    write_manifest(members_dir / "echo")
    sync_roster()
    GuildMember.objects.update(status=GuildMember.Status.CONNECTED, warnings=[EXPOSED], node=own_node())
    assert "warning" not in check()[0]  # without a live runtime nothing runs
    lease.take()
    assert f"echo: ok\n  warning of the running process: {EXPOSED}\n" in check()[0]
    (report,) = json.loads(check("--json")[0])
    assert report["process_warnings"] == [EXPOSED]


def test_a_folder_in_another_place_has_no_warnings_of_a_running_member(members_dir: Path, tmp_path: Path) -> None:
    write_manifest(members_dir / "echo")
    sync_roster()
    GuildMember.objects.update(status=GuildMember.Status.CONNECTED, warnings=[EXPOSED], node=own_node())
    lease.take()
    assert "warning" not in check(write_manifest(tmp_path / "elsewhere" / "echo"))[0]


def test_a_check_changes_no_row(members_dir: Path) -> None:
    write_manifest(members_dir / "echo")
    check()
    assert not GuildMember.objects.exists()


def test_manifests_are_checked_even_if_the_database_fails(members_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise DatabaseError("no such table")

    monkeypatch.setattr("roster.management.commands.check_members.live_node_ids", fail)
    write_manifest(members_dir / "echo")
    assert check() == ("echo: ok\n1 member checked, no faults.\n", "")


@pytest.mark.parametrize("database", ["missing", "empty"])
def test_the_command_works_before_the_setup_and_creates_no_database(tmp_path: Path, database: str) -> None:
    path = tmp_path / "data" / "guildhall.sqlite3"
    path.parent.mkdir()
    if database == "empty":
        path.touch()
    environment = {**os.environ, "GUILD_HALL_DATA_DIR": str(path.parent), "DATABASE_URL": ""}
    process = subprocess.run(
        [sys.executable, "manage.py", "check_members", "--json"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr.decode()
    assert {member["name"] for member in json.loads(process.stdout)} >= {"example", "notes"}  # others may be there
    assert path.exists() is (database == "empty")

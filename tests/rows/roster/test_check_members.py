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

EXPOSED = "listens on 0.0.0.0 port 20000; bind 127.0.0.1 so that nobody else can reach it"


@pytest.fixture
def members_dir(tmp_path: Path, settings: Any, db: None) -> Path:
    settings.GUILD_HALL_MEMBERS_DIR = tmp_path / "members"
    (tmp_path / "members").mkdir()
    return tmp_path / "members"


def put(place: Path, **changes: Any) -> Path:
    values = {
        "name": place.name,
        "version": "1.0.0",
        "transport": "http",
        "command": sys.executable,
        "args": ["server.py", "${PORT}"],
        **changes,
    }
    place.mkdir(parents=True)
    (place / FILE_NAME).write_text(json.dumps(values))
    return place


def check(*args: str | Path) -> tuple[str, str]:
    """What the command printed, and the error it ended with, if any."""
    output = StringIO()
    error = ""
    try:
        call_command("check_members", *map(str, args), stdout=output, no_color=True)
    except CommandError as caught:
        error = str(caught) if caught.returncode == 1 else f"exit code {caught.returncode}"
    return output.getvalue(), error


def test_a_stdio_server_is_good_without_a_port_and_its_command_is_looked_for(members_dir: Path) -> None:
    put(members_dir / "echo", transport="stdio", args=["server.py"])
    assert check() == ("echo: ok\n1 member checked, no faults.\n", "")
    put(members_dir / "gone", transport="stdio", command="no-such-npx", args=["-y", "server"])
    assert "fault: command: 'no-such-npx' is not on the PATH" in check()[0]


def test_good_manifests_end_with_a_sentence(members_dir: Path) -> None:
    put(members_dir / "echo")
    put(members_dir / "collection" / "other")
    assert check() == ("collection/other: ok\necho: ok\n2 members checked, no faults.\n", "")


def test_no_members_are_no_fault(members_dir: Path) -> None:
    assert check() == ("0 members checked, no faults.\n", "")


def test_faults_are_told_with_the_path_of_the_key_and_end_in_an_error(members_dir: Path) -> None:
    put(members_dir / "good")
    put(members_dir / "broken", args=["${PORT}", 5])
    (members_dir / "garbage").mkdir()
    (members_dir / "garbage" / FILE_NAME).write_text("[]")
    assert check() == (
        "broken: faulty\n  fault: args.1: must be a string\n"
        "garbage: faulty\n  fault: must be a JSON object\n"
        "good: ok\n",
        "2 of 3 members cannot be used",
    )


def test_warnings_are_told_and_are_no_fault(members_dir: Path) -> None:
    put(members_dir / "echo", timout=3)
    assert check() == ("echo: ok\n  warning: unknown key 'timout' is ignored\n1 member checked, no faults.\n", "")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("no-such-program-anywhere", "'no-such-program-anywhere' is not on the PATH"),
        ("./run", "'./run' does not exist in the member's folder"),
        (f"./{FILE_NAME}", f"'./{FILE_NAME}' is not executable"),
    ],
)
def test_a_command_that_could_not_start_is_a_fault(members_dir: Path, command: str, reason: str) -> None:
    put(members_dir / "echo", command=command)
    assert check() == (f"echo: faulty\n  fault: command: {reason}\n", "1 of 1 member cannot be used")


def put_remote(place: Path, url: str, **headers: str) -> Path:
    values = {"name": place.name, "version": "1.0.0", "transport": "http", "url": url, "headers": headers}
    place.mkdir(parents=True)
    (place / FILE_NAME).write_text(json.dumps(values))
    return place


def test_plain_http_to_another_machine_is_a_fault_unless_the_operator_names_it(
    members_dir: Path, settings: Any
) -> None:
    put_remote(members_dir / "far", "http://mcp.example.com/")
    put_remote(members_dir / "here", "http://localhost:1234/")
    output, error = check()
    assert "far: faulty\n  fault: url: mcp.example.com is another machine" in output
    assert error == "1 of 2 members cannot be used"
    settings.GUILD_HALL_PLAIN_HTTP_HOSTS = ["mcp.example.com"]
    assert check() == ("far: ok\nhere: ok\n2 members checked, no faults.\n", "")


def test_a_secret_in_clear_is_a_fault_and_one_that_is_missing_here_a_warning(members_dir: Path) -> None:
    put_remote(members_dir / "clear", "https://mcp.example.com/", Authorization="Bearer hunter2-hunter2")
    put_remote(members_dir / "far", "https://mcp.example.com/", Authorization="${file:token}")
    output, error = check()
    assert "clear: faulty\n  fault: headers.Authorization: holds a secret in clear; write ${env:NAME}" in output
    assert "hunter2" not in output
    warning = "headers.Authorization: the file token does not exist; the runtime needs it"
    assert f"far: ok\n  warning: {warning}\n" in output
    assert error == "1 of 2 members cannot be used"


def test_what_is_misspelt_is_named_beside_what_is_missing(members_dir: Path) -> None:
    (put(members_dir / "echo") / FILE_NAME).write_text('{"name": "echo", "transport": "http", "comand": "python3"}')
    output, _ = check()
    assert "fault: command: " in output
    assert "warning: unknown key 'comand' is ignored" in output


def test_two_folders_of_one_name_are_a_fault(members_dir: Path) -> None:
    put(members_dir / "one", name="echo")
    put(members_dir / "two", name="Echo")
    output, error = check()
    assert "two: faulty\n  fault: name: 'Echo' is taken by the folder 'one'" in output
    assert error == "1 of 2 members cannot be used"


def test_of_a_member_and_its_copy_the_copy_is_faulty_whatever_they_are_called(members_dir: Path) -> None:
    put(members_dir / "original", name="echo")
    discovery.sync(members_dir)
    put(members_dir / "copy", name="echo")
    output, _ = check()
    assert "copy: faulty\n  fault: name: 'echo' is taken by the folder 'original'" in output
    assert "original: ok" in output


def test_given_folders_are_validated_instead(members_dir: Path, tmp_path: Path) -> None:
    put(members_dir / "broken", args=5)
    put(members_dir / "echo")
    outside = put(tmp_path / "outside")
    put(tmp_path / "several" / "one")
    put(tmp_path / "several" / "two")
    output, error = check(members_dir / "echo", outside, tmp_path / "several", members_dir / "echo")
    assert output.splitlines()[:-1] == [
        "echo: ok",
        f"{outside}: ok",
        f"{tmp_path}/several/one: ok",
        f"{tmp_path}/several/two: ok",
    ]
    assert error == ""


def test_a_place_without_members_is_an_error(members_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert check(tmp_path / "gone") == ("", f"{tmp_path}/gone is not a folder")
    assert check(tmp_path / "empty") == ("", f"{tmp_path}/empty holds no {FILE_NAME}, nor do the folders in it")


def test_a_missing_members_folder_is_an_error(tmp_path: Path, settings: Any) -> None:
    settings.GUILD_HALL_MEMBERS_DIR = tmp_path / "gone"
    assert check() == ("", f"{tmp_path}/gone is not a folder")


def test_json_tells_the_same_to_programs(members_dir: Path) -> None:
    put(members_dir / "echo", name="broken", args=5)
    put(members_dir / "good", timout=3)
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


def test_what_a_manifest_holds_cannot_command_the_terminal(members_dir: Path) -> None:
    put(members_dir / "\x1b[2Jx", name="x", **{"\x1b[31m": 1})
    assert "\x1b" not in check()[0]


def test_a_running_member_that_strangers_can_reach_is_told_on(members_dir: Path) -> None:
    put(members_dir / "echo")
    sync_roster()
    GuildMember.objects.update(status=GuildMember.Status.CONNECTED, warnings=[EXPOSED])
    assert "warning" not in check()[0]  # without a live runtime nothing runs
    lease.take()
    assert f"echo: ok\n  warning of the running process: {EXPOSED}\n" in check()[0]
    (report,) = json.loads(check("--json")[0])
    assert report["process_warnings"] == [EXPOSED]


def test_a_folder_elsewhere_has_nothing_to_do_with_the_member_of_its_name(members_dir: Path, tmp_path: Path) -> None:
    put(members_dir / "echo")
    sync_roster()
    GuildMember.objects.update(status=GuildMember.Status.CONNECTED, warnings=[EXPOSED])
    lease.take()
    assert "warning" not in check(put(tmp_path / "elsewhere" / "echo"))[0]


def test_a_check_changes_no_row(members_dir: Path) -> None:
    put(members_dir / "echo")
    check()
    assert not GuildMember.objects.exists()


def test_a_database_that_fails_is_no_reason_not_to_validate(members_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise DatabaseError("no such table")

    monkeypatch.setattr("roster.management.commands.check_members.live_runtime", fail)
    put(members_dir / "echo")
    assert check() == ("echo: ok\n1 member checked, no faults.\n", "")


@pytest.mark.parametrize("database", ["missing", "empty"])
def test_it_works_before_the_hall_is_set_up_and_makes_no_database(tmp_path: Path, database: str) -> None:
    path = tmp_path / "data" / "guildhall.sqlite3"
    path.parent.mkdir()
    if database == "empty":
        path.touch()
    environment = {**os.environ, "GUILD_HALL_DATA_DIR": str(path.parent), "DATABASE_URL": ""}
    done = subprocess.run(
        [sys.executable, "manage.py", "check_members", "--json"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert {member["name"] for member in json.loads(done.stdout)} >= {"example", "notes"}  # others may be there
    assert path.exists() is (database == "empty")
